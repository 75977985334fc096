"""Clocks that stand still, jump ahead by days (a suspended machine) and back (NTP, a broken counter).

A case is one recording with a clock under our control: the monotonic one on both cores, and in the twin the
real time as well. Nothing may raise, counts stay exact, own times add up to the wall time, no figure is
negative, and every report of the recording is clean text or strict JSON.

    python -m tests.campaign --kinds clocks --seed 17 --minutes 0     # repeats one case
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import hotloop
from hotloop import Profiler
from hotloop.capture.model import Node
from hotloop.capture.stats import by_name
from hotloop.cli import report, show
from hotloop.measure.core_choice import CoreName
from hotloop.testing.fakes import FakeClock
from tests.campaign.case import Case, seeds
from tests.campaign.corpus import printed
from tests.campaign.mutate_files import problem_of

CORES: tuple[CoreName, ...] = ("compiled", "python")
SECOND_NS = 1_000_000_000
DAY_NS = 86_400 * SECOND_NS


def run(seed: int, seconds: float, count: int | None = None) -> Iterator[Case]:
    """One case for each seed from `seed` up, until `seconds` have passed or `count` are done."""
    with tempfile.TemporaryDirectory(prefix="hotloop-clocks-") as folder:
        for number in seeds(seed, seconds, count):
            yield one_case(number, Path(folder) / "run")


def one_case(seed: int, folder: Path) -> Case:
    rng = random.Random(seed)
    core: CoreName = rng.choice(CORES)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            failure = _record(rng, core, folder) or (f"it warned: {warned[0].message}" if warned else None)
        if failure is None and rng.random() < 0.2:
            failure = _read(folder)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    return Case(f"clocks, {core} core", seed, failure)


def jump_ns(rng: random.Random) -> int:
    kind = rng.random()
    if kind < 0.6:
        return rng.randint(0, 10_000_000)
    if kind < 0.75:
        return 0
    if kind < 0.9:
        return rng.randint(SECOND_NS, 30 * DAY_NS)
    return -rng.randint(1, DAY_NS)


def _record(rng: random.Random, core: CoreName, folder: Path) -> str | None:
    clock = FakeClock(rng.choice((1, SECOND_NS, 400 * DAY_NS)))
    real_ns = time.time_ns()

    def real() -> int:
        nonlocal real_ns
        real_ns += jump_ns(rng)
        return max(real_ns, 0)

    made: dict[str, int] = {}
    with patch.object(time, "time_ns", real):
        profiler = Profiler(clock=clock, core_name=core).start(folder, timeline=rng.random() < 0.3)

        def call(depth: int) -> None:
            name = f"region {rng.randrange(6)}"
            with profiler.profile(name):
                clock.ns = max(clock.ns + jump_ns(rng), 0)
                if depth < 3 and rng.random() < 0.5:
                    call(depth + 1)
                clock.ns = max(clock.ns + jump_ns(rng), 0)
            made[name] = made.get(name, 0) + 1

        for _ in range(rng.randint(1, 80)):
            call(0)
            if rng.random() < 0.3:
                profiler.progress(env_steps=rng.randint(1, 9), loss=0.5)
        captures = [profiler.capture()]
        profiler.stop()
    captures.append(hotloop.load(folder))
    for capture in captures:
        calls = {name: stats.calls for name, stats in by_name(capture.tree).items()}
        if calls != made:
            return f"{calls} are recorded, {made} were made"
        for thread in capture.threads:
            if _own_sum(thread.root) != thread.wall_ns:
                return f"own times add up to {_own_sum(thread.root)}, the wall time is {thread.wall_ns}"
            if (odd := _negative(thread.root)) is not None:
                return f"{odd} has a negative time"
            if (thread.windows.time_ns[1:] < thread.windows.time_ns[:-1]).any():
                return "windows are out of order"
        if capture.processes[0].warnings:
            return f"a warning: {capture.processes[0].warnings}"
    return None


def _read(folder: Path) -> str | None:
    """What is wrong with the reports."""
    for verb, is_json in ((show, False), (show, True), (report, False), (report, True)):
        arguments = verb.Arguments(str(folder), json=is_json)
        seen = printed(lambda verb=verb, arguments=arguments: int(verb.run(arguments)), is_json)  # type: ignore[misc]
        failure = problem_of(seen, None)
        if failure is not None or seen.code:
            return f"{verb.__name__}: {failure or seen.err[-200:]}"
    return None


def _own_sum(node: Node) -> int:
    return node.own_ns + sum(map(_own_sum, node.children))


def _negative(node: Node) -> str | None:
    figures = (node.own_ns, node.total_ns, node.min_ns or 0, node.max_ns or 0, node.open_ns)
    if min(figures) < 0 or node.own_ns > node.total_ns:
        return node.name or "the thread"
    return next((found for child in node.children if (found := _negative(child)) is not None), None)
