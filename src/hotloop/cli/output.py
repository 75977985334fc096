"""How verbs print: results to stdout, as wide as the terminal; everything else to stderr."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TextIO

from hotloop._util.console import note as note
from hotloop.report.pen import Pen


def pen_for_stdout() -> Pen:
    """A pen with the terminal's width, colour and characters."""
    return _pen_for(sys.stdout)


def pen_for_stderr() -> Pen:
    """The same for stderr."""
    return _pen_for(sys.stderr)


def _pen_for(stream: TextIO) -> Pen:
    on_terminal = stream.isatty()
    colour = on_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    encoding = (stream.encoding or "ascii").lower().replace("-", "")
    return Pen(max(min(terminal_width(), 120), 60), colour, encoding.startswith("utf"))


def terminal_width() -> int:
    """Columns of the terminal; 80 where there is none."""
    return shutil.get_terminal_size((80, 24)).columns
