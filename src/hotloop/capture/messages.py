"""The message log of a capture: who sent and received what, when; one bounded ring for each process.

`messages/<host>-<pid>-<start>.log` is a header and a ring of `RECORD`s, mapped by the process that writes it;
the `.json` beside it lists the channels (pipes, queues, semaphores ...) that the records refer to by index,
under the name "edges". Only the order and the times are kept, never what was sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop._util.read_files import Reader, files_in
from hotloop._util.visible import visible
from hotloop.capture.message_format import FOLDER, HEADER_BYTES, MAGIC, RECORD

_RECORD = np.dtype(list(RECORD))
Records = NDArray[np.void]
_READER = Reader(8 << 20, follow=False)


@dataclass(frozen=True, slots=True)
class LoggedChannel:
    """One pipe, queue, semaphore, condition or group of ranks."""

    key: str  # the same in every process that uses it
    # "pipe", "queue", "simple_queue", "thread_queue", "socket", "semaphore", "lock", "barrier",
    # "condition", "event", "collective"
    kind: str
    capacity: int | None = None  # None: no limit
    tokens: int = 0  # messages it held when it was made: the initial value of a semaphore
    peer: str | None = None  # of a duplex pipe or a socket: the key under which the other end receives


@dataclass(frozen=True, slots=True)
class MessageLog:
    """What one process logged, oldest first."""

    pid: int
    channels: tuple[LoggedChannel, ...]
    records: Records
    total: int  # records written; the ring holds the last ones
    host: str = ""  # that wrote it; "": not known


def read_messages(folder: Path) -> tuple[tuple[MessageLog, ...], tuple[str, ...]]:
    """The message logs of a capture folder, and a sentence for each that cannot be read."""
    found, warnings = [], []
    for file in files_in(folder / FOLDER, ".log"):
        try:
            log = _read(file)
        except (HotloopError, OSError, ValueError, KeyError, TypeError, OverflowError):
            log = None
        if log is not None:
            found.append(log)
        else:
            warnings.append(visible(f"messages/{file.name} cannot be read: what-ifs lack its messages"))
    return tuple(found), tuple(warnings)


def _read(file: Path) -> MessageLog | None:
    facts: Any = _READER.read_object(file.with_suffix(".json"))
    data = _READER.read_bytes(file)
    if data[:8] != MAGIC or len(data) < HEADER_BYTES:
        return None
    total, capacity = (int(n) for n in np.frombuffer(data, "<u8", 2, 8))
    held = min((len(data) - HEADER_BYTES) // _RECORD.itemsize, capacity)
    ring = np.frombuffer(data, _RECORD, held, HEADER_BYTES)
    if total > capacity > 0 and held == capacity:
        at = total % capacity
        ring = np.concatenate([ring[at:], ring[:at]])
    else:
        ring = ring[: min(total, held)]
    channels = tuple(
        LoggedChannel(
            str(e["key"]),
            str(e["kind"]),
            None if e.get("capacity") is None else int(e["capacity"]),
            int(e.get("tokens", 0)),
            None if e.get("peer") is None else str(e["peer"]),
        )
        for e in facts["edges"]
    )
    good = (ring["channel"] < len(channels)) & (ring["end_ns"] >= ring["begin_ns"]) & (ring["begin_ns"] > 0)
    ring = ring[good]
    records = ring[np.argsort(ring["begin_ns"], kind="stable")]
    return MessageLog(int(facts["pid"]), channels, records, total, file.stem.rsplit("-", 2)[0])
