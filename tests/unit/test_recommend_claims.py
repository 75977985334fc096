"""No time is promised twice: overlapping advice, the gain of all advice together, shared lines of code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hotloop.analysis.advice import BUILT_IN
from hotloop.analysis.advice.claims import TimeTable, combined_gain, time_table, without_double_promises
from hotloop.analysis.advice.recommendation import Change, advise
from hotloop.analysis.advice.run_view import RunView, view_run
from hotloop.analysis.explain import explain, explain_without_advice
from hotloop.analysis.findings import Claim, Estimate, Recommendation
from hotloop.analysis.recommend import recommend
from hotloop.capture.model import Capture
from hotloop.testing import Spec, make_capture
from hotloop.testing.planted import learn
from tests.unit.test_recommend import advice

US, MS = 1e3, 1e6

TABLE = TimeTable(
    share=np.array([0.1, 0.2, 0.3, 0.4]),
    region=(("loop",), ("loop", "act"), ("loop", "step"), ()),
    sampled=np.array([0, 1, 2, 3]),
)


def claims(name: str, claim: Claim, gain: Estimate | None = None, **changes: Any) -> Recommendation:
    return advice(name, claim=claim, gain=gain or Estimate(1.2, 1.1, 1.3), **changes)


def test_a_region_claims_what_is_inside_it_unless_its_own_time_is_meant() -> None:
    assert TABLE.share_of(TABLE.mask(Claim((("loop",),)))) == pytest.approx(0.6)
    assert TABLE.share_of(TABLE.mask(Claim((("loop",),), own=True))) == pytest.approx(0.1)
    assert TABLE.share_of(TABLE.mask(Claim((("loop", "act"),), sampled=(3,)))) == pytest.approx(0.6)
    assert TABLE.share_of(TABLE.mask(Claim())) == 0.0


def test_of_two_about_the_same_time_the_better_one_stays() -> None:
    lines, region = Claim(sampled=(1, 2)), Claim((("loop",),))
    found = without_double_promises([claims("a", region), claims("b", lines)], TABLE)
    assert [one.name for one in found] == ["a"]


def test_a_part_says_so() -> None:
    found = without_double_promises(
        [
            claims("a", Claim((("loop",),))),
            claims("b", Claim(sampled=(1,))),
            claims("c", Claim(sampled=(3,))),
        ],
        TABLE,
    )
    assert [one.part_of for one in found] == [None, 1, None]
    assert "This time is part of advice 1: the two gains do not add up." in found[1].evidence


def test_options_and_what_to_leave_alone_promise_nothing() -> None:
    loop = Claim((("loop",),))
    given = [claims("a", loop), claims("b", loop, tier="option"), advice("c", tier="not_worth_optimising")]
    assert [one.name for one in without_double_promises(given, TABLE)] == ["a", "b", "c"]


def test_the_gain_of_all_advice_counts_every_piece_of_time_once() -> None:
    half = Estimate(1 / (1 - 0.3), 1 / (1 - 0.3), 1 / (1 - 0.3))  # half of the 60 % in `loop`
    all_of_act = Estimate(1 / (1 - 0.2), 1 / (1 - 0.2), 1 / (1 - 0.2))
    found = combined_gain(
        [claims("a", Claim((("loop",),)), half), claims("b", Claim((("loop", "act"),)), all_of_act)], TABLE
    )
    # All of `act` (20 %) and half of the other 40 %: 40 % of the time, not 50 %.
    assert found.value == pytest.approx(1 / (1 - 0.4))


def capture_of(**regions: Spec) -> Capture:
    return make_capture(dict(regions), env_steps=64_000, updates=100)


def test_the_report_has_the_gain_of_all_advice_that_keeps_results() -> None:
    push = {"replay_push": Spec(64_000, 12 * US, site="train.py:50")}
    save = {"checkpoint": Spec(20, 20 * MS)}
    loop = {"act": Spec(1000, 120 * US), "env_step": Spec(1000, 400 * US), **learn(100)}
    one = explain(capture_of(**loop, **push))
    assert one.gain_of_all is None
    two = explain(capture_of(**loop, **push, **save))
    gains = {r.name: r.gain for r in two.recommendations if r.safety == "safe" and r.tier != "option"}
    first, second = gains["replay_item_by_item"], gains["checkpoint_too_often"]
    assert two.gain_of_all is not None and first is not None and second is not None
    assert two.gain_of_all.value > max(first.value, second.value)
    # They are about different time, so what they save adds up.
    saved = (1 - 1 / first.value) + (1 - 1 / second.value)
    assert two.gain_of_all.value == pytest.approx(1 / (1 - saved), rel=1e-6)


def look(capture: Capture) -> RunView:
    run = view_run(capture, explain_without_advice(capture))
    assert run is not None
    return run


def test_without_samples_regions_make_up_the_time() -> None:
    run = look(capture_of(act=Spec(1000, 100 * US), env_step=Spec(1000, 100 * US)))
    table = time_table(run)
    assert table.region == (("act",), ("env_step",)) and (table.sampled == -1).all()
    assert table.share.sum() == pytest.approx(0.95, abs=0.01)


def test_a_line_that_acting_and_learning_share_is_not_named() -> None:
    forward = Spec(100, 2 * MS, category="model", site="agent.py:20")
    shared = {
        "get_action": Spec(1000, 900 * US, category="policy", site="agent.py:20"),
        "env_step": Spec(1000, 100 * US, site="train.py:9"),
        "update": Spec(100, 0, {"learner_forward": forward, "backward": Spec(100, MS)}),
    }
    run = look(make_capture(shared, env_steps=1000, updates=100))
    rows = {row.name: row for row in run.rows}
    assert run.site_of(rows["get_action"]) == "" and run.site_of(rows["env_step"]) == "train.py:9"
    change = Change("h", effort="minutes", safety="safe")
    made = advise(run, "mine", rows["get_action"], "t", ["1"], "a", None, change)
    assert made.site == "" and made.region == "get_action" and made.claim == Claim((("get_action",),))


def test_a_region_is_never_both_advice_and_left_alone() -> None:
    loop = {
        "act": Spec(1000, 300 * US),
        "env_step": Spec(1000, 400 * US),
        "tidy_up": Spec(1000, 4 * US),
        "sort": Spec(1000, 4 * US, {"compare": Spec(1000, 4 * US)}),
    }
    capture = make_capture(loop, env_steps=8000)

    def about_sort(run: RunView) -> Recommendation:
        row = next(row for row in run.rows if row.name == "sort")
        return advise(
            run, "x", row, "t", ["1"], "a", None, Change("h", effort="minutes", safety="safe"), tier="low"
        )

    found = recommend(capture, explain_without_advice(capture), [about_sort, *BUILT_IN])
    left = next(one for one in found if one.name == "leave_alone")
    assert "`tidy_up`" in left.title and "sort" not in left.title and "compare" not in left.title


def test_unknown_gains_with_strong_evidence_come_first() -> None:
    capture = capture_of(act=Spec(1000, 300 * US), env_step=Spec(1000, 400 * US))
    given = [
        advice("small", gain=Estimate(1.07, 1.06, 1.08)),
        advice("strong", gain=None, tier="high"),
        advice("large", gain=Estimate(3.0, 2.9, 3.1)),
        advice("weak", gain=None, tier="low"),
        advice("option", gain=Estimate(9.0, 8.0, 10.0), tier="option"),
    ]
    found = recommend(capture, explain_without_advice(capture), [lambda run: given])
    assert [one.name for one in found] == ["strong", "large", "small", "weak", "option"]


def test_of_two_about_the_same_time_the_one_that_names_the_line_stays() -> None:
    region = advice("logging_too_often", claim=Claim(regions=(("log",),)))
    line = advice("metrics_each_step", claim=Claim(sampled=(0,)), site="train.py:9")
    pointer = advice("hottest_code", claim=Claim(sampled=(0,)), site="train.py:9")
    table = TimeTable(np.array([0.6, 0.4]), (("log",), ("env_step",)), np.array([0, 1]))
    assert [one.name for one in without_double_promises([region, line], table)] == ["metrics_each_step"]
    assert [one.name for one in without_double_promises([region, pointer], table)] == ["logging_too_often"]
