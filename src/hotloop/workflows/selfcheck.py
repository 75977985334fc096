"""`hotloop doctor --selfcheck`: records a short run with known figures and checks that they come out."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from hotloop._util.units import duration, percent
from hotloop.capture.model import Capture, Thread
from hotloop.capture.reader import load
from hotloop.capture.stats import by_name
from hotloop.measure.profiler import Profiler

TURNS, INNER = 40, 25
WORK_NS = 200_000
MOST_OWN_COST_NS = 20_000  # the Python twin on a slow machine


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must hold, and the measured figure."""

    what: str
    passed: bool
    figure: str


def selfcheck() -> tuple[Check, ...]:
    """Run all checks; takes about a second and leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="hotloop-selfcheck-") as temporary:
        folder = Path(temporary) / "capture"
        before_ns = time.monotonic_ns()
        _record(folder)
        wall_ns = time.monotonic_ns() - before_ns
        capture = load(folder)
        checks = [
            _counts(capture),
            _adds_up(capture),
            _fits_into(capture, wall_ns),
            _nesting(capture),
            _own_cost(capture),
        ]
        if hasattr(os, "fork"):
            checks.append(_survives_kill(Path(temporary) / "killed"))
    return tuple(checks)


def _record(folder: Path) -> None:
    profiler = Profiler()
    profiler.start(folder)
    worker = threading.Thread(target=_work, args=(profiler,), name="selfcheck")
    worker.start()
    _work(profiler)
    worker.join()
    profiler.stop()


def _work(profiler: Profiler) -> None:
    """Regions with known counts: an outer one with many inner ones."""
    outer, inner = profiler.profile("env_step"), profiler.profile("env_rgb_rendering")
    for _ in range(TURNS):
        with outer:
            for _ in range(INNER):
                with inner:
                    pass
            _spin(WORK_NS)
        profiler.progress(env_steps=1)


def _spin(ns: int) -> None:
    end = time.perf_counter_ns() + ns
    while time.perf_counter_ns() < end:
        pass


def _counts(capture: Capture) -> Check:
    stats = by_name(capture.tree)
    found = (stats["env_step"].calls, stats["env_rgb_rendering"].calls, capture.progress.env_steps)
    expected = (2 * TURNS, 2 * TURNS * INNER, 2 * TURNS)
    figure = (
        f"{found[0]} and {found[1]} calls, {found[2]:g} steps; {expected[0]} and {expected[1]}, {expected[2]}"
    )
    return Check("calls and steps are counted exactly, in two threads", found == expected, figure)


def _adds_up(capture: Capture) -> Check:
    gaps = [abs(_summed_ns(thread) - thread.wall_ns) / max(thread.wall_ns, 1) for thread in capture.threads]
    return Check(
        "exclusive times and unattributed time add up to the time of each thread",
        max(gaps) < 1e-9,
        f"largest gap {percent(max(gaps))}",
    )


def _summed_ns(thread: Thread) -> int:
    total, nodes = thread.unattributed_ns, list(thread.root.children)
    while nodes:
        node = nodes.pop()
        total += node.own_ns
        nodes += node.children
    return total


def _fits_into(capture: Capture, wall_ns: int) -> Check:
    recorded_ns = max(thread.wall_ns for thread in capture.threads)
    busy_ns = TURNS * WORK_NS
    passed = busy_ns <= by_name(capture.tree)["env_step"].total_ns / 2 <= recorded_ns <= wall_ns
    figure = f"{duration(busy_ns)} of work within {duration(recorded_ns)} recorded within {duration(wall_ns)}"
    return Check("recorded time lies between the work done and the wall time", passed, figure)


def _nesting(capture: Capture) -> Check:
    outer = [node for node in capture.tree.children if node.name == "env_step"]
    passed = len(outer) == 1 and [child.name for child in outer[0].children] == ["env_rgb_rendering"]
    return Check(
        "regions are nested as they ran", passed, "env_step > env_rgb_rendering" if passed else "they are not"
    )


def _own_cost(capture: Capture) -> Check:
    cost_ns = capture.region_cost_ns
    passed = cost_ns is not None and cost_ns < MOST_OWN_COST_NS
    return Check("a region is cheap", passed, duration(cost_ns))


def _survives_kill(folder: Path) -> Check:
    """A process killed inside a region leaves a readable capture."""
    context = multiprocessing.get_context("fork")
    ready_read, ready_write = os.pipe()
    child = context.Process(target=_wait_to_be_killed, args=(folder, ready_write))
    child.start()
    os.read(ready_read, 1)
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join()
    os.close(ready_read)
    os.close(ready_write)
    stats = by_name(load(folder).tree)
    passed = "env_step" in stats and stats["env_step"].total_ns > 0
    figure = f"{duration(stats['env_step'].total_ns)} of the open region" if passed else "nothing"
    return Check("a killed process leaves its recording", passed, figure)


def _wait_to_be_killed(folder: Path, ready: int) -> None:
    profiler = Profiler()
    profiler.start(folder)
    with profiler.profile("env_step"):
        _spin(30_000_000)
        with profiler.profile(
            "env_rgb_rendering"
        ):  # an event, so that there is no need to wait for the heartbeat
            pass
        os.write(ready, b"!")
        time.sleep(60)
