"""A job shop as a sequence of decisions: which job gets the machine that is asked for first.

The net of a job shop has an action for every start, every end and for waiting; most of them are forced. Here
the steps of an episode are the operations. A step takes the next operation of one job and starts it as early
as its job and machine allow. Allowed are the jobs that compete for one machine: that of the operation
that could end first, and among its operations those that could start before that end. These are the active
schedules (Giffler and Thompson), and one of them is optimal. `schedule_actions` plays a schedule through
the net.

The reward is the increase of a lower bound on the makespan, as a negative number and in units of its
initial value, so that a return is 1 - makespan / bound.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.batch import NEXT_STEP, SAME_STEP, BatchedEnv
from hotloop.rl.envs.compiled import kernel
from hotloop.rl.envs.petri.net import Net

FEATURES = 6  # of each job in the observation
# Columns of a job in `jobs`: its next operation, and when it is free (s).
_NEXT, _FREE = range(2)


class Shop(NamedTuple):
    """The operations of a job shop."""

    machines: NDArray[np.int32]  # [jobs, operations], -1 after the last
    durations_s: NDArray[np.int32]  # [jobs, operations]
    tails_s: NDArray[np.int32]  # [jobs, operations + 1] work from an operation on
    counts: NDArray[np.int32]  # [jobs] operations

    @property
    def bound_s(self) -> int:
        """A lower bound on the makespan: the longest job, or the machine with the most work."""
        load_s = np.zeros(int(self.machines.max()) + 1, dtype=np.int64)
        used = self.machines >= 0
        np.add.at(load_s, self.machines[used], self.durations_s[used])
        return max(int(self.tails_s[:, 0].max()), int(load_s.max()), 1)


def shop_of(net: Net) -> Shop:
    """Return the operations of a net made by `job_shop`."""
    rows: dict[int, list[tuple[int, int]]] = {}
    machine_rows = [row for row, place in enumerate(net.places) if place.kind == "resource"]
    for number, name in enumerate(net.transition_names):
        kind, _, place = name.partition("_")
        if kind not in ("start", "end") or not place.replace("_", "").isdecimal():
            raise HotloopError(f"net {net.name!r} is not a job shop; make it with job_shop().")
        if kind == "end":
            busy = net.places[net.takes[number][0][0]]
            machine = next(row for row, _ in net.puts[number] if row in machine_rows)
            job = int(place.partition("_")[0])
            rows.setdefault(job, []).append((machine_rows.index(machine), busy.holding_s))
    most = max(len(row) for row in rows.values())
    shape = (len(rows), most)
    machines, durations_s = np.full(shape, -1, dtype=np.int32), np.zeros(shape, dtype=np.int32)
    for job, row in rows.items():
        for step, (machine, duration_s) in enumerate(row):
            machines[job, step], durations_s[job, step] = machine, duration_s
    tails_s = np.zeros((len(rows), most + 1), dtype=np.int32)
    tails_s[:, :-1] = np.cumsum(durations_s[:, ::-1], axis=1)[:, ::-1]
    counts = np.array([len(rows[job]) for job in range(len(rows))], dtype=np.int32)
    return Shop(machines, durations_s, tails_s, counts)


class DispatchVectorEnv(BatchedEnv):
    """Many copies of one job shop. Action j starts the next operation of job j.

    Observations float32 [num_envs, 6 jobs]: for each job whether it may be chosen, the time until its
    next operation could start, that operation's duration, the work left in the job, the work left on
    that operation's machine, and the fraction of its operations done. Times are in units of the initial
    bound, counted from the earliest start. Infos: `action_mask` bool [num_envs, jobs], `makespan` (s, so
    far).
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        net: Net,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        num_threads: int = 1,
        copy: bool = True,
    ):
        self.net, self.shop = net, shop_of(net)
        jobs = len(self.shop.counts)
        super().__init__(
            num_envs,
            gymnasium.spaces.Box(0.0, np.inf, (FEATURES * jobs,), np.float32),
            gymnasium.spaces.Discrete(jobs),
            autoreset_mode=autoreset_mode,
            num_threads=num_threads,
            copy=copy,
        )
        machines = int(self.shop.machines.max()) + 1
        self.jobs = np.zeros((num_envs, jobs, 2), dtype=np.int32)
        self.free_s = np.zeros((num_envs, machines), dtype=np.int32)  # of the machines
        self.work_s = np.zeros((num_envs, machines), dtype=np.int32)  # left on the machines
        self.makespan_s = np.zeros(num_envs, dtype=np.int32)
        self.final_makespan_s = np.zeros(num_envs, dtype=np.int32)
        self.masks = np.zeros((num_envs, jobs), dtype=np.bool_)
        self.final_masks = np.zeros((num_envs, jobs), dtype=np.bool_)
        self._bound_s = self.shop.bound_s
        self._every_row = np.ones(num_envs, dtype=np.bool_)

    def _step_rows(self, start: int, stop: int) -> int:
        return step_rows(
            *self.shop,
            self.actions,
            self.jobs,
            self.free_s,
            self.work_s,
            self.makespan_s,
            self.final_makespan_s,
            self.masks,
            self.final_masks,
            self.observations,
            self.final_observations,
            self.rewards,
            self.terminated,
            self.over,
            self.elapsed,
            self._bound_s,
            start,
            stop,
            self.mode,
        )

    def _reset_rows(self, rows: NDArray[np.bool_]) -> None:
        reset_rows(
            *self.shop,
            self.jobs,
            self.free_s,
            self.work_s,
            self.makespan_s,
            self.masks,
            self.observations,
            self._bound_s,
            rows,
        )

    def _infos(
        self, masks: NDArray[Any], makespan_s: NDArray[Any], rows: NDArray[np.bool_]
    ) -> dict[str, Any]:
        kept = (array.copy() if self.copy else array for array in (masks, makespan_s, rows, rows))
        return dict(zip(("action_mask", "makespan", "_action_mask", "_makespan"), kept, strict=True))

    def _step_infos(self) -> dict[str, Any]:
        return self._infos(self.masks, self.makespan_s, self._every_row)

    def _final_infos(self) -> dict[str, Any]:
        return self._infos(self.final_masks, self.final_makespan_s, self.terminated.copy())

    def _state_arrays(self) -> dict[str, NDArray[Any]]:
        names = ("jobs", "free_s", "work_s", "makespan_s", "masks")
        return {**super()._state_arrays(), **{name: getattr(self, name) for name in names}}


@kernel
def _observe(
    machines: Any, durations_s: Any, tails_s: Any, counts: Any, jobs: Any, free_s: Any, work_s: Any,
    masks: Any, observations: Any, bound_s: int, row: int,
) -> None:  # fmt: skip
    """Write the mask and the observation of a row."""
    first_end_s, first_machine, now_s = 2**31 - 1, -1, 2**31 - 1
    for job in range(len(counts)):
        step = jobs[row, job, _NEXT]
        if step < counts[job]:
            machine = machines[job, step]
            start_s = max(jobs[row, job, _FREE], free_s[row, machine])
            now_s = min(now_s, start_s)
            if start_s + durations_s[job, step] < first_end_s:
                first_end_s, first_machine = start_s + durations_s[job, step], machine
    share = np.float32(1.0) / np.float32(bound_s)
    for job in range(len(counts)):
        step, at = jobs[row, job, _NEXT], FEATURES * job
        masks[row, job] = False
        for feature in range(FEATURES):
            observations[row, at + feature] = 0.0
        observations[row, at + 5] = np.float32(step) / np.float32(counts[job])
        if step == counts[job]:
            continue
        machine = machines[job, step]
        start_s = max(jobs[row, job, _FREE], free_s[row, machine])
        # An operation that takes no time may not start before its own end.
        masks[row, job] = machine == first_machine and (
            start_s < first_end_s or start_s + durations_s[job, step] == first_end_s
        )
        observations[row, at] = masks[row, job]
        observations[row, at + 1] = np.float32(start_s - now_s) * share
        observations[row, at + 2] = np.float32(durations_s[job, step]) * share
        observations[row, at + 3] = np.float32(tails_s[job, step]) * share
        observations[row, at + 4] = np.float32(work_s[row, machine]) * share


@kernel
def _bound(tails_s: Any, counts: Any, jobs: Any, free_s: Any, work_s: Any, row: int) -> int:
    """Return a lower bound on the makespan from here on."""
    bound_s = 0
    for job in range(len(counts)):
        bound_s = max(bound_s, jobs[row, job, _FREE] + tails_s[job, jobs[row, job, _NEXT]])
    for machine in range(free_s.shape[1]):
        bound_s = max(bound_s, free_s[row, machine] + work_s[row, machine])
    return bound_s


@kernel
def _reset_row(
    machines: Any, durations_s: Any, tails_s: Any, counts: Any, jobs: Any, free_s: Any, work_s: Any,
    makespan_s: Any, masks: Any, observations: Any, bound_s: int, row: int,
) -> None:  # fmt: skip
    makespan_s[row] = 0
    for machine in range(free_s.shape[1]):
        free_s[row, machine] = 0
        work_s[row, machine] = 0
    for job in range(len(counts)):
        jobs[row, job, _NEXT], jobs[row, job, _FREE] = 0, 0
        for step in range(counts[job]):
            work_s[row, machines[job, step]] += durations_s[job, step]
    _observe(machines, durations_s, tails_s, counts, jobs, free_s, work_s, masks, observations, bound_s, row)


@kernel
def reset_rows(
    machines: Any, durations_s: Any, tails_s: Any, counts: Any, jobs: Any, free_s: Any, work_s: Any,
    makespan_s: Any, masks: Any, observations: Any, bound_s: int, chosen: NDArray[np.bool_],
) -> None:  # fmt: skip
    """Start an episode in the marked rows."""
    for row in range(len(chosen)):
        if chosen[row]:
            _reset_row(
                machines, durations_s, tails_s, counts, jobs, free_s, work_s, makespan_s, masks, observations,
                bound_s, row,
            )  # fmt: skip


@kernel
def step_rows(
    machines: Any, durations_s: Any, tails_s: Any, counts: Any, actions: Any, jobs: Any, free_s: Any,
    work_s: Any, makespan_s: Any, final_makespan_s: Any, masks: Any, final_masks: Any, observations: Any,
    final_observations: Any, rewards: Any, terminated: Any, over: Any, elapsed: Any, bound_s: int, start: int,
    stop: int, mode: int,
) -> int:  # fmt: skip
    """Step rows `start` to `stop - 1`; return -1, or the first row with an action that is not allowed."""
    for row in range(len(actions)):
        if actions[row] < 0 or actions[row] >= len(counts):
            return row
    for row in range(start, stop):
        rewards[row], terminated[row] = 0.0, False
        job = actions[row]
        if over[row] and mode == NEXT_STEP:
            _reset_row(
                machines, durations_s, tails_s, counts, jobs, free_s, work_s, makespan_s, masks, observations,
                bound_s, row,
            )  # fmt: skip
            over[row], elapsed[row] = False, 0
            continue
        if not masks[row, job]:  # a learner without masks: the first allowed job
            job = 0
            while not masks[row, job]:
                job += 1
        before_s = _bound(tails_s, counts, jobs, free_s, work_s, row)
        step = jobs[row, job, _NEXT]
        machine = machines[job, step]
        end_s = max(jobs[row, job, _FREE], free_s[row, machine]) + durations_s[job, step]
        jobs[row, job, _NEXT], jobs[row, job, _FREE] = step + 1, end_s
        free_s[row, machine] = end_s
        work_s[row, machine] -= durations_s[job, step]
        makespan_s[row] = max(makespan_s[row], end_s)
        elapsed[row] += 1
        after_s = _bound(tails_s, counts, jobs, free_s, work_s, row)
        rewards[row] = (before_s - after_s) / bound_s
        _observe(
            machines, durations_s, tails_s, counts, jobs, free_s, work_s, masks, observations, bound_s, row
        )
        ends = True
        for other in range(len(counts)):
            if jobs[row, other, _NEXT] < counts[other]:
                ends = False
        terminated[row] = ends
        if ends and mode == SAME_STEP:
            final_makespan_s[row] = makespan_s[row]
            for other in range(len(counts)):
                final_masks[row, other] = masks[row, other]
            for part in range(observations.shape[1]):
                final_observations[row, part] = observations[row, part]
            _reset_row(
                machines, durations_s, tails_s, counts, jobs, free_s, work_s, makespan_s, masks, observations,
                bound_s, row,
            )  # fmt: skip
            elapsed[row] = 0
        elif ends:
            over[row] = True
    return -1
