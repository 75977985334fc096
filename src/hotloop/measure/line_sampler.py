"""Samples lines from a Python thread, where the compiled core cannot read stacks without the GIL.

Such a thread runs when the GIL is free, so it sees lines that sleep too often and lines that compute too
seldom. The samples are marked "python-thread" in the capture, so that reports can say so. What it writes has
the same form as what `compiled/line_samples.h` writes.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
from itertools import islice
from types import CodeType, FrameType
from typing import Any

from hotloop.capture import layout
from hotloop.measure.core_shared import LIBRARIES, PACKAGE, is_library
from hotloop.measure.part import encode

INTERVAL_S = 0.04
# A sample needs the GIL, which costs the script about a tenth of a millisecond. So the sampler begins with
# many samples and takes fewer over time; a sample stands for as long as the sampler has waited.
SAMPLES_BEFORE_DOUBLING = 64
LONGEST_WAIT = 32  # intervals

_AT = layout.offsets("SAMPLES")
_FUNCTION_AT = layout.offsets("SAMPLED_FUNCTION")
_FILE_BYTES, _FUNCTION_BYTES = layout.item_bytes("SAMPLED_FILE"), layout.item_bytes("SAMPLED_FUNCTION")
_FILE_NAME_BYTES = layout.field_bytes(layout.SAMPLED_FILE[-1])
_FUNCTION_NAME_BYTES = layout.field_bytes(layout.SAMPLED_FUNCTION[-1])
_STEP = struct.Struct("<4I")
_SAMPLE = struct.Struct("<QIHHHBBI")
_INNERMOST_FRAMES = layout.MAX_PATH_FRAMES - layout.OUTERMOST_FRAMES


class SampleTables:
    """Files, functions, paths and rows in one section, in the form that readers expect."""

    def __init__(self, section: memoryview, method: int, interval_ns: int):
        self._section = section
        self._files: dict[str, int] = {}
        self._functions: dict[tuple[int, int, str], int] = {}
        self._paths: dict[tuple[int, int, int, int], int] = {}
        self._on_path_us: dict[int, int] = {}
        self._path_count = 1  # path 0 stands for all that do not fit
        self.count = 0
        self.thinned = 0
        self._set("path_count", 1)
        self._set("interval_ns", interval_ns, 8)
        self._set("method", method)

    def _set(self, field: str, value: int, size: int = 4) -> None:
        self._section[_AT[field] : _AT[field] + size] = value.to_bytes(size, "little")

    def _get(self, field: str, size: int = 8) -> int:
        return int.from_bytes(self._section[_AT[field] : _AT[field] + size], "little")

    def add_moment(self, interval_ns: int, cost_ns: int) -> None:
        """Count one look at all threads."""
        self._set("moments", self._get("moments") + 1, 8)
        self._set("cost_ns", self._get("cost_ns") + cost_ns, 8)
        self._set("interval_ns", interval_ns, 8)

    def _file(self, name: str) -> int | None:
        number = self._files.get(name)
        if number is None and len(self._files) < layout.MAX_SAMPLED_FILES:
            data = name.encode("utf-8", "replace")
            library = max((len(p.encode()) for p in LIBRARIES if name.startswith(p)), default=0)
            dropped = max(len(data) - _FILE_NAME_BYTES, 0)
            while dropped and dropped < len(data) and data[dropped] & 0xC0 == 0x80:
                dropped += 1  # on to the first byte of a character
            data = data[dropped:]
            number = self._files[name] = len(self._files)
            at = _AT["files"] + number * _FILE_BYTES
            struct.pack_into("<II", self._section, at, len(data), max(library - dropped, 0))
            self._section[at + 8 : at + 8 + len(data)] = data
            self._set("file_count", len(self._files))
        return number

    def function(self, code: CodeType) -> int | None:
        """Number of a function; None when there are too many."""
        file = self._file(code.co_filename)
        if file is None:
            return None
        key = (file, code.co_firstlineno, code.co_qualname)
        number = self._functions.get(key)
        if number is None and len(self._functions) < layout.MAX_SAMPLED_FUNCTIONS:
            number = self._functions[key] = len(self._functions)
            data = encode(code.co_qualname, _FUNCTION_NAME_BYTES)
            at = _AT["functions"] + number * _FUNCTION_BYTES
            struct.pack_into("<IIQI", self._section, at, file, code.co_firstlineno, 0, len(data))
            name_at = at + _FUNCTION_AT["name"]
            self._section[name_at : name_at + len(data)] = data
            self._set("function_count", len(self._functions))
        return number

    def credit(self, functions: set[int], weight_us: int) -> None:
        """Add the time to every function of a path."""
        for number in functions:
            self._on_path_us[number] = self._on_path_us.get(number, 0) + weight_us
            at = _AT["functions"] + number * _FUNCTION_BYTES + _FUNCTION_AT["on_path_us"]
            self._section[at : at + 8] = self._on_path_us[number].to_bytes(8, "little")

    def step(
        self, parent: int | None, function: int, line: int, kind: int, reserve: bool = False
    ) -> int | None:
        """Number of the path that continues `parent` by one step; None when the table is full."""
        key = (0 if parent is None else parent + 1, function, line, kind)
        number = self._paths.get(key)
        most = layout.MAX_SAMPLED_PATHS - (0 if reserve else layout.RESERVED_PATHS)
        if number is None and self._path_count < most:
            number = self._paths[key] = self._path_count
            _STEP.pack_into(self._section, _AT["paths"] + number * _STEP.size, *key)
            self._path_count += 1
            self._set("path_count", self._path_count)
        return number

    def path(
        self,
        frames: list[tuple[int | None, int]],
        called: int | None,
        innermost: int | None,
        expression: tuple[int, int, int] | None = None,
    ) -> int:
        """Number of a path: `frames` of (function, line) from the innermost one on, and library functions.

        `expression` is the last line, the first column and the end column of what ran in the innermost frame.
        """
        if any(function is None for function, _ in frames):
            return 0
        found: int | None = None
        last = len(frames) - layout.OUTERMOST_FRAMES
        for number in range(len(frames) - 1, -1, -1):
            if len(frames) > layout.MAX_PATH_FRAMES and _INNERMOST_FRAMES <= number < last:
                if number > _INNERMOST_FRAMES:
                    continue
                step = (0, 0, layout.STEP_LEFT_OUT)
            else:
                step = (frames[number][0] or 0, frames[number][1], layout.STEP_LINE)
            found = self.step(found, *step)
            if found is None:
                return self.step(None, frames[0][0] or 0, frames[0][1], layout.STEP_LINE, reserve=True) or 0
        if called is not None:
            below = self.step(found, called, 0, layout.STEP_CALLED)
            if below is not None and innermost is not None and innermost != called:
                below = self.step(below, innermost, 0, layout.STEP_INNERMOST)
            found = below if below is not None else found
        if found is not None and expression is not None and self._path_count < layout.MAX_EXPRESSION_PATHS:
            end_line, column, end_column = expression
            found = self.step(found, column | end_column << 16, end_line, layout.STEP_EXPRESSION) or found
        return found or 0

    def add_row(
        self, time_ns: int, native_id: int, path: int, thread: int, node: int, state: int, weight_us: int
    ) -> None:
        """Append a sample; the caller has made room."""
        at = _AT["rows"] + self.count * _SAMPLE.size
        number = layout.NO_THREAD if thread < 0 else thread
        _SAMPLE.pack_into(self._section, at, time_ns, native_id, path, number, node, state, 0, weight_us)
        self.count += 1
        self._set("count", self.count)

    def make_room(self, rows: int) -> bool:
        """Thin the rows when `rows` more do not fit; returns whether that was done."""
        if self.count + rows <= layout.MAX_SAMPLES:
            return False
        self.thin()
        return True

    def thin(self) -> None:
        """Drop every second moment, with the rows of all threads; the others stand for twice the time."""
        seq = self._get("seq")
        self._set("seq", seq + 1, 8)
        kept = moment = before = 0
        for number in range(self.count):
            at = _AT["rows"] + number * _SAMPLE.size
            time_ns, *rest, weight_us = _SAMPLE.unpack_from(self._section, at)
            moment += number > 0 and time_ns != before
            before = time_ns
            if moment & 1 == self.thinned & 1:
                continue
            to = _AT["rows"] + kept * _SAMPLE.size
            _SAMPLE.pack_into(self._section, to, time_ns, *rest, min(2 * weight_us, 0xFFFFFFFF))
            kept += 1
        self.thinned += 1
        self.count = kept
        self._set("thinned", self.thinned)
        self._set("count", kept)
        self._set("seq", seq + 2, 8)


class PythonLineSampler:
    """A thread that samples all Python threads while it holds the GIL."""

    def __init__(self, recorder: Any, interval_s: float = INTERVAL_S):
        self._recorder = recorder
        self._interval_s = interval_s
        self._tables: SampleTables | None = None
        self._thread = threading.Thread(target=self._run, name="hotloop lines", daemon=True)
        self._stop = threading.Event()
        self._pid = os.getpid()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the last sample."""
        self._stop.set()
        if self._thread.is_alive() and self._pid == os.getpid():
            self._thread.join()

    def _run(self) -> None:
        wait, taken = 1, 0
        while not self._stop.wait(wait * self._interval_s):
            if self._pid != os.getpid():
                return
            if self._recorder.epoch:
                self.sample(round(wait * self._interval_s * 1e9))
            taken += 1
            if taken % SAMPLES_BEFORE_DOUBLING == 0 and wait < LONGEST_WAIT:
                wait *= 2

    def sample(self, weight_ns: int) -> None:
        """Sample all threads but this one, if the part is open; the sample stands for `weight_ns`."""
        part = self._recorder.part
        if part is None or part.pid != os.getpid():
            return
        if self._tables is None:
            self._tables = SampleTables(part.add_section("samples"), layout.SAMPLED_BY_PYTHON, weight_ns)
        began, tables = time.thread_time_ns(), self._tables
        now = self._recorder.now()
        frames = sys._current_frames()
        threads = {thread.ident: thread.native_id for thread in threading.enumerate()}
        tables.make_room(len(frames))
        weight_us = weight_ns // 1000
        for ident, frame in frames.items():
            native_id = threads.get(ident)
            if native_id is None or native_id == self._thread.native_id:
                continue
            lines, called, innermost, own, expression = read_stack(tables, frame)
            if not lines and own:
                continue  # our own work
            thread, node = self._recorder.open_node(native_id)
            path = tables.path(lines, called, innermost, expression)
            tables.add_row(now, native_id, path, thread, node, layout.STATE_UNKNOWN, weight_us)
            tables.credit({function for function, _ in lines if function is not None}, weight_us)
        tables.add_moment(weight_ns, time.thread_time_ns() - began)


def read_stack(
    tables: SampleTables, frame: FrameType | None
) -> tuple[list[tuple[int | None, int]], int | None, int | None, bool, tuple[int, int, int] | None]:
    """The user's lines from the innermost on, the library function they call, the innermost one, whether
    hotloop itself is on the stack, and the expression that ran in the innermost line.
    """
    lines: list[tuple[int | None, int]] = []
    called: CodeType | None = None
    innermost: CodeType | None = None
    own = False
    expression = None
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE):
            own = True
        elif not is_library(code.co_filename):
            if not lines:
                expression = _expression(frame)
            lines.append((tables.function(code), frame.f_lineno or code.co_firstlineno))
        elif not lines:
            called, innermost = code, innermost or code
        frame = frame.f_back
    numbers = [None if code is None else tables.function(code) for code in (called, innermost)]
    return lines, numbers[0], numbers[1], own, expression


def _expression(frame: FrameType) -> tuple[int, int, int] | None:
    """Last line, first column and end column of the instruction of a frame, as far as they are known."""
    positions = islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
    line, end_line, column, end_column = next(positions, (None,) * 4)
    if line is None or end_line is None or column is None or end_column is None:
        return None
    return (end_line, column, end_column) if max(column, end_column) <= layout.LAST_COLUMN else None
