"""Plans, series and baselines written by hotloop 0.1 can still be read, reported on and continued."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from hotloop.analysis.comparison import compare_series
from hotloop.capture.plan_file import read_plan
from hotloop.capture.series import read
from hotloop.cli.main import main
from hotloop.lab.process import Job, Outcome
from hotloop.workflows.baseline import compare_with_baseline, write_baseline
from tests.unit.test_lab import FakeLab

WRITTEN_BY_0_1 = Path(__file__).parent.parent / "golden" / "written_by_0_1.tar.gz"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written_by_0_1")
    with tarfile.open(WRITTEN_BY_0_1) as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_a_plan(files: Path) -> None:
    plan = read_plan(files / "plan.toml")
    assert [variant.name for variant in plan.variants] == ["as it is", "try-one-thread"]
    assert plan.variants[1].environment == (("OMP_NUM_THREADS", "1"),)
    assert (plan.budget_s, plan.tolerance) == (600.0, 0.03)


def test_a_series_and_the_verdict_on_it(files: Path) -> None:
    series = read(files / "series")
    assert not series.warnings and len(series.runs) == 8
    assert all(run.ok and run.figures.env_steps for run in series.runs)
    found = compare_series(series)
    assert found.metric == compare_series(replace(series, path=None)).metric
    assert found.compared[0].pairs == 4 and found.compared[0].work


def test_a_report_on_a_series_and_a_comparison_of_its_captures(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(files / "series")]) == 0
    assert "undecided" in capsys.readouterr().out
    runs = files / "series" / "runs"
    assert main(["compare", str(runs / "0000/capture"), str(runs / "0001/capture"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"].startswith("hotloop")


def test_a_series_is_continued(files: Path) -> None:
    def times(job: Job, number: int) -> float | Outcome:
        return 2.0 if job.command[-1] == "40" else 1.0

    series = read(files / "series")
    ended = FakeLab(times).run(replace(series, plan=replace(series.plan, budget_s=None)))
    assert ended.ended in ("decided", "looks") and len(ended.series.runs) > len(series.runs)
    assert [run.number for run in ended.series.runs] == list(range(len(ended.series.runs)))


def test_a_baseline(files: Path, tmp_path: Path) -> None:
    capture, file = str(files / "capture"), tmp_path / "baseline.json"
    write_baseline(capture, file)
    old = json.loads(file.read_text()) | {"kind": "hotloop baseline", "schema_version": 1}
    del old["checksum"]
    old["times_s"]["env step"] = old["times_s"].pop("env_step")
    file.write_text(json.dumps(old))
    found = compare_with_baseline(capture, file, tolerance=0.03, with_time=True)
    assert found.counters and not found.changes and found.metric == "env_step"
