"""`make demo` at a small size: every step runs, and a failure is not hidden."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hotloop import load
from hotloop.capture.stats import by_name
from tests.processes.library_runs import needs

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
SMALL = ["--total-timesteps", "1024", "--compare-timesteps", "256", "--budget", "3s"]


def demo(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DEMO), *words], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.long
def test_the_demo_explains_compares_writes_the_page_and_can_be_run_again(tmp_path: Path) -> None:
    mine = tmp_path / "hotloop-runs" / "demo" / "pairs" / "old.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("of an earlier demo")
    done = demo(tmp_path, *SMALL)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "hotloop-runs" / "demo"
    stats = by_name(load(folder / "run").tree)
    assert {"env_rgb_resizing", "convlstm_forward_pass", "backward"} <= set(stats)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<html" in page and "env_rgb_resizing" in page
    runs = [json.loads(file.read_text()) for file in folder.glob("pairs/**/capture.json")]
    assert len(runs) >= 2 and not mine.exists()
    for words in ("Where the time goes", "rendering=compiled", "hotloop show", "hotloop run YOUR_SCRIPT.py"):
        assert words in done.stdout, words


@pytest.mark.long
def test_a_step_that_fails_ends_the_demo_with_its_exit_code(tmp_path: Path) -> None:
    done = demo(tmp_path, *SMALL, "--total-timesteps", "0")
    assert done.returncode == 2 and "must be at least 1" in done.stderr
    assert not (tmp_path / "hotloop-runs" / "demo" / "report.html").exists()


@needs("ray")
@pytest.mark.long
def test_the_demo_of_a_cluster_records_and_compares_on_three_nodes(tmp_path: Path) -> None:
    words = [sys.executable, str(DEMO.with_name("demo_cluster.py")), "--env-steps", "2000", "--budget", "10s"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "from 3 collectors on 3 nodes" in done.stdout and "0 rows dropped, 0 lost" in done.stdout
    assert "runs on 3 nodes" in done.stderr
    labels = [p.label for p in load(tmp_path / "hotloop-runs" / "demo-cluster" / "run").processes]
    assert labels.count("HotloopCollectors") == 3
