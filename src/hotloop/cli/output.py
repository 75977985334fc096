"""How verbs print: results on stdout as wide as the terminal, everything else on stderr."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

from hotloop.report.pen import Pen


def pen_for_stdout() -> Pen:
    """Colour where it is welcome, ASCII where it must be, at most 120 columns."""
    return _pen_for(sys.stdout)


def pen_for_stderr() -> Pen:
    """The same for what is told beside the result."""
    return _pen_for(sys.stderr)


def _pen_for(stream: TextIO) -> Pen:
    on_terminal = stream.isatty()
    colour = on_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    encoding = (stream.encoding or "ascii").lower().replace("-", "")
    width = max(min(shutil.get_terminal_size((100, 24)).columns, 120), 60)
    return Pen(width, colour, encoding.startswith("utf"))


def note(sentence: str) -> None:
    """Something beside the result: goes to stderr."""
    print(sentence, file=sys.stderr)
