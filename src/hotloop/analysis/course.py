"""The run over time: throughput of all threads, and where the driving thread's time went."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.categories import Resolver
from hotloop.analysis.windows import spans_by_category, work_done
from hotloop.capture.model import Capture, Process, Thread


def course(
    capture: Capture, process: Process, thread: Thread, resolver: Resolver
) -> dict[str, tuple[float, ...]]:
    """Series of equal length, one value for each window of `thread`; what was not measured is absent.

    "time_s" (end of the window, since the thread's start), "env_steps_per_s" and "updates_per_s" of
    all threads, "share:<category>" of the thread's time (they add up to 1), "rss_bytes" of its process.
    """
    spans = spans_by_category(thread, resolver)
    if not len(spans):
        return {}
    found: dict[str, tuple[float, ...]] = {"time_s": _floats(spans.end_ns / 1e9)}
    for counter in ("env_steps", "updates"):
        if getattr(capture.progress, counter):
            done = work_done(capture, process, thread, spans.end_ns, counter)
            found[f"{counter}_per_s"] = _floats(np.diff(done, prepend=0.0) / spans.span_ns * 1e9)
    whole = spans.own_ns.sum(axis=1)
    whole[whole == 0] = 1.0
    most_first = np.argsort(-spans.own_ns.sum(axis=0), kind="stable")
    for column in most_first:
        found[f"share:{spans.names[column]}"] = _floats(spans.own_ns[:, column] / whole)
    rss = _kept(thread)
    if rss is not None:
        found["rss_bytes"] = _floats(rss)
    return found


def _kept(thread: Thread) -> NDArray[np.float64] | None:
    """Memory at the windows that have a length; None when it was never sampled."""
    windows = thread.windows
    if not windows.rss_bytes.any():
        return None
    end_ns = windows.time_ns.astype(np.int64) - thread.start_ns
    return windows.rss_bytes[np.diff(end_ns, prepend=0) > 0].astype(np.float64)


def _floats(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(v) for v in values)
