"""The verbs that only read captures: `hotloop show`, `hotloop diff` and `hotloop top`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop._util.units import duration
from hotloop.analysis.diff import CaptureDiff, diff
from hotloop.analysis.live import LiveReading, LiveStatus, live_status, take_reading
from hotloop.analysis.phases import training_of
from hotloop.analysis.region_tree import Grouping, region_trees
from hotloop.capture.folder import latest_capture
from hotloop.capture.open_capture import open_capture
from hotloop.report.region_tree import capture_header, region_tree_json, region_tree_text
from hotloop.report.safe_text import shown

LIVE_SPAN_NS = 5_000_000_000  # `top` averages rates and shares over about the last five seconds


@dataclass(frozen=True, slots=True)
class ShownCapture:
    """What `hotloop show` prints: the text, the same as data, and warnings about the capture."""

    text: str
    data: dict[str, Any]
    warnings: tuple[str, ...]


def show_capture(
    path: str | None, by: Grouping, width: int, max_depth: int | None = None, whole_run: bool = False
) -> ShownCapture:
    """Read a capture (None: the latest) and lay out the region trees of its training, or of the whole run."""
    recorded = open_capture(path)
    capture = recorded if whole_run else training_of(recorded)
    trees = region_trees(capture, by)
    blocks = [capture_header(capture, trees)]
    for tree in trees:
        label = [] if by == "all" else [shown(tree.label)]
        blocks.append("\n".join([*label, region_tree_text(tree, width, max_depth)]))
    notes = [f"open now: {shown(name)}" for tree in trees for name in tree.open_now]
    for process in capture.processes:
        if process.died:
            notes.append(
                f"process {process.pid} ({shown(process.label)}) died before closing its recording; "
                "figures are complete up to its last heartbeat"
            )
    if any(thread.uncertain for thread in capture.threads):
        notes.append("a thread was read in the middle of an update; its latest event may be incomplete")
    legend = "share: own time / wall time of threads; >: still open, *: closed out of order"
    legend += "\n(hotloop itself): its estimated cost, which is part of the rows above"
    if capture is not recorded:
        legend += (
            f"\ntraining only, {duration(recorded.wall_ns - capture.wall_ns)} of start-up, warm-up and "
            "shutdown left out (--whole-run shows them)"
        )
    blocks.append("\n".join([legend, *notes]))
    return ShownCapture("\n\n".join(blocks), region_tree_json(capture, trees), capture.all_warnings)


def diff_captures(a: str, b: str, whole_run: bool = False) -> CaptureDiff:
    """Compare the training (or the whole run) of two captures, each a folder or a one-file JSON export."""
    captures = open_capture(a), open_capture(b)
    if not whole_run:
        captures = training_of(captures[0]), training_of(captures[1])
    return diff(*captures, labels=(a, b))


def capture_to_watch(path: str | None) -> str:
    """The named capture or the latest one, resolved once so that a newer capture does not take over."""
    return str(latest_capture()) if path is None else path


def watch_capture(
    path: str,
    interval_s: float = 1.0,
    iterations: int | None = None,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], int] = time.monotonic_ns,
    real_clock: Callable[[], int] = time.time_ns,
) -> Iterator[LiveStatus]:
    """Yield the status every `interval_s` seconds, `iterations` times or until all processes have ended.

    The first status covers the run so far, later ones about the last five seconds.
    """
    readings: deque[LiveReading] = deque()
    number = 0
    while True:
        latest = take_reading(open_capture(path), clock(), real_clock(), readings[-1] if readings else None)
        while len(readings) > 1 and latest.at_ns - readings[1].at_ns >= LIVE_SPAN_NS:
            readings.popleft()
        status = live_status(latest, readings[0] if readings else None)
        yield status
        readings.append(latest)
        number += 1
        if status.all_ended or number == iterations or Path(path).is_file():
            return
        sleep(interval_s)
