"""`hotloop report`: formats by name, no overwrite, one sentence for a mistake, notes apart from results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hotloop._util.errors import HotloopError
from hotloop.capture.export import to_json
from hotloop.cli import main
from hotloop.report.text import terminal
from hotloop.testing.planted import replay_push_for_each_env
from hotloop.workflows.report import FORMATS, check_target, format_of, report_on, write_report


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A one-file export of a run with a planted defect, in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps(to_json(replay_push_for_each_env()[0])))
    return "run.json"


def test_prints_the_report_and_ends_with_the_next_command(
    capture: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main.main(["report", capture]) == 0
    printed = capsys.readouterr()
    assert printed.out == terminal(report_on(capture).findings, 80, False, True, capture)
    assert printed.out.rstrip().endswith("hotloop report run.json -o report.html")
    assert printed.err == ""


def test_json_is_all_of_stdout_and_the_note_goes_to_stderr(
    capture: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["report", capture, "--json"]) == 0
    printed = capsys.readouterr()
    data = json.loads(printed.out)
    assert data["schema_version"] == 2
    assert data["headline"] == report_on(capture).findings.headline
    assert printed.err == "next: hotloop report run.json -o report.html\n"


BEGINNINGS = {
    "report.html": b"<!doctype html>",
    "report.txt": b"",
    "report.json": b'{\n "kind": "hotloop-report"',
    "chart.png": b"\x89PNG",
    "card.svg": b"<svg",
    "trace.json": b'{"traceEvents"',
    "my.trace.json": b'{"traceEvents"',
    "profile.speedscope.json": b'{"$schema"',
    "REPORT.HTML": b"<!doctype html>",
}


@pytest.mark.parametrize("name", BEGINNINGS)
def test_the_name_chooses_the_format(capture: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["report", capture, "-o", name]) == 0
    content = Path(name).read_bytes()
    assert content.lstrip(b"\xef\xbb\xbf").startswith(BEGINNINGS[name])
    assert len(content) > 200
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"wrote {name} (")
    opens = "it at https://" if name.endswith(("trace.json", "speedscope.json")) else "file:///"
    assert printed.err.splitlines()[-1].startswith(f"next: open {opens}")


def test_text_file_is_the_printed_text(capture: str) -> None:
    write_report(report_on(capture), Path("report.txt"))
    assert Path("report.txt").read_text(encoding="utf-8") == terminal(
        report_on(capture).findings, capture=capture
    )


def test_nothing_is_overwritten_without_force(capture: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("report.txt").write_text("mine")
    assert main.main(["report", capture, "-o", "report.txt"]) == 2
    assert "report.txt exists; choose another name, or replace it with --force." in capsys.readouterr().err
    assert Path("report.txt").read_text() == "mine"
    assert main.main(["report", capture, "-o", "report.txt", "--force"]) == 0
    assert Path("report.txt").read_text(encoding="utf-8") != "mine"
    assert sorted(p.name for p in Path().iterdir()) == ["report.txt", "run.json"]


def test_a_file_that_came_to_be_meanwhile_stays(capture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_run: object) -> str:
        Path("late.txt").write_text("theirs")
        return "ours"

    monkeypatch.setitem(FORMATS, ".txt", slow)
    with pytest.raises(HotloopError, match="exists"):
        write_report(report_on(capture), Path("late.txt"))
    assert Path("late.txt").read_text() == "theirs"


def test_unknown_extension_lists_the_allowed_ones(capture: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["report", capture, "-o", "report.pdf"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "'report.pdf'" in said
    assert all(ending in said for ending in FORMATS)


def test_mistakes_are_found_before_the_work(capture: str, tmp_path: Path) -> None:
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(HotloopError, match="is a folder"):
        check_target(Path("folder.html"), force=True)
    with pytest.raises(HotloopError, match="nowhere does not exist"):
        check_target(Path("nowhere/report.html"), force=False)
    with pytest.raises(HotloopError, match="at least 1"):
        report_on(capture, goal_env_steps=0)


def test_a_trace_is_not_mistaken_for_a_report() -> None:
    assert format_of(Path("trace.json")) is FORMATS["trace.json"]
    assert format_of(Path("a.speedscope.json")) is FORMATS[".speedscope.json"]
    assert format_of(Path("report.json")) is FORMATS[".json"]


def test_a_goal_gives_a_forecast_or_says_why_not(capture: str) -> None:
    findings = report_on(capture, goal_env_steps=10**9).findings
    if findings.forecast is None:
        assert len(findings.not_measured) == len(report_on(capture).findings.not_measured) + 1
    else:
        assert findings.forecast.goal_env_steps == 10**9


def test_without_a_capture_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(["report"]) == 2
    assert "There is no capture in hotloop-runs" in capsys.readouterr().err
