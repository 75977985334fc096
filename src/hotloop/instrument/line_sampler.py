"""Samples which line of the user's code the main thread is at while no region is open."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from hotloop._util.files import write_atomically
from hotloop.measure.core_shared import user_line

INTERVAL_S = 0.04
SAVE_INTERVAL_S = 2.0
# A sample needs the GIL, which costs the script about a tenth of a millisecond. So the sampler begins with
# many samples and takes fewer over time; a sample counts for as many intervals as the sampler has waited.
SAMPLES_BEFORE_DOUBLING = 64
LONGEST_WAIT = 32  # intervals


class LineSampler:
    """A thread that counts lines, in intervals of INTERVAL_S, and saves the counts to `folder`."""

    def __init__(self, recorder: Any, folder: Path, wait: int = 1):
        """`wait` is the initial number of intervals between samples."""
        self._wait = wait
        self._recorder = recorder
        self._folder = folder
        self._thread = threading.Thread(target=self._run, name="hotloop lines", daemon=True)
        self._stop = threading.Event()
        self._main = threading.main_thread()
        self._counts: Counter[str] = Counter()
        self._samples = 0
        self._start_ns = time.monotonic_ns()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End, and save the counts."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._save()

    def _run(self) -> None:
        saved = time.monotonic()
        wait, taken = self._wait, 0
        while not self._stop.wait(wait * INTERVAL_S):
            self._samples += wait
            taken += 1
            if self._recorder.open_depth(self._main.native_id) == 0:
                frame = sys._current_frames().get(self._main.ident or 0)
                if frame is not None:
                    self._counts[user_line(frame) or _package(frame)] += wait
            if taken % SAMPLES_BEFORE_DOUBLING == 0 and wait < LONGEST_WAIT:
                wait *= 2
            if time.monotonic() - saved > SAVE_INTERVAL_S:
                saved = time.monotonic()
                self._save()

    def _save(self) -> None:
        if not self._samples:
            return
        data = {"pid": os.getpid(), "samples": self._samples, "lines": dict(self._counts.most_common(200))}
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            name = f"{os.uname().nodename}-{os.getpid()}-{self._start_ns}.json"
            write_atomically(self._folder / name, json.dumps(data))


def _package(frame: FrameType) -> str:
    """Which package runs while no code of the user is on the stack: during an import, or at exit."""
    inner: FrameType | None = frame
    while inner is not None:
        name = str(inner.f_globals.get("__name__", "")).split(".")[0].lstrip("_") or "python"
        if name != "hotloop":
            return f"({name}, not the script)"
        inner = inner.f_back
    return "(hotloop)"
