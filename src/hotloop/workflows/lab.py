"""`hotloop lab run`: a plan of suspects, sweeps and sizes, from its first run to a ranked table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hotloop._util.errors import HotloopError
from hotloop.analysis.combine import best_combination
from hotloop.analysis.comparison import Comparison, VariantComparison, compare_series, rank_comparison
from hotloop.analysis.ranking import RankedTable
from hotloop.analysis.scaling import Scaling
from hotloop.analysis.sizes import scaling_of
from hotloop.capture import series as store
from hotloop.capture.plan import Plan, Variant
from hotloop.capture.series import Series
from hotloop.lab.lanes import Cores
from hotloop.workflows.experiments import Done, Places, Progress, begin, carry_out, lanes_for, resume
from hotloop.workflows.revisions import checked_out
from hotloop.workflows.shipped_plans import plan_called

COMBINATION = "combination"  # folder in the series: the pairs of baseline and combination
LEAST_BUDGET_SHARE = 0.25  # for the combination, when the suspects used the budget up


@dataclass(frozen=True)
class Investigated:
    """What a plan found out."""

    done: Done
    table: RankedTable | None  # None for a plan of sizes only
    scaling: Scaling | None

    @property
    def series(self) -> Series:
        """Every run."""
        return self.done.series


def run_plan(file: Path, folder: Path | None, again: bool, progress: Progress, jobs: int = 1) -> Investigated:
    """Run a plan in a new series, or, with `again`, go on with the one in `folder`.

    `jobs` blocks are run at a time.
    """
    plan = plan_called(file)
    lanes = lanes_for(jobs)
    if again:
        series = resume(folder)
        if replace(series.plan, budget_s=plan.budget_s) != plan:
            raise HotloopError(f"{file} is not the plan that {folder} was begun with; begin a new series.")
        series = replace(series, plan=plan)
    else:
        series = begin(plan, folder, plan.name or file.stem)
    with checked_out(plan.variants) as places:
        done = carry_out(series, progress, places, lanes)
        if done.conducted.ended in ("interrupted", "disk") or not done.found.compared:
            return investigated(done)
        combined = _combination(done, places, progress, lanes)
        if combined is not None and combined.interrupted:
            done = replace(done, conducted=replace(done.conducted, ended="interrupted"))
    return investigated(done)


def investigated(done: Done) -> Investigated:
    """The ranked table of a series and what its sizes say, with the combination when it was tried."""
    table = rank_comparison(done.found, combination_of(done.series)) if done.found.compared else None
    return Investigated(done, table, scaling_of(done.series))


def combination_of(series: Series) -> VariantComparison | None:
    """What was found for the best combination; None when none was tried."""
    place = series.path / COMBINATION if series.path is not None else None
    if place is None or not store.is_series(place):
        return None
    found: Comparison = compare_series(store.read(place))
    return found.compared[0] if found.compared[0].pairs else None


def _combination(done: Done, places: Places, progress: Progress, lanes: tuple[Cores, ...]) -> Done | None:
    """Run what was clearly faster together against the baseline, in pairs."""
    together = best_combination(done.found)
    if together is None or done.series.path is None:
        return None
    folder = done.series.path / COMBINATION
    if store.is_series(folder):
        return carry_out(store.read(folder), progress, places, lanes)
    plan = done.series.plan
    progress.note(f"together: {together.name}")
    return carry_out(begin(_pair_plan(plan, done, together), folder, ""), progress, places, lanes)


def _pair_plan(plan: Plan, done: Done, together: Variant) -> Plan:
    budget_s = plan.budget_s
    if budget_s is not None:
        budget_s = max(budget_s - done.series.spent_s, LEAST_BUDGET_SHARE * budget_s)
    size = plan.size if plan.size is not None else plan.sizes[0] if plan.sizes else None
    return replace(
        plan,
        variants=(plan.baseline, together),
        kind="pairs",
        budget_s=budget_s,
        timeout_s=plan.timeout_s or plan.budget_s,
        sizes=(),
        size=size,
    )
