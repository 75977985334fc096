"""The command lines of the pixel project, run as its users would, at small size."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ORIGINALS = Path(__file__).parents[2] / "examples" / "originals"


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ORIGINALS)}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )


@pytest.mark.long
def test_train_then_analyze(tmp_path: Path) -> None:
    flags = ["--obs-mode", "rgb_image", "--convlstm", "--timesteps", "32", "--enable-profiling"]
    report = ["--profiling-report", "profiling_report.json", "--profiling-summary-freq", "16"]
    small = ["--n-envs", "2", "--channels", "8", "--n-steps", "8", "--n-epochs", "1", "--batch-size", "8"]
    trained = run([str(ORIGINALS / "train_agent.py"), *flags, *report, *small], tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert "env_rgb_draw_walls" in trained.stderr and "trained 32 env steps" in trained.stdout
    files = ["--output", "analysis.txt", "--charts", "analysis.png", "--detailed", "analysis.json"]
    analyzed = run(["-m", "profiling.analyzer", "--input", "profiling_report.json", *files], tmp_path)
    assert analyzed.returncode == 0, analyzed.stderr
    assert (tmp_path / "analysis.txt").stat().st_size > 0
    # The text lists only what costs time in so short a run; the JSON lists every region.
    assert "env_rgb" in (tmp_path / "analysis.json").read_text()
    assert (tmp_path / "analysis.png").stat().st_size > 1000


def test_the_selfcheck_and_the_usage_example(tmp_path: Path) -> None:
    checked = run([str(ORIGINALS / "test_profiling.py")], tmp_path)
    assert checked.returncode == 0 and "works correctly on this machine" in checked.stdout, checked.stdout
    used = run([str(ORIGINALS / "example_profiling_usage.py")], tmp_path)
    assert used.returncode == 0 and "env_rgb_rendering" in used.stdout, used.stderr
