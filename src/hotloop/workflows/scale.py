"""`hotloop scale`: one command at several sizes, in random order, and the power law its time follows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hotloop._util.errors import HotloopError
from hotloop.analysis.scaling import Scaling, scaling_of
from hotloop.capture.plan import Plan, Variant
from hotloop.workflows.experiments import (
    ExperimentResult,
    Progress,
    create_series,
    resume_series,
    run_experiment,
    runners_for,
)


@dataclass(frozen=True)
class ScaleResult:
    """The runs and the fitted law; None when fewer than two sizes have a successful run."""

    result: ExperimentResult
    scaling: Scaling | None


def scale_plan(
    command: tuple[str, ...],
    sizes: tuple[int, ...],
    repeats: int,
    budget_s: float | None,
    resources: tuple[tuple[str, float], ...] = (),
) -> Plan:
    """A plan that runs every size `repeats` times."""
    if not command:
        raise HotloopError(
            "scale needs a command; write it after --, as in: hotloop scale -- python x.py {n}"
        )
    if len(set(sizes)) < 2 or min(sizes) < 1:
        raise HotloopError(f"--sizes is {list(sizes)}; pass two or more different numbers above 0.")
    return Plan(
        variants=(Variant("as it is", command),),
        kind="scale",
        sizes=tuple(sorted(set(sizes))),
        repeats=repeats,
        budget_s=budget_s,
        resources=resources,
    )


def scale(
    plan: Plan, folder: Path | None, progress: Progress, jobs: int = 1, on: str | None = None
) -> ScaleResult:
    """Run the sizes in a new series, `jobs` rounds of them at a time, or on the cluster `on`."""
    with runners_for(jobs, on, plan.resources, progress) as runners:
        series = create_series(plan, folder, "scale", runners)
        result = run_experiment(series, progress, runners=runners)
    return ScaleResult(result, scaling_of(result.series))


def resume_scale(
    folder: Path | None,
    progress: Progress,
    budget_s: float | None = None,
    jobs: int = 1,
    on: str | None = None,
) -> ScaleResult:
    """Continue a series of sizes."""
    series = resume_series(folder, budget_s, on)
    with runners_for(jobs, on, series.plan.resources, progress) as runners:
        result = run_experiment(series, progress, runners=runners)
    return ScaleResult(result, scaling_of(result.series))
