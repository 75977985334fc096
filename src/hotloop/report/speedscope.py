"""A capture as a speedscope file: one weighted profile for all threads, then one for each thread.

Weights are own times, so the widths of the flame graph are exact; within a profile, regions are in the
order in which they first ran. A thread with a recorded timeline gets a second profile in time order.
"""

from __future__ import annotations

from typing import Any

from hotloop.capture.model import Capture, Node, Thread
from hotloop.report.safe_text import shown

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
UNATTRIBUTED = "(unattributed)"


class _Frames:
    """Numbers the frames; the same name and site is the same frame."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._numbers: dict[tuple[str, str], int] = {}

    def number(self, name: str, site: str = "") -> int:
        key = (name, site)
        if key not in self._numbers:
            self._numbers[key] = len(self.rows)
            row: dict[str, Any] = {"name": shown(name)}
            file, _, line = site.rpartition(":")
            if file:
                row["file"] = shown(file)
            if file and line.isdecimal():
                row["line"] = int(line)
            self.rows.append(row)
        return self._numbers[key]


def speedscope_profile(capture: Capture) -> dict[str, Any]:
    """The speedscope file as plain values."""
    frames = _Frames()
    profiles = [_weighted("all threads", capture.tree, frames)]
    for process in capture.processes:
        for thread in process.threads:
            name = f"{shown(process.label or 'process')} {process.pid} / {shown(thread.name or 'thread')}"
            if len(capture.threads) > 1:
                profiles.append(_weighted(name, thread.root, frames))
            if thread.events:
                profiles.append(_timed(f"{name} (timeline)", thread, frames))
    command = " ".join(shown(str(word)) for word in capture.command)
    return {
        "$schema": SCHEMA,
        "exporter": "hotloop",
        "name": command or "hotloop capture",
        "activeProfileIndex": 0,
        "shared": {"frames": frames.rows},
        "profiles": profiles,
    }


def _weighted(name: str, root: Node, frames: _Frames) -> dict[str, Any]:
    samples: list[list[int]] = []
    weights: list[int] = []
    todo: list[tuple[Node, list[int]]] = [(root, [])]
    while todo:
        node, stack = todo.pop()
        if node is not root:
            stack = [*stack, frames.number(node.name, node.site)]
        if node.own_ns > 0:
            samples.append(stack or [frames.number(UNATTRIBUTED)])
            weights.append(node.own_ns)
        todo += [(child, stack) for child in reversed(node.children)]
    return {
        "type": "sampled",
        "name": name,
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }


def _timed(name: str, thread: Thread, frames: _Frames) -> dict[str, Any]:
    """Open and close events in time order; a call that outlives its caller is cut to fit."""
    sites = _sites(thread.root)
    calls = sorted(
        ((e.start_ns, e.start_ns + e.duration_ns, e.path) for e in thread.events),
        key=lambda call: (
            call[0],
            -call[1],
            len(thread.paths[call[2]]) if call[2] < len(thread.paths) else 0,
        ),
    )
    origin_ns = calls[0][0]
    events: list[dict[str, Any]] = []
    stack: list[tuple[int, int]] = []  # end, frame

    def close_until(now_ns: int) -> None:
        while stack and stack[-1][0] <= now_ns:
            end_ns, frame = stack.pop()
            events.append({"type": "C", "at": end_ns - origin_ns, "frame": frame})

    for start_ns, end_ns, at in calls:
        close_until(start_ns)
        path = thread.paths[at] if at < len(thread.paths) else ()
        frame = frames.number(path[-1] if path else "?", sites.get(path, ""))
        events.append({"type": "O", "at": start_ns - origin_ns, "frame": frame})
        stack.append((min(end_ns, stack[-1][0]) if stack else end_ns, frame))
    last_ns = max(call[1] for call in calls)
    close_until(last_ns)
    return {
        "type": "evented",
        "name": name,
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": last_ns - origin_ns,
        "events": events,
    }


def _sites(root: Node) -> dict[tuple[str, ...], str]:
    found: dict[tuple[str, ...], str] = {}
    todo: list[tuple[Node, tuple[str, ...]]] = [(root, ())]
    while todo:
        node, path = todo.pop()
        found[path] = node.site
        todo += [(child, (*path, child.name)) for child in node.children]
    return found
