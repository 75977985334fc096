"""`hotloop train petri --on ray --learners N` on a real cluster: the numbers of one learner."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from hotloop.capture.reader import load
from hotloop.rl.train.runs import Checkpoint, load_checkpoint
from tests.processes.ray_cluster import PATIENT, RayCluster, needs_ray
from tests.processes.scripts import environment

pytestmark = [needs_ray, pytest.mark.long]

SETTINGS = "--wafers 2 --n-envs 8 --n-steps 64 --batch-size 128 --net-arch 16 --learner torch"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    made = RayCluster()
    try:
        made.add("far", tmp_path_factory.mktemp("far"))
        yield made
    finally:
        made.close()


def start(folder: Path, words: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hotloop", "train", "petri", *SETTINGS.split(), *words.split()],
        env=environment("auto", **variables),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def on_cluster(cluster: RayCluster, folder: Path, words: str) -> subprocess.Popen[str]:
    return start(folder, f"--on ray {words}", RAY_ADDRESS=cluster.address, **PATIENT)


def ended(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=500)
    assert process.returncode == 0, said
    return said


def assert_same_agent(one: Checkpoint, other: Checkpoint) -> None:
    for name in ("env_steps", "updates", "episodes"):
        assert one.state[name] == other.state[name], name
    for name, array in one.part("learner").items():
        np.testing.assert_allclose(array, other.part("learner")[name], atol=1e-5, err_msg=name)
    for name, array in one.part("rollout").items():
        np.testing.assert_array_equal(array, other.part("rollout")[name], err_msg=name)


def alone(folder: Path, words: str) -> Checkpoint:
    ended(start(folder, f"{words} --no-profiling --checkpoint alone"))
    return load_checkpoint(folder / "alone")


def test_two_learners_on_two_nodes_make_the_agent_of_one(cluster: RayCluster, tmp_path: Path) -> None:
    words = "--total-timesteps 5120"
    said = ended(on_cluster(cluster, tmp_path, f"{words} --learners 2 --checkpoint agent --capture run"))
    assert "learners: 2 on 2 nodes of Ray (torch)" in said
    assert_same_agent(load_checkpoint(tmp_path / "agent"), alone(tmp_path, words))
    progress = load(tmp_path / "run").progress  # both learners are recorded, nothing twice
    assert (progress.env_steps, progress.updates) == (5120, 160)
    # It goes on with another number of learners.
    more = "--total-timesteps 7168"
    ended(on_cluster(cluster, tmp_path, f"{more} --learners 1 --checkpoint agent --resume --no-profiling"))
    assert_same_agent(load_checkpoint(tmp_path / "agent"), alone(tmp_path, more))


def learners() -> list[psutil.Process]:
    found = psutil.process_iter(["cmdline"])
    return [p for p in found if "ray::HotloopLearner" in " ".join(p.info["cmdline"] or [])]


@pytest.mark.parametrize("what", ["node", "learner"])
def test_training_goes_on_from_the_checkpoint_when_a_learner_is_lost(
    cluster: RayCluster, tmp_path: Path, what: str
) -> None:
    cluster.add(f"doomed_{what}", tmp_path)
    words = "--total-timesteps 51200"
    process = on_cluster(
        cluster,
        tmp_path,
        f"{words} --learners 3 --checkpoint agent --checkpoint-every-steps 2048 --capture run",
    )
    wait_for(lambda: (tmp_path / "agent").exists(), process)
    if what == "node":
        cluster.ask("kill", f"doomed_{what}")
    else:
        learners()[0].kill()
    said = ended(process)
    assert "lost learner" in said and "all learners start again from" in said
    assert "3 learners train again, on nodes" in said
    assert "learners: 3 on 2 nodes of Ray" in said
    assert_same_agent(load_checkpoint(tmp_path / "agent"), alone(tmp_path, words))
    facts = load(tmp_path / "run").facts
    figures: dict[str, Any] = facts["figures"]
    assert figures["learner_losses"] == 1 and figures["env_steps_made_again"] >= 0
    assert figures["seconds_without_learners"] > 0
    if what == "learner":
        cluster.ask("kill", f"doomed_{what}")


def test_ctrl_c_keeps_the_agent(cluster: RayCluster, tmp_path: Path) -> None:
    words = "--total-timesteps 10000000 --learners 2 --checkpoint agent --checkpoint-every-steps 2048"
    process = on_cluster(cluster, tmp_path, f"{words} --no-profiling")
    wait_for(lambda: (tmp_path / "agent").exists(), process)
    process.send_signal(2)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 130 and "stopped by SIGINT; kept: the agent in agent" in said, said
    assert load_checkpoint(tmp_path / "agent").state["env_steps"] > 2048


def wait_for(happened: Any, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not happened():
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.1)
