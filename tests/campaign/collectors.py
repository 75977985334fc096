"""Collectors that are killed, stopped, hang, raise or run out of memory, with all queues and transports.

A case is one collection by some processes, disturbed a few times while rows are taken. Every row shows which
step of which environment it is, so a row that is lost, repeated or out of order is noticed. The rows also go
into a replay buffer, as in a training.

    python -m tests.campaign --kinds collectors --seed 17 --minutes 0     # repeats one case
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.rl.buffers.replay import ReplayBuffer
from hotloop.rl.collect.locked import LockedCollector
from hotloop.rl.collect.processes import ProcessCollector
from hotloop.rl.collect.protocol import Rows, Setup, Task
from tests.campaign.case import Case, seeds
from tests.collect_envs import Counting, Steered, check_streams, sleep_for_ever

KINDS: dict[str, Any] = {"rings": ProcessCollector, "locked": LockedCollector}
TRANSPORTS = ("compiled", "python")
PATIENCE_S = 120.0
ROOT = Path(__file__).parent.parent.parent


class Unlucky(Counting):
    """Breaks in the way given after a number of steps, in the first life of some collectors."""

    def __init__(self, seed: int, how: str, after: int):
        super().__init__(seed)
        self._how, self._after = (how if seed % 3 == 0 else ""), after

    def step(self, action: Any) -> Any:
        if self._how and self._total == self._after:
            if self._how == "raise":
                raise ValueError("planted")
            if self._how == "exit":
                sys.exit(7)
            if self._how == "out of memory":
                raise MemoryError
            if self._how == "killed for its memory":
                os.kill(os.getpid(), signal.SIGKILL)
            sleep_for_ever()
        return super().step(action)


FAULTS = ("", "", "", "raise", "exit", "out of memory", "killed for its memory", "hang")


def run(seed: int, seconds: float, count: int | None = None) -> Iterator[Case]:
    """One case for each seed from `seed` up, until `seconds` have passed or `count` are done.

    Each transport has a process of its own, which forks the collectors.
    """
    with contextlib.ExitStack() as stack:
        processes = {name: stack.enter_context(_process(name)) for name in TRANSPORTS}
        for number in seeds(seed, seconds, count):
            transport = random.Random(number).choice(TRANSPORTS)
            process = processes[transport]
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                yield Case(f"collectors, {transport} transport", number, "the process of the learner died")
                return
            yield Case(*json.loads(line))


@contextlib.contextmanager
def _process(transport: str) -> Iterator[Any]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.campaign.collectors"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"HOTLOOP_TRANSPORT": transport},
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def one_case(seed: int) -> Case:
    rng = random.Random(seed)
    transport, kind = rng.choice(TRANSPORTS), rng.choice(sorted(KINDS))
    collectors, n_envs = rng.randint(1, 3), rng.randint(1, 3)
    fault = rng.choice(FAULTS)
    disturbances = [rng.choice(("kill", "kill", "kill", "stop")) for _ in range(rng.randint(1, 3))]
    slow = fault == "hang" or "stop" in disturbances
    setup = Setup(
        collectors=collectors,
        ring_rows=rng.choice((2, 8, 32, 200)),
        method="fork",
        hang_timeout_s=0.5 if slow else 30.0,
        start_timeout_s=2.0 if slow else 300.0,
        max_failures=1000,
        log=lambda text: None,
    )
    task = Task(partial(Unlucky, how=fault, after=rng.randint(0, 60)), Steered, n_envs=n_envs, seed=seed)
    failure = None
    try:
        with KINDS[kind](task, setup) as collector:
            rows = disturb_and_take(collector, disturbances, rng)
            state = collector.state()
        check_streams(rows, envs=n_envs)
        if state.rows != len(rows) or state.dropped or state.restarts < disturbances.count("kill"):
            failure = f"{len(rows)} rows were taken; the collector says {state}"
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    if failure is not None:
        failure = f"{kind} of {collectors} x {n_envs}, {fault or 'no fault'}, {disturbances}: {failure}"
    return Case(f"collectors, {kind}, {transport}", seed, failure)


def disturb_and_take(collector: Any, disturbances: list[str], rng: random.Random) -> Rows:
    """Take rows while collectors are disturbed, until all of them have made rows again."""
    buffer = ReplayBuffer(
        64, collector.setup.collectors * collector.spaces.n_envs, collector.spaces.observation,
        collector.spaces.action,
    )  # fmt: skip
    taken: list[Rows] = []
    left, due_s = list(disturbances), time.monotonic() + rng.uniform(0, 0.05)
    stopped: set[int] = set()
    alive: set[int] = set()
    end_s = time.monotonic() + PATIENCE_S
    while left or len(alive) < collector.setup.collectors:
        if time.monotonic() > end_s:
            raise TimeoutError(f"some collectors gave no rows: {collector.state()}")
        if left and time.monotonic() >= due_s:
            pid = collector.pid(rng.randrange(collector.setup.collectors))
            if pid is not None and pid not in stopped:
                how = left.pop()
                stopped.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
                due_s = time.monotonic() + rng.uniform(0, 0.05)
                alive = set()
        for rows in collector.take(rng.choice((1, 16, 64)), 0.01):
            buffer.push_rows(rows)
            taken.append(rows.copy())
            alive |= {
                int(one) for one in np.unique(rows["collector"]) if collector.pid(int(one)) not in stopped
            }
        collector.release()
    return np.concatenate(taken)


if __name__ == "__main__":
    for line in sys.stdin:
        done = one_case(int(line))
        print(json.dumps([done.kind, done.seed, done.failure]), flush=True)
