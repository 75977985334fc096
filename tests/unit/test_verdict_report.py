"""Verdicts as text at 80 columns, as markdown and as JSON: findings made by hand, whole text compared."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hotloop.analysis.findings import Estimate, GrowthFactor
from hotloop.analysis.ranking import LearningVerdict, RankedRow, RankedTable
from hotloop.analysis.scaling import RegionScaling, Scaling
from hotloop.analysis.verdict import ComponentVerdict, Decision, Verdict
from hotloop.analysis.work_counters import WorkDifference
from hotloop.report.pen import Pen
from hotloop.report.safe_text import columns
from hotloop.report.scaling import scaling_json, scaling_text
from hotloop.report.verdict import (
    floor,
    likely_text,
    progress_line,
    ranked_markdown,
    ranked_text,
    short_verdict,
    verdict_markdown,
    verdict_text,
)

FASTER = Verdict(
    word="faster",
    pairs=12,
    change=Estimate(-0.041, -0.062, -0.020),
    speed_up=Estimate(1.0428, 1.0204, 1.0661),
    tolerance=0.03,
    level=0.0122,
    method="signed_rank",
    more_pairs=None,
    noise_sd=0.021,
    noise_floor=0.025,
    summary="faster by 4.1 % [2.0, 6.2]",
)
SAME = replace(
    FASTER,
    word="no_difference",
    change=Estimate(-0.004, -0.013, 0.006),
    summary="no difference >= 3 %",
)
UNDECIDED = replace(
    FASTER,
    word="undecided",
    change=Estimate(-0.02, -0.061, 0.023),
    more_pairs=14,
    summary="undecided, about 14 more pairs",
)
NOTHING = replace(
    UNDECIDED,
    pairs=3,
    change=None,
    speed_up=None,
    method="none",
    more_pairs=2,
    noise_floor=None,
    summary="undecided, about 2 more pairs",
)
PARTS = (
    ComponentVerdict("learn", FASTER, 0.614),
    ComponentVerdict("env_step", SAME, 0.302),
    ComponentVerdict("gone", NOTHING, None),
)


def test_the_whole_verdict_at_80_columns() -> None:
    text = verdict_text(
        FASTER,
        b="--turbo",
        cpu=SAME,
        components=PARTS,
        notes=("B did 12 % fewer updates.",),
        machine_load="load 1.20, CPU pressure 14 %, steal 0.3 %",
    )
    assert text == (
        "--turbo is faster by 4.1 % [2.0, 6.2] than A (1.04x [1.02, 1.07] the speed)\n"
        "  Based on 12 pairs; exact 95 % interval of the change in time (signed-rank\n"
        "  test).\n"
        "  CPU time: B and A: no difference >= 3 % (time -0.4 % [-1.3, 0.6])\n"
        "  Noise floor: 2.5 % is the smallest difference this many pairs would detect 4\n"
        "  times out of 5 (standard deviation of a pair: 2.1 %).\n"
        "  B did 12 % fewer updates.\n"
        "  machine: load 1.20, CPU pressure 14 %, steal 0.3 %\n"
        "\n"
        "  part      share of A                 time               verdict\n"
        "  learn         61.4 %  -4.1 % [-6.2, -2.0]                faster\n"
        "  env_step      30.2 %   -0.4 % [-1.3, 0.6]  no difference >= 3 %\n"
        "  gone               -                    -    undecided, ~2 more"
    )


def test_an_interval_without_0_that_decides_nothing_is_likely() -> None:
    found = replace(UNDECIDED, change=Estimate(-0.992, -0.993, -0.990), more_pairs=1)
    assert short_verdict(found) == "likely faster, ~1 more"
    assert short_verdict(UNDECIDED) == "undecided, ~14 more"
    assert "several were tried at once" in likely_text([UNDECIDED, found])
    assert likely_text([UNDECIDED, FASTER]) == ""


def test_undecided_says_what_would_decide() -> None:
    text = verdict_text(UNDECIDED)
    assert text.startswith("B against A: undecided, about 14 more pairs (time -2.0 % [-6.1, 2.3])\n")
    assert "no interval yet" in verdict_text(NOTHING) and "Noise floor: not known yet." in verdict_text(
        NOTHING
    )


@pytest.mark.parametrize("verdict", [FASTER, SAME, UNDECIDED, NOTHING])
@pytest.mark.parametrize("method", ["signed_rank", "complete_separation", "rank_sum", "none"])
def test_a_pipe_gets_ascii_that_fits_and_never_the_forbidden_words(verdict: Verdict, method: Any) -> None:
    hostile = "тест\x1b[31m|" * 20
    found = replace(verdict, method=method)
    parts = (ComponentVerdict(hostile, found, 0.5),)
    text = verdict_text(found, a=hostile, b="B", components=parts, notes=(hostile,), machine_load=hostile)
    assert text.isascii() and "\x1b" not in text
    assert max(columns(line) for line in text.split("\n")) <= 80
    assert "significant" not in text


def test_colour_only_with_a_pen_that_has_it() -> None:
    assert "\x1b[" in verdict_text(FASTER, Pen(80, colour=True))
    assert "\x1b[" not in verdict_text(FASTER, Pen(80, colour=False))


def test_the_progress_line() -> None:
    going = Decision(True, UNDECIDED, "judged next at 16 pairs", 16)
    assert progress_line(going) == "12 pairs: time -2.0 % [-6.1, 2.3]; judged next at 16 pairs"
    assert progress_line(Decision(True, replace(NOTHING, pairs=1), "judged next at 5 pairs", 5)) == (
        "1 pair: no interval yet; judged next at 5 pairs"
    )


LEARNING = LearningVerdict(
    "worse", 12, Estimate(-12.0, -20.0, -4.0), 100.0, 88.0, 10.0, "worse: -12 [-20, -4]"
)
TABLE = RankedTable(
    baseline="base",
    blocks=12,
    rows=(
        RankedRow(
            "train-every-4",
            "faster, fewer updates",
            "semantic",
            FASTER,
            (WorkDifference("updates", 4000.0, 1000.0, 0.25),),
            LEARNING,
        ),
        RankedRow("flood-fill-off", "no difference", "safe", SAME, (), None),
        RankedRow("envs=256", "", "semantic", NOTHING, None, None, note="9 of 12 runs failed."),
    ),
    combination=None,
    noise_floor=0.025,
    tolerance=0.03,
    summary="The largest gain is train-every-4: faster by 4.1 % [2.0, 6.2]; 1 is undecided.",
)


def test_the_ranked_table_at_80_columns() -> None:
    assert ranked_text(TABLE, machine_load="load 1.20") == (
        "Variants                                                 against base, 12 blocks\n" + "-" * 80 + "\n"
        "  The largest gain is train-every-4: faster by 4.1 % [2.0, 6.2]; 1 is undecided.\n"
        "\n"
        "  variant                        time               verdict     work  learning\n"
        "  train-every-4   -4.1 % [-6.2, -2.0]                faster  differs     worse\n"
        "  flood-fill-off   -0.4 % [-1.3, 0.6]  no difference >= 3 %     same         -\n"
        "  envs=256                          -    undecided, ~2 more        -         -\n"
        "  train-every-4: expected faster, fewer updates.\n"
        "  train-every-4: updates: 4,000 in the baseline, 1,000 here.\n"
        "  train-every-4: returns worse: -12 [-20, -4].\n"
        "  flood-fill-off: expected no difference.\n"
        "  envs=256: 9 of 12 runs failed.\n"
        "\n"
        "  Noise floor: 2.5 % at worst. All `faster` and `slower` verdicts hold together\n"
        "  (Holm).\n"
        "  machine: load 1.20"
    )


def test_the_combination_is_listed_last() -> None:
    combined = replace(TABLE, combination=RankedRow("both", "", "safe", FASTER, (), None))
    assert [line.split()[0] for line in ranked_text(combined).split("\n")[5:9]][-1] == "both"


def test_markdown_for_a_pull_request() -> None:
    text = verdict_markdown(FASTER, b="new_branch", components=PARTS[:1], notes=("Work is the same.",))
    assert text == (
        "**new\\_branch is faster by 4.1 % \\[2.0, 6.2] than A (1.04x \\[1.02, 1.07] the speed)**\n"
        "\n"
        "| | share of A | time | verdict |\n"
        "| --- | ---: | ---: | --- |\n"
        "| whole | 100 % | -4.1 % [-6.2, -2.0] | faster |\n"
        "| learn | 61.4 % | -4.1 % [-6.2, -2.0] | faster |\n"
        "\n"
        "- Based on 12 pairs; exact 95 % interval of the change in time (signed-rank test).\n"
        "- Noise floor: 2.5 % is the smallest difference this many pairs would detect 4 times out of 5 "
        "(standard deviation of a pair: 2.1 %).\n"
        "- Work is the same.\n"
    )


def test_hostile_names_cannot_break_a_markdown_table() -> None:
    hostile = "a|b\n| <script>`*_x"
    text = ranked_markdown(replace(TABLE, rows=(replace(TABLE.rows[0], name=hostile, expected=hostile),)))
    rows = [line for line in text.split("\n") if line.startswith("|")]
    assert len(rows) == 3 and "<script" not in text.replace("\\<", "")
    bare = rows[2].replace("\\\\", "").replace("\\|", "")
    assert bare.count("|") == 8


def test_a_verdict_by_cpu_time_says_so_and_shows_both_times() -> None:
    by_cpu = replace(SAME, change=UNDECIDED.change, cpu_change=SAME.change, decided_by="cpu_time")
    rows = (RankedRow("control", "", "safe", by_cpu, (), None), RankedRow("other", "", "", FASTER, (), None))
    lines = ranked_text(replace(TABLE, rows=rows)).split("\n")
    control = [line for line in lines if "control" in line]
    assert "-2.0 % [-6.1, 2.3]  no difference (CPU)" in control[0]
    assert control[1].strip() == "control: CPU time -0.4 % [-1.3, 0.6]."
    assert "decided by the CPU time" in " ".join(lines) and max(map(len, lines)) <= 80
    assert "-0.4 % \\[-1.3, 0.6] | no difference (CPU)" in ranked_markdown(replace(TABLE, rows=rows))


SCALING = Scaling(
    sizes=(100.0, 200.0, 400.0),
    runs=12,
    exponent=Estimate(1.62, 1.55, 1.70),
    coefficient_s=0.001,
    last_exponent=Estimate(1.8, 1.7, 1.9),
    shapes=(),
    expected_s=4.0,
    actual_s=9.6,
    slow_down=Estimate(2.4, 2.2, 2.6),
    within_twice=False,
    bender="push",
    regions=(
        RegionScaling("push", Estimate(2.0, 1.95, 2.05), 0.4, 6.4, 4.8, True),
        RegionScaling("", None, 0.6, 2.4, 0.0, False),
    ),
    factors=(GrowthFactor("steps_per_episode", 1.0, False), GrowthFactor("cost_per_call", 2.4, True)),
    summary="Time ~ n^1.62 [1.55, 1.70].",
    not_measured=("start-up: it is part of the times",),
)


def test_scaling_at_80_columns() -> None:
    assert scaling_text(SCALING) == (
        "Scaling                                               12 runs, n = 100, 200, 400\n" + "-" * 80 + "\n"
        "  Time ~ n^1.62 [1.55, 1.70].\n"
        "  Between the two largest sizes: n^1.80 [1.70, 1.90].\n"
        "\n"
        "  own time     n = 100  n = 400  excess           exponent\n"
        "  push          400 ms   6.40 s  4.80 s  2.00 [1.95, 2.05]  bends\n"
        "  (no region)   600 ms   2.40 s    0 ns                  -\n"
        "\n"
        "  Actual / linear is the product of:\n"
        "  env steps per n        1.00x  learning or a setting\n"
        "  cost per call          2.40x  defect\n"
        "\n"
        "  Not measured: start-up: it is part of the times."
    )
    assert json.loads(json.dumps(scaling_json(SCALING), allow_nan=False))["bender"] == "push"


@pytest.mark.parametrize(
    ("fraction", "shown"), [(0.025, "2.5 %"), (0.999, "99.9 %"), (2.6, "4x"), (4.8e7, "more than 10x")]
)
def test_a_noise_floor_is_a_number_that_people_can_use(fraction: float, shown: str) -> None:
    assert floor(fraction) == shown
