"""How long does a report on a large capture take? 200 processes and 50,000 nodes by default.

Run: python benchmarks/big_capture.py [--processes 200] [--nodes 250]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hotloop import Profiler

HOTLOOP = str(Path(sys.executable).parent / "hotloop")


def make(folder: Path, processes: int, nodes: int) -> None:
    """Write one part after another with the real recorder, as that many processes would."""
    for number in range(processes):
        profiler = Profiler().start(folder, run_id="one run")
        for _ in range(3):
            with profiler.profile("train"):
                for i in range(nodes - 1):
                    with profiler.profile(f"worker {number % 4} region {i}"):
                        pass
                profiler.progress(env_steps=100, updates=1)
        profiler.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=250)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "capture"
        make(folder, arguments.processes, arguments.nodes)
        size = sum(part.stat().st_size for part in (folder / "parts").iterdir())
        print(
            f"{arguments.processes} processes, {arguments.processes * arguments.nodes} nodes,"
            f" {size >> 20} MiB"
        )
        for words in (
            ["show", str(folder)],
            ["report", str(folder)],
            ["report", str(folder), "-o", f"{name}/r.html"],
        ):
            start = time.perf_counter()
            subprocess.run(
                [HOTLOOP, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
            )
            print(f"hotloop {words[0]} {' '.join(words[2:3]):<4}{time.perf_counter() - start:>6.1f} s")
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        print(f"peak memory of one command: {peak / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
