"""Collectors that die in every way, learners that die, Ctrl-C, and failing starts."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotloop
from hotloop._util.errors import HotloopError
from hotloop.rl.collect.actor_loop import derive_seeds
from hotloop.rl.collect.locked import LockedCollector
from hotloop.rl.collect.processes import ProcessCollector
from hotloop.rl.collect.protocol import CollectionFailed, Rows, Setup, Task
from hotloop.rl.collect.status import HEARTBEAT_NS, PHASE, WAITING_FOR_LEARNER, WAITING_FOR_LOCK
from tests.collect_envs import Counting, Faulty, Steered, check_streams
from tests.processes.scripts import run

ROOT = Path(__file__).parent.parent.parent
PATHS = f"{ROOT}:{ROOT / 'src'}"
KINDS: dict[str, Any] = {"processes": ProcessCollector, "locked": LockedCollector}
PATIENCE_S = 120.0


def kill_while_taking(collector: Any, kills: int, moments: random.Random) -> Rows:
    """Kill a random collector again and again, at any moment of its life, while rows are taken."""
    taken: list[Rows] = []
    number = moments.randrange(collector.setup.collectors)
    end, due, killed = time.monotonic() + PATIENCE_S, time.monotonic(), 0
    last: set[int] = set()
    while killed < kills or collector.state().restarts < kills or len(last) < collector.setup.collectors:
        assert time.monotonic() < end, collector.state()
        noticed = collector.state().restarts == killed  # so that no process is killed twice
        pid = collector.pid(number)
        if killed < kills and noticed and time.monotonic() >= due and pid is not None:
            os.kill(pid, signal.SIGKILL)
            killed += 1
            number = moments.randrange(collector.setup.collectors)
            due = time.monotonic() + moments.uniform(0, 0.04)
        for rows in collector.take(64, 0.01):
            taken.append(rows.copy())
            if collector.state().restarts == kills:
                last |= set(rows["collector"].tolist())
        collector.release()
    return np.concatenate(taken)


@pytest.mark.parametrize(("kind", "kills"), [("processes", 15), ("locked", 15)])
def test_collectors_killed_at_random_lose_nothing_and_count_nothing_twice(kind: str, kills: int) -> None:
    notes: list[str] = []
    setup = Setup(collectors=3, ring_rows=32, method="fork", max_failures=1000, log=notes.append)
    with KINDS[kind](Task(Counting, Steered, n_envs=2, seed=1), setup) as collector:
        rows = kill_while_taking(collector, kills, random.Random(3))
        state = collector.state()
    check_streams(rows, envs=2)
    assert state.restarts == len(state.failures) == len(notes) == kills
    assert all("SIGKILL" in failure.what for failure in state.failures)
    assert state.rows == len(rows) and state.dropped == 0 and state.alive == 3
    lives = {int(number): int(rows["life"][rows["collector"] == number].max()) for number in range(3)}
    assert sum(lives.values()) <= kills and max(lives.values()) > 3


def test_a_spawned_collector_that_is_killed_is_noticed_at_once_and_replaced() -> None:
    notes: list[str] = []
    with ProcessCollector(Task(Counting, Steered), Setup(collectors=2, log=notes.append)) as collector:
        wait_for_rows(collector, lambda rows: len(set(rows["collector"])) == 2)
        pid = collector.pid(1)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + PATIENCE_S
        while not collector.state().failures:  # noticed without anybody calling take
            assert time.monotonic() < end
            time.sleep(0.01)
        wait_for_rows(collector, lambda rows: bool((rows["life"] == 1).any()))
        (failure,) = collector.state().failures
    assert (failure.collector, failure.life) == (1, 0) and "out of memory" in failure.what
    assert len(notes) == 1 and "restarted with a new seed" in notes[0]


def wait_for_rows(collector: Any, enough: Any) -> Rows:
    taken: list[Rows] = []
    end = time.monotonic() + PATIENCE_S
    while not taken or not enough(np.concatenate(taken)):
        assert time.monotonic() < end, collector.state()
        taken += [rows.copy() for rows in collector.take(1000, 0.2)]
        collector.release()
    return np.concatenate(taken)


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_is_reported_with_its_traceback_and_the_run_continues(kind: str) -> None:
    healthy = Task(Counting, Steered, seed=2)
    (bad,), _ = derive_seeds(healthy, 1, 0)
    (fresh,), _ = derive_seeds(healthy, 1, 1)
    task = Task(partial(Faulty, bad_seeds=(bad,), after=40, how="raise"), Steered, seed=2)
    notes: list[str] = []
    with KINDS[kind](task, Setup(collectors=2, method="fork", log=notes.append)) as collector:
        rows = wait_for_rows(collector, lambda rows: np.count_nonzero(rows["life"] == 1) > 50)
        (failure,) = collector.state().failures
    check_streams(rows)
    assert failure.what == "raised ValueError: planted in the environment"
    assert "collect_envs.py" in failure.traceback and "in step" in failure.traceback
    assert failure.traceback.strip() in notes[0]
    second = rows[(rows["collector"] == 1) & (rows["life"] == 1)]
    assert (second["frame"][:, 0] == fresh).all() and fresh != bad
    first = rows[(rows["collector"] == 1) & (rows["life"] == 0)]
    assert np.count_nonzero(~first["first"]) == 40, "all that was handed over before the end has arrived"


def test_a_hang_is_ended_after_its_timeout_and_reported_with_its_traceback() -> None:
    (bad,), _ = derive_seeds(Task(Counting, Steered, seed=2), 0, 0)
    task = Task(partial(Faulty, bad_seeds=(bad,), after=20, how="hang"), Steered, seed=2)
    setup = Setup(collectors=2, method="fork", hang_timeout_s=3.0, log=lambda text: None)
    with ProcessCollector(task, setup) as collector:
        wait_for_rows(collector, lambda rows: bool((rows[rows["collector"] == 0]["life"] >= 1).any()))
        failures = [one for one in collector.state().failures if (one.collector, one.life) == (0, 0)]
    assert "no progress for" in failures[0].what
    assert "sleep_for_ever" in failures[0].traceback


@pytest.mark.parametrize("kind", KINDS)
def test_waiting_for_a_slow_learner_does_not_count_as_a_hang(kind: str) -> None:
    with KINDS[kind](Task(Counting, Steered), Setup(collectors=2, ring_rows=4, method="fork")) as collector:
        wait_for_rows(collector, lambda rows: len(set(rows["collector"])) == 2)
        end = time.monotonic() + PATIENCE_S
        for _ in range(3):  # signs of life go on while nobody takes rows
            beats = collector._status.words[:, HEARTBEAT_NS].copy()
            while (collector._status.words[:, HEARTBEAT_NS] == beats).any():
                assert time.monotonic() < end
                time.sleep(0.01)
        assert collector.state().failures == ()


def test_an_environment_that_always_fails_ends_the_run_with_its_traceback() -> None:
    task = Task(partial(Faulty, bad_seeds=(), after=0, how="raise"), Steered)
    setup = Setup(collectors=1, method="fork", max_failures=2, log=lambda text: None)
    with ProcessCollector(task, setup) as collector:
        with pytest.raises(CollectionFailed, match="planted in the environment") as caught:
            for _ in range(int(PATIENCE_S)):
                collector.take(10, 1.0)
                collector.release()
        assert "in step" in str(caught.value)
        assert len(collector.state().failures) >= 2


# ---- starts that cannot be


def test_a_task_that_cannot_be_sent_says_what_to_do() -> None:
    lock = threading.Lock()
    with pytest.raises(CollectionFailed, match=r"cannot be pickled.*create what they need"):
        ProcessCollector(Task(lambda seed: (lock, Counting(seed))[1], Steered))


def test_too_much_memory_gets_a_remedy() -> None:
    with pytest.raises(HotloopError, match="fewer collectors, a smaller ring"):
        ProcessCollector(Task(Counting, Steered), Setup(ring_rows=10**11))


def test_a_process_that_cannot_be_started_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import multiprocessing.context

    def refuse(process: Any) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(multiprocessing.context.ForkProcess, "start", refuse)
    collector = ProcessCollector(Task(Counting, Steered), Setup(method="fork"))
    with pytest.raises(CollectionFailed, match=r"Could not start the process of collector 0 .of 2.*ulimit"):
        collector.start()
    collector.close()


def test_an_env_that_cannot_be_created_fails_when_the_collector_is_created() -> None:
    with pytest.raises(ZeroDivisionError):
        ProcessCollector(Task(lambda seed: 1 // 0, Steered))


# ---- the learner's end

LEARNER = """
import sys, time
from hotloop.rl.collect.processes import ProcessCollector
from hotloop.rl.collect.protocol import Setup, Task
from tests.collect_envs import Counting, Steered

if __name__ == "__main__":
    with ProcessCollector(Task(Counting, Steered), Setup(collectors=2, method=sys.argv[1])) as collector:
        seen = set()
        try:
            while len(seen) < 2:
                for rows in collector.take(100, 1.0):
                    seen |= set(rows["collector"].tolist())
                collector.release()
            print(collector.pid(0), collector.pid(1), flush=True)
            while True:
                collector.take(100, 1.0)
                collector.release()
        except KeyboardInterrupt:
            print("interrupted", collector.state().rows > 0, flush=True)
    print("closed", flush=True)
"""


def begin_learner(method: str) -> tuple[subprocess.Popen[str], list[int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(LEARNER), method],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr.read() if process.stderr else ""
    return process, [int(pid) for pid in line.split()]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_until_gone(pids: list[int]) -> None:
    end = time.monotonic() + 60
    while any(map(is_running, pids)):
        assert time.monotonic() < end, "orphans"
        time.sleep(0.02)


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_killed_learner_leaves_no_orphans_and_no_shared_memory(method: str) -> None:
    before = set(os.listdir("/dev/shm"))
    process, pids = begin_learner(method)
    assert all(map(is_running, pids))
    process.kill()
    process.communicate()
    wait_until_gone(pids)
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "hotloop" in name]


def test_ctrl_c_reaches_the_learner_only_and_ends_everything() -> None:
    process, pids = begin_learner("spawn")
    os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert out.split() == ["interrupted", "True", "closed"]
    assert process.returncode == 0 and errors == ""
    wait_until_gone(pids)


FORGETFUL = """
import multiprocessing, sys
from hotloop.rl.collect.processes import ProcessCollector
from hotloop.rl.collect.protocol import Setup, Task
from tests.collect_envs import Counting, Steered

def learn():
    collector = ProcessCollector(Task(Counting, Steered), Setup(collectors=2, method="fork"))
    collector.start()
    assert collector.take(10, 60.0)
    print(collector.pid(0), collector.pid(1), flush=True)

if sys.argv[1] == "main":
    learn()
else:
    child = multiprocessing.get_context("fork").Process(target=learn)
    child.start()
    child.join()
"""


@pytest.mark.parametrize("where", ["main", "child"])
def test_a_program_that_forgets_to_close_ends_all_the_same(where: str) -> None:
    out = run(FORGETFUL, "compiled", where, PYTHONPATH=PATHS)
    wait_until_gone([int(pid) for pid in out.split()])


def test_a_script_without_its_main_guard_gets_one_sentence(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        textwrap.dedent(
            """
            import hotloop
            from tests.collect_envs import Counting

            with hotloop.collect(Counting, collectors=1) as collector:
                for _ in range(300):
                    collector.take(10, 1.0)
                    collector.release()
            """
        )
    )
    ran = subprocess.run(
        [sys.executable, str(script)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode != 0
    assert "if __name__ == '__main__'" in ran.stderr


RECORDED = """
import sys, time
import numpy as np
import hotloop
from hotloop.rl.collect.protocol import Setup, Task
from tests.collect_envs import Counting, Steered
from tests.processes.test_collect_faults import KINDS, wait_for_rows

hotloop.start(sys.argv[1])
for kind in KINDS.values():
    with kind(Task(Counting, Steered, n_weights=2), Setup(collectors=1, ring_rows=16)) as collector:
        collector.publish(np.ones(2, dtype=np.float32))
        wait_for_rows(collector, lambda rows: len(rows) > 200)
        while collector.state().queued < 16:
            time.sleep(0.01)
        wait_for_rows(collector, lambda rows: len(rows) > 200)
hotloop.stop()
"""


def test_collectors_join_the_recording(tmp_path: Path) -> None:
    run(RECORDED, "compiled", tmp_path / "run", PYTHONPATH=PATHS)
    capture = hotloop.load(tmp_path / "run")
    assert len(capture.processes) == 3
    names = {node.name for node in every_node(capture)}
    assert {"env_step", "env_reset", "policy_forward", "ipc_send", "weights_sync"} <= names
    assert {"ipc_wait", "lock_wait"} <= names, "waits are regions of their own"
    assert capture.progress.env_steps > 700 and capture.progress.episodes > 50


def every_node(capture: Any) -> list[Any]:
    stack, found = [thread.root for thread in capture.threads], []
    while stack:
        node = stack.pop()
        found.append(node)
        stack += node.children
    return found


@pytest.mark.parametrize("kind", ["processes", "locked"])
def test_a_collector_killed_while_it_waits_for_the_learner_was_healthy(kind: str) -> None:
    """It found the ring full and made no step in its life: four such kills ended a run."""
    setup = Setup(collectors=1, ring_rows=8, method="fork", max_failures=2, log=lambda text: None)
    with KINDS[kind](Task(Counting, Steered, n_envs=2, seed=1), setup) as collector:
        end = time.monotonic() + PATIENCE_S
        for kills in range(1, 6):
            while not waits(collector):
                assert time.monotonic() < end, collector.state()
                time.sleep(0.01)
            pid = collector.pid(0)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            while collector.state().restarts < kills:
                assert time.monotonic() < end, collector.state()
                time.sleep(0.01)
        assert collector.take(2, 10.0)
        collector.release()


def waits(collector: Any) -> bool:
    """Whether the only collector waits for room in this life."""
    return collector.pid(0) is not None and int(collector._status.words[0, PHASE]) in (
        WAITING_FOR_LEARNER,
        WAITING_FOR_LOCK,
    )


def test_a_collector_that_is_stopped_just_after_it_got_the_lock_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had not said yet that it no longer waits for the lock, and the whole run waited for it for ever."""
    lockf, learner, once = fcntl.lockf, os.getpid(), tmp_path / "once"

    def stops(file: Any, operation: int) -> None:
        lockf(file, operation)
        if operation == fcntl.LOCK_EX and os.getpid() != learner and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGSTOP)

    monkeypatch.setattr(fcntl, "lockf", stops)
    setup = Setup(collectors=3, ring_rows=8, method="fork", hang_timeout_s=2.0, log=lambda text: None)
    with LockedCollector(Task(Counting, Steered, seed=1), setup) as collector:
        rows = wait_for_rows(collector, lambda rows: len(set(rows["collector"])) == 3)
        failures = collector.state().failures
    assert "no progress for" in failures[0].what
    check_streams(rows)
