"""The flags of the original scripts and ours; the test of each workload runs its scripts."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.originals import COMMANDS

from hotloop.cli.main import main

ROOT = Path(__file__).parents[2]
ORIGINALS = ROOT / "examples" / "originals"
TRANSLATE: dict[str, Any] = runpy.run_path(str(ORIGINALS / "_translate.py"))


@pytest.mark.parametrize("workload", sorted(TRANSLATE["FLAGS"]))
def test_every_flag_is_translated_to_one_that_exists(
    workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", workload, "--help"]) == 0
    shown = re.sub(r"--\[no-\]([a-z0-9-]+)", r"--\1 --no-\1", capsys.readouterr().out)
    known = set(re.findall(r"--[a-z0-9-]+", shown))
    assert set(TRANSLATE["FLAGS"][workload].values()) <= known


def test_values_and_unknown_flags_are_kept() -> None:
    words = ["--epochs", "3", "--epochs=4", "--seed", "--", "x=--epochs"]
    flags = TRANSLATE["FLAGS"]["mario"]
    expected = [flags["--epochs"], "3", f"{flags['--epochs']}=4", "--seed", "--", "x=--epochs"]
    assert TRANSLATE["translate"]("mario", words) == expected


def test_every_flag_in_the_table_of_the_docs_is_known() -> None:
    table = (ROOT / "docs" / "originals.md").read_text()
    known = {flag for flags in TRANSLATE["FLAGS"].values() for flag in flags}
    analyzer = {"--input", "--output", "--charts", "--detailed"}
    for line in table.splitlines():
        if line.startswith("| `") and "profile_turbo_mode" not in line:
            original = line.split("|")[1]
            assert set(re.findall(r"--[a-z-]+", original)) <= known | analyzer, line


def test_the_commands_whose_time_is_measured_are_those_in_the_docs() -> None:
    table = (ROOT / "docs" / "originals.md").read_text()
    listed = re.findall(r"^\| `([^`]+)` \|", table.partition("| processor time |")[2], flags=re.MULTILINE)
    measured = [line.replace("-m ", "python -m ", 1) if line[0] == "-" else line for line in COMMANDS]
    assert listed == [*measured, "benchmark_performance.py"]


def test_a_flag_counts_in_both_forms() -> None:
    has_flag = TRANSLATE["has_flag"]
    for words in (["--trainer", "hotloop"], ["--trainer=hotloop"]):
        assert has_flag(words, "--trainer")
    assert has_flag(["--no_convlstm"], "--convlstm", "--no-convlstm")
    assert not has_flag(["--trainers=hotloop", "x=--trainer"], "--trainer")


@pytest.mark.parametrize("words", [["--trainer=hotloop"], ["--trainer", "hotloop"], []])
def test_the_original_takes_torchrl_unless_a_trainer_is_given(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[list[str]] = []
    monkeypatch.setattr("hotloop.cli.main.main", lambda given: passed.append(given) or 0)
    script = ORIGINALS / "scripts" / "profile_training_time.py"
    monkeypatch.setattr(sys, "argv", [str(script), *words])
    monkeypatch.delitem(sys.modules, "_translate", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit):
        runpy.run_path(str(script), run_name="__main__")
    assert ("torchrl" in passed[0]) == (not words)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--steps", "0"], "leave nothing to play"),
        (["--steps", "3", "--envs=4"], "leave nothing to play"),
        (["--wafers", "0"], "leave nothing to play"),
        (["--steps", "16", "--wat"], "does not know --wat"),
        (["--steps", "16", "--budget", "5x"], "--budget is '5x'; write it as 90s"),
    ],
)
def test_mistakes_of_the_original_for_the_environment_come_before_it_runs(
    words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = ORIGINALS / "scripts" / "profile_turbo_mode.py"
    monkeypatch.setattr(sys, "argv", [str(script), *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert sentence in printed.err and not printed.out
