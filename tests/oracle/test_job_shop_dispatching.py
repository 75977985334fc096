"""Job shops as decisions: the makespans of the net, an optimal schedule among them, Gymnasium's rules."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.petri.dispatching import DispatchVectorEnv, shop_of
from hotloop.rl.envs.petri.env import PetriEnv
from hotloop.rl.envs.petri.job_shop import job_shop, makespan_config, schedule_actions
from hotloop.rl.envs.petri.net import Net, Place, Transition
from hotloop.rl.workloads.job_shop_play import RULES, play, schedule_table, starting_order
from hotloop.testing.conformance import Wanted, check_vector_env
from tests.oracle.test_petri_job_shop import FT06, least_makespan


def random_shop(
    seed: int, jobs: int, machines: int, least_s: int = 0
) -> tuple[list[list[int]], list[list[int]]]:
    rng = random.Random(seed)
    routes = [rng.sample(range(machines), k=rng.randrange(1, machines + 1)) for _ in range(jobs)]
    return routes, [[rng.randrange(least_s, 6) for _ in route] for route in routes]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("tables", [FT06, random_shop(1, 4, 3), random_shop(2, 3, 4)])
def test_schedules_take_as_long_in_the_net(
    rule: str, tables: tuple[list[list[int]], list[list[int]]]
) -> None:
    net = job_shop(*tables)
    env = PetriEnv(net=net, config=makespan_config(net))
    for schedule in play(net, RULES[rule], 5, seed=3):
        env.reset(seed=0)
        for action in schedule_actions(net, starting_order(shop_of(net), schedule)):
            _, _, terminated, truncated, info = env.step(action)
        assert (terminated, truncated, info["clock"]) == (True, False, schedule.makespan_s)


def test_a_written_schedule_keeps_every_machine_and_every_job_to_one_operation_at_a_time() -> None:
    routes, durations = FT06
    shop = shop_of(job_shop(*FT06))
    schedule = min(play(job_shop(*FT06), RULES["random"], 20, seed=1), key=lambda one: one.makespan_s)
    header, *lines = schedule_table(shop, schedule).splitlines()
    assert header == "job,operation,machine,start_s,end_s"
    rows = [tuple(map(int, line.split(","))) for line in lines]
    assert len(rows) == sum(map(len, routes)) and max(row[4] for row in rows) == schedule.makespan_s
    for job, operation, machine, start_s, end_s in rows:
        assert machine == routes[job][operation] and end_s - start_s == durations[job][operation]
    for column in (0, 2):
        for one in {row[column] for row in rows}:
            mine = sorted(row[3:5] for row in rows if row[column] == one)
            assert all(before[1] <= after[0] for before, after in itertools.pairwise(mine))
    assert all(a[1] < b[1] for a, b in itertools.combinations(rows, 2) if a[0] == b[0])


@pytest.mark.parametrize("seed", range(5))
def test_the_best_of_all_allowed_decisions_is_the_optimum(seed: int) -> None:
    tables = random_shop(seed, 3, 3, least_s=1)
    net = job_shop(*tables)
    env = DispatchVectorEnv(1, net=net, autoreset_mode="Disabled")
    jobs = [job for job, route in enumerate(tables[0]) for _ in route]
    best = None
    for order in set(itertools.permutations(jobs)):
        _, infos = env.reset(seed=0)
        total = 0.0
        for job in order:
            if not infos["action_mask"][0, job]:
                break
            _, rewards, terminated, _, infos = env.step(np.array([job]))
            total += float(rewards[0])
        else:
            assert terminated[0]
            makespan_s = int(infos["makespan"][0])
            assert total == pytest.approx(1 - makespan_s / env.shop.bound_s)
            best = makespan_s if best is None else min(best, makespan_s)
    assert best == least_makespan(*tables, below=1000)


def test_the_environment_keeps_to_gymnasiums_rules() -> None:
    net = job_shop(*random_shop(1, 4, 3))

    def make(
        num_envs: int, autoreset_mode: str = "NextStep", num_threads: int = 1, copy: bool = True
    ) -> DispatchVectorEnv:
        return DispatchVectorEnv(
            num_envs, net=net, autoreset_mode=autoreset_mode, num_threads=num_threads, copy=copy
        )

    wanted = Wanted(terminated=5, actions_fraction=1.0)
    report = check_vector_env(make, steps=40, skip=("different_seeds",), wanted=wanted)
    assert {"reset_mask", "saved_state", "threads"} <= set(report.checked)
    assert report.coverage.truncated == 0


def test_another_net_is_refused() -> None:
    with pytest.raises(HotloopError, match="net 'n' is not a job shop"):
        shop_of(Net("n", (Place("p", tokens=1),), (Transition("t", ["p"], []),)))
