"""Facts that are only known while a process runs: threads in force, thread names, source of busy functions.

Written from Python at windows, when the GIL is ours anyway, and at the end: sections of JSON, each complete
when a reader first sees it.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from hotloop._util import strict_json
from hotloop._util.interrupts import is_users
from hotloop.capture import layout
from hotloop.machine.facts import cores_granted
from hotloop.measure.core_shared import PACKAGE, is_library
from hotloop.measure.part import Part

VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
SETTINGS_INTERVAL_NS = 1_000_000_000
FIRST_SOURCES_NS = 5_000_000_000  # then twice as late each time
MOST_FUNCTIONS = 64
MOST_SOURCE_BYTES = 256 * 1024  # of one process
MOST_FUNCTION_BYTES = 24 * 1024
# Code of imported modules runs once, while the program starts; it must not take the room of what runs later.
MOST_MODULES = 16
MOST_MODULE_BYTES = 64 * 1024
MOST_SETTINGS = 64  # a program that changes them all the time

_AT = layout.offsets("SAMPLES")
_FUNCTION = struct.Struct("<IIQI")
_FUNCTION_BYTES, _FILE_BYTES = layout.item_bytes("SAMPLED_FUNCTION"), layout.item_bytes("SAMPLED_FILE")
_FUNCTION_NAME, _FILE_NAME = (
    layout.offsets("SAMPLED_FUNCTION")["name"],
    layout.offsets("SAMPLED_FILE")["name"],
)
_LONGEST_FILE_NAME = layout.field_bytes(layout.SAMPLED_FILE[-1])

Function = tuple[str, str, int]  # file, qualified name, first line


class LateFacts:
    """Writes them into one part.

    `more_settings` returns what instrumented libraries are set to; `thread_names` (native id -> name) also
    has threads that have ended; `new_channels` returns the pipes and queues with news since it was asked.
    """

    def __init__(
        self,
        part: Part,
        more_settings: Callable[[], dict[str, Any]],
        thread_names: dict[int, str],
        keep_source: bool,
        new_channels: Callable[[], list[dict[str, Any]]] = list,
    ):
        self._part = part
        self.pid = os.getpid()
        self._more_settings = more_settings
        self._thread_names = thread_names
        self._keep_source = keep_source
        self._new_channels = new_channels
        self._settings: dict[str, Any] = {}
        self._settings_written = 0
        self._settings_due_ns = 0
        self._sources_due_ns = 0
        self._sources_interval_ns = FIRST_SOURCES_NS
        self._written: set[Function] = set()
        self._source_bytes = 0
        self._module_bytes = 0
        self._names: dict[int, str] = {}
        self._started_s = time.time()
        self._at_work = False
        self._origin: dict[str, Any] = {}
        self.at_window(part.get("start_ns"))

    def at_window(self, now_ns: int) -> None:
        """Write what has changed, if it is time to look."""
        if self._at_work:
            return  # called by a signal handler in the middle of it
        if now_ns >= self._settings_due_ns:
            self._settings_due_ns = now_ns + SETTINGS_INTERVAL_NS
            self._safely(self._write_settings, now_ns)
            self._safely(self._write_origin, now_ns)
            self._safely(self._write_channels, now_ns)
        if not self._sources_due_ns:
            self._sources_due_ns = now_ns + self._sources_interval_ns
        elif now_ns >= self._sources_due_ns:
            self._sources_interval_ns *= 2
            self._sources_due_ns = now_ns + self._sources_interval_ns
            self._safely(self._write_sampled, now_ns)

    def origin_changed(self, now_ns: int) -> None:
        """Write at once what this process has become: it may be killed before the next window."""
        self._safely(self._write_origin, now_ns)

    def at_end(self, now_ns: int) -> None:
        """Write what is still missing."""
        self._safely(self._write_settings, now_ns)
        self._safely(self._write_origin, now_ns)
        self._safely(self._write_channels, now_ns)
        self._safely(self._write_sampled, now_ns)

    def _safely(self, write: Callable[[int], None], now_ns: int) -> None:
        self._at_work = True
        try:
            write(now_ns)
        except Exception as error:  # recording must not raise in the user's program
            if is_users(error):
                raise
            self._part.warn(f"some facts about threads or source lines are missing ({error!r})")
            self._settings_due_ns = self._sources_due_ns = 2**63
        finally:
            self._at_work = False

    # -- how the process came to be, and what it is connected to ---------------------------------

    def _write_origin(self, now_ns: int) -> None:
        from hotloop.measure.origin import describe_origin  # not needed before something is recorded

        origin = describe_origin()  # again: a worker of multiprocessing learns what it runs after it starts
        if origin != self._origin:
            self._origin = origin
            self._add("origin", origin)

    def _write_channels(self, now_ns: int) -> None:
        channels = self._new_channels()
        if channels:
            self._add("channels", channels)

    # -- threads in force ------------------------------------------------------------------------

    def _write_settings(self, now_ns: int) -> None:
        values: dict[str, Any] = {name: os.environ.get(name) for name in VARIABLES}
        values |= {"cores_granted": cores_granted()} | self._more_settings()
        if values != self._settings and self._settings_written < MOST_SETTINGS:
            self._settings = values
            self._settings_written += 1
            self._add("thread_settings", {"time_ns": now_ns, "values": values})

    def _add(self, section: str, data: Any) -> None:
        self._part.add_section(section, data=strict_json.dumps(data).encode("utf-8", "surrogatepass"))

    # -- names of threads and source of functions ------------------------------------------------

    def _write_sampled(self, now_ns: int) -> None:
        samples = self._part.samples
        if samples is None:
            return
        living = {thread.native_id or 0: thread.name for thread in threading.enumerate()}
        names = self._thread_names | living
        if not names.items() <= self._names.items():
            self._names |= names
            self._add("sampled_threads", names)
        if not self._keep_source:
            return
        rows = []
        for function in self._worth_keeping(busiest_functions(samples)):
            self._written.add(function)
            found = read_source(*function)
            if found is None:
                continue
            first_line, text = found
            size = len(text.encode("utf-8", "replace"))
            if is_imported(function):
                if self._module_bytes + size > MOST_MODULE_BYTES:
                    continue
                self._module_bytes += size
            elif self._source_bytes + size > MOST_SOURCE_BYTES:
                continue
            else:
                self._source_bytes += size
            file, name, _ = function
            changed = os.stat(file).st_mtime > self._started_s
            rows.append(
                {"file": file, "function": name, "first_line": first_line, "text": text, "changed": changed}
            )
        if rows:
            self._add("sources", rows)

    def _worth_keeping(self, busiest: list[Function]) -> list[Function]:
        """The busiest functions that are not written yet, as far as there is room for them."""
        chosen: list[Function] = []
        for modules, most in ((False, MOST_FUNCTIONS), (True, MOST_MODULES)):
            of_kind = [function for function in busiest if is_imported(function) is modules][:most]
            written = sum(is_imported(function) is modules for function in self._written)
            new = [function for function in of_kind if function not in self._written]
            chosen += new[: max(most - written, 0)]
        return chosen


def is_imported(function: Function) -> bool:
    """Code of a module other than the script."""
    file, name, _ = function
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return name == "<module>" and (script is None or os.path.abspath(script) != os.path.abspath(file))


def busiest_functions(samples: memoryview) -> list[Function]:
    """Functions of the user's code by the time they were on a sampled path, most first."""
    found: list[tuple[int, Function]] = []
    count = struct.unpack_from("<I", samples, _AT["function_count"])[0]
    for number in range(count):
        at = _AT["functions"] + number * _FUNCTION_BYTES
        in_file, first_line, time_us, length = _FUNCTION.unpack_from(samples, at)
        file_at = _AT["files"] + in_file * _FILE_BYTES
        file_length = struct.unpack_from("<I", samples, file_at)[0]
        file = _text(samples, file_at + _FILE_NAME, file_length)
        shortened = file_length >= _LONGEST_FILE_NAME - 3 and not os.path.isabs(file)
        if time_us and not shortened and not is_library(file) and not file.startswith(PACKAGE):
            found.append((time_us, (file, _text(samples, at + _FUNCTION_NAME, length), first_line)))
    return [function for _, function in sorted(found, key=lambda item: (-item[0], item[1]))]


def _text(memory: memoryview, at: int, length: int) -> str:
    return bytes(memory[at : at + length]).decode("utf-8", "replace")


def read_source(file: str, function: str, first_line: int) -> tuple[int, str] | None:
    """First line and text of a function, or of a whole file for its module code; None when there is none."""
    import inspect  # only when lines were sampled; both take a while to load
    import linecache

    lines = linecache.getlines(file)
    if not lines or first_line > len(lines):
        return None
    if function == "<module>":
        first_line, block = 1, lines
    else:
        block = inspect.getblock(lines[max(first_line - 1, 0) :])
    kept: list[str] = []
    size = 0
    for line in block:
        size += len(line.encode("utf-8", "replace"))
        if size > MOST_FUNCTION_BYTES:
            break
        kept.append(line)
    return max(first_line, 1), "".join(kept)
