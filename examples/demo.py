"""What `make demo` runs: a training is recorded and explained, its slow part exchanged, the gain shown.

An agent learns Ricochet Robots from pictures, with a ConvLSTM and PPO, and an image library draws the
pictures one by one, as such environments mostly do. The report says what that costs. Then compiled code
draws them, pixel for pixel the same, and `hotloop compare` runs both in turn until the verdict is clear.
Each command is shown before it runs.

Run: python examples/demo.py [--folder DIR] [--timesteps N] [--compare-timesteps N] [--budget TIME]
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

WORKLOAD = ["train", "ricochet", "--board-size", "16", "--n-epochs", "1", "--rendering", "pil"]
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
    parser.add_argument("--timesteps", type=int, default=8192, help="of the training that is explained")
    parser.add_argument("--compare-timesteps", type=int, default=2048, help="of each run compared")
    parser.add_argument("--budget", default="180s", help="of the comparison, which ends when it is decided")
    given = parser.parse_args()
    folder: Path = given.folder
    run, pairs, page = folder / "run", folder / "pairs", folder / "report.html"
    for old in (run, pairs):
        shutil.rmtree(old, ignore_errors=True)
    page.unlink(missing_ok=True)

    say("1. Train on pictures for half a minute, recorded; then: what limits it, and what would help")
    hotloop(*WORKLOAD, "--total-timesteps", str(given.timesteps), "--capture", str(run))

    say("2. The same training with the same pictures, drawn by compiled code. Is it really faster?")
    each = ["--total-timesteps", str(given.compare_timesteps), "--no-profiling", "--seed", "{seed}"]
    command = [typed("python"), "-m", "hotloop", *WORKLOAD, *each]
    place = ["--series", str(pairs), "--budget", given.budget]
    hotloop("compare", *place, "--set-b", "rendering=compiled", "--", *command)

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
