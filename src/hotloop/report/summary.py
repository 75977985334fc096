"""The table printed while training goes on: one line for each operation."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop._util.units import count, duration, size
from hotloop.capture.model import Progress
from hotloop.capture.stats import ProfilerStats
from hotloop.report.safe_text import shown

HEADINGS = ("operation", "calls", "total", "mean", "min", "max", "memory peak", "GPU peak")


def summary_table(stats: Sequence[ProfilerStats], progress: Progress) -> str:
    """Operation, calls, total, mean, min, max, memory peak and GPU peak at 80 to 100 columns."""
    rows = [
        (
            shown(s.name, 28),
            count(s.calls),
            duration(s.total_ns),
            duration(s.mean_ns),
            duration(s.min_ns),
            duration(s.max_ns),
            size(s.rss_peak_bytes),
            size(s.device_peak_bytes),
        )
        for s in stats
    ]
    done = f"{count(progress.env_steps)} env steps, {count(progress.updates)} updates"
    return f"hotloop: after {done}\n" + table(HEADINGS, rows)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be; the first one left, the others right."""
    widths = [max(len(r[i]) for r in (headings, *rows)) for i in range(len(headings))]
    lines = []
    for row in (headings, *rows):
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
