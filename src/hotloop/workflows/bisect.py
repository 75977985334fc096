"""`hotloop bisect`: finds the commit that made training slower, by measured comparisons."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hotloop.analysis.comparison import Comparison, compare_series
from hotloop.analysis.findings import Estimate
from hotloop.analysis.verdict import Verdict
from hotloop.capture.folder import new_folder
from hotloop.capture.plan import Plan, Variant
from hotloop.capture.series import Run, Series
from hotloop.workflows.experiments import Progress, create_series, run_experiment
from hotloop.workflows.revisions import Commit, checked_out, commits_between

# A comparison stops when it is decided; this much of the time left may go into one that is hard to decide.
SHARE_OF_STEP = 2.0


@dataclass(frozen=True)
class Measured:
    """One commit compared with the good one."""

    verdict: Verdict | None  # None: the script failed, or nothing was measured
    is_slow: bool | None  # as slow as the bad commit; None: unknown
    is_sure: bool = False  # decided by the verdict engine; otherwise by the estimate when time ran out
    failure: str = ""
    interrupted: bool = False

    @property
    def change(self) -> Estimate | None:
        return self.verdict.change if self.verdict is not None else None


@dataclass(frozen=True)
class Step:
    """A commit that was measured, and how many may still be the first slow one afterwards."""

    commit: Commit
    measured: Measured
    left: int


@dataclass(frozen=True)
class Bisection:
    """What a bisection found."""

    good: Commit
    bad: Commit
    whole: Measured  # bad compared with good
    steps: tuple[Step, ...] = ()
    suspects: tuple[Commit, ...] = ()  # the first slow commit is one of them, oldest first
    proof: Measured | None = None  # the only suspect compared with the commit before it
    folder: Path | None = None

    @property
    def first_slow(self) -> Commit | None:
        """The only suspect; None if there are several or none. `is_sure` says whether it is proven."""
        return self.suspects[0] if len(self.suspects) == 1 else None

    @property
    def is_sure(self) -> bool:
        """Whether every step was decided, and the commit is slower than the one before it."""
        decided = all(step.measured.is_sure for step in self.steps if step.measured.is_slow is not None)
        return decided and self.proof is not None and self.proof.is_slow is True and self.proof.is_sure

    @property
    def interrupted(self) -> bool:
        found = [self.whole, *(step.measured for step in self.steps), *([self.proof] if self.proof else [])]
        return any(one.interrupted for one in found)


# Compares a commit with another: (the other, the commit, threshold in ln, name of the step, budget in s)
Compare = Callable[[Commit, Commit, float, str, float], Measured]


def bisect(
    good: str, bad: str, command: Sequence[str], budget_s: float, tolerance: float, progress: Progress,
    *, folder: Path | None = None, record: bool = True, on_step: Callable[[Step], None] = lambda step: None,
) -> Bisection:  # fmt: skip
    """Find the first slow commit after `good`, up to `bad`; the command runs in a worktree of each."""
    commits = commits_between(good, bad, Path.cwd())
    place = folder or new_folder("bisect")

    def compare(reference: Commit, commit: Commit, threshold: float, name: str, budget_s: float) -> Measured:
        variants = (
            Variant("before", tuple(command), revision=reference.revision),
            Variant("commit", tuple(command), revision=commit.revision),
        )
        plan = Plan(variants, budget_s=budget_s, tolerance=tolerance, record=record)
        with checked_out(variants) as places:
            decide = is_beyond(threshold, progress)
            result = run_experiment(
                create_series(plan, place / name, "bisect"), progress, places, decide=decide
            )
        return measured(result.outcome.series, threshold, result.outcome.ended)

    found = search(commits, compare, budget_s, tolerance, on_step)
    return replace(found, folder=place)


def is_beyond(threshold: float, progress: Progress) -> Callable[[Series], Comparison]:
    """A decision for the lab: go on until the change is clearly above or below `threshold`, in ln."""

    def decide(series: Series) -> Comparison:
        progress.show_verdict(compare_series(series, final=False))
        return compare_series(shifted(series, threshold), final=False)

    return decide


def shifted(series: Series, threshold: float) -> Series:
    """The series with the second variant's times divided by e^threshold: `slower` means by more than that."""
    plan = replace(series.plan, tolerance=1e-6)
    last = series.plan.variants[-1].name
    runs = tuple(_scaled(run, math.exp(-threshold)) if run.variant == last else run for run in series.runs)
    return replace(series, plan=plan, runs=runs)


def _scaled(run: Run, factor: float) -> Run:
    figures = replace(
        run.figures,
        s_per_env_step=run.figures.s_per_env_step and run.figures.s_per_env_step * factor,
        s_per_update=run.figures.s_per_update and run.figures.s_per_update * factor,
    )
    return replace(run, wall_s=run.wall_s * factor, figures=figures)


def measured(series: Series, threshold: float, ended: str) -> Measured:
    """What a series says about its second variant."""
    if ended == "interrupted":
        return Measured(None, None, interrupted=True)
    failures = [run for run in series.runs if not run.ok]
    if ended == "failed" and failures:
        last = failures[-1].stderr_tail.strip().splitlines()[-1:] or [""]
        return Measured(None, None, failure=f"{failures[-1].failure}. {last[0]}".rstrip(". "))
    verdict = compare_series(series).compared[0].verdict
    beyond = compare_series(shifted(series, threshold)).compared[0].verdict
    if verdict.change is None:
        return Measured(verdict, None)
    if beyond.word in ("slower", "faster"):
        return Measured(verdict, beyond.word == "slower", is_sure=True)
    return Measured(verdict, math.log1p(verdict.change.value) > threshold)


# -- the search ----------------------------------------------------------------------------------


def search(
    commits: Sequence[Commit], compare: Compare, budget_s: float, tolerance: float,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Bisection:  # fmt: skip
    """Find the first slow one of `commits`: the first is good, the last is bad."""
    end_s = time.monotonic() + budget_s
    good, bad = commits[0], commits[-1]

    def budget(steps_left: float) -> float:
        return max((end_s - time.monotonic()) * min(SHARE_OF_STEP / (steps_left + 1), 1.0), 1.0)

    steps_left = math.log2(max(len(commits) - 1, 1)) + 2
    whole = compare(good, bad, math.log1p(tolerance), "0-bad", budget(steps_left))
    if not whole.is_slow or whole.change is None:
        return Bisection(good, bad, whole)
    threshold = math.log1p(whole.change.value) / 2  # halfway between the two
    suspects, skipped, steps = list(commits[1:]), set[str](), list[Step]()
    while (commit := _middle(suspects, skipped)) is not None and time.monotonic() < end_s:
        left = math.log2(len(suspects)) + 1
        name = f"{len(steps) + 1}-{commit.short}"
        found = compare(good, commit, threshold, name, budget(left))
        if found.is_slow is None:
            skipped.add(commit.revision)
        else:
            at = suspects.index(commit) + 1
            suspects = suspects[:at] if found.is_slow else suspects[at:]
        steps.append(Step(commit, found, len(suspects)))
        on_step(steps[-1])
        if found.interrupted:
            break
    result = Bisection(good, bad, whole, tuple(steps), tuple(suspects))
    if len(suspects) > 1 or result.interrupted:
        return result
    parent = commits[list(commits).index(suspects[0]) - 1]
    proof = compare(parent, suspects[0], threshold, f"{len(steps) + 1}-proof", budget(1.0))
    return replace(result, proof=proof)


def _middle(suspects: Sequence[Commit], skipped: set[str]) -> Commit | None:
    """The commit to measure next: of those that can be run, the one nearest to the middle; None: no more.

    The last suspect is known to be slow, because either it was measured or it is the bad commit.
    """
    candidates = [(i, commit) for i, commit in enumerate(suspects[:-1]) if commit.revision not in skipped]
    middle = (len(suspects) - 2) / 2
    return min(candidates, key=lambda one: (abs(one[0] - middle), one[0]))[1] if candidates else None
