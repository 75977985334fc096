"""`hotloop report CAPTURE`: reads a capture, explains it, and renders it in the requested format."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop._util.files import write_output
from hotloop.analysis.advice import BUILT_IN
from hotloop.analysis.explain import explain
from hotloop.analysis.findings import Findings
from hotloop.analysis.recommend import AdviceFunction, AdviceWarning
from hotloop.analysis.region_tree import walk
from hotloop.capture.export import text as capture_as_json
from hotloop.capture.folder import latest_capture
from hotloop.capture.model import Capture
from hotloop.capture.open_capture import open_capture
from hotloop.machine.facts import machine_facts
from hotloop.machine.limits import limits
from hotloop.report.html import html
from hotloop.report.perfetto import describe_trace, perfetto_trace
from hotloop.report.png import png_bytes
from hotloop.report.speedscope import speedscope_profile
from hotloop.report.svg_card import svg_card
from hotloop.report.text import terminal
from hotloop.report.to_json import findings_json, strict_json
from hotloop.workflows.project_settings import load_settings

ADVICE_GROUP = "hotloop.advice"  # entry points: each an advice function, or a list of them


@dataclass(frozen=True)
class CaptureReport:
    """A capture and its findings."""

    name: str  # as the user would type it
    capture: Capture
    findings: Findings


Render = Callable[[CaptureReport], str | bytes]


def report_on(path: str | None, goal_env_steps: int | None = None) -> CaptureReport:
    """Open the capture at `path` (None: the latest) and explain it with the project's settings."""
    if goal_env_steps is not None and goal_env_steps <= 0:
        raise HotloopError(f"--goal-env-steps is {goal_env_steps}; it must be at least 1.")
    name = str(latest_capture()) if path is None else path
    capture = with_limits(open_capture(name))
    findings = explain(
        capture,
        category_patterns=load_settings().category_patterns,
        goal_env_steps=goal_env_steps,
        advice=load_advice(),
    )
    return CaptureReport(name, capture, findings)


def load_advice(points: Iterable[metadata.EntryPoint] | None = None) -> tuple[AdviceFunction, ...]:
    """Built-in advice functions, then those of installed packages in the order of their names.

    A package whose functions cannot be loaded is skipped with an `AdviceWarning`.
    """
    found: list[AdviceFunction] = list(BUILT_IN)
    for point in sorted(_installed_advice() if points is None else points, key=lambda p: p.name):
        try:
            found += _functions_of(point.load())
        except Exception as error:
            warnings.warn(
                f"The advice {point.name!r} ({point.value}) cannot be loaded ({error!r}) and is left out; "
                "update or remove the package that provides it.",
                AdviceWarning,
                stacklevel=2,
            )
    return tuple(found)


@cache  # looking through all installed packages takes longer than a report
def _installed_advice() -> tuple[metadata.EntryPoint, ...]:
    return tuple(metadata.entry_points(group=ADVICE_GROUP))


def _functions_of(offered: Any) -> list[AdviceFunction]:
    functions = [offered] if callable(offered) else list(offered)
    for function in functions:
        if not callable(function):
            raise TypeError(
                f"{function!r} is not callable; advice takes a RunView, returns a Recommendation or None"
            )
    return functions


def with_limits(capture: Capture) -> Capture:
    """The capture with the limits of this machine, measured now if they are missing and needed.

    Only for a finished run that was recorded on this machine and has a region that declares bytes or flops.
    They are kept in a file of this machine's; reading a capture changes nothing in it.
    """
    facts = capture.facts
    needed = any(node.bytes_moved or node.flops for _, node in walk(capture.tree))
    here = (facts.get("machine") or {}).get("host") == machine_facts()["host"]
    if facts.get("limits") or not needed or not here or any(p.alive for p in capture.processes):
        return capture
    return replace(capture, facts=facts | {"limits": limits()})


def format_of(file: Path) -> Render:
    """The renderer for a file name; the longest matching ending wins."""
    name = file.name.lower()
    fitting = [ending for ending in FORMATS if name.endswith(ending)]
    if not fitting:
        raise HotloopError(f"hotloop cannot write {file.name!r}; end the name in {', '.join(FORMATS)}.")
    return FORMATS[max(fitting, key=len)]


def check_target(file: Path, force: bool) -> None:
    """Raise HotloopError for a file that cannot be written, before the report is made."""
    format_of(file)
    if file.is_dir():
        raise HotloopError(f"{file} is a folder; name a file in it, such as {file / 'report.html'}.")
    if not file.absolute().parent.is_dir():
        raise HotloopError(f"{file.parent} does not exist; create the folder for {file.name} first.")
    if file.exists() and not force:
        raise HotloopError(f"{file} exists; choose another name, or replace it with --force.")


def write_report(report: CaptureReport, file: Path, force: bool = False) -> int:
    """Write `file` in the format of its extension; returns its size in bytes."""
    check_target(file, force)
    content = format_of(file)(report)
    return write_output(file, content, force)


def describe_output(report: CaptureReport, file: Path) -> str:
    """What a file of this name shows, where its name does not say it; "" for most."""
    return describe_trace(report.capture) if format_of(file) is FORMATS["trace.json"] else ""


# ending of the file name -> what to write
FORMATS: dict[str, Render] = {
    ".html": lambda report: html(report.findings, report.name),
    ".txt": lambda report: terminal(report.findings, capture=report.name),
    ".json": lambda report: strict_json(findings_json(report.findings), indent=1) + "\n",
    ".png": lambda report: png_bytes(report.findings),
    ".svg": lambda report: svg_card(report.findings),
    "capture.json": lambda report: capture_as_json(report.capture),
    "trace.json": lambda report: strict_json(
        perfetto_trace(report.capture, load_settings().category_patterns)
    ),
    ".speedscope.json": lambda report: strict_json(speedscope_profile(report.capture)),
}
