"""Is one compute thread faster, and does the report say so? Small programs with torch's default threads.

For each program: its speed with one thread over its speed with the default number, in fresh processes under
`hotloop run`, by wall time and by CPU time of the main thread; and the evidence about threads in the capture.

    python benchmarks/one_thread.py --pairs 3
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 4.0  # of measured work in each process
WARM_UP = 1.0


def measured(work: Callable[[], int]) -> dict[str, float]:
    """Units per second of `work`, which returns how many it did: wall time, CPU time of the main thread."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < WARM_UP:
        work()
    begin, cpu, units = time.perf_counter(), time.thread_time(), 0
    while (spent := time.perf_counter() - begin) < SECONDS:
        units += work()
    return {"wall": units / spent, "main_cpu": units / (time.thread_time() - cpu)}


def sb3(name: str, env: str, batch: int, **settings: Any) -> Callable[[], int]:
    import stable_baselines3

    model = getattr(stable_baselines3, name)("MlpPolicy", env, seed=1, device="cpu", **settings)
    model.learn(batch)  # sets up; later calls continue

    def work() -> int:
        before = model.num_timesteps
        model.learn(batch, reset_num_timesteps=False)
        return int(model.num_timesteps - before)

    return work


def network(sizes: list[int], batch: int, acting: int) -> Callable[[], int]:
    """One-file actor-critic style: `acting` calls on one observation, then one update on a batch."""
    import torch

    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(before, after), torch.nn.Tanh()]
    net = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.Adam(net.parameters())
    inputs, targets, one = (
        torch.randn(batch, sizes[0]),
        torch.randn(batch, sizes[-1]),
        torch.randn(1, sizes[0]),
    )

    def work() -> int:
        for _ in range(acting):
            with torch.no_grad():
                net(one).argmax().item()
        loss = ((net(inputs) - targets) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return 1

    return work


def convolutions(batch: int) -> Callable[[], int]:
    """The network of the DQN paper on 84 x 84 frames."""
    import torch
    from torch import nn

    net = nn.Sequential(
        *(
            nn.Conv2d(4, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1),
            nn.ReLU(),
        ),
        *(nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6)),
    )
    optimizer = torch.optim.Adam(net.parameters())
    frames, one = torch.rand(batch, 4, 84, 84), torch.rand(1, 4, 84, 84)

    def work() -> int:
        for _ in range(4):
            with torch.no_grad():
                net(one).argmax().item()
        loss = (net(frames) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return 1

    return work


def numpy_only() -> Callable[[], int]:
    """Tabular learning next to an imported torch whose pool is idle."""
    import gymnasium
    import numpy as np
    import torch

    torch.zeros(1)
    env = gymnasium.make("FrozenLake-v1")
    table = np.zeros((16, 4))
    random = np.random.default_rng(1)

    def work() -> int:
        state, _ = env.reset()
        for step in range(1, 101):
            action = int(random.integers(4))
            after, reward, ended, cut, _ = env.step(action)
            table[state, action] += 0.1 * (float(reward) + 0.9 * table[after].max() - table[state, action])
            state = after
            if ended or cut:
                return step
        return 100

    return work


PROGRAMS: dict[str, Callable[[], Callable[[], int]]] = {
    "SB3 PPO CartPole (64-64, batch 64)": lambda: sb3("PPO", "CartPole-v1", 256, n_steps=256),
    "SB3 A2C CartPole": lambda: sb3("A2C", "CartPole-v1", 50),
    "SB3 DQN CartPole": lambda: sb3("DQN", "CartPole-v1", 100, learning_starts=100),
    "SB3 SAC Pendulum (256-256, batch 256)": lambda: sb3("SAC", "Pendulum-v1", 20, learning_starts=100),
    "SB3 TD3 Pendulum (400-300, batch 256)": lambda: sb3("TD3", "Pendulum-v1", 20, learning_starts=100),
    "one file, 32-32, batch 32, 4 acting calls": lambda: network([4, 32, 32, 2], 32, 4),
    "one file, 64-64, batch 256, 32 acting calls": lambda: network([8, 64, 64, 4], 256, 32),
    "one file, 64-64, batch 64, no acting": lambda: network([8, 64, 64, 4], 64, 0),
    "one file, 256-256, batch 256, 1 acting call": lambda: network([17, 256, 256, 6], 256, 1),
    "one file, 256-256, batch 64, 1 acting call": lambda: network([17, 256, 256, 6], 64, 1),
    "one file, 512-512, batch 1024, no acting": lambda: network([17, 512, 512, 6], 1024, 0),
    "one file, 1024-1024, batch 2048, no acting": lambda: network([64, 1024, 1024, 6], 2048, 0),
    "convolutions, batch 32": lambda: convolutions(32),
    "convolutions, batch 256": lambda: convolutions(256),
    "tabular, torch imported": numpy_only,
}


def recorded(program: str, threads: int | None, folder: Path) -> dict[str, Any]:
    """Speed of the program under `hotloop run`, and the evidence about threads that its capture has."""
    variables = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    variables |= {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    shutil.rmtree(folder, ignore_errors=True)
    words = [sys.executable, "-m", "hotloop", "run", "--capture", str(folder), "--"]
    words += [sys.executable, __file__, "--program", program]
    done = subprocess.run(words, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    speeds = next(json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"wall"'))
    return {**speeds, **evidence(folder)}


def evidence(folder: Path) -> dict[str, Any]:
    from hotloop.analysis.advice.run_view import view_run
    from hotloop.analysis.explain import explain
    from hotloop.analysis.phases import training_of
    from hotloop.capture.open_capture import open_capture

    capture = open_capture(str(folder))
    findings = explain(capture)
    run = view_run(training_of(capture), findings)
    if run is None or run.core_time is None:
        return {}
    advice = [one.name for one in findings.recommendations if one.tier in ("high", "medium", "low")]
    return {"threads": run.compute_threads[0], "advice": advice, **dataclasses.asdict(run.core_time)}


COLUMNS = {
    "pool on core": "pool_on_core",
    "pool waiting": "pool_run_queue",
    "main waiting": "run_queue",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", help="run this one here and print its units per second")
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the captures here")
    given = parser.parse_args()
    if given.program:
        print(json.dumps(measured(PROGRAMS[given.program]())))
        return
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'program':46}{'one thread':>11}{'CPU':>6}" + "".join(f"{c:>14}" for c in COLUMNS) + "  advice")
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        for number, program in enumerate(PROGRAMS):
            if given.only not in program:
                continue
            pairs = []
            for pair in range(given.pairs):
                name = f"{number:02}-{pair}"
                default = recorded(program, None, folder / f"{name}-default")
                pairs.append((recorded(program, 1, folder / f"{name}-one"), default))
            wall, cpu = (
                statistics.geometric_mean(one[key] / default[key] for one, default in pairs)
                for key in ("wall", "main_cpu")
            )
            last = pairs[-1][1]
            shown = "".join(f"{last.get(key) or 0.0:14.1%}" for key in COLUMNS.values())
            print(
                f"{program:46}{wall:10.2f}x{cpu:5.2f}x{shown}  {', '.join(last.get('advice', ()))}",
                flush=True,
            )


if __name__ == "__main__":
    main()
