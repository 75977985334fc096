"""Mistakes on the command line: one sentence, exit code 2, no boxes; help without raw types."""

from __future__ import annotations

import re

import pytest

from hotloop.cli import main
from hotloop.cli.main import VERBS


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("run --bogus", "hotloop run does not know --bogus; see: hotloop run --help"),
        (
            "report --jsn",
            "hotloop report does not know --jsn; did you mean --json; see: hotloop report --help",
        ),
        ("compare --budget", "--budget needs a value; see: hotloop compare --help"),
        ("top --interval x", "--interval is 'x', which is not a number; see: hotloop top --help"),
        ("prove x y", "N is 'y', which is not a whole number; see: hotloop prove --help"),
        ("prove", "hotloop prove needs CAPTURE and N; see: hotloop prove --help"),
        ("diff a", "hotloop diff needs B; see: hotloop diff --help"),
        ("lab bogus", "'bogus' is not one of run, new; see: hotloop lab --help"),
        ("lab", "hotloop lab needs {run,new}; see: hotloop lab --help"),
        ("show --by nothing", "'nothing' is not one of all, process, thread; see: hotloop show --help"),
        ("attach --bogus", "hotloop attach does not know --bogus; see: hotloop attach --help"),
        (
            "diff --jsno x",
            "hotloop diff does not know --jsno; did you mean --json; see: hotloop diff --help",
        ),
        ("prove --bogus=3 -x", "hotloop prove does not know --bogus -x; see: hotloop prove --help"),
        (
            "train snake --train-freq x",
            "--train-freq is 'x', which is not a whole number; see: hotloop train snake --help",
        ),
        (
            "train mario --final-learning-rate x",
            "--final-learning-rate is 'x', which is not a number; see: hotloop train mario --help",
        ),
        ("train mario --layout x", "'x' is not one of fast, plain; see: hotloop train mario --help"),
        ("train mario --channels 8 8", "--channels needs 3 values; see: hotloop train mario --help"),
        ("train petri --net-arch 8 x", "--net-arch cannot be 8 x; see: hotloop train petri --help"),
        ("tune --bogus -- python x.py", "hotloop tune does not know --bogus; see: hotloop tune --help"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main.main(words.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"hotloop: {sentence}\n"


@pytest.mark.parametrize("verb", [name for name in VERBS if name not in ("train", "tune")])
def test_help_has_no_raw_types_and_no_empty_defaults(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main.main([verb, "--help"]) == 0
    told = capsys.readouterr().out
    assert "(default: )" not in told and "default: None" not in told and "default: False" not in told
    raw = re.findall(r"\b(?:STR|INT|PATH|FLOAT|BOOL|None|\[STR.*?\])\b|\{None\}", told)
    assert raw == [], raw
