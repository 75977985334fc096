"""Small training scripts with a known defect, recorded for real: the defect must come out first.

The scripts use names of their own and run for a second or two each. They use the real clock on a
machine that may be busy, so a script that is not diagnosed at once is recorded one more time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hotloop
from hotloop.analysis.explain import explain
from hotloop.analysis.findings import Recommendation

SCRIPTS = Path(__file__).parent / "scripts"
SOURCE = Path(__file__).parents[2] / "src"

DEFECTS = {  # script -> the rule that must come out first, the region it must name
    "store_each": ("replay-item-by-item", "memory_store"),
    "eager_learner": ("too-many-updates", "fit"),
    "list_memory": ("growing-cost", "draw"),
    "chatty": ("logging-too-often", "journal"),
    "how_good": ("evaluation-too-often", "how_good"),
    "painted": ("rendering-in-python", "paint_board"),
    "shrunk": ("resizing", "shrink"),
    "tensors_each": ("transfers-one-by-one", "to_tensor"),
    "ask_each": ("policy-one-by-one", "decide"),
    "lonely_env": ("too-few-envs", "choose_move"),
    "handed_over": ("env-workers-cost-more-than-work", "hand_over"),
    "small_data": ("loader-workers-on-small-data", "next_batch"),
    "slow_resets": ("costly-resets", "restart"),
    "pick_samples": ("batch-item-by-item", "pick"),
    "many_objects": ("garbage-collection-pauses", None),  # any region may be hit
}
CLEAN = ("clean_vector", "clean_rollouts")


def recommendations(script: str, capture: Path) -> tuple[Recommendation, ...]:
    """Record the script in a process of its own and explain what was recorded."""
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / f"{script}.py")],
        env=os.environ | {"HOTLOOP_CAPTURE": str(capture), "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return explain(hotloop.load(capture)).recommendations


def serious(found: tuple[Recommendation, ...]) -> list[str]:
    return [one.rule for one in found if one.tier in ("high", "medium")]


def test_every_script_is_in_the_tables() -> None:
    assert {path.stem for path in SCRIPTS.glob("*.py")} == {*DEFECTS, *CLEAN}


@pytest.mark.parametrize("script", DEFECTS)
def test_the_planted_defect_comes_out_first(script: str, tmp_path: Path) -> None:
    rule, region = DEFECTS[script]
    found = recommendations(script, tmp_path / "first")
    if serious(found)[:1] != [rule]:
        found = recommendations(script, tmp_path / "second")
    assert serious(found)[:1] == [rule]
    first = found[0]
    assert first.rule == rule and first.gain is not None
    assert region in (None, first.region)
    assert first.site.startswith(str(SCRIPTS / f"{script}.py"))


@pytest.mark.parametrize("script", CLEAN)
def test_a_healthy_script_is_left_alone(script: str, tmp_path: Path) -> None:
    found = recommendations(script, tmp_path / "first")
    if serious(found):
        found = recommendations(script, tmp_path / "second")
    assert serious(found) == []
