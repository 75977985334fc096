"""A training batch by its parts, and Amdahl's law on what changed: made-up captures, exact answers."""

from __future__ import annotations

import math

import pytest

from hotloop.analysis.batch_breakdown import (
    BatchBreakdown,
    batch_breakdown,
    explain_gain,
    impacts,
    total_verdicts,
)
from hotloop.analysis.verdict import ComponentVerdict, Verdict, judge, judge_components
from hotloop.capture.model import Capture
from hotloop.report.batch_breakdown import (
    breakdown_json,
    breakdown_text,
    explanation_text,
    impacts_text,
    totals_text,
)
from hotloop.report.pen import Pen
from hotloop.testing.captures import Spec, make_capture

MS = 1e6


def capture_of(
    batch: dict[str, Spec], own_ms: float = 1.0, warm_up: dict[str, Spec] | None = None
) -> Capture:
    regions = {"training_batch": Spec(4, own_ms * MS, batch, "other"), **(warm_up or {})}
    return make_capture(regions, env_steps=100, facts={"region_cost_ns": 0.0}, noise=0.0)


def breakdown(batch: dict[str, Spec], own_ms: float = 1.0) -> BatchBreakdown:
    found = batch_breakdown(capture_of(batch, own_ms))
    assert found is not None
    return found


def milliseconds(found: BatchBreakdown) -> dict[str, float]:
    return {name: round(ns / MS, 3) for name, ns in found.flat().items() if ns}


TORCHRL = {
    "Collector.iterator": Spec(
        4,
        1 * MS,
        {
            "collect_rollouts": Spec(
                4,
                2 * MS,
                {
                    "policy_forward": Spec(40, 0.5 * MS, {"tensordict": Spec(40, 0.1 * MS, {}, "framework")}),
                    "env_step": Spec(
                        40,
                        0.25 * MS,
                        {"env_simulation": Spec(40, 0.75 * MS, {"env_fire": Spec(40, 0.25 * MS)})},
                    ),
                    "env_reset": Spec(
                        4, 1 * MS, {"env_simulation_reset": Spec(4, 3 * MS, {}, "environment")}
                    ),
                },
                "framework",
            )
        },
        "framework",
    ),
    "advantage": Spec(4, 2 * MS, {"learner_forward": Spec(4, 1 * MS)}),
    "replay_push": Spec(4, 1 * MS),
    "replay_sample": Spec(16, 0.5 * MS),
    "loss": Spec(16, 1 * MS, {"learner_forward": Spec(16, 0.5 * MS), "tensordict": Spec(16, 0.25 * MS)}),
    "backward": Spec(16, 1 * MS),
    "clip_grad_norm": Spec(16, 0.25 * MS, {}, "optimizer"),
    "optimizer_step": Spec(16, 0.5 * MS),
}


def test_time_of_a_library_around_the_simulator_is_charged_to_the_library() -> None:
    assert milliseconds(breakdown(TORCHRL)) == {
        "env_step": 40.0,  # the simulator and what is inside it, 40 x (0.75 + 0.25)
        "policy_forward": 20.0,
        "tensordict": 4 + 8 + 4 + 10 + 4,  # iterator, rollout, tensordicts, env_step, env_reset
        "env_reset": 12.0,
        "advantage": 12.0,
        "replay_buffer": 12.0,
        "loss": 28.0,
        "backward": 16.0,
        "optimizer": 12.0,
        "unattributed": 4.0,
    }


def test_collection_is_the_sum_of_its_parts_and_all_shares_add_up() -> None:
    found = breakdown(TORCHRL)
    collection = found.parts[0]
    assert collection.name == "data_collection" and collection.own_ns == round(102 * MS)
    assert collection.own_ns == sum(part.own_ns for part in collection.inner)
    assert math.isclose(sum(part.share for part in found.parts), 1.0)
    assert found.batches == 4 and found.wall_ns == sum(part.own_ns for part in found.parts)


def test_a_trainer_without_a_region_for_the_simulator_is_charged_by_env_step() -> None:
    inside = {
        "env_step": Spec(40, 1 * MS),
        "policy_forward": Spec(40, 0.5 * MS),
        "replay_push": Spec(40, 0.25 * MS),
        "env_reset": Spec(4, 1 * MS),
    }
    own = {
        "collect_rollouts": Spec(4, 1 * MS, inside, "framework"),
        "fused_update": Spec(4, 5 * MS, {}, "model"),
    }
    assert milliseconds(breakdown(own)) == {
        "env_step": 40.0,
        "policy_forward": 20.0,
        "framework": 4.0,
        "env_reset": 4.0,
        "storing": 10.0,
        "fused_update": 20.0,
        "unattributed": 4.0,
    }


def test_start_up_and_warm_up_are_left_out() -> None:
    before = {"collect_rollouts": Spec(1, 500 * MS, {"env_step": Spec(10, 9 * MS)}, "framework")}
    with_both = batch_breakdown(capture_of(TORCHRL, warm_up=before))
    assert with_both is not None and milliseconds(with_both) == milliseconds(breakdown(TORCHRL))


def test_a_capture_without_batches_has_no_breakdown() -> None:
    assert batch_breakdown(make_capture({"env_step": Spec(10, MS)}, env_steps=10)) is None


def verdicts(
    a_ms: dict[str, float], b_ms: dict[str, float], pairs: int = 8
) -> tuple[tuple[ComponentVerdict, ...], Verdict]:
    """Pairs whose times scatter by a thousandth."""
    scatter = [1.0 + 0.001 * (k % 3) for k in range(pairs)]
    named = {
        name: [(a_ms[name] * s, b_ms[name] * scatter[(k + 1) % pairs]) for k, s in enumerate(scatter)]
        for name in a_ms
    }
    whole = [
        (sum(p[k][0] for p in named.values()), sum(p[k][1] for p in named.values())) for k in range(pairs)
    ]
    return judge_components(named, whole), judge(whole)


def test_a_small_gain_is_explained_by_the_share_of_what_got_faster() -> None:
    parts, whole = verdicts({"env_step": 10.0, "loss": 90.0}, {"env_step": 1.0, "loss": 90.0})
    found = explain_gain(parts, whole, "turbo")
    assert found.parts == ("env_step",) and found.share == pytest.approx(0.1, abs=1e-3)
    assert found.predicted is not None and found.measured is not None
    # 10 % of the time, ten times as fast: 1 / (0.9 + 0.1 / 10)
    assert found.predicted.value == pytest.approx(1 / 0.91, abs=2e-3)
    assert found.measured.value == pytest.approx(found.predicted.value, abs=2e-3)
    assert found.at_most == pytest.approx(1 / 0.9, abs=2e-3)
    assert "which agrees" in " ".join(found.sentences) and "10.0 % of the time" in found.sentences[0]


def test_parts_that_got_slower_count_against_the_gain() -> None:
    parts, whole = verdicts({"a": 50.0, "b": 50.0}, {"a": 25.0, "b": 75.0})
    found = explain_gain(parts, whole, "it")
    assert found.predicted is not None and found.predicted.value == pytest.approx(1.0, abs=5e-3)
    assert set(found.parts) == {"a", "b"}


def test_with_too_few_pairs_for_all_parts_together_each_is_taken_by_itself() -> None:
    names = ["env_step", *(f"part {k}" for k in range(9))]
    a = dict.fromkeys(names, 10.0)
    parts, whole = verdicts(a, a | {"env_step": 1.0}, pairs=5)
    assert whole.word == "faster" and not any(part.verdict.word == "faster" for part in parts)
    found = explain_gain(parts, whole, "turbo")
    assert found.parts == ("env_step",) and not found.certain and "Too few pairs" in found.sentences[0]
    parts, whole = verdicts(a, a | {"env_step": 1.0}, pairs=8)
    assert explain_gain(parts, whole, "turbo").certain


def test_noise_is_not_explained() -> None:
    parts, whole = verdicts({"a": 50.0, "b": 50.0}, {"a": 50.0, "b": 50.0})
    found = explain_gain(parts, whole, "turbo")
    assert found.predicted is None and "no gain to explain" in found.sentences[0]


def test_data_collection_and_the_neural_network_have_verdicts_in_total() -> None:
    off = {"env_step": 4.0, "policy_forward": 1.0, "loss": 1.0, "backward": 2.0, "advantage": 2.0}
    on = {**off, "env_step": 1.0}
    pairs = [
        ({name: s * noise for name, s in off.items()}, {name: s * noise for name, s in on.items()})
        for noise in (1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99)
    ]
    found = {one.name: one for one in total_verdicts(pairs, 0.01)}
    assert found["data collection"].share_of_a == pytest.approx(0.5)
    assert found["data collection"].verdict.word == "faster"
    assert found["neural network total"].share_of_a == pytest.approx(0.4)
    assert found["neural network total"].verdict.word == "no_difference"
    text = totals_text(tuple(found.values()), Pen(width=80, unicode=False))
    assert "  data collection " in text and "  neural network total " in text
    assert totals_text((), Pen(unicode=False)) == ""


def test_tiers_follow_from_the_gain_if_twice_as_fast() -> None:
    shares = {"loss": 60.0, "env_step": 25.0, "backward": 10.0, "advantage": 4.8, "other": 0.2}
    found = {one.name: one for one in impacts([shares, shares])}
    assert {name: one.tier for name, one in found.items()} == {
        "loss": "high",  # 1 / 0.7
        "env_step": "medium",  # 1 / 0.875
        "backward": "low",  # 1 / 0.95
        "advantage": "low",
    }
    assert found["loss"].gain_if_twice_as_fast.value == pytest.approx(1 / 0.7)
    uneven = impacts([{"loss": 60.0, "rest": 40.0}, {"loss": 2.0, "rest": 98.0}])
    assert {one.name: one.tier for one in uneven}["loss"] == "low"  # it may be nothing
    assert impacts([]) == ()


def test_the_text_fits_80_columns_and_names_every_part() -> None:
    found = breakdown(TORCHRL)
    parts, whole = verdicts({"env_step": 10.0, "loss": 90.0}, {"env_step": 1.0, "loss": 90.0})
    pen = Pen(80, unicode=True)
    texts = [
        breakdown_text(found, pen, "A training batch"),
        explanation_text(explain_gain(parts, whole, "turbo"), pen),
        impacts_text(impacts([{"loss": 60.0, "advantage": 1.0, "env_step": 39.0}]), pen, "turbo on", "Last."),
    ]
    assert all(len(line) <= 80 for text in texts for line in text.split("\n"))
    assert "data collection    " in texts[0] and "- env step" in texts[0] and "0.0100 s" in texts[0]
    assert "4 batches" in texts[0] and "not as the remainder" in texts[0]
    assert "high impact" in texts[2] and "not worth optimising" in texts[2] and texts[2].endswith("Last.")
    data = breakdown_json(found)
    assert data["schema_version"] == 2 and data["parts"][0]["inner"][0]["name"] == "env_step"
