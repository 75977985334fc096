"""The commands that test a recommendation: `hotloop prove`, `hotloop try` or `hotloop run`, ready to type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from hotloop.analysis.findings import Recommendation
from hotloop.capture.model import Capture
from hotloop.capture.plan import apply_overrides

BY_HAND = "make the change, then run"
RECORD_AGAIN = "make the change, then record again"
ONE_MINUTE = ("threads",)  # patches whose trial is the test itself: it decides within a minute


def command_again(capture: Capture) -> list[str]:
    """The recorded command without `--capture DIR`: that folder has a recording already."""
    words = capture.command
    ours = is_hotloop(words)
    folder = capture.path.name if capture.path is not None else None
    kept: list[str] = []
    at = 0
    while at < len(words):
        name, assigned, value = words[at].partition("=")
        if name == "--capture" and at > 0:
            length = 1 if assigned else 2
            value = value if assigned else words[at + 1] if at + 1 < len(words) else ""
            if ours or (folder is not None and PurePath(value).name == folder):
                at += length
                continue
        kept.append(words[at])
        at += 1
    return kept


def is_hotloop(command: Sequence[str]) -> bool:
    """Whether this is a command of hotloop itself, which records without `hotloop run`."""
    return typed(command)[:1] == ["hotloop"] or (
        _is_python(command) and list(command[1:3]) == ["-m", "hotloop"]
    )


def typed(command: Sequence[str]) -> list[str]:
    """The command without the paths that a shell finds: `/env/bin/python /env/bin/hotloop train` is
    `hotloop train`."""
    words = list(command)
    if _is_python(words) and len(words) > 1 and PurePath(words[1]).name == "hotloop":
        words = words[1:]  # how the kernel starts the script that pip installed
    return ["hotloop", *words[1:]] if words and PurePath(words[0]).name == "hotloop" else words


def _is_python(command: Sequence[str]) -> bool:
    return bool(command) and PurePath(command[0]).name.startswith("python")


def flag_in(command: Sequence[str], names: Sequence[str]) -> tuple[str, float] | None:
    """The first of these settings that the command gives a number: `--name 500`, `--name=500` or `name=500`.

    Returns it as it is written, without its value, and the value.
    """
    wanted = {_alike(name) for name in names}
    for at, word in enumerate(command[1:], 1):
        name, assigned, value = word.partition("=")
        if _alike(name) not in wanted:
            continue
        if not assigned:
            value = command[at + 1] if name.startswith("-") and at + 1 < len(command) else ""
        if re.fullmatch(r"\d+(\.\d*)?(e\d+)?", value):
            return name, float(value)
    return None


def _alike(name: str) -> str:
    return name.lstrip("-").replace("_", "-").lower()


def change_of(recommendation: Recommendation) -> dict[str, Any]:
    """The changed variant of the plan; `environment`, `set` or `patch`: how a program can make the change."""
    variants = recommendation.plan.get("variants", ())
    return dict(variants[-1]) if len(variants) > 1 else {}


def prove_command(capture: Capture, recommendation: Recommendation, number: int) -> str:
    """The command that tests recommendation `number`; "" if the recorded command is unknown.

    A change that only a person can make comes first, as in `make the change, then run: hotloop prove ...`.
    """
    command = command_again(capture)
    if not command or recommendation.tier == "not_worth_optimising":
        return ""
    change = change_of(recommendation)
    variables, settings, patch = (change.get(key) for key in ("environment", "set", "patch"))
    if patch in ONE_MINUTE or (patch and capture.path is None):
        return as_typed(f"try --only {patch}", capture, command)
    if capture.path is not None:
        prove = f"hotloop prove {shlex.quote(str(capture.path))} {number}"
        if variables or settings or patch:
            return prove
        if capture.facts.get("git_hash"):
            return f"{BY_HAND}: {prove} --rev"
    if settings:
        return run_again(capture, apply_overrides(tuple(command), tuple(settings)))
    if variables:
        assigned = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
        return f"{assigned} {run_again(capture, command)}"
    return f"{RECORD_AGAIN}: {run_again(capture, command)}"


def run_again(capture: Capture, command: Sequence[str]) -> str:
    """The command line that records the command into a new folder."""
    return shlex.join(typed(command)) if is_hotloop(command) else as_typed("run", capture, command)


def as_typed(verb: str, capture: Capture, command: Sequence[str]) -> str:
    """`hotloop VERB train.py ...`, or `hotloop VERB -- ...` if another Python or program was started."""
    first, *rest = command = typed(command)
    if first == capture.facts.get("interpreter") and rest and (rest[0] == "-m" or rest[0].endswith(".py")):
        return f"hotloop {verb} {shlex.join(rest)}"
    return f"hotloop {verb} -- {shlex.join(command)}"
