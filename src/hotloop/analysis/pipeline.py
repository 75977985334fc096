"""Figures of a run in which collectors feed a learner, and the comparison of two variants.

Reads the region `training_epoch`: everything the learner does in an epoch, without start-up and the first
epoch. Steps and waits of the collectors come from their own threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hotloop.analysis.categories import Resolver
from hotloop.analysis.findings import Estimate
from hotloop.analysis.tree import flatten
from hotloop.analysis.verdict import judge
from hotloop.capture.model import Capture, Node
from hotloop.capture.stats import by_name

EPOCH, LOCK, BATCH = "training_epoch", "lock_wait", "backward"
LEARNING = frozenset({"model", "loss", "backward", "optimizer", "transfer"})
SAMPLING = "replay_sample"
MOST_DROPPED, LEAST_BUSY = 0.001, 0.8  # health: drops near zero, learner busy over 80 %


@dataclass(frozen=True, slots=True)
class PipelineFigures:
    """Figures of one run, over its measured epochs."""

    epochs: int
    epoch_s: float
    """Mean wall time of an epoch."""
    env_steps_per_s: float
    learned_per_s: float
    """Transitions learned from, each counted as often as it was sampled."""
    learner_busy_fraction: float
    """Fraction of the epochs in which the learner sampled or learned."""
    learner_wait_fraction: float
    """Fraction of the epochs in which the learner waited for experience or a lock."""
    lock_wait_s: float
    """Time per 1000 env steps that all processes waited for a lock, over the whole run."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The target of a figure."""

    change: float | None = None  # B / A - 1, at least (above 0) or at most (below 0)
    at_least: float | None = None  # B itself


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """One figure of both variants."""

    name: str
    unit: str
    a: float | None  # medians
    b: float | None
    change: Estimate | None  # B / A - 1 with its interval; None: too few pairs
    goal: Goal
    reached: bool | None  # None: the interval contains the goal, or there is none
    raw_change: float | None = None  # median of the pairs' own B / A - 1, also with too few for an interval


def pipeline_figures(capture: Capture, epoch_steps: int, batch_size: int) -> PipelineFigures | None:
    """The figures of a run with `epoch_steps` env steps per epoch; None if no epoch was measured."""
    if not capture.progress.env_steps:
        return None
    whole = Node(EPOCH)  # of the learner, which does not drive training if it made no update
    for thread in capture.threads:
        for node in thread.root.children:
            if node.name == EPOCH:
                whole.merge(node)
    flat = flatten(whole, Resolver(), capture.region_cost_ns)
    seconds = flat.wall_ns / 1e9
    if not whole.calls or not seconds:
        return None
    busy_ns = waiting_ns = 0
    for node, kind, own_ns in zip(flat.nodes, flat.categories, flat.own_ns, strict=True):
        busy_ns += own_ns if kind in LEARNING or node.name == SAMPLING else 0
        waiting_ns += own_ns if kind == "wait" else 0
    inside, everywhere = by_name(whole), by_name(capture.tree)
    batches = inside[BATCH].calls if BATCH in inside else 0
    lock_ns = everywhere[LOCK].own_ns if LOCK in everywhere else 0
    return PipelineFigures(
        epochs=whole.calls,
        epoch_s=seconds / whole.calls,
        env_steps_per_s=whole.calls * epoch_steps / seconds,
        learned_per_s=batches * batch_size / seconds,
        learner_busy_fraction=busy_ns / flat.wall_ns,
        learner_wait_fraction=waiting_ns / flat.wall_ns,
        lock_wait_s=lock_ns / 1e9 / capture.progress.env_steps * 1000,
    )


Pair = tuple[PipelineFigures, PipelineFigures]
Of = Callable[[PipelineFigures], float]
_ROWS: tuple[tuple[str, str, Of, bool, Goal], ...] = (
    ("experience rate", "env steps/s", lambda f: f.env_steps_per_s, True, Goal(change=0.8)),
    ("learner throughput", "batches of 512/s", lambda f: f.learned_per_s / 512, True, Goal(change=1.5)),
    ("learner busy", "fraction", lambda f: f.learner_busy_fraction, True, Goal(at_least=LEAST_BUSY)),
    ("lock wait", "ms/1000 steps", lambda f: 1000 * f.lock_wait_s, False, Goal(change=-0.9)),
    ("epoch time", "s", lambda f: f.epoch_s, False, Goal(change=-0.6)),
)


def compare_pipelines(pairs: Sequence[Pair], level: float = 0.05) -> tuple[PipelineRow, ...]:
    """A against B, row by row; the runs of a pair were made one after the other."""
    rows = []
    for name, unit, of, more_is_better, goal in _ROWS:
        values = [(of(a), of(b)) for a, b in pairs]
        change = _change(values, more_is_better, level)
        middle = [float(np.median(side)) if values else None for side in zip(*values, strict=True)]
        a, b = middle if values else (None, None)
        ratios = [after / before - 1 for before, after in values if before > 0]
        raw = float(np.median(ratios)) if ratios else None
        rows.append(PipelineRow(name, unit, a, b, change, goal, _reached(goal, change, values), raw))
    return tuple(rows)


def _change(values: Sequence[tuple[float, float]], is_rate: bool, level: float) -> Estimate | None:
    """B / A - 1 with its interval, from the ratios of the pairs."""
    if not values or any(a <= 0 for a, _ in values):
        return None
    if all(b <= 0 for _, b in values):
        return Estimate(-1.0, -1.0, -1.0)
    if any(b <= 0 for _, b in values):
        return None
    times = [(1 / a, 1 / b) if is_rate else (a, b) for a, b in values]
    verdict = judge(times, level=level)
    found = verdict.speed_up if is_rate else verdict.change
    if found is None:
        return None
    less = 1.0 if is_rate else 0.0
    return Estimate(found.value - less, found.low - less, found.high - less)


def _reached(goal: Goal, change: Estimate | None, values: Sequence[tuple[float, float]]) -> bool | None:
    if goal.at_least is not None:
        return bool(np.median([b for _, b in values]) >= goal.at_least) if values else None
    if change is None or goal.change is None:
        return None
    if goal.change < 0:
        return True if change.high <= goal.change else False if change.low > goal.change else None
    return True if change.low >= goal.change else False if change.high < goal.change else None
