"""Advice about other threads of the user that keep the training thread from running."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hotloop._util.units import percent
from hotloop.analysis.advice.recommendation import Change, advise
from hotloop.analysis.advice.run_view import RunView
from hotloop.analysis.findings import Recommendation, short_site

LEAST_HELD_UP = 0.10  # share of training


def busy_threads(run: RunView) -> list[Recommendation]:
    """Another thread of the user computes in Python while the training thread wants to."""
    lines = run.unbiased_lines
    if lines is None:
        return []
    found = lines.busy_threads()
    if not found:
        return []
    share = {site: float(lines.weight_ns[mask].sum()) / lines.total_ns for site, mask in found.items()}
    together = np.logical_or.reduce(list(found.values()))
    held_up = float(lines.weight_ns[together].sum()) / lines.total_ns
    if held_up < LEAST_HELD_UP:
        return []
    site = max(share, key=lambda one: share[one])
    made = advise(
        run,
        "busy_threads",
        None,
        f"Take the work of another thread out of this process ({short_site(site)})",
        [
            f"The training thread was ready to run, but asleep, {percent(held_up)} of training, while "
            f"another thread ran your code, most often {short_site(site)}.",
            "Python runs one thread at a time: the one that computes keeps the other from running.",
            "Assumption: all of that time is saved, and at least half of it.",
        ],
        "If that thread only waits for something, let it block (Event.wait, Queue.get) instead of looking "
        "again and again. If it computes, move it to a process, or into calls that release the GIL.",
        lines.gain((), (0.0, 0.0, 0.0), together.astype(np.float64)),
        Change("let the thread block, or move it to a process", "hours", "safe"),
    )
    return [replace(made, site=site)]
