"""`hotloop boost` as a command: unmodified scripts, how they end, what is reported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import hotloop

SCRIPT = """
import sys
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

def main(kind, steps):
    torch.set_num_threads(1)
    cls = SubprocVecEnv if kind == "sub" else DummyVecEnv
    env = make_vec_env("CartPole-v1", n_envs=2, seed=0, vec_env_cls=cls)
    model = PPO("MlpPolicy", env, n_steps=64, batch_size=32, n_epochs=2, seed=0, device="cpu")
    print("training", flush=True)
    try:
        model.learn(steps)
    finally:
        env.close()
    print("sum", sum(float(p.sum()) for p in model.policy.parameters()))

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    return file


def weights(text: str) -> float:
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("sum"))


def test_a_script_runs_boosted_with_the_same_weights(script: Path) -> None:
    boosted = hotloop("boost", "--json", script, "dummy", "256")
    plain = subprocess.run(
        [sys.executable, script, "dummy", "256"], capture_output=True, text=True, check=True
    )
    assert boosted.returncode == 0, boosted.stderr
    found = json.loads(boosted.stdout)
    (model,) = found["models"]
    assert found["schema_version"] == 1
    assert model["model"] == "PPO"
    assert model["boosted"] == "actor 4-64-64-2, critic 4-64-64-1, tanh"
    assert model["reason"] is None
    assert model["gradient_steps"] == 16
    assert model["audits_passed"] >= 3
    assert model["audits_failed"] == 0
    assert weights(boosted.stderr) == pytest.approx(weights(plain.stdout), abs=1e-4)


def test_show_gives_reasons_and_a_failing_script_fails(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(
        "from stable_baselines3 import PPO\n"
        "class Mine(PPO): pass\n"
        "Mine('MlpPolicy', 'CartPole-v1', n_steps=8, batch_size=8, n_epochs=1, device='cpu').learn(8)\n"
        "raise SystemExit(3)\n"
    )
    done = hotloop("boost", "--show", "other.py", cwd=tmp_path)
    assert done.returncode == 5
    assert "hotloop boost: Mine ran unboosted: it is a subclass of PPO" in done.stderr
    assert "the script ended with exit code 3" in done.stderr


@pytest.mark.long
def test_kernels_are_compiled_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(
        "from stable_baselines3 import DQN\n"
        "from hotloop.boost import active\n"
        "model = DQN('MlpPolicy', 'CartPole-v1', learning_starts=32, buffer_size=99, device='cpu')\n"
        "model.learn(64)\n"
        "while active.history[0].switched_at_env_step is None:\n"
        "    model.learn(64, reset_num_timesteps=False)\n"
        "model.learn(64, reset_num_timesteps=False)\n"
        "print('n_updates', model._n_updates)\n"
    )
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    done = hotloop("boost", "--background", "--json", "train.py", cwd=tmp_path)
    (model,) = json.loads(done.stdout)["models"]
    assert model["reason"] is None
    assert model["audits_failed"] == 0
    assert model["switched_at_env_step"] > 0
    n_updates = int(done.stderr.rpartition("n_updates ")[2].split()[0])
    assert model["gradient_steps"] == n_updates - model["switched_at_n_updates"] > 0
    assert "failed" not in done.stderr
    assert "DQN switches to compiled kernels at env step" in done.stderr


def test_without_a_script_the_example_is_for_this_verb() -> None:
    done = hotloop("boost")
    assert done.returncode == 2
    assert "as in: hotloop boost train.py" in done.stderr


@pytest.mark.long
def test_environments_in_other_processes(script: Path) -> None:
    boosted = hotloop("boost", "--json", script, "sub", "256")
    plain = subprocess.run([sys.executable, script, "sub", "256"], capture_output=True, text=True, check=True)
    (model,) = json.loads(boosted.stdout)["models"]
    assert model["gradient_steps"] == 16
    assert weights(boosted.stderr) == pytest.approx(weights(plain.stdout), abs=1e-4)


@pytest.mark.long
def test_ctrl_c_ends_a_boosted_script(script: Path) -> None:
    command = [sys.executable, "-m", "hotloop", "boost", "--show", str(script), "dummy", "100000000"]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert running.stderr is not None
    for line in running.stderr:
        if "runs on compiled kernels" in line:
            break
    os.killpg(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=600)
    assert running.returncode == 130
    assert "KeyboardInterrupt" in errors


@pytest.mark.long
def test_a_recorded_script_is_boosted_by_a_variable(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `hotloop prove` does it; without the variable, the report recommends it."""
    plain = hotloop("run", "--json", "--capture", tmp_path / "plain", script, "dummy", "1024")
    assert "boost" in [one["name"] for one in json.loads(plain.stdout)["recommendations"]]
    monkeypatch.setenv("HOTLOOP_BOOST", "1")
    boosted = hotloop("run", "--json", "--capture", tmp_path / "boosted", script, "dummy", "1024")
    found = json.loads(boosted.stdout)
    assert "boost" not in [one["name"] for one in found["recommendations"]]
    (about,) = found["boosted"]
    assert about.startswith("PPO made 64 gradient steps in kernels")
    assert found["updates"] == 64


PLAIN = """
import torch
from torch import nn
from torch.distributions import Categorical

torch.set_num_threads(1)
torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
other = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
adam = torch.optim.Adam(actor.parameters(), lr=1e-2)
for _ in range(20):
    x = torch.randn(8, 4)
    other(x)
    choice = Categorical(logits=actor(x))
    adam.zero_grad()
    choice.log_prob(choice.sample()).mean().backward()
    nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
    adam.step()
print("sum", sum(float(p.sum()) for p in actor.parameters()), float(torch.rand(1)))
"""


@pytest.mark.long
def test_a_script_of_plain_torch_is_boosted(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    boosted = hotloop("boost", "--show", "plain.py", cwd=tmp_path)
    plain = subprocess.run(
        [sys.executable, "plain.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert boosted.returncode == 0, boosted.stderr
    for line in (
        "Sequential (4-16-2, tanh) runs on compiled kernels",
        "Sequential (4-16-2, tanh): 8 forward and 8 backward passes compiled; audits: ",
        "Sequential ran unboosted: it has a LayerNorm",
        "Adam (4 tensors, 114 parameters): ",
        "clip_grad_norm_ (norm and scaling of all gradients): ",
        "Categorical (normalisation, samples, checks): ",
    ):
        assert f"hotloop boost: {line}" in boosted.stderr, boosted.stderr
    assert weights(boosted.stdout) == pytest.approx(weights(plain.stdout), abs=1e-4)
    assert boosted.stdout.split()[-1] == plain.stdout.split()[-1]
