"""How far is DQN's update from its matrix products alone? One thread, best of many interleaved rounds.

For each network: an update of the fused and of the torch learner on the same replay buffer (sampling
included), and the matrix products that it needs, computed with torch: three forward passes (observations;
next observations by network and target), and backward with respect to weights and inputs. The same for acting
on 256 envs.

Run: python benchmarks/dqn_update.py [--rounds N]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from hotloop.machine.facts import cpu_name
from hotloop.rl.buffers.replay import ReplayBuffer
from hotloop.rl.train.dqn import DQNConfig, make_learner
from hotloop.rl.train.networks.q import QNetwork

ENVS = 256
NETWORKS = {  # observation, net_arch, actions, batch
    "CartPole 4-64-64-2, batch 32": (4, (64, 64), 2, 32),
    "CartPole 4-64-64-2, batch 64": (4, (64, 64), 2, 64),
    "Snake 14-128-128-3, batch 64": (14, (128, 128), 3, 64),
    "Snake 14-128-128-3, batch 256": (14, (128, 128), 3, 256),
    "Snake 14-256-256-3, batch 256": (14, (256, 256), 3, 256),
}
REPEAT = 4


def filled(width: int, actions: int) -> ReplayBuffer:
    rng = np.random.default_rng(0)
    buffer = ReplayBuffer(100_000, ENVS, Box(-9.0, 9.0, (width,), np.float32), Discrete(actions))

    def frames() -> np.ndarray:
        return rng.normal(size=(ENVS, width)).astype(np.float32)

    buffer.start(frames())
    for _ in range(400):
        terminated, truncated = rng.random((2, ENVS)) < 0.01
        buffer.push(
            rng.integers(0, actions, ENVS), rng.normal(size=ENVS), terminated, truncated, frames(), frames()
        )
    return buffer


def product(rows: int, depth: int, columns: int) -> Callable[[], object]:
    a, b, out = torch.randn(rows, depth), torch.randn(depth, columns), torch.empty(rows, columns)
    return lambda: torch.mm(a, b, out=out)


def products(sizes: tuple[int, ...], batch: int) -> list[tuple[int, Callable[[], object]]]:
    """The products of an update, each with the number of times it is computed."""
    found = []
    for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
        found.append((3, product(batch, inputs, outputs)))
        found.append((1, product(inputs, batch, outputs)))
        if layer > 0:
            found.append((1, product(batch, outputs, inputs)))
    return found


def seconds(action: Callable[[], object], repeat: int) -> float:
    began = time.perf_counter()
    for _ in range(repeat):
        action()
    return (time.perf_counter() - began) / repeat


def measure(name: str, rounds: int) -> None:
    width, net_arch, actions, batch = NETWORKS[name]
    config = DQNConfig(batch_size=batch, net_arch=net_arch, quiet=True)
    buffer = filled(width, actions)
    sample = buffer.make_batch(batch, shared=False)
    learners = {
        kind: make_learner(kind, QNetwork(width, actions, net_arch), config) for kind in ("fused", "torch")
    }
    uniforms = np.random.default_rng(0).random((ENVS, 2))
    observations, chosen = np.ones((ENVS, width), dtype=np.float32), np.zeros(ENVS, dtype=np.int64)
    sizes = (width, *net_arch, actions)
    needed = products(sizes, batch)
    acting = [product(ENVS, inputs, outputs) for inputs, outputs in pairwise(sizes)]
    best: dict[str, float] = {}

    def keep(what: str, found: float) -> None:
        best[what] = min(best.get(what, float("inf")), found)

    for number in range(rounds + 1):
        for kind, learner in learners.items():
            keep(
                f"update, {kind}",
                seconds(lambda one=learner: one.update(buffer, sample, REPEAT), 1) / REPEAT,  # type: ignore[misc]
            )
            keep(f"act, {kind}", seconds(lambda one=learner: one.act(observations, 0.1, uniforms, chosen), 1))  # type: ignore[misc]
        for place, (_, action) in enumerate(needed):
            keep(f"product {place}", seconds(action, REPEAT))
        for place, action in enumerate(acting):
            keep(f"acting {place}", seconds(action, REPEAT))
        if number == 0:
            best.clear()  # compilation
    update = sum(times * best[f"product {place}"] for place, (times, _) in enumerate(needed))
    act = sum(best[f"acting {place}"] for place in range(len(acting)))
    for what, least in (("update", update), ("act", act)):
        found = [best[f"{what}, {kind}"] for kind in learners]
        cells = "".join(f"{one * 1e6:>9.1f}{one / least:>7.2f}" for one in found)
        print(f"{name if what == 'update' else f'  acting on {ENVS} envs':<32}{least * 1e6:>9.1f}{cells}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=300)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{cpu_name()}; us, best of {arguments.rounds} interleaved rounds; x products\n")
    print(f"{'':<32}{'products':>9}{'fused':>9}{'x':>7}{'torch':>9}{'x':>7}")
    for name in NETWORKS:
        measure(name, arguments.rounds)


if __name__ == "__main__":
    main()
