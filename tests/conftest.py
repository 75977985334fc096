"""Fixtures for every test: both cores, a fake clock, and a check that nothing is left behind."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from hotloop import Profiler
from hotloop.measure import core_choice
from hotloop.measure.core_choice import CoreName
from hotloop.measure.profiler import default
from hotloop.testing.fakes import FakeClock

# torch's threads of several tests at once would spend their time waiting for each other on two cores.
# A test about threads sets their number itself.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Where colorama is installed, numba colours the errors of every function that it tries before one fits, which
# takes 4 % of the time to compile.
os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")

# A shell script starts its background jobs with SIGINT ignored, and every process below inherits that: tests
# of Ctrl-C would wait forever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# With AMX in some virtual machines, half-precision convolutions end the process (see cpu_has_bfloat16).
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

CORES = ("compiled", "python")
settings.register_profile("hotloop", deadline=None)  # a busy machine is no failure
settings.load_profile("hotloop")


# Files (and pages) that take longest begin first, so that no worker is left with one of them at the end.
SLOW_FIRST = (
    "processes/test_train_imitate.py",
    "processes/test_ray.py",  # waits more than it computes
    "processes/test_tune.py",
    "oracle/test_boost_off_policy.py",
    "oracle/test_sac.py",
    "unit/test_evaluation_threads.py",
    "processes/test_train_petri.py",
    "processes/test_train_mario.py",
    "processes/test_run_libraries.py",
    "processes/test_run_sb3.py",
    "learning/test_dqn.py",
    "unit/test_boost.py",
    "processes/test_try_workers.py",
    "processes/test_compare.py",
    "processes/test_train_snake.py",
    "processes/test_tune_workloads.py",
    "campaign/test_campaign.py",
    "processes/test_run.py",
    "unit/test_ppo_runs.py",
    "unit/test_snake_env.py",
    "processes/test_collect_faults.py",
    "processes/test_try.py",
    "processes/test_warm_start.py",
    "learning/test_ppo.py",
    "learning/test_recurrent_ppo.py",
    "oracle/test_platformer_twins.py",
    "processes/test_run_flat.py",
    "test_docs.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _turn(item.nodeid))


def _turn(nodeid: str) -> int:
    found = [turn for turn, name in enumerate(SLOW_FIRST) if name in nodeid]
    return found[0] if found else len(SLOW_FIRST)


class FilesInTurn(LoadScopeScheduling):  # type: ignore[misc]
    """A file's tests share a worker and its fixtures; every page of the documentation is on its own."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if "test_docs.py" in nodeid else nodeid.split("::", 1)[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesInTurn:
    config.option.loadscopereorder = False  # keep the order of the collection
    return FilesInTurn(config, log)


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> str:
    if request.param == "compiled" and core_choice.compiled is None and not os.environ.get("CI"):
        pytest.skip(f"LOUD: the compiled core is not built ({core_choice.why_not_compiled})")
    return str(request.param)


@pytest.fixture(autouse=True)
def distributions_check_their_arguments() -> None:
    """TorchRL switches torch's checks off for the whole process when a test imports it."""
    if torch_distribution := sys.modules.get("torch.distributions.distribution"):
        torch_distribution.Distribution._validate_args = __debug__


@pytest.fixture
def torch_compiles_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch.compile works in this process: its workers and its progress bar would outlive the test."""
    # Loaded here, because it takes seconds. monkeypatch would delete the setting at the end.
    from torch._inductor import config as inductor

    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)
    with inductor.patch(compile_threads=1):
        yield


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


def _excepthook() -> Any:
    """Ray sets one when it is imported, which TorchRL does where Ray is installed; it counts as none."""
    is_rays = getattr(sys.excepthook, "__module__", "") == "ray._private.worker"
    return sys.__excepthook__ if is_rays else sys.excepthook


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
        # "Dummy": Python's name for a thread that it did not start, such as one of xdist's
        "Python threads": {
            t.name for t in threading.enumerate() if not t.name.startswith(("pytest", "Dummy-"))
        },
        "sampler threads": sum("hotloop" in name for name in names),
        "child processes": len(multiprocessing.active_children()),
        "open part files": len(parts),
        "recording": default.is_recording,
        "HOTLOOP_CAPTURE": os.environ.get("HOTLOOP_CAPTURE"),
        "hooks": (_excepthook(), sys.getprofile(), sys.gettrace() is None, threading.excepthook),
        "SIGINT": signal.getsignal(signal.SIGINT),
        "SIGTERM": signal.getsignal(signal.SIGTERM),
    }


_modules = itertools.count()


@pytest.fixture(autouse=True, scope="module")
def all_garbage_is_swept_at_times() -> None:
    """What fixtures of earlier modules left; 0.3 s, which is too much for each of hundreds of modules."""
    if next(_modules) % 20 == 0:
        gc.unfreeze()


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves threads, processes, files or hooks behind."""
    gc.collect()  # what the last test left
    gc.freeze()  # the sweep after the test looks only at what the test made
    before = _traces()
    yield
    gc.collect()
    after = _traces()
    ended = before["Python threads"] - after["Python threads"]  # those of an earlier test are free to end
    before["Python threads"] -= ended
    left = {k: (before[k], after[k]) for k in before if before[k] != after[k]}
    assert not left, f"left behind: {left}"
