"""The log of this process: which thread sent, received and waited when, so that what-ifs can replay the run.

A ring of the last operations in a mapped file, in the format of `hotloop.capture.message_format`. Nothing is
logged in processes without a capture folder.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from struct import Struct
from typing import Any

from hotloop._util.files import host_name, write_atomically
from hotloop._util.interrupts import is_users, suppress_own
from hotloop._util.read_files import json_text
from hotloop.capture.message_format import (
    EMPTY,
    FOLDER,
    HEADER_BYTES,
    MAGIC,
    MOST_CHANNELS,
    RECORD_BYTES,
    RECORDS,
)
from hotloop.measure.core_shared import RECORD_TIMELINE
from hotloop.measure.profiler import default

NO_CHANNEL = -1  # its operations are not logged
SAME_LOOK_NS = 20_000  # between two looks: then nothing else was done
MOST_WITH_CONDITIONS = 64  # no condition is added to more channels than this: every thread has one
_write_record = Struct("<qqIIII").pack_into
_write_total = Struct("<Q").pack_into
_write_end = Struct("<q").pack_into


class MessageLog:
    """Opened at the first message of a process, and again in a forked child."""

    def __init__(self) -> None:
        self.channels: list[dict[str, Any]] = []
        self._by_key: dict[str, int] = {}
        self._close()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._close)

    def _close(self) -> None:
        self._lock = threading.RLock()  # a signal handler may send something while we write
        self._is_open = False
        self._name = ""
        self._ring: mmap.mmap | None = None  # None, though open: there is no folder or no space for it
        self._counts: dict[tuple[int, int], int] = {}  # operations by channel and kind
        self._total = 0
        self._looks: tuple[int, int, int] | None = None  # thread, channel and place of the last one in vain
        self._looked_ns = 0  # when it ended

    def channel(self, key: str, kind: str, **facts: Any) -> int:
        """The number of a channel, which is added if it is new; NO_CHANNEL if there are too many.

        `kind` and `facts` are those of `hotloop.capture.messages.LoggedChannel`.
        """
        with self._lock:
            found = self._by_key.get(key)
            if found is not None:
                return found
            if len(self.channels) >= (MOST_CHANNELS if kind != "condition" else MOST_WITH_CONDITIONS):
                return NO_CHANNEL
            number = self._by_key[key] = len(self.channels)
            self.channels.append({"key": key, "kind": kind, **facts})
            self._save_channels()
            return number

    def add_fact(self, channel: int, name: str, value: Any) -> None:
        """Add a fact about a channel that became known later."""
        if channel >= 0:
            with self._lock:
                self.channels[channel][name] = value
                self._save_channels()

    def write(self, channel: int, kind: int, begin_ns: int, end_ns: int, amount: int = 1) -> None:
        """Log one operation of the calling thread; failures are swallowed, as the program must go on.

        `amount`: by how much it adds to the count, which is one of operations or, for sockets, of bytes.
        """
        if channel < 0:
            return
        try:
            with self._lock:
                if not self._is_open:
                    self._open()
                if self._ring is None:
                    return
                count = self._counts[channel, kind] = self._counts.get((channel, kind), 0) + amount
                place = HEADER_BYTES + self._total % RECORDS * RECORD_BYTES
                thread = threading.get_native_id()
                _write_record(self._ring, place, begin_ns, end_ns, thread, channel, kind, count & 0xFFFFFFFF)
                self._total += 1
                _write_total(self._ring, 8, self._total)
        except Exception as error:
            if is_users(error):
                raise

    def write_look(self, channel: int, kind: int, begin_ns: int, end_ns: int) -> None:
        """Log a look for a message. One that goes on looking in vain has one record for all of it."""
        if channel < 0:
            return
        look = threading.get_native_id(), channel, self._total
        goes_on = kind == EMPTY and look == self._looks and begin_ns - self._looked_ns < SAME_LOOK_NS
        if goes_on and self._ring is not None:
            self._looked_ns = end_ns
            place = HEADER_BYTES + (self._total - 1) % RECORDS * RECORD_BYTES
            with suppress_own(Exception), self._lock:
                if look[2] == self._total:
                    _write_end(self._ring, place + 8, end_ns)
            return
        self.write(channel, kind, begin_ns, end_ns)
        self._looks = (*look[:2], self._total) if kind == EMPTY else None
        self._looked_ns = end_ns

    def _open(self) -> None:
        self._is_open = True
        folder = default.folder
        if folder is None or not default.is_recording:
            return
        with suppress_own(OSError, ValueError):
            place = folder / FOLDER
            place.mkdir(parents=True, exist_ok=True)
            self._name = f"{host_name()}-{os.getpid()}-{time.time_ns()}"
            size = HEADER_BYTES + RECORDS * RECORD_BYTES
            with open(place / f"{self._name}.log", "w+b") as file:
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk fails here, not later
                self._ring = mmap.mmap(file.fileno(), size)
            self._ring[:8] = MAGIC
            self._ring[16:24] = RECORDS.to_bytes(8, "little")
            self._save_channels()
            default.recorder.flags |= RECORD_TIMELINE  # which regions lie between two messages

    def _save_channels(self) -> None:
        folder = default.folder
        if folder is None or not self._name:
            return
        with suppress_own(OSError):
            text = json_text({"pid": os.getpid(), "edges": self.channels}, indent=None)
            write_atomically(folder / FOLDER / f"{self._name}.json", text)


log = MessageLog()
