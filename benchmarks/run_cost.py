"""What does `hotloop run` cost a training script, next to other profilers?

Three answers: calls x calibrated cost of one region / wall time; recording switched on and off inside
one process, many short segments in random pairs; and the script under each tool in turn, its own
training time against the plain run. Run: python benchmarks/run_cost.py [--rounds 5]
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

import hotloop
from hotloop.analysis.outline import outlines
from hotloop.analysis.signed_rank import hodges_lehmann, signed_rank_interval
from hotloop.machine.facts import cpu_name

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
PYTHON = sys.executable
PROGRAMS = {
    "SB3 PPO CartPole": [str(HERE / "programs/sb3_ppo.py"), "6144"],
    "PPO in one file": [str(HERE.parent / "examples/02_unmodified_ppo.py"), "--total-steps", "8192"],
}


def tools(folder: Path) -> dict[str, list[str]]:
    """Command prefixes; those not installed are left out and named."""
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
    print("calls x calibrated cost of one region / wall time (at most 1 %):")
    for program, words in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "capture"
            command = [str(BIN / "hotloop"), "run", "--capture", str(folder), "--json", *words]
            subprocess.run(command, capture_output=True, check=True)
            capture = hotloop.load(folder)
            (everything,) = outlines(capture)
            imports = sum(n.total_ns for n in everything.root.children if n.name == "import")
            share = (everything.hotloop_ns or 0) / (everything.wall_ns - imports)
            unattributed = everything.unattributed_ns / everything.wall_ns
            attributed = 100 * (1 - unattributed)
            print(f"  {program:<20}{100 * share:>6.2f} %   attributed {attributed:.1f} % of wall time")


def by_switching(pairs: int) -> None:
    done = subprocess.run(
        [PYTHON, str(HERE / "programs/toggle_sb3.py"), str(pairs)], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    import numpy as np

    print(f"recording switched on and off inside SB3 PPO, {pairs} random pairs, change [95 %]:")
    for place, name in enumerate(("wall", "CPU time of the thread")):
        ratios = np.array([np.log(on[place] / off[place]) for off, on in found])
        low, high = np.expm1(signed_rank_interval(ratios, 0.05) or (np.nan, np.nan))
        estimate = np.expm1(hodges_lehmann(ratios))
        print(f"  {name:<24}{100 * estimate:+.2f} % [{100 * low:+.2f}, {100 * high:+.2f}]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=60)
    arguments = parser.parse_args()
    print(f"{cpu_name()}, {os.cpu_count()} cores\n")
    by_calibration()
    by_switching(arguments.pairs)
    side_by_side(arguments.rounds)


if __name__ == "__main__":
    main()
