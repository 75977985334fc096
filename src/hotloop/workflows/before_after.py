"""`--card FILE` of `compare`, `try` and `prove`: writes the before/after card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hotloop._util.errors import HotloopError
from hotloop._util.files import write_output
from hotloop.report import before_after
from hotloop.report.before_after import BeforeAfter

FORMATS: dict[str, Callable[[BeforeAfter], str | bytes]] = {
    ".html": before_after.html,
    ".png": before_after.png,
    ".svg": before_after.svg,
}


def check_card(file: Path | None) -> None:
    """Raise HotloopError for a file that cannot be a card, before anything runs."""
    if file is None:
        return
    if file.suffix.lower() not in FORMATS:
        raise HotloopError(f"--card cannot write {file.name!r}; end the name in {', '.join(FORMATS)}.")
    if not file.absolute().parent.is_dir():
        raise HotloopError(f"{file.parent} does not exist; create the folder for {file.name} first.")


def write_card(card: BeforeAfter | None, file: Path) -> str:
    """Write a card, replacing the file if it exists; returns what to tell the user."""
    if card is None:
        return f"{file} was not written: there are too few pairs for an interval"
    write_output(file, FORMATS[file.suffix.lower()](card), force=True)
    return f"wrote {file}"
