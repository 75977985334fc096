"""Threads of a team: they wait for each other, sleep in between, and end with it."""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import Any

import numpy as np
import pytest

from hotloop.boost import team as teams
from hotloop.boost.team import Team
from hotloop.boost.team_kernels import Words, begins, wait_for_all
from hotloop.rl.train.fused.compiled import kernel

TURNS = 200


@kernel
def count_in_turns(values: Any, found: Any, words: Words, part: int, parts: int) -> None:
    """Each thread adds to its own number, and checks after every turn that the others have done so, too."""
    rounds = 0
    while begins(words, part, parts, rounds):
        for turn in range(TURNS):
            values[part] += 1
            wait_for_all(words, parts)
            for other in range(parts):
                if values[other] != values[part]:
                    values[-1] += 1
            wait_for_all(words, parts)
            if part == 0:
                found[0] = turn
        rounds += 1
        if part == 0:
            break


def helpers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "hotloop-boost"]


@pytest.fixture
def team() -> Any:
    made = Team(2)
    made.is_adaptive = False
    yield made
    made.close()


def test_threads_wait_for_each_other(team: Team) -> None:
    values, found = np.zeros(3, dtype=np.int64), np.zeros(1)
    for _ in range(5):
        team.run(count_in_turns, found, values)
    assert values.tolist() == [5 * TURNS, 5 * TURNS, 0]
    assert found[0] == TURNS - 1
    assert len(helpers()) == 1


def test_helpers_sleep_between_rounds(team: Team) -> None:
    values, found = np.zeros(3, dtype=np.int64), np.zeros(1)
    team.run(count_in_turns, found, values)
    time.sleep(0.01)
    started_s = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - started_s < 0.1
    team.run(count_in_turns, found, values)
    assert values[1] == 2 * TURNS


def test_helpers_are_started_anew_for_other_arguments(team: Team) -> None:
    found = np.zeros(1)
    for _ in range(2):
        values = np.zeros(3, dtype=np.int64)
        team.run(count_in_turns, found, values)
        assert values.tolist() == [TURNS, TURNS, 0]
    assert len(helpers()) == 1


def test_helpers_end_with_their_team() -> None:
    team = Team(2)
    team.is_adaptive = False
    team.run(count_in_turns, np.zeros(1), np.zeros(3, dtype=np.int64))
    (helper,) = helpers()
    del team
    gc.collect()
    helper.join(10)
    assert not helper.is_alive()


def test_a_fork_starts_helpers_of_its_own(team: Team) -> None:
    values, found = np.zeros(3, dtype=np.int64), np.zeros(1)
    team.run(count_in_turns, found, values)
    child = os.fork()
    if child == 0:
        try:
            team.run(count_in_turns, found, values)
            os._exit(0 if values.tolist() == [2 * TURNS, 2 * TURNS, 0] else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    team.run(count_in_turns, found, values)
    assert values.tolist() == [2 * TURNS, 2 * TURNS, 0]


@pytest.mark.parametrize(("slow", "chosen"), [(1, 2), (2, 1)])
def test_the_faster_number_of_threads_is_chosen_again_and_again(
    slow: int, chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0]
    used: list[int] = []

    def kernel(_found: Any, _words: Any, _part: int, parts: int) -> None:
        used.append(parts)
        clock[0] += 3 if parts == slow else 1

    monkeypatch.setattr(time, "perf_counter_ns", lambda: clock[0])
    monkeypatch.setattr(Team, "_start", lambda *_: None)
    team = Team(2)
    for _ in range(teams.FIRST + 1):
        team.run(kernel, np.zeros(1))
    assert set(used) == {2}  # the system needs some rounds to give each a core
    used.clear()
    for _ in range(2 * teams.BETWEEN):
        team.run(kernel, np.zeros(1))
    rest = teams.BETWEEN - teams.COMPARED
    assert used.count(chosen) == 2 * (rest + teams.COMPARED // 2)
    slow = 3 - slow
    used.clear()
    for _ in range(teams.BETWEEN):
        team.run(kernel, np.zeros(1))
    assert used.count(slow) < teams.BETWEEN // 20
