"""Whole training runs side by side: env steps per second at equal hyper-parameters and equal updates.

Every trainer is a small program in benchmarks/programs, run in a fresh process; trainers take turns. Each
prints its env steps, updates, time and mean return. Warm-up and compilation are not timed. One thread each.
To add a trainer, write a program and add a line to ENTRIES.

Run: python benchmarks/trainers.py ppo|dqn [--rounds 3] [--peers-python /path/with/jax/bin/python]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from hotloop.machine.facts import cpu_name

PROGRAMS = Path(__file__).parent / "programs"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Entry:
    """One trainer of one benchmark."""

    benchmark: str
    name: str
    program: str
    arguments: tuple[str, ...] = ()
    steps: int = 102_400
    """Env steps of a timed run; the same for all trainers of a benchmark, so that returns are comparable."""
    needs: str | None = None
    """Package that the program needs in --peers-python; None for programs that run in this Python."""
    baseline: bool = False
    """Whether other trainers are given as multiples of this one."""


ENTRIES = (
    Entry("ppo", "hotloop, our CartPole", "ppo_hotloop.py", ("--env", "CartPole")),
    Entry("ppo", "hotloop, Gymnasium's CartPole", "ppo_hotloop.py", ("--env", "CartPole-v1")),
    Entry("ppo", "PureJaxRL-style JAX", "ppo_purejax.py", needs="jax"),
    Entry("ppo", "PufferLib, its own CartPole", "ppo_puffer.py", needs="pufferlib"),
    Entry("ppo", "Stable-Baselines3", "ppo_sb3.py", baseline=True),
    Entry("ppo", "CleanRL's loop", "ppo_cleanrl.py"),
    Entry("ppo", "TorchRL", "ppo_torchrl.py"),
    Entry("dqn", "hotloop, our CartPole", "dqn_hotloop.py", ("--env", "CartPole"), 51_200),
    Entry("dqn", "hotloop, Gymnasium's CartPole", "dqn_hotloop.py", ("--env", "CartPole-v1"), 51_200),
    Entry("dqn", "hotloop, torch learner", "dqn_hotloop.py", ("--learner", "torch"), 51_200),
    Entry("dqn", "rejax-style JAX", "dqn_jax.py", steps=51_200, needs="jax"),
    Entry("dqn", "Stable-Baselines3", "dqn_sb3.py", steps=51_200, baseline=True),
    Entry("dqn", "CleanRL's loop", "dqn_cleanrl.py", steps=51_200),
    Entry("dqn", "TorchRL", "dqn_torchrl.py", steps=51_200),
)


def run(entry: Entry, python: str, seed: int, scale: float) -> dict[str, Any] | None:
    """The JSON that one run of the program printed; None if it failed, with the end of its stderr shown."""
    steps = max(int(entry.steps * scale) // 1024, 2) * 1024
    command = [
        python,
        str(PROGRAMS / entry.program),
        *entry.arguments,
        "--steps",
        str(steps),
        "--seed",
        str(seed),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=900, check=False, env=os.environ | ONE_THREAD
    )
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    print(f"{entry.name}: failed\n{done.stderr[-600:]}", file=sys.stderr)
    return None


def has(python: str, package: str) -> bool:
    """Whether that Python can import the package."""
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    return subprocess.run([python, "-c", look, package], capture_output=True, check=False).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmark", choices=sorted({entry.benchmark for entry in ENTRIES}))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="multiply the number of env steps by this")
    parser.add_argument("--only", help="only trainers whose name contains this")
    parser.add_argument(
        "--peers-python",
        default=sys.executable,
        help="a Python with jax and PufferLib, from make bench-peers",
    )
    given = parser.parse_args()

    wanted = [entry for entry in ENTRIES if entry.benchmark == given.benchmark]
    wanted = [entry for entry in wanted if not given.only or given.only.lower() in entry.name.lower()]
    missing = [entry for entry in wanted if entry.needs and not has(given.peers_python, entry.needs)]
    for entry in missing:
        print(f"{entry.name}: not measured, {given.peers_python} has no {entry.needs}", file=sys.stderr)
    wanted = [entry for entry in wanted if entry not in missing]
    runs: dict[str, list[dict[str, Any]]] = {entry.name: [] for entry in wanted}
    for number in range(given.rounds):
        for entry in wanted:
            python = given.peers_python if entry.needs else sys.executable
            found = run(entry, python, number, given.scale)
            if found is not None:
                runs[entry.name].append(found)
                rate = found["env_steps"] / found["seconds"]
                print(f"round {number + 1} {entry.name}: {rate:,.0f} steps/s", file=sys.stderr)
    print(f"\n{given.benchmark}, {cpu_name()}, {given.rounds} interleaved rounds\n")
    table(wanted, runs)


def table(entries: list[Entry], runs: dict[str, list[dict[str, Any]]]) -> None:
    """Print median and best of the rounds; CPU time tells a slow trainer from a busy machine."""

    def rates(entry: Entry, time: str) -> list[float]:
        return [one["env_steps"] / one[time] for one in runs[entry.name]]

    base = next((entry for entry in entries if entry.baseline and runs[entry.name]), None)
    unit = median(rates(base, "seconds")) if base else None
    cpu_unit = median(rates(base, "cpu_seconds")) if base else None
    print(
        "| | env steps/s, median | best | x SB3 | per CPU second | x SB3 | updates / 1,000 steps | return |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for entry in entries:
        if not runs[entry.name]:
            print(f"| {entry.name} | - | - | - | - | - | - | - |")
            continue
        wall, cpu = rates(entry, "seconds"), rates(entry, "cpu_seconds")
        last = runs[entry.name]
        updates = median(1000 * one["updates"] / one["env_steps"] for one in last)
        returns = [one["mean_return"] for one in last if one["mean_return"] is not None]
        cells = [
            f"{median(wall):,.0f}", f"{max(wall):,.0f}", f"{median(wall) / unit:.1f}" if unit else "-",
            f"{median(cpu):,.0f}", f"{median(cpu) / cpu_unit:.1f}" if cpu_unit else "-",
            f"{updates:.1f}", f"{median(returns):.0f}" if returns else "-",
        ]  # fmt: skip
        print(f"| {entry.name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
