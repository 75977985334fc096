"""Pipes and queues of a process: who used which one, how often and for how long.

While recording, each pipe and queue has its own region inside `ipc_wait`, `ipc_send` and similar ones, so
that its figures come with windows. Readers take these regions out of the tree again (their time belongs to
the region around them) and keep what they say as `ChannelUse`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from hotloop.capture import layout

if TYPE_CHECKING:
    from hotloop.capture.model import Node, Windows

Counts = NDArray[np.uint64]
SENDING = ("ipc_send", "queue_put")  # regions around the sending end


@dataclass(frozen=True, slots=True)
class Channel:
    """One end of a pipe or queue, as its process knows it."""

    name: str  # of its region, such as "pipe 3"
    kind: Literal["pipe", "queue", "thread_queue", "socket", "ring"]
    here: str  # identifies this end on the host; both ends of a queue are the same
    there: str = ""  # identifies the other end; "" if only the other side knows
    capacity: int | None = None  # None: unbounded, or no queue
    depth_sum: int = 0  # messages in the queue, whenever that was looked at
    depth_count: int = 0
    depth_max: int = 0


@dataclass(frozen=True, slots=True)
class ChannelUse:
    """What one thread did with a channel, cumulative over time like `Windows`; the last entry is the end."""

    name: str
    way: Literal["send", "receive"]
    time_ns: Counts
    calls: Counts
    total_ns: Counts
    message_bytes: float | None  # mean size of a message, from those that were measured

    def between(self, begin_ns: int, end_ns: int) -> tuple[float, float]:
        """Calls, and their time in ns, between two moments."""
        at = np.array([begin_ns, end_ns], dtype=np.float64)
        times = self.time_ns.astype(np.float64)
        found = []
        for values in (self.calls, self.total_ns):
            early, late = np.interp(at, times, values.astype(np.float64))
            found.append(max(float(late - early), 0.0))
        return found[0], found[1]


def fold_channels(
    nodes: list[Node], parents: list[int], windows: Windows, start_ns: int, end_ns: int
) -> tuple[list[tuple[str, ...]], NDArray[np.int64], Windows, tuple[ChannelUse, ...]]:
    """Take the regions of channels out of a thread's tree, which is changed in place.

    Returns the path of every node, the node that stands for each one from now on, the windows without
    channels, and what they say.
    """
    stands_for = np.arange(len(nodes))
    paths: list[tuple[str, ...]] = []
    uses: dict[tuple[str, str], list[int]] = {}
    for number, (node, parent) in enumerate(zip(nodes, parents, strict=True)):
        if not number:
            paths.append(())
        elif node.category != layout.CHANNEL_CATEGORY:
            paths.append((*paths[parent], node.name))
        else:
            around = nodes[stands_for[parent]]
            stands_for[number] = stands_for[parent]
            paths.append(paths[parent])
            uses.setdefault((node.name, "send" if around.name in SENDING else "receive"), []).append(number)
            around.own_ns += node.own_ns
            around.children = [child for child in around.children if child is not node] + node.children
    if not uses:
        return paths, stands_for, windows, ()
    calls, total_ns, own_ns = (
        values.astype(np.uint64) for values in (windows.calls, windows.total_ns, windows.own_ns)
    )
    times = np.array([start_ns, *windows.time_ns.tolist(), end_ns], dtype=np.uint64)
    found = []
    for (name, way), numbers in uses.items():
        last = [sum(getattr(nodes[n], field) for n in numbers) for field in ("calls", "total_ns")]
        columns = [
            np.array([0, *values[:, numbers].sum(axis=1).tolist(), final], dtype=np.uint64)
            for values, final in zip((calls, total_ns), last, strict=True)
        ]
        measured = sum(nodes[n].flops for n in numbers)
        size = sum(nodes[n].bytes_moved for n in numbers) / measured if measured else None
        found.append(
            ChannelUse(name, "send" if way == "send" else "receive", times, columns[0], columns[1], size)
        )
    for numbers in uses.values():
        for number in numbers:
            own_ns[:, stands_for[number]] += own_ns[:, number]
            for values in (calls, total_ns, own_ns):
                values[:, number] = 0
    return paths, stands_for, replace(windows, calls=calls, total_ns=total_ns, own_ns=own_ns), tuple(found)
