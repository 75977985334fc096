"""What would help, best first: asks every rule, sorts by gain x confidence / effort."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import get_args

from hotloop.analysis.advice import BUILT_IN
from hotloop.analysis.advice.run_view import RunView, view_run
from hotloop.analysis.findings import Effort, Findings, Recommendation, Tier
from hotloop.capture.model import Capture

AdviceFunction = Callable[[RunView], Recommendation | None]

EFFORT: dict[Effort, float] = {"minutes": 1.0, "hours": 1.5, "days": 3.0}  # what a gain is divided by
# A gain nobody can predict is ranked like one of this size, held with little confidence.
UNKNOWN_GAIN: dict[Tier, float] = {"high": 0.5, "medium": 0.15, "low": 0.03, "not worth optimising": 0.0}
UNKNOWN_CONFIDENCE = 0.3


class AdviceWarning(UserWarning):
    """A rule failed; the others were asked all the same."""


def recommend(
    capture: Capture, findings_so_far: Findings, rules: Iterable[AdviceFunction] | None = None
) -> tuple[Recommendation, ...]:
    """Recommendations of all rules, best first; "not worth optimising" comes last.

    `rules` are asked in place of the built-in ones; to add some, pass `(*BUILT_IN, mine)`. A rule
    that raises, or returns something else than a recommendation, costs a `AdviceWarning`.
    """
    run = view_run(capture, findings_so_far)
    if run is None:
        return ()
    found = []
    for rule in BUILT_IN if rules is None else rules:
        one = _ask(rule, run)
        if one is not None:
            found.append(one)
    found.sort(key=lambda one: (one.tier == "not worth optimising", -worth(one), one.rule))
    return tuple(_with_proof(capture, number, one) for number, one in enumerate(found, 1))


def _with_proof(capture: Capture, number: int, advice: Recommendation) -> Recommendation:
    """Where a variable is all it takes and the capture lies on disk, hotloop can prove it by itself."""
    if advice.provable_by != "environment" or capture.path is None or not advice.prove_command:
        return advice
    return replace(advice, prove_command=f"hotloop prove {shlex.quote(str(capture.path))} {number}")


def worth(advice: Recommendation) -> float:
    """Gain x confidence / effort, what recommendations are sorted by.

    The gain is the part of the time that would be saved; the confidence is how much of it
    remains at the lower end of the interval.
    """
    effort = EFFORT[advice.effort]
    if advice.gain is None:
        return UNKNOWN_GAIN[advice.tier] * UNKNOWN_CONFIDENCE / effort
    saved = 1 - 1 / max(advice.gain.value, 1.0)
    sure = 1 - 1 / max(advice.gain.low, 1.0)
    confidence = max(sure / saved, 0.1) if saved > 0 else 0.1
    return saved * confidence / effort


def rule_name(rule: AdviceFunction) -> str:
    """What to call a rule in a warning."""
    return f"{getattr(rule, '__module__', '?')}.{getattr(rule, '__qualname__', repr(rule))}"


def _ask(rule: AdviceFunction, run: RunView) -> Recommendation | None:
    try:
        answer = rule(run)
    except Exception as error:
        _warn(f"the rule {rule_name(rule)} failed ({error!r}) and was left out")
        return None
    if answer is None:
        return None
    problem = _problem(answer)
    if problem:
        _warn(f"the rule {rule_name(rule)} was left out: {problem}")
        return None
    return answer


def _problem(answer: object) -> str:
    if not isinstance(answer, Recommendation):
        return f"it returned {type(answer).__name__}, a rule returns a Recommendation or None"
    if answer.tier not in get_args(Tier):
        return f"its tier {answer.tier!r} is none of {', '.join(get_args(Tier))}"
    if answer.effort not in EFFORT:
        return f"its effort {answer.effort!r} is none of {', '.join(EFFORT)}"
    if answer.gain is not None and not answer.gain.low <= answer.gain.value <= answer.gain.high:
        return f"its gain {answer.gain.value:g} is outside its own interval"
    return ""


def _warn(text: str) -> None:
    warnings.warn(text, AdviceWarning, stacklevel=4)
