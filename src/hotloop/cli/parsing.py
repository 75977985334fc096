"""Reads the words of a verb; a mistake becomes one sentence in the style of all other errors."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import inspect
import io
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import tyro

from hotloop._util.errors import HotloopError
from hotloop.cli.help_text import WIDE, help_text

_BOX = str.maketrans(dict.fromkeys("╭╮╰╯│─", " "))
_NOT_A = {"int": "a whole number", "float": "a number"}


def parse(
    kind: type[Any], words: list[str], prog: str, description: str | None = None, *, tail: str = ""
) -> Any:
    """An instance of the dataclass `kind` from command-line words; raises HotloopError for a mistake.

    Help ends the program; `tail` is what its first line shows after the options. The boxes in which tyro
    shows help and errors are translated.
    """
    caught, told = io.StringIO(), _WithBoxes()
    wants_help = "-h" in words or "--help" in words
    try:
        with (
            _columns(WIDE if wants_help else None),
            contextlib.redirect_stderr(caught),
            contextlib.redirect_stdout(told),
        ):
            given = tyro.cli(kind, args=words, prog=prog, description="")
    except SystemExit as ended:
        if not ended.code:
            about = inspect.cleandoc(description or kind.__doc__ or "")
            print(help_text(told.getvalue(), prog, about, tail), end="")
            raise
        raise HotloopError(
            f"{mistake(caught.getvalue(), prog, unknown(kind, words))}; see: {prog} --help"
        ) from None
    if caught.getvalue():
        print(caught.getvalue(), end="", file=sys.stderr)
    return given


class _WithBoxes(io.StringIO):
    """Text with an encoding: without one, tyro draws no boxes."""

    encoding = "utf-8"


@contextlib.contextmanager
def _columns(width: int | None) -> Iterator[None]:
    """Let tyro lay out its text this wide; None: as it likes."""
    before = os.environ.get("COLUMNS")
    if width is not None:
        os.environ["COLUMNS"] = str(width)
    try:
        yield
    finally:
        if before is not None:
            os.environ["COLUMNS"] = before
        elif width is not None:
            del os.environ["COLUMNS"]


def unknown(kind: type[Any], words: list[str]) -> str:
    """The options among the words that the dataclass does not have, and the nearest that it has; "" for none.

    tyro complains about a missing argument first, which is not the mistake that was made.
    """
    known = ["--help", "-h", *(f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(kind))]
    typed = [word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)]
    odd = [word for word in typed if word.replace("_", "-") not in known]
    near = difflib.get_close_matches(odd[0], known, n=1) if odd else []
    return " ".join(odd) + (f"; did you mean {near[0]}" if near else "")


def mistake(told: str, prog: str, not_known: str = "") -> str:
    """What tyro says in a box, as one sentence without its end; `not_known` is what `unknown` found."""
    lines = [line.translate(_BOX).strip(" |") for line in told.splitlines()]
    lines = [line for line in lines if line.strip("-+")]  # without rules
    text = " ".join(line for line in lines if line)
    text = re.split(r"For full helptext|Argument helptext", text)[0].strip()
    if found := re.search(r"Unrecognized options: (.+?)(?: Perhaps you meant:? (--?[\w-]+).*)?$", text):
        near = f"; did you mean {found[2]}" if found[2] else ""
        many = " ".join(dict.fromkeys(found[1].split()))
        return f"{prog} does not know {many}{near}"
    if found := re.search(r"Missing value for argument '([^']+)'", text):
        if found[1].startswith("-"):
            several = re.search(r"Expected (\d+) values", text)
            wanted = f"{several[1]} values" if several and several[1] != "1" else "a value"
            return f"{found[1]} needs {wanted}"
        return f"{prog} does not know {not_known}" if not_known else f"{prog} needs {found[1].upper()}"
    if found := re.search(r"Error parsing ([^:]+): could not convert string to (float): (.+)", text):
        return f"{found[1]} is {found[3]}, which is not {_NOT_A[found[2]]}"
    if found := re.search(r"Error parsing ([^:]+): invalid literal for (int)\(\) with base 10: (.+)", text):
        return f"{found[1]} is {found[3]}, which is not {_NOT_A[found[2]]}"
    if found := re.search(r"Error parsing (\S+): no type .*(INT|FLOAT) could .* from \[(.*?)\]\. Got", text):
        return f"{found[1]} is {found[3]}, which is not {_NOT_A[found[2].lower()]}"
    if found := re.search(r"Error parsing (\S+): Could not find valid parse for arguments: \[(.*)\]", text):
        return f"{found[1]} cannot be {found[2].replace(chr(39), '').replace(',', '') or 'empty'}"
    if found := re.search(r"invalid choice '([^']*)'.*?Expected one of \(([^)]*)\)", text):
        choices = found[2].replace(chr(39), "").rstrip(", ").split(", ")
        if "None" in choices:  # the default of an optional setting; tyro lists these in any order
            choices = sorted(set(choices) - {"None"})
        return f"{found[1]!r} is not one of {', '.join(choices)}"
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
