"""How often does `hotloop bisect` find the commit that made training slower? Real repositories, real runs.

    python benchmarks/bisect_trials.py [--trials 20] [--budget 3m] [--jobs 1]

Each trial makes a repository of 31 commits, in which one commit, at random, makes the training loop 10 %
longer; the others change other lines. Commit 0 is the good one. What else runs on the machine is the noise.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

COMMITS, ROUNDS, SLOWER = 31, 1_500_000, 1.10
SCRIPT = """\
# revision {number}
total = 0.0
for step in range({rounds}):
    total += (step * 0.5) % 3.0
"""


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def make_repository(folder: Path, slow_from: int) -> list[str]:
    """Returns the revisions, oldest first."""
    git(folder, "init", "-q")
    for number in range(COMMITS):
        rounds = int(ROUNDS * SLOWER) if number >= slow_from else ROUNDS
        (folder / "train.py").write_text(SCRIPT.format(number=number, rounds=rounds))
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", f"change {number}")
    return git(folder, "rev-list", "--reverse", "HEAD").split()


def trial(number: int, budget: str) -> tuple[str, float]:
    """Whether the right commit was found: "right", "right, not certain", "wrong" or "none"; and seconds."""
    slow_from = random.Random(number).randrange(1, COMMITS)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        revisions = make_repository(folder, slow_from)
        hotloop = str(Path(sys.executable).with_name("hotloop"))
        words = [hotloop, "bisect", "--json", "--no-record", "--budget", budget, "--good", revisions[0]]
        words += ["--bad", "HEAD", "--", sys.executable, "train.py"]
        began = time.monotonic()
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - began
    found = json.loads(done.stdout) if done.stdout.strip() else {}
    first = found.get("first_slow")
    if first is None:
        return "none", seconds
    if first != revisions[slow_from]:
        return "wrong", seconds
    return "right" if found["is_sure"] else "right, not certain", seconds


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--trials", type=int, default=20)
    options.add_argument("--budget", default="3m")
    options.add_argument("--jobs", type=int, default=1, help="trials at once, which disturb each other")
    given = options.parse_args()
    counts: dict[str, int] = {}
    with ThreadPoolExecutor(given.jobs) as pool:
        for number, (ended, seconds) in enumerate(
            pool.map(lambda seed: trial(seed, given.budget), range(given.trials)), 1
        ):
            counts[ended] = counts.get(ended, 0) + 1
            print(f"trial {number}: {ended}, {seconds:.0f} s", file=sys.stderr, flush=True)
    print(", ".join(f"{ended} {count}" for ended, count in sorted(counts.items())), "of", given.trials)


if __name__ == "__main__":
    main()
