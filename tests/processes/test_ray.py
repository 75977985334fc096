"""A job, a comparison and collectors on one small Ray cluster; test_*_ray.py have the longer tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotloop.capture.open_capture import open_capture
from hotloop.capture.series import Run, read
from hotloop.lab.machine_lock import INSIDE_LAB
from tests.processes import test_collect_ray, test_run_ray
from tests.processes.ray_cluster import PATIENT, RayCluster, needs_ray
from tests.processes.scripts import environment

pytestmark = needs_ray

ROWS = """
settings["collectors"] = 2
with hotloop.collect(Counting, Echo, on="ray", log=lambda line: None, **settings) as collector:
    found = gather(collector, lambda counts: len(counts) == 2 and min(counts.values()) >= 200)
    nodes = collector.nodes()
for rows in found.values():  # in order, without a gap
    assert rows["sequence"].tolist() == list(range(len(rows))) and set(rows["life"]) == {0}
print(json.dumps(sorted(set(nodes.values()))))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """Two nodes of one CPU each; the second shares no folder with the first."""
    made = RayCluster(**{INSIDE_LAB: "1"})  # runs do not wait for those of other tests
    try:
        made.add("far", tmp_path_factory.mktemp("far"))
        yield made
    finally:
        made.close()


def test_a_job_on_two_nodes_is_recorded_whole(cluster: RayCluster, tmp_path: Path) -> None:
    out, err = test_run_ray.ended(test_run_ray.start(cluster, tmp_path / "run", test_run_ray.SCRIPT, "0"))
    assert test_run_ray.complaints(err) == []
    capture = open_capture(str(tmp_path / "run"))
    test_run_ray.check_who_joined(capture, json.loads(out))
    test_run_ray.check_counts(capture)


def test_both_runs_of_a_pair_are_made_on_one_node(cluster: RayCluster, tmp_path: Path) -> None:
    words = ["compare", "--no-record", "--on", "ray", "--budget", "2m", "--json", "--series", "runs"]
    done = subprocess.run(
        [sys.executable, "-m", "hotloop", *words, "--a", "sleep 0.01", "--b", "sleep 0.4"],
        cwd=tmp_path,
        env=environment("auto", RAY_ADDRESS=cluster.address, **PATIENT),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Which verdict it is, and after how many pairs, depends on how busy the machine is.
    assert json.loads(done.stdout)["compared"][0]["verdict"]["word"]
    series = read(tmp_path / "runs")
    pairs: dict[int, list[Run]] = {}
    for run in series.runs:
        pairs.setdefault(run.block, []).append(run)
    assert all(run.ok for run in series.runs)
    assert all(sorted(run.variant for run in pair) == ["A", "B"] for pair in pairs.values())
    assert all(len({run.node for run in pair}) == 1 for pair in pairs.values())
    assert len({run.node for run in series.runs}) == 2


@pytest.mark.long
def test_collectors_on_both_nodes_lose_no_row(cluster: RayCluster, tmp_path: Path) -> None:
    assert len(test_collect_ray.ended(test_collect_ray.start(cluster, tmp_path, ROWS))) == 2
