"""How far does the agent of `hotloop train mario` come with each seed, beside random actions?

    python benchmarks/mario_seeds.py --first 1000 --last 1019 --at-once 2 --output mario_seeds.jsonl

One run of the default command for each seed; the results go to OUTPUT as they come, and seeds that are in it
are not run again. Words after `--` are passed on to the command. Prints a table with every seed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

FIGURES = ("agent_distance", "greedy_distance", "random_distance", "agent_flags", "greedy_flags")
WANTED = 1.5


def run(seed: int, words: list[str]) -> dict[str, Any]:
    """Distances and flags of a run with this seed, and the CPU time of its processes."""
    command = [sys.executable, "-m", "hotloop", "train", "mario", "--seed", str(seed)]
    command += ["--no-profiling", "--json", *words]
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        with out.open("wb") as stream:
            process = subprocess.Popen(command, stdout=stream, env=os.environ | {"OMP_NUM_THREADS": "1"})
            _, status, used = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"seed {seed}: {' '.join(command)} ended with status {status}")
        figures = json.loads(out.read_text())["outcome"]["figures"]
    cpu_s = used.ru_utime + used.ru_stime
    found = {"seed": seed, **{name: figures[name] for name in FIGURES}}
    return found | {"cpu_s": round(cpu_s, 1), "seconds": round(time.monotonic() - began_s, 1)}


def table(found: list[dict[str, Any]]) -> str:
    """One line for each seed, and how many reach 1.5 times the distance of random actions."""
    lines = ["| seed | agent | always greedy | random | ratio | greedy ratio | flags of 100 | CPU s |"]
    lines.append("| ---: " * 8 + "|")
    ratios, greedy = [], []
    for row in sorted(found, key=lambda row: int(row["seed"])):
        ratios.append(row["agent_distance"] / row["random_distance"])
        greedy.append(row["greedy_distance"] / row["random_distance"])
        lines.append(
            f"| {row['seed']} | {row['agent_distance']:.0f} | {row['greedy_distance']:.0f} | "
            f"{row['random_distance']:.0f} | {ratios[-1]:.2f} | {greedy[-1]:.2f} | "
            f"{row['agent_flags']:.0f}, {row['greedy_flags']:.0f} | {row['cpu_s']:.0f} |"
        )
    for name, values in (("agent", ratios), ("always greedy", greedy)):
        reached = sum(value >= WANTED for value in values)
        mean = sum(values) / len(values)
        lines.append(f"{name}: {reached} of {len(values)} at least {WANTED}; {mean:.2f} on average")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--last", type=int, required=True)
    parser.add_argument("--at-once", type=int, default=1, help="runs at the same time")
    parser.add_argument("--output", type=Path, default=Path("mario_seeds.jsonl"))
    parser.add_argument("words", nargs="*", help="more words for the command, after --")
    given = parser.parse_args()
    lines = given.output.read_text().splitlines() if given.output.exists() else []
    found = [json.loads(line) for line in lines]
    done = {row["seed"] for row in found}
    left = [seed for seed in range(given.first, given.last + 1) if seed not in done]
    with ThreadPoolExecutor(given.at_once) as pool:
        for row in pool.map(lambda seed: run(seed, given.words), left):
            found.append(row)
            with given.output.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
            print(row, file=sys.stderr, flush=True)
    print(table(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
