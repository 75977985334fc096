"""Jobs beside training that run too often: logging, evaluation, checkpoints."""

from __future__ import annotations

import math

from hotloop._util.units import duration, percent
from hotloop.analysis.advice.recommendation import Change, advise, times, took
from hotloop.analysis.advice.run_view import RegionRow, RunView
from hotloop.analysis.findings import Recommendation

TOLERABLE = 0.05  # share of the wall time that evaluation may take
RARE = 0.01  # logging every 100th iteration is enough for a curve
# Usual names of the flags that say how often; a flag is only offered if the recorded command has it.
LOG_FLAGS = tuple(f"{what}-{how}" for what in ("log", "logging") for how in ("interval", "every", "freq"))
EVALUATION_FLAGS = tuple(
    f"{what}-{how}"
    for what in ("eval", "evaluate", "evaluation", "test", "val", "validation")
    for how in ("freq", "interval", "every", "frequency", "every-steps")
)
CHECKPOINT_FLAGS = tuple(
    f"{what}-{how}"
    for what in ("save", "checkpoint", "ckpt")
    for how in ("freq", "interval", "every", "frequency", "every-steps")
)


def logging_too_often(run: RunView) -> Recommendation | None:
    """Logging in (nearly) every iteration or update takes a noticeable share."""

    def wanted(row: RegionRow) -> bool:
        return row.category == "logging" and not row.is_gap and _often(run, row) >= 5 * RARE

    rows = [row for row in run.outermost(wanted) if row.share >= 0.02]
    if sum(row.share for row in rows) < 0.05:
        return None
    row = rows[0]
    often = _often(run, row)
    evidence = [
        took(row),
        f"It runs {times(often)} per iteration of the loop or update.",
        f"The gain is for logging every {round(1 / RARE)}th time.",
    ]
    return advise(
        run,
        "logging_too_often",
        row,
        f"Log every {round(1 / RARE)}th time (`{row.name}`)",
        evidence,
        "Accumulate in plain variables and write means at intervals; do not flush after each line.",
        run.gain(rows, 1 - min(RARE / often, 1.0)),
        Change(
            "log every 100th iteration",
            "minutes",
            "safe",
            "flag",
            flags=LOG_FLAGS,
            times=max(often / RARE, 1.0),
        ),
        claimed=rows,
    )


def reports_too_often(run: RunView) -> Recommendation | None:
    """Ranks wait for each other and for Ray Train's controller in `ray.train.report`."""
    rows = [row for row in run.outermost(lambda row: row.name == "train_report") if not row.is_gap]
    share = sum(row.share for row in rows)
    if share < 0.05 or rows[0].calls < 4:
        return None
    return advise(
        run,
        "reports_too_often",
        rows[0],
        "Report to Ray Train less often (`train_report`)",
        [
            took(rows[0]),
            "There, ranks wait for each other and for Ray Train's controller, which asks for news at times.",
            "Assumption: every 10th report is enough, and takes between one and four times as long as now.",
        ],
        "Sum up metrics in plain variables, and call ray.train.report for several epochs at once.",
        run.gain(rows, (0.6, 0.9)),
        Change("report for several epochs at once", "minutes", "safe", "flag", flags=LOG_FLAGS, times=10.0),
        claimed=rows,
        waits=True,
    )


def _often(run: RunView, row: RegionRow) -> float:
    return max(
        run.per_iteration(row), run.per_update(row) if run.is_learning(row) else 0.0
    ) or run.per_update(row)


def evaluation_too_often(run: RunView) -> Recommendation | None:
    """Evaluation takes a large share of a training run."""
    rows = run.outermost(lambda row: row.category == "evaluation" and not row.is_gap)
    rows = rows or _hidden_evaluations(run)
    share = sum(row.share for row in rows)
    if not rows or share < 3 * TOLERABLE or rows[0].calls < 2:
        return None
    row = rows[0]
    evidence = [took(row)]
    if run.env_steps:
        evidence.append(f"It runs every {run.env_steps / max(row.calls, 1):,.0f} env steps.")
    evidence.append(
        f"The gain is for evaluating so rarely that it takes {percent(TOLERABLE)} of the time (between "
        f"{percent(2 * TOLERABLE)} and none)."
    )
    left = TOLERABLE * (1 - share) / (1 - TOLERABLE) / share  # of its present time
    return advise(
        run,
        "evaluation_too_often",
        row,
        f"Evaluate less often (`{row.name}` takes {percent(share)})",
        evidence,
        "Evaluate less often, on fewer episodes, or in a separate process. Training stays the same to the "
        "bit only if evaluation draws no random numbers that training uses.",
        run.gain(rows, (1 - 2 * left, 1.0)),
        Change(
            "a longer evaluation interval",
            "minutes",
            "semantic",
            "flag",
            flags=EVALUATION_FLAGS,
            times=math.ceil(1 / left),
        ),
        claimed=rows,
    )


def _hidden_evaluations(run: RunView) -> list[RegionRow]:
    """Regions that step other envs, so that far more steps are taken than are reported."""
    reported = run.capture.progress.env_steps
    steps = [row for row in run.rows if row.category == "environment" and not run.is_reset(row)]
    steps = [row for row in steps if not any(o.category == "environment" for o in run.above(row))]
    outside = [row for row in steps if len(row.path) == min((len(r.path) for r in steps), default=0)]
    found = []
    for row in run.rows:
        if row.share < TOLERABLE or row.end == row.number + 1:
            continue
        inside = [s for s in steps if row.number < s.number < row.end]
        rest = [s for s in outside if s not in inside]
        if inside and rest and 1 < row.calls < 0.1 * max(s.calls for s in rest) and reported:
            plays = sum(s.calls for s in inside) > 5 * row.calls
            if plays and not any(other in found for other in run.above(row)):
                found.append(row)
    return found


def checkpoint_too_often(run: RunView) -> Recommendation | None:
    """Checkpoints take a noticeable share."""
    rows = run.outermost(lambda row: row.category == "checkpoint" and not row.is_gap)
    share = sum(row.share for row in rows)
    if not rows or share < 0.05 or rows[0].calls < 2:
        return None
    row = rows[0]
    every_ns = run.wall_ns / row.calls
    return advise(
        run,
        "checkpoint_too_often",
        row,
        f"Save less often (`{row.name}` takes {percent(share)})",
        [took(row), f"It runs every {duration(every_ns)}.", "The gain is for saving a tenth as often."],
        "Save every few minutes, and only what you need to resume; the replay buffer least often.",
        run.gain(rows, 0.9),
        Change("a longer checkpoint interval", "minutes", "safe", "flag", flags=CHECKPOINT_FLAGS, times=10.0),
    )
