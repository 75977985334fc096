"""How verdicts are decided: words, looks, tolerance, planning, Holm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop._util.errors import HotloopError
from hotloop.analysis.findings import Estimate
from hotloop.analysis.stopping_rule import (
    RUNS,
    SEGMENTS,
    extra_pairs,
    noise_floor,
    one_look,
    pairs_needed,
    planning_factor,
    robust_sd,
)
from hotloop.analysis.verdict import (
    decide,
    decide_blocks,
    decide_named,
    gate,
    holm,
    interval_words,
    judge,
    judge_components,
    judge_unpaired,
)
from hotloop.testing.noise import NOISY, QUIET, paired_times


def made(ratios: Sequence[float], a: float = 2.0) -> list[tuple[float, float]]:
    return [(a, a * ratio) for ratio in ratios]


def around(ratio: float, n: int, spread: float = 0.01) -> list[tuple[float, float]]:
    return made([ratio * math.exp(spread * (2 * i / (n - 1) - 1)) for i in range(n)])


def test_a_clear_difference_is_named_with_its_interval() -> None:
    found = judge(around(0.96, 12))
    assert found.word == "faster"
    assert found.summary.startswith("faster by 4.0 % [3.") and found.method == "signed_rank"
    assert found.change is not None and found.speed_up is not None
    assert found.change.value == pytest.approx(-0.04) and found.change.low < -0.04 < found.change.high < 0
    assert found.speed_up.value == pytest.approx(1 / 0.96)
    assert found.more_pairs is None
    assert judge(around(1.3, 12)).summary.startswith("slower by 30.0 % [29.")


def test_an_interval_inside_the_tolerance_means_no_difference() -> None:
    found = judge(around(1.001, 12), tolerance=0.03)
    assert (found.word, found.summary) == ("no_difference", "no difference >= 3 %")
    assert judge(around(1.001, 12), tolerance=0.005).word == "undecided"


def test_everything_else_is_undecided_with_the_pairs_still_needed() -> None:
    found = judge(around(1.01, 12, spread=0.05))
    assert found.word == "undecided" and found.change is not None and found.more_pairs is not None
    assert found.summary == f"undecided, about {found.more_pairs} more pairs"
    half = (math.log1p(found.change.high) - math.log1p(found.change.low)) / 2
    middle = math.log1p(found.change.value)
    gap = max(abs(middle), math.log(1.03) - abs(middle))
    assert found.more_pairs == math.ceil(12 * (1.2 * (half / gap) ** 2 - 1))


def test_far_more_pairs_than_were_made_are_not_asked_for() -> None:
    found = judge(around(1.01, 12, spread=0.2))
    assert found.word == "undecided" and found.more_pairs is not None and found.more_pairs > 120
    assert found.too_noisy and found.summary == "too noisy to tell with this budget"


def test_runs_that_took_exactly_the_same_time_do_not_differ() -> None:
    found = judge(made([1.0] * 8))
    assert found.word == "no_difference" and found.change == Estimate(0.0, 0.0, 0.0)
    assert found.noise_floor == 0.0


@pytest.mark.parametrize("n", range(5))
def test_fewer_than_five_pairs_say_nothing(n: int) -> None:
    found = judge(made([0.5] * n))
    assert (found.word, found.change, found.method, found.noise_floor) == ("undecided", None, "none", None)
    assert found.more_pairs == 5 - n
    assert decide(made([0.5] * n)).go_on


def test_five_pairs_stop_only_when_all_b_lie_on_one_side_of_all_a() -> None:
    apart = [(10.0, 8.0), (10.5, 8.2), (9.9, 8.1), (10.1, 9.8), (10.2, 8.0)]
    found = decide(apart)
    assert (
        not found.go_on and found.verdict.word == "faster" and found.verdict.method == "complete_separation"
    )
    change = found.verdict.change
    assert change is not None
    assert change.low == pytest.approx(8.0 / 10.5 - 1) and change.high == pytest.approx(9.8 / 9.9 - 1)
    # Each B below its own A, but one B above another pair's A.
    crossing = [*apart[:3], (10.1, 9.95), apart[4]]
    assert all(b < a for a, b in crossing)
    again = decide(crossing)
    assert again.go_on and again.verdict.word == "undecided" and again.next_look == 8


def test_five_pairs_do_not_stop_for_no_difference() -> None:
    same = around(1.0, 5, spread=0.001)
    found = decide(same)
    assert found.go_on and found.verdict.word == "undecided"
    assert decide(same, final=True).verdict.word == "no_difference"


@pytest.mark.parametrize("n", [6, 7])
def test_six_and_seven_pairs_judge_like_five_when_no_more_come(n: int) -> None:
    found = decide(around(0.8, n), final=True)
    assert (
        not found.go_on and found.verdict.method == "complete_separation" and found.verdict.word == "faster"
    )


def test_between_looks_there_is_an_interval_but_no_verdict() -> None:
    found = decide(around(0.9, 10))
    assert found.go_on and found.next_look == 12 and found.reason == "judged next at 12 pairs"
    assert found.verdict.word == "undecided" and found.verdict.change is not None
    assert found.verdict.change.high < 0
    assert decide(around(0.9, 10), final=True).verdict.word == "faster"


def test_the_last_look_always_stops() -> None:
    found = decide(around(1.0, 40, spread=0.6))
    assert not found.go_on and found.verdict.word == "undecided" and found.verdict.more_pairs
    assert decide(around(1.0, 50, spread=0.6)).go_on is False
    assert decide(around(1.0, 40, spread=0.6), schedule=SEGMENTS).go_on


def test_every_look_is_one_of_the_schedule() -> None:
    wide = around(1.0, 256, spread=2.0)
    for schedule in (RUNS, SEGMENTS):
        stops = [
            n for n in range(1, schedule.most + 1) if not decide(wide[::-1][:n], schedule=schedule).go_on
        ]
        assert set(stops) <= set(schedule.looks) and stops[-1] == schedule.most
    assert RUNS.looks == (5, 8, 12, 16, 20, 24, 30, 40)
    assert SEGMENTS.looks == (5, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
    assert one_look(9).next_look(8) == 9 and one_look(9).level == 0.05


@given(
    st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=0, max_size=30),
    st.floats(1e-6, 1e6),
)
def test_swapping_sides_mirrors_the_verdict_and_units_do_not_matter(
    pairs: list[tuple[float, float]], unit: float
) -> None:
    one = judge(pairs)
    two = judge([(b * unit, a * unit) for a, b in pairs])
    assert {"faster": "slower", "slower": "faster"}.get(one.word, one.word) == two.word or _touches(
        one.change
    )
    if one.change is not None:
        assert one.change.low <= one.change.value <= one.change.high
        assert one.speed_up is not None and two.change is not None
        assert one.speed_up.high == pytest.approx(1 + two.change.high, rel=1e-6)
    assert "not significant" not in one.summary


def _touches(change: Estimate | None) -> bool:
    """An end at 0 or at the tolerance to the last digit: rounding decides."""
    edges = (0.0, 0.03, 1 / 1.03 - 1)
    return change is not None and any(abs(e - end) < 1e-9 for e in edges for end in (change.low, change.high))


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_invalid_times_are_refused(wrong: float) -> None:
    with pytest.raises(HotloopError, match="times must be positive"):
        judge([(1.0, wrong)])


def test_an_invalid_tolerance_is_refused() -> None:
    with pytest.raises(HotloopError, match="tolerance=3 is not between"):
        judge(made([1.0] * 8), tolerance=3)


def test_planning_follows_the_formula() -> None:
    assert planning_factor(0.0122) == pytest.approx(11.7, abs=0.05)
    assert extra_pairs(0.0122) == pytest.approx(3.14, abs=0.01)
    assert pairs_needed(0.1, 0.05) == math.ceil(planning_factor(0.0122) * 4 + 3.14)
    assert pairs_needed(0.001, 0.05) == 5
    assert noise_floor(0.1, 50) == pytest.approx(math.expm1(0.1 * math.sqrt(11.72 / 46.86)), rel=1e-3)
    assert pairs_needed(0.1, math.log1p(noise_floor(0.1, 50))) == 50
    assert robust_sd(np.array([1.0, 2.0, 3.0, 4.0, 100.0])) == pytest.approx(1.4826)
    assert robust_sd(np.array([1.0])) is None


def test_unpaired_runs_are_judged_by_all_ratios() -> None:
    found = judge_unpaired([10, 10.2, 9.9, 10.1], [8, 8.1, 7.9, 8.2, 8.05])
    assert found.word == "faster" and found.method == "rank_sum" and found.pairs == 4
    assert judge_unpaired([10, 11], [8, 8.1]).change is None
    assert judge_unpaired([], [8, 8.1]).summary == "undecided, about 5 more pairs"


@pytest.mark.parametrize(
    "ratio, spread, limit, expected",
    [
        (1.10, 0.01, 0.03, "regression"),
        (1.02, 0.005, 0.03, "passed"),  # clearly slower, but by less than the limit
        (1.00, 0.005, 0.03, "passed"),
        (0.90, 0.01, 0.03, "passed"),
        (1.00, 0.300, 0.03, "undecided"),
    ],
)
def test_the_gate_passes_or_fails_by_the_limit(
    ratio: float, spread: float, limit: float, expected: str
) -> None:
    assert gate(judge(around(ratio, 12, spread), tolerance=limit), limit) == expected


def test_the_gate_does_not_pass_what_only_a_wide_tolerance_calls_no_difference() -> None:
    loose = judge(around(1.0, 12, 0.05), tolerance=0.2)
    assert loose.word == "no_difference" and gate(loose, 0.03) == "undecided"


def test_the_gate_without_an_interval_is_undecided() -> None:
    assert gate(judge(made([1.5] * 3)), 0.03) == "undecided"


def test_words_for_intervals() -> None:
    assert interval_words(Estimate(0.041, 0.02, 0.062)) == "4.1 % [2.0, 6.2]"
    assert interval_words(Estimate(0.31, 0.1, 0.52)) == "31 % [10, 52]"
    assert interval_words(Estimate(-0.0001, -0.02, 0.0001)) == "0.0 % [-2.0, 0.0]"
    assert interval_words(Estimate(0.09, 0.004, 0.23)) == "9.0 % [0.4, 23.0]"  # excludes 0, and shows it
    assert interval_words(Estimate(-0.09, -0.23, -0.0004)) == "-9.00 % [-23.00, -0.04]"


def blocks_of(columns: dict[str, Sequence[float]]) -> list[dict[str, float]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def test_blocks_continue_until_every_variant_is_settled() -> None:
    rng = np.random.default_rng(1)
    base = np.exp(0.01 * rng.standard_normal(40))
    columns = {
        "base": base,
        "fast": 0.5 * np.exp(0.01 * rng.standard_normal(40)),
        "same": np.exp(0.01 * rng.standard_normal(40)),
        "wild": np.exp(0.8 * rng.standard_normal(40)),
    }
    blocks = blocks_of({name: [float(x) for x in column] for name, column in columns.items()})
    names = ["fast", "same", "wild"]
    early = decide_blocks(blocks[:8], "base", names)
    assert early.go_on and early.settled == ("fast",) and early.next_look == 12
    # The settled one is left out of later blocks and stays settled, between looks too.
    later = [*blocks[:8], *({k: v for k, v in b.items() if k != "fast"} for b in blocks[8:])]
    between = decide_blocks(later[:10], "base", names)
    assert between.settled == ("fast",) and between.variants[0].verdict.word == "faster"
    assert between.variants[1].verdict.word == "undecided"
    end = decide_blocks(later, "base", names)
    assert not end.go_on and {v.name: v.verdict.word for v in end.variants} == {
        "fast": "faster",
        "same": "no_difference",
        "wild": "undecided",
    }


def test_cpu_time_decides_where_wall_time_is_too_noisy() -> None:
    noisy = made([1.5, 0.7, 1.4, 0.6, 1.3, 0.8, 1.6, 0.7, 1.2, 0.9, 1.5, 0.6])
    named = {"same": noisy, "faster": noisy, "clear": around(0.5, 12)}
    cpu = {"same": around(1.0, 12), "faster": around(0.8, 12), "clear": around(0.9, 12)}
    found = {row.name: row.verdict for row in decide_named(named, 12, tolerance=0.1, cpu=cpu).variants}
    words = {name: (verdict.word, verdict.decided_by) for name, verdict in found.items()}
    assert words == {
        "same": ("no_difference", "cpu_time"),
        "faster": ("faster", "cpu_time"),
        "clear": ("faster", "wall_time"),
    }
    assert found["faster"].summary.endswith("in CPU time")
    change, cpu_change = found["clear"].change, found["clear"].cpu_change
    assert change is not None and cpu_change is not None
    assert change.value == pytest.approx(-0.5, abs=0.02) and cpu_change.value == pytest.approx(-0.1, abs=0.02)


def test_two_times_are_judged_at_half_the_level_and_one_at_the_whole() -> None:
    pairs = {"x": around(1.0, 12)}
    alone, both = decide_named(pairs, 12, tolerance=0.1), decide_named(pairs, 12, tolerance=0.1, cpu=pairs)
    levels = [decision.variants[0].verdict.level for decision in (alone, both)]
    assert levels[1] == levels[0] / 2
    assert decide_named(pairs, 12, tolerance=0.1, cpu={"x": []}) == alone


def test_a_variant_that_never_ran_is_not_waited_for() -> None:
    blocks = [{"base": 1.0 + 0.001 * i, "fast": 0.5 + 0.001 * i} for i in range(8)]
    found = decide_blocks(blocks, "base", ["fast", "broken"])
    assert not found.go_on and found.settled == ("fast",)
    broken = found.variants[1].verdict
    assert (broken.word, broken.pairs, broken.change) == ("undecided", 0, None)


def test_blocks_without_their_baseline_are_left_out() -> None:
    blocks = [{"base": 1.0, "b": 0.5}] * 5 + [{"b": 0.5}] * 3
    found = decide_blocks(blocks, "base", ["b"])
    assert found.variants[0].verdict.pairs == 5


def test_holm_is_stricter_than_each_alone_and_steps_down() -> None:
    borderline = [(1.0, x) for x in (0.9, 0.92, 0.95, 0.97, 0.98, 0.96, 0.93, 1.001, 0.94, 0.91)]
    clear = [(1.0, 0.5 + 0.001 * i) for i in range(10)]
    level = 0.0122
    assert judge(borderline, level=level).word == "faster"
    assert judge(borderline, level=level / 5).word == "undecided"
    nothing = [(1.0, x) for x in (0.8, 1.3, 0.9, 1.2, 1.0, 0.7, 1.4, 1.1, 0.95, 1.05)]
    alone = holm({"x": borderline} | {f"none{i}": nothing for i in range(4)}, level=level)
    assert alone["x"].word == "undecided"
    stepped = holm({"x": borderline} | {f"clear{i}": clear for i in range(4)}, level=level)
    assert stepped["x"].word == "faster" and stepped["x"].level == level
    assert list(stepped) == ["x", "clear0", "clear1", "clear2", "clear3"]


def test_where_holm_allows_no_verdict_the_plain_interval_is_still_given() -> None:
    five = [(1.0, 0.5 + 0.01 * i) for i in range(5)]
    found = holm({"one": five, "two": five})
    assert found["one"].word == "undecided" and found["one"].change is not None
    assert found["one"].change.high < 0


def test_components_are_ranked_by_share_and_judged_together() -> None:
    times = paired_times(np.random.default_rng(3), 1, 12, QUIET, change=0.0)[0]
    whole = [(float(a), float(b)) for a, b in times]
    parts = {
        "env_step": [(0.3 * a, 0.3 * b) for a, b in whole],
        "learn": [(0.6 * a, 0.4 * b) for a, b in whole],
        "gone": [(0.1 * a, 0.0) for a, _ in whole],
    }
    found = judge_components(parts, whole)
    assert [c.name for c in found] == ["learn", "env_step", "gone"]
    assert found[0].verdict.word == "faster" and found[0].share_of_a == pytest.approx(0.6)
    assert found[2].verdict.pairs == 0 and found[2].verdict.change is None


def test_the_noise_floor_falls_with_more_pairs() -> None:
    times = paired_times(np.random.default_rng(4), 1, 40, NOISY)[0]
    pairs = [(float(a), float(b)) for a, b in times]
    few, many = judge(pairs[:8]).noise_floor, judge(pairs).noise_floor
    assert few is not None and many is not None and 0 < many < few
