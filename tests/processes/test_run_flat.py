"""Scripts in one file, unmodified: exact counts, same weights, nearly all time attributed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hotloop
from hotloop.capture.model import Capture
from hotloop.capture.stats import by_name
from tests import cli
from tests.processes.scripts import environment

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def both_ways(tmp_path: Path, script: str, *words: str) -> Capture:
    """Run with and without recording; the weights must be the same to the bit."""
    command = [str(EXAMPLES / script), *words]
    env = environment("auto")
    weights = []
    for done in (
        subprocess.run([sys.executable, *command], cwd=tmp_path, env=env, capture_output=True, text=True),
        cli.hotloop("run", "--capture", "capture", *command, cwd=tmp_path, env=env),
    ):
        assert done.returncode == 0, done.stderr
        weights.append(next(line for line in done.stdout.splitlines() if line.startswith("weights")))
    assert weights[0] == weights[1]
    capture = hotloop.load(tmp_path / "capture")
    (thread,) = capture.threads
    assert thread.unattributed_ns < 0.3 * thread.wall_ns  # a few per cent where nothing else runs
    return capture


def test_ppo_in_one_file(tmp_path: Path) -> None:
    capture = both_ways(tmp_path, "02_unmodified_ppo.py", "--total-timesteps", "1024")
    calls = {name: stats.calls for name, stats in by_name(capture.tree).items()}
    assert calls["env_step"] == 256
    assert (calls["policy_forward"], calls["policy_value"]) == (256, 2)  # one value for each rollout
    assert calls["learner_forward"] == calls["backward"] == calls["optimizer_step"] == 32
    assert calls["clip_grad_norm"] == calls["zero_grad"] == 32
    assert (capture.progress.env_steps, capture.progress.updates) == (1024, 32)


@pytest.mark.long
def test_dqn_in_one_file_acts_with_gradients_on(tmp_path: Path) -> None:
    capture = both_ways(tmp_path, "03_unmodified_dqn.py", "--total-timesteps", "1500")
    calls = {name: stats.calls for name, stats in by_name(capture.tree).items()}
    updates = 250
    assert calls["env_step"] == capture.progress.env_steps == 1500
    assert calls["backward"] == calls["optimizer_step"] == capture.progress.updates == updates
    assert calls["policy_forward"] == 1500
    assert calls["learner_forward"] == 2 * updates  # the network and its target
    assert capture.progress.episodes == calls["env_reset"] - 1
