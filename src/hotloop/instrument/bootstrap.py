"""Called from `sitecustomize` in every process of a recorded run: joins the capture and instruments it."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from hotloop._util import HOTLOOP_VERSION, strict_json
from hotloop._util.interrupts import is_users, suppress_own
from hotloop.capture.folder import CAPTURE_VARIABLE, RUN_ID_VARIABLE
from hotloop.instrument import libraries, process_facts
from hotloop.instrument.channels.logged_calls import begin_virtual_speedup
from hotloop.instrument.channels.logged_libraries import log_messages
from hotloop.instrument.channels.totals import channels_with_news
from hotloop.instrument.libraries import Instrumentation
from hotloop.instrument.patch import Patch
from hotloop.measure.core_shared import RECORD_CALLS, RECORD_ROUNDS, RECORD_TIMELINE
from hotloop.measure.profiler import default

RUN_VARIABLE = "HOTLOOP_RUN"  # JSON: the options of `hotloop run`
CHILD_VARIABLE = "HOTLOOP_RUN_CHILD"  # set for every process the script itself starts

OWN_REGIONS = "own_regions"  # option: only our code runs, which has its regions
TOP = 50
TORCH_PROFILE_NS = 2_000_000_000
ANOTHER_PROFILER = "Nothing was recorded with cProfile: another profiler was on from the start.\n"
REPLACED = "The script set a profiler of its own (sys.setprofile): what came from then on is missing here.\n"


def instrument_process() -> Instrumentation:
    """Join the capture and instrument this process; called once, at start-up."""
    options = json.loads(os.environ.get(RUN_VARIABLE) or "{}")
    process_facts.run_options = options
    process_facts.entry = f"{__name__}:{join_from_elsewhere.__name__}"
    is_script = CHILD_VARIABLE not in os.environ  # else one of the processes it started
    os.environ[CHILD_VARIABLE] = "1"
    if not default.is_recording:
        default.start(os.environ[CAPTURE_VARIABLE], join=True)
    if options.get("timeline"):
        default.recorder.flags |= RECORD_TIMELINE
    instrumentation = libraries.current = Instrumentation()
    log_messages(instrumentation)
    if options.get("what_if"):
        begin_virtual_speedup(options["what_if"])
    instrumentation.install()
    if default.folder is not None:
        default.keep_source = options.get("source", True)
        default.more_thread_settings = library_threads
        default.new_channels = _news
        default.recorder.flags |= RECORD_ROUNDS | RECORD_CALLS
        instrumentation.patches.apply([Patch(threading.Thread, "_set_native_id", note_thread_name)])
        default.sample_lines()
        os.register_at_fork(after_in_child=sample_lines_after_fork)
        if is_script:
            default.progress()  # opens its part now, even if no region ever follows
            _start_extras(options, default.folder, instrumentation)
        elif options.get("trial"):
            # Lazy: only `hotloop try` needs these, and every recorded process would load them.
            from hotloop.instrument.trial_script import follow_trial

            follow_trial(default.folder, instrumentation)
    return instrumentation


def library_threads() -> dict[str, Any]:
    """How many threads `torch`, `torch_interop` and `numba` use; one that is not loaded is left out."""
    found: dict[str, Any] = {}
    torch: Any = sys.modules.get("torch")
    numba = sys.modules.get("numba")
    # Neither is asked while it is being imported; numba.get_num_threads() would start its threads.
    if hasattr(torch, "get_num_threads") and hasattr(torch, "get_num_interop_threads"):
        found |= {"torch": torch.get_num_threads(), "torch_interop": torch.get_num_interop_threads()}
    numba_threads = getattr(getattr(numba, "config", None), "NUMBA_NUM_THREADS", None)
    if numba_threads is not None:
        found["numba"] = numba_threads
    return found


@contextlib.contextmanager
def record_ray_workers() -> Iterator[None]:
    """Inside the block, workers of a Ray job that this process starts join its capture, for our own trainers.

    Under `hotloop run`, they do so anyway.
    """
    if not default.is_recording or libraries.current is not None:
        yield
        return
    before = process_facts.entry, process_facts.run_options
    process_facts.entry = f"{__name__}:{join_from_elsewhere.__name__}"
    process_facts.run_options = {OWN_REGIONS: True}
    libraries.current = Instrumentation("ray")
    libraries.current.hook.install()
    try:
        yield
    finally:
        libraries.current.remove()
        libraries.current = None
        process_facts.entry, process_facts.run_options = before


def join_from_elsewhere(settings: dict[str, Any]) -> None:
    """Record this process, for example a Ray worker; called by the driver's set-up hook in its main thread.

    It records into the capture if this computer has its folder, else into its own folder. A failure
    is printed, not raised: the process then works unrecorded.
    """
    try:
        _join(settings)
    except Exception as error:
        if is_users(error):
            raise
        print(f"hotloop: this worker is not recorded: {error!r}", file=sys.stderr)


def _join(settings: dict[str, Any]) -> None:
    from hotloop.instrument.ray import begin_worker  # only where Ray is used
    from hotloop.instrument.ray_node import recording_folder

    if default.is_recording or settings["version"] != HOTLOOP_VERSION:
        return  # the driver names nodes with another version
    folder, _ = recording_folder(settings["capture"], settings["run_id"])
    os.environ[CAPTURE_VARIABLE] = str(folder)
    os.environ[RUN_ID_VARIABLE] = settings["run_id"]
    worker = sys.modules["ray._private.worker"]
    if settings["options"].get(OWN_REGIONS):
        default.start(folder, join=True)
        libraries.current = Instrumentation("ray")
        libraries.current.hook.install()
        begin_worker(worker, libraries.current.patches)
        return
    os.environ[RUN_VARIABLE] = strict_json.dumps(settings["options"] or {"on": True})
    os.environ[CHILD_VARIABLE] = "1"
    os.environ["HOTLOOP_HOME"] = str(Path(__file__).parents[2])
    startup, before = str(Path(__file__).parent / "startup"), os.environ.get("PYTHONPATH")
    if startup not in (before or "").split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join([startup, *([before] if before else [])])
    instrumentation = instrument_process()
    begin_worker(worker, instrumentation.patches)


def note_thread_name(set_native_id: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """Note the name of each thread when it begins, as it may have ended when names are written."""

    def set_and_note(thread: threading.Thread) -> None:
        set_native_id(thread)
        default.note_thread(thread)

    return set_and_note


def _news() -> list[dict[str, Any]]:
    """Pipes and queues with news; DistributedDataParallel is asked at the same time."""
    distributed: Any = sys.modules.get("hotloop.instrument.torch_distributed")
    if distributed is not None:
        distributed.note_logged()
    return channels_with_news()


def sample_lines_after_fork() -> None:
    default.thread_names.clear()
    default.sample_lines()


def _start_extras(options: dict[str, Any], folder: Path, instrumentation: Instrumentation) -> None:
    """In the script's own process: what was requested in addition to regions."""
    if options.get("torch_profile"):

        def profile(torch: ModuleType) -> None:
            atexit.register(profile_torch(torch, folder))

        instrumentation.hook.also("torch", profile)
    if options.get("detailed"):
        atexit.register(profile_functions(folder))
    if options.get("trial"):
        from hotloop.instrument.trial_script import begin_trial  # lazy, as above

        begin_trial(options["trial"], folder, instrumentation)


def profile_functions(folder: Path) -> Callable[[], None]:
    """Start cProfile on this thread; returns the function that stops it and writes `detailed.txt`."""
    import cProfile  # only with --detailed
    import pstats

    profiler = cProfile.Profile()
    try:
        profiler.enable()
    except ValueError as error:  # another profiler is active, and the script's own has precedence
        if is_users(error):
            raise
        with suppress_own(OSError):
            (folder / "detailed.txt").write_text(ANOTHER_PROFILER, encoding="utf-8")
        return lambda: None

    def finish() -> None:
        # Since 3.12 cProfile no longer uses `sys.setprofile`, so both can be active.
        active: Any = sys.getprofile()
        replaced = sys.version_info < (3, 12) and active is not profiler
        profiler.disable()
        text = io.StringIO()
        if replaced:
            text.write(REPLACED)
        stats = pstats.Stats(profiler, stream=text).sort_stats("cumulative")
        text.write("Functions by cumulative time (recorded with cProfile, which slows calls down)\n")
        stats.print_stats(TOP)
        stats.print_callers(TOP)
        stats.print_callees(TOP)
        with suppress_own(OSError):  # `hotloop run` says that the file is missing
            (folder / "detailed.txt").write_text(text.getvalue(), encoding="utf-8")
            profiler.dump_stats(folder / "detailed.prof")

    return finish


def profile_torch(torch: ModuleType, folder: Path) -> Callable[[], None]:
    """Run torch's profiler for two seconds once training has begun; returns the function that ends it."""
    state: dict[str, Any] = {"profiler": None, "until": 0, "done": False}

    def finish() -> None:
        if state["profiler"] is not None and not state["done"]:
            state["done"] = True
            state["profiler"].stop()
            state["profiler"].export_chrome_trace(str(folder / "torch-trace.json"))

    def at_window(now_ns: int) -> None:
        if state["done"]:
            return
        if state["profiler"] is None:
            progress = default.capture().progress
            if progress.updates or progress.env_steps > 100:
                profiler: Any = torch.profiler.profile()
                profiler.start()
                state["profiler"] = profiler
                state["until"] = now_ns + TORCH_PROFILE_NS
        elif now_ns >= state["until"]:
            finish()
            default.recorder.on_window = None

    default.recorder.on_window = at_window
    return finish
