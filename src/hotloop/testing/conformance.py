"""Checks that a vector environment, ours or yours, follows Gymnasium's rules.

    from hotloop.testing.conformance import check_vector_env
    print(check_vector_env(MyVectorEnv))            # MyVectorEnv(num_envs, ...)

Each rule is a function of a `Case`; `RULES` lists them by name. A broken rule raises `ConformanceError`,
which says where it broke, what was expected and how to fix it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop._util.extras import require_extra
from hotloop.testing.conformance_case import Case, ConformanceError, Unchecked
from hotloop.testing.conformance_coverage import Coverage, Wanted, coverage_of
from hotloop.testing.conformance_rules import RULES
from hotloop.testing.trajectories import Choose, random_actions

__all__ = ["RULES", "ConformanceError", "ConformanceReport", "Coverage", "Wanted", "check_vector_env"]


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """Result of a check."""

    environment: str  # its repr
    checked: dict[str, str]  # rule -> what was checked
    not_checked: dict[str, str]  # rule -> why
    steps: int  # vector steps in total
    episodes: int  # finished episodes in total
    coverage: Coverage  # what the recordings visited that the rules compare

    def __str__(self) -> str:
        """Return what was visited, then one line per rule."""
        lines = [f"{self.environment}: {self.steps} steps, {self.episodes} episodes ended"]
        lines += self.coverage.lines()
        lines += [f"  ok           {rule}: {what}" for rule, what in self.checked.items()]
        lines += [f"  not checked  {rule}: {why}" for rule, why in self.not_checked.items()]
        return "\n".join(lines)


def check_vector_env(
    make: Callable[..., Any],
    *,
    make_twin: Callable[[int], Any] | None = None,
    num_envs: int = 4,
    steps: int = 200,
    seeds: Sequence[int] = (0, 1000),
    skip: Sequence[str] = (),
    choose: Choose = random_actions,
    ignore_infos: Sequence[str] = (),
    reward_dtype: Any = None,
    max_episode_steps: int | None = None,
    wanted: Wanted | None = None,
) -> ConformanceReport:
    """Check a Gymnasium vector environment against every rule in `RULES`.

    `make(num_envs)` creates it. If `make` has parameters `autoreset_mode`, `num_threads` or `copy`, they are
    used to check all modes, threads, and that copies change nothing. Rows are seeded with `seed + row`.
    `make_twin(seed)` creates a single reference environment to compare every row with: a `gymnasium.Env`, or
    any object without autoreset that has `reset() -> (observation, info)` and `step(action) -> (observation,
    reward, terminated, truncated, info)`. `choose(env, infos, rng)` returns the actions of a step; by default
    they are random, within `infos["action_mask"]` if there is one. `skip` names rules to leave out,
    `ignore_infos` infos that no rule compares: those the twin does not have, or that depend on rounding.

    `reward_dtype` is the type of rewards; by default that of the environment's array `rewards`, if there is
    one. `max_episode_steps` says that episodes are truncated then and only then; by default it is looked up
    in the environment. `wanted` says what must be visited, e.g. `Wanted(truncated=3, actions_fraction=1)`:
    the check takes more than `steps` steps until it is, and fails if that takes too many. The report says
    what was visited: a rule that is ok was checked there, and nowhere else.

    Raises `ConformanceError` at the first broken rule.
    """
    require_extra("gymnasium", "rl")
    unknown = sorted(set(skip) - set(RULES))
    if unknown:
        raise HotloopError(f"skip={unknown!r} is not a rule; the rules are {', '.join(RULES)}.")
    if num_envs < 2 or steps < 2 or not seeds:
        raise HotloopError(
            f"num_envs={num_envs}, steps={steps}, seeds={tuple(seeds)!r} check too little; "
            "use at least 2 rows, 2 steps and one seed."
        )
    case = Case(
        make,
        num_envs=num_envs,
        steps=steps,
        seeds=seeds,
        choose=choose,
        make_twin=make_twin,
        ignore_infos=ignore_infos,
        random="different_seeds" not in skip,
        reward_dtype=reward_dtype,
        max_episode_steps=max_episode_steps,
    )
    if wanted is not None:
        _visit_wanted(case, wanted)
    checked: dict[str, str] = {}
    not_checked: dict[str, str] = {}
    for name, rule in RULES.items():
        if name in skip:
            not_checked[name] = "skipped, as asked"
            continue
        try:
            checked[name] = rule(case)
        except Unchecked as why:
            not_checked[name] = str(why)
    with case.env() as env:
        shown, actions = repr(env), env.single_action_space
    coverage = coverage_of(case.all_recordings(), actions)
    return ConformanceReport(shown, checked, not_checked, case.steps_taken, case.episodes, coverage)


def _visit_wanted(case: Case, wanted: Wanted) -> None:
    """Raise the number of steps until one play per seed visits what is wanted."""
    mode = case.modes()[0]
    with case.env(mode=mode) as env:
        while True:
            plays = [case.play(env, seed, mode=mode, steps=case.steps) for seed in case.seeds]
            found = coverage_of([(mode, moments) for moments in plays], env.single_action_space)
            lacking = found.lacks(wanted)
            if not lacking:
                return
            if 2 * case.steps > wanted.most_steps:
                raise ConformanceError(
                    "coverage",
                    f"{case.steps} steps with {len(case.seeds)} seeds visit only {lacking}",
                    "Pass a `choose` whose actions lead there, more seeds, or raise most_steps of Wanted.",
                )
            case.steps *= 2
