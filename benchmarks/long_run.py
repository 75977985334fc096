"""`python benchmarks/long_run.py --regions 1e9`: one recording with very many calls, in bounded memory.

Makes the calls in one process, nested as in a training loop, and says whether every one is counted, how large
the recording is, and by how much the resident memory grew after the first hundredth. Exit code 1 if a call is
missing, or if the size or the memory grew with the number of calls.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import hotloop
from hotloop import Profiler
from hotloop.capture.stats import by_name
from hotloop.measure.core_choice import CoreName

MOST_GROWTH_BYTES = 1 << 20
PAGE_BYTES = 4096
STEPS_IN_COLLECT = 8


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def run_loops(profiler: Profiler, loops: int) -> dict[str, int]:
    """Ten calls in each loop; returns what was made."""
    collect, step, learn = (profiler.profile(name) for name in ("collect", "env_step", "learn"))
    for _ in range(loops):
        with collect:
            for _ in range(STEPS_IN_COLLECT):
                with step:
                    pass
        with learn:
            pass
    return {"collect": loops, "env_step": STEPS_IN_COLLECT * loops, "learn": loops}


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="One recording with very many calls.")
    parser.add_argument("--regions", type=float, default=1e9, help="calls to make")
    parser.add_argument("--core", choices=("auto", "compiled", "python"), default="auto")
    given = parser.parse_args(words)
    loops = max(int(given.regions) // 10, 100)
    core: CoreName = given.core
    folder = Path(tempfile.mkdtemp(prefix="hotloop-long-run-"))
    try:
        profiler = Profiler(core_name=core).start(folder / "run")
        first = run_loops(profiler, loops // 100)
        profiler.progress(env_steps=1)
        early_bytes, began_s = resident_bytes(), time.perf_counter()
        rest = run_loops(profiler, loops - loops // 100)
        seconds, grown = time.perf_counter() - began_s, resident_bytes() - early_bytes
        profiler.stop()
        capture = hotloop.load(folder / "run")
        (part,) = (folder / "run" / "parts").iterdir()
        size = part.stat().st_size
    finally:
        shutil.rmtree(folder)
    made = {name: first[name] + rest[name] for name in first}
    found = {name: stats.calls for name, stats in by_name(capture.tree).items()}
    exact, bounded = found == made, size < MOST_GROWTH_BYTES and grown < MOST_GROWTH_BYTES
    right = "exact" if exact else "WRONG"
    print(f"{sum(made.values()):,} calls made, {sum(found.values()):,} recorded: {right}")
    print(f"{1e9 * seconds / sum(rest.values()):.0f} ns a call (with the loop), {seconds:.1f} s")
    print(f"recording {size:,} bytes; resident memory grew by {grown:,} bytes")
    print(f"warnings: {', '.join(capture.all_warnings) or 'none'}")
    return 0 if exact and bounded and not capture.all_warnings else 1


if __name__ == "__main__":
    sys.exit(main())
