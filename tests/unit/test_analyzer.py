"""The command line of the original analyzer, on a folder and on an export."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hotloop import Profiler, analyzer
from hotloop.capture.export import save_json
from hotloop.capture.open_capture import open_capture


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "run" / "capture"
    profiler = Profiler(core_name="python").start(place)
    for _ in range(300):
        with profiler.profile("env_step"), profiler.profile("slow_part"):
            sum(range(2000))
        with profiler.profile("learner_forward"):
            sum(range(200))
        profiler.progress(env_steps=1, updates=1)
    profiler.stop()
    return place


def test_all_outputs_from_an_export(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    source = tmp_path / "profiling_report.json"
    save_json(open_capture(str(folder)), source)
    text, chart, detailed = (tmp_path / n for n in ("analysis.txt", "performance.png", "detailed.json"))
    words = ["--input", source, "--output", text, "--charts", chart, "--detailed", detailed]
    assert analyzer.main([str(word) for word in words]) == 0
    assert "slow_part" in text.read_text() and "\x1b" not in text.read_text()
    assert chart.read_bytes().startswith(b"\x89PNG")
    data = json.loads(detailed.read_text())
    assert data["schema_version"] == 2 and data["env_steps"] == 300
    assert capsys.readouterr().out == f"wrote {text}\nwrote {chart}\nwrote {detailed}\n"


def test_without_output_the_text_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert analyzer.main(["--input", str(folder)]) == 0
    assert "slow_part" in capsys.readouterr().out


def test_detailed_output_given_as_input_says_what_it_is(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    detailed = tmp_path / "detailed.json"
    assert analyzer.main(["--input", str(folder), "--detailed", str(detailed)]) == 0
    capsys.readouterr()
    assert analyzer.main(["--input", str(detailed)]) == 2
    error = capsys.readouterr().err
    assert "holds findings" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--output", "no/such/folder/a.txt"], "no/such/folder does not exist"),
        (["--detailed", "."], "is a folder; name a file"),
        (["--output", "a.x", "--detailed", "./a.x"], "the same name"),
    ],
)
def test_unwritable_outputs_are_refused_before_the_work(
    words: list[str],
    sentence: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert analyzer.main(["--input", str(folder), *words]) == 2
    assert sentence in capsys.readouterr().err
    assert list((tmp_path / "empty").iterdir()) == []


def test_it_runs_as_a_module(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hotloop.analyzer", "--input", str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "slow_part" in done.stdout
