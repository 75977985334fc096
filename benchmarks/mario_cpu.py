"""CPU time of each process in an epoch of mario's benchmark, by variant: what can two cores reach?

    python benchmarks/mario_cpu.py --rounds 3

The variants take turns, each run in a fresh process, at the work of `hotloop train mario --benchmark`. The
first epoch is left out. CPU time hardly depends on what else the machine does, so this can be read where wall
time cannot. The bound of an epoch is the CPU time of the learner's own thread or of a collector, as if each
had a core for itself, or that of all processes shared evenly by the cores, whichever is longest. Words after
`--` are settings such as `precision=float32` or `target_thread=` (empty: off).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

EPOCHS = 4  # the first is left out
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@contextmanager
def collectors_seen(pids: list[int]) -> Iterator[None]:
    """Note the ids of the processes that are started inside the block."""
    import multiprocessing.process

    process: Any = multiprocessing.process.BaseProcess
    start = process.start

    def noting(self: Any) -> None:
        start(self)
        pids.append(self.pid)

    process.start = noting
    try:
        yield
    finally:
        process.start = start


def cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        words = stat.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS_PER_S  # user and system time


def run_variant(variant: Any, words: list[str]) -> dict[str, Any]:
    """CPU seconds of the learner and of all collectors in one epoch, means over the measured ones."""
    from hotloop.rl.train.async_dqn import train
    from hotloop.rl.workloads.mario import Mario, async_dqn_config, make_env
    from hotloop.workflows.train_mario import equal_work, learner_limit

    given = dict(word.split("=", 1) for word in words)
    config = equal_work(Mario(stop_at_epochs=EPOCHS, hang_timeout_s=600.0, **given), variant)  # type: ignore[arg-type]
    pids: list[int] = []
    marks: list[tuple[float, float, float]] = []

    def mark(_epochs: int, _network: Any) -> None:
        marks.append((time.process_time(), time.thread_time(), sum(map(cpu_s, pids))))

    with collectors_seen(pids):
        done = train(async_dqn_config(config), partial(make_env, config), distance="x_pos", after_epoch=mark)
    learner, own, collectors = ((b - a) / (len(marks) - 1) for a, b in zip(marks[0], marks[-1], strict=True))
    limit = learner_limit(config)
    return {
        "learner_s": learner,
        "learner_thread_s": own,
        "collectors_s": collectors,
        "epoch_s": statistics.mean(done.epoch_s[1:]),
        "n_collectors": len(pids),
        "learned": config.epoch_steps * config.replay_ratio,
        "products_s": limit.products_s,
        "alone_s": limit.learner_s,
        "precision": done.precision,
    }


def bound_s(learner_s: float, thread_s: float, collectors_s: float, n_collectors: int, cores: int) -> float:
    return max(thread_s, collectors_s / n_collectors, (learner_s + collectors_s) / cores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*")
    args = parser.parse_args()
    if args.variant:
        print(json.dumps(run_variant(args.variant, args.words)))
        return
    found: dict[str, list[dict[str, Any]]] = {"original": [], "fast": []}
    for _ in range(args.rounds):
        for variant, runs in found.items():
            command = [sys.executable, __file__, "--variant", variant, "--", *args.words]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            runs.append(json.loads(output.splitlines()[-1]))
            print(variant, runs[-1], flush=True)
    bounds: dict[str, float] = {}
    for variant, runs in found.items():
        middle = {
            name: statistics.median(run[name] for run in runs) for name in runs[0] if name != "precision"
        }
        counts = int(middle["n_collectors"]), args.cores
        learner_s, thread_s = middle["learner_s"], middle["learner_thread_s"]
        bounds[variant] = bound_s(learner_s, thread_s, middle["collectors_s"], *counts)
        products_s = middle["products_s"] * middle["learned"]
        least_s = bound_s(products_s, thread_s * products_s / learner_s, middle["collectors_s"], *counts)
        print(
            f"{variant} ({runs[0]['precision']}): learner {learner_s:.2f} s of CPU time per epoch, "
            f"{thread_s:.2f} s of it in its own thread, {counts[0]} collectors "
            f"{middle['collectors_s']:.2f} s; bound {bounds[variant]:.2f} s, with the learner at its "
            f"products alone ({products_s:.2f} s) {least_s:.2f} s; wall {middle['epoch_s']:.2f} s"
        )
        if variant == "fast":
            for name, bound in (("fast", bounds["fast"]), ("with products alone", least_s)):
                ratio = bounds["original"] / bound
                print(f"{name}: epoch {100 / ratio - 100:+.0f} %, batches/s {100 * ratio - 100:+.0f} %")


if __name__ == "__main__":
    main()
