"""hotloop in a notebook: results that show themselves, and `%%hotloop`, which records a cell.

%load_ext hotloop

%%hotloop
model.learn(10_000)
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop.analysis.comparison import Comparison
from hotloop.capture.folder import new_folder
from hotloop.capture.model import Capture
from hotloop.instrument.libraries import Instrumentation
from hotloop.measure.profiler import default
from hotloop.report.notebook import capture_html, comparison_html
from hotloop.workflows.report import CaptureReport, report_on


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext hotloop` calls."""
    show_results()
    shell.register_magic_function(lambda line, cell: record_cell(shell, line, cell), "cell", "hotloop")


def show_results() -> None:
    """Let captures, comparisons and reports show themselves as HTML."""
    for kind, html in {Capture: _capture, Comparison: comparison_html, CaptureReport: _report}.items():
        type.__setattr__(kind, "_repr_html_", html)


def record_cell(shell: Any, line: str, cell: str) -> CaptureReport | None:
    """`%%hotloop [FOLDER]`: run the cell with its libraries recorded, and return the report on it."""
    words = shlex.split(line)
    if len(words) > 1:
        raise HotloopError("%%hotloop takes one folder at most, as in: %%hotloop hotloop-runs/first")
    if default.is_recording:
        raise HotloopError(
            "A recording is running already; end it with hotloop.stop(), then run the cell again."
        )
    default.start(Path(words[0]) if words else new_folder("notebook"))
    instrumentation = Instrumentation()
    try:
        instrumentation.install()
        default.sample_lines()
        shell.run_cell(cell)  # it shows the error of a cell that fails
    finally:
        instrumentation.remove()
        folder = default.stop()
    return report_on(os.fspath(folder)) if folder is not None else None


def _capture(capture: Capture) -> str | None:
    return _report(report_on(os.fspath(capture.path))) if capture.path is not None else None


def _report(report: CaptureReport) -> str:
    return capture_html(report.findings, report.name)
