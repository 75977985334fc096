"""`hotloop bisect`: the first slow commit is found, with noise and failing commits, and guesses are named."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.analysis.comparison import compare_series
from hotloop.capture.plan import Plan, Variant
from hotloop.capture.series import Run, Series
from hotloop.cli.bisect import as_text
from hotloop.workflows.bisect import Bisection, Measured, measured, search, shifted
from hotloop.workflows.revisions import Commit

PLAN = Plan((Variant("before", ("x",)), Variant("commit", ("x",))))


def commits(count: int) -> list[Commit]:
    return [Commit(f"{number:040x}", f"change {number}") for number in range(count)]


class Machine:
    """Runs commits whose time is known, with noise; decides as the lab does."""

    def __init__(
        self, times: list[float], noise: float, seed: int, broken: frozenset[int] = frozenset()
    ) -> None:
        self.times, self.noise, self.broken = times, noise, broken
        self.random = np.random.default_rng(seed)
        self.runs = 0

    def compare(
        self, other: Commit, commit: Commit, threshold: float, name: str, budget_s: float
    ) -> Measured:
        a, b = int(other.revision, 16), int(commit.revision, 16)
        if {a, b} & self.broken:
            return Measured(None, None, failure="exit code 1")
        series = Series(None, PLAN, {})
        for block in range(PLAN.looks[-1]):
            pair = [self.run(series, "before", a, block), self.run(series, "commit", b, block)]
            series = Series(None, PLAN, {}, (*series.runs, *pair))
            if not compare_series(shifted(series, threshold), final=False).go_on:
                break
        return measured(series, threshold, "decided")

    def run(self, series: Series, variant: str, commit: int, block: int) -> Run:
        self.runs += 1
        took = self.times[commit] * math.exp(self.random.normal(0, self.noise))
        number = len(series.runs) + (variant == "commit")
        return Run(number, variant, block, number % 2, block, ("x",), wall_s=took, exit_code=0)


def found_by(machine: Machine) -> Bisection:
    return search(commits(len(machine.times)), machine.compare, 1e9, 0.03)


@given(st.integers(2, 60), st.data())
def test_without_noise_the_first_slow_commit_is_found_in_few_steps(count: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(1, count - 1))
    found = found_by(Machine([1.0] * first + [1.1] * (count - first), 1e-4, 0))
    assert found.first_slow is not None and found.is_sure
    assert int(found.first_slow.revision, 16) == first
    assert len(found.steps) <= math.ceil(math.log2(count - 1)) if count > 2 else not found.steps


def test_a_tenth_among_thirty_commits_is_found_in_nineteen_of_twenty_trials_with_noise() -> None:
    right = 0
    for trial in range(20):
        first = 1 + (7 * trial) % 29
        found = found_by(Machine([1.0] * first + [1.1] * (30 - first), 0.05, seed=trial))
        right += found.first_slow is not None and int(found.first_slow.revision, 16) == first
    assert right >= 19, right


def test_small_changes_before_do_not_count_as_the_large_one() -> None:
    times = [1.0, 1.01, 1.01, 1.02, 1.02, 1.02, 1.12, 1.12]
    found = found_by(Machine(times, 0.003, seed=1))
    assert found.first_slow == commits(8)[6] and found.is_sure


def test_commits_that_fail_are_skipped_and_the_rest_still_told() -> None:
    found = found_by(Machine([1.0] * 4 + [1.2] * 4, 0.01, seed=2, broken=frozenset({3, 5})))
    assert [commit.subject for commit in found.suspects] == ["change 3", "change 4"]
    assert found.first_slow is None and not found.is_sure
    assert "is one of these 2" in as_text(found) and "skipped: exit code 1" in as_text(found)


@pytest.mark.parametrize("times", [[1.0] * 9, [1.1] * 4 + [1.0] * 5])
def test_a_bad_commit_that_is_not_slower_is_said(times: list[float]) -> None:
    found = found_by(Machine(times, 0.01, seed=3))
    assert not found.steps and not found.suspects
    assert "not clearly slower" in as_text(found)


def test_a_slow_down_in_two_parts_is_not_blamed_on_one_commit() -> None:
    found = found_by(Machine([1.0, 1.0, 1.05, 1.05, 1.05, 1.12, 1.12, 1.12], 0.002, seed=4))
    assert found.first_slow == commits(8)[5]
    assert "other commits between good and bad share it" in as_text(found)


def test_an_interrupt_ends_the_search_with_what_is_known() -> None:
    machine = Machine([1.0] * 4 + [1.2] * 4, 0.01, seed=5)

    def compare(other: Commit, commit: Commit, threshold: float, name: str, budget_s: float) -> Measured:
        if name.startswith("2-"):
            return Measured(None, None, interrupted=True)
        return machine.compare(other, commit, threshold, name, budget_s)

    found = search(commits(8), compare, 1e9, 0.03)
    assert found.interrupted and len(found.steps) == 2 and len(found.suspects) > 1
    assert "interrupted" in as_text(found)


def test_times_are_judged_by_the_threshold_and_not_by_zero() -> None:
    runs = [
        Run(2 * i + j, name, i, j, i, ("x",), wall_s=took * (1 + 0.001 * i), exit_code=0)
        for i in range(10)
        for j, (name, took) in enumerate((("before", 1.0), ("commit", 1.04)))
    ]
    series = Series(None, PLAN, {}, tuple(runs))
    assert compare_series(series).compared[0].verdict.word == "slower"
    assert measured(series, math.log(1.05), "decided").is_slow is False
    assert measured(series, math.log(1.03), "decided").is_slow is True
