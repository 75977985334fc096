"""Stable-Baselines3 and sb3-contrib scripts, unmodified: exact counts, unchanged weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.library_runs import Run, needs, plain, record

pytestmark = needs("sb3_contrib")

PPO = """
import sys
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv

def main(start, n_envs):
    torch.set_num_threads(1)
    words = dict(vec_env_cls=SubprocVecEnv, vec_env_kwargs=dict(start_method=start)) if start else {}
    env = make_vec_env("CartPole-v1", n_envs=n_envs, seed=0, **words)
    model = PPO("MlpPolicy", env, n_steps=64, batch_size=16 * n_envs, n_epochs=2, seed=0, device="cpu")
    model.learn(256 * n_envs)
    print("weights", digest(model.policy.parameters()), model.num_timesteps)
    env.close()

if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None, int(sys.argv[2]) if len(sys.argv) > 2 else 4)
"""
# n_envs 4 x n_steps 64 x 4 rollouts; 2 epochs of 4 minibatches each.
PRESCRIBED = {
    "learn": 1,
    "collect_rollouts": 4,
    "train": 4,
    "env_step": 256,
    "policy_forward": 256,
    "replay_push": 256,
    "policy_value": 4,
    "advantage": 4,
    "replay_sample": 32,
    "learner_forward": 32,
    "zero_grad": 32,
    "backward": 32,
    "clip_grad_norm": 32,
    "optimizer_step": 32,
}


def check_ppo(run: Run, n_envs: int) -> None:
    assert run.calls(*PRESCRIBED) == PRESCRIBED
    progress = run.capture.progress
    assert (progress.env_steps, progress.updates) == (256 * n_envs, 32)
    # CartPole pays 1 a step, so what Monitor told of returns and lengths is the same.
    assert progress.mean_return == progress.mean_length and progress.episodes > 5
    assert run.attributed() >= 0.95


def test_ppo_counts_are_exact_and_weights_unchanged(tmp_path: Path) -> None:
    run = record(tmp_path, PPO)
    check_ppo(run, 4)
    assert run.out == plain(tmp_path, PPO)
    calls = run.calls("DummyVecEnv.step_wait", "CartPoleEnv.step", "env_reset", "CartPoleEnv.reset")
    episodes = run.capture.progress.episodes
    assert list(calls.values()) == [256, 1024, 1 + episodes, 4 + episodes]
    assert run.under("learner_forward") == {"ActorCriticPolicy.evaluate_actions": 32}
    assert run.under("policy_forward") == {"ActorCriticPolicy.forward": 256}


@pytest.mark.long
def test_forked_workers(tmp_path: Path) -> None:
    forked = record(tmp_path, PPO, "fork")
    check_ppo(forked, 4)
    assert forked.out == plain(tmp_path, PPO)  # the same envs with the same seeds, in one process
    check_workers(forked, 4)


def check_workers(run: Run, n_envs: int) -> None:
    others = [p for p in run.capture.processes if p is not run.main]
    workers = [p for p in others if run.calls_in(p, "CartPoleEnv.step") == {"CartPoleEnv.step": 256}]
    assert len(workers) == n_envs
    for worker in workers:
        assert run.calls_in(worker, "env_step") == {"env_step": 256}
        assert worker.threads[0].progress.env_steps == 0  # who drives the workers counts
    assert run.under("env_step")["ipc_wait"] == run.under("env_step")["ipc_send"] == 256 * n_envs


@pytest.mark.long
def test_spawned_workers(tmp_path: Path) -> None:
    run = record(tmp_path, PPO, "spawn", "2")
    check_ppo(run, 2)
    check_workers(run, 2)


@pytest.mark.long
def test_workers_of_a_fork_server(tmp_path: Path) -> None:
    run = record(tmp_path, PPO, "forkserver", "2")
    check_ppo(run, 2)
    check_workers(run, 2)


SEVERAL = """
import os, sys, warnings
warnings.filterwarnings("ignore")
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

class Mine(BaseCallback):
    def _on_step(self):
        return True

def main():
    torch.set_num_threads(1)
    greedy = dict(exploration_initial_eps=0.0, exploration_final_eps=0.0)
    models = [
        DQN("MlpPolicy", "CartPole-v1", learning_starts=50, batch_size=16, seed=0, **greedy).learn(200),
        SAC("MlpPolicy", make_vec_env("Pendulum-v1", 2, seed=0, vec_env_cls=SubprocVecEnv,
            vec_env_kwargs=dict(start_method="fork")), learning_starts=50, batch_size=16, seed=0,
            gradient_steps=2).learn(100),
        RecurrentPPO("MlpLstmPolicy", make_vec_env("CartPole-v1", 2, seed=0), n_steps=16, batch_size=16,
                     n_epochs=2, seed=0).learn(64),
    ]
    evaluation = EvalCallback(VecNormalize(make_vec_env("CartPole-v1", 1, seed=1)), eval_freq=16,
                              n_eval_episodes=2, verbose=0)
    model = PPO("MlpPolicy", VecNormalize(make_vec_env("CartPole-v1", 2, seed=0)), n_steps=16,
                batch_size=16, n_epochs=2, seed=0)
    models.append(model.learn(64, callback=[evaluation, CheckpointCallback(16, sys.argv[1]), Mine()]))
    for model in models:
        print(type(model).__name__, model.num_timesteps, model._n_updates, digest(model.policy.parameters()))

if __name__ == "__main__":
    main()
"""


@pytest.mark.long
def test_dqn_sac_recurrent_ppo_and_callbacks(tmp_path: Path) -> None:
    run = record(tmp_path, SEVERAL, str(tmp_path / "saved"))
    assert run.out == plain(tmp_path, SEVERAL, str(tmp_path / "saved"))
    evaluated = run.under("evaluate")
    training = {name: count - evaluated.get(name, 0) for name, count in run.calls(*EXPECTED).items()}
    assert training == {name: sum(counts) for name, counts in EXPECTED.items()}
    assert evaluated["env_step"] == evaluated["policy_forward"] > 20
    assert run.calls("evaluate", "checkpoint", "Mine._on_step") == {
        "evaluate": 2,
        "checkpoint": 2,
        "Mine._on_step": 32,
    }
    forward = run.under("policy_forward")
    assert forward["DQNPolicy.predict"] == 150 and forward["SACPolicy.predict"] == 25
    assert forward["RecurrentActorCriticPolicy.forward"] == 32
    assert run.capture.progress.env_steps == 200 + 100 + 64 + 64
    # DQN and SAC count gradient steps, as we do; PPO counts epochs.
    own = [int(line.split()[2]) for line in run.out.splitlines()]
    assert own == [38, 50, 4, 4]
    assert run.capture.progress.updates == 38 + 50 + 8 + 8
    assert run.attributed() >= 0.95


# DQN: 50 random steps, then every 4th step one update: 52, 56 ... 200 -> 38 updates, each with two
# networks. SAC, two envs: 25 random vector steps, then 25 x 2 updates of three optimizers with five
# passes. Recurrent and plain PPO: 2 rollouts x 16 vector steps, 2 epochs x 2 minibatches.
EXPECTED = {
    "learn": (1, 1, 1, 1),
    "collect_rollouts": (50, 50, 2, 2),
    "train": (38, 25, 2, 2),
    "env_step": (200, 50, 32, 32),
    "policy_forward": (150, 25, 32, 32),
    "policy_value": (0, 0, 2, 2),
    "replay_push": (200, 50, 32, 32),
    "replay_sample": (38, 50, 8, 8),
    "advantage": (0, 0, 2, 2),
    "learner_forward": (2 * 38, 5 * 50, 8, 8),
    "backward": (38, 3 * 50, 8, 8),
    "optimizer_step": (38, 3 * 50, 8, 8),
}

KILLED = """
import os, signal, sys
import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv

if __name__ == "__main__":
    env = make_vec_env("CartPole-v1", 2, seed=0, vec_env_cls=SubprocVecEnv,
                       vec_env_kwargs=dict(start_method="fork"))
    env.reset()
    for i in range(50):
        env.step(np.array([i % 2, i % 2]))
    env.processes[1].kill()
    env.processes[1].join()
    print(env.processes[1].exitcode)
    env.remotes = env.remotes[:1]
    env.processes = env.processes[:1]
    env.close()
"""


@pytest.mark.long  # test_run.py has one with plain envs
def test_a_killed_worker_still_appears(tmp_path: Path) -> None:
    run = record(tmp_path, KILLED)
    assert run.out.strip() == "-9"
    assert run.capture.progress.env_steps == 100
    workers = [p for p in run.capture.processes if p is not run.main]
    assert sorted(p.closed for p in workers) == [False, True]
    for worker in workers:
        assert run.calls_in(worker, "env_step") == {"env_step": 50}


OTHERS = """
import sys, warnings
warnings.filterwarnings("ignore")
import torch
import sb3_contrib, stable_baselines3
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from stable_baselines3.common.env_util import make_vec_env

def main(name, env, timesteps, words):
    torch.set_num_threads(1)
    algorithm = getattr(stable_baselines3, name, None) or getattr(sb3_contrib, name)
    if env == "masked":
        env = InvalidActionEnvDiscrete(dim=8, n_invalid_actions=2)
    elif env == "two":
        env = make_vec_env("CartPole-v1", 2, seed=0)
    policy = "LinearPolicy" if name == "ARS" else "MlpPolicy"
    model = algorithm(policy, env, seed=0, device="cpu", **words).learn(timesteps)
    print(model.num_timesteps, model._n_updates, digest(model.policy.parameters()))

if __name__ == "__main__":
    main(*eval(sys.argv[1]))
"""
OFF = {"learning_starts": 50, "batch_size": 16}
GREEDY = {"exploration_initial_eps": 0.0, "exploration_final_eps": 0.0}
NAMES = ("env_step", "policy_forward", "policy_value", "learner_forward", "optimizer_step", "replay_push")


@pytest.mark.long
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        # 50 updates of the critic, every second one of the actor: three passes, then two more
        (("TD3", "Pendulum-v1", 100, OFF), (100, 50, 0, 3 * 50 + 2 * 25, 75, 100)),
        (("A2C", "two", 100, {"n_steps": 5}), (50, 50, 10, 10, 10, 50)),
        # a distribution to compare with, one to improve, one line search; four fits of the values
        (
            ("TRPO", "two", 64, {"n_steps": 16, "batch_size": 16, "n_critic_updates": 2}),
            (32, 32, 2, 2 * (3 + 4), 2 * 4, 32),
        ),
        (("QRDQN", "CartPole-v1", 100, OFF | GREEDY), (100, 50, 0, 2 * 13, 13, 100)),
        (("TQC", "Pendulum-v1", 100, OFF), (100, 50, 0, 5 * 50, 3 * 50, 100)),
        (("CrossQ", "Pendulum-v1", 100, OFF), (100, 50, 0, 2 * 50 + 2 * 16, 50 + 2 * 16, 100)),
        (("MaskablePPO", "masked", 32, {"n_steps": 16, "batch_size": 16}), (32, 32, 2, 20, 20, 32)),
        (("ARS", "CartPole-v1", 200, {"n_delta": 2}), None),
    ],
)
def test_other_algorithms(
    tmp_path: Path,
    asked: tuple[str, str, int, dict[str, float]],
    expected: tuple[int, ...] | None,
) -> None:
    run = record(tmp_path, OTHERS, repr(asked))
    assert run.out == plain(tmp_path, OTHERS, repr(asked))
    timesteps = int(run.out.split()[0])
    assert run.capture.progress.env_steps == timesteps
    if asked[0] in ("TD3", "QRDQN", "TQC", "CrossQ"):  # others count epochs
        assert run.capture.progress.updates == int(run.out.split()[1]) > 10
    if expected is None:  # random search trains by what others call evaluating
        assert run.calls("env_step", "policy_forward", "evaluate") == {
            "env_step": timesteps,
            "policy_forward": timesteps,
            "evaluate": 0,
        }
    else:
        assert run.calls(*NAMES) == dict(zip(NAMES, expected, strict=True))
