"""Fixtures for every test: both cores, a fake clock, and a check that nothing is left behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import settings

from hotloop import Profiler
from hotloop.measure import core_choice
from hotloop.measure.core_choice import CoreName
from hotloop.measure.profiler import default
from hotloop.testing.fakes import FakeClock

# torch's threads of several tests at once would spend their time waiting for each other on two cores.
# A test about threads sets their number itself.
os.environ.setdefault("OMP_NUM_THREADS", "1")

CORES = ("compiled", "python")
settings.register_profile("hotloop", deadline=None)  # a busy machine is no failure
settings.load_profile("hotloop")


ATTEMPTS_OF_TIMING_TESTS = 3


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Repeat a failed test that is marked `timing`, and print why it may fail on a busy machine."""
    marker = item.get_closest_marker("timing")
    if marker is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for attempt in range(1, ATTEMPTS_OF_TIMING_TESTS + 1):
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if attempt == ATTEMPTS_OF_TIMING_TESTS or not any(report.failed for report in reports):
            break
        print(f"\nattempt {attempt} failed, repeating: {item.nodeid} ({marker.args[0]})", file=sys.__stderr__)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> str:
    if request.param == "compiled" and core_choice.compiled is None and not os.environ.get("CI"):
        pytest.skip(f"LOUD: the compiled core is not built ({core_choice.why_not_compiled})")
    return str(request.param)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def profiler(core: CoreName, clock: FakeClock) -> Iterator[Profiler]:
    """A profiler that records in memory, with time under the test's control."""
    made = Profiler(clock=clock, core_name=core)
    made.start()
    yield made
    made.stop()


def _traces() -> dict[str, Any]:
    tasks = Path("/proc/self/task")
    names = []
    for task in tasks.iterdir():
        try:
            names.append((task / "comm").read_text())
        except OSError:
            continue
    parts = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(fd)
        except OSError:
            continue
        if target.endswith(".part"):
            parts.append(target)
    return {
        "Python threads": {t.name for t in threading.enumerate() if not t.name.startswith("pytest")},
        "sampler threads": sum("hotloop" in name for name in names),
        "child processes": len(multiprocessing.active_children()),
        "open part files": len(parts),
        "recording": default.is_recording,
        "HOTLOOP_CAPTURE": os.environ.get("HOTLOOP_CAPTURE"),
        "hooks": (sys.excepthook, sys.getprofile(), sys.gettrace() is None, threading.excepthook),
        "SIGINT": signal.getsignal(signal.SIGINT),
        "SIGTERM": signal.getsignal(signal.SIGTERM),
    }


@pytest.fixture(autouse=True, scope="module")
def what_is_imported_is_not_swept() -> Iterator[None]:
    """A sweep after each test looks at what was made since the module began: 0.1 s less for each test."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves threads, processes, files or hooks behind."""
    before = _traces()
    yield
    gc.collect()
    after = _traces()
    ended = before["Python threads"] - after["Python threads"]  # those of an earlier test are free to end
    before["Python threads"] -= ended
    left = {k: (before[k], after[k]) for k in before if before[k] != after[k]}
    assert not left, f"left behind: {left}"
