"""How much does `hotloop run` slow down a training script, compared with other profilers?

Measured in three ways: our own cost as the report gives it (measured callbacks, and calls x calibrated cost
of a region); recording turned on and off, or everything installed and removed, inside one process, in random
pairs of short segments; and the script's own training time under each tool in turn, relative to the plain
run.
Run on a quiet machine: python benchmarks/run_cost.py [--pairs 16] [--processes 8] [--rounds 3]

A segment consists of hundreds of stretches, each from one env step or update to the next. The cost of a
stretch is the median over all pairs. This leaves out disturbances by other programs, and also what recording
does only now and then (taking a window, at most a thousandth of the time by design; reading the line of the
script). The interval is over processes: where a process has its code and data in memory makes it two per cent
faster or slower with the wrappers, and all its pairs alike.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

import hotloop
from hotloop.analysis.rank_intervals import hodges_lehmann, signed_rank_interval
from hotloop.analysis.region_tree import region_trees, walk
from hotloop.machine.facts import cpu_name

Times = NDArray[np.float64]
HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
PYTHON = sys.executable
PROGRAMS = {
    "SB3 PPO CartPole": [str(HERE / "programs/sb3_ppo.py"), "6144"],
    "PPO in one file": [str(HERE.parent / "examples/02_unmodified_ppo.py"), "--total-timesteps", "8192"],
}


def tools(folder: Path) -> dict[str, list[str]]:
    """Command prefix of each tool."""
    return {
        "plain": [PYTHON],
        "hotloop run": [str(BIN / "hotloop"), "run", "--capture", str(folder / "capture"), "--", PYTHON],
        "cProfile": [PYTHON, "-m", "cProfile", "-o", str(folder / "out.prof")],
        "pyinstrument": [str(BIN / "pyinstrument"), "-o", str(folder / "out.txt")],
        "viztracer": [str(BIN / "viztracer"), "--quiet", "-o", str(folder / "out.json")],
        "py-spy (sampling from outside)": [
            str(BIN / "py-spy"),
            "record",
            "-o",
            str(folder / "out.svg"),
            "--",
            PYTHON,
        ],
        "scalene": [PYTHON, "-m", "scalene", "run", "--cpu-only", "-o", str(folder / "out-scalene.json")],
        "torch.profiler (whole run)": [PYTHON, str(HERE / "programs/under_torch_profiler.py")],
    }


def train_seconds(command: list[str]) -> tuple[float, float] | None:
    """The program's own training time, wall and CPU; None when the tool failed."""
    environment = os.environ | {"KINETO_LOG_LEVEL": "99"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("train_seconds"):
            words = line.split()
            return float(words[1]), float(words[3])
    print(f"failed: {command[:3]} {done.stderr[-300:]}", file=sys.stderr)
    return None


def side_by_side(rounds: int) -> None:
    for program, words in PROGRAMS.items():
        seconds: dict[str, list[tuple[float, float]]] = {}
        chance = random.Random(0)
        for number in range(rounds):
            with tempfile.TemporaryDirectory() as name:
                found = tools(Path(name))
                order = chance.sample(sorted(found), len(found))
                for tool in order:
                    prefix = found[tool]
                    if not (shutil.which(prefix[0]) or Path(prefix[0]).exists()):
                        continue
                    spent = train_seconds([*prefix, *words])
                    if spent is not None:
                        seconds.setdefault(tool, []).append(spent)
                    print(f"round {number + 1}/{rounds} {program}: {tool} {spent}", file=sys.stderr)
        plain = [median(times) for times in zip(*seconds["plain"], strict=True)]
        print(f"\n{program}: training time x plain, median of {rounds} interleaved rounds")
        print(f"  plain: {plain[0]:.2f} s wall, {plain[1]:.2f} s CPU of the process")
        print(f"{'':<36}{'wall':>8}{'CPU':>8}")
        for tool in tools(Path()):
            if tool not in seconds:
                print(f"  {tool:<34}  not installed or failed")
                continue
            ratios = [median(t) / p for t, p in zip(zip(*seconds[tool], strict=True), plain, strict=True)]
            print(f"  {tool:<34}{ratios[0]:>8.2f}{ratios[1]:>8.2f}")


def by_calibration() -> None:
    print(
        "our own cost as the report gives it, callbacks as measured + calls x calibrated cost (at most 1 %):"
    )
    for program, words in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "capture"
            command = [str(BIN / "hotloop"), "run", "--capture", str(folder), "--json", *words]
            done = subprocess.run(command, capture_output=True, check=True, text=True)
            everything = json.loads(done.stdout)["breakdown"]
            shares = {kind["category"]: kind["share"] for kind in everything["categories"]}
            capture = hotloop.load(folder)
            (outline,) = region_trees(capture)
            imports = sum(n.total_ns for n in outline.root.children if n.name == "import")
            ours = {node.name: 0 for _, node in walk(outline.root) if node.category == "hotloop"}
            for _, node in walk(outline.root):
                if node.name in ours:
                    ours[node.name] += node.own_ns
            once = ours.pop("hotloop_models", 0)  # looks at the networks of the first optimizer
            hooks = sum(ours.values())
            wall_ns = outline.wall_ns - imports - once
            print(
                f"  {program:<20}{100 * everything['hotloop_ns'] / everything['wall_ns']:>6.2f} % of training"
                f"   callbacks {100 * hooks / wall_ns:.2f} % of the whole run, and once {once / 1e6:.0f} ms"
                f"   attributed {100 * (1 - shares['unattributed']):.1f} % of wall time"
            )


def by_switching(pairs: int, processes: int) -> None:
    """How much longer an iteration takes: summed over its stretches, and as a whole."""
    questions = {"record": "recording turned on and off", "all": "everything installed and removed"}
    for what, title in questions.items():
        print(
            f"{title} inside one process, {processes} processes x {pairs} random pairs of iterations, [95 %]:"
        )
        for program, name in (("sb3", "SB3 PPO CartPole"), ("file", "PPO in one file")):
            words = [PYTHON, str(HERE / "programs/recording_on_off.py"), program, what, str(pairs)]
            by_stretch, plainly = [], []
            for _ in range(processes):
                done = subprocess.run(words, capture_output=True, text=True, check=True)
                found = json.loads(done.stdout.splitlines()[-1])
                off, on = (np.array(found[key], dtype=float) for key in ("off", "on"))  # [pair, stretch], ns
                by_stretch.append(robust_change(off, on))
                plainly.append(float(np.expm1(hodges_lehmann(np.log(on.sum(1)) - np.log(off.sum(1))))))
            print(
                f"  {name:<20}{over_processes(by_stretch)} by stretches   {over_processes(plainly)} whole",
                flush=True,
            )


def over_processes(changes: list[float]) -> str:
    """`+1.26 % [+0.18, +2.42]`; six processes are the fewest that give an interval."""
    values = np.array(changes)
    low, high = signed_rank_interval(values, 0.05) or (np.nan, np.nan)
    return f"{100 * hodges_lehmann(values):+.2f} % [{100 * low:+.2f}, {100 * high:+.2f}]"


def robust_change(off: Times, on: Times) -> float:
    """Cost of recording: the median over all pairs for each stretch, summed; arrays [pair, stretch], ns."""
    return float(np.median(on - off, 0).sum() / np.median(off, 0).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all tools; 0 skips them")
    parser.add_argument("--pairs", type=int, default=16, help="pairs of segments; 0 skips them")
    parser.add_argument("--processes", type=int, default=8, help="each makes that many pairs")
    arguments = parser.parse_args()
    print(f"{cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    by_calibration()
    if arguments.pairs:
        by_switching(arguments.pairs, arguments.processes)
    if arguments.rounds:
        side_by_side(arguments.rounds)


if __name__ == "__main__":
    main()
