"""Job shops with known optima: the net reaches them, and nothing reaches less."""

from __future__ import annotations

import copy
import heapq
import itertools
import random

import pytest

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.petri.env import PetriEnv
from hotloop.rl.envs.petri.job_shop import job_shop, makespan_config, schedule_actions
from hotloop.rl.envs.petri.net import Net, Place, Transition
from hotloop.rl.envs.petri.rules import PetriRules

Table = list[list[int]]


def table(text: str) -> Table:
    """Jobs parted by commas, numbers by spaces."""
    return [[int(number) for number in row.split()] for row in text.split(",")]


# Machines and durations of each job's operations, and a schedule that reaches the optimum, found by
# simulated annealing: the jobs whose next operations start, in the order of their starts.
FT06 = (
    table("2 0 1 3 5 4, 1 2 4 5 0 3, 2 3 5 0 1 4, 1 0 2 3 4 5, 2 1 4 5 0 3, 1 3 5 0 4 2"),
    table("1 3 6 7 3 6, 8 5 10 10 10 4, 5 4 8 9 1 7, 5 5 5 3 8 9, 9 3 5 4 3 1, 3 3 9 10 4 1"),
)
FT06_ORDER = "120201523514035234413023502143505144"
LA01 = (
    table(
        "1 0 4 3 2, 0 3 4 2 1, 3 4 1 2 0, 1 0 4 2 3, 0 3 2 1 4, "
        "1 2 4 0 3, 3 4 1 2 0, 2 0 1 3 4, 3 1 4 0 2, 4 3 2 1 0"
    ),
    table(
        "21 53 95 55 34, 21 52 16 26 71, 39 98 42 31 12, 77 55 79 66 77, 83 34 64 19 37, "
        "54 43 79 92 62, 69 77 87 87 93, 38 60 41 24 83, 17 49 25 44 98, 77 79 43 75 96"
    ),
)
LA01_ORDER = "01679058456893849014362850697354871725632713912042"


@pytest.mark.parametrize("turbo", [True, False])
@pytest.mark.parametrize(("tables", "order", "optimum"), [(FT06, FT06_ORDER, 55), (LA01, LA01_ORDER, 666)])
def test_an_optimal_schedule_played_through_the_net_takes_the_optimum(
    tables: tuple[Table, Table], order: str, optimum: int, turbo: bool
) -> None:
    net = job_shop(*tables)
    env = PetriEnv(net=net, config=makespan_config(net), turbo=turbo)
    env.reset(seed=0)
    earned = 0.0
    actions = schedule_actions(net, [int(job) for job in order])
    for position, action in enumerate(actions):
        assert env.action_masks()[action]
        _, reward, terminated, truncated, info = env.step(action)
        earned += reward
        assert (terminated, truncated) == (position == len(actions) - 1, False)
    assert (info["clock"], earned, info["wafers_done"]) == (optimum, -optimum, len(tables[0]))


def least_makespan(machines: Table, durations: Table, below: int) -> int:
    """The least makespan, or `below` when there is none below: branch and bound over active schedules."""
    jobs = range(len(machines))
    tails = [[sum(row[step:]) for step in range(len(row) + 1)] for row in durations]
    every = sorted({machine for row in machines for machine in row})
    best = below
    seen: dict[tuple[int, ...], list[tuple[int, ...]]] = {}

    def bound(steps: tuple[int, ...], free: tuple[int, ...], free_machine: dict[int, int]) -> int:
        least = max(free[job] + tails[job][steps[job]] for job in jobs)
        for machine in every:
            work = []
            for job in jobs:
                if machine in machines[job][steps[job] :]:
                    step = machines[job].index(machine, steps[job])
                    head = free[job] + sum(durations[job][steps[job] : step])
                    work.append(
                        (max(head, free_machine[machine]), durations[job][step], tails[job][step + 1])
                    )
            if work:
                heads, loads, after = zip(*work, strict=True)
                least = max(least, min(heads) + sum(loads) + min(after))
        return least

    def search(steps: tuple[int, ...], free: tuple[int, ...], free_machine: dict[int, int]) -> None:
        nonlocal best
        open_jobs = [job for job in jobs if steps[job] < len(machines[job])]
        if not open_jobs:
            best = min(best, max(free))
            return
        times = (*free, *(free_machine[machine] for machine in every))
        known = seen.setdefault(steps, [])
        if bound(steps, free, free_machine) >= best:
            return
        if any(all(a <= b for a, b in zip(old, times, strict=True)) for old in known):
            return
        known.append(times)
        next_machine = {job: machines[job][steps[job]] for job in open_jobs}
        start = {job: max(free[job], free_machine[next_machine[job]]) for job in open_jobs}
        first_end, first = min((start[job] + durations[job][steps[job]], job) for job in open_jobs)
        for job in sorted(open_jobs, key=start.__getitem__):
            if next_machine[job] == next_machine[first] and start[job] < first_end:
                end = start[job] + durations[job][steps[job]]
                search(
                    tuple(step + (one == job) for one, step in enumerate(steps)),
                    tuple(end if one == job else time for one, time in enumerate(free)),
                    {**free_machine, next_machine[job]: end},
                )

    search((0,) * len(jobs), (0,) * len(jobs), dict.fromkeys(every, 0))
    return best


def test_no_schedule_is_shorter_than_the_published_optimum() -> None:
    assert least_makespan(*FT06, below=55) == 55  # searched below 55, found none
    assert least_makespan(*FT06, below=56) == 55
    assert least_makespan(*LA01, below=666) == 666


def least_clock(net: Net) -> int:
    """The least clock at which the goal can be reached, over all firing sequences of the net itself."""
    start = PetriRules(net, makespan_config(net))
    start.reset()
    tie = itertools.count()
    waiting = [(0, next(tie), start)]
    seen = set()
    while waiting:
        clock_s, _, state = heapq.heappop(waiting)
        if state.is_finished:
            return clock_s
        key = (clock_s, tuple(tuple(queue) for queue in state.queues))
        if key in seen:
            continue
        seen.add(key)
        for action, enabled in enumerate(state.enabled):
            if enabled:
                after = copy.copy(state)
                after.queues = [list(queue) for queue in state.queues]
                after.step(action)
                heapq.heappush(waiting, (after.clock_s, next(tie), after))
    raise AssertionError("the goal cannot be reached")


@pytest.mark.parametrize("seed", range(4))
def test_the_least_clock_of_a_small_net_is_the_least_makespan(seed: int) -> None:
    rng = random.Random(seed)
    machines = [rng.sample(range(3), k=2) for _ in range(3)]
    durations = [[rng.randrange(1, 6) for _ in row] for row in machines]
    assert least_clock(job_shop(machines, durations)) == least_makespan(machines, durations, below=1000)


@pytest.mark.parametrize("turbo", [True, False])
@pytest.mark.parametrize(
    "tables", [([[0, 1, 0]], [[3, 4, 2]]), ([[0], [0], [0]], [[2], [0], [5]]), ([[0]], [[0]])]
)
def test_a_schedule_that_takes_all_the_work_in_turn_is_finished_not_truncated(
    tables: tuple[Table, Table], turbo: bool
) -> None:
    net = job_shop(*tables)
    env = PetriEnv(net=net, config=makespan_config(net), turbo=turbo)
    env.reset(seed=0)
    jobs = [job for job, row in enumerate(tables[0]) for _ in row]
    for action in schedule_actions(net, jobs):
        _, _, terminated, truncated, info = env.step(action)
        assert not truncated
    assert terminated
    assert info["clock"] == sum(sum(row) for row in tables[1])


def actions_by_the_rules(net: Net, jobs: list[int]) -> list[int]:
    """`schedule_actions`, played through the rules in plain Python."""
    index = net.transition_index
    ends = [index[name] for name in net.transition_names if name.startswith("end_")]
    rules = PetriRules(net, makespan_config(net))
    rules.reset()
    actions: list[int] = []
    steps = [0] * len(jobs)

    def play(action: int) -> None:
        assert rules.enabled[action]
        rules.step(action)
        actions.append(action)

    def end_or_wait() -> None:
        play(next((end for end in ends if rules.enabled[end]), net.wait_action))

    for job in jobs:
        start = index[f"start_{job}_{steps[job]}"]
        steps[job] += 1
        while not rules.enabled[start]:
            end_or_wait()
        play(start)
    while not rules.is_finished:
        end_or_wait()
    return actions


@pytest.mark.parametrize("seed", range(6))
def test_a_schedule_has_the_actions_that_the_rules_give(seed: int) -> None:
    rng = random.Random(seed)
    machines = [rng.choices(range(3), k=rng.randrange(1, 5)) for _ in range(4)]
    durations = [[rng.randrange(0, 4) for _ in row] for row in machines]
    jobs = [job for job, row in enumerate(machines) for _ in row]
    rng.shuffle(jobs)
    net = job_shop(machines, durations)
    assert schedule_actions(net, jobs) == actions_by_the_rules(net, jobs)


def test_only_job_shops_have_schedules() -> None:
    net = Net("n", (Place("p", tokens=1),), (Transition("start_0_0", ["p"], []),))
    with pytest.raises(HotloopError, match="net 'n' is not a job shop; make it with job_shop"):
        schedule_actions(net, [0])


def test_bad_job_shops_are_refused() -> None:
    with pytest.raises(HotloopError, match="two tables of the same shape"):
        job_shop([[0, 1]], [[3]])
    with pytest.raises(HotloopError, match=r"duration -3 is not allowed"):
        job_shop([[0]], [[-3]])
    net = job_shop([[0, 1]], [[3, 4]])
    with pytest.raises(HotloopError, match="no operation 'start_0_2'"):
        schedule_actions(net, [0, 0, 0])
    with pytest.raises(HotloopError, match="each job must be named once for each of its operations"):
        schedule_actions(net, [0])
