"""What the user's signal handlers raise reaches the user, whatever we were doing; errors of ours never do."""

from __future__ import annotations

import _thread
import ast
import contextlib
import ctypes
import functools
import gc
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hotloop import Profiler
from hotloop._util.interrupts import is_users, suppress_own, undisturbed
from hotloop.measure import part as part_file
from hotloop.measure.core_choice import CoreName, region_cost_ns
from hotloop.measure.part import Part
from hotloop.testing.fakes import FakeClock
from tests.unit.test_regions import own_sum

OURS = str(Path(part_file.__file__).parent)


class Handler:
    def handle(self, number: int, frame: Any) -> None:
        raise TimeoutError("too slow")

    def forgetful(self, *args: Any) -> None:
        raise TimeoutError("too slow")


def plain(number: int, frame: Any) -> None:
    raise TimeoutError("too slow")


def one_shot(number: int, frame: Any) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    raise TimeoutError("too slow")


def with_more(more: int, number: int, frame: Any) -> None:
    raise TimeoutError("too slow")


HANDLERS: list[Any] = [
    plain,
    one_shot,
    Handler().handle,
    Handler().forgetful,
    functools.partial(with_more, 1),
    lambda *args: plain(*args),
    signal.default_int_handler,
]


@pytest.fixture
def handled() -> Iterator[Callable[[Any], Any]]:
    """Sets a handler for SIGUSR1 during one test."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, handler)
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("handler", HANDLERS)
def test_what_a_signal_handler_raises_is_the_users(
    handler: Any, handled: Callable[[Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It arrives while space is allocated, where a TimeoutError looks like a full disk."""
    part = Part(tmp_path, 1, 1)
    monkeypatch.setattr(part_file, "_allocate", lambda *args: signal.raise_signal(signal.SIGUSR1))
    handled(handler)
    with pytest.raises((TimeoutError, KeyboardInterrupt)) as caught:
        for number in range(100):
            part.add_section("nodes", 0, 16 * number)
    assert is_users(caught.value)
    part.close(2)


def test_what_we_run_into_ourselves_is_not_the_users(handled: Callable[[Any], None], tmp_path: Path) -> None:
    handled(plain)
    (tmp_path / "file").touch()
    warned: list[str] = []
    Part(tmp_path / "file" / "parts", 1, 1, warned.append)
    assert len(warned) == 1
    try:
        Part(Path("/"), None, 1)  # type: ignore[arg-type]
    except Exception as error:
        assert not is_users(error)


def test_what_another_thread_throws_in_is_the_users() -> None:
    class Stopped(Exception):
        pass

    part = Part(None, 1, 1)
    caught: list[Exception] = []
    began = threading.Event()

    def work() -> None:
        try:
            began.set()
            while True:
                part.get("flags")
        except Stopped as error:
            caught.append(error)

    innermost = ""
    while not innermost.startswith(OURS):  # it may also arrive in `work` itself
        began.clear()
        thread = threading.Thread(target=work)
        thread.start()
        began.wait()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Stopped)
        )
        thread.join()
        innermost = traceback.extract_tb(caught[-1].__traceback__)[-1].filename
    assert is_users(caught[-1])


def test_suppressing_our_errors_lets_the_users_pass(handled: Callable[[Any], None]) -> None:
    with suppress_own(OSError):
        Path("/nowhere/at/all").read_text()
    handled(plain)
    with pytest.raises(TimeoutError), suppress_own(OSError):
        signal.raise_signal(signal.SIGUSR1)


def test_work_without_disturbance_is_done_before_an_interrupt_is_raised(
    handled: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standard library swallows it otherwise: `Path.mkdir` takes an OSError for a folder that exists."""
    assert undisturbed(lambda: 7) == 7
    with pytest.raises(KeyError):
        undisturbed(lambda: {}["a"])
    handled(plain)
    main, done = threading.get_native_id(), []

    def work() -> None:
        assert threading.get_native_id() != main
        signal.raise_signal(signal.SIGUSR1)  # the handler runs in the main thread
        with contextlib.suppress(OSError):
            time.sleep(0.01)
        done.append(1)

    with pytest.raises(TimeoutError):
        undisturbed(work)
    assert done == [1]

    def no_thread(*args: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", no_thread)
    assert undisturbed(lambda: threading.get_native_id()) == main


def test_an_alarm_while_folders_are_made_is_not_lost(
    core: CoreName, handled: Callable[[Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled(plain)
    mkdir = os.mkdir

    def alarmed(*args: Any, **how: Any) -> None:
        mkdir(*args, **how)
        signal.raise_signal(signal.SIGUSR1)

    profiler = Profiler(core_name=core)
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", alarmed)
        with pytest.raises(TimeoutError):
            profiler.start(tmp_path / "capture")
    assert not profiler.is_recording


class Interrupter:
    """Raises at the n-th moment at which Python could have run a signal handler inside our code.

    Such moments are the beginning of a function and the return of a built-in one. As a handler does, it
    raises in a function that was called with the interrupted frame.
    """

    def __init__(self, at: int):
        self.left = at

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_return") and OURS in frame.f_code.co_filename:
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                raise TimeoutError("an interrupt")


def everything(profiler: Profiler, clock: FakeClock, name: str) -> None:
    """New names and nodes, windows, progress, ends out of order, the timeline."""
    a, b, c = (profiler.profile(f"{name} {letter}") for letter in "abc")
    for _ in range(2):
        with a:
            clock.advance(5)
            with b:
                clock.advance(7_000_000)
            profiler.progress(env_steps=1, loss=0.5)
            a.add(bytes=8)
    a.__enter__()
    b.__enter__()
    c.__enter__()
    clock.advance(60_000_000)
    a.__exit__(None, None, None)
    c.__exit__(None, None, None)
    b.__exit__(None, None, None)


def test_an_interrupt_at_any_moment_is_raised_and_leaves_the_recording_whole(
    core: CoreName, clock: FakeClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profiler = Profiler(clock=clock, core_name=core).start(tmp_path / "capture", timeline=True)
    check = profiler.profile("check")
    moments = 0
    while True:
        moments += 1
        interrupter = Interrupter(moments)
        raised = False
        try:
            sys.setprofile(interrupter)
            everything(profiler, clock, f"round {moments % 20}")
        except TimeoutError:
            raised = True
        finally:
            sys.setprofile(None)
        assert raised == (interrupter.left == 0), f"moment {moments}: the interrupt was lost"
        if not raised:
            break
        for letter in "cba":  # else what the interrupts left open would exceed the depth that is recorded
            region = profiler.profile(f"round {moments % 20} {letter}")
            while region.is_open():
                region.__exit__(None, None, None)
        with check:
            clock.advance(1)
        if moments % 40 == 0:
            (process,) = profiler.capture().processes
            (thread,) = process.threads
            assert own_sum(thread.root) == thread.wall_ns
            assert process.warnings == ()
            assert not thread.uncertain
            assert profiler.stats("check").calls == moments
    assert moments > 50
    profiler.stop()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("in_memory", [True, False])
def test_an_interrupt_at_any_moment_of_start_and_stop_leaves_nothing_behind(
    core: CoreName, tmp_path: Path, capsys: pytest.CaptureFixture[str], in_memory: bool
) -> None:
    """Every moment of a recording in memory, some of one into a folder: that takes longer to start."""
    region_cost_ns(core)  # measured once, and with many moments
    moments = 0
    for moment in range(1, 10_000, 1 if in_memory else 13):
        interrupter = Interrupter(moment)
        profiler = Profiler(core_name=core)
        raised = 0
        for begin in (True, False):
            try:
                sys.setprofile(interrupter)
                if begin:
                    profiler.start(None if in_memory else tmp_path / str(moment), memory=False)
                else:
                    profiler.stop()
            except TimeoutError:
                raised += 1
            finally:
                sys.setprofile(None)
            with profiler.profile("a"):
                pass
        profiler.stop()  # that one may have been interrupted before it began
        assert not profiler.is_recording
        assert raised == (interrupter.left <= 0), f"moment {moment}: the interrupt was lost"
        moments += raised
        if not raised:
            break
    assert moments > 9
    assert capsys.readouterr().err == ""


def storm(seconds: float, seed: int, work: Callable[[], None]) -> int:
    """Interrupt `work` at random moments; returns how often. Every exception must come out of it."""
    moments = random.Random(seed)
    ran = caught = 0

    def handle(number: int, frame: Any) -> None:
        nonlocal ran
        ran += 1
        raise TimeoutError("an alarm")

    gc.disable()  # callbacks of the collector, such as hypothesis' own, drop exceptions
    before = signal.signal(signal.SIGALRM, handle)
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            try:
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(20e-6, 600e-6))
                while ran == caught:
                    work()
                for _ in range(100):  # one that was only postponed comes now
                    pass
                raise AssertionError(f"interrupt {ran} was lost")
            except TimeoutError:
                caught += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    return caught


def test_no_alarm_is_lost_and_nothing_of_ours_is_raised(core: CoreName, tmp_path: Path) -> None:
    profiler = Profiler(core_name=core).start(tmp_path / "capture", timeline=True)
    names = iter(range(10**9))

    def work() -> None:
        number = next(names)
        with profiler.profile(f"name {number % 300}"), profiler.profile(f"inner {number % 7}"):
            profiler.progress(env_steps=1)

    assert storm(0.4, 3, work) > 10
    for _ in range(100):
        with profiler.profile("check"):
            pass
    (thread,) = profiler.capture().threads
    assert profiler.stats("check").calls == 100
    assert own_sum(thread.root) == thread.wall_ns
    profiler.stop()
    assert profiler.capture().processes[0].warnings == ()


def test_a_region_whose_exit_was_cut_off_does_not_stay_open_for_ever(profiler: Profiler) -> None:
    """Python runs handlers at the beginning of a function, before its first line; the twin's exit is one."""

    def work(number: int) -> None:
        with profiler.profile(f"name {number}"), profiler.profile(f"inner {number % 7}"):
            pass

    def cut_off(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name == "__exit__" and OURS in frame.f_code.co_filename:
            sys.setprofile(None)
            raise TimeoutError("an interrupt")

    for number in range(50):
        sys.setprofile(cut_off)
        try:
            work(number)
        except TimeoutError:
            pass
        finally:
            sys.setprofile(None)
    work(0)
    (thread,) = profiler.capture().threads
    assert len(thread.open) <= 1 and max(map(len, thread.paths)) <= 3
    assert own_sum(thread.root) == thread.wall_ns


def test_a_handler_may_stop_the_recording_at_any_moment(core: CoreName, tmp_path: Path) -> None:
    for moment in (1, 5, 20, 60, 150):
        profiler = Profiler(core_name=core).start(tmp_path / str(moment))
        left = moment

        def stop(frame: Any, event: str, argument: Any, profiler: Profiler = profiler) -> None:
            nonlocal left
            if event in ("call", "c_return") and OURS in frame.f_code.co_filename:
                left -= 1
                if left == 0:
                    sys.setprofile(None)
                    profiler.stop()

        sys.setprofile(stop)
        number = 0
        try:
            while profiler.is_recording and number < 10_000:
                number += 1
                with profiler.profile(f"name {number}"):
                    time.sleep(0.0001)
        finally:
            sys.setprofile(None)
        assert not profiler.is_recording


def swallows(handler: ast.ExceptHandler) -> bool:
    """Whether an `except` clause may catch what a signal handler raises, and does not ask whose it is."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {"BaseException" if kind is None else ast.unparse(kind) for kind in kinds}
    usual = {"BaseException", "Exception", "OSError", "ValueError", "TypeError", "RuntimeError"}
    asks = "is_users(" in ast.unparse(handler)
    raises = isinstance(handler.body[-1], ast.Raise)
    return bool(names & usual) and not asks and not raises


def test_no_clause_of_ours_swallows_what_a_signal_handler_raises() -> None:
    """In code that runs in the user's process. Those named here pass everything on in another way."""
    package = Path(part_file.__file__).parent.parent
    elsewhere = {"measure/twin/region.py", "measure/decorate.py", "instrument/startup/sitecustomize.py"}
    elsewhere |= {"_util/interrupts.py"}
    elsewhere |= {"_util/console.py", "_util/units.py"}  # of the command line, in a process of its own
    for folder in ("measure", "instrument", "_util"):
        for file in sorted((package / folder).rglob("*.py")):
            name = str(file.relative_to(package))
            tree = ast.parse(file.read_text(encoding="utf-8"))
            bad = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.ExceptHandler) and swallows(n)]
            assert not bad or name in elsewhere, f"{name}, lines {bad}: ask is_users()"
            if name not in elsewhere:
                assert "contextlib.suppress" not in file.read_text(encoding="utf-8"), (
                    f"{name}: use suppress_own"
                )
