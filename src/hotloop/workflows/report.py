"""`hotloop report`: reads a capture, explains it, and renders it in the format asked for."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop.analysis.advice import BUILT_IN
from hotloop.analysis.explain import explain
from hotloop.analysis.findings import Findings
from hotloop.analysis.recommend import AdviceFunction, AdviceWarning
from hotloop.analysis.region_tree import walk
from hotloop.capture.folder import latest_capture, update_facts
from hotloop.capture.model import Capture
from hotloop.capture.open_capture import open_capture
from hotloop.machine.facts import machine_facts
from hotloop.machine.limits import limits
from hotloop.workflows.settings import load_settings

ADVICE_GROUP = "hotloop.advice"  # entry points: each an advice function, or a list of them


@dataclass(frozen=True)
class CaptureReport:
    """A capture with what was found in it."""

    name: str  # as the user would type it
    capture: Capture
    findings: Findings


Render = Callable[[CaptureReport], str | bytes]


def report_on(path: str | None, goal_env_steps: int | None = None) -> CaptureReport:
    """Open the capture at `path`, the latest when None, and explain it with the project's settings."""
    if goal_env_steps is not None and goal_env_steps <= 0:
        raise HotloopError(f"The goal is {goal_env_steps} env steps; it must be a number above 0.")
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

    A package whose functions cannot be loaded costs an `AdviceWarning`; the others are used.
    """
    found: list[AdviceFunction] = list(BUILT_IN)
    for point in sorted(
        metadata.entry_points(group=ADVICE_GROUP) if points is None else points, key=lambda p: p.name
    ):
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


def _functions_of(offered: Any) -> list[AdviceFunction]:
    functions = [offered] if callable(offered) else list(offered)
    for function in functions:
        if not callable(function):
            raise TypeError(
                f"{function!r} is not callable; advice takes a RunView, returns a Recommendation or None"
            )
    return functions


def with_limits(capture: Capture) -> Capture:
    """The capture with this computer's limits in it, measured now if they are missing and of use.

    Only for a run that was recorded on this very computer, has ended, and has a region that says
    what it moved or computed; they are kept in its capture.json.
    """
    facts, folder = capture.facts, capture.path
    useful = any(node.bytes_moved or node.flops for _, node in walk(capture.tree))
    here = (facts.get("machine") or {}).get("host") == machine_facts()["host"]
    if facts.get("limits") or not useful or not here or any(p.alive for p in capture.processes):
        return capture
    facts = facts | {"limits": limits()}
    if folder is not None and folder.is_dir():
        with contextlib.suppress(OSError):  # a read-only capture: they are measured again next time
            update_facts(folder, {"limits": facts["limits"]})
    return replace(capture, facts=facts)


def format_of(file: Path) -> Render:
    """The renderer for a file's extension; the longest that fits wins."""
    name = file.name.lower()
    fitting = [ending for ending in FORMATS if name.endswith(ending)]
    if not fitting:
        raise HotloopError(
            f"{file.name!r} has no extension hotloop can write; use one of {', '.join(FORMATS)}."
        )
    return FORMATS[max(fitting, key=len)]


def check_target(file: Path, force: bool) -> None:
    """Complain about a file that cannot be written before the work is done, not after."""
    format_of(file)
    if file.is_dir():
        raise HotloopError(f"{file} is a folder; name a file in it, such as {file / 'report.html'}.")
    if not file.absolute().parent.is_dir():
        raise HotloopError(f"There is no folder {file.parent} for {file.name}; make it first.")
    if file.exists() and not force:
        raise HotloopError(f"{file} exists; choose another name, or replace it with --force.")


def write_report(run: CaptureReport, file: Path, force: bool = False) -> int:
    """Write `file` in the format its extension names; returns its size in bytes.

    Without `force` a file that is there stays as it is, also when it came to be meanwhile.
    """
    check_target(file, force)
    content = format_of(file)(run)
    data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
    try:
        _place(file, data, force)
    except FileExistsError:
        raise HotloopError(f"{file} exists; choose another name, or replace it with --force.") from None
    except OSError as error:
        raise HotloopError(f"{file} cannot be written ({error.strerror}); choose another place.") from error
    return len(data)


def _place(file: Path, data: bytes, force: bool) -> None:
    """Put the whole file in place in one step; on failure nothing of it is left."""
    handle, name = tempfile.mkstemp(dir=file.absolute().parent, prefix=f".{file.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
        temporary.chmod(0o644)
        if force:
            temporary.replace(file)
        else:
            os.link(temporary, file)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _html(run: CaptureReport) -> str:
    from hotloop.report.html import html

    return html(run.findings, run.name)


def _text(run: CaptureReport) -> str:
    from hotloop.report.text import terminal

    return terminal(run.findings, capture=run.name)


def _json(run: CaptureReport) -> str:
    from hotloop.report.to_json import findings_json

    return json.dumps(findings_json(run.findings), indent=1) + "\n"


def _png(run: CaptureReport) -> bytes:
    from hotloop.report.png import png_bytes

    return png_bytes(run.findings)


def _card(run: CaptureReport) -> str:
    from hotloop.report.svg_card import svg

    return svg(run.findings)


def _trace(run: CaptureReport) -> str:
    from hotloop.report.perfetto import trace

    return json.dumps(trace(run.capture))


def _speedscope(run: CaptureReport) -> str:
    from hotloop.report.speedscope import profile

    return json.dumps(profile(run.capture))


def _export(run: CaptureReport) -> str:
    from hotloop.capture.export import text

    return text(run.capture)


# How a file's name may end, and what is then written.
FORMATS: dict[str, Render] = {
    ".html": _html,
    ".txt": _text,
    ".json": _json,
    ".png": _png,
    ".svg": _card,
    "capture.json": _export,
    "trace.json": _trace,
    ".speedscope.json": _speedscope,
}
