"""What `make demo` runs: a slow training is recorded and explained, its slow parts exchanged, the gain shown.

An agent learns Snake by DQN, the way such scripts are first written: rows become tensors one by one, a flood
fill runs in Python, many small calls of torch make an update. The report says what that costs. Then the same
training, with the same updates and the same numbers up to rounding, runs in hotloop's kernels, and
`hotloop compare` runs both in turn until the verdict is clear. Each command is shown before it runs.

Run: python examples/demo.py [--folder DIR] [--episodes N] [--compare-episodes N] [--budget TIME]
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

WORKLOAD = ["train", "snake", "--variant", "original", "--envs", "64"]
INTERRUPTED = 130


def typed(program: str) -> str:
    """What to type for a program of this Python's environment."""
    own = Path(sys.executable).with_name(program)
    return program if shutil.which(program) == str(own) else os.path.relpath(own)


def hotloop(*words: str) -> None:
    """Show a command, then run it; a failure ends the demo with its exit code."""
    print(f"\n$ {typed('hotloop')} {shlex.join(words)}\n", flush=True)
    code = subprocess.call([sys.executable, "-m", "hotloop", *words])
    if code != 0:
        raise SystemExit(code if code > 0 else 128 - code)  # below 0: ended by that signal


def say(words: str) -> None:
    """A heading between two commands."""
    print(f"\n=== {words}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("hotloop-runs/demo"),
        help="where runs and report go; those of an earlier demo are replaced",
    )
    parser.add_argument("--episodes", type=int, default=256, help="of the training that is explained")
    parser.add_argument("--compare-episodes", type=int, default=64, help="of each run compared")
    parser.add_argument("--budget", default="180s", help="of the comparison, which ends when it is decided")
    given = parser.parse_args()
    folder: Path = given.folder
    run, pairs, page = folder / "run", folder / "pairs", folder / "report.html"
    for old in (run, pairs):
        shutil.rmtree(old, ignore_errors=True)
    page.unlink(missing_ok=True)

    say("1. Train a Snake agent for some seconds, recorded; then: what limits it, and what would help")
    hotloop(*WORKLOAD, "--episodes", str(given.episodes), "--capture", str(run))

    say("2. The same training with the slow parts exchanged: the same updates. Is it really faster?")
    each = ["--episodes", str(given.compare_episodes), "--no-profiling", "--seed", "{seed}"]
    command = [typed("python"), "-m", "hotloop", *WORKLOAD, *each]
    place = ["--series", str(pairs), "--budget", given.budget]
    hotloop("compare", *place, "--set-b", "variant=fast", "--", *command)

    say("3. The report as one page")
    hotloop("report", str(run), "-o", str(page))

    name = typed("hotloop")
    print("\nNext:")
    for command, why in (
        (f"open {page}", "in a browser; works offline"),
        (f"{name} show {run}", "the tree: calls, total, own"),
        (f"{name} report {pairs}", "the comparison, run by run"),
        (f"{name} run YOUR_SCRIPT.py", "record a script of yours"),
        (f"{name} try YOUR_SCRIPT.py", "fixes that help it, proven"),
    ):
        print(f"  {command:<48} {why}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
