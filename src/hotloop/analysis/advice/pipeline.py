"""The health of a pipeline of collectors and a learner: few drops, a busy learner, enough experience.

Lock waits are covered by `workers.lock_wait`, which applies to any threads.
"""

from __future__ import annotations

import numpy as np

from hotloop._util.units import percent, size
from hotloop.analysis.advice.commands import is_hotloop
from hotloop.analysis.advice.recommendation import Change, advise
from hotloop.analysis.advice.run_view import LEARNER, RegionRow, RunView, Worker
from hotloop.analysis.advice.workers import starved_learner
from hotloop.analysis.findings import Recommendation
from hotloop.analysis.line_samples import line_samples
from hotloop.analysis.pipeline import LEAST_BUSY, MOST_DROPPED
from hotloop.capture.samples import SLEEPING

DROPPED, PUSHED, SAMPLED = "rows_dropped", "replay_push", "replay_sample"
LEARNING = (SAMPLED, "learner_update")  # besides networks: batches, and what RLlib does around its updates
LEAST_WAIT = 0.1  # smaller shares of waiting of the learner do not count
COLLECTORS_FREE = 0.02  # collectors that wait for a smaller share of their time are at their limit


def experience_dropped(run: RunView) -> Recommendation | None:
    """Transitions are dropped because the queue is full."""
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
        "Transitions are dropped: block the collectors instead, or collect less",
        [
            f"{size(lost)} of transitions were dropped, {percent(share)} of what was collected; the work of "
            "collecting them was wasted.",
        ],
        f"Let a full queue block the collector{_flag(run, 'the default without --drop-when-full')}. If the "
        "learner cannot keep up, use fewer collectors or fewer updates per env step"
        f"{_flag(run, '--replay-ratio')}.",
        None,
        Change("back-pressure instead of drops", effort="minutes", safety="semantic", provable_by="flag"),
        tier="high" if share > 0.1 else "medium",
    )


def production_below_consumption(run: RunView) -> Recommendation | None:
    """The learner waits for experience while the collectors never wait for the learner."""
    collectors, waits = _collectors(run), _waits(run)
    waiting_ns = sum(row.own_ns for row in waits)
    if not collectors or not waits or waiting_ns < LEAST_WAIT * _span_ns(run):
        return None
    held_up = sum(w.waiting_ns for w in collectors) / sum(w.thread.wall_ns for w in collectors)
    if held_up > COLLECTORS_FREE or starved_learner(run) is not None:  # the same, with a gain
        return None
    return advise(
        run,
        "production_below_consumption",
        waits[0],
        "Collectors produce less experience than the learner could use",
        [
            f"The learner waited for experience {percent(waiting_ns / _span_ns(run))} of the time; "
            f"{len(collectors)} collectors waited for a free slot {percent(held_up)} of theirs.",
        ],
        f"More envs per collector{_flag(run, '--envs')} cost least; then more collectors while cores are "
        "free; then cheaper env steps and a smaller network.",
        None,
        Change("more envs per collector", effort="minutes", safety="semantic", provable_by="flag"),
        tier="medium",
    )


def learner_under_used(run: RunView) -> Recommendation | None:
    """The learner learns for less than 80 % of the time, and not because it waits for experience."""
    if not _collectors(run) or not run.updates:
        return None
    span_ns = _span_ns(run)
    busy_ns = sum(row.own_ns for row in _epoch_rows(run) if row.category in LEARNER or row.name in LEARNING)
    busy_ns += sum(row.own_ns for row in _epoch_rows(run) if row.category == "transfer")
    waiting_ns = sum(row.own_ns for row in _waits(run))
    elsewhere_ns = span_ns - busy_ns - waiting_ns
    if busy_ns >= LEAST_BUSY * span_ns or elsewhere_ns < (1 - LEAST_BUSY) / 2 * span_ns:
        return None
    other = [row for row in _epoch_rows(run) if row.category not in {*LEARNER, "wait", "transfer", "hotloop"}]
    other = sorted((r for r in other if r.name not in LEARNING and not r.is_gap), key=lambda row: -row.own_ns)
    if sum(row.own_ns for row in other) < elsewhere_ns / 2:
        return None  # time in no region may be a wait, as for the workers of a library
    if _asleep_elsewhere(run) * span_ns > elsewhere_ns / 2:
        return None  # it sleeps between two looks at how far the collectors are: a wait that nobody recorded
    names = ", ".join(f"`{row.name}` {percent(row.own_ns / span_ns)}" for row in other[:3])
    return advise(
        run,
        "learner_under_used",
        other[0] if other else None,
        "The learner spends its time on other things than learning",
        [
            f"It learned for {percent(busy_ns / span_ns)} of the time (80 % is healthy) and waited for "
            f"{percent(waiting_ns / span_ns)}; the rest went to {names}.",
        ],
        f"Take experience in larger batches{_flag(run, '--experience-batch-size')}, save and log less often, "
        "store frames once and copy them straight into the replay buffer.",
        None,
        Change("larger batches of experience", effort="minutes", safety="semantic", provable_by="flag"),
        tier="medium",
        claimed=other[:1],
    )


def _asleep_elsewhere(run: RunView) -> float:
    """Part of its time in which the learner slept in no recorded wait."""
    lines = line_samples(run.process, run.driver, run.capture)
    if lines is None or not lines.total_ns:
        return 0.0
    waits = {row.path for row in run.rows if row.category == "wait"}
    recorded = [n for n, path in enumerate(run.driver.paths) if path in waits]
    asleep = (lines.state == SLEEPING) & ~np.isin(lines.node, recorded)
    return float(lines.weight_ns[asleep].sum()) / lines.total_ns


def _collectors(run: RunView) -> list[Worker]:
    """Threads of other processes that step envs and choose actions, for a learner that does neither.

    The processes of a vector env step envs as well, but only when the driving thread asks them to.
    """
    if run.driver.progress.env_steps or any(row.category == "environment" for row in run.rows):
        return []
    others = [w for w in run.workers if w.process is not run.process]
    return [w for w in others if w.work_ns("environment") > 0 and w.work_ns("policy") > 0]


def _flag(run: RunView, flag: str) -> str:
    """The flag of hotloop's own pipelines, for a run of one of them."""
    return f" ({flag})" if is_hotloop(run.capture.command) else ""


def _epoch_rows(run: RunView) -> list[RegionRow]:
    """The learner's regions inside its measured epochs; all regions if there are none."""
    inside = [row for row in run.rows if "training_epoch" in row.path]
    return inside or list(run.rows)


def _span_ns(run: RunView) -> int:
    epochs = [row for row in run.rows if row.name == "training_epoch"]
    return sum(row.total_ns for row in epochs) or run.wall_ns


def _waits(run: RunView) -> list[RegionRow]:
    return sorted((row for row in _epoch_rows(run) if row.category == "wait"), key=lambda row: -row.own_ns)
