"""The engine: order, tiers, advice of other packages, intervals; and the view of a run that advice gets."""

from __future__ import annotations

import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from hotloop.analysis.advice import BUILT_IN
from hotloop.analysis.advice.commands import as_typed, command_again, flag_in, prove_command
from hotloop.analysis.advice.learner import dense_embedding
from hotloop.analysis.advice.recommendation import round_interval, tier_of
from hotloop.analysis.advice.run_view import RunView, near, tail, view_run
from hotloop.analysis.explain import explain, explain_without_advice, first_advice
from hotloop.analysis.findings import Claim, Estimate, Recommendation
from hotloop.analysis.recommend import AdviceWarning, own_code_before_boost, recommend, worth
from hotloop.capture.model import Capture
from hotloop.report.text import terminal
from hotloop.testing import ProcessSpec, Spec, ThreadSpec, make_capture
from hotloop.testing.planted import collect, learn
from hotloop.workflows.report import load_advice

US, MS = 1e3, 1e6


def advice(name: str = "mine", **changes: Any) -> Recommendation:
    made = Recommendation(
        name=name,
        title="t",
        evidence=("1",),
        advice="a",
        gain=Estimate(1.5, 1.4, 1.6),
        tier="high",
        effort="minutes",
        safety="safe",
        provable_by="hand",
        how_to_change="h",
        site="",
        region="",
        plan={},
        prove_command="c",
    )
    return replace(made, **changes)


def some_capture(**changes: Any) -> Capture:
    return make_capture({**collect(1000), **learn(100)}, env_steps=8000, updates=100, **changes)


def look(capture: Capture) -> RunView:
    run = view_run(capture, explain_without_advice(capture))
    assert run is not None
    return run


def rules_of(capture: Capture) -> list[str]:
    return [one.name for one in explain(capture).recommendations]


# -- order and tiers -----------------------------------------------------------------------------


def test_best_first_by_gain_confidence_and_effort() -> None:
    large = advice("large", gain=Estimate(2.0, 1.9, 2.1))
    unsure = advice("unsure", gain=Estimate(2.0, 1.01, 4.0))
    long = advice("long", gain=Estimate(2.0, 1.9, 2.1), effort="days")
    small = advice("small", gain=Estimate(1.1, 1.09, 1.11))
    never = advice("never", gain=Estimate(1.01, 1.0, 1.02), tier="not_worth_optimising")
    unknown = advice("unknown", gain=None, tier="medium")
    given = [never, small, unsure, unknown, long, large]
    capture = some_capture()
    found = recommend(capture, explain_without_advice(capture), [lambda run, one=one: one for one in given])  # type: ignore[misc]
    assert [one.name for one in found] == ["large", "long", "small", "unsure", "unknown", "never"]
    assert worth(large) > worth(long) > worth(unknown) > 0


def test_an_unknown_gain_ranks_by_the_time_it_can_affect() -> None:
    sure = advice("sure", gain=Estimate(2.0, 1.9, 2.1))
    assert worth(advice("all", gain=None, tier="high")) > worth(sure)
    small = replace(advice("small", gain=None, tier="high"), affects=0.3)
    assert worth(sure) > worth(small) > worth(advice("tiny", gain=Estimate(1.05, 1.04, 1.06)))


def test_code_without_a_known_remedy_is_no_advice_and_comes_after_it() -> None:
    capture = some_capture()
    hot = advice("hottest_code", tier="no_known_remedy", gain=Estimate(3, 2, 4))
    small = advice("small", gain=Estimate(1.05, 1.04, 1.06), tier="low")
    findings = explain_without_advice(capture)
    found = recommend(capture, findings, [lambda run: hot, lambda run: small])
    assert [one.name for one in found] == ["small", "hottest_code"]
    assert first_advice(found).startswith(small.title)
    assert first_advice(found).endswith(f"Far more expensive: {hot.title[:1].lower()}{hot.title[1:]}.")
    enough = advice("enough", gain=Estimate(2.1, 2.0, 2.2))
    assert "expensive" not in first_advice([enough, hot])
    alone = replace(findings, recommendations=(hot,))
    nothing = "Nothing known to be slow was found. Most expensive"
    assert first_advice([hot]).startswith(f"{nothing} of your own code: ")
    assert first_advice([replace(hot, effort="days")]).startswith(f"{nothing}: ")
    text = terminal(alone)
    assert "Nothing known to be slow was found. Most of the time goes into" in text
    assert "Most expensive code, with no known remedy:" in text and "impact" not in text


def test_fixes_of_own_code_come_before_boost_if_they_save_a_noticeable_part() -> None:
    boost = advice("boost", gain=Estimate(2.5, 2.0, 3.0))
    region = advice("region", gain=Estimate(1.5, 1.4, 1.6))
    claimed = replace(region, site="train.py:9", claim=Claim(sampled=(1,)))
    own = replace(claimed, name="own", gain=Estimate(1.2, 1.15, 1.25))
    minor = replace(claimed, name="minor", gain=Estimate(1.08, 1.07, 1.09))
    hot = replace(claimed, name="hot", tier="no_known_remedy", gain=Estimate(4, 2, 8))

    def order(*given: Recommendation) -> list[str]:
        return [one.name for one in own_code_before_boost(given)]

    assert order(boost, region, own, minor) == ["region", "own", "boost", "minor"]
    assert order(own, boost, minor) == ["own", "boost", "minor"]
    assert order(boost, region, minor, hot) == ["boost", "region", "minor", "hot"]
    assert order(region, own) == ["region", "own"]


def test_not_worth_optimising_comes_last_whatever_its_gain() -> None:
    capture = some_capture()
    given = [
        advice("a", tier="not_worth_optimising", gain=Estimate(3, 2, 4)),
        advice("b", gain=None, tier="low"),
    ]
    found = recommend(capture, explain_without_advice(capture), [lambda run, one=one: one for one in given])  # type: ignore[misc]
    assert [one.name for one in found] == ["b", "a"]


@pytest.mark.parametrize(
    ("gain", "tier"),
    [
        (Estimate(1.5, 1.3, 1.8), "high"),
        (Estimate(1.5, 1.03, 3.0), "medium"),  # large, but it may be small
        (Estimate(1.5, 1.0, 3.0), "low"),  # it may be nothing
        (Estimate(1.1, 1.08, 1.12), "medium"),
        (Estimate(1.05, 1.04, 1.06), "low"),
        (Estimate(1.01, 1.0, 1.02), "not_worth_optimising"),
    ],
)
def test_tiers_follow_from_the_gain(gain: Estimate, tier: str) -> None:
    assert tier_of(gain) == tier


def test_regions_not_worth_optimising_are_listed() -> None:
    loop = {**collect(1000), "tidy_up": Spec(1000, 2 * US), **learn(100)}
    last = explain(make_capture(loop, env_steps=8000, updates=100)).recommendations[-1]
    assert last.tier == "not_worth_optimising" and "`tidy_up`" in last.title
    assert last.gain is not None and last.gain.high < 1.02


# -- rules of other people -----------------------------------------------------------------------


def test_a_list_of_rules_takes_the_place_of_ours() -> None:
    capture = some_capture()
    assert [one.name for one in explain(capture, advice=[lambda run: advice()]).recommendations] == ["mine"]
    assert explain(capture, advice=[]).recommendations == ()


def broken(run: RunView) -> Recommendation | None:
    raise ZeroDivisionError("oh")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (broken, r"broken failed \(ZeroDivisionError\('oh'\)\)"),
        (lambda run: "speed up!", "returned str"),
        (lambda run: advice(tier="great"), "tier 'great' is not one of high, medium"),
        (lambda run: advice(effort="weeks"), "effort 'weeks' is not one of minutes"),
        (lambda run: advice(gain=Estimate(2.0, 1.1, 1.2)), "outside its own interval"),
    ],
)
def test_a_broken_advice_function_is_a_warning_and_the_others_still_run(function: Any, says: str) -> None:
    capture = some_capture()
    with pytest.warns(AdviceWarning, match=says):
        found = recommend(capture, explain_without_advice(capture), [function, lambda run: advice()])
    assert [one.name for one in found] == ["mine"]


def offered(value: str, name: str = "other") -> metadata.EntryPoint:
    return metadata.EntryPoint(name=name, value=value, group="hotloop.advice")


def test_rules_of_installed_packages_are_added() -> None:
    found = load_advice([offered(f"{__name__}:broken"), offered(f"{__name__}:MORE_RULES", "more")])
    assert found[: len(BUILT_IN)] == BUILT_IN
    assert found[len(BUILT_IN) :] == (*MORE_RULES, broken)  # by the names of the entry points


MORE_RULES = [near]


@pytest.mark.parametrize("value", ["no_such_module:rules", f"{__name__}:US", f"{__name__}:NOT_RULES"])
def test_rules_that_cannot_be_loaded_are_a_warning(value: str) -> None:
    with pytest.warns(AdviceWarning, match="cannot be loaded"):
        assert load_advice([offered(value)]) == BUILT_IN


NOT_RULES = [3, 4]


def test_without_packages_there_are_the_built_in_rules() -> None:
    assert load_advice([]) == BUILT_IN
    assert len(BUILT_IN) >= 15


# -- gains ---------------------------------------------------------------------------------------


def test_no_gain_without_an_interval() -> None:
    push = {"replay_push": Spec(64 * 1000, 12 * US)}
    few = make_capture({**collect(1000), **push}, env_steps=64 * 1000, windows=5)
    first = explain(few).recommendations[0]
    assert first.name == "replay_item_by_item" and first.gain is None
    assert "The gain cannot be predicted from this capture." in first.evidence


def test_gain_is_amdahls_law_on_the_share() -> None:
    run = look(some_capture(facts={"region_cost_ns": 0.0}, noise=0.2))
    env = next(row for row in run.rows if row.name == "env_step")
    gain = run.gain([env], 0.5)
    assert gain is not None and gain.value == pytest.approx(1 / (1 - 0.5 * env.share))
    assert gain.low < gain.value < gain.high
    wider = run.gain([env], (0.25, 0.75))
    assert wider is not None and wider.low < gain.low and wider.high > gain.high


def test_our_own_cost_does_not_count_as_a_gain() -> None:
    loop = {"act": Spec(1000, 500 * US), "env_step": Spec(1000, 500 * US), "push": Spec(64_000, 2 * US)}
    cheap, dear = (
        look(make_capture(loop, env_steps=64_000, facts={"region_cost_ns": cost})) for cost in (0.0, 1500.0)
    )
    shares = [next(row.share for row in run.rows if row.name == "push") for run in (cheap, dear)]
    # Half of what a region costs falls into it: 0.75 of its 2 us.
    assert shares[1] == pytest.approx(shares[0] * 1.25 / 2.0, rel=1e-3)


def test_a_pipeline_is_as_fast_as_its_slowest_worker() -> None:
    busy = ThreadSpec({"env_step": Spec(1000, 0.9 * MS)}, env_steps=1000)
    loop = {"learner_forward": Spec(1000, 0.5 * MS), "backward": Spec(1000, 0.45 * MS)}
    alone = look(make_capture(loop, updates=1000))
    beside = look(make_capture(loop, updates=1000, processes=[ProcessSpec([busy])]))
    gains = [run.gain(run.rows[1:2], 0.9) for run in (alone, beside)]
    assert beside.is_pipeline and not alone.is_pipeline
    assert gains[0] is not None and gains[0].value > 1.6
    assert gains[1] is not None and gains[1].value < 1.15


# -- what a rule sees ----------------------------------------------------------------------------


def test_turns_of_the_loop_are_seen_with_envs_stepped_in_turn_or_together() -> None:
    together = look(make_capture({"act": Spec(100, MS), "env_step": Spec(100, MS)}, env_steps=1600))
    in_turn = look(make_capture({"act": Spec(100, MS), "env_step": Spec(1600, MS)}, env_steps=1600))
    unnamed = look(
        make_capture({"x": Spec(100, MS), "y": Spec(100, MS), "z": Spec(1600, US)}, env_steps=1600)
    )
    assert together.envs == in_turn.envs == unnamed.envs == 16.0


def test_a_list_of_envs_is_seen_in_the_gaps_between_regions() -> None:
    """The policy runs for each of 8 envs, then each of them is stepped; some episodes end."""
    loop = {
        "policy_forward": Spec(8000, 100 * US, category="policy"),
        "before policy_forward": Spec(7000, US, category="other"),  # after a transfer of the action
        "between env_step and policy_forward": Spec(850, US, category="other"),
        "between optimizer_step and policy_forward": Spec(150, US, category="other"),
        "before env_step": Spec(1000, US, category="other"),
        "env_step": Spec(8000, 30 * US),
        "between env_step and env_step": Spec(6700, US, category="other"),
        "between env_step and env_reset": Spec(300, US, category="other"),
        "between env_reset and env_step": Spec(300, US, category="other"),
    }
    run = look(make_capture(loop, env_steps=8000))
    assert run.iterations == 1000 and run.envs == 8.0
    found = rules_of(make_capture(loop, env_steps=8000))
    assert found[0] == "policy_one_by_one" and "too_few_envs" not in found
    alternating = {
        "policy_forward": Spec(8000, 100 * US, category="policy"),
        "between policy_forward and env_step": Spec(8000, US, category="other"),
        "env_step": Spec(8000, 30 * US),
        "between env_step and policy_forward": Spec(8000, US, category="other"),
    }
    assert look(make_capture(alternating, env_steps=8000)).envs == 1.0


def test_networks_asked_while_learning_are_not_asked_env_by_env() -> None:
    """SAC with two gradient steps per call of `train`: the actor is asked four times in each."""
    asked = {"Actor.action_log_prob": Spec(1800, 350 * US, category="model")}
    learning = {
        "learner_forward": Spec(1800, US, asked),
        "backward": Spec(900, 300 * US),
        "optimizer_step": Spec(900, 100 * US),
    }
    for named in (learning, {"forward": learning["learner_forward"], **dict(list(learning.items())[1:])}):
        collecting = {"policy_forward": Spec(450, 100 * US), "env_step": Spec(450, 300 * US)}
        loop = {"collect_rollouts": Spec(450, US, collecting), "train": Spec(450, US, named)}
        assert "policy_one_by_one" not in rules_of(make_capture(loop, env_steps=900, updates=900))


def test_env_steps_are_counted_without_progress_calls() -> None:
    run = look(make_capture({"act": Spec(100, MS), "env_step": Spec(100, MS)}))
    assert run.env_steps == 100 and run.envs == 1.0


def test_tail_of_a_histogram() -> None:
    node = make_capture({"act": Spec(1000, 1e4, pauses=(5, 6e7))}).tree.children[0]
    count, total_ns = tail(node, 1e6)
    assert count == 5 and total_ns == pytest.approx(5 * 6e7, rel=0.2)


def test_an_empty_capture_gets_no_advice() -> None:
    empty = Capture(None, {}, ())
    assert explain(empty).recommendations == ()


def test_ten_thousand_regions_take_seconds_not_minutes() -> None:
    parts = {f"part{i}": Spec(100 + i, 1e4) for i in range(100)}
    loop = {"learn": Spec(100, 1e6, {f"group{i}": Spec(100, 1e4, parts) for i in range(100)})}
    capture = make_capture(loop, env_steps=100, updates=100)
    findings = explain_without_advice(capture)
    start = time.monotonic()  # the real clock: anything quadratic takes a minute here, all else a second
    recommend(capture, findings)
    assert time.monotonic() - start < 10


# -- near misses: what looks like a defect and is none -------------------------------------------


def test_one_push_for_one_env_is_not_a_defect() -> None:
    loop = {**collect(1000), "replay_push": Spec(1000, 200 * US), **learn(200)}
    assert "replay_item_by_item" not in rules_of(make_capture(loop, env_steps=1000, updates=200))


def test_one_push_for_all_envs_is_not_a_defect() -> None:
    loop = {**collect(1000), "replay_push": Spec(1000, 200 * US), **learn(200)}
    assert "replay_item_by_item" not in rules_of(make_capture(loop, env_steps=64_000, updates=200))


def test_many_batches_after_a_rollout_are_not_a_defect() -> None:
    loop = {**collect(300), "advantage": Spec(3, MS), **learn(960)}
    assert "too_many_updates" not in rules_of(make_capture(loop, env_steps=64 * 300, updates=960))


def test_steps_of_a_rollout_are_not_a_batch_taken_item_by_item() -> None:
    loop = {**collect(6400), "note": Spec(6400, 300 * US), "advantage": Spec(10, MS), **learn(100)}
    assert "batch_item_by_item" not in rules_of(make_capture(loop, env_steps=6400, updates=100))


def test_work_done_by_workers_is_worth_the_hand_over_when_it_is_large() -> None:
    worker = ThreadSpec({"env_step": Spec(1000, 2 * MS)})
    processes = [ProcessSpec([worker]) for _ in range(4)]
    loop = {"act": Spec(1000, 100 * US), "ipc_wait": Spec(1000, 2.2 * MS)}
    found = rules_of(make_capture(loop, env_steps=4000, processes=processes))
    assert "env_workers_cost_more_than_work" not in found


@pytest.mark.parametrize(("between_ms", "expected"), [(0.01, True), (0.6, False)])
def test_all_code_of_env_workers_is_work(between_ms: float, expected: bool) -> None:
    steps = {"env_step": Spec(1000, 50 * US), "wrapper": Spec(1000, between_ms * MS, category="other")}
    worker = ThreadSpec(steps | {"ipc_wait": Spec(1000, 1 * MS, category="wait")}, cpu=0.2)
    loop = {"act": Spec(1000, 100 * US), "ipc_wait": Spec(1000, 2.2 * MS)}
    capture = make_capture(loop, env_steps=4000, processes=[ProcessSpec([worker]) for _ in range(4)])
    assert ("env_workers_cost_more_than_work" in rules_of(capture)) == expected


def test_pauses_that_were_not_measured_are_not_blamed_on_the_garbage_collector() -> None:
    loop = {name: Spec(3000, 100 * US, pauses=(5, 60 * MS)) for name in ("choose", "world", "keep")}
    assert "garbage_collection_pauses" not in rules_of(make_capture(loop, env_steps=3000))
    few = {"choose": Spec(3000, 100 * US, {"gc_pause": Spec(3, 3 * MS, category="framework")})}
    assert "garbage_collection_pauses" not in rules_of(make_capture(few, env_steps=3000))


@pytest.mark.parametrize(("pauses", "expected"), [(1, False), (2, False), (20, True)])
def test_one_long_collection_in_a_short_run_is_no_rule(pauses: int, expected: bool) -> None:
    pause = Spec(pauses, 240 * MS / pauses, category="framework")
    made = make_capture({"choose": Spec(3000, 700 * US, {"gc_pause": pause})}, env_steps=3000)
    assert ("garbage_collection_pauses" in rules_of(made)) == expected


def test_rare_pauses_do_not_make_a_cheap_policy_call_costly() -> None:
    cheap = {"choose": Spec(3000, 10 * US, pauses=(30, 20 * MS)), "world": Spec(3000, 100 * US)}
    costly = {"choose": Spec(3000, 200 * US), "world": Spec(3000, 100 * US)}
    assert look(make_capture(cheap, env_steps=3000)).rows[0].mean_ns > 200 * US
    assert "too_few_envs" not in rules_of(make_capture(cheap, env_steps=3000))
    assert "too_few_envs" in rules_of(make_capture(costly, env_steps=3000))


def test_one_thread_each_is_not_oversubscription() -> None:
    worker = ThreadSpec({"env_step": Spec(1000, 2 * MS)}, cpu=0.6)
    processes = [ProcessSpec([worker]) for _ in range(8)]
    for limit, expected in (({"OMP_NUM_THREADS": "1"}, False), ({}, True)):
        facts = {"machine": {"threads_env": limit}}
        capture = make_capture(learn(700), updates=700, processes=processes, facts=facts, cpu=0.6)
        assert ("thread_oversubscription" in rules_of(capture)) == expected


def test_learning_makes_episodes_longer_and_nothing_grows() -> None:
    capture = make_capture(collect(4000), env_steps=32_000, episodes=300, length_growth=1.0)
    assert "growing_cost" not in rules_of(capture)


# -- what is said without a gain -----------------------------------------------------------------


def test_mostly_unnamed_time_is_reported() -> None:
    found = {one.name: one for one in explain(some_capture(unattributed=0.6)).recommendations}
    assert found["mostly_unnamed"].tier == "low" and "60.0 %" in found["mostly_unnamed"].title
    assert "mostly_unnamed" not in rules_of(some_capture())


def test_costly_regions_are_reported() -> None:
    loop = {**collect(1000), "tick": Spec(400_000, 1.5 * US, site="env.py:3")}
    found = {
        one.name: one for one in explain(make_capture(loop, facts={"region_cost_ns": 300.0})).recommendations
    }
    assert found["costly_regions"].region == "tick" and found["costly_regions"].gain is None
    assert "costly_regions" not in rules_of(make_capture(loop, facts={"region_cost_ns": 5.0}))


def test_one_thread_is_worth_a_try_for_small_networks_without_a_limit() -> None:
    torch = {"versions": {"torch": "2.5.0"}}
    assert "try_one_thread" in rules_of(some_capture(facts=torch))
    limited = {**torch, "machine": {"threads_env": {"OMP_NUM_THREADS": "1"}}}
    assert "try_one_thread" not in rules_of(some_capture(facts=limited))
    assert "try_one_thread" not in rules_of(some_capture())


# -- testing it today ----------------------------------------------------------------------------


def on_disk(capture: Capture, path: str = "runs/a", **facts: Any) -> Capture:
    return replace(capture, path=Path(path), facts=capture.facts | facts)


def test_commands_of_a_capture_in_memory_record_the_script_again() -> None:
    capture = some_capture()
    by_hand = advice(plan={"variants": [{}, {}]})
    variable = advice(plan={"variants": [{}, {"environment": {"OMP_NUM_THREADS": "1"}}]})
    flag = advice(plan={"variants": [{}, {"set": ["--eval-freq=10"]}]})
    patch = advice(plan={"variants": [{}, {"patch": "gc"}]})
    again = "hotloop run -- python train.py"
    assert prove_command(capture, by_hand, 1) == f"make the change, then record again: {again}"
    assert prove_command(capture, variable, 1) == f"OMP_NUM_THREADS=1 {again}"
    assert prove_command(capture, flag, 1) == f"{again} --eval-freq 10"
    assert prove_command(capture, patch, 1) == "hotloop try --only gc -- python train.py"


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["/env/bin/python", "train.py", "--seed", "1"], "hotloop boost train.py --seed 1"),
        (["/env/bin/python", "-m", "agents.train"], "hotloop boost -m agents.train"),
        (["/env/bin/python", "-u", "train.py"], "hotloop boost -- /env/bin/python -u train.py"),
        (["/other/bin/python", "train.py"], "hotloop boost -- /other/bin/python train.py"),
        (["/env/bin/python"], "hotloop boost -- /env/bin/python"),
    ],
)
def test_a_command_is_shown_as_it_was_typed(command: list[str], shown: str) -> None:
    capture = some_capture()
    capture = replace(capture, facts=capture.facts | {"interpreter": "/env/bin/python"})
    assert as_typed("boost", capture, command) == shown


def test_commands_of_a_capture_on_disk_prove_the_recommendation() -> None:
    capture = on_disk(some_capture(), git_hash="abc")
    by_hand = advice(plan={"variants": [{}, {}]})
    changes: list[dict[str, Any]] = [{"environment": {"A": "1"}}, {"set": ["a=1"]}, {"patch": "gc"}]
    for change in changes:
        assert prove_command(capture, advice(plan={"variants": [{}, change]}), 2) == "hotloop prove runs/a 2"
    assert prove_command(capture, by_hand, 2) == "make the change, then run: hotloop prove runs/a 2 --rev"
    without_git = on_disk(capture, git_hash=None)
    assert prove_command(without_git, by_hand, 2) == (
        "make the change, then record again: hotloop run -- python train.py"
    )
    threads = advice(plan={"variants": [{}, {"patch": "threads"}]})
    assert prove_command(capture, threads, 2) == "hotloop try --only threads -- python train.py"


def test_a_capture_folder_that_exists_is_not_named_again() -> None:
    ours = on_disk(
        some_capture(), command=["hotloop", "train", "snake", "--capture", "elsewhere", "--envs", "4"]
    )
    assert command_again(ours) == ["hotloop", "train", "snake", "--envs", "4"]
    by_hand = advice(plan={"variants": [{}, {}]})
    assert prove_command(ours, by_hand, 1) == (
        "make the change, then record again: hotloop train snake --envs 4"
    )
    # What the system runs for `hotloop train snake`, where hotloop is installed.
    started = ["/env/bin/python", "/env/bin/hotloop", "train", "snake", "--capture=elsewhere", "--envs", "4"]
    installed = on_disk(some_capture(), command=started)
    assert command_again(installed) == [*started[:4], *started[5:]]
    assert prove_command(installed, by_hand, 1) == prove_command(ours, by_hand, 1)
    assert explain(installed).command == ("hotloop", *started[2:])
    theirs = on_disk(some_capture(), command=["python", "train.py", "--capture=runs/a", "-v"])
    assert command_again(theirs) == ["python", "train.py", "-v"]
    other = on_disk(some_capture(), command=["python", "train.py", "--capture", "video.mp4"])
    assert command_again(other) == ["python", "train.py", "--capture", "video.mp4"]


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (["python", "t.py", "--eval-freq", "500"], ("--eval-freq", 500.0)),
        (["python", "t.py", "--eval_freq=500"], ("--eval_freq", 500.0)),
        (["python", "t.py", "eval_freq=1e3"], ("eval_freq", 1000.0)),
        (["python", "t.py", "--eval-freq", "often"], None),
        (["python", "t.py", "--eval-freq"], None),
        (["python", "t.py", "--eval"], None),
    ],
)
def test_a_flag_is_found_with_its_number(command: list[str], found: tuple[str, float] | None) -> None:
    assert flag_in(command, ("eval-every", "eval-freq")) == found


@pytest.mark.parametrize(
    ("wanted", "typed"),
    [(0, 1), (1, 1), (100, 100), (102, 100), (112, 200), (600, 1000), (9e6, 10**7)],
)
def test_intervals_are_numbers_people_would_type(wanted: float, typed: int) -> None:
    assert round_interval(wanted) == typed


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, True),
        ({"largest": [40_000, 16], "parameters": 700_000, "class": "AdamW"}, True),
        ({"class": "SparseAdam"}, False),
        ({"largest": [512, 512], "parameters": 262_144}, False),  # a layer
        ({"largest": [20_000, 8], "parameters": 10_000_000}, False),  # a small part of the network
        ({"largest": []}, False),  # recorded by an older version
    ],
)
def test_a_large_table_of_vectors_is_stepped_as_a_whole(changes: dict[str, Any], found: bool) -> None:
    optimizer = {"class": "Adam", "parameters": 5_200_000, "largest": [160_000, 32], "steps": 100} | changes
    made = make_capture({"optimizer_step": Spec(100, 6e6), "backward": Spec(100, 3e6)}, updates=100)
    capture = replace(
        made, facts={**made.facts, "libraries": [{"pid": made.processes[0].pid, "optimizers": [optimizer]}]}
    )
    advice_given = dense_embedding(look(capture))
    assert (advice_given is not None) == found
    assert advice_given is None or (advice_given.gain is not None and advice_given.gain.value > 1.5)
