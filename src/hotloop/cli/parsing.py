"""Reads the words of a verb; a mistake becomes one sentence in the style of all other errors."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from typing import Any

import tyro

from hotloop._util.errors import HotloopError

_BOX = str.maketrans(dict.fromkeys("╭╮╰╯│─", " "))
_NOT_A = {"int": "a whole number", "float": "a number"}


def parse(kind: type[Any], words: list[str], prog: str, description: str | None = None) -> Any:
    """An instance of the dataclass `kind` from command-line words; raises HotloopError for a mistake.

    Help is printed by tyro, which ends the program. Its errors, boxes of several lines, are translated.
    """
    caught = io.StringIO()
    try:
        with contextlib.redirect_stderr(caught):
            given = tyro.cli(kind, args=words, prog=prog, description=description)
    except SystemExit as ended:
        if not ended.code:
            raise
        raise HotloopError(f"{mistake(caught.getvalue(), prog)}; see: {prog} --help") from None
    if caught.getvalue():
        print(caught.getvalue(), end="", file=sys.stderr)
    return given


def mistake(told: str, prog: str) -> str:
    """What tyro says in a box, as one sentence without its end."""
    lines = [line.translate(_BOX).strip(" |") for line in told.splitlines()]
    lines = [line for line in lines if line.strip("-+")]  # without rules
    text = " ".join(line for line in lines if line)
    text = re.split(r"For full helptext|Argument helptext", text)[0].strip()
    if found := re.search(r"Unrecognized options: (.+?)(?: Perhaps you meant:? (--?[\w-]+).*)?$", text):
        near = f"; did you mean {found[2]}" if found[2] else ""
        many = " ".join(dict.fromkeys(found[1].split()))
        return f"{prog} does not know {many}{near}"
    if found := re.search(r"Missing value for argument '([^']+)'", text):
        return f"{found[1]} needs a value"
    if found := re.search(r"Error parsing ([^:]+): could not convert string to (float): (.+)", text):
        return f"{found[1]} is {found[3]}, which is not {_NOT_A[found[2]]}"
    if found := re.search(r"Error parsing ([^:]+): invalid literal for (int)\(\) with base 10: (.+)", text):
        return f"{found[1]} is {found[3]}, which is not {_NOT_A[found[2]]}"
    if found := re.search(r"invalid choice '([^']*)'.*?Expected one of \(([^)]*)\)", text):
        return f"{found[1]!r} is not one of {found[2].replace(chr(39), '').rstrip(', ')}"
    if "Missing from" in text:
        return f"{prog} needs {' and '.join(_missing(lines)) or 'more arguments'}"
    return (
        re.sub(r"^[A-Z][a-z]+ (?:error|argument|options?|choice) +", "", text).rstrip(". ") or "wrong usage"
    )


def _missing(lines: list[str]) -> list[str]:
    """Names of the arguments that are missing: words in capitals, options, or choices in braces."""
    found = [
        line for line in lines if re.fullmatch(r"(?:--?[\w-]+(?: [^ ]+)?|[A-Z][A-Z_.]*|\{[^}]*\})", line)
    ]
    return list(dict.fromkeys(name for name in found if not name.startswith("--help")))
