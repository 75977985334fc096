"""`hotloop report SERIES`: reads a series, judges it, and renders it in the requested format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hotloop._util.errors import HotloopError
from hotloop._util.files import write_output
from hotloop.analysis.comparison import Comparison, compare_series, rank_comparison
from hotloop.analysis.ranking import RankedTable
from hotloop.analysis.scaling import Scaling, scaling_of
from hotloop.capture import series as store
from hotloop.capture.series import Series
from hotloop.report import before_after
from hotloop.report.before_after import BeforeAfter
from hotloop.report.pen import Pen
from hotloop.report.series_html import series_html
from hotloop.report.series_text import investigation_json, investigation_text, series_text
from hotloop.report.to_json import strict_json
from hotloop.workflows.lab import read_combination


@dataclass(frozen=True)
class SeriesReport:
    """A series and its findings."""

    name: str  # as the user would type it
    series: Series
    found: Comparison
    table: RankedTable | None
    scaling: Scaling | None


def is_series(path: str | None) -> bool:
    """Whether `path` names a series rather than a capture."""
    return path is not None and store.is_series(Path(path))


def series_report(path: str) -> SeriesReport:
    """Read the series at `path` and judge it as it stands."""
    series = store.read(Path(path))
    found = compare_series(series)
    table = rank_comparison(found, read_combination(series)) if found.compared else None
    return SeriesReport(path, series, found, table, scaling_of(series))


def text(report: SeriesReport, pen: Pen | None = None) -> str:
    """What `hotloop report SERIES` prints."""
    pen = pen or Pen()
    if report.scaling is None and len(report.found.compared) == 1:
        return series_text(report.series, report.found, pen)
    said = investigation_text(report.series, report.found, report.table, report.scaling, pen)
    return series_text(report.series, report.found, pen, said)


def as_json(report: SeriesReport) -> str:
    """The report as one JSON object."""
    return strict_json(investigation_json(report.series, report.found, report.table, report.scaling)) + "\n"


def html(report: SeriesReport, home: str = "") -> str:
    """The report as an HTML page; `home` is a link back."""
    combination = read_combination(report.series)
    found = report.found
    if combination is not None:
        found = replace(found, compared=(*found.compared, combination))
    return series_html(report.series, found, report.table, report.scaling, report.name, home)


def card(report: SeriesReport) -> BeforeAfter:
    """The before/after card; raises HotloopError if there is no interval yet."""
    found = before_after.card_of_series(report.series, report.found)
    if found is None:
        raise HotloopError(
            f"{report.name} has too few pairs for an interval, so there is no card; "
            "continue it with hotloop compare --series DIR --resume."
        )
    return found


FORMATS: dict[str, Callable[[SeriesReport], str | bytes]] = {
    ".html": html,
    ".txt": text,
    ".json": as_json,
    ".svg": lambda report: before_after.svg(card(report)),
    ".png": lambda report: before_after.png(card(report)),
}


def write_series_report(report: SeriesReport, file: Path, force: bool = False) -> int:
    """Write `file` in the format of its extension; returns its size in bytes."""
    render = FORMATS.get(file.suffix.lower())
    if render is None:
        raise HotloopError(
            f"hotloop cannot write a series as {file.name!r}; end the name in {', '.join(FORMATS)}."
        )
    return write_output(file, render(report), force)
