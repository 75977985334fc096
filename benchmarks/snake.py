"""Snake: how far `fast` is from its matrix products, how variants compare, whether time per step grows.

Three questions, each answered with variants that run in turn; results are medians over the rounds:

- products: time of `fast` training over the time of its matrix products alone, of updates and acting: same
  shapes, preallocated, one thread, with the fastest of torch, numpy and our kernels. Wall time counts; CPU
  time, which other programs disturb less, is printed as well.
- variants: time per env step of `original`, `fast` (the same updates) and `fewer` (a quarter of them: a
  different amount of work), and the final length of snakes trained by `fast` and `fewer`.
- growth: time per env step of `fast` after 1024 and after 5000 episodes, as an exponent of the episodes.

Run: python benchmarks/snake.py [--rounds N] [--only products variants growth] [--json FILE]
About 8 minutes on a quiet machine. Exit code 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import numpy as np
import torch

from hotloop.rl.envs.compiled import kernel
from hotloop.rl.train.dqn import make_learner, train
from hotloop.rl.train.fused import layers
from hotloop.rl.train.networks.q import QNetwork
from hotloop.rl.workloads.snake import NET_ARCH, Snake, check_learning, compile_kernels, dqn_config, make_envs

FEATURES, ACTIONS, BATCH, ENVS = 14, 3, 64, 256
SMALL, LARGE = 1024, 5000
LEARN_STEPS, WANTED_LENGTH = 25_600, 15.0
MOST_OVER_PRODUCTS, LEAST_GAIN, MOST_EXPONENT = 1.5, 10.0, 0.03
Action = Callable[[], None]
Seconds = tuple[float, float]  # wall, CPU


def trained(config: Snake, report: Callable[..., None] = lambda **work: None) -> Any:
    """A training run with kernels compiled in advance."""
    settings, envs = dqn_config(config), make_envs(config)
    compile_kernels(settings, envs)
    done = train(settings, envs=envs, report=report)
    envs.close()
    return done


def seconds_per_update(config: Snake) -> Seconds:
    """Wall and CPU seconds for each update, from the first report of work to the last."""
    marks: list[tuple[float, float, int]] = []

    def report(**work: Any) -> None:
        before = marks[-1][2] if marks else 0
        marks.append((time.perf_counter(), time.process_time(), before + work["updates"]))

    trained(config, report)
    first, last = marks[0], next(m for m in reversed(marks) if m[2] > marks[0][2])
    return (last[0] - first[0]) / (last[2] - first[2]), (last[1] - first[1]) / (last[2] - first[2])


# ---- matrix products alone


def shapes(rows: int) -> list[tuple[int, int, int]]:
    widths = (FEATURES, *NET_ARCH, ACTIONS)
    return [(rows, a, b) for a, b in itertools.pairwise(widths)]


def library_products(multiply: Callable[..., Any], make: Callable[..., Any]) -> tuple[Action, Action]:
    """The products of an update (three passes forward, gradients backward) and of acting."""

    def of(rows: int) -> list[tuple[Any, ...]]:
        return [
            (make(r, a), make(a, b), make(r, b), make(a, r), make(b, a), make(a, b), make(r, a))
            for r, a, b in shapes(rows)
        ]

    update, act = of(BATCH), of(ENVS)

    def updating() -> None:
        for _ in range(3):
            for x, w, y, *_ in update:
                multiply(x, w, out=y)
        for layer, (_x, _w, y, transposed_x, transposed_w, gradient, delta) in enumerate(update):
            multiply(transposed_x, y, out=gradient)
            if layer:  # the observations need no gradient
                multiply(y, transposed_w, out=delta)

    def acting() -> None:
        for x, w, y, *_ in act:
            multiply(x, w, out=y)

    return updating, acting


@kernel
def update_passes(state: Any, inputs: Any, times: int) -> None:
    for _ in range(times):
        for _ in range(3):
            layers.forward(state.table, state.packed, inputs, 0, state.hidden, 64)
        layers.backward(
            state.table,
            state.packed_transposed,
            inputs,
            0,
            state.hidden,
            state.deltas,
            64,
            state.packed_grads,
        )


def our_products() -> tuple[Action, Action]:
    """Our forward and backward passes: products with bias and activation, and nothing else of an update."""
    network = QNetwork(FEATURES, ACTIONS, NET_ARCH, "relu")
    settings = dqn_config(Snake(n_envs=ENVS, batch_size=BATCH))
    learner = make_learner("fused", network, settings)
    inputs = np.random.default_rng(0).random((ENVS, FEATURES), dtype=np.float32)
    uniforms, actions = np.zeros((ENVS, 2)), np.zeros(ENVS, dtype=np.int64)

    def updating() -> None:
        update_passes(learner.kernel_state, inputs.reshape(-1), 1)

    def acting() -> None:
        learner.act(inputs, 0.0, uniforms, actions)

    return updating, acting


def timed(action: Action, times: int) -> Seconds:
    began = time.perf_counter(), time.process_time()
    for _ in range(times):
        action()
    return (time.perf_counter() - began[0]) / times, (time.process_time() - began[1]) / times


def products(rounds: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)

    def array(a: int, b: int) -> Any:
        return rng.random((a, b), dtype=np.float32)

    def tensor(a: int, b: int) -> Any:
        return torch.from_numpy(array(a, b))

    kinds = {
        "torch": library_products(torch.mm, tensor),
        "numpy": library_products(np.matmul, array),
        "ours": our_products(),
    }
    config = Snake(variant="fast", total_timesteps=320 * ENVS)
    each = ENVS // 4  # updates for one acting
    alone: dict[str, list[Seconds]] = {name: [] for name in kinds}
    whole: list[Seconds] = []
    for _ in range(rounds):
        with torch.inference_mode():
            for name, (updating, acting) in kinds.items():
                updating(), acting()
                update, act = timed(updating, 1000), timed(acting, 200)
                alone[name].append((update[0] + act[0] / each, update[1] + act[1] / each))
        whole.append(seconds_per_update(config))
    wall_us = {name: 1e6 * statistics.median(s[0] for s in found) for name, found in alone.items()}
    best = min(wall_us, key=lambda name: wall_us[name])
    over = [[a[i] / b[i] for a, b in zip(whole, alone[best], strict=True)] for i in (0, 1)]
    return {
        "products_us_per_update": wall_us,
        "fastest": best,
        "fast_us_per_update": 1e6 * statistics.median(s[0] for s in whole),
        "over_products": statistics.median(over[0]),
        "over_products_range": (min(over[0]), max(over[0])),
        "over_products_by_cpu_time": statistics.median(over[1]),
        "reached": statistics.median(over[0]) <= MOST_OVER_PRODUCTS,
    }


# ---- variants


def variants(rounds: int) -> dict[str, Any]:
    steps = {"original": 10 * ENVS, "fast": 100 * ENVS, "fewer": 100 * ENVS}
    us: dict[str, list[float]] = {name: [] for name in steps}
    updates = {}
    for number in range(rounds):
        for name in steps if number % 2 else reversed(steps):
            config = Snake(variant=name, total_timesteps=steps[name], seed=number)  # type: ignore[arg-type]
            done = trained(config)
            us[name].append(1e6 * done.seconds / done.env_steps)
            updates[name] = done.updates / done.env_steps
    gains = {
        name: statistics.median(a / b for a, b in zip(us["original"], us[name], strict=True)) for name in us
    }
    lengths = {
        name: check_learning(Snake(variant=name), LEARN_STEPS).mean_length for name in ("fast", "fewer")
    }
    return {
        "us_per_env_step": {name: statistics.median(found) for name, found in us.items()},
        "updates_per_env_step": updates,
        "times_original": gains,
        "mean_length": lengths,
        "reached": gains["fewer"] >= LEAST_GAIN and lengths["fewer"] >= WANTED_LENGTH,
    }


# ---- growth


def growth(rounds: int) -> dict[str, Any]:
    us: dict[int, list[float]] = {SMALL: [], LARGE: []}
    steps = {}
    for number in range(rounds):
        for episodes in (SMALL, LARGE) if number % 2 else (LARGE, SMALL):
            done = trained(Snake(variant="fast", stop_at_episodes=episodes, seed=number))
            us[episodes].append(1e6 * done.seconds / done.env_steps)
            steps[episodes] = done.env_steps
    exponents = [
        math.log(large / small) / math.log(LARGE / SMALL)
        for small, large in zip(us[SMALL], us[LARGE], strict=True)
    ]
    middle = statistics.median(exponents)
    return {
        "us_per_env_step": {str(n): statistics.median(found) for n, found in us.items()},
        "env_steps": {str(n): found for n, found in steps.items()},
        "exponent": middle,
        "exponent_range": (min(exponents), max(exponents)),
        "reached": abs(middle) <= MOST_EXPONENT,
    }


def say(name: str, found: dict[str, Any]) -> None:
    print(f"{name}: {'target reached' if found['reached'] else 'TARGET MISSED'}")
    for key, value in found.items():
        if isinstance(value, dict):
            shown = ", ".join(f"{k} {v:,.4g}" for k, v in value.items())
        elif isinstance(value, tuple):
            shown = " .. ".join(f"{v:.4g}" for v in value)
        else:
            shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        if key != "reached":
            print(f"  {key.replace('_', ' '):<22} {shown}")
    print(flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    questions = {"products": products, "variants": variants, "growth": growth}
    parser.add_argument("--only", nargs="+", choices=questions, default=list(questions))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for variant in ("original", "fast", "fewer"):  # compiles everything
        trained(Snake(variant=variant, total_timesteps=2 * ENVS))
    results = {}
    for name in arguments.only:
        results[name] = questions[name](arguments.rounds)
        say(name, results[name])
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    return 0 if all(found["reached"] for found in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
