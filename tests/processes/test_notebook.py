"""Captures, comparisons and reports in a notebook; `%%hotloop` records a cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hotloop
from hotloop._util.errors import HotloopError
from hotloop.measure.profiler import default
from hotloop.report.notebook import capture_html
from hotloop.workflows.notebook import record_cell, show_results
from tests.golden import findings as golden

CELL = """
import time
for step in range(30):
    with hotloop.profile("env_step"):
        time.sleep(0.001)
    hotloop.progress(env_steps=1)
"""


class Shell:
    """Runs a cell as IPython does: errors are shown, not raised."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def run_cell(self, cell: str) -> None:
        try:
            exec(cell, {"hotloop": hotloop})
        except Exception as error:
            self.errors.append(repr(error))


def html_of(value: Any) -> str:
    return str(value._repr_html_())


@pytest.fixture(autouse=True)
def nothing_recorded() -> Any:
    yield
    default.start()
    default.stop()


def test_a_cell_is_recorded_with_its_report(tmp_path: Path) -> None:
    show_results()
    report = record_cell(Shell(), str(tmp_path / "cell"), CELL)
    assert report is not None and report.capture.progress.env_steps == 30
    page = html_of(report)
    assert "data:image/svg+xml" in page and f"hotloop report {tmp_path / 'cell'}" in page
    assert html_of(hotloop.load(tmp_path / "cell")) == page
    assert not default.is_recording


def test_a_cell_that_fails_keeps_what_it_recorded(tmp_path: Path) -> None:
    shell = Shell()
    report = record_cell(shell, str(tmp_path / "cell"), CELL + "\n1 / 0")
    assert shell.errors == ["ZeroDivisionError('division by zero')"]
    assert report is not None and report.capture.progress.env_steps == 30


def test_a_cell_inside_a_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HotloopError, match="one folder at most"):
        record_cell(Shell(), "a b", CELL)
    default.start(tmp_path / "mine")
    with pytest.raises(HotloopError, match=r"hotloop.stop\(\)"):
        record_cell(Shell(), "", CELL)
    default.stop()


def test_a_comparison_shows_its_verdicts(tmp_path: Path) -> None:
    show_results()
    for name in "ab":
        record_cell(Shell(), str(tmp_path / name), CELL)
    with pytest.warns(UserWarning, match="not run in turn"):
        page = html_of(hotloop.compare(tmp_path / "a", tmp_path / "b"))
    assert "<table>" in page and "against A" in page


def test_hostile_names_stay_text() -> None:
    page = capture_html(golden.hostile(), "<script>alert(1)</script>")
    assert "<script" not in page


@pytest.mark.long
def test_a_real_notebook(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    made = nbformat.v4.new_notebook()
    sources = ["import hotloop\n%load_ext hotloop", f"%%hotloop first\n{CELL}", "hotloop.load('first')"]
    made.cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbclient.NotebookClient(made, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for cell in made.cells[1:]:
        (output,) = [one for one in cell.outputs if one.output_type != "stream"]
        assert "data:image/svg+xml" in output.data["text/html"], json.dumps(cell.outputs)
