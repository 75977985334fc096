"""Asks every advice function and sorts the recommendations by gain x confidence / effort."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, get_args

from hotloop.analysis.advice import BUILT_IN
from hotloop.analysis.advice.claims import (
    combined_gain,
    keeps_results,
    time_table,
    without_double_promises,
)
from hotloop.analysis.advice.commands import prove_command
from hotloop.analysis.advice.run_view import RunView, view_run
from hotloop.analysis.advice.system_gains import combined_in_system, with_system_gain
from hotloop.analysis.findings import Effort, Estimate, Findings, Recommendation, Tier
from hotloop.analysis.what_ifs import WhatIfs
from hotloop.capture.model import Capture

AdviceFunction = Callable[[RunView], Recommendation | Sequence[Recommendation] | None]

EFFORT: dict[Effort, float] = {"minutes": 1.0, "hours": 1.5, "days": 3.0}  # divides the gain
# Time saved that an unknown gain ranks like: strong evidence comes first, since its test is short.
UNKNOWN: dict[Tier, float] = {"high": 3.0, "medium": 0.045, "low": 0.01}
# Part of training that a fix of the user's own lines saves, from which on it comes before `hotloop boost`: it
# is a mistake to correct, and what is left afterwards can still be boosted.
OWN_CODE_FIRST = 0.1
# Tiers that come after all others: what is known to help comes before what merely takes long.
LAST: dict[Tier, int] = {"no_known_remedy": 1, "option": 2, "not_worth_optimising": 3}


class AdviceWarning(UserWarning):
    """An advice function failed and was skipped."""


def recommend(
    capture: Capture,
    findings: Findings,
    advice: Iterable[AdviceFunction] | None = None,
    model: WhatIfs | None = None,
) -> tuple[Recommendation, ...]:
    """All recommendations, best first; then expensive code without a remedy, options, what to leave alone.

    `advice` replaces the built-in functions; to add some, pass `(*BUILT_IN, mine)`. A function that raises,
    or returns anything but a recommendation or None, is skipped with an `AdviceWarning`. Gains come from
    `model` if it can replay the run.
    """
    run = view_run(capture, findings, model)
    if run is None:
        return ()
    for function in BUILT_IN if advice is None else advice:
        run.given.extend(_ask(function, run))
    table = time_table(run)
    found = [with_system_gain(run, one, table) for one in run.given]
    found.sort(key=lambda one: (LAST.get(one.tier, 0), -worth(one), one.name))
    found = without_double_promises(own_code_before_boost(found), table)
    return tuple(_with_proof(capture, number, one) for number, one in enumerate(found, 1))


def own_code_before_boost(ranked: Sequence[Recommendation]) -> list[Recommendation]:
    """The same advice, with `boost` behind fixes of the user's own lines that save a noticeable part."""
    ahead = [
        place
        for place, one in enumerate(ranked)
        if one.tier not in LAST
        and one.claim is not None
        and one.claim.sampled
        and one.site
        and one.gain is not None
        and 1 - 1 / one.gain.value >= OWN_CODE_FIRST
    ]
    last = ahead[-1] if ahead else -1
    boost = [one for place, one in enumerate(ranked) if one.name == "boost" and place < last]
    rest = [one for one in ranked if one not in boost]
    place = last + 1 - len(boost)
    return [*rest[:place], *boost, *rest[place:]]


def gain_of_all(
    capture: Capture,
    findings: Findings,
    recommendations: Sequence[Recommendation],
    model: WhatIfs | None = None,
) -> Estimate | None:
    """Predicted speed-up if all advice that keeps results were followed; None for fewer than two gains."""
    promises = [one for one in recommendations if keeps_results(one)]
    run = view_run(capture, findings, model) if len(promises) > 1 else None
    if run is None:
        return None
    table = time_table(run)
    return combined_in_system(run, promises, table) or combined_gain(promises, table)


def _with_proof(capture: Capture, number: int, advice: Recommendation) -> Recommendation:
    """The command that tests it, with its number; advice without a plan keeps its own command."""
    if not advice.plan:
        return advice
    return replace(advice, prove_command=prove_command(capture, advice, number))


def worth(advice: Recommendation) -> float:
    """Gain x confidence / effort, the sort key.

    The gain is the fraction of time saved; the confidence is how much of it is left at the lower end of the
    interval.
    """
    effort = EFFORT[advice.effort]
    if advice.gain is None:
        most = UNKNOWN.get(advice.tier, 0.0)
        return min(most, most if advice.affects is None else advice.affects) / effort
    saved = 1 - 1 / max(advice.gain.value, 1.0)
    sure = 1 - 1 / max(advice.gain.low, 1.0)
    confidence = max(sure / saved, 0.1) if saved > 0 else 0.1
    return saved * confidence / effort


def _function_name(function: AdviceFunction) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


def _ask(function: AdviceFunction, run: RunView) -> list[Recommendation]:
    try:
        answer = function(run)
    except Exception as error:
        _warn(f"The advice function {_function_name(function)} failed ({error!r}) and was skipped.")
        return []
    if answer is None:
        return []
    answers: list[Any] = list(answer) if isinstance(answer, list | tuple) else [answer]
    for one in answers:
        problem = _problem(one)
        if problem:
            _warn(f"The advice function {_function_name(function)} was skipped: {problem}.")
            return []
    return answers


def _problem(answer: object) -> str:
    if not isinstance(answer, Recommendation):
        return f"it returned {type(answer).__name__}, not a Recommendation, a list of them or None"
    if answer.tier not in get_args(Tier):
        return f"its tier {answer.tier!r} is not one of {', '.join(get_args(Tier))}"
    if answer.effort not in EFFORT:
        return f"its effort {answer.effort!r} is not one of {', '.join(EFFORT)}"
    if answer.gain is not None and not answer.gain.low <= answer.gain.value <= answer.gain.high:
        return f"its gain {answer.gain.value:g} is outside its own interval"
    return ""


def _warn(text: str) -> None:
    warnings.warn(text, AdviceWarning, stacklevel=4)
