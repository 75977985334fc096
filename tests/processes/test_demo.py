"""`make demo` at a small size: every step runs, and a failure is not hidden."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from hotloop import load
from hotloop.capture.stats import by_name

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
SMALL = ["--total-timesteps", "1024", "--compare-timesteps", "256", "--budget", "3s"]


def demo(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DEMO), *words], cwd=folder, capture_output=True, text=True, check=False
    )


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


def test_a_step_that_fails_ends_the_demo_with_its_exit_code(tmp_path: Path) -> None:
    done = demo(tmp_path, *SMALL, "--total-timesteps", "0")
    assert done.returncode == 2 and "must be at least 1" in done.stderr
    assert not (tmp_path / "hotloop-runs" / "demo" / "report.html").exists()
