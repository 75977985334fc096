"""Scripts with a known defect, run for real at their shortest: truth files hold, and hotloop records them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from benchmarks import truth

from tests.truth import judge

pytestmark = pytest.mark.long

# One process, two processes, two threads, Gymnasium, NumPy alone.
HANDFUL = (
    "a2c_eight_poles",
    "rollout_server",
    "two_thread_actor_critic",
    "windy_sarsa_traces",
    "soft_q_snake",
)
CLEAN = "clean_ppo_landers"


def case(name: str) -> truth.Case:
    (found,) = truth.load_cases("development", [name])
    return found


@pytest.mark.parametrize("name", HANDFUL)
def test_slow_and_fixed_do_the_same_work(name: str) -> None:
    one = case(name)
    slow, fixed = (
        truth.run_script(one, script, one.truth["quick_args"]) for script in ("slow.py", "fixed.py")
    )
    assert judge.work_differences(slow, fixed, one.truth["same_results"]) == []


@pytest.mark.parametrize("name", [*HANDFUL, CLEAN])
def test_a_recorded_script_does_the_same_and_is_judged(name: str, tmp_path: Path) -> None:
    one = case(name)
    plain = truth.run_script(one, one.script, one.truth["quick_args"])
    recorded, report = truth.record(one, one.truth["quick_args"], tmp_path)
    assert judge.work_differences(plain, recorded, same_results=True) == []
    judged = judge.judge(one.truth, one.source, report, one.script)
    assert judged.clean == (name == CLEAN)
    assert len(judged.advice) + len(judged.options) <= len(report["recommendations"])


@pytest.mark.parametrize("name", ["a2c_eight_poles", "two_thread_actor_critic"])
def test_env_steps_of_gymnasium_are_counted_as_the_script_counts_them(name: str, tmp_path: Path) -> None:
    one = case(name)
    script, report = truth.record(one, one.truth["quick_args"], tmp_path)
    assert judge.counter_differences(script, report) == []


def test_ratios_are_kept_until_a_script_changes(tmp_path: Path) -> None:
    kept = truth.Ratios(tmp_path / "ratios.json")
    one, other = case("rollout_server"), case("soft_q_snake")
    kept.add(one, ["12"], (1.0, 2.0))
    kept.add(one, ["12"], (1.0, 3.0))
    again = truth.Ratios(tmp_path / "ratios.json")
    assert again.pairs(one, ["12"]) == [(1.0, 2.0), (1.0, 3.0)]
    assert again.pairs(one, []) == [] and again.pairs(other, ["12"]) == []
    again.kept = {key: entry | {"scripts": "of another version"} for key, entry in again.kept.items()}
    assert again.pairs(one, ["12"]) == []


def test_a_case_goes_through_the_whole_benchmark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--cases", "windy_sarsa_traces", "--rounds", "1", "--quick", "--peers", "cprofile"]
    monkeypatch.setattr("sys.argv", ["truth.py", *words, "--json", str(tmp_path / "out.json")])
    assert truth.main() == 0
    printed = capsys.readouterr().out
    assert "windy_sarsa_traces" in printed and "of 1 defects" in printed
    assert "cprofile-own: first" in printed and "problem with" not in printed


def test_a_broken_script_is_a_problem_of_the_case(tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    for name in ("slow.py", "fixed.py"):
        (folder / name).write_text("raise SystemExit('no such file')\n")
    facts = dict(case("soft_q_snake").truth) | {"lines": ["raise SystemExit('no such file')"]}
    given = argparse.Namespace(rounds=1, keep=None, peers=[])
    row = truth.judge_case(truth.Case("broken", folder, facts), [], given, truth.Ratios(tmp_path / "r.json"))
    assert row.judgement is None and row.problems == ("exit code 1: no such file",)
