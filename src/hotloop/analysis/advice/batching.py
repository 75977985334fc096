"""Work done one item at a time that could be done for all envs, or for a whole batch, at once."""

from __future__ import annotations

from collections.abc import Callable

from hotloop.analysis.advice.recommendation import Change, about, advise, rate, times, took
from hotloop.analysis.advice.run_view import CHOOSING, STORING, TRANSFERRING, RegionRow, RunView, near
from hotloop.analysis.findings import Recommendation

LEAST_SHARE = 0.05  # of the wall time; less is not worth advice
LEAST_ITEMS = 4  # calls where one would be enough
SMALL_NS = 5e6  # longer calls do real work; the loop around them is not the problem
PLAIN = frozenset({"replay", "data", "other"})


def replay_item_by_item(run: RunView) -> Recommendation | None:
    """Experience is stored once per env, although all envs step together."""
    row = _once_for_each_env(run, storing=True)
    if row is None:
        return None
    each = run.per_iteration(row)
    evidence = [
        took(row),
        f"It runs {times(each)} per iteration of the loop, which steps {rate(run.envs)} envs at once.",
        f"Assumption: one call for all envs saves between 60 % and {about(1 - 1 / each)} of it.",
    ]
    return advise(
        run,
        "replay_item_by_item",
        row,
        f"Store the transitions of all envs in one call (`{row.name}`)",
        evidence,
        "Preallocate the buffer as arrays and write the rows of all envs with one slice assignment.",
        run.gain([row], (0.6, 1 - 1 / each)),
        Change(
            "replace the loop over envs by one write of arrays with a leading env axis",
            effort="hours",
            safety="safe",
        ),
    )


def per_item_calls(run: RunView) -> Recommendation | None:
    """Some other work is done once per env, although all envs step together."""
    row = _once_for_each_env(run, storing=False)
    if row is None:
        return None
    each = run.per_iteration(row)
    evidence = [
        took(row),
        f"It runs {times(each)} per iteration of the loop, which steps {rate(run.envs)} envs at once.",
        f"Assumption: one call for all envs saves between 50 % and {about(1 - 1 / each)} of it.",
    ]
    return advise(
        run,
        "per_item_calls",
        row,
        f"Do `{row.name}` for all envs at once",
        evidence,
        "Work on arrays with a leading env axis instead of calling it in a Python loop.",
        run.gain([row], (0.5, 1 - 1 / each)),
        Change("replace the loop over envs by one call on arrays", effort="hours", safety="rounding"),
    )


def batch_item_by_item(run: RunView) -> Recommendation | None:
    """The learner's batch is assembled item by item."""

    def wanted(row: RegionRow) -> bool:
        each = run.per_update(row)
        if row.category not in PLAIN or row.is_gap or each < 2 * LEAST_ITEMS or row.mean_ns > SMALL_NS:
            return False
        # A rollout also makes many calls per update: only calls inside a region that runs once per update
        # belong to the learner's batch. A region with others inside is no single item.
        inside = any(near(other.calls, run.updates) for other in run.above(row))
        return inside and row.end == row.number + 1

    row = _largest(run, wanted)
    if row is None:
        return None
    each = run.per_update(row)
    evidence = [
        took(row),
        f"It runs {times(each)} in each of {run.updates:,} updates.",
        "Assumption: gathering the whole batch with one index saves between 60 % and 98 % of it.",
    ]
    return advise(
        run,
        "batch_item_by_item",
        row,
        f"Gather the learner's batch with one index (`{row.name}`)",
        evidence,
        "Draw the same indices as now, then index preallocated arrays with all of them at once.",
        run.gain([row], (0.6, 0.98)),
        Change("replace the loop over samples by indexing arrays once", effort="hours", safety="safe"),
    )


def _once_for_each_env(run: RunView, *, storing: bool) -> RegionRow | None:
    if run.envs < LEAST_ITEMS:
        return None

    def wanted(row: RegionRow) -> bool:
        each = run.per_iteration(row)
        stores = row.category == "replay" or row.name_has(STORING)
        return (
            row.category in PLAIN
            and not row.is_gap
            and stores == storing
            and not row.name_has(TRANSFERRING)
            and not row.name_has(CHOOSING)  # policy calls have their own advice
            and row.mean_ns <= SMALL_NS
            and each >= LEAST_ITEMS
            and (near(each, run.envs, 0.35) or each > run.envs)
            and not run.is_learning(row)  # several updates per iteration are no work for each env
        )

    return _largest(run, wanted)


def _largest(run: RunView, wanted: Callable[[RegionRow], bool]) -> RegionRow | None:
    found = [row for row in run.outermost(wanted) if row.share >= LEAST_SHARE]
    return found[0] if found else None
