"""Pauses of the garbage collector."""

from __future__ import annotations

from hotloop._util.units import duration, percent
from hotloop.analysis.advice.recommendation import Change, advise
from hotloop.analysis.advice.run_view import RunView
from hotloop.analysis.findings import Recommendation

LEAST_SHARE = 0.05  # of training
LEAST_PAUSES = 3  # one or two in a short run say nothing of a long one
PAUSE = "gc_pause"  # the region that `hotloop run` records around every collection


def garbage_collection_pauses(run: RunView) -> Recommendation | None:
    """The garbage collector itself takes a noticeable share of training, as measured by its own callbacks."""
    rows = [row for row in run.rows if row.name == PAUSE]
    share = sum(row.own_share for row in rows)
    calls = sum(r.calls for r in rows)
    if share < LEAST_SHARE or calls < LEAST_PAUSES:
        return None
    row = max(rows, key=lambda r: r.own_ns)
    return advise(
        run,
        "garbage_collection_pauses",
        None,
        f"Make the garbage collector run less often (it takes {percent(share)})",
        [
            f"Garbage collection took {percent(share)} of training: {calls:,} collections of "
            f"{duration(row.mean_ns)} each.",
            "Assumption: between 50 % and 95 % of it goes away.",
        ],
        "Add this line where training begins; keep transitions in arrays instead of millions of small "
        "objects, so that there is little to scan. Programs that create much cyclic garbage use more memory.",
        run.gain(rows, (0.5, 0.95), own=True),
        Change(
            "gc.collect(); gc.freeze(); gc.set_threshold(50_000, 20, 100)",
            "minutes",
            "safe",
            "patch",
            patch="gc",
        ),
        claimed=rows,
        own=True,
    )
