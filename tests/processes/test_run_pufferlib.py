"""PufferLib scripts, unmodified: counts that equal PufferLib's own, unchanged weights.

`pip install pufferlib` downloads while it builds; `benchmarks/programs/build_puffer.py` builds what is used
here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hotloop.capture.stats import by_name
from tests.processes.library_runs import Run, needs, plain, record

pytestmark = [needs("pufferlib"), pytest.mark.long]

SCRIPT = """
import contextlib, io, json, sys, tempfile, types
sys.modules["pufferlib.sweep"] = types.ModuleType("pufferlib.sweep")  # needs packages that training does not
import gymnasium
import torch
import pufferlib, pufferlib.emulation, pufferlib.vector
from pufferlib import pufferl
from pufferlib.ocean.cartpole.cartpole import Cartpole
from torch import nn

HORIZON, AGENTS, STEPS = 16, 8, 512

class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.Tanh())
        self.actor, self.critic = nn.Linear(16, 2), nn.Linear(16, 1)

    def forward_eval(self, observations, state=None):
        hidden = self.body(observations)
        return self.actor(hidden), self.critic(hidden)

    def forward(self, observations, state=None):
        return self.forward_eval(observations, state)

def emulated(buf=None, seed=0):
    env = pufferlib.EpisodeStats(gymnasium.make("CartPole-v1"))
    return pufferlib.emulation.GymnasiumPufferEnv(env=env, buf=buf, seed=seed)

def make(kind):
    make = pufferlib.vector.make
    if kind == "native":
        return make(Cartpole, env_kwargs={"num_envs": AGENTS}, backend=pufferlib.PufferEnv)
    if kind == "gymnasium":
        return make(emulated, num_envs=AGENTS, backend=pufferlib.vector.Serial)
    words = {"env_kwargs": {"num_envs": AGENTS // 2}, "num_envs": 2}
    if kind == "serial":
        return make(Cartpole, backend=pufferlib.vector.Serial, **words)
    words |= {"num_workers": 2, "batch_size": 1 if kind == "turns" else 2, "overwork": True}
    return make(Cartpole, backend=pufferlib.vector.Multiprocessing, **words)

config = {
    "env": "cartpole", "seed": 1, "device": "cpu", "cpu_offload": False, "use_rnn": False,
    "torch_deterministic": False, "compile": False, "precision": "float32", "optimizer": "adam",
    "batch_size": AGENTS * HORIZON, "bptt_horizon": HORIZON, "minibatch_size": 64, "max_minibatch_size": 64,
    "update_epochs": 2, "learning_rate": 1e-3, "anneal_lr": False, "adam_beta1": 0.9, "adam_beta2": 0.999,
    "adam_eps": 1e-5, "gamma": 0.99, "gae_lambda": 0.95, "clip_coef": 0.2, "vf_coef": 1.0,
    "vf_clip_coef": 0.2, "max_grad_norm": 0.5, "ent_coef": 0.01, "vtrace_rho_clip": 1.0, "vtrace_c_clip": 1.0,
    "prio_alpha": 0.0, "prio_beta0": 0.0, "total_timesteps": STEPS, "checkpoint_interval": 10**9,
    "data_dir": tempfile.mkdtemp(),
}

class Counted(pufferl.PuffeRL):
    # Keeps what PufferLib itself has counted and logged.
    made = []

    def __init__(self, *args, **kwargs):
        self.made.append(self)
        self.resets, self.ended, self.lengths = 0, 0, 0.0
        super().__init__(*args, **kwargs)
        self.recv = self.vecenv.recv
        self.vecenv.recv = self.counted

    def counted(self):
        result = self.recv()
        if self.global_step < STEPS:  # afterwards it evaluates
            self.resets += int((result[2] | result[3]).sum())
            for info in result[4]:
                if "episode_length" in info:
                    n = info.get("n", 1)
                    self.ended += n
                    self.lengths += n * info["episode_length"]
        return result

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    policy, vecenv, kind = Policy(), make(sys.argv[1]), sys.argv[1]
    with contextlib.redirect_stdout(io.StringIO()):
        if sys.argv[2] == "own":
            trainer = Counted(dict(config), vecenv, policy)
            while trainer.global_step < STEPS:
                trainer.evaluate()
                trainer.train()
            trainer.utilization.stop()
            trained = trainer.global_step
            vecenv.close()
        else:
            pufferl.PuffeRL = Counted
            del config["env"]
            args = {"train": config, "neptune": False, "wandb": False}
            pufferl.train("cartpole", args, vecenv, policy)
            (trainer,) = Counted.made
            trained = trainer.epoch * config["batch_size"]
    print(json.dumps({
        "weights": digest(policy.parameters()), "global_step": trainer.global_step, "trained": trained,
        "epochs": trainer.epoch, "minibatches": trainer.total_minibatches, "resets": trainer.resets,
        "episodes": trainer.ended, "lengths": trainer.lengths,
    }))
"""
ROLLOUTS, BATCHES = 4, 4


def check(run: Run, batches_of: int = 1) -> dict[str, Any]:
    """What PufferLib counted is what was recorded; `batches_of` is how often it acts for one step of all."""
    said: dict[str, Any] = json.loads(run.out.splitlines()[-1])
    assert (said["epochs"], said["minibatches"]) == (ROLLOUTS, BATCHES)
    progress = run.capture.progress
    assert progress.updates == ROLLOUTS * BATCHES
    acted = ROLLOUTS * 16 * batches_of
    collected, trained = run.under("collect_rollouts"), run.under("train")
    for name in ("policy_forward", "replay_push", "env_step"):
        assert collected[name] == acted, name
    for name in ("learner_forward", "replay_sample", "loss", "backward", "optimizer_step"):
        assert trained[name] == ROLLOUTS * BATCHES, name
    assert trained["advantage"] == 2 * ROLLOUTS * BATCHES  # PufferLib computes it twice
    calls = run.calls("collect_rollouts", "train", "evaluate_forward", "policy_value")
    assert list(calls.values()) == [ROLLOUTS, ROLLOUTS, 0, 0]
    assert run.attributed() >= 0.95
    return said


@pytest.mark.parametrize("kind", ["native", "serial"])
def test_a_loop_of_ones_own(tmp_path: Path, kind: str) -> None:
    run = record(tmp_path, SCRIPT, kind, "own")
    assert run.out == plain(tmp_path, SCRIPT, kind, "own")  # weights included
    said = check(run)
    progress = run.capture.progress
    assert progress.env_steps == said["global_step"] == 512
    # The native one's last step is never received by PufferLib, but its result is seen here.
    assert 0 <= progress.episodes - said["episodes"] <= (8 if kind == "native" else 0)


@pytest.mark.parametrize("kind", ["turns", "processes"])
def test_envs_in_workers(tmp_path: Path, kind: str) -> None:
    run = record(tmp_path, SCRIPT, kind, "own")
    batches = 2 if kind == "turns" else 1
    said = check(run, batches)
    progress = run.capture.progress
    assert progress.env_steps == said["global_step"] == 512
    assert progress.episodes == said["episodes"]
    assert run.under("collect_rollouts")["ipc_wait"] == ROLLOUTS * 16 * batches
    workers = [p for p in run.capture.processes if p is not run.main]
    assert len(workers) == 2
    for worker in workers:
        assert not worker.threads[0].progress.env_steps
        found = by_name(worker.threads[0].root)
        assert ROLLOUTS * 16 - 1 <= found["env_step"].calls <= ROLLOUTS * 16
        assert found["ipc_wait"].calls >= found["env_step"].calls


def test_envs_of_gymnasium_and_the_final_evaluation(tmp_path: Path) -> None:
    run = record(tmp_path, SCRIPT, "gymnasium", "train")
    assert run.out == plain(tmp_path, SCRIPT, "gymnasium", "train")
    said = check(run)
    assert said["trained"] == 512 and said["global_step"] == 512 + 32 * 128
    progress = run.capture.progress
    # PufferLib counts a step that only resets an env as a step.
    assert 512 - said["resets"] <= progress.env_steps <= 512 - said["resets"] + 8
    assert progress.episodes == said["episodes"]
    assert progress.mean_length == pytest.approx(said["lengths"] / said["episodes"])
    assert run.calls("learn", "evaluate") == {"learn": 1, "evaluate": 32}
    assert run.under("evaluate")["policy_forward"] == 32 * 16
