"""`hotloop run` of a script with Ray Train: two ranks on two nodes, reports, checkpoints, all-reduces."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotloop.analysis.categories import Resolver
from hotloop.analysis.roles import find_parts
from hotloop.capture.model import Process, merged
from hotloop.capture.open_capture import open_capture
from hotloop.capture.stats import by_name
from tests.processes.library_runs import needs
from tests.processes.ray_cluster import PATIENT, RayCluster
from tests.processes.scripts import environment

pytestmark = [needs("ray", "pyarrow", "pandas", "torch"), pytest.mark.long]

SCRIPT = """
import json, os, sys, tempfile
import ray, torch
import ray.train.torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def train(config):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = ray.train.torch.prepare_model(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    rank = ray.train.get_context().get_world_rank()
    for step in range(config["steps"]):
        loss = model(torch.randn(16, 8)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        torch.distributed.all_reduce(mean)
        if step % 5 == 4:
            with tempfile.TemporaryDirectory() as folder:
                torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
                saved = Checkpoint.from_directory(folder) if rank == 0 else None
                ray.train.report({"step": step, "loss": float(mean)}, checkpoint=saved)

ray.init(logging_level="error")
trainer = TorchTrainer(
    train,
    train_loop_config={"steps": 20},
    scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
    run_config=RunConfig(storage_path=sys.argv[1], name="run"),
)
result = trainer.fit()
print(json.dumps({"step": result.metrics["step"]}))
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RayCluster]:
    made = RayCluster()
    try:
        (tmp_path / "far").mkdir()
        made.add("far", tmp_path / "far")
        yield made
    finally:
        made.close()


def test_ranks_reports_checkpoints_and_all_reduces(cluster: RayCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "hotloop", "run", "--capture", "run", "train.py", str(tmp_path / "results")],
        env=environment("auto", RAY_ADDRESS=cluster.address, OMP_NUM_THREADS="1", **PATIENT),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert said == {"step": 19}
    capture = open_capture(str(tmp_path / "run"))

    def calls(process: Process) -> dict[str, int]:
        return {name: node.calls for name, node in by_name(merged(process.threads)).items()}

    ranks = {p.origin.rank: p for p in capture.processes if p.origin.world_size == 2}
    assert set(ranks) == {0, 1} and len({p.origin.node for p in ranks.values()}) == 2
    for rank, process in ranks.items():
        found = calls(process)
        assert found["train_report"] == 4
        assert found.get("checkpoint", 0) >= (8 if rank == 0 else 4)  # torch.save, and the report
        assert found["backward"] == found["optimizer_step"] == 20
        assert found["all_reduce"] >= 20
        assert sum(thread.progress.updates for thread in process.threads) == 20
    parts = [part for part in find_parts(capture, Resolver()) if part.kind == "rank"]
    assert {part.rank for part in parts} == {0, 1}
    driver = next(p for p in capture.processes if p.origin.ray == "driver")
    assert calls(driver)["train_fit"] == 1
