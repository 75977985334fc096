"""`hotloop run` of scripts that use Ray, on a real cluster of two nodes that share no folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hotloop
from hotloop._util import HOTLOOP_VERSION
from hotloop.analysis.ray_waits import actor_starts, task_waits
from hotloop.capture.model import Capture, Process
from hotloop.capture.open_capture import open_capture
from hotloop.capture.reader import NOT_YET
from hotloop.capture.stats import by_name
from hotloop.capture.summary import load_summary
from hotloop.instrument.ray_hook import Settings
from hotloop.workflows.run import begin_capture, recording_environment
from tests.processes.library_runs import needs
from tests.processes.ray_cluster import DASHBOARD, PATIENT, RayCluster, needs_ray
from tests.processes.scripts import environment

pytestmark = needs_ray

SCRIPT = """
import json, os, ray, sys, time

def users_hook():
    os.environ["USERS_HOOK"] = "ran"

mine = {"env_vars": {"USERS": "mine"}, "worker_process_setup_hook": users_hook}
ray.init(runtime_env=mine, logging_level="error")

@ray.remote(num_cpus=0)
class Runner:
    def __init__(self):
        self.ready = True

    def sample(self, size):
        sum(i * i for i in range(20_000))
        return bytes(size)

    def about(self):
        return [os.environ.get("USERS"), os.environ.get("USERS_HOOK"), os.getpid()]

@ray.remote(num_cpus=0)
def double(x):
    return 2 * x

@ray.remote(num_cpus=0)
def numbers(count):
    for i in range(count):
        yield ray.get(ray.put(i))

runners = [Runner.options(resources={place: 1}).remote() for place in ("near", "far")]
for _ in range(20):
    ray.get([runner.sample.remote(1000) for runner in runners])
ready, _ = ray.wait([runners[0].about.remote()])
assert ray.get(ray.put(b"x" * 100_000)) == b"x" * 100_000
assert ray.get([double.remote(i) for i in range(5)]) == [0, 2, 4, 6, 8]
assert [ray.get(object_refs=result) for result in numbers.remote(3)] == [0, 1, 2]
print(json.dumps(ray.get([runner.about.remote() for runner in runners])), flush=True)
until = time.time() + float(sys.argv[1])
while time.time() < until:
    ray.get([runner.sample.remote(10) for runner in runners])
    time.sleep(0.05)
"""


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    made = RayCluster()
    try:
        yield made
    finally:
        made.close()


def start(cluster: RayCluster, into: Path, script: str, *words: str, **more: str) -> subprocess.Popen[str]:
    file = into.with_suffix(".py")
    file.write_text(textwrap.dedent(script))
    env = recording_environment(into, environment("auto", RAY_ADDRESS=cluster.address, **PATIENT, **more))
    return subprocess.Popen(
        [sys.executable, str(file), *words],
        env=env,
        cwd=into.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, out + err
    return out, err


def complaints(err: str) -> list[str]:
    """Lines of hotloop, without the one that says on a busy machine what it waits for at the end."""
    ours = [line for line in err.splitlines() if line.startswith("hotloop: ")]
    return [line for line in ours if "waiting for what other nodes recorded" not in line]


def of_actor(capture: Capture, node: str | None = None) -> list[Process]:
    return [
        p
        for p in capture.processes
        if p.origin is not None and p.origin.actor == "Runner" and node in (None, p.origin.node)
    ]


def known(capture: Capture) -> list[Process]:
    """Processes that have said what they are: Ray may end a spare worker while it joins."""
    return [p for p in capture.processes if p.origin is not None]


def calls(process: Process) -> dict[str, int]:
    total: dict[str, int] = {}
    for thread in process.threads:
        for name, stats in by_name(thread.root).items():
            total[name] = total.get(name, 0) + stats.calls
    return total


JOIN = """
import asyncio, json, sys
from concurrent.futures import ThreadPoolExecutor
import ray
from hotloop.instrument.ray_hook import worker_hook
worker_hook(json.loads(sys.argv[1]), lambda: print("mine"))()
manager = ray._private.worker.global_worker.function_actor_manager
class Runner:
    def sample(self, size):
        return 2 * size
run = manager._make_actor_method_executor("sample", Runner.sample)
assert [run(Runner(), i) for i in range(5)] == [0, 2, 4, 6, 8]
assert run.name == "sample" and run.method is Runner.sample

class Agent:
    def steps(self, count):
        yield from range(count)
    async def think(self):
        return "thought"
run = manager._make_actor_method_executor("steps", Agent.steps)
assert list(run(Agent(), 3)) == [0, 1, 2]
run = manager._make_actor_method_executor("think", Agent.think)
assert asyncio.run(run(Agent())) == "thought"
run = manager._make_actor_method_executor("sample", Runner.sample)
with ThreadPoolExecutor(1) as pool:  # as an actor with max_concurrency has
    assert list(pool.map(lambda i: run(Runner(), i), range(3))) == [0, 2, 4]
"""


@pytest.mark.long
def test_a_worker_joins_by_the_hook_and_records_what_it_runs(tmp_path: Path) -> None:
    """Without a cluster: the hook in a process that has loaded Ray, as a worker has."""
    run_id = begin_capture(tmp_path / "run", ["train.py"])
    settings = Settings(
        capture=str(tmp_path / "run"),
        run_id=run_id,
        options={},
        entry="hotloop.instrument.bootstrap:join_from_elsewhere",
        home="/nowhere",
        version=HOTLOOP_VERSION,
    )
    done = subprocess.run(
        [sys.executable, "-c", JOIN, json.dumps(settings)],
        env=environment("auto", **PATIENT),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "mine\n", "")
    (worker,) = hotloop.load(tmp_path / "run").processes
    assert worker.origin.ray == "worker" and worker.label == "Ray worker"
    found = calls(worker)
    assert (found["Runner.sample"], found["Agent.steps"], found["Agent.think"]) == (5 + 3, 1, 1)
    assert found["ray_task"] == 5 + 1 + 1 + 3
    main, other = sorted(worker.threads, key=lambda thread: thread.native_id != worker.pid)[:2]
    idle = [sum(n.calls for n in thread.root.children if n.name == "ray_idle") for thread in (main, other)]
    assert idle == [5 + 1, 2]  # and once more, still open, in each; coroutines wait in their event loop


@pytest.mark.long
def test_a_job_on_two_nodes_is_recorded_whole(cluster: RayCluster, tmp_path: Path) -> None:
    cluster.add("far", tmp_path / "far")
    out, err = ended(start(cluster, tmp_path / "run", SCRIPT, "0"))
    assert complaints(err) == []
    capture = open_capture(str(tmp_path / "run"))
    check_who_joined(capture, json.loads(out))
    check_counts(capture)
    for runner in of_actor(capture):  # a worker without a task waits
        thread = max(runner.threads, key=lambda t: t.wall_ns)
        spent = {node.name: node.total_ns for node in thread.root.children}
        assert spent["ray_idle"] + spent["ray_task"] > 0.9 * thread.wall_ns
    clock = capture.nodes[1].clock
    assert clock and clock[-1][1:] == (0, 0)  # nodes of one computer have one clock
    assert not list((tmp_path / "far").glob("hotloop-*/parts/*"))  # all has come


def check_who_joined(capture: Capture, about: list[list[Any]]) -> None:
    assert [words[:2] for words in about] == [["mine", "ran"]] * 2  # the user's own settings still hold
    driver, far = capture.nodes
    assert driver.driver and not far.driver and not far.shared and far.complete and far.received_bytes
    roles = sorted(p.origin.ray for p in known(capture))
    assert roles[0] == "driver" and set(roles[1:]) == {"worker"}  # no daemon, and not our own actor
    near, there = of_actor(capture, driver.node) + of_actor(capture, far.node)
    assert {near.pid, there.pid} == {words[2] for words in about}
    assert (near.label, there.label) == ("Runner", "Runner")
    assert not any("Courier" in p.label for p in capture.processes)
    assert not [text for text in capture.warnings if not text.endswith(NOT_YET)]


def check_counts(capture: Capture) -> None:
    main = next(p for p in known(capture) if p.origin is not None and p.origin.ray == "driver")
    found = calls(main)
    assert found["wait for Runner.sample"] == 20
    assert found["wait for double"] == 1
    assert found["wait for Runner.about"] == 2  # ray.wait and ray.get
    # Ray itself waits for results of a generator that are not there yet, and asks for what it ended with.
    waited, got = found["ray_wait"] - 1, found["ray_get"] - (20 + 1 + 1 + 1)
    assert got >= 3 and found["wait for numbers"] == waited + got
    assert found["ray_put"] == 1
    assert found["ray_submit"] == 2 * 20 + 1 + 5 + 1 + 2
    put = next(n for t in main.threads for n in t.root.children if n.name == "ray_put")
    assert put.children[0].name == "ray_serialize" and 100_000 <= put.children[0].bytes_moved < 101_000
    for runner in of_actor(capture):
        assert calls(runner)["Runner.sample"] == 20
        assert calls(runner)["Runner.__init__"] == 1
    assert sum(calls(p).get("double", 0) for p in capture.processes) == 5
    threads = [thread for p in capture.processes for thread in p.threads]
    tasks = [task for thread in threads for task in thread.root.children if task.name == "ray_task"]
    (generating,) = [node for task in tasks for node in task.children if node.name == "numbers"]
    inside = {node.name: node.calls for node in generating.children}  # what a generator does is in its task
    assert (generating.calls, inside["ray_put"], inside["ray_get"]) == (1, 3, 3)
    waits = {one.name: one for one in task_waits(capture)}
    # Each worker has saved its first 16 times at once; a task begins after the call that submits it.
    assert waits["Runner.sample"].known >= 10 and waits["Runner.sample"].median_ns > 0
    (starts,) = actor_starts(capture)
    assert (starts.name, starts.known) == ("Runner", 2) and 0 < starts.init_median_ns < starts.median_ns


def check_top(capture: Path, node: str) -> None:
    """`hotloop top` shows the node, its processes, and how old that is."""
    words = [sys.executable, "-m", "hotloop", "top", str(capture), "--json", "--iterations", "1"]
    done = subprocess.run(
        words, env=environment("auto"), capture_output=True, text=True, timeout=100, check=True
    )
    seen = json.loads(done.stdout.splitlines()[0])
    (found,) = [one for one in seen["nodes"] if one["name"] == node and one["age_ns"]]
    assert found["state"] == "recorded" and found["running"] >= 1 and found["age_ns"] > 0
    assert "Runner" in {p["label"] for p in seen["processes"] if p["node"] == node}


@pytest.mark.long
def test_news_of_a_node_come_while_it_runs_and_stay_when_it_is_lost(
    cluster: RayCluster, tmp_path: Path
) -> None:
    node = cluster.add("doomed", tmp_path / "disk")
    script = SCRIPT.replace('"far"', '"doomed"').replace(
        "    ray.get([runner.sample.remote(10) for runner in runners])\n",
        "    ray.get(runners[0].sample.remote(10))\n",
    )
    process = start(cluster, tmp_path / "run", script, "20")
    assert process.stdout is not None and process.stdout.readline()  # from here on the node is not needed
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.5)
        if not (tmp_path / "run" / "capture.json").exists():
            continue
        capture = hotloop.load(tmp_path / "run")
        far = [n for n in capture.nodes if not n.driver and n.node == node]
        if far and (runners := of_actor(capture, node)) and calls(runners[0]).get("Runner.about"):
            assert runners[0].alive  # as the node says
            check_top(tmp_path / "run", far[0].name)
            break
    else:
        raise AssertionError(f"no news came: {process.communicate()}")
    cluster.ask("kill", "doomed")
    _, err = ended(process)
    capture = hotloop.load(tmp_path / "run")
    (runner,) = of_actor(capture, node)
    assert calls(runner)["Runner.sample"] == 20
    assert not runner.alive
    assert any("was lost: what it recorded after" in text for text in capture.warnings), (
        capture.warnings,
        err,
    )


@pytest.mark.long
def test_nodes_without_hotloop_or_with_another_version_are_named_and_train_on(
    cluster: RayCluster, tmp_path: Path
) -> None:
    bare, other = tmp_path / "bare" / "hotloop", tmp_path / "other" / "hotloop"
    bare.mkdir(parents=True)
    (bare / "__init__.py").write_text("raise ImportError('not here')")
    shutil.copytree(Path(hotloop.__file__).parent, other, ignore=shutil.ignore_patterns("__pycache__"))
    version = other / "_util" / "__init__.py"
    version.write_text(version.read_text().replace(HOTLOOP_VERSION, "0.0.9"))
    cluster.add("far", tmp_path / "disk", bare.parent)
    cluster.add("third", tmp_path / "disk", other.parent)
    script = SCRIPT.replace('("near", "far")', '("near", "far", "third")')
    out, err = ended(start(cluster, tmp_path / "run", script, "8"))
    about = json.loads(out)
    assert [words[:2] for words in about] == [["mine", "ran"]] * 3  # all trained
    assert "is not recorded: hotloop cannot be imported there: not here" in err
    assert f"is not recorded: it has hotloop 0.0.9, the driver {HOTLOOP_VERSION}" in err
    capture = open_capture(str(tmp_path / "run"))
    assert [p.pid for p in of_actor(capture)] == [about[0][2]]
    assert sum("is not recorded: " in warning for warning in capture.warnings) == 2


@pytest.mark.long
def test_a_node_sends_a_summary_of_its_processes(cluster: RayCluster, tmp_path: Path) -> None:
    cluster.add("far", tmp_path / "far")
    process = start(cluster, tmp_path / "run", SCRIPT, "0", HOTLOOP_SUMMARY_ABOVE="0")
    ended(process)
    capture = open_capture(str(tmp_path / "run"))
    far = next(node for node in capture.nodes if not node.driver)
    assert far.folded >= 1 and far.complete and not of_actor(capture, far.node)
    assert any("sent one summary of its" in warning for warning in capture.warnings)
    assert any(role.name == "Runner" and role.members == 1 for role in capture.folded)
    done = subprocess.run(
        [sys.executable, "-m", "hotloop", "merge", "--summary", "run", "--capture", "all"],
        cwd=tmp_path,
        env=environment("auto"),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    role = load_summary(tmp_path / "all" / "summary.json").roles["Runner"]
    assert role.members == 2 and by_name(role.tree)["Runner.sample"].calls == 40


@pytest.mark.long
@needs("aiohttp", "opencensus")  # of ray[default]: without them, Ray's agent takes no jobs
def test_a_job_that_was_submitted_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "train.py").write_text(SCRIPT)
    cluster = RayCluster(**{DASHBOARD: "1"})
    try:
        cluster.add("far", tmp_path / "far")
        words = [
            "job",
            "submit",
            "--address",
            cluster.dashboard,
            "--",
            sys.executable,
            "-m",
            "hotloop",
            "run",
        ]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "ray.scripts.scripts",
                *words,
                "--capture",
                str(tmp_path / "run"),
                str(tmp_path / "train.py"),
                "0",
            ],
            env=environment("auto", **PATIENT),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
    finally:
        cluster.close()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "succeeded" in done.stdout + done.stderr
    capture = open_capture(str(tmp_path / "run"))
    about = json.loads(next(line for line in done.stdout.splitlines() if line.startswith('[["mine"')))
    check_who_joined(capture, about)
    check_counts(capture)
