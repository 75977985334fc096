"""`Profiler`: one recording from start to stop, into a capture folder or in memory."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from hotloop._util.errors import FileError
from hotloop._util.interrupts import is_users, suppress_own, undisturbed
from hotloop.capture.folder import (
    CAPTURE_VARIABLE,
    FACTS,
    RUN_ID_VARIABLE,
    claim_folder,
    new_run_id,
    update_facts,
)
from hotloop.measure import core_choice
from hotloop.measure.capture_facts import device_facts, known, new_facts, plain
from hotloop.measure.core_shared import LIBRARIES, PACKAGE, RECORD_CALLS, RECORD_TIMELINE
from hotloop.measure.decorate import decorate
from hotloop.measure.device import Device, DeviceTimer
from hotloop.measure.late_facts import LateFacts
from hotloop.measure.line_sampler import PythonLineSampler
from hotloop.measure.part import Part

if TYPE_CHECKING:
    from hotloop.capture.model import Capture
    from hotloop.capture.stats import ProfilerStats

MOST_THREAD_NAMES = 1024
Function = TypeVar(
    "Function", bound="Callable[..., Any] | classmethod[Any, Any, Any] | staticmethod[..., Any]"
)


class ProfilingWarning(UserWarning):
    """Something is wrong with the recording; the program itself continues."""


class Profiler:
    """Records regions. The functions of the package use a default one; create your own to embed it."""

    def __init__(self, *, clock: Callable[[], int] | None = None, core_name: core_choice.CoreName = "auto"):
        """`clock` returns nanoseconds; the default is the system's monotonic clock."""
        self._core_name = core_name
        self._module = core_choice.pick_core(core_name)
        self.recorder = self._module.Recorder(clock)
        self.profile = self.recorder.profile
        self.progress = self.recorder.progress
        self.folder: Path | None = None
        self._part: Part | None = None  # still readable after stop
        self._owner_pid: int | None = None
        self._run_id: str | None = None  # of the capture
        self._environment: dict[str, str | None] = {}  # variables that we have changed: what they were before
        self._live_folder: Path | None = None
        self._device_timer: Any = None
        self._late_facts: LateFacts | None = None
        self._python_sampler: PythonLineSampler | None = None
        self.keep_source = True  # of functions that were sampled often
        self.thread_names: dict[int, str] = {}  # native id -> name, of threads that may have ended
        self.more_thread_settings: Callable[[], dict[str, Any]] = dict  # of the libraries in use
        self.new_channels: Callable[[], list[dict[str, Any]]] = list  # pipes and queues with news
        self._summary: Callable[[], None] | None = None
        self._summary_steps = 0
        self._summary_interval_ns = 0
        self._summary_due_ns = 0

    @property
    def is_recording(self) -> bool:
        """Whether regions are recorded now."""
        return bool(self.recorder.epoch)

    @overload
    def profile_function(self, name: Function, *, category: str | None = None) -> Function: ...
    @overload
    def profile_function(
        self, name: str | None = None, *, category: str | None = None
    ) -> Callable[[Function], Function]: ...
    def profile_function(self, name: Any = None, *, category: str | None = None) -> Any:
        """Decorate a function: `@profile_function`, `@profile_function("name")`."""
        if callable(name):
            target = getattr(name, "__func__", name)
            return decorate(self.profile(target.__qualname__, category), name)

        def with_name(function: Any) -> Any:
            target = getattr(function, "__func__", function)
            return decorate(self.profile(name or target.__qualname__, category), function)

        return with_name

    def step_counter(self, reward: int, ends: tuple[int, ...], **how: Any) -> Any:
        """A `StepCounter` of this profiler's core: counts steps from what calls return."""
        return self._module.StepCounter(self.recorder, reward, ends, **how)

    def call_counter(self, callback: Callable[[Any, Any], object]) -> Any:
        """A `CallCounter` of this profiler's core: counts calls, and calls `callback` only when it is due."""
        return self._module.CallCounter(callback)

    def update_counter(self, step_counters: list[Any], **how: Any) -> Any:
        """An `UpdateCounter` of this profiler's core: counts updates from the steps of optimizers."""
        return self._module.UpdateCounter(self.recorder, step_counters, **how)

    def class_builder(self, build: Any, names: tuple[str, ...], made: Callable[[type], object]) -> Any:
        """`build` for class statements, which calls `made(cls)` for each class with these attributes."""
        return self._module.class_builder(build, names, made)

    # -- starting and stopping -------------------------------------------------------------------

    def start(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        memory: bool = True,
        timeline: bool = False,
        device: Device | None = None,
        config: dict[str, Any] | None = None,
        seeds: dict[str, int] | None = None,
        join: bool = False,
        run_id: str | None = None,
        live_folder: Path | None = None,
    ) -> Profiler:
        """Start recording, into `folder` or, without one, in memory.

        `memory` samples resident memory, `timeline` keeps a sample of the calls over the whole run
        and the last calls of each thread for trace export, `device` times work on an accelerator, `config`
        and `seeds` are stored in the capture.

        A folder that holds the capture of another run is left alone: this one goes to a folder of a similar
        name. Processes that give the same `run_id` (default: the variable HOTLOOP_RUN_ID, which processes
        inherit) share a capture. `join` opens the part of this process at its first region.

        Recording never ends a run. What goes wrong leads to a warning: a folder that cannot be written to a
        recording in memory, a profiler that is already recording to no change.
        """
        if self.is_recording:
            self._warn(
                f"start() is ignored: this profiler is already recording into {self.folder or 'memory'}; "
                "call stop() first, or create another Profiler"
            )
            return self
        try:
            self._reset(live_folder)
            if folder is not None:
                self._claim(Path(folder), join, run_id, device, config, seeds)
            if self._core_name == "auto" and (odd := core_choice.odd_wish()):
                self._warn(odd)
            both = RECORD_TIMELINE | RECORD_CALLS
            self.recorder.flags = self.recorder.flags & ~both | (both if timeline else 0)
            if device is not None:
                self._device_timer = DeviceTimer(device, self.recorder.credit_device)
            self.recorder.device = self._device_timer
            self.recorder.start(self._open_part, sample_memory=memory, lazily=join)
            if self.folder is not None:
                self._set_environment()
            atexit.register(self._at_exit)
        except BaseException as error:
            unregister = functools.partial(atexit.unregister, self._at_exit)
            self._finish([self._stop_recorder, self._restore_environment, unregister])
            if is_users(error):
                raise
            self._warn(f"this process is not recorded ({error!r})")
        return self

    def _reset(self, live_folder: Path | None) -> None:
        self.folder = self._run_id = self._device_timer = None
        self._live_folder = live_folder
        self._owner_pid = os.getpid()

    def _set_environment(self) -> None:
        """Let the processes that this one starts join its capture."""
        for name, value in ((CAPTURE_VARIABLE, str(self.folder)), (RUN_ID_VARIABLE, self._run_id)):
            self._environment[name] = os.environ.get(name)
            if value is not None:
                os.environ[name] = value

    def _restore_environment(self) -> None:
        while self._environment:
            name, before = next(iter(self._environment.items()))
            if before is not None:
                os.environ[name] = before
            else:
                os.environ.pop(name, None)
            del self._environment[name]

    def sample_lines(self) -> None:
        """Sample which line of the user's code each thread is at, from now on; call it again after a fork.

        Where stacks cannot be read without the GIL, a Python thread does it, and the capture says so.
        """
        if not self.is_recording:
            return
        why_not = self.recorder.sample_lines(PACKAGE, LIBRARIES)
        if why_not is not None and self.recorder.clock is None:
            self._python_sampler = PythonLineSampler(self.recorder)
            self._python_sampler.start()

    def note_thread(self, thread: threading.Thread) -> None:
        """Remember the name of a thread for its samples."""
        if thread.native_id is not None and len(self.thread_names) < MOST_THREAD_NAMES:
            self.thread_names[thread.native_id] = thread.name

    def attach_device(self, device: Device) -> None:
        """Time work on a device from now on, in the outermost regions that launch device work.

        For programs whose device is only known once they use it. Only the first device is timed.
        """
        if not self.is_recording or self._device_timer is not None:
            return
        self._device_timer = DeviceTimer(device, self.recorder.credit_device, outermost=True)
        self.recorder.device = self._device_timer
        if self.folder is not None:
            self._update_facts(**device_facts(device.name))

    def stop(self, exit_status: str = "stopped") -> Path | None:
        """Stop recording; returns the capture folder, or None when there is none.

        Does all that is to be done even if a signal handler raises meanwhile, and raises that at the end. If
        a handler calls this in the middle of the recorder's own work, recording stops soon afterwards.
        """
        if self.recorder.at_work:
            self.recorder.after_work = functools.partial(self.stop, exit_status)
            return self.folder
        self.recorder.resume()
        if not self.is_recording:
            return None
        steps = [
            lambda: self.summarise_every(None),
            self._wait_for_device,
            self._stop_python_sampler,
            self.recorder.save_samples,
            self._write_late_facts,
            self._stop_recorder,
            lambda: atexit.unregister(self._at_exit),
        ]
        if self.folder is not None and self._owner_pid == os.getpid():
            steps.append(self._restore_environment)
            steps.append(lambda: self._update_facts(ended_at_ns=time.time_ns(), exit_status=exit_status))
        interrupt = self._finish(steps)
        if interrupt is not None:
            raise interrupt
        return self.folder

    def _finish(self, steps: list[Callable[[], Any]]) -> BaseException | None:
        """Take every step, twice if a signal handler interrupts it; returns what a handler raised last."""
        interrupt: BaseException | None = None
        problems: list[str] = []
        for step in steps:
            for _ in range(2):
                try:
                    step()
                    break
                except BaseException as error:
                    if not is_users(error):
                        problems.append(repr(error))
                        break
                    interrupt = error
        for problem in problems:
            self._warn(f"the recording may be incomplete ({problem})")
        return interrupt

    def _stop_python_sampler(self) -> None:
        if self._python_sampler is not None:
            self._python_sampler.stop()
            self._python_sampler = None

    def origin_changed(self) -> None:
        """Write what this process is (`measure/origin.py`) now, not with the next window."""
        if self._late_facts is not None and self._late_facts.pid == os.getpid():
            self._late_facts.origin_changed(self.recorder.now())

    def _write_late_facts(self) -> None:
        if self._late_facts is not None and self._late_facts.pid == os.getpid():
            self._late_facts.at_end(self.recorder.now())
        self._late_facts = None

    def _stop_recorder(self) -> None:
        part = self.recorder.part
        if part is not None and part.pid == os.getpid():
            self._part = part
        try:
            self.recorder.stop()
        finally:
            self.recorder.device = self._device_timer = None

    def pause(self) -> None:
        """Record nothing until `resume`; regions then cost as little as without a recording.

        Call it between regions: the end of one that is open now would be missed.
        """
        self.recorder.pause()

    def resume(self) -> None:
        """Continue after `pause`; the time in between is unattributed."""
        self.recorder.resume()

    def __enter__(self) -> Profiler:
        return self if self.is_recording else self.start(self.folder)

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _at_exit(self) -> None:
        failure = getattr(sys, "last_type", None)
        self.stop("finished" if failure is None else f"raised {failure.__name__}")

    def _open_part(self) -> Part:
        """Open the part; called by the recorder at start and, in a forked child, at the first region."""
        child = os.getpid() != self._owner_pid
        utilities = sys.modules.get("multiprocessing.util")
        if child:
            self.recorder.device = None  # a device's context does not survive a fork
        if child and utilities is not None:
            # Children of multiprocessing end with os._exit, which runs its finalizers but not those of
            # atexit. It drops finalizers registered before its own start-up, as in a forkserver's child.
            _close_at_end(self)
            utilities.register_after_fork(self, _close_at_end)
        folder = self.folder / "parts" if self.folder is not None else None
        part = Part(folder, self._module.KIND, self.recorder.now(), self._warn, self._live_folder)
        try:
            self._late_facts = LateFacts(
                part, self.more_thread_settings, self.thread_names, self.keep_source, self.new_channels
            )
            part.at_window = self._late_facts.at_window
        except BaseException:
            part.forget()
            raise
        return part

    def _wait_for_device(self, limit_s: float = 1.0) -> None:
        if self._device_timer is None:
            return
        deadline = time.monotonic() + limit_s
        self._device_timer.collect()
        while self._device_timer.pending and time.monotonic() < deadline:
            time.sleep(0.001)
            self._device_timer.collect()
        lost = self._device_timer.pending + self._device_timer.dropped
        if lost:
            self._warn(f"{lost} device events had not completed at the end; their time is not counted")

    def _warn(self, text: str) -> None:
        try:
            warnings.warn(f"hotloop: {text}", ProfilingWarning, stacklevel=3)
        except Exception as error:  # warnings are turned into errors, or stderr is closed
            if is_users(error):
                raise
            with suppress_own(Exception):
                print(f"hotloop: {text}", file=sys.stderr)

    # -- capture.json ----------------------------------------------------------------------------

    def _claim(
        self,
        folder: Path,
        join: bool,
        run_id: str | None,
        device: Device | None,
        config: dict[str, Any] | None,
        seeds: dict[str, int] | None,
    ) -> None:
        """Begin or join a capture in `folder`, or in another one if that is taken."""
        given = run_id or os.environ.get(RUN_ID_VARIABLE) or None
        find_out = functools.partial(
            new_facts,
            core_name=self._core_name,
            device_name=device.name if device is not None else None,
            injected_clock=self.recorder.clock is not None,
            config=plain(config or {}),  # here, because it may call code of the user's
            seeds=plain(seeds or {}),
            run_id=given or new_run_id(),
            joinable=join and given is None,
        )
        known(core_choice.region_cost_ns, self._core_name)  # measured once, by recording in this thread
        facts = undisturbed(find_out)
        try:
            place = folder.absolute()
            claim = undisturbed(lambda: claim_folder(place, facts, given if join else facts["run_id"]))
        except (OSError, ValueError) as error:
            if is_users(error):
                raise
            reason = getattr(error, "strerror", None) or error
            if not folder.is_absolute() and facts["working_folder"] is None:
                reason = "the working folder was deleted"
            self._warn(f"cannot write to {folder} ({reason}); recording in memory only")
            return
        if claim.folder != place:
            self._warn(f"{place} already holds the capture of another run; this one is in {claim.folder}")
        if not claim.begun:
            self._owner_pid = -1  # the process that began the capture records its end
        self.folder, self._run_id = claim.folder, claim.run_id

    def _update_facts(self, **changes: Any) -> None:
        assert self.folder is not None
        try:
            undisturbed(functools.partial(update_facts, self.folder, changes))
        except (OSError, ValueError, TypeError, FileError) as error:
            if is_users(error):
                raise
            self._warn(f"cannot update capture.json in {self.folder} ({error})")

    # -- reading while recording -----------------------------------------------------------------

    def capture(self) -> Capture:
        """What this process has recorded so far, read from its own memory."""
        # Lazy: these load numpy, which must not happen before the script does it (see join_from_environment).
        from hotloop.capture.model import Capture
        from hotloop.capture.reader import parse_part

        self.recorder.sample()
        part = self.recorder.part or self._part
        if part is None or part.pid != os.getpid():
            return Capture(self.folder, {}, (), ("nothing was recorded",))
        facts: dict[str, Any] = {"region_cost_ns": known(core_choice.region_cost_ns, self._core_name)}
        if self.folder is not None:
            with suppress_own(FileError):
                facts = FACTS.read_object(self.folder / "capture.json")
        return Capture(self.folder, facts, (parse_part([s.memory for s in part.segments], part.total_bytes),))

    def stats(self, name: str | None = None) -> Any:
        """`ProfilerStats` of every operation so far as a dict, or of the one with that name.

        Raises KeyError for a name that was not recorded.
        """
        from hotloop.capture.stats import by_name  # lazy, as in capture()

        found: dict[str, ProfilerStats] = by_name(self.capture().tree)
        if name is None:
            return found
        if name not in found:
            names = sorted(found)
            recorded = ", ".join(names[:20]) + (" ..." if len(names) > 20 else "")
            raise KeyError(f"no operation {name!r} was recorded; recorded: {recorded or 'nothing'}")
        return found[name]

    def summarise_every(
        self, callback: Callable[[], None] | None, *, env_steps: int = 0, seconds: float = 0.0
    ) -> None:
        """Call `callback` every `env_steps` or `seconds`, on the thread that does the work; None ends it."""
        self._summary = callback
        self._summary_steps = env_steps if callback else 0
        self._summary_interval_ns = round(seconds * 1e9) if callback else 0
        self._summary_due_ns = self.recorder.now() + self._summary_interval_ns
        self.recorder.steps_due = self._summary_steps
        self.recorder.on_steps = self._call_summary if self._summary_steps else None
        self.recorder.on_window = self._at_window if self._summary_interval_ns else None

    def _at_window(self, now_ns: int) -> None:
        if now_ns >= self._summary_due_ns:
            self._summary_due_ns = now_ns + self._summary_interval_ns
            self._call_summary()

    def _call_summary(self) -> None:
        self.recorder.steps_due = self._summary_steps
        if self._summary is not None:
            with self.profile("hotloop_summary", "hotloop"):
                try:
                    self._summary()
                except Exception as error:
                    if is_users(error):
                        raise
                    self._warn(f"the summary failed ({error!r}); training continues without it")
                    self.summarise_every(None)


def _close_at_end(profiler: Profiler) -> None:
    sys.modules["multiprocessing.util"].Finalize(
        profiler, _stop_if_recording, args=(profiler,), exitpriority=0
    )


def _stop_if_recording(profiler: Profiler) -> None:
    if profiler.is_recording:
        profiler.stop("finished")


default = Profiler()


def join_from_environment() -> None:
    """Record this process into the capture named by HOTLOOP_CAPTURE; never raises.

    Runs when hotloop is imported, so it must not import numpy: a script may want to set the number of its
    threads before it does so itself.
    """
    if default.is_recording:
        return
    try:
        default.start(os.environ[CAPTURE_VARIABLE], join=True)
    except Exception as error:
        if is_users(error):
            raise
        with suppress_own(Exception):
            print(f"hotloop: this process is not recorded: {error}", file=sys.stderr)
