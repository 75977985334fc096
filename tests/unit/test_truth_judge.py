"""The judge of advice on scripts with a known defect."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.truth.judge import (
    LONGEST_FUNCTION,
    Hit,
    Ratio,
    counter_differences,
    defect_code,
    function_is_found,
    headline_agrees,
    judge,
    line_is_found,
    line_of_site,
    measured_ratio,
    prediction,
    rate_errors,
    tally,
    truth_problems,
    work_differences,
)

CORPUS = Path(__file__).parents[1] / "truth/development"
SOURCE = """\
import numpy as np


def advantages(rewards):
    total = 0.0
    out = []
    for r in reversed(rewards):
        total = r + 0.99 * total
        out.append(
            total,
        )
    return out


def train(env, net):
    for _ in range(100):
        rewards = rollout(env, net)
        adv = advantages(rewards)
        net.update(
            adv,
        )


train(make(), Net())
"""

TRUTH: dict[str, Any] = {
    "style": "one file",
    "defect": "A loop in Python; use lfilter.",
    "lines": ["for r in reversed(rewards):", "adv = advantages(rewards)"],
    "answers": ["lfilter|vectori[sz]e the advantages"],
    "same_results": True,
    "category": "code",
    "quick_args": ["--steps", "10"],
}
CLEAN = TRUTH | {"defect": "", "lines": [], "answers": []}


def advice(**changes: Any) -> dict[str, Any]:
    made = {
        "name": "some_rule",
        "title": "Something else",
        "advice": "Do it.",
        "how_to_change": "",
        "site": "",
        "region": "",
        "tier": "medium",
        "gain": {"value": 1.5, "low": 1.2, "high": 1.9},
    }
    return made | changes


def report(*recommendations: dict[str, Any], headline: str = "") -> dict[str, Any]:
    return {"headline": headline, "recommendations": list(recommendations)}


def test_a_listed_loop_counts_as_a_whole_and_a_statement_over_all_its_lines() -> None:
    assert defect_code(SOURCE, TRUTH["lines"]).lines == {7, 8, 9, 10, 11, 18}
    assert defect_code(SOURCE, ["net.update("]).lines == {19, 20, 21}


def test_a_listed_function_head_counts_alone() -> None:
    assert defect_code(SOURCE, ["def advantages(rewards):"]).lines == {4}


@pytest.mark.parametrize(
    ("site", "line"),
    [("/a/b/slow.py:12", 12), ("slow.py:3", 3), ("other.py:3", None), ("slow.py", None), ("", None)],
)
def test_a_site_is_read_only_if_it_is_in_the_script(site: str, line: int | None) -> None:
    assert line_of_site(site, "slow.py") == line


def test_advice_at_a_defect_line_has_found_it() -> None:
    judged = judge(TRUTH, SOURCE, report(advice(site="/x/slow.py:18")))
    assert judged.hit is not None and (judged.hit.position, judged.hit.how) == (1, "site")


def test_advice_at_another_line_has_not() -> None:
    assert judge(TRUTH, SOURCE, report(advice(site="/x/slow.py:17"))).hit is None
    assert judge(TRUTH, SOURCE, report(advice(site="/x/train.py:18"))).hit is None


@pytest.mark.parametrize("key", ["title", "advice", "how_to_change"])
def test_advice_that_names_the_remedy_has_found_it(key: str) -> None:
    judged = judge(TRUTH, SOURCE, report(advice(), advice(**{key: "Vectorise the advantages"})))
    assert judged.hit is not None and (judged.hit.position, judged.hit.how) == (2, "answer")
    assert judged.first_title == "Something else"


def test_the_pointer_to_hot_code_is_judged_by_its_place_alone() -> None:
    named = advice(name="hottest_code", advice="Use lfilter.")
    assert judge(TRUTH, SOURCE, report(named)).hit is None
    inside = judge(TRUTH, SOURCE, report(named | {"site": "slow.py:5"})).hit
    assert inside is not None and inside.how == "function"
    assert inside.gain is not None  # of what a fix saves where there is something to fix


def test_a_pointer_into_a_long_function_shows_nothing() -> None:
    long = SOURCE.replace("    total = 0.0\n", "    total = 0.0\n" * LONGEST_FUNCTION)
    pointer = advice(name="hottest_code", site="slow.py:5")
    assert judge(TRUTH, long, report(pointer)).hit is None


def test_other_advice_in_the_same_function_does_not_count() -> None:
    assert judge(TRUTH, SOURCE, report(advice(site="slow.py:5"))).hit is None


def test_regions_not_worth_optimising_take_no_position() -> None:
    judged = judge(
        TRUTH, SOURCE, report(advice(tier="not_worth_optimising"), advice(site="slow.py:7", tier="low"))
    )
    assert judged.hit is not None and judged.hit.position == 1
    assert judged.advice == ("some_rule",)


def test_options_are_listed_apart() -> None:
    judged = judge(TRUTH, SOURCE, report(advice(tier="option", title="Use lfilter"), advice()))
    assert judged.hit is None
    assert judged.option_hit is not None and judged.option_hit.position == 1
    assert judged.options == ("Use lfilter",)
    assert judged.first_title == "Something else"


def test_any_advice_on_a_clean_script_is_false_but_for_the_pointer() -> None:
    found = report(
        advice(title="Fix this"),
        advice(name="hottest_code", tier="no_known_remedy"),
        advice(tier="option"),
        advice(tier="not_worth_optimising"),
        advice(tier="low", title="And that"),
    )
    judged = judge(CLEAN, SOURCE, found, "clean.py")
    assert judged.clean and judged.hit is None
    assert judged.false_advice == ("Fix this", "And that")


@pytest.mark.parametrize(
    ("headline", "agrees"),
    [
        ("Something else: 1.5x as fast", True),
        ("Look at slow.py:7 first", True),
        ("`decide` takes 40 %", True),
        ("Training runs well", False),
    ],
)
def test_the_headline_names_the_first_advice(headline: str, agrees: bool) -> None:
    assert headline_agrees(headline, advice(site="/x/slow.py:7", region="decide")) is agrees


def test_without_advice_there_is_no_headline_to_agree() -> None:
    assert judge(TRUTH, SOURCE, report(headline="All is well")).headline_agrees is None


def test_few_pairs_give_their_range() -> None:
    found = measured_ratio([(10.0, 20.0), (10.0, 21.0), (10.0, 22.0)])
    assert found is not None and found.is_range
    assert found.low == pytest.approx(2.0) and found.high == pytest.approx(2.2)
    assert not found.narrow
    assert measured_ratio([]) is None


def test_more_pairs_give_a_rank_interval() -> None:
    found = measured_ratio([(10.0, 20.0 + 0.02 * i) for i in range(8)])
    assert found is not None and not found.is_range and found.narrow
    assert 2.0 < found.low < found.value < found.high < 2.014


def test_a_single_pair_is_never_narrow() -> None:
    found = measured_ratio([(1.0, 2.0)])
    assert found is not None and found.low == found.high and not found.narrow


def test_a_prediction_is_judged_by_the_measured_ratio() -> None:
    hit = Hit(1, "site", "some_rule", "", {"value": 1.5, "low": 1.2, "high": 1.9})
    right = prediction(hit, Ratio(1.25, 1.1, 1.4, 5, True))
    assert right is not None and right.inside and math.isclose(right.error, 0.2)
    wrong = prediction(hit, Ratio(3.0, 2.9, 3.1, 5, True))
    assert wrong is not None and not wrong.inside and math.isclose(wrong.error, -0.5)
    assert prediction(None, Ratio(3.0, 2.9, 3.1, 5, True)) is None
    assert prediction(hit, None) is None


def test_slow_and_fixed_must_do_the_same_work() -> None:
    slow = {"env_steps": 10, "updates": None, "checksum": 1.0}
    assert work_differences(slow, slow | {"checksum": 2.0}, same_results=False) == []
    assert work_differences(slow, slow | {"checksum": 2.0}, same_results=True) == [
        "checksum: slow 1.0, fixed 2.0"
    ]
    assert work_differences(slow, slow | {"env_steps": 9}, same_results=False) == [
        "env_steps: slow 10, fixed 9"
    ]


def test_counters_that_the_script_does_not_know_are_not_compared() -> None:
    counted = {"env_steps": 10, "updates": 3}
    assert counter_differences({"env_steps": 10, "updates": None}, counted) == []
    assert counter_differences({"env_steps": 12, "updates": 3}, counted) == [
        "env_steps: script 12, hotloop 10"
    ]


def test_steps_of_every_optimizer_and_steps_that_reset_are_other_ways_of_counting() -> None:
    counted = {"env_steps": 10, "updates": 3, "gradient_steps": 6, "episodes": 2}
    assert counter_differences({"env_steps": 12, "updates": 6}, counted) == []
    assert len(counter_differences({"env_steps": 13, "updates": 5}, counted)) == 2
    assert len(counter_differences({"env_steps": 9, "updates": 3}, counted)) == 1


def test_rates_are_compared_where_the_unit_is_known() -> None:
    measured = {"env_steps_per_s": 110.0, "updates_per_s": None}
    script = {"units_per_s": 10.0}
    assert rate_errors({}, script, measured) == {}
    known = {"env_steps_per_unit": 10, "updates_per_unit": 1}
    assert rate_errors(known, script, measured) == {"env_steps": pytest.approx(0.1)}


def test_lines_of_other_profilers() -> None:
    assert line_is_found(TRUTH, SOURCE, 8)
    assert not line_is_found(TRUTH, SOURCE, 17)
    assert not line_is_found(TRUTH, SOURCE, None)


def test_functions_of_other_profilers() -> None:
    assert function_is_found(TRUTH, SOURCE, "advantages", 4)
    assert not function_is_found(TRUTH, SOURCE, "rollout", 40)
    assert not function_is_found(TRUTH, SOURCE, "<module>", 1)
    sleeps = TRUTH | {"lines": ["time.sleep(0.1)"]}
    assert function_is_found(sleeps, SOURCE, "<built-in method time.sleep>", None)
    assert not function_is_found(sleeps, SOURCE, "<method 'run_backward' of 'Engine' objects>", None)


def test_a_decorated_function_begins_at_its_decorator_for_other_profilers() -> None:
    decorated = SOURCE.replace("def advantages", "@torch.no_grad()\ndef advantages")
    assert function_is_found(TRUTH, decorated, "advantages", 4)


def test_a_good_truth_file_has_no_problems() -> None:
    assert truth_problems(TRUTH, SOURCE) == []
    assert truth_problems(CLEAN, None) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"lines": ["not there"]}, "`lines`: not in slow.py: not there"),
        ({"lines": []}, "`lines` is empty"),
        ({"answers": ["("]}, "is no regular expression"),
        ({"same_results": "yes"}, "`same_results` is not a bool"),
        ({"defect": ""}, "`defect` must be empty for a clean script"),
    ],
)
def test_a_bad_truth_file_is_named(changes: dict[str, Any], problem: str) -> None:
    found = truth_problems(TRUTH | changes, SOURCE)
    assert any(problem in one for one in found), found


def test_a_missing_field_is_named() -> None:
    assert truth_problems({k: v for k, v in TRUTH.items() if k != "style"}, SOURCE) == ["`style` is missing"]


def test_the_tally_counts_defects_and_clean_scripts_apart() -> None:
    at_2 = judge(TRUTH, SOURCE, report(advice(), advice(site="slow.py:7")))
    at_1 = judge(TRUTH, SOURCE, report(advice(site="slow.py:7")))
    absent = judge(TRUTH, SOURCE, report(advice()))
    false = judge(CLEAN, SOURCE, report(advice(), advice()), "clean.py")
    healthy = judge(CLEAN, SOURCE, report(), "clean.py")
    ratio = Ratio(1.25, 1.1, 1.4, 5, True)
    total = tally(
        [
            (at_2, None),
            (at_1, prediction(at_1.hit, ratio)),
            (absent, None),
            (false, None),
            (healthy, None),
        ]
    )
    assert (total.first, total.top_3, total.absent, total.defects) == (1, 2, 1, 3)
    assert (total.false_on_clean, total.clean_with_false, total.clean) == (2, 1, 2)
    assert total.inside == 1 and total.median_error == pytest.approx(0.2)


@pytest.mark.parametrize(
    "folder", sorted(file.parent for file in CORPUS.glob("*/truth.toml")), ids=lambda f: f.name
)
def test_a_case_has_its_scripts_and_a_good_truth_file(folder: Path) -> None:
    truth = tomllib.loads((folder / "truth.toml").read_text(encoding="utf-8"))
    scripts = {file.name: file.read_text(encoding="utf-8") for file in folder.glob("*.py")}
    assert set(scripts) == ({"slow.py", "fixed.py"} if truth["defect"] else {"clean.py"})
    assert truth_problems(truth, scripts.get("slow.py")) == []
    assert not any("hotloop" in text for text in scripts.values())
