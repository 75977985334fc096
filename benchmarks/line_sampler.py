"""Are sampled lines right, and what does sampling cost?

Accuracy: programs that time themselves (programs/known_lines.py) run under `hotloop run` and, where it is
installed, under py-spy. The error is the largest difference between the sampled and the true share of a
function in the time of its thread, in points. Chance alone gives about 50 / sqrt(samples) points.

Cost: CPU time of the sampler over wall time, with one thread and with eight; and CPU time of the whole
process for the same work with sampling turned on and off in random order, inside one process.

Run: python benchmarks/line_sampler.py [--seconds 30] [--pairs 200] [--only CASE ...] [--py-spy PROGRAM]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

import hotloop
from hotloop import Profiler
from hotloop.analysis.rank_intervals import hodges_lehmann, signed_rank_interval

HERE = Path(__file__).parent
PROGRAM = HERE / "programs/known_lines.py"
ALL_CASES = [
    "compute",
    "sleep",
    "C call that holds the GIL",
    "C call that releases the GIL",
    "short calls",
    "generators",
    "recursion",
    "library stacks",
    "async",
    "threads",
]
Shares = dict[str, dict[str, float]]  # thread -> function -> share of its time
# Inner functions of the cases, and the one that is timed.
PART_OF = {
    "short_call": "short_calls",
    "generate": "consume",
    "recurse": "recurse_deeply",
    "holds_gil.<locals>.<lambda>": "holds_gil",
    "in_more_libraries.<locals>.<lambda>": "in_more_libraries",
    "compute_in_task": "compute",
}
LOOPS = ("take_turns", "async_turns", "wait_a_little", "main", "<module>")


def true_shares(file: Path) -> Shares:
    data = json.loads(file.read_text())
    wall = data["wall_s"]
    return {
        thread: {name: seconds / wall for name, seconds in found.items()}
        for thread, found in data["truth"].items()
    }


def largest_error(truth: Shares, found: Shares) -> float:
    """Largest difference between two shares, in percentage points."""
    return 100 * max(
        abs(share - found.get(thread, {}).get(name, 0.0))
        for thread, shares in truth.items()
        for name, share in shares.items()
    )


def label(function: str | None, case: str) -> str:
    if function is None or (case == "async" and function in LOOPS):
        return "(event loop)"
    return PART_OF.get(function, function)


def with_hotloop(case: str, seconds: float, folder: Path) -> tuple[Shares, Shares, int, float, float]:
    """True shares, sampled shares, samples, and the sampler's share of a core: lines alone, everything."""
    file, capture = folder / "truth.json", folder / "capture"
    command = [sys.executable, "-m", "hotloop.cli.main", "run", "--capture", str(capture), "--json", "--"]
    subprocess.run(
        [*command, sys.executable, str(PROGRAM), case, str(seconds), str(file)],
        check=True,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    (process,) = hotloop.load(capture).processes
    assert process.sampling is not None and process.scheduling is not None
    names = process.sampling.thread_names | {thread.native_id: thread.name for thread in process.threads}
    found: Shares = {}
    for native_id in np.unique(process.samples["native_id"]).tolist():
        rows = process.samples[process.samples["native_id"] == native_id]
        weights: Counter[str] = Counter()
        started = False
        for row in rows:
            path = process.paths[row["path"]]
            inside = any(frame.function in LOOPS[:2] for frame in path.frames)
            if case == "async":
                inside = started = started or inside
            if inside:
                weights[label(path.line.function if path.line else None, case)] += int(row["weight_ns"])
        total = sum(weights.values())
        name = names.get(native_id, "")
        found[name] = {function: weight / total for function, weight in weights.items()}
    wall_ns = process.end_ns - process.start_ns
    whole = float(process.scheduling.hotloop_ns[-1]) / wall_ns
    return true_shares(file), found, len(process.samples), process.sampling.cost_ns / wall_ns, whole


def with_py_spy(program: str, case: str, seconds: float, folder: Path) -> tuple[Shares, Shares]:
    file, raw = folder / "truth-spy.json", folder / "raw.txt"
    command = [program, "record", "-f", "raw", "-o", str(raw), "-r", "100", "--idle", "--threads", "--"]
    subprocess.run(
        [*command, sys.executable, str(PROGRAM), case, str(seconds), str(file)],
        check=True,
        capture_output=True,
    )
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    started = False
    for line in raw.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        thread = re.sub(r"^thread \(\w+\)(: )?", "", frames[0]) or "MainThread"
        mine = [frame.split(" (")[0] for frame in frames[1:] if PROGRAM.name in frame]
        inside = any(name in LOOPS[:2] for name in mine)
        if case == "async":
            inside = started = started or inside or "run_until_complete" in stack
        if inside:
            lambdas = {"<lambda>": "in_more_libraries"}
            name = label(mine[-1] if mine else None, case)
            counts[thread][lambdas.get(name, name)] += int(count)
    found = {
        thread: {name: count / sum(names.values()) for name, count in names.items()}
        for thread, names in counts.items()
    }
    return true_shares(file), found


def accuracy(cases: list[str], seconds: float, py_spy: str | None) -> None:
    print(f"largest error of a share, in points; {seconds:g} s for each case")
    print(f"{'case':30} {'hotloop':>8} {'py-spy':>8} {'samples':>8} {'sampler':>8} {'all own':>8}")
    for case in cases:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            truth, found, samples, lines, whole = with_hotloop(case, seconds, folder)
            other = "-"
            if py_spy is not None:
                other = f"{largest_error(*with_py_spy(py_spy, case, seconds, folder)):.1f}"
        error = largest_error(truth, found)
        print(f"{case:30} {error:8.1f} {other:>8} {samples:8} {lines:8.2%} {whole:8.2%}", flush=True)
        if error > 3:
            print("   true ", {t: {n: round(100 * s, 1) for n, s in f.items()} for t, f in truth.items()})
            print("   found", {t: {n: round(100 * s, 1) for n, s in f.items()} for t, f in found.items()})


def work(rounds: int) -> float:
    total = 0.0
    for number in range(rounds):
        total += number * 0.5
    return total


def on_and_off(pairs: int, sleepers: int) -> None:
    """Time the same work with sampling on and off, in random order."""
    profiler = Profiler().start()
    profiler.sample_lines()
    release = threading.Event()
    threads = [threading.Thread(target=release.wait, daemon=True) for _ in range(sleepers)]
    for thread in threads:
        thread.start()
    chance = random.Random(1)
    times: dict[str, dict[bool, list[int]]] = {"CPU": {True: [], False: []}, "wall": {True: [], False: []}}
    work(1_000_000)
    for _ in range(pairs):
        for on in chance.sample([True, False], 2):
            (profiler.resume if on else profiler.pause)()
            cpu, wall = time.process_time_ns(), time.perf_counter_ns()
            work(3_000_000)
            times["CPU"][on].append(time.process_time_ns() - cpu)
            times["wall"][on].append(time.perf_counter_ns() - wall)
    profiler.resume()
    release.set()
    (process,) = profiler.capture().processes
    assert process.sampling is not None
    moment_us = process.sampling.cost_ns / process.sampling.moments / 1000
    profiler.stop()
    print(f"{1 + sleepers} threads: {moment_us:.0f} us for each moment; interval "
          f"{process.sampling.interval_ns / 1e6:.0f} ms")  # fmt: skip
    for name, found in times.items():
        ratios = np.log(np.array(found[True]) / np.array(found[False]))
        low, high = signed_rank_interval(ratios, 0.05) or (-np.inf, np.inf)
        interval = f"[{100 * low:.2f}, {100 * high:.2f}]"
        print(f"  {name}, on against off: {100 * hodges_lehmann(ratios):+.2f} % {interval}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--only", nargs="*", choices=ALL_CASES, default=ALL_CASES)
    parser.add_argument("--py-spy", default=shutil.which("py-spy"))
    arguments = parser.parse_args()
    if arguments.py_spy is None:
        print("py-spy is not installed and is skipped (pip install 'hotloop[bench]')")
    accuracy(arguments.only, arguments.seconds, arguments.py_spy)
    if arguments.pairs:
        print()
        for sleepers in (0, 7):
            on_and_off(arguments.pairs, sleepers)


if __name__ == "__main__":
    main()
