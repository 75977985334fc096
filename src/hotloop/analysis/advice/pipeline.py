"""The health of a pipeline: drops near zero, a busy learner, production above consumption.

Low lock wait, the fourth rule, is `workers.lock_wait`, which holds for any threads.
"""

from __future__ import annotations

from hotloop._util.units import percent, size
from hotloop.analysis.advice.recommendation import Change, advise
from hotloop.analysis.advice.run_view import LEARNER, RegionRow, RunView, Worker
from hotloop.analysis.advice.workers import starved_learner
from hotloop.analysis.findings import Recommendation
from hotloop.analysis.pipeline import LEAST_BUSY, MOST_DROPPED

DROPPED, PUSHED, SAMPLED = "rows_dropped", "replay_push", "replay_sample"
LEAST_WAIT = 0.1  # share of its time from which the learner's waiting counts
COLLECTORS_FREE = 0.02  # share of their time: collectors that wait so little are at their limit


def experience_dropped(run: RunView) -> Recommendation | None:
    """Experience is thrown away because the queue is full."""
    lost = sum(row.node.bytes_moved for row in run.rows if row.name == DROPPED)
    kept = sum(row.node.bytes_moved for row in run.rows if row.name == PUSHED)
    if lost <= MOST_DROPPED * (lost + kept):
        return None
    share = lost / (lost + kept)
    row = next(row for row in run.rows if row.name == DROPPED)
    return advise(
        run,
        "experience_dropped",
        row,
        "Experience is thrown away: hold collectors up instead, or play less",
        [
            f"{size(lost)} of transitions found no room, {percent(share)} of what was collected; the work "
            "of making them was for nothing.",
        ],
        "Let a full queue hold the collector up (the default; leave --drop out). If the learner cannot keep "
        "up, use fewer collectors, or learn less for each transition (--learn-per-step).",
        None,
        Change("back-pressure in place of drops", effort="minutes", safety="semantic", provable_by="flag"),
        tier="high" if share > 0.1 else "medium",
    )


def production_below_consumption(run: RunView) -> Recommendation | None:
    """The learner waits for experience while collectors never wait for it."""
    collectors, waits = _collectors(run), _waits(run)
    waiting_ns = sum(row.own_ns for row in waits)
    if not collectors or not waits or waiting_ns < LEAST_WAIT * _span_ns(run):
        return None
    held_up = sum(w.waiting_ns for w in collectors) / sum(w.thread.wall_ns for w in collectors)
    if held_up > COLLECTORS_FREE or starved_learner(run) is not None:  # that rule says the same, with a gain
        return None
    return advise(
        run,
        "production_below_consumption",
        waits[0],
        "Less experience is made than the learner could take",
        [
            f"The learner waited for experience {percent(waiting_ns / _span_ns(run))} of the time; "
            f"{len(collectors)} collectors waited for room {percent(held_up)} of theirs.",
        ],
        "More games in each collector (--envs) cost least; then more collectors while cores are free; then "
        "cheaper steps and a smaller network. Learning more from each transition (--learn-per-step) keeps "
        "the learner busy, but is other work.",
        None,
        Change("more games in each collector", effort="minutes", safety="semantic", provable_by="flag"),
        tier="medium",
    )


def learner_under_used(run: RunView) -> Recommendation | None:
    """The learner is busy for less than 80 %, and not because it waits for experience."""
    if not _collectors(run) or not run.updates:
        return None
    span_ns = _span_ns(run)
    busy_ns = sum(row.own_ns for row in _epoch_rows(run) if row.category in LEARNER or row.name == SAMPLED)
    busy_ns += sum(row.own_ns for row in _epoch_rows(run) if row.category == "transfer")
    waiting_ns = sum(row.own_ns for row in _waits(run))
    elsewhere_ns = span_ns - busy_ns - waiting_ns
    if busy_ns >= LEAST_BUSY * span_ns or elsewhere_ns < (1 - LEAST_BUSY) / 2 * span_ns:
        return None
    other = [row for row in _epoch_rows(run) if row.category not in {*LEARNER, "wait", "transfer"}]
    other = sorted((row for row in other if row.name != SAMPLED), key=lambda row: -row.own_ns)
    names = ", ".join(f"`{row.name}` {percent(row.own_ns / span_ns)}" for row in other[:3])
    return advise(
        run,
        "learner_under_used",
        other[0] if other else None,
        "The learner does other things than learning",
        [
            f"It learnt {percent(busy_ns / span_ns)} of the time (80 % is healthy) and waited "
            f"{percent(waiting_ns / span_ns)}; the rest went to {names or 'no named region'}.",
        ],
        "Take experience in larger batches (--experience-batch-size), save and log less often, store frames "
        "once and copy them straight into the replay.",
        None,
        Change("larger batches of experience", effort="minutes", safety="safe", provable_by="flag"),
        tier="medium",
    )


def _collectors(run: RunView) -> list[Worker]:
    """Processes beside the learner's that play."""
    return [w for w in run.workers if w.process is not run.process and w.work_ns("environment") > 0]


def _epoch_rows(run: RunView) -> list[RegionRow]:
    """What the learner does inside its measured epochs; everything where there are none."""
    inside = [row for row in run.rows if "training_epoch" in row.path]
    return inside or list(run.rows)


def _span_ns(run: RunView) -> int:
    epochs = [row for row in run.rows if row.name == "training_epoch"]
    return sum(row.total_ns for row in epochs) or run.wall_ns


def _waits(run: RunView) -> list[RegionRow]:
    return sorted((row for row in _epoch_rows(run) if row.category == "wait"), key=lambda row: -row.own_ns)
