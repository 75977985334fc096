"""docs/exports.md and docs/troubleshooting.md are right: snippets run, rules and symptoms exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hotloop import Profiler
from hotloop.analysis import advice
from hotloop.capture.open_capture import open_capture

ROOT = Path(__file__).parent.parent.parent
EXPORTS = (ROOT / "docs" / "exports.md").read_text(encoding="utf-8")
TROUBLE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def test_the_snippet_writes_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    profiler = Profiler(core_name="python").start("runs/first")
    with profiler.profile("env_step"):
        pass
    profiler.stop()
    (snippet,) = re.findall(r"```python\n(.*?)```", EXPORTS, flags=re.S)
    exec(compile(snippet, "docs/exports.md", "exec"), {})
    assert open_capture("run.json").tree.children[0].name == "env_step"


def test_all_advice_named_exists() -> None:
    known = {function.__name__ for function in advice.BUILT_IN}
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", TROUBLE))
    assert len(named & known) > 15
    regions = {"gc_pause", "rows_dropped", "lock_wait", "learner_forward", "max_ns", "save_json", "env_step"}
    assert named - known - regions == set()


@pytest.mark.parametrize(
    "symptom",
    [
        "different times",
        "Out of memory",
        "takes too long",
        "first batch is slow",
        "14 times longer",
        "Queue drops",
        "80 % of the time",
        "unstable",
        "Little GPU memory",
        "Little main memory",
        "Few cores",
        "big GPU",
        "loader workers",
        "SubprocVecEnv is slower",
        "too many updates",
        "More environments",
        "pre-trained policy",
        "queue for a lock",
        "Steps per episode",
    ],
)
def test_every_symptom_has_a_heading(symptom: str) -> None:
    assert [line for line in TROUBLE.splitlines() if line.startswith("### ") and symptom in line]


def test_only_verbs_that_exist_are_named() -> None:
    verbs = {path.stem for path in (ROOT / "src" / "hotloop" / "cli").glob("*.py")} | {"try"}  # in trial.py
    named = set(re.findall(r"`hotloop ([a-z]+)\b", EXPORTS + TROUBLE))
    assert named >= {"show", "report", "top", "diff"}
    assert named <= verbs
