"""Judges advice on scripts whose defect is known: plain data in, frozen results out, no files and no clock.

A case is a folder with `slow.py`, `fixed.py` and `truth.toml`, or with `clean.py` and `truth.toml`. What is judged
is the output of `hotloop report --json`, or the line or function that another profiler puts first.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal

import numpy as np

from hotloop.analysis.rank_intervals import hodges_lehmann, signed_rank_interval

Truth = Mapping[str, Any]  # the content of truth.toml
Report = Mapping[str, Any]  # the output of `hotloop report --json`
How = Literal["site", "function", "answer"]

REQUIRED: dict[str, type] = {
    "style": str,
    "defect": str,
    "lines": list,
    "answers": list,
    "same_results": bool,
    "category": str,
    "quick_args": list,
}
LONGEST_FUNCTION = 30  # lines; a pointer to a longer function does not show where the defect is
TIERS = ("high", "medium", "low")  # of advice; "option" changes training, "not_worth_optimising" is none
NO_REMEDY = "no_known_remedy"  # names expensive code and does not call it slow: comes after all advice
POINTER = "hottest_code"  # names the most expensive code without knowing what is wrong with it
OF_ANY_SCRIPT = ("boost",)  # advice that holds for scripts without a defect, too; it is not judged
NARROW = 0.03  # half width of the interval of a measured ratio, relative, at which it needs no more pairs
LEVEL = 0.05  # of the interval of a measured ratio
LEAST_PAIRS = 3  # before an interval may count as narrow
RATIO_LIMITS = (1.15, 10.0)  # of a defect worth having in the corpus


@dataclass(frozen=True)
class Code:
    """Lines of a script that belong to its defect, and the functions that contain them."""

    lines: frozenset[int]
    functions: tuple[tuple[str, int, int], ...]  # name, first and last line of functions with a defect line
    texts: tuple[str, ...]  # the defect's lines, without indentation


@dataclass(frozen=True)
class Hit:
    """A recommendation that found the defect."""

    position: int  # from 1, among the recommendations that count
    how: How
    name: str
    title: str
    gain: Mapping[str, float] | None  # None: no prediction of the gain of the fix


@dataclass(frozen=True)
class Judgement:
    """A report judged by the truth about its script."""

    clean: bool
    hit: Hit | None  # the first recommendation that found the defect
    option_hit: Hit | None  # the same among the options, which change training
    first_title: str  # of the first recommendation that counts; "" for none
    advice: tuple[str, ...]  # names of all that count, in order
    false_advice: tuple[str, ...]  # titles, on a clean script
    options: tuple[str, ...]  # titles
    headline: str
    headline_agrees: bool | None  # with the first recommendation; None if there is none


@dataclass(frozen=True)
class Ratio:
    """Speed of fixed.py over speed of slow.py."""

    value: float
    low: float
    high: float
    pairs: int
    is_range: bool  # from the smallest to the largest ratio: too few pairs for a rank interval

    @property
    def narrow(self) -> bool:
        """Whether more pairs would not tell much more."""
        half = (math.log(self.high) - math.log(self.low)) / 2
        return self.pairs >= LEAST_PAIRS and half <= math.log1p(NARROW)


@dataclass(frozen=True)
class Prediction:
    """A predicted gain against the measured ratio."""

    predicted: float
    low: float
    high: float
    inside: bool  # whether the measured ratio lies in the predicted interval
    error: float  # predicted / measured - 1


@dataclass
class Tally:
    """The summary line of one tool."""

    first: int = 0
    top_3: int = 0  # including the first
    absent: int = 0
    defects: int = 0
    false_on_clean: int = 0  # pieces of advice
    clean_with_false: int = 0  # scripts
    clean: int = 0
    inside: int = 0
    errors: list[float] = field(default_factory=list)  # absolute, relative to the measured ratio

    @property
    def median_error(self) -> float | None:
        return float(np.median(self.errors)) if self.errors else None


def truth_problems(truth: Truth, source: str | None) -> list[str]:
    """What is wrong with a truth.toml; `source` is slow.py, None for a clean case."""
    problems = [f"`{key}` is missing" for key in REQUIRED if key not in truth]
    problems += [
        f"`{key}` is not a {kind.__name__}"
        for key, kind in REQUIRED.items()
        if key in truth and not isinstance(truth[key], kind)
    ]
    if problems:
        return problems
    for pattern in truth["answers"]:
        try:
            re.compile(pattern)
        except re.error as error:
            problems.append(f"`answers`: {pattern!r} is no regular expression: {error}")
    if (source is None) != (truth["defect"] == ""):
        problems.append("`defect` must be empty for a clean script, and only there")
    if source is None:
        problems += [
            f"`{key}` must be empty for a clean script" for key in ("lines", "answers") if truth[key]
        ]
        return problems
    problems += [f"`{key}` is empty" for key in ("lines", "answers") if not truth[key]]
    there = {text.strip() for text in source.splitlines()}
    problems += [f"`lines`: not in slow.py: {text}" for text in truth["lines"] if text not in there]
    return problems


def defect_code(source: str, texts: Sequence[str]) -> Code:
    """Where the defect is: its lines, all lines of their statements, and of loops whose head is listed."""
    wanted = set(texts)
    rows = {row for row, text in enumerate(source.splitlines(), 1) if text.strip() in wanted}
    lines: set[int] = set(rows)
    functions = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt):
            continue
        first, last = node.lineno, node.end_lineno or node.lineno
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(
            first < row <= last for row in rows
        ):
            functions.append((node.name, first, last))
        if not isinstance(node, (ast.For, ast.While, ast.AsyncFor)):
            last = _end_of_head(node, last)
        head_end = _end_of_head(node, last)
        if any(first <= row <= head_end for row in rows):
            lines.update(range(first, last + 1))
    return Code(frozenset(lines), tuple(functions), tuple(texts))


def _end_of_head(node: ast.stmt, last: int) -> int:
    """Last line of a statement without its body."""
    body = getattr(node, "body", None)
    return max(node.lineno, body[0].lineno - 1) if isinstance(body, list) and body else last


def line_of_site(site: str, script: str) -> int | None:
    """The line of `file:line` if the file is the script, else None."""
    file, _, line = site.rpartition(":")
    if not line.isdecimal() or PurePath(file).name != script:
        return None
    return int(line)


def points_at(code: Code, line: int | None) -> bool:
    """Whether a line is one of the defect's."""
    return line is not None and line in code.lines


def function_holds(code: Code, line: int | None) -> bool:
    """Whether a line lies in a function, not too long a one, that contains a line of the defect."""
    return line is not None and any(
        first <= line <= last and last - first < LONGEST_FUNCTION for _, first, last in code.functions
    )


def found_by(recommendation: Mapping[str, Any], code: Code, truth: Truth, script: str) -> How | None:
    """How a recommendation found the defect; None if it did not."""
    line = line_of_site(recommendation["site"] or "", script)
    if points_at(code, line):
        return "site"
    if recommendation["name"] == POINTER:
        return "function" if function_holds(code, line) else None
    text = "\n".join(recommendation[key] or "" for key in ("title", "advice", "how_to_change"))
    named = any(re.search(pattern, text, re.IGNORECASE) for pattern in truth["answers"])
    return "answer" if named else None


def judge(truth: Truth, source: str, report: Report, script: str = "slow.py") -> Judgement:
    """Judge the recommendations of a report; `source` is the text of the script, `script` its file name."""
    clean = truth["defect"] == ""
    code = defect_code(source, truth["lines"])
    counted = [
        one
        for one in report["recommendations"]
        if one["tier"] in (*TIERS, NO_REMEDY) and one["name"] not in OF_ANY_SCRIPT
    ]
    options = [one for one in report["recommendations"] if one["tier"] == "option"]
    false = [one["title"] for one in counted if one["tier"] in TIERS] if clean else []
    return Judgement(
        clean=clean,
        hit=None if clean else _first_hit(counted, code, truth, script),
        option_hit=None if clean else _first_hit(options, code, truth, script),
        first_title=counted[0]["title"] if counted else "",
        advice=tuple(one["name"] for one in counted),
        false_advice=tuple(false),
        options=tuple(one["title"] for one in options),
        headline=report["headline"],
        headline_agrees=headline_agrees(report["headline"], counted[0]) if counted else None,
    )


def _first_hit(
    recommendations: Sequence[Mapping[str, Any]], code: Code, truth: Truth, script: str
) -> Hit | None:
    for position, one in enumerate(recommendations, 1):
        how = found_by(one, code, truth, script)
        if how is not None:
            return Hit(position, how, one["name"], one["title"], one["gain"])
    return None


def headline_agrees(headline: str, first: Mapping[str, Any]) -> bool:
    """Whether a headline names the first recommendation's title, site or region."""
    site = first["site"] or ""
    names = [first["title"], site, PurePath(site).name, first["region"] or ""]
    return any(name and name.lower() in headline.lower() for name in names)


def line_is_found(truth: Truth, source: str, line: int | None) -> bool:
    """Whether the line of slow.py that another profiler puts first is the defect's."""
    return points_at(defect_code(source, truth["lines"]), line)


def function_is_found(truth: Truth, source: str, name: str, first_line: int | None) -> bool:
    """Whether the function that another profiler puts first is the defect's.

    `first_line` is where a function of the script begins, None for functions of libraries: those count when a
    line of the defect calls them by name.
    """
    code = defect_code(source, truth["lines"])
    if first_line is not None:
        return any(
            name == one and first <= first_line <= last and last - first < LONGEST_FUNCTION
            for one, first, last in _with_decorators(source, code)
        )
    word = re.search(r"(\w+)\W*$", name)  # `{built-in method time.sleep}`, `{method 'tolist' of ... objects}`
    quoted = re.search(r"method '(\w+)'", name)
    called = quoted or word
    if called is None:
        return False
    call = re.compile(rf"\b{re.escape(called[1])}\(")
    return any(call.search(text) for text in code.texts)


def _with_decorators(source: str, code: Code) -> Iterable[tuple[str, int, int]]:
    """Functions of the defect; profilers begin a function at its first decorator."""
    starts = {
        node.lineno: min([node.lineno, *(d.lineno for d in node.decorator_list)])
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    return [(name, starts[first], last) for name, first, last in code.functions]


def measured_ratio(pairs: Sequence[tuple[float, float]]) -> Ratio | None:
    """Speed of fixed over slow from (slow, fixed) pairs of units per second; None without a pair.

    Hodges-Lehmann and a signed-rank interval of the log ratios; with too few pairs for that, their range.
    """
    if not pairs:
        return None
    logs = np.array([math.log(fixed / slow) for slow, fixed in pairs])
    ends = signed_rank_interval(logs, LEVEL)
    low, high = ends or (float(logs.min()), float(logs.max()))
    value = hodges_lehmann(logs)
    return Ratio(math.exp(value), math.exp(low), math.exp(high), len(pairs), is_range=ends is None)


def prediction(hit: Hit | None, measured: Ratio | None) -> Prediction | None:
    """The predicted gain against the measured ratio; None if one of them is missing."""
    if hit is None or hit.gain is None or measured is None:
        return None
    value, low, high = (float(hit.gain[key]) for key in ("value", "low", "high"))
    return Prediction(value, low, high, low <= measured.value <= high, value / measured.value - 1)


def work_differences(slow: Mapping[str, Any], fixed: Mapping[str, Any], same_results: bool) -> list[str]:
    """Where the last lines of slow.py and fixed.py disagree though they must not."""
    keys = ["env_steps", "updates", *(["checksum"] if same_results else [])]
    return [f"{key}: slow {slow[key]}, fixed {fixed[key]}" for key in keys if slow[key] != fixed[key]]


def counter_differences(script: Mapping[str, Any], report: Report) -> list[str]:
    """Where hotloop counted other env steps or updates than the script; what the script leaves open is left out.

    Scripts count updates in two ways: one gradient step of every network, as hotloop does, or every step of
    every optimizer, which hotloop reports as `gradient_steps`. Vector envs spend a step on each reset, which
    scripts count and hotloop does not: at most one for each episode.
    """
    allowed = {
        "env_steps": range(report["env_steps"], report["env_steps"] + report.get("episodes", 0) + 1),
        "updates": (report["updates"], report.get("gradient_steps", report["updates"])),
    }
    return [
        f"{key}: script {script[key]}, hotloop {report[key]}"
        for key in ("env_steps", "updates")
        if script[key] is not None and script[key] not in allowed[key]
    ]


def rate_errors(truth: Truth, script: Mapping[str, Any], report: Report) -> dict[str, float]:
    """hotloop's rates over the script's own, minus 1.

    Only for cases that say how many env steps or updates one of their units has, and only rates that were measured.
    """
    errors = {}
    for counter in ("env_steps", "updates"):
        each, rate = truth.get(f"{counter}_per_unit"), report.get(f"{counter}_per_s")
        if each and rate:
            errors[counter] = rate / (script["units_per_s"] * each) - 1
    return errors


def tally(judged: Iterable[tuple[Judgement, Prediction | None]]) -> Tally:
    """The summary over all cases."""
    total = Tally()
    for one, predicted in judged:
        if one.clean:
            total.clean += 1
            total.false_on_clean += len(one.false_advice)
            total.clean_with_false += bool(one.false_advice)
            continue
        total.defects += 1
        total.absent += one.hit is None
        total.first += one.hit is not None and one.hit.position == 1
        total.top_3 += one.hit is not None and one.hit.position <= 3
        if predicted is not None:
            total.inside += predicted.inside
            total.errors.append(abs(predicted.error))
    return total
