"""How much processor time the command lines of the original projects take: the table of docs/originals.md.

    python benchmarks/originals.py            # twice: the first run compiles kernels
    python benchmarks/originals.py --only train_bc

User and system time of each command and of all processes it waits for. `benchmark_performance.py` takes what
its `--budget` allows and is left out.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ORIGINALS = Path(__file__).parents[1] / "examples" / "originals"
# The analyzer reads what train_agent.py writes, and train_bc.py what collect_demonstrations.py writes.
COMMANDS = (
    "train_agent.py --obs-mode rgb_image --convlstm --timesteps 256 --enable-profiling",
    "-m profiling.analyzer --input profiling_report.json --output a.txt --charts a.png --detailed a.json",
    "test_profiling.py",
    "scripts/profile_training_time.py --breakdown --batches 2",
    "scripts/profile_turbo_mode.py --steps 2000",
    "scripts/training/train_dqn_mlp.py --episodes 100 --envs 256",
    "collect_demonstrations.py --episodes 10 --workers 2 --output runs/x.pkl",
    "train_bc.py --epochs 5 --workers 2 --data runs/x.pkl",
    "train_rl.py --timesteps 1000 --envs 2 --batch-size 64",
    "train_optimized.sh --episodes 8 --epochs 3 --timesteps 2000",
    "mario_rl_optimized.py --epochs 20",
)


def command_of(line: str) -> list[str]:
    """The command that runs a line of `COMMANDS`."""
    name, *words = line.split()
    if name == "-m":
        return [sys.executable, name, *words]
    return ["sh" if name.endswith(".sh") else sys.executable, str(ORIGINALS / name), *words]


def main() -> None:
    """Run the commands one after the other in a folder of their own and print a row for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="WORD", help="commands with this word in them")
    wanted = [line for line in COMMANDS if parser.parse_args().only in line]
    paths = [str(ORIGINALS), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHON": sys.executable}
    print("| command | processor time | wall time | exit code |\n| --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        for line in wanted:
            before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            done = subprocess.run(
                command_of(line), cwd=folder, env=environment, capture_output=True, check=False
            )
            wall_s, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            print(f"| `{line}` | {cpu_s:.1f} s | {wall_s:.1f} s | {done.returncode} |", flush=True)


if __name__ == "__main__":
    main()
