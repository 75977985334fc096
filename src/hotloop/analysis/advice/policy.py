"""What choosing actions costs: one call per env, calls on few observations."""

from __future__ import annotations

from hotloop._util.units import percent
from hotloop.analysis.advice.recommendation import Change, about, advise, rate, times, took
from hotloop.analysis.advice.run_view import CHOOSING, RegionRow, RunView, near
from hotloop.analysis.findings import Recommendation

OVERHEAD_NS = 20_000  # shorter calls have hardly any overhead to save
LEAST_SHARE = 0.25  # of the wall time; the bar is high, since more envs change training


def acting(run: RunView) -> list[RegionRow]:
    """Regions that choose actions while collecting, most time first."""

    def wanted(row: RegionRow) -> bool:
        chooses = row.category == "policy" or (row.category in ("other", "model") and row.name_has(CHOOSING))
        return chooses and not row.is_gap and not _is_in_learner(run, row) and run.per_env_step(row) > 1e-3

    return run.outermost(wanted)


def _is_in_learner(run: RunView, row: RegionRow) -> bool:
    if any(other.category in ("loss", "backward", "optimizer") for other in run.below(row)):
        return True
    if any(other.name == "learner_forward" or _only_learns(run, other) for other in run.above(row)):
        return True
    return any(near(other.calls, run.updates) and other.calls > 1 for other in run.above(row)) and not near(
        row.calls, run.iterations
    )


def _only_learns(run: RunView, row: RegionRow) -> bool:
    """Whether optimizer steps are inside, and no env steps."""
    inside = {other.category for other in run.below(row)}
    return "optimizer" in inside and "environment" not in inside


def policy_one_by_one(run: RunView) -> Recommendation | None:
    """The policy is called for one env at a time, although all envs step together."""
    for row in acting(run):
        each = run.per_iteration(row)
        if run.envs < 2 or each < 0.65 * run.envs or each < 2 or row.share < 0.05:
            continue
        evidence = [
            took(row),
            f"It runs {times(each)} per iteration of the loop, which steps {rate(run.envs)} envs.",
            f"Assumption: one call for all envs saves between 40 % and {about(1 - 1 / each)} of it.",
        ]
        return advise(
            run,
            "policy_one_by_one",
            row,
            f"Call the policy once for all {rate(run.envs)} envs (`{row.name}`)",
            evidence,
            "Stack the observations of all envs and call the policy once. Sampled actions then draw other "
            "random numbers from the same distribution.",
            run.gain([row], (0.4, 1 - 1 / each)),
            Change("stack observations, call the policy once per step", effort="minutes", safety="semantic"),
        )
    return None


def too_few_envs(run: RunView) -> Recommendation | None:
    """A policy call serves so few envs that its overhead is paid at nearly every step."""
    if not run.env_steps or run.envs > 4.5:
        return None
    for row in acting(run):
        if row.share < LEAST_SHARE or run.per_iteration(row) > 1.5 or row.usual_ns < OVERHEAD_NS:
            continue  # a few long calls raise the mean, but are no cost of every step
        target = max(8, round(4 * run.envs))
        share = 1 - run.envs / target
        evidence = [
            took(row),
            f"One call serves {rate(run.envs)} env steps.",
            f"Assumption: with {target} envs per call, between half and all of the repeated cost goes away "
            f"({percent(share / 2)} to {percent(share)} of it).",
        ]
        return advise(
            run,
            "too_few_envs",
            row,
            f"Step more envs per policy call (now {rate(run.envs)})",
            evidence,
            "A small network costs almost the same for 8 observations as for 1. Keep n_envs x n_steps and "
            "the updates per env step constant; then only the mix of the data changes.",
            run.gain([row], (share / 2, share)),
            Change(f"{target} envs", effort="minutes", safety="semantic", provable_by="flag"),
            tier="option",
        )
    return None
