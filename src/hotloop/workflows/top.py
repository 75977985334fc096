"""`hotloop top`: look at a capture again and again while its job runs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from hotloop.analysis.live import Live, Reading, live, read
from hotloop.capture.folder import latest_capture
from hotloop.capture.open_capture import open_capture

SPAN_NS = 5_000_000_000  # rates and shares are taken over about the last five seconds


def capture_to_watch(path: str | None) -> str:
    """The capture named, or the latest one; named once, so that a newer one does not take over."""
    return str(latest_capture()) if path is None else path


def watch(
    path: str,
    interval_s: float = 1.0,
    looks: int | None = None,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], int] = time.monotonic_ns,
    real_clock: Callable[[], int] = time.time_ns,
) -> Iterator[Live]:
    """Look every `interval_s` seconds, `looks` times or until all processes of the capture have ended.

    The first look covers the run so far, the others about the last five seconds.
    """
    readings: deque[Reading] = deque()
    number = 0
    while True:
        latest = read(open_capture(path), clock(), real_clock(), readings[-1] if readings else None)
        while len(readings) > 1 and latest.at_ns - readings[1].at_ns >= SPAN_NS:
            readings.popleft()
        found = live(latest, readings[0] if readings else None)
        yield found
        readings.append(latest)
        number += 1
        if found.all_ended or number == looks or Path(path).is_file():
            return
        sleep(interval_s)
