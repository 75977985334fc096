"""`hotloop run` of an RLlib script on a real cluster of two nodes: counts are RLlib's own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotloop.capture.model import Process, merged
from hotloop.capture.open_capture import open_capture
from hotloop.capture.stats import by_name
from tests.processes.library_runs import needs
from tests.processes.ray_cluster import PATIENT, RayCluster
from tests.processes.scripts import environment

pytestmark = [needs("ray", "tree", "lz4", "ormsgpack", "pyarrow", "torch"), pytest.mark.long]

SCRIPT = """
import json, ray
from ray.rllib.algorithms.ppo import PPOConfig

if __name__ == "__main__":
    ray.init(log_to_driver=False)
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=2, num_envs_per_env_runner=2, num_cpus_per_env_runner=0.5)
        .learners(num_learners=1, num_cpus_per_learner=0.5)
        .training(train_batch_size_per_learner=200, minibatch_size=50, num_epochs=2)
        .evaluation(evaluation_interval=2, evaluation_num_env_runners=1, evaluation_duration=2)
        .resources(num_cpus_for_main_process=0)
    )
    config.evaluation_config = {"num_cpus_per_env_runner": 0}
    algorithm = config.build_algo()
    for _ in range(4):
        result = algorithm.train()
    runners, learners = result["env_runners"], result["learners"]
    print(json.dumps({
        "env_steps": runners["num_env_steps_sampled_lifetime"],
        "episodes": runners["num_episodes_lifetime"],
        "samples": learners["default_policy"]["num_module_steps_trained_lifetime"],
        "evaluated": result["evaluation"]["env_runners"]["num_env_steps_sampled_lifetime"],
    }), flush=True)
    algorithm.stop()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    made = RayCluster()
    try:
        made.add("far", tmp_path_factory.mktemp("far"))
        yield made
    finally:
        made.close()


def test_env_steps_episodes_and_updates_are_those_that_rllib_counts(
    cluster: RayCluster, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "hotloop", "run", "--capture", "run", "train.py"],
        env=environment("auto", RAY_ADDRESS=cluster.address, OMP_NUM_THREADS="1", **PATIENT),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    capture = open_capture(str(tmp_path / "run"))
    assert capture.progress.env_steps == said["env_steps"] > 0
    assert capture.progress.episodes == said["episodes"]
    assert capture.progress.updates * 50 == said["samples"] > 0
    assert said["evaluated"] > 0  # these are in no count

    def calls(process: Process) -> dict[str, int]:
        return {name: node.calls for name, node in by_name(merged(process.threads)).items()}

    driver, *workers = [calls(process) for process in capture.processes]
    assert driver["training_step"] == driver["sample_env_runners"] == driver["update_learners"] == 4
    assert driver["weights_sync"] >= 4
    runners = [found for found in workers if "collect_rollouts" in found]
    assert len(runners) == 2
    for runner in runners:
        assert runner["env_step"] == runner["policy_forward"] == runner["ModuleToEnvPipeline"]
        assert runner["connector"] == runner["ModuleToEnvPipeline"] + runner["EnvToModulePipeline"]
        assert runner["weights_sync"] >= 4
    (learner,) = [found for found in workers if "learner_update" in found]
    assert learner["learner_update"] == learner["LearnerConnectorPipeline"] == 4
    assert learner["loss"] == learner["optimizer_step"] == capture.progress.updates
    (evaluating,) = [found for found in workers if "evaluate" in found]
    assert "collect_rollouts" not in evaluating and evaluating["evaluate"] >= 2
    labels = {p.label for p in capture.processes}
    assert "PPOTorchLearner" in labels and not any("_Wrapped" in label for label in labels)
    names = {n for p in capture.processes for thread in p.threads for n in by_name(thread.root)}
    assert not any("_Wrapped" in name for name in names)
