"""`hotloop.arm`: turns, segments and verdicts, with time passed in."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hotloop
from hotloop import Profiler
from hotloop._util.errors import HotloopError
from hotloop.testing.fakes import FakeClock
from hotloop.workflows import inline_ab
from hotloop.workflows.inline_ab import Segment, VariantRotation, judge_segments, verdict_lines
from tests.processes.scripts import environment

MS = 1_000_000


def loop(
    test: VariantRotation, clock: FakeClock, cost_ns: Callable[[str], int], iterations: int
) -> list[str]:
    """A training loop in which an iteration of a variant takes `cost_ns(variant)`."""
    turns = []
    for _ in range(iterations):
        turns.append(test.next_variant())
        clock.advance(cost_ns(turns[-1]))
    return turns


def nothing_recorded() -> None:
    return None


def test_segments_hold_whole_iterations_without_the_first_after_a_switch(clock: FakeClock) -> None:
    test = VariantRotation(("a", "b"), clock=clock, segment_s=0.1, work=nothing_recorded)
    turns = loop(test, clock, lambda name: 10 * MS if name == "a" else 30 * MS, 200)
    for segment in test.segments:
        cost_s, count = (0.010, 10) if segment.variant == "a" else (0.030, 4)
        assert segment.iterations == count  # the fewest that fill 0.1 s
        assert segment.seconds == pytest.approx(cost_s * count)
        assert segment.env_steps is None and segment.updates is None
    first = next(i for i, name in enumerate(turns) if name != turns[0])
    assert first == (11 if turns[0] == "a" else 5)  # the counted ones and the dropped one
    assert len(test.segments) > 10


@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c", "d")])
def test_every_block_has_each_variant_once_in_random_order(names: tuple[str, ...], clock: FakeClock) -> None:
    test = VariantRotation(names, clock=clock, segment_s=0.01, work=nothing_recorded)
    loop(test, clock, lambda name: 5 * MS, 3 * len(names) * 40 + 1)
    order = [segment.variant for segment in test.segments]
    blocks = [tuple(order[at : at + len(names)]) for at in range(0, len(order), len(names))]
    assert len(blocks) == 40 and all(sorted(block) == sorted(names) for block in blocks)
    assert len(set(blocks)) > 1  # a coin was flipped
    assert [segment.block for segment in test.segments] == [b for b in range(40) for _ in names]
    again = VariantRotation(names, clock=clock, segment_s=0.01, work=nothing_recorded)
    loop(again, clock, lambda name: 5 * MS, 3 * len(names) * 40 + 1)
    assert [segment.variant for segment in again.segments] == order  # seeded
    other = VariantRotation(names, clock=clock, segment_s=0.01, work=nothing_recorded, seed=1)
    loop(other, clock, lambda name: 5 * MS, 3 * len(names) * 40 + 1)
    assert [segment.variant for segment in other.segments] != order


def test_a_planted_factor_of_two_is_found_under_drift_and_noise(clock: FakeClock) -> None:
    chance = random.Random(0)
    test = VariantRotation(("old", "new"), clock=clock, segment_s=0.1, work=nothing_recorded)

    def cost_ns(name: str) -> int:
        machine = 1 + clock.ns / 20e9  # it gets slower all the time
        return round(5 * MS * machine * chance.lognormvariate(0, 0.3) / (2 if name == "new" else 1))

    loop(test, clock, cost_ns, 2000)
    found = judge_segments(test.segments)
    assert found is not None
    (row,) = found.variants
    assert (found.baseline, found.unit, row.name) == ("old", "iteration", "new")
    assert row.verdict.word == "faster"
    assert row.verdict.change is not None
    assert row.verdict.change.low < -0.5 < row.verdict.change.high
    assert "new is faster by" in verdict_lines(found) and "than old" in verdict_lines(found)


def test_equal_variants_are_rarely_called_different() -> None:
    words = []
    for seed in range(100):
        chance, clock = random.Random(seed), FakeClock()
        test = VariantRotation(("a", "b"), clock=clock, segment_s=0.05, work=nothing_recorded, seed=seed)
        loop(test, clock, lambda name, c=chance: round(10 * MS * c.lognormvariate(0, 0.3)), 200)  # type: ignore[misc]
        found = judge_segments(test.segments)
        assert found is not None
        words.append(found.variants[0].verdict.word)
    wrong = sum(word in ("faster", "slower") for word in words)
    assert wrong <= 10  # 5 are expected; 11 or more have a chance of 1 %


def test_work_that_was_recorded_is_the_unit(
    profiler: Profiler, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline_ab, "default", profiler)
    test = VariantRotation(("a", "b"), clock=clock, segment_s=0.02)
    for _ in range(200):
        steps = 3 if test.next_variant() == "a" else 6  # b does twice the steps in the same time
        profiler.progress(env_steps=steps, updates=1)
        clock.advance(5 * MS)
    for segment in test.segments:
        assert segment.env_steps == segment.iterations * (3 if segment.variant == "a" else 6)
        assert segment.updates == segment.iterations
    found = judge_segments(test.segments)
    assert found is not None and found.unit == "env step"
    change = found.variants[0].verdict.change
    assert change is not None and change.value == pytest.approx(-0.5)


def test_segments_are_appended_to_the_capture(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = Profiler(clock=clock).start(tmp_path / "capture")
    monkeypatch.setattr(inline_ab, "default", recording)
    test = VariantRotation(("a", "b"), clock=clock, segment_s=0.02, save=inline_ab.append_to_capture)
    loop(test, clock, lambda name: 5 * MS, 60)
    recording.stop()
    lines = (tmp_path / "capture" / "arms.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [Segment(**(row | {"variants": tuple(row["variants"])})) for row in rows] == test.segments


def test_incomplete_blocks_are_not_judged() -> None:
    cut = [Segment(("a", "b"), "a", 0, 1.0, 10, None, None)]
    found = judge_segments(cut)
    assert found is not None and found.blocks == 0 and found.variants[0].verdict.word == "undecided"
    assert judge_segments([]) is None


def test_wrong_names_get_a_sentence(clock: FakeClock) -> None:
    for names in ((), ("a",), ("a", "a")):
        with pytest.raises(HotloopError, match="two or more different names"):
            hotloop.arm(*names)
    with pytest.raises(HotloopError, match="segment_s is 0"):
        VariantRotation(("a", "b"), clock=clock, segment_s=0)


def test_the_verdict_is_printed_at_the_end_of_the_program() -> None:
    """The one test here with a real clock."""
    program = """
import hotloop, time
for i in range(150):
    time.sleep(0.004 if hotloop.arm("slow", "quick", segment_s=0.01) == "slow" else 0.001)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment("auto"), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and not done.stdout
    assert "hotloop: quick is faster by" in done.stderr and "time per iteration" in done.stderr
