"""`hotloop try` without a process: how segments are cut, how they are judged, where lines go."""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hotloop.analysis.trial import BASELINE, arm_name, blocks_of, combination, settle
from hotloop.instrument.toggles import Toggle
from hotloop.instrument.trial import Trial
from hotloop.report.trial import try_json, try_text
from hotloop.workflows.try_ import Judge, Terms
from hotloop.workflows.where import addition, after_imports, before_training, script_of


class Switch(Toggle):
    """A toggle that remembers whether it is on."""

    why = "For tests."

    def __init__(self, name: str, breaks: bool = False, between: bool = False):
        self.name = name
        self.line = f"{name}()"
        self.is_on = False
        self.breaks = breaks
        self.between = between

    def why_not(self) -> str | None:
        return None

    def on(self) -> None:
        assert not self.is_on
        self.is_on = True
        if self.breaks:
            raise RuntimeError("moved")

    def off(self) -> None:
        assert self.is_on
        self.is_on = False


class Script:
    """A training loop in made-up time: rollouts of some steps, then some updates."""

    def __init__(self, toggles: Sequence[Switch], segment_s: float = 0.2):
        self.toggles = {toggle.name: toggle for toggle in toggles}
        self.rows: list[dict[str, Any]] = []
        self.arms: list[tuple[str, ...]] | None = None
        self.now_s = 100.0
        told = [
            {
                "name": toggle.name,
                "line": toggle.line,
                "why": toggle.why,
                "needs": [],
                "place": "imports",
                "between": toggle.between,
                "conflicts": [],
            }
            for toggle in toggles
        ]
        self.trial = Trial(
            lambda: (self.toggles, {"toggles": told, "left_out": {}}),
            lambda: self.arms,
            lambda row: self.rows.append(json.loads(json.dumps(row))),
            clock=lambda: self.now_s,
            segment_s=segment_s,
        )

    def on(self, name: str) -> bool:
        return self.toggles[name].is_on

    def run(
        self,
        cycles: int,
        steps: int,
        updates: int,
        step_s: Callable[[], float],
        update_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        for _ in range(cycles):
            for work, count, cost in (((8, 0), steps, step_s), ((0, 1), updates, update_s)):
                for _ in range(count):
                    self.now_s += cost()
                    self.trial.tick(*work)

    @property
    def segments(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if "seconds" in row]


def test_quick_cycles_are_cut_as_wholes() -> None:
    script = Script([Switch("x")])
    script.run(400, 4, 2, lambda: 0.002, lambda: 0.005 if script.on("x") else 0.01)
    assert {row["kind"] for row in script.segments} == {"cycles"}
    for row in script.segments:
        assert row["env_steps"] % 32 == 0 and row["updates"] % 2 == 0  # 4 steps of 8 envs, 2 updates
        cycles = row["updates"] / 2
        assert row["seconds"] == pytest.approx(cycles * (0.018 if row["arm"] else 0.028))
        assert row["seconds"] >= 0.2
    blocks = blocks_of(script.rows, ["x"])
    assert blocks.how == "cycles" and blocks.unit == "env step"
    for block in blocks.blocks:
        assert block[BASELINE] == pytest.approx(0.028 / 32) and block.get("x", 0.018 / 32) == pytest.approx(
            0.018 / 32
        )


def test_slow_cycles_are_cut_into_phases_and_put_together() -> None:
    script = Script([Switch("x"), Switch("log", between=True)])
    script.run(
        12,
        500,
        100,
        lambda: 0.002 if script.on("x") else 0.004,
        lambda: 0.02,
    )
    kinds = {row["kind"] for row in script.segments}
    assert kinds == {"steps", "updates"}
    assert not any("log" in row["arm"] for row in script.segments)  # it could not show
    for row in script.segments:
        assert (row["env_steps"] > 0) != (row["updates"] > 0)
    blocks = blocks_of(script.rows, ["x"])
    assert blocks.how == "phases" and len(blocks.blocks) > 8
    last = script.segments[-1]
    per_step = last["all_updates"] / last["all_steps"]
    for block in blocks.blocks:
        assert block[BASELINE] == pytest.approx(0.004 / 8 + per_step * 0.02, rel=0.02)
        if "x" in block:
            assert block["x"] == pytest.approx(0.002 / 8 + per_step * 0.02, rel=0.02)


def test_a_phase_that_is_small_is_taken_as_the_same_for_all() -> None:
    script = Script([Switch("x")])
    script.run(12, 400, 10, lambda: 0.002 if script.on("x") else 0.004, lambda: 0.005)
    blocks = blocks_of(script.rows, ["x"])
    assert not any(row["kind"] == "updates" for row in script.segments)  # too short for a segment
    assert blocks.how == "phases" and len(blocks.blocks) > 8
    assert blocks.same_share is not None and 0.01 < blocks.same_share < 0.1
    for block in blocks.blocks:
        assert 0.5 < block.get("x", 0.6 * block[BASELINE]) / block[BASELINE] < 0.7  # diluted: not 0.5


def test_the_first_part_after_a_switch_is_dropped() -> None:
    script = Script([Switch("x")])
    state: dict[str, Any] = {"was": None}

    def cost() -> float:
        switched = state["was"] is not None and state["was"] != script.on("x")
        state["was"] = script.on("x")
        return 0.1 if switched else 0.004  # the first step after a switch is 25 times as slow

    script.run(1, 4000, 0, cost)
    assert len(script.segments) > 20
    for row in script.segments:
        assert row["seconds"] / row["env_steps"] == pytest.approx(0.004 / 8)


def test_arms_take_turns_in_complete_blocks_and_everything_is_off_at_the_end() -> None:
    script = Script([Switch(name) for name in "xyz"])
    script.run(1, 8000, 0, lambda: 0.004)
    blocks: dict[int, list[str]] = {}
    for row in script.segments:
        blocks.setdefault(row["block"], []).append(arm_name(row["arm"]))
    *whole, _ = blocks.values()
    assert len(whole) > 20 and all(sorted(block) == sorted([BASELINE, *"xyz"]) for block in whole)
    assert len({tuple(block) for block in whole}) > 10
    script.trial.stop()
    assert not any(toggle.is_on for toggle in script.toggles.values())
    assert script.rows[-1] == {"stopped": True}


def test_orders_are_followed_at_once_and_none_left_stops() -> None:
    script = Script([Switch(name) for name in "xyz"])
    script.run(1, 1500, 0, lambda: 0.004)
    script.arms = [("x", "z")]
    before = len(script.segments)
    script.run(1, 1000, 0, lambda: 0.004)
    assert {arm_name(row["arm"]) for row in script.segments[before + 1 :]} == {BASELINE, "x + z"}
    script.arms = []
    script.run(1, 200, 0, lambda: 0.004)
    assert not script.trial.running and not any(toggle.is_on for toggle in script.toggles.values())


def test_a_toggle_that_cannot_be_switched_on_is_left_out_and_the_rest_goes_on() -> None:
    script = Script([Switch("x"), Switch("bad", breaks=True)])
    script.run(1, 4000, 0, lambda: 0.004)
    assert [row["broken"] for row in script.rows if "broken" in row] == ["bad"]
    after = script.segments[len(script.segments) // 2 :]
    assert {arm_name(row["arm"]) for row in after} == {BASELINE, "x"}
    assert not script.toggles["bad"].is_on


def test_work_that_planning_itself_does_is_not_heard() -> None:
    plans, rows = [], []

    def plan() -> Any:
        plans.append(1)
        trial.tick(0, 1)  # as a patch that tries out an optimizer would
        return {"x": Switch("x")}, {"toggles": [], "left_out": {}}

    clock = iter(range(100))
    trial = Trial(plan, lambda: None, rows.append, clock=lambda: float(next(clock)))
    for _ in range(6):
        trial.tick(8, 0)
    assert len(plans) == 1 and rows[0] == {"toggles": [], "left_out": {}}


def noisy(chance: random.Random, seconds: float) -> Callable[[], float]:
    return lambda: seconds * chance.lognormvariate(0, 0.2)


def test_equal_patches_are_hardly_ever_called_faster_or_slower() -> None:
    wrong = 0
    for seed in range(40):
        chance = random.Random(seed)
        blocks = [
            {name: chance.lognormvariate(0, 0.1) for name in (BASELINE, "x", "y", "z")} for _ in range(64)
        ]
        found = settle(blocks, ["x", "y", "z"], final=True)
        wrong += any(row.verdict.word in ("faster", "slower") for row in found.verdicts)
    assert wrong <= 6  # at most 5 % are expected: 2


def test_what_is_settled_keeps_its_verdict() -> None:
    chance = random.Random(1)
    blocks = [
        {BASELINE: 1.0 * chance.lognormvariate(0, 0.02), "x": 0.5 * chance.lognormvariate(0, 0.02)}
        for _ in range(8)
    ]
    early = settle(blocks, ["x"])
    assert early.settled == ("x",) and early.verdicts[0].verdict.word == "faster"
    later = settle([*blocks, *({BASELINE: 1.0, "x": 2.0} for _ in range(30))], ["x"], final=True)
    assert later.verdicts == early.verdicts  # segments after it was settled are not used


def judged(script: Script, folder: Path, final: bool = True) -> Judge:
    (folder / "trial.jsonl").write_text("".join(json.dumps(row) + "\n" for row in script.rows))
    judge = Judge(folder, Terms(), None, clock=lambda: 0.0)
    judge.look(final=final)
    return judge


def test_the_report_names_what_helps_and_the_line(tmp_path: Path) -> None:
    chance = random.Random(0)
    script = Script([Switch("good"), Switch("idle"), Switch("log", between=True)])
    cost = noisy(chance, 0.004)
    script.run(1, 20_000, 0, lambda: cost() * (0.6 if script.on("good") else 1.0))
    report = judged(script, tmp_path).report()
    good, idle = report.patches
    assert (good.name, good.verdict.word) == ("good", "faster")
    assert idle.name == "idle" and idle.verdict.word in ("no difference", "undecided")
    assert [(o.name) for o in report.left_out] == ["log"]
    text = try_text(report)
    assert f"good: {good.verdict.says}; add this after the imports of the script:" in text
    assert "      good()" in text and "Best combination: good alone." in text and "noise floor" in text
    assert try_json(report)["patches"][0]["verdict"]["word"] == "faster"
    assert json.dumps(try_json(report))


def test_the_best_combination_is_ordered_and_judged(tmp_path: Path) -> None:
    script = Script([Switch("x"), Switch("y")])
    cost = noisy(random.Random(0), 0.004)

    def step_s() -> float:
        return cost() * (0.6 if script.on("x") else 1.0) * (0.7 if script.on("y") else 1.0)

    script.run(1, 8000, 0, step_s)
    judge = judged(script, tmp_path, final=False)
    orders = json.loads((tmp_path / "trial-orders.json").read_text())["arms"]
    assert orders == [["x", "y"]] and not judge.finished
    script.arms = [("x", "y")]
    script.run(1, 8000, 0, step_s)
    judge = judged(script, tmp_path, final=False)  # from the beginning: the same orders again
    judge.look(final=True)
    report = judge.report()
    assert report.together is not None and report.together.name == "x + y"
    assert report.together.verdict.word == "faster"
    assert report.together.verdict.change is not None
    assert report.together.verdict.change.low < 0.42 - 1 < report.together.verdict.change.high
    assert "Best combination: x + y is faster by" in try_text(report)


def test_conflicting_patches_are_not_combined() -> None:
    blocks = [
        {BASELINE: 1 + i / 100, "x": 0.5 + i / 200, "y": 0.6 + i / 300, "z": 0.7 + i / 200} for i in range(16)
    ]
    found = settle(blocks, ["x", "y", "z"], final=True)
    assert combination(found.verdicts, {"y": ["x"], "x": ["y"]}) == ("x", "z")
    assert combination(found.verdicts, {}) == ("x", "y", "z")


SOURCE = '''"""Trains."""

from __future__ import annotations

import sys
import torch
try:
    import wandb
except ImportError:
    wandb = None

model = PPO(
    "MlpPolicy"
)
model.learn(10)
'''


def test_lines_go_after_the_imports_or_into_their_call(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SOURCE)
    script = script_of(["python", "-u", "train.py", "--x", "other.py"])
    assert script == Path("train.py") == script_of(["python", "-m", "train"])
    found = addition(script, "torch.set_num_threads(1)", ["import torch"], "imports")
    assert (found.text, found.at) == ("torch.set_num_threads(1)", "train.py:11")
    assert found.says == "add this line at train.py:11"
    with_import = addition(script, "gc.freeze()", ["import gc"], "training")
    assert with_import.text == "import gc; gc.freeze()" and with_import.at == "train.py:15"
    loop = "def main():\n    env.reset()\n    while True:\n        for x in y:\n            env.step(x)\n"
    assert before_training(ast.parse(loop)) == 3
    assert before_training(ast.parse("print(1)")) is None
    assert addition(script, "log_interval=100", [], "learn").at == "train.py:15"
    assert addition(script, "fused=True", [], "model").at == "train.py:12"
    nowhere = addition(None, "gc.freeze()", ["import gc"], "imports")
    assert nowhere.at is None and "after the imports" in nowhere.says
    lines = SOURCE.splitlines()
    lines.insert(after_imports(ast.parse(SOURCE)) - 1, with_import.text)
    ast.parse("\n".join(lines))
