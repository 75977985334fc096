"""The strongest rule: every row behaves like a slow, readable twin of a single environment."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode

from hotloop.testing.conformance_case import Case, ConformanceError, Unchecked
from hotloop.testing.trajectories import Moment, row_infos, row_of, same

_MIDWAY, _AFTER_RESET = 3, 30  # steps before and after a reset in the middle of an episode
REMEDY = "Compiled code and twin disagree: fix the simpler one first, then the other."


def twin(case: Case) -> str:
    """Observations, rewards, flags and infos of every row equal those of the twin, to the last bit."""
    if case.make_twin is None:
        raise Unchecked("make_twin was not passed")
    for mode in case.modes():
        for seed, moments in case.recordings(mode).items():
            for row in range(case.num_envs):
                _follow(case, mode, case.make_twin(seed + row), seed + row, row, moments)
        _reset_midway(case, mode)
    return (
        f"{case.num_envs} rows, seeds {', '.join(map(str, case.seeds))}, {len(case.modes())} autoreset modes"
    )


def _reset_midway(case: Case, mode: Any) -> None:
    """Compare a reset without a seed in the middle of an episode, and what comes after it."""
    assert case.make_twin is not None
    seed = case.seeds[0]
    with case.env(mode=mode) as env:
        plays = [
            case.play(env, seed, mode=mode, steps=_MIDWAY),
            case.play(env, None, mode=mode, steps=min(case.steps, _AFTER_RESET)),
        ]
    for row in range(case.num_envs):
        one = case.make_twin(seed + row)
        _follow(case, mode, one, seed + row, row, plays[0])
        _follow(case, mode, one, None, row, plays[1])


def _follow(case: Case, mode: Any, one: Any, seed: int | None, row: int, moments: list[Moment]) -> None:
    """Step the twin with the row's actions, and reset it when the row was reset."""

    def expect(step: int, what: str, got: Any, expected: Any) -> None:
        if not same(got, expected):
            raise ConformanceError("twin", what, REMEDY, row=row, step=step, got=got, expected=expected)

    def expect_info(step: int, what: str, infos: dict[str, Any], expected: dict[str, Any]) -> None:
        wanted = {name: value for name, value in expected.items() if name not in case.ignore_infos}
        expect(step, what, row_infos(infos, row, case.ignore_infos), wanted)

    observation, info = one.reset(seed=seed) if isinstance(one, gymnasium.Env) else one.reset()
    expect(0, "observation", row_of(moments[0].observations, row), observation)
    expect_info(0, "info", moments[0].infos, info)
    over = False
    for step, moment in enumerate(moments[1:], start=1):
        seen, infos = row_of(moment.observations, row), moment.infos
        if over:  # NEXT_STEP: this step only resets
            observation, info = one.reset()
            reward, terminated, truncated, over = 0.0, False, False, False
        else:
            observation, reward, terminated, truncated, info = one.step(moment.actions[row])
            if (terminated or truncated) and mode == AutoresetMode.SAME_STEP:
                expect(step, "final_obs", row_of(infos["final_obs"], row), observation)
                expect_info(step, "final_info", infos["final_info"], info)
                observation, info = one.reset()
            over = (terminated or truncated) and mode == AutoresetMode.NEXT_STEP
        for what, got, expected in (
            ("observation", seen, observation),
            ("reward", moment.rewards[row], reward),  # type: ignore[index]
            ("terminated", moment.terminated[row], terminated),  # type: ignore[index]
            ("truncated", moment.truncated[row], truncated),  # type: ignore[index]
        ):
            expect(step, what, got, expected)
        expect_info(step, "info", infos, info)
        if moment.after_reset is not None and moment.ended[row]:
            observation, info = one.reset()
            expect(step, "observation after reset", row_of(moment.after_reset[0], row), observation)
            expect_info(step, "info after reset", moment.after_reset[1], info)
