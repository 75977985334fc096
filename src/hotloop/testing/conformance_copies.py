"""Rules for continuing elsewhere: copies of an environment, and its saved state."""

from __future__ import annotations

import copy
from typing import Any

from hotloop.testing.conformance_case import Case, Unchecked
from hotloop.testing.trajectories import Moment


def copies(case: Case) -> str:
    """A deep copy continues like the original, and neither affects the other."""
    for mode in case.modes():
        moments, half = _halves(case, mode)
        with case.env(mode=mode) as env:
            if not _says_how_to_copy(type(env)):
                raise Unchecked(
                    "the environment's class does not define __getstate__, so copying it may not be safe"
                )
            _play_first(env, case.seeds[0], moments[:half])
            copied = copy.deepcopy(env)
            remedy = (
                "A deep copy must have its own arrays, and views of its own arrays: "
                "rebuild views and addresses in __setstate__."
            )
            _compare_rest(case, "copies", copied, moments, half, remedy)
            _compare_rest(case, "copies", env, moments, half, remedy)
            copied.close()
    return f"a deep copy after {half} steps and its original, in {len(case.modes())} autoreset modes"


def saved_state(case: Case) -> str:
    """`load_state(save_state())` continues with the same numbers, in the same and in a new environment."""
    for mode in case.modes():
        moments, half = _halves(case, mode)
        remedy = (
            "save_state() must hold every array that affects later steps; load_state() must restore them all."
        )
        with case.env(mode=mode) as env:
            if not (hasattr(env, "save_state") and hasattr(env, "load_state")):
                raise Unchecked("the environment has no save_state and load_state")
            _play_first(env, case.seeds[0], moments[:half])
            state = env.save_state()
            _compare_rest(case, "saved_state", env, moments, half, remedy)
            env.load_state(state)
            _compare_rest(case, "saved_state", env, moments, half, remedy)
        with case.env(mode=mode) as other:
            other.load_state(state)
            _compare_rest(case, "saved_state", other, moments, half, remedy)
    return (
        f"after {half} steps, in the same and in another environment, in {len(case.modes())} autoreset modes"
    )


def _says_how_to_copy(kind: type) -> bool:
    """Copying anything else is unsafe: the copy of a pipe to another process closes the original's file."""
    plain = getattr(object, "__getstate__", None)
    return hasattr(kind, "__deepcopy__") or getattr(kind, "__getstate__", None) is not plain


def _halves(case: Case, mode: Any) -> tuple[list[Moment], int]:
    """Return a recording and where to cut it: after half, or where then the next episode has just ended."""
    moments = case.recordings(mode)[case.seeds[0]]
    half = (len(moments) + 1) // 2
    return moments, next(
        (step + 1 for step in range(half - 1, len(moments) - 1) if moments[step].ended.any()), half
    )


def _play_first(env: Any, seed: int, moments: list[Moment]) -> None:
    env.reset(seed=seed)
    for moment in moments[1:]:
        env.step(copy.deepcopy(moment.actions))
        if moment.after_reset is not None:
            env.reset(options={"reset_mask": moment.ended.copy()})


def _compare_rest(case: Case, rule: str, env: Any, moments: list[Moment], first: int, remedy: str) -> None:
    rest = moments[first:]
    disabled = any(moment.after_reset is not None for moment in moments)
    played = case.go_on(env, [moment.actions for moment in rest], disabled=disabled)
    case.compare(rule, played, rest, remedy, first_step=first)
