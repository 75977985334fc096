"""`hotloop compare --on ray` and `hotloop lab run --on ray` on a real cluster whose nodes share no folder."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from hotloop.capture.series import Run, read
from tests.processes.ray_cluster import PATIENT, RayCluster, needs_ray
from tests.processes.scripts import environment

pytestmark = [needs_ray, pytest.mark.long]

SCRIPT = """
import sys, time
from pathlib import Path
import hotloop

assert Path("data/words.txt").read_text() == "some data"
Path("made-by-a-run").touch()
for _ in range(30):
    with hotloop.profile("env_step"):
        time.sleep(float(sys.argv[1]) / 1000)
    hotloop.progress(env_steps=1)
"""
PLAN = """
name = "steps"
command = "python train.py {ms}"
budget = "5m"
looks = [5, 8]
resources = { CPU = 1 }

[[suspects]]
name = "short"
set = { ms = 2 }

[[suspects]]
name = "long"
set = { ms = 20 }
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    made = RayCluster()
    try:
        made.add("far", tmp_path_factory.mktemp("far"))
        yield made
    finally:
        made.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A working folder with a file that every run reads."""
    (tmp_path / "project" / "data").mkdir(parents=True)
    (tmp_path / "project" / "data" / "words.txt").write_text("some data")
    (tmp_path / "project" / "train.py").write_text(SCRIPT)
    return tmp_path / "project"


def start(
    cluster: RayCluster, project: Path, *words: str, on: tuple[str, ...] = ("--on", "ray")
) -> subprocess.Popen[str]:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    return subprocess.Popen(
        [sys.executable, "-m", "hotloop", *words, *on],
        cwd=project,
        env=environment("auto", RAY_ADDRESS=cluster.address, PATH=path, **PATIENT),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    try:
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == code, out + err
    return out, err


def training(folder: Path) -> list[int]:
    """Runs of our script in this folder, or below it, that are under way, whoever started them."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words, here = process.info["cmdline"] or [], process.info["cwd"]
        if "train.py" in words and "hotloop" not in words and here and Path(here).is_relative_to(folder):
            found.append(process.pid)
    return found


def wait_until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if holds():
            return
        time.sleep(0.1)
    raise AssertionError(f"{what} did not happen")


def by_block(runs: tuple[Run, ...]) -> dict[int, list[Run]]:
    found: dict[int, list[Run]] = {}
    for run in runs:
        found.setdefault(run.block, []).append(run)
    return found


def test_pairs_are_spread_over_nodes_and_both_runs_are_made_on_one(
    cluster: RayCluster, project: Path
) -> None:
    words = ("compare", "--a", "python train.py 2", "--b", "python train.py 30", "--budget", "5m")
    out, err = ended(start(cluster, project, *words, "--series", "../runs", "--json"))
    found = json.loads(out)
    assert found["compared"][0]["verdict"]["word"] == "slower"
    series = read(project.parent / "runs")
    nodes = {run.node for run in series.runs}
    assert len(nodes) == 2 and nodes == set(series.facts["nodes"]) == {row["node"] for row in found["nodes"]}
    for runs in by_block(series.runs).values():
        assert {run.variant for run in runs} == {"A", "B"} and len({run.node for run in runs}) == 1
    for run in series.runs:
        assert run.ok and run.has_capture and run.figures.env_steps == 30 and run.at_once == 2
        assert run.before["at_s"] < run.after["at_s"]
    assert "runs on 2 nodes" in err
    assert (project / "made-by-a-run").exists()  # by the node that shares the folder


def test_a_plan_is_run_and_its_resources_choose_the_nodes(cluster: RayCluster, project: Path) -> None:
    (project / "plan.toml").write_text(PLAN.replace("CPU = 1", "far = 1").replace("{ms}", "5"))
    out, _ = ended(start(cluster, project, "lab", "run", "plan.toml", "--series", "../runs"))
    assert "All runs on node" in out and "long" in out
    series = read(project.parent / "runs")
    assert len({run.node for run in series.runs}) == 1 and all(run.has_capture for run in series.runs)
    assert not (project / "made-by-a-run").exists()  # the node has a copy of the folder
    _, err = ended(start(cluster, project, "lab", "run", "plan.toml", "--series", "../runs", "--resume"))
    assert "Decided" in err or "maximum" in err


def test_a_pair_of_a_lost_node_is_made_again_elsewhere(
    cluster: RayCluster, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "doomed").mkdir()
    cluster.add("doomed", tmp_path / "doomed")
    words = ("compare", "--a", "python train.py 10", "--b", "python train.py 100", "--budget", "5m")
    process = start(cluster, project, *words, "--series", "../runs")
    runs = project.parent / "runs"

    wait_until(lambda: training(tmp_path / "doomed"), "a run on the node")
    cluster.ask("kill", "doomed")
    _, err = ended(process)
    series = read(runs)
    (lost,) = series.failures
    assert lost.failure.startswith(f"node {lost.node} was lost: ") and lost.failure in err
    blocks = by_block(tuple(run for run in series.runs if run.ok))
    whole = [made for made in blocks.values() if len(made) == 2]
    assert len(whole) in (5, 8, 12) and all(len({run.node for run in made}) == 1 for made in whole)
    assert not any(run.node == lost.node and run.number > lost.number for run in series.runs)
    wait_until(lambda: not training(tmp_path), "the end of what ran on the lost node")


def test_ctrl_c_ends_the_runs_and_keeps_those_that_were_complete(
    cluster: RayCluster, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    places = tmp_path_factory.getbasetemp()
    words = ("compare", "--a", "python train.py 1", "--b", "python train.py 300", "--series", "../runs")
    process = start(cluster, project, *words)
    runs = project.parent / "runs" / "runs"
    wait_until(lambda: training(places) and any(runs.glob("*/run.json")), "a run")
    process.send_signal(signal.SIGINT)
    _, err = ended(process, 130)
    assert "--resume --on ray" in err
    assert not read(runs.parent).failures
    wait_until(lambda: not training(places), "the end of all runs")
    refused = [sys.executable, "-m", "hotloop", "compare", "--series", "../runs", "--resume"]
    done = subprocess.run(refused, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "was started on a cluster; add --on ray" in done.stderr


TUNED = """
import sys, time
import hotloop

n_envs = int(sys.argv[1])
while True:  # the lab ends it
    with hotloop.profile("env_step"):
        time.sleep(0.004)  # for all envs together
    hotloop.progress(env_steps=n_envs, updates=1)
"""


def test_settings_are_searched_on_one_node_and_compared_on_all(cluster: RayCluster, project: Path) -> None:
    (project / "train.py").write_text(TUNED)
    words = "tune --budget 90s --values n_envs=1,4 --no-threads --probes ../tuned --json --on ray"
    process = start(cluster, project, *words.split(), "--", "python", "train.py", "{n_envs=1}", on=())
    out, err = ended(process)
    found = json.loads(out)
    assert found["decision"] == {"all": "faster"}
    assert f"searching on node {found['node']}" in err and "runs on 2 nodes" in err
    probes = found["search"]["probes"]
    assert {probe["settings"]["n_envs"] for probe in probes} == {1, 4}
    assert not any(probe["failure"] for probe in probes)
    series = read(project.parent / "tuned" / "compare-all")
    assert {run.node for run in series.runs} == set(series.facts["nodes"])
    assert found["node"] in series.facts["nodes"]
    for runs in by_block(series.runs).values():
        assert len({run.node for run in runs}) == 1
    assert all(run.ok and run.has_capture for run in series.runs)


def test_a_workload_is_forked_on_its_node(cluster: RayCluster, project: Path) -> None:
    words = "tune petri --learner fused --n-envs 4 --budget 60s --resources far=1 --probes ../tuned --json"
    out, err = ended(start(cluster, project, *words.split()))
    found = json.loads(out)
    assert f"searching on node {found['node']}" in err and found["search"]["probes"]
    assert all(probe["s_per_unit"] for probe in found["search"]["probes"])
    assert (project.parent / "tuned" / "probes" / "000" / "outcome.json").exists()  # as the workload said it
    assert {file.name for file in project.iterdir()} == {"data", "train.py"}


def test_a_node_without_hotloop_is_named_before_anything_runs(
    cluster: RayCluster, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "path" / "hotloop").mkdir(parents=True)
    (tmp_path / "path" / "hotloop" / "__init__.py").write_text("raise ImportError('not here')")
    cluster.add("bare", tmp_path, tmp_path / "path")
    try:
        words = ("compare", "--a", "python train.py 1", "--b", "python train.py 2", "--series", "../runs")
        _, err = ended(start(cluster, project, *words), 2)
        assert "has no hotloop (not here); install hotloop" in err and len(err.strip().splitlines()) == 1
        assert not (project.parent / "runs").exists()
    finally:
        cluster.ask("kill", "bare")
