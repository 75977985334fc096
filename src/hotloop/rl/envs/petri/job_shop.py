"""Job-shop problems as nets: the smallest final clock over all firing sequences is the optimal makespan.

Each job is a sequence of places ready -> processing -> ready -> ... -> done with one token; each machine is
a place with one token. `start` takes the machine and `end` returns it. Firing takes no time; WAIT advances
to the next end of an operation.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.petri.config import PetriConfig
from hotloop.rl.envs.petri.net import Net, Place, Transition


def job_shop(
    machines: Sequence[Sequence[int]], durations_s: Sequence[Sequence[int]], *, name: str = "job shop"
) -> Net:
    """Return the net of a job shop; row j of both tables is job j, in the order of its operations.

    Machines are numbered from 0. Transitions are `start_<job>_<operation>` and `end_<job>_<operation>`.
    The places of a job are adjacent and in order; machines come last.
    """
    _check_tables(machines, durations_s)
    places: list[Place] = []
    transitions: list[Transition] = []
    for job, (route, times_s) in enumerate(zip(machines, durations_s, strict=True)):
        last = len(route) - 1
        for step, (machine, time_s) in enumerate(zip(route, times_s, strict=True)):
            ready, busy = f"ready_{job}_{step}", f"busy_{job}_{step}"
            after = f"ready_{job}_{step + 1}" if step < last else f"done_{job}"
            places.append(Place(ready, tokens=int(step == 0), capacity=1))
            places.append(Place(busy, capacity=1, holding_s=int(time_s), kind="process"))
            transitions.append(Transition(f"start_{job}_{step}", [ready, f"machine_{machine}"], [busy]))
            transitions.append(Transition(f"end_{job}_{step}", [busy], [after, f"machine_{machine}"]))
        places.append(Place(f"done_{job}", capacity=1, kind="sink", goal=1))
    used = sorted({int(machine) for route in machines for machine in route})
    places += [Place(f"machine_{machine}", tokens=1, capacity=1, kind="resource") for machine in used]
    return Net(name, tuple(places), tuple(transitions))


def schedule_actions(net: Net, jobs: Iterable[int]) -> list[int]:
    """Return the actions of a schedule, given as the jobs whose next operations start, by starting time.

    Each operation starts as soon as it is its turn and its job and machine are free; operations end as soon
    as possible. Raises HotloopError if the schedule names an operation that does not exist.
    """
    index, machine_of = net.transition_index, _machines(net)
    actions: list[int] = []
    steps: Counter[int] = Counter()
    working: list[tuple[int, int]] = []  # (end in s, `end` transition) of operations that are being worked on
    over: list[int] = []  # `end` transitions that may fire now, smallest first
    busy_machines: set[int] = set()
    busy_jobs: set[int] = set()
    job_of: dict[int, int] = {}  # by `end` transition
    clock_s, left = 0, len(net.transitions) // 2

    def end_or_wait() -> None:
        nonlocal clock_s, left
        if over:
            ended = heapq.heappop(over)
            busy_machines.remove(machine_of[ended])
            busy_jobs.remove(job_of[ended])
            actions.append(ended)
            left -= 1
            return
        if not working:
            raise HotloopError(
                f"the schedule is stuck at {clock_s} s: nothing is being worked on and the next operation "
                "cannot start; each job must be named once for each of its operations."
            )
        clock_s = working[0][0]
        while working and working[0][0] == clock_s:
            heapq.heappush(over, heapq.heappop(working)[1])
        actions.append(net.wait_action)

    for job in jobs:
        name = f"start_{job}_{steps[job]}"
        if name not in index:
            raise HotloopError(f"net {net.name!r} has no operation {name!r} to start; check the schedule.")
        start, end = index[name], index[f"end_{job}_{steps[job]}"]
        steps[job] += 1
        while machine_of[start] in busy_machines or job in busy_jobs:
            end_or_wait()
        actions.append(start)
        busy_machines.add(machine_of[start])
        busy_jobs.add(job)
        job_of[end] = job
        holding_s = net.places[net.takes[end][0][0]].holding_s
        if holding_s:
            heapq.heappush(working, (clock_s + holding_s, end))
        else:
            heapq.heappush(over, end)
    while left:
        end_or_wait()
    return actions


def makespan_config(net: Net) -> PetriConfig:
    """Return settings under which a finished episode's return is minus its makespan in seconds.

    The limits leave room for every schedule, even if all work is done one operation after the other.
    """
    longest_s = sum(place.holding_s * max(1, place.tokens) for place in net.places)
    return PetriConfig(
        time_limit_s=longest_s + 1,  # the last operation ends before it
        max_steps=max(10_000, 4 * len(net.transitions)),
        processing_reward=0.0,
        time_penalty_per_s=1.0,
        overtime_penalty_per_s=0.0,
        scrap_penalty=0.0,
        dead_penalty=0.0,
        disabled_penalty=0.0,
        finish_bonus=0.0,
        horizon_s=max(1, max(place.holding_s for place in net.places)),
    )


def _machines(net: Net) -> dict[int, int]:
    """Return the place of the machine that each `start` takes and each `end` returns."""
    rows = {row for row, place in enumerate(net.places) if place.kind == "resource"}
    found = {}
    for number, arcs in enumerate(zip(net.takes, net.puts, strict=True)):
        machines = [row for links in arcs for row, _ in links if row in rows]
        if len(machines) != 1 or not net.transition_names[number].startswith(("start_", "end_")):
            raise HotloopError(f"net {net.name!r} is not a job shop; make it with job_shop().")
        found[number] = machines[0]
    return found


def _check_tables(machines: Sequence[Sequence[int]], durations_s: Sequence[Sequence[int]]) -> None:
    shape, other = [len(row) for row in machines], [len(row) for row in durations_s]
    if shape != other or not shape or 0 in shape:
        raise HotloopError(
            f"the machine table has rows of {shape} operations and the time table rows of {other}; "
            "pass two tables of the same shape, one row per job."
        )
    for table, what in ((machines, "machine"), (durations_s, "duration")):
        for row in table:
            for value in row:
                if int(value) != value or value < 0:
                    raise HotloopError(f"{what} {value!r} is not allowed; use whole numbers of at least 0.")
