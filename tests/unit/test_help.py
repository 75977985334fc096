"""--help of every verb: no wider than the terminal, without types and empty defaults."""

from __future__ import annotations

import re

import pytest

from hotloop.cli import help_text
from hotloop.cli.main import VERBS, run_words
from hotloop.workflows.train import WORKLOADS

ALL = [
    [],
    *([verb] for verb in VERBS),
    *(["train", workload] for workload in WORKLOADS),
    *(["tune", workload] for workload in WORKLOADS),
]


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    try:
        assert run_words(words) == 0
    except SystemExit as ended:
        assert not ended.code
    return capsys.readouterr().out


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_fits_the_terminal_and_names_no_types(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for width in (80, 60, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        text = printed([*words, "--help"], capsys)
        assert text.startswith(f"usage: {' '.join(['hotloop', *words])}")
        commands = [line for line in text.splitlines() if re.match(r"    \w", line) and width == 60]
        long = [line for line in text.splitlines() if len(line) > min(width, 100) and line not in commands]
        assert long == []
        for word in ("default: None", "None}", "{None", "INT", "FLOAT", "STR", "default: ''", "(required)"):
            assert word not in text


@pytest.mark.parametrize("verb", ["train", "tune"])
def test_a_bare_verb_with_workloads_shows_its_help_and_is_wrong_usage(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_words([verb])
    assert ended.value.code == 2
    assert capsys.readouterr().out.startswith(f"usage: hotloop {verb} WORKLOAD")


def test_every_option_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(["compare", "--help"], capsys)
    for word in ("--a COMMAND", "--set-b NAME=VALUE", "--fail-if slower:PERCENT", "[A B]", "--json"):
        assert word in text


def test_the_script_of_tune_has_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(["tune", "--help", "--", "python", "train.py"], capsys)
    assert "-- COMMAND" in text and "--no-threads" in text


BOXES = """\
usage: x [-h] [OPTIONS]

╭─ positional arguments ─────────────────────────────────────────────╮
│ [CAPTURE]   Capture folder. (default: the latest in hotloop-runs/) │
╰────────────────────────────────────────────────────────────────────╯
╭─ options ──────────────────────────────────────────────────────────╮
│ -h, --help  show this help message and exit                        │
│ --n {None}|INT                                                     │
│             First line,                                            │
│             second line. (default: None)                           │
│ --fast, --no-fast                                                  │
│             Be fast. (default: True)                               │
│ --way {None,a,b}  One of them. (default: None)                     │
╰────────────────────────────────────────────────────────────────────╯
"""


def test_boxes_become_a_table() -> None:
    about = "First\nparagraph.\n\nhotloop x --n 3\n\nExamples:\n\n    hotloop x"
    assert help_text.help_text(BOXES, "hotloop x", about, "SCRIPT", 70) == (
        "usage: hotloop x [options] [CAPTURE] SCRIPT\n\n"
        "First paragraph.\n\n"
        "    hotloop x --n 3\n\n"
        "Examples:\n\n"
        "    hotloop x\n\n"
        "arguments:\n"
        "  [CAPTURE]  Capture folder. (default: the latest in hotloop-runs/)\n\n"
        "options:\n"
        "  -h, --help   Show this help.\n"
        "  --n N        First line, second line.\n"
        "  --[no-]fast  Be fast. (default: on)\n"
        "  --way {a,b}  One of them.\n"
    )
