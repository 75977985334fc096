"""What `hotloop run` adds on request: cProfile for the main process, torch's profiler for a while."""

from __future__ import annotations

import cProfile
import io
import pstats
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from hotloop.measure.profiler import default

TOP = 50
TORCH_PROFILE_NS = 2_000_000_000
ANOTHER_PROFILER = "Nothing was recorded with cProfile: another profiler was on from the start.\n"
REPLACED = "The script set a profiler of its own (sys.setprofile): what came from then on is missing here.\n"


def profile_functions(folder: Path) -> Callable[[], None]:
    """Start cProfile on this thread; returns what stops it and writes `detailed.txt`."""
    profiler = cProfile.Profile()
    try:
        profiler.enable()
    except ValueError:  # another profiler is active: the script's own comes first
        (folder / "detailed.txt").write_text(ANOTHER_PROFILER, encoding="utf-8")
        return lambda: None

    def finish() -> None:
        # From 3.12 on cProfile is no `sys.setprofile` user any more, and both may be on.
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
        (folder / "detailed.txt").write_text(text.getvalue(), encoding="utf-8")
        profiler.dump_stats(folder / "detailed.prof")

    return finish


def profile_torch(torch: ModuleType, folder: Path) -> Callable[[], None]:
    """Torch's own profiler for two seconds from the first window with an update on; returns the end."""
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
