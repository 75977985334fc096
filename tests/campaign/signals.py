"""Signal handlers that raise at random instants of a recording, on both cores.

A case is one recording from start to stop with one interrupt: half of them at a counted moment in our Python
code, which the seed repeats exactly, half by a timer. What the handler raises must reach the program, once
and as it was; nothing of ours may; and what is recorded must be what the program did.

    python -m tests.campaign --kinds signals --seed 17 --minutes 0     # repeats one case
"""

from __future__ import annotations

import contextlib
import gc
import io
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import hotloop
from hotloop import Profiler
from hotloop.capture.stats import by_name
from hotloop.measure.core_choice import CoreName, region_cost_ns
from hotloop.measure.profiler import ProfilingWarning
from tests.campaign.case import Case, seeds

CORES: tuple[CoreName, ...] = ("compiled", "python")
OURS = str(Path(hotloop.__file__).parent)
SIGNAL = signal.SIGALRM
PATIENCE_S = 60.0


class OfTheUser(Exception):
    """An exception that only the user's program knows."""


RAISED = (TimeoutError, OfTheUser, KeyboardInterrupt, ValueError, OSError, SystemExit, RuntimeError)


def run(seed: int, seconds: float, count: int | None = None) -> Iterator[Case]:
    """One case for each seed from `seed` up, until `seconds` have passed or `count` are done."""
    with tempfile.TemporaryDirectory(prefix="hotloop-signals-") as folder:
        for number in seeds(seed, seconds, count):
            yield one_case(number, Path(folder) / str(number))


def one_case(seed: int, folder: Path) -> Case:
    rng = random.Random(seed)
    core: CoreName = rng.choice(CORES)
    place = folder if rng.random() < 0.3 else None
    program = Program(core, place, seed)
    length = duration(core, place is not None)
    counted = rng.random() < 0.5
    when = rng.randint(1, length.moments) if counted else rng.uniform(20e-6, length.seconds)
    handler = Handler(rng.choice(RAISED), rng.randrange(4))
    how = f"{handler.kind.__name__} {f'at moment {when}' if counted else f'after {when * 1e6:.0f} us'}"
    failure = program.problem(handler, int(when) if counted else 0, 0.0 if counted else float(when))
    shutil.rmtree(folder, ignore_errors=True)
    return Case(f"signal, {core} core", seed, None if failure is None else f"{how}: {failure}")


# -- the interrupt -------------------------------------------------------------------------------


class Handler:
    """A signal handler in one of the forms that programs use."""

    def __init__(self, kind: type[BaseException], form: int):
        self.kind, self.ran = kind, 0
        self.error: BaseException | None = None
        self.where = ""
        forms: list[Any] = [
            self.handle,
            partial(_call, self),
            lambda number, frame: self.handle(number, frame),
            self.once,
        ]
        self.function = forms[form]

    def handle(self, number: int, frame: Any) -> None:
        self.ran += 1
        self.where = "".join(traceback.format_stack(frame)[-4:])
        self.error = self.kind("an interrupt")
        raise self.error

    def once(self, number: int, frame: Any) -> None:
        signal.signal(SIGNAL, signal.SIG_IGN)
        self.handle(number, frame)


def _call(handler: Handler, number: int, frame: Any) -> None:
    handler.handle(number, frame)


class Moments:
    """Counts the moments in our code at which Python may run a signal handler; sends a signal at one."""

    def __init__(self, at: int):
        self.left, self.at = at, at

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_return") and OURS in frame.f_code.co_filename:
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                signal.raise_signal(SIGNAL)


@contextlib.contextmanager
def interrupted(handler: Handler, moment: int, delay_s: float) -> Iterator[None]:
    """Inside, the handler runs once: at that moment, or after that time."""
    gc.disable()  # Python drops what is raised in callbacks of the collector
    before = signal.signal(SIGNAL, handler.function)
    try:
        if moment:
            sys.setprofile(Moments(moment))
        else:
            signal.setitimer(signal.ITIMER_REAL, delay_s)
        yield
    finally:
        sys.setprofile(None)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(SIGNAL, before)
        gc.enable()


class _Length:
    moments, seconds = 1, 0.0


@cache
def duration(core: CoreName, in_folder: bool) -> _Length:
    """How long a program takes without an interrupt."""
    region_cost_ns(core)  # measured once in a process
    found = _Length()
    with tempfile.TemporaryDirectory(prefix="hotloop-signals-") as folder:
        for number in range(3):
            began_s = time.perf_counter()
            Program(core, Path(folder) / str(number) if in_folder else None, number).run()
            found.seconds = time.perf_counter() - began_s
        moments = Moments(0)
        sys.setprofile(moments)
        try:
            Program(core, Path(folder) / "counted" if in_folder else None, 3).run()
        finally:
            sys.setprofile(None)
        found.moments = -moments.left
    return found


# -- the program ---------------------------------------------------------------------------------


class Program:
    """Records what it does in all ways there are, and counts it itself."""

    def __init__(self, core: CoreName, folder: Path | None, seed: int):
        self.profiler = Profiler(core_name=core)
        self.folder = folder
        self.rng = random.Random(seed)
        self.begun: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()

    def run(self) -> None:
        self.profiler.start(self.folder, timeline=self.rng.random() < 0.5)
        for turn in range(12):
            self.work(turn)
        self.profiler.stop()

    def call(self, name: str, inside: Callable[[], Any] = lambda: None) -> None:
        self.begun[name] += 1
        with self.profiler.profile(name):
            inside()
        self.ended[name] += 1

    def work(self, turn: int) -> None:
        profiler = self.profiler
        self.call(f"outer {turn % 5}", lambda: self.call("inner", lambda: self.call(f"new {turn}")))
        profiler.progress(env_steps=1, episodes=1, episode_return=0.5)

        @profiler.profile_function("decorated")
        def decorated() -> int:
            return turn

        @profiler.profile_function("generator")
        def generator() -> Iterator[int]:
            yield 1
            yield 2

        self.begun["decorated"] += 1
        decorated()
        self.ended["decorated"] += 1
        self.begun["generator"] += 3
        list(generator())
        self.ended["generator"] += 3
        if turn % 3 == 0:  # ends out of order
            for name in ("first", "second"):
                self.begun[name] += 1
            first, second = profiler.profile("first"), profiler.profile("second")
            first.__enter__()
            second.__enter__()
            first.__exit__(None, None, None)
            second.__exit__(None, None, None)
            for name in ("first", "second"):
                self.ended[name] += 1

    def problem(self, handler: Handler, moment: int, delay_s: float) -> str | None:
        """Run it with an interrupt under way (see `interrupted`), and say what went wrong."""
        caught: BaseException | None = None
        said = io.StringIO()
        with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stderr(said):
            warnings.simplefilter("always", ProfilingWarning)  # no others: an interrupt leaves files open
            try:
                with interrupted(handler, moment, delay_s):
                    self.run()
                    _wait_until(lambda: handler.ran > 0 or moment > 0)
            except BaseException as error:
                caught = error
            if caught is not handler.error:
                came = f"{caught!r} came out, the handler had raised {handler.error!r}"
                return f"{came}\n{_trace(caught)}\n{handler.where}"
            try:
                return self._problem_afterwards() or _said(warned, said)
            except BaseException as error:
                return f"afterwards: {error!r}\n{_trace(error)}"

    def _problem_afterwards(self) -> str | None:
        profiler = self.profiler
        if not profiler.is_recording and not self.begun:
            # It was interrupted while it started; what it began to write is no place for another run.
            profiler.start(None if self.folder is None else self.folder / "again")
        if profiler.is_recording:
            for _ in range(7):
                with profiler.profile("afterwards"):
                    pass
            self.begun["afterwards"] = self.ended["afterwards"] = 7
        profiler.stop()
        if profiler.is_recording:
            return "it still records after stop()"
        captures = [profiler.capture()]
        if self.folder is not None and profiler.folder is not None:
            captures.append(hotloop.load(profiler.folder))
        for capture in captures:
            if not capture.processes:
                return None if not sum(self.ended.values()) else f"nothing is recorded: {capture.warnings}"
            (process,) = capture.processes
            if process.warnings or (capture.path and capture.warnings):
                return f"a warning: {(*process.warnings, *capture.warnings)}"
            calls = {name: stats.calls for name, stats in by_name(capture.tree).items()}
            for name in {*self.begun, *calls}:
                if not self.ended[name] <= calls.get(name, 0) <= self.begun[name]:
                    return (
                        f"{calls.get(name, 0)} calls of {name!r} are recorded; {self.begun[name]} have "
                        f"begun, {self.ended[name]} have ended"
                    )
        return None


def _wait_until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.001)


def _said(warned: list[Any], said: io.StringIO) -> str | None:
    if warned:
        return f"it warned: {warned[0].message}"
    return f"it said {said.getvalue()[-600:]!r}" if said.getvalue() else None


def _trace(error: BaseException | None) -> str:
    return "" if error is None else "".join(traceback.format_exception(error))[-800:]
