"""`hotloop run` on small pipelines whose answer is known: the straggler, who waits, who is no worker."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import hotloop
from hotloop.analysis.explain import explain
from hotloop.analysis.system import System
from tests import cli
from tests.processes.scripts import environment

TORCHRUN = Path(sys.executable).parent / "torchrun"
# Sleeping stands for work: it takes as long on a busy machine.
QUEUE = """
import queue, threading, time
import hotloop

jobs = queue.Queue(maxsize=4)

def produce():
    for number in range(60):
        time.sleep(0.015)  # line 9
        jobs.put(number)
    jobs.put(None)

threading.Thread(target=produce).start()
while jobs.get() is not None:
    with hotloop.profile("learn"):
        time.sleep(0.002)
    hotloop.progress(updates=1)
"""
POOL = """
import multiprocessing, time
import multiprocessing.pool
import hotloop

def episode(number):
    with hotloop.profile("episode"):
        time.sleep(0.012)
    return number

def square(number):
    return number * number

if __name__ == "__main__":
    pool = multiprocessing.get_context("fork").Pool(2)
    assert sum(pool.map(int, range(100), chunksize=7)) == sum(pool.imap(int, range(100))) == 4950
    with multiprocessing.pool.ThreadPool(2) as threads:
        assert threads.map(square, range(3)) == [0, 1, 4] and list(threads.imap(abs, [0, -2])) == [0, 2]
    jobs = [pool.apply_async(episode, (i,)) for i in range(4)]
    for number in range(4, 120):
        got = jobs.pop(0).get()
        jobs.append(pool.apply_async(episode, (number,)))
        with hotloop.profile("learn"):
            time.sleep(0.001)
        hotloop.progress(updates=1)
    pool.terminate()
"""
PIPES = """
import multiprocessing, time
import hotloop

def work(pipe, seconds):
    while pipe.recv() is not None:
        time.sleep(seconds)  # line 7
        pipe.send(bytes(1000))

if __name__ == "__main__":
    context = multiprocessing.get_context("{method}")
    ends = []
    for seconds in (0.001, 0.012, 0.001):
        mine, theirs = context.Pipe()
        context.Process(target=work, args=(theirs, seconds), daemon=True).start()
        theirs.close()
        ends.append(mine)
    for step in range(80):
        for end in ends:
            end.send(step)
        for end in ends:
            end.recv()
        hotloop.progress(env_steps=3, updates=1)
    for end in ends:
        end.send(None)
    for child in multiprocessing.active_children():
        child.join()
"""
DATA_PARALLEL = """
import time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for step in range(150):
    loss = net(torch.randn(8, 16)).pow(2).mean()
    if dist.get_rank() == 1:
        time.sleep(0.010)  # line 10
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""
LOADER = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 1200
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.zeros(4)

if __name__ == "__main__":
    torch.set_num_threads(1)
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for batch in DataLoader(Data(), batch_size=8, num_workers=2):
        optimizer.zero_grad()
        net(batch).mean().backward()
        optimizer.step()
"""


def system_of(script: str, folder: Path, *before: str) -> System:
    (folder / "train.py").write_text(script)
    command = before or (sys.executable,)
    done = cli.hotloop(
        "run", "--capture", "run", "--", *command, "train.py", cwd=folder, env=environment("compiled")
    )
    assert done.returncode == 0, done.stderr
    assert "an error that does not stop" not in done.stderr
    found = explain(hotloop.load(folder / "run")).system
    assert found is not None
    return found


def names(found: System) -> list[str]:
    return [m.name for m in found.members if found.roles[m.role].works]


def test_a_producer_that_sleeps_is_named_with_its_line(tmp_path: Path) -> None:
    found = system_of(QUEUE, tmp_path)
    assert names(found) == ["learner", "thread produce"]
    (edge,) = found.edges
    assert (edge.kind, edge.source, edge.target, edge.capacity) == ("thread_queue", 1, 0, 4)
    producer = found.members[1]
    assert producer.blocked[0].reason == "sleep" and producer.blocked[0].site.endswith("train.py:9")
    assert "from thread produce" in found.chain_sentence and "train.py:9" in found.chain_sentence
    assert found.limit.role == producer.role


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_slow_one_of_three_workers_is_the_straggler(method: str, tmp_path: Path) -> None:
    found = system_of(PIPES.replace("{method}", method), tmp_path)
    workers = [m for m in found.members if m.kind != "learner" and found.roles[m.role].works]
    assert len(workers) == 3 and len({m.role for m in workers}) == 1
    slow = max(found.barriers[0].members, key=lambda one: one.mean_ns)
    name = found.members[slow.member].name
    assert found.barriers[0].pattern == "steady"
    assert slow.mean_ns > 0.01 * 1e9
    assert f"from {name}" in found.chain_sentence and "train.py:7" in found.chain_sentence
    answers = [e for e in found.edges if e.target == 0 and e.kind == "pipe"]
    assert len(answers) == 3 and all(1000 < (e.bytes or 0) / (e.messages or 1) < 1200 for e in answers)
    assert found.cycle is None or len(found.cycle.lanes) == 4  # None: too few rounds while calls were kept


@pytest.fixture(scope="module")
def pool_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[System, dict[str, float]]:
    """A recorded pool, and what is predicted for its functions."""
    folder = tmp_path_factory.mktemp("pool")
    found = system_of(POOL, folder)
    words = ("whatif", "run", "episode=2x", "learn=2x", "--json")
    asked = cli.hotloop(*words, cwd=folder, env=environment("compiled"))
    answers = json.loads(asked.stdout)["predictions"]
    return found, {one["what_if"]: one["speed_up"]["value"] for one in answers}


def test_a_pool_is_named_and_its_what_ifs_have_answers(pool_run: tuple[System, dict[str, float]]) -> None:
    found, faster = pool_run
    assert names(found) == ["learner", "worker 0", "worker 1"]
    works = [number for number, one in enumerate(found.members) if found.roles[one.role].works]
    assert {e.kind for e in found.edges if e.source in works and e.target in works} == {"pool"}
    assert set(faster) == {"episode=2x", "learn=2x"} and None not in faster.values()


@pytest.mark.long
def test_faster_episodes_of_a_pool_help_and_faster_learning_does_not(
    pool_run: tuple[System, dict[str, float]],
) -> None:
    _, faster = pool_run
    assert faster["episode=2x"] > 1.15 and faster["learn=2x"] < 1.3  # 1.9 and 1.0 on an idle machine


@pytest.mark.long
def test_a_rank_that_sleeps_is_the_straggler_and_torchrun_is_no_worker(tmp_path: Path) -> None:
    found = system_of(DATA_PARALLEL, tmp_path, str(TORCHRUN), "--nproc_per_node", "2")
    assert names(found) == ["rank 0", "rank 1"]
    assert any(m.kind == "launcher" for m in found.members)
    assert "from rank 1; rank 1 is" in found.chain_sentence and "train.py:10" in found.chain_sentence
    assert found.members[0].states.waiting > found.members[1].states.waiting
    advice = explain(hotloop.load(tmp_path / "run")).recommendations
    assert not [r for r in advice if "thread" in r.name]  # one compute thread is in force already


@pytest.mark.long
def test_a_learner_waits_for_the_workers_of_its_loader(tmp_path: Path) -> None:
    found = system_of(LOADER, tmp_path)
    assert [role.kind for role in found.roles if role.works][:2] == ["learner", "loader_worker"]
    assert found.chain_sentence.startswith("The learner waits ") and "for a batch" in found.chain_sentence
    assert found.limit.role is not None and found.roles[found.limit.role].kind == "loader_worker"
