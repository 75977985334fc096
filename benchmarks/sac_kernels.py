"""What a gradient step of boosted SAC consists of: each kernel by itself, and its matrix products alone.

One thread, CPU time; each part is timed many times, and the fastest is printed, because other programs can
only make it slower.

    OMP_NUM_THREADS=1 python benchmarks/sac_kernels.py [--repeats 60]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from stable_baselines3 import SAC

from hotloop.boost import dense_kernels as dense
from hotloop.boost import off_policy_kernels as off_policy
from hotloop.boost import sac, sac_kernels
from hotloop.boost.replay_samples import Samples
from hotloop.boost.selected_sums import BITS, TABLES_SIZE, multiply_selected
from hotloop.rl.train.fused.flat import aligned_zeros
from hotloop.rl.train.fused.tiles import multiply

BATCH, UNITS = 256, 256
CALLS = 4  # in one timing
# Products of 256 x 256 matrices in a gradient step; two layers' inputs and outputs are narrow. In the
# critics' backward passes one of the matrices only selects rows of the other (`boost/selected_sums.py`).
DENSE, SELECTED = 10, 5


def microseconds(part: Callable[[], object], repeats: int) -> float:
    part()
    best = float("inf")
    for _ in range(repeats):
        started = time.thread_time()
        for _ in range(CALLS):
            part()
        best = min(best, (time.thread_time() - started) / CALLS)
    return best * 1e6


def prepared_learner() -> tuple[sac.Learner, Samples]:
    """A learner of SAC 256-256 on Pendulum-v1 with a batch drawn, as `train` leaves it."""
    model = SAC("MlpPolicy", "Pendulum-v1", seed=0, learning_starts=100, batch_size=BATCH)
    model.learn(300)
    learner = sac.Learner(model)
    for group in learner.groups:
        group.refresh()
    learner.samples = samples = learner.allocate(BATCH, 1)
    samples.draw(model)
    learner._settings[sac_kernels.TAU] = 0.005
    learner._settings[sac_kernels.UPDATE_TARGETS] = 1
    learner._settings[sac_kernels.LEARN_ENT_COEF] = 1
    learner._settings[sac_kernels.TARGET_ENTROPY] = -1
    learner._noise[:] = np.random.default_rng(0).standard_normal(learner._noise.shape)
    return learner, samples


def parts_of(learner: sac.Learner) -> dict[str, tuple[int, Callable[[], object]]]:
    """How often a gradient step runs each kernel, and the kernel with its arguments."""
    nets, memory, words = learner._tables, learner._memory, learner.team._words
    critic, actor = nets.critics[1, 0].copy(), nets.actor
    half = np.arange(0, BATCH, 2, dtype=np.uint64)  # samples for which this critic gives the smaller value
    log_probs = np.zeros(BATCH, np.float32)

    def forward(net: np.ndarray, at: np.ndarray) -> Callable[[], object]:
        return lambda: dense.forward(net, at, 0, memory.work, memory.slopes, BATCH, words, 0, 1)

    def backward(net: np.ndarray, at: np.ndarray) -> Callable[[], object]:
        return lambda: dense.backward(
            net,
            at,
            memory.work,
            memory.deltas,
            memory.slopes,
            BATCH,
            BATCH,
            memory.grads,
            memory.across[0],
            memory.sums[0],
            memory.codes[0],
            0,
            words,
            0,
            1,
        )

    def gradient_by_actions() -> None:
        off_policy.keep_selected(nets.critics[2, 0], memory, BATCH, half, np.float32(-1 / BATCH))
        off_policy.input_gradient_of_selected(
            nets.critics[2, 0],
            nets.critics_at,
            memory,
            BATCH,
            half,
            1,
            learner._scratch.action_grads,
            words,
            0,
            1,
        )

    def adam(net: np.ndarray, at: np.ndarray, optimizer: int) -> Callable[[], object]:
        return lambda: dense.adam(net, at, memory.grads, learner._optimizers[optimizer], words, 0, 1)

    return {
        "actor, forward": (2, forward(actor, nets.actor_at)),
        "actions and log probabilities": (
            2,
            lambda: sac_kernels.squash(actor, memory.work, BATCH, learner._noise[0], 0, log_probs),
        ),
        "critic, forward": (6, forward(critic, nets.critics_at)),
        "critic, backward": (2, backward(critic, nets.critics_at)),
        "critic, Adam": (2, adam(critic, nets.critics_at, 1)),
        "critic, target weights": (
            2,
            lambda: dense.update_targets(critic, nets.critics_at, 0.005, 0, 1),
        ),
        "critic, gradient by the actions, half of the samples": (2, gradient_by_actions),
        "actor, backward": (1, backward(actor, nets.actor_at)),
        "actor, Adam": (1, adam(actor, nets.actor_at, 0)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=60, help="timings of each part")
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    learner, samples = prepared_learner()
    found = np.zeros(4)
    whole = microseconds(lambda: learner._update(samples, found), repeats)
    print("| part | times | us each | us in a step |")
    print("| --- | ---: | ---: | ---: |")
    total = 0.0
    for name, (times, part) in parts_of(learner).items():
        each = microseconds(part, repeats)
        total += times * each
        print(f"| {name} | {times} | {each:.0f} | {times * each:.0f} |")
    left, right, out = np.random.default_rng(0).standard_normal((3, UNITS * UNITS)).astype(np.float32)
    product = microseconds(
        lambda: multiply(left, 0, UNITS, 1, right, 0, UNITS, out, 0, UNITS, UNITS, UNITS, BATCH, False),
        repeats,
    )
    scales, sums = np.ones(UNITS, np.float32), aligned_zeros(TABLES_SIZE)
    codes = np.random.default_rng(0).integers(0, 1 << BITS, UNITS * BATCH // BITS, dtype=np.uint8)
    selected = microseconds(
        lambda: multiply_selected(
            codes, BATCH // BITS, 1, right, 0, UNITS, scales, out, 0, UNITS, scales, UNITS, UNITS, BATCH, sums
        ),
        repeats,
    )
    print(f"| all parts | | | {total:.0f} |")
    print(f"| the step as a whole | | | {whole:.0f} |")
    for name, times, each in (("dense", DENSE, product), ("selected", SELECTED, selected)):
        print(f"| of it, {name} products of 256 x 256 | {times} | {each:.0f} | {times * each:.0f} |")


if __name__ == "__main__":
    main()
