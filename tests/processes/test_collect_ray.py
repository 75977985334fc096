"""`hotloop.collect(..., on="ray")` and `hotloop train mario --on ray` on a real cluster."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.processes.ray_cluster import PATIENT, RayCluster, needs_ray
from tests.processes.scripts import environment

pytestmark = [needs_ray, pytest.mark.long]

# An env whose rows show any loss, mix-up or repetition, and an actor that returns what it was sent.
COMMON = """
import json, sys, time
import gymnasium, numpy as np
import hotloop
from hotloop._util.errors import HotloopError

class Counting(gymnasium.Env):
    def __init__(self, seed=0):
        self.observation_space = gymnasium.spaces.Box(0, 2**62, (3,), np.int64)
        self.action_space = gymnasium.spaces.Discrete(1000)
        self.seed, self.episode, self.count = seed, -1, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        return self.look(), {}

    def look(self):
        return np.array([self.seed, self.episode, self.count])

    def step(self, action):
        self.count += 1
        return self.look(), float(action), self.count >= 1 + self.seed % 7, False, {}

class Echo:
    def __init__(self, spaces):
        self.n, self.sent = spaces.n_envs, 0

    def load(self, weights):
        self.sent = int(weights[0])

    def act(self, observations, control, rng):
        return (self.sent + int(control) + rng.integers(0, 2, self.n)).astype(np.int64)

def gather(collector, enough, seconds=120):
    found, until = {}, time.time() + seconds
    while time.time() < until:
        for rows in collector.take(5000, timeout_s=1.0):
            for number in np.unique(rows["collector"]):
                found.setdefault(int(number), []).append(rows[rows["collector"] == number].copy())
        collector.release()
        if enough({number: sum(map(len, blocks)) for number, blocks in found.items()}):
            return {number: np.concatenate(blocks) for number, blocks in found.items()}
    raise SystemExit(f"not enough rows: {collector.state()}")

settings = {"collectors": 4, "n_envs": 2, "seed": 3, "ring_rows": 64}
"""
SAME_ROWS = """
def enough(counts):
    return len(counts) == 4 and min(counts.values()) >= 300

made = {}
for on in (None, "ray"):
    with hotloop.collect(Counting, Echo, on=on, **settings) as collector:
        made[on] = gather(collector, enough)
        if on:
            nodes = collector.nodes()
            state = collector.state()
assert len(set(nodes.values())) == 2, nodes
assert sorted(nodes) == [0, 1, 2, 3]
for number, rows in made[None].items():
    assert rows[:300].tobytes() == made["ray"][number][:300].tobytes(), number
assert state.alive == 4 and not state.lost and not state.failures and not state.dropped
assert state.rows == sum(map(len, made["ray"].values())) and len(state.collector_busy_fractions) == 4
assert collector.state().rows == state.rows  # after close, too
print(json.dumps({"ok": True}))
"""
WEIGHTS = """
def versions(collector, wanted, control):
    until = time.time() + 120
    while time.time() < until:
        for rows in collector.take(5000, timeout_s=1.0):
            steps = rows[~rows["first"]]
            late = steps[steps["policy_version"] == wanted]
            for number in np.unique(late["collector"]):
                seen.setdefault((wanted, int(number)), set()).update(late["action"].tolist())
        collector.release()
        low = 10 * wanted + control
        if all({low, low + 1} <= seen.get((wanted, n), set()) for n in range(4)):
            return
    raise SystemExit(f"{seen} {collector.state()}")

seen = {}
with hotloop.collect(Counting, Echo, on="ray", n_weights=1, **settings) as collector:
    assert not sum(map(len, collector.take(10, timeout_s=0.5)))  # actors wait for the first weights
    assert collector.publish(np.array([10], np.float32), control=100.0) == 1
    versions(collector, 1, 100)
    for _ in range(50):  # faster than nodes can take them: the newest one counts
        collector.publish(np.array([0], np.float32))
    assert collector.publish(np.array([520], np.float32), control=0.0) == 52
    versions(collector, 52, 0)
    time.sleep(2)  # nobody takes anything: rings fill up, and collectors wait
    state = collector.state()
    assert not state.dropped and state.published_version == 52
    for _ in range(30):
        collector.take(100_000, timeout_s=1.0)
    assert collector.state().collector_wait_s > 0
    try:
        collector.publish(np.zeros(3, np.float32))
    except HotloopError as error:
        assert "n_weights=1" in str(error)
print(json.dumps({"ok": True}))
"""
LOST = """
logged = []
settings |= {"collectors": 6, "log": logged.append}
with hotloop.collect(Counting, Echo, on="ray", **settings) as collector:
    before = gather(collector, lambda counts: len(counts) == 6 and min(counts.values()) >= 200)
    nodes = collector.nodes()
    print(json.dumps(nodes), flush=True)
    gone = json.loads(sys.stdin.readline())
    mine = [number for number, node in nodes.items() if node == gone]
    def has_moved(counts):
        return all(collector.nodes()[n] != gone for n in mine) and min(counts.get(n, 0) for n in mine) >= 3000
    after = gather(collector, has_moved, 300)
    state = collector.state()
for number in range(6):
    rows = np.concatenate([before[number], after[number]])
    assert len(np.unique(rows["sequence"])) == len(rows), number  # nothing twice
    missing = int(rows["sequence"].max()) + 1 - len(rows)
    assert (missing == 0 or number in mine), (number, missing)
    assert set(rows["life"]) == ({0, 1} if number in mine else {0})
    if number in mine:  # another seed
        first, second = (rows[rows["life"] == life] for life in (0, 1))
        assert first["frame"][0, 0] != second["frame"][0, 0] and second["first"][0]
ends = [int(after[n]["sequence"].max()) + 1 for n in mine]
lost = sum(ends) - sum(len(before[n]) + len(after[n]) for n in mine)
assert state.lost == lost, (state.lost, lost)
assert state.alive == 6 and state.restarts == len(mine) and len(state.failures) == len(mine)
assert all("was lost with node" in failure.what for failure in state.failures)
assert sum("begin a new life on node" in line for line in logged) == 1
print(json.dumps({"lost": lost}))
"""
KILLED = """
import os, signal, psutil

def collectors():
    named = [p for p in psutil.process_iter(["cmdline"]) if "spawn_main" in " ".join(p.info["cmdline"] or [])]
    return [p.pid for p in named if any("HotloopCollectors" in " ".join(q.cmdline()) for q in p.parents())]

logged = []
settings["log"] = logged.append
with hotloop.collect(Counting, Echo, on="ray", **settings) as collector:
    rows = gather(collector, lambda counts: len(counts) == 4 and min(counts.values()) >= 100)
    pids = collectors()
    assert len(pids) == 4, pids
    os.kill(pids[0], signal.SIGKILL)
    def restarted(counts):
        return collector.state().restarts == 1 and collector.state().alive == 4
    gather(collector, restarted)
    state = collector.state()
    assert state.lost == 0 and "SIGKILL" in state.failures[0].what, state
    assert any("restarted with a new seed" in line for line in logged)
    print(json.dumps(collectors()), flush=True)
    while True:
        collector.take(1000)
"""
BAD = """
class Broken(Counting):
    def step(self, action):
        raise ValueError("a bad env")

try:
    with hotloop.collect(Broken, Echo, on="ray", log=lambda line: None, **settings) as collector:
        gather(collector, lambda counts: False)
except HotloopError as error:
    assert "ended 3 times in a row without a step" in str(error) and "a bad env" in str(error), error
for on, says in (("ray://127.0.0.1:1", "nothing listens there"), ("slurm", "write ray for the cluster")):
    try:
        hotloop.collect(Counting, Echo, on=on)
    except HotloopError as error:
        assert says in str(error), error
    else:
        raise AssertionError(on)
print(json.dumps({"ok": True}))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    made = RayCluster()
    try:
        made.add("far", tmp_path_factory.mktemp("far"))
        yield made
    finally:
        made.close()


def start(cluster: RayCluster, folder: Path, script: str) -> subprocess.Popen[str]:
    file = folder / "collect_rows.py"
    body = textwrap.indent(script, "    ")
    file.write_text(f"{COMMON}\nif __name__ == '__main__':\n{body}")
    return subprocess.Popen(
        [sys.executable, str(file)],
        env=environment("auto", RAY_ADDRESS=cluster.address, **PATIENT),
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str], said: str = "") -> Any:
    try:
        out, err = process.communicate(said, timeout=500)
    finally:
        process.kill()
    assert process.returncode == 0, out + err
    return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize("script", [SAME_ROWS, WEIGHTS, BAD], ids=["same rows", "weights", "bad input"])
def test_collectors_on_nodes_are_those_in_processes(cluster: RayCluster, tmp_path: Path, script: str) -> None:
    assert ended(start(cluster, tmp_path, script)) == {"ok": True}


def test_collectors_of_a_lost_node_begin_a_new_life_and_lost_rows_are_counted(
    cluster: RayCluster, tmp_path: Path
) -> None:
    doomed = cluster.add("doomed", tmp_path)
    process = start(cluster, tmp_path, LOST)
    assert process.stdout is not None
    nodes = json.loads(process.stdout.readline() or "{}")
    assert doomed in nodes.values(), process.communicate()
    cluster.ask("kill", "doomed")
    assert ended(process, json.dumps(doomed) + "\n")["lost"] >= 0


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "killed"])
def test_a_killed_collector_is_restarted_and_none_outlives_the_learner(
    cluster: RayCluster, tmp_path: Path, how: signal.Signals
) -> None:
    process = start(cluster, tmp_path, KILLED)
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    pids = json.loads(next((line for line in lines if line.startswith("[")), "[]"))  # Ray prints there, too
    assert len(pids) == 4, process.communicate()
    process.send_signal(how)
    process.communicate(timeout=120)
    deadline = time.monotonic() + 120
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(map(psutil.pid_exists, pids))


def test_mario_trains_with_collectors_on_the_cluster(cluster: RayCluster, tmp_path: Path) -> None:
    words = "train mario --on ray --total-timesteps 1500 --n-collectors 2 --envs-per-collector 4"
    done = subprocess.run(
        [sys.executable, "-m", "hotloop", *words.split(), "--capture", "run", "--n-eval-episodes", "0"],
        env=environment("auto", RAY_ADDRESS=cluster.address, **PATIENT),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Drops: 0" in done.stdout + done.stderr
