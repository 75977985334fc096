"""When tasks of Ray were submitted and when they began, and how actors started: a sample, by their ids.

The process that submits a task and the worker that runs it both choose by the id of the task, so they keep
the same ones. Saved among the facts of each process; `analysis/ray_waits.py` puts the two together.
"""

from __future__ import annotations

import time
import zlib
from typing import Any

from hotloop.instrument import process_facts

MOST = 512  # kept by one process, of each kind
SAVE_INTERVAL_NS = 2_000_000_000


class Sample:
    """Times of a few hundred tasks or actors, spread over all of them."""

    def __init__(self) -> None:
        self.kept: dict[str, list[Any]] = {}
        self._every = 1

    def add(self, identity: bytes, *values: Any) -> bool:
        """Keep these values, if the id is one of the chosen; returns whether it is."""
        if zlib.crc32(identity) % self._every:
            return False
        self.kept[identity.hex()] = list(values)
        while len(self.kept) > MOST:
            self._every *= 2
            chosen = {k: v for k, v in self.kept.items() if not zlib.crc32(bytes.fromhex(k)) % self._every}
            self.kept.clear()
            self.kept.update(chosen)
        return True


_submitted, _began = Sample(), Sample()  # task -> name and time; time
_created, _started = Sample(), Sample()  # actor -> class and time; begin and end of its __init__
_facts: dict[str, Any] = {
    "node": "",
    "submitted": _submitted.kept,
    "began": _began.kept,
    "created": _created.kept,
    "started": _started.kept,
}
_added = 0
_saved_ns = 0


def submitted(task: bytes, name: str, since_ns: int) -> None:
    """A task was submitted at that time."""
    if _submitted.add(task, name, since_ns):
        _changed()


def began(task: bytes) -> None:
    """A task begins to run in this process."""
    if _began.add(task, time.monotonic_ns()):
        _changed()


def created(actor: bytes, name: str, since_ns: int) -> None:
    """An actor was asked for at that time."""
    if _created.add(actor, name, since_ns):
        _changed()


def started(actor: bytes, begin_ns: int) -> None:
    """The actor of this process has made itself since then."""
    if _started.add(actor, begin_ns, time.monotonic_ns()):
        _changed()


def set_node(node: str) -> None:
    """The node of this process."""
    _facts["node"] = node


def _changed() -> None:
    """Save at 1, 2, 4, 8 ... times, and every few seconds: Ray ends its workers without a word."""
    global _added, _saved_ns
    _added += 1
    now = time.monotonic_ns()
    if _added & (_added - 1) == 0 or now - _saved_ns > SAVE_INTERVAL_NS:
        _saved_ns = now
        process_facts.note("ray_tasks", _facts)
