"""`make demo`: find the bottleneck of a training run, swap in a fast version, prove the speed-up.

An agent learns Ricochet Robots from pictures, with a ConvLSTM and PPO. An image library draws the pictures
one by one, as in most such environments, and the report shows what that costs. Then compiled code draws
the same pictures, pixel for pixel, and `hotloop compare` runs both versions in turn until the verdict is
clear. Each command is shown before it runs.

Run: python examples/demo.py [--folder DIR] [--total-timesteps N] [--compare-timesteps N] [--budget TIME]
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
    """The name of a program in this Python's environment, as a user would type it."""
    own = Path(sys.executable).with_name(program)
    return program if shutil.which(program) == str(own) else os.path.relpath(own)


def hotloop(*words: str) -> None:
    """Show a command, then run it; a failure ends the demo with its exit code."""
    print(f"\n$ {typed('hotloop')} {shlex.join(words)}\n", flush=True)
    code = subprocess.call([sys.executable, "-m", "hotloop", *words])
    if code != 0:
        raise SystemExit(code if code > 0 else 128 - code)  # below 0: ended by that signal


def heading(words: str) -> None:
    print(f"\n=== {words}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("hotloop-runs/demo"),
        help="folder for runs and report; replaces those of an earlier demo",
    )
    parser.add_argument("--total-timesteps", type=int, default=8192, help="env steps of the explained run")
    parser.add_argument("--compare-timesteps", type=int, default=2048, help="env steps of each compared run")
    parser.add_argument("--budget", default="180s", help="most time for the comparison")
    given = parser.parse_args()
    folder: Path = given.folder
    run, pairs, page = folder / "run", folder / "pairs", folder / "report.html"
    for old in (run, pairs):
        shutil.rmtree(old, ignore_errors=True)
    page.unlink(missing_ok=True)

    heading("1. Record half a minute of training on pictures: what limits it, and what would help?")
    hotloop(*WORKLOAD, "--total-timesteps", str(given.total_timesteps), "--capture", str(run))

    heading("2. The same training with the same pictures, drawn by compiled code. Is it really faster?")
    each = ["--total-timesteps", str(given.compare_timesteps), "--no-profiling", "--seed", "{seed}"]
    command = [typed("python"), "-m", "hotloop", *WORKLOAD, *each]
    place = ["--series", str(pairs), "--budget", given.budget]
    hotloop("compare", *place, "--set-b", "rendering=compiled", "--", *command)

    heading("3. The report as a web page")
    hotloop("report", str(run), "-o", str(page))

    name = typed("hotloop")
    print("\nNext:")
    for command, why in (
        (f"open {page}", "in a browser; works offline"),
        (f"{name} show {run}", "calls and times as a tree"),
        (f"{name} report {pairs}", "the comparison, run by run"),
        (f"{name} run YOUR_SCRIPT.py", "record your own script"),
        (f"{name} try YOUR_SCRIPT.py", "find fixes that help it"),
    ):
        print(f"  {command:<48} {why}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
