"""`hotloop try` without a process: how segments are cut, how they are judged, where lines go."""

from __future__ import annotations

import ast
import itertools
import json
import math
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hotloop.analysis.trial import (
    BASELINE,
    Part,
    Rounds,
    SequentialTrial,
    combination,
    cpu_change,
    patch_set_name,
    rounds_of,
)
from hotloop.instrument.trial import Orders, Trial
from hotloop.instrument.trial_patch import TrialPatch
from hotloop.report.trial import trial_json, trial_text
from hotloop.workflows.insertion_point import after_imports, before_training, find_insertion_point, script_of
from hotloop.workflows.trial import TrialJudge, TrialSettings


class FakePatch(TrialPatch):
    """A patch that remembers whether it is applied."""

    why = "For tests."

    def __init__(self, name: str, breaks: bool = False, between: bool = False):
        self.name = name
        self.line = f"{name}()"
        self.is_on = False
        self.breaks = breaks
        self.between_phases = between

    def skip_reason(self) -> str | None:
        return None

    def apply(self) -> None:
        assert not self.is_on
        self.is_on = True
        if self.breaks:
            raise RuntimeError("moved")

    def undo(self) -> None:
        assert self.is_on
        self.is_on = False


class Script:
    """A training loop in made-up time: rollouts of some steps, then some updates."""

    def __init__(self, patches: Sequence[FakePatch], segment_s: float = 0.2):
        self.patches = {patch.name: patch for patch in patches}
        self.rows: list[dict[str, Any]] = []
        self.patch_sets: list[tuple[str, ...]] | None = None
        self.kept: tuple[str, ...] = ()
        self.shown: list[tuple[str, ...] | None] = []
        self.now_s = 100.0
        self.cpu_s = 7.0  # of all threads
        told = [
            {
                "name": patch.name,
                "line": patch.line,
                "why": patch.why,
                "needs": [],
                "place": "imports",
                "between_phases": patch.between_phases,
                "conflicts": [],
            }
            for patch in patches
        ]
        self.trial = Trial(
            lambda: (self.patches, {"candidates": told, "left_out": {}}),
            lambda: Orders(self.patch_sets, self.kept),
            lambda row: self.rows.append(json.loads(json.dumps(row))),
            clock=lambda: self.now_s,
            cpu_clock=lambda: self.now_s,
            process_clock=lambda: self.cpu_s,
            segment_s=segment_s,
            show=self.shown.append,
        )

    def on(self, name: str) -> bool:
        return self.patches[name].is_on

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
                    took_s = cost()
                    self.now_s += took_s
                    self.cpu_s += took_s * (1 if self.is_on_one_thread() else 2)
                    self.trial.tick(*work)

    def is_on_one_thread(self) -> bool:
        return "threads" in self.patches and self.on("threads")

    @property
    def segments(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if "seconds" in row]


def test_quick_cycles_are_cut_as_wholes() -> None:
    script = Script([FakePatch("x")])
    script.run(400, 4, 2, lambda: 0.002, lambda: 0.005 if script.on("x") else 0.01)
    assert {row["kind"] for row in script.segments} == {"cycles"}
    for row in script.segments:
        assert row["env_steps"] % 32 == 0 and row["updates"] % 2 == 0  # 4 steps of 8 envs, 2 updates
        cycles = row["updates"] / 2
        assert row["seconds"] == pytest.approx(cycles * (0.018 if row["patches"] else 0.028))
        assert row["seconds"] >= 0.2
    rounds = rounds_of(script.rows)
    assert rounds.how == "cycles" and rounds.unit == "env_step"
    assert rounds.pairs("x") == [pytest.approx((0.028 / 32, 0.018 / 32))] * rounds.count("x")  # type: ignore[comparison-overlap]


def test_a_patch_between_phases_waits_for_quick_cycles() -> None:
    script = Script([FakePatch("x", between=True)])
    script.run(1, 100, 2, lambda: 0.04)  # filling a replay buffer before the first update
    assert script.trial.running
    assert not script.segments
    script.run(400, 4, 2, lambda: 0.002, lambda: 0.005 if script.on("x") else 0.01)
    assert {row["kind"] for row in script.segments} == {"cycles"}
    assert rounds_of(script.rows).count("x") > 5
    script.patch_sets = []
    script.run(20, 4, 2, lambda: 0.002)
    assert not script.trial.running


def test_a_patch_between_phases_that_waits_in_vain_can_be_stopped() -> None:
    script = Script([FakePatch("x", between=True)])
    script.run(3, 100, 2, lambda: 0.04)
    assert script.trial.running
    script.patch_sets = []
    script.run(1, 100, 2, lambda: 0.04)
    assert not script.trial.running
    assert not script.segments


def test_slow_cycles_are_cut_into_phases_and_put_together() -> None:
    script = Script([FakePatch("x"), FakePatch("log", between=True)])
    script.run(
        12,
        500,
        100,
        lambda: 0.002 if script.on("x") else 0.004,
        lambda: 0.02,
    )
    kinds = {row["kind"] for row in script.segments}
    assert kinds == {"steps", "updates"}
    assert not any("log" in row["patches"] for row in script.segments)  # it could not show
    for row in script.segments:
        assert (row["env_steps"] > 0) != (row["updates"] > 0)
    rounds = rounds_of(script.rows)
    assert rounds.how == "phases" and rounds.count("x") > 8
    last = script.segments[-1]
    per_step = last["all_updates"] / last["all_steps"]
    for as_it_is, patched in rounds.pairs("x"):
        assert as_it_is == pytest.approx(0.004 / 8 + per_step * 0.02, rel=0.02)
        assert patched == pytest.approx(0.002 / 8 + per_step * 0.02, rel=0.02)


def test_a_phase_that_is_small_is_taken_as_the_same_for_all() -> None:
    script = Script([FakePatch("x")])
    script.run(12, 400, 10, lambda: 0.002 if script.on("x") else 0.004, lambda: 0.005)
    rounds = rounds_of(script.rows)
    assert not any(row["kind"] == "updates" for row in script.segments)  # too short for a segment
    assert rounds.how == "phases" and rounds.count("x") > 8
    assert rounds.same_share is not None and 0.01 < rounds.same_share < 0.1
    for as_it_is, patched in rounds.pairs("x"):
        assert 0.5 < patched / as_it_is < 0.7  # diluted: not 0.5


def test_the_first_part_after_a_switch_is_dropped() -> None:
    script = Script([FakePatch("x")])
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
    script = Script([FakePatch(name) for name in "xyz"])
    script.run(1, 8000, 0, lambda: 0.004)
    blocks: dict[int, list[str]] = {}
    for row in script.segments:
        blocks.setdefault(row["block"], []).append(patch_set_name(row["patches"]))
    *whole, _ = blocks.values()
    assert len(whole) > 20 and all(sorted(block) == sorted([BASELINE, *"xyz"]) for block in whole)
    assert len({tuple(block) for block in whole}) > 10
    script.trial.stop()
    assert not any(patch.is_on for patch in script.patches.values())
    assert script.rows[-1] == {"stopped": True}


def test_orders_are_followed_at_once_and_none_left_stops() -> None:
    script = Script([FakePatch(name) for name in "xyz"])
    script.run(1, 1500, 0, lambda: 0.004)
    script.patch_sets = [("x", "z")]
    before = len(script.segments)
    script.run(1, 1000, 0, lambda: 0.004)
    assert {patch_set_name(row["patches"]) for row in script.segments[before + 1 :]} == {BASELINE, "x + z"}
    script.patch_sets = []
    script.run(1, 200, 0, lambda: 0.004)
    assert not script.trial.running and not any(patch.is_on for patch in script.patches.values())


def test_a_patch_that_cannot_be_applied_is_left_out_and_the_others_continue() -> None:
    script = Script([FakePatch("x"), FakePatch("bad", breaks=True)])
    script.run(1, 4000, 0, lambda: 0.004)
    assert [row["broken"] for row in script.rows if "broken" in row] == ["bad"]
    after = script.segments[len(script.segments) // 2 :]
    assert {patch_set_name(row["patches"]) for row in after} == {BASELINE, "x"}
    assert not script.patches["bad"].is_on


def test_work_that_planning_itself_does_is_not_heard() -> None:
    plans: list[int] = []
    rows: list[Any] = []

    def plan() -> Any:
        plans.append(1)
        trial.tick(0, 1)  # as a patch that tries out an optimizer would
        return {"x": FakePatch("x")}, {"candidates": [], "left_out": {}}

    clock = iter(range(100))
    trial = Trial(plan, Orders, rows.append, clock=lambda: float(next(clock)))
    for _ in range(6):
        trial.tick(8, 0)
    assert len(plans) == 1 and rows[0] == {"candidates": [], "left_out": {}}


def noisy(chance: random.Random, seconds: float) -> Callable[[], float]:
    return lambda: seconds * chance.lognormvariate(0, 0.2)


def made_up(times: Sequence[dict[str, float]]) -> Rounds:
    """Rounds of one part from times per step, by patch set."""
    rounds = tuple({name: (time_s, 1) for name, time_s in row.items()} for row in times)
    return Rounds("steps", "env_step", (Part(rounds, 1.0),))


def drifting(chance: random.Random, variants: int, rounds: int) -> list[list[float]]:
    """Times as a busy machine gives them to neighbouring segments, in random order within a round."""
    level, found = 0.0, []
    for _ in range(rounds):
        row = []
        for _ in range(variants):
            level = 0.97 * level + chance.gauss(0, 0.05)
            struck = chance.expovariate(1.0) if chance.random() < 0.05 else 0.0
            row.append(math.exp(level + chance.gauss(0, 0.05) + struck))
        chance.shuffle(row)
        found.append(row)
    return found


def test_equal_patches_are_hardly_ever_called_faster_or_slower() -> None:
    wrong = 0
    names = ["x", "y", "z"]
    for seed in range(60):
        chance = random.Random(seed)
        times = [dict(zip([BASELINE, *names], row, strict=True)) for row in drifting(chance, 4, 130)]
        trial = SequentialTrial(names)
        trial.update(made_up(times), final=True)
        wrong += any(row.verdict.word in ("faster", "slower") for row in trial.verdicts)
    assert wrong <= 7  # at most 5 % are expected: 3


def test_settled_variants_keep_their_verdict() -> None:
    chance = random.Random(1)
    times = [
        {BASELINE: 1.0 * chance.lognormvariate(0, 0.02), "x": 0.5 * chance.lognormvariate(0, 0.02)}
        for _ in range(8)
    ]
    trial = SequentialTrial(["x"])
    trial.update(made_up(times))
    early = trial.verdicts
    assert trial.settled == ("x",) and trial.all_settled and early[0].verdict.word == "faster"
    trial.update(made_up([*times, *({BASELINE: 1.0, "x": 2.0} for _ in range(30))]), final=True)
    assert trial.verdicts == early  # segments after it was settled are not used
    # Even when its rounds can no longer be put together, as when a phase that was small becomes large.
    trial.update(Rounds("phases", "env_step", (Part((), 1.0),)), final=True)
    assert trial.verdicts == early


def test_looking_often_is_the_same_as_looking_once() -> None:
    chance = random.Random(3)
    times = [
        {BASELINE: chance.lognormvariate(0, 0.1), "x": 0.93 * chance.lognormvariate(0, 0.1), "y": 1.0}
        for _ in range(100)
    ]
    often, once = SequentialTrial(["x", "y"]), SequentialTrial(["x", "y"])
    for count in range(101):
        often.update(made_up(times[:count]))
    once.update(made_up(times))
    assert often.verdicts == once.verdicts and often.settled == once.settled


def test_many_rounds_are_added_up_to_few_pairs_and_all_of_a_longer_part_is_used() -> None:
    steps = [{BASELINE: (1.0 + at, 10), "x": (2.0 + at, 10)} for at in range(200)]
    updates = [{BASELINE: (3.0, 1), "x": (6.0, 1)} for _ in range(100)]
    rounds = Rounds("phases", "env_step", (Part(tuple(steps), 1.0), Part(tuple(updates), 0.5)))
    assert rounds.count("x") == 100 and rounds.count("other") == 0 and rounds.pairs("other") == []
    pairs = rounds.pairs("x")
    assert len(pairs) == 50  # two rounds of updates and four of steps in each
    assert pairs[0] == pytest.approx(((1 + 2 + 3 + 4) / 40 + 1.5, (2 + 3 + 4 + 5) / 40 + 3.0))
    assert pairs[-1][0] == pytest.approx((197 + 198 + 199 + 200) / 40 + 1.5)
    assert len(rounds.pairs("x", 64)) == 64 and len(rounds.pairs("x", 5)) == 5


def test_work_in_bursts_counts_in_full() -> None:
    """A pause in one of eight segments, as of a garbage collector, would be lost among single ratios."""
    times = [{BASELINE: 2.0 if at % 8 == 3 else 1.0, "x": 1.0 + 0.001 * (at % 5)} for at in range(512)]
    pairs = made_up(times).pairs("x")
    assert len(pairs) == 64
    assert all(b / a == pytest.approx(1.002 / 1.125, abs=0.002) for a, b in pairs)


def judged(script: Script, folder: Path, final: bool = True) -> TrialJudge:
    (folder / "trial.jsonl").write_text("".join(json.dumps(row) + "\n" for row in script.rows))
    judge = TrialJudge(folder, TrialSettings(), None, clock=lambda: 0.0)
    judge.update(final=final)
    return judge


def test_the_report_names_what_helps_and_the_line(tmp_path: Path) -> None:
    chance = random.Random(0)
    script = Script([FakePatch("good"), FakePatch("idle"), FakePatch("log", between=True)])
    cost = noisy(chance, 0.004)
    script.run(1, 20_000, 0, lambda: cost() * (0.6 if script.on("good") else 1.0))
    report = judged(script, tmp_path).report()
    good, idle = report.patches
    assert (good.name, good.verdict.word) == ("good", "faster")
    assert idle.name == "idle" and idle.verdict.word in ("no_difference", "undecided")
    assert [(o.name) for o in report.left_out] == ["log"]
    text = trial_text(report)
    assert f"good: {good.verdict.summary}; add this after the imports of the script:" in text
    assert "      good()" in text and "Best combination: good alone." in text and "Noise floor" in text
    assert trial_json(report)["patches"][0]["verdict"]["word"] == "faster"
    assert json.dumps(trial_json(report))


def test_cpu_time_tells_spinning_from_work(tmp_path: Path) -> None:
    """Two threads use both cores and are no faster than one: half of their CPU time did no work."""
    script = Script([FakePatch("threads"), FakePatch("idle")])
    cost = noisy(random.Random(0), 0.004)
    script.run(1, 8000, 0, cost)
    script.kept = ("threads",)  # from here on the baseline has it too
    script.patch_sets = [("idle",)]
    script.run(1, 8000, 0, cost)
    assert cpu_change(script.rows, "threads") == pytest.approx(-0.5, abs=0.05)
    report = judged(script, tmp_path).report()
    changes = {patch.name: patch.cpu_change for patch in report.patches}
    assert changes["idle"] == pytest.approx(0.0, abs=0.1)
    text = " ".join(trial_text(report).split())
    assert re.search(r"With torch's threads, (4|5)\d\.\d % of the process's CPU time does no work", text)
    without = [{key: value for key, value in row.items() if key != "cpu_s"} for row in script.rows]
    assert cpu_change(without, "threads") is None  # written by an older version


def test_the_best_combination_is_ordered_and_judged(tmp_path: Path) -> None:
    script = Script([FakePatch("x"), FakePatch("y")])
    cost = noisy(random.Random(0), 0.004)

    def step_s() -> float:
        return cost() * (0.6 if script.on("x") else 1.0) * (0.7 if script.on("y") else 1.0)

    script.run(1, 8000, 0, step_s)
    judge = judged(script, tmp_path, final=False)
    orders = json.loads((tmp_path / "trial-orders.json").read_text())
    assert orders == {"patch_sets": [["x", "y"]], "kept": []} and not judge.finished
    script.patch_sets = [("x", "y")]
    script.run(1, 8000, 0, step_s)
    judge = judged(script, tmp_path, final=False)  # from the beginning: the same orders again
    judge.update(final=True)
    report = judge.report()
    assert report.together is not None and report.together.name == "x + y"
    assert report.together.verdict.word == "faster"
    assert report.together.verdict.change is not None
    assert report.together.verdict.change.low < 0.42 - 1 < report.together.verdict.change.high
    assert "Best combination: x + y is faster by" in trial_text(report)


def test_segments_hold_several_bursts_of_work() -> None:
    script = Script([FakePatch("x")], segment_s=0.02)
    count = itertools.count()
    script.run(1, 20_000, 0, lambda: 0.1 if next(count) % 50 == 0 else 0.002)
    lengths = [row["seconds"] for row in script.segments[10:]]
    assert min(lengths) > 0.15 and max(lengths) < 0.35  # twice the burst, and what comes before the next tick
    held_up = Script([FakePatch("x")], segment_s=0.02)
    held_up.trial._cpu_clock = lambda: 0.0  # the same on the wall clock, but it did no work then
    held_up.run(1, 20_000, 0, lambda: 0.1 if next(count) % 50 == 0 else 0.002)
    assert sorted(row["seconds"] for row in held_up.segments)[len(held_up.segments) // 2] < 0.03


def test_switching_time_and_a_single_delay_make_no_segment_longer() -> None:
    class Slow(FakePatch):
        def apply(self) -> None:
            super().apply()
            script.now_s += 0.2  # as `gc` does, which looks through all objects

    script = Script([Slow("x"), FakePatch("y")], segment_s=0.02)
    script.run(1, 3000, 0, lambda: 0.002)
    script.now_s += 0.3
    script.run(1, 3000, 0, lambda: 0.002)
    assert len(script.segments) > 100
    assert sum(row["seconds"] > 0.03 for row in script.segments) == 1
    assert script.segments[-1]["steps_s"] < 12.5  # 6000 steps and the hold-up, no switches


def test_no_difference_has_to_hold_for_the_sums_too() -> None:
    chance = random.Random(2)
    times = [
        {BASELINE: 1.0 + chance.gauss(0, 0.002) + (at % 10 == 0), "x": 1.0 + chance.gauss(0, 0.002)}
        for at in range(40)
    ]
    trial = SequentialTrial(["x"])
    trial.update(made_up(times), final=True)
    verdict = trial.verdicts[0].verdict
    assert verdict.word == "undecided" and "not in a few" in verdict.summary and not trial.settled


def test_conflicting_patches_are_not_combined() -> None:
    times = [
        {BASELINE: 1 + i / 100, "x": 0.5 + i / 200, "y": 0.6 + i / 300, "z": 0.7 + i / 200} for i in range(16)
    ]
    trial = SequentialTrial(["x", "y", "z"])
    trial.update(made_up(times), final=True)
    assert combination(trial.verdicts, {"y": ["x"], "x": ["y"]}) == ("x", "z")
    assert combination(trial.verdicts, {}) == ("x", "y", "z")


def test_kept_patches_are_on_in_all_segments_and_workers_follow() -> None:
    script = Script([FakePatch(name) for name in "xyz"])
    script.run(1, 1500, 0, lambda: 0.004)
    assert all(row["kept"] == [] for row in script.segments)
    script.patch_sets, script.kept = [("y",), ("z",)], ("x",)
    before, shown = len(script.segments), len(script.shown)
    script.run(1, 2000, 0, lambda: 0.004)
    later = {(patch_set_name(row["patches"]), tuple(row["kept"])) for row in script.segments[before + 1 :]}
    assert later == {(BASELINE, ("x",)), ("y", ("x",)), ("z", ("x",))}
    assert set(script.shown[shown + 1 :]) == {("x",), ("x", "y"), ("x", "z")}
    script.trial.stop()
    assert script.shown[-1] is None and not any(patch.is_on for patch in script.patches.values())


def test_faster_patches_are_kept_for_the_rest(tmp_path: Path) -> None:
    script = Script([FakePatch("x"), FakePatch("y")])
    chance = random.Random(0)
    cost = noisy(chance, 0.004)
    script.run(1, 4200, 0, lambda: cost() * (0.2 if script.on("x") else 1.0))
    judge = judged(script, tmp_path, final=False)
    orders = json.loads((tmp_path / "trial-orders.json").read_text())
    assert orders == {"patch_sets": [["y"]], "kept": ["x"]} and not judge.finished
    judge.update(final=True)
    assert judge.report().kept == ("x",)
    assert "x stayed on once found to be faster; patches still undecided by then" in " ".join(
        trial_text(judge.report()).split()
    )


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
    found = find_insertion_point(script, "torch.set_num_threads(1)", ["import torch"], "imports")
    assert (found.text, found.at) == ("torch.set_num_threads(1)", "train.py:11")
    assert found.instruction == "add this line at train.py:11"
    with_import = find_insertion_point(script, "gc.freeze()", ["import gc"], "training")
    assert with_import.text == "import gc; gc.freeze()" and with_import.at == "train.py:15"
    loop = "def main():\n    env.reset()\n    while True:\n        for x in y:\n            env.step(x)\n"
    assert before_training(ast.parse(loop)) == 3
    assert before_training(ast.parse("print(1)")) is None
    assert find_insertion_point(script, "log_interval=100", [], "learn").at == "train.py:15"
    assert find_insertion_point(script, "fused=True", [], "model").at == "train.py:12"
    nowhere = find_insertion_point(None, "gc.freeze()", ["import gc"], "imports")
    assert nowhere.at is None and "after the imports" in nowhere.instruction
    lines = SOURCE.splitlines()
    lines.insert(after_imports(ast.parse(SOURCE)) - 1, with_import.text)
    ast.parse("\n".join(lines))
