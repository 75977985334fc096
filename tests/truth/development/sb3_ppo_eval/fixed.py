"""Train PPO on CartPole with Stable-Baselines3, keep the best model and log a few numbers."""

import argparse
import json
import os
import tempfile
import time

import gymnasium as gym
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor


class RolloutTimer(BaseCallback):
    """Remembers when each rollout ended."""

    def __init__(self):
        super().__init__()
        self.marks = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.marks.append((time.perf_counter(), self.num_timesteps))


class EntropySchedule(BaseCallback):
    def __init__(self, start, end, total):
        super().__init__()
        self.start, self.end, self.total = start, end, total

    def _on_rollout_start(self) -> None:
        frac = min(1.0, self.num_timesteps / self.total)
        self.model.ent_coef = self.start + frac * (self.end - self.start)

    def _on_step(self) -> bool:
        return True


def build_callbacks(total, out_dir):
    eval_env = Monitor(gym.make("CartPole-v1"))
    eval_cb = EvalCallback(
        eval_env,
        best_model_save_path=os.path.join(out_dir, "best"),
        log_path=os.path.join(out_dir, "eval"),
        eval_freq=1024,
        n_eval_episodes=3,
        deterministic=True,
        verbose=0,
    )
    timer = RolloutTimer()
    return CallbackList([eval_cb, EntropySchedule(0.01, 0.0, total), timer]), timer


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=16384)
    parser.add_argument("--seed", type=int, default=11)
    args = parser.parse_args()

    torch.set_num_threads(1)
    venv = make_vec_env("CartPole-v1", n_envs=8, seed=args.seed)
    model = PPO(
        "MlpPolicy",
        venv,
        n_steps=64,
        batch_size=128,
        n_epochs=6,
        gae_lambda=0.9,
        gamma=0.98,
        learning_rate=1e-3,
        seed=args.seed,
        device="cpu",
        verbose=0,
    )
    with tempfile.TemporaryDirectory() as out_dir:
        callbacks, timer = build_callbacks(args.timesteps, out_dir)
        model.learn(args.timesteps, callback=callbacks)
        finished = time.perf_counter()

    first = len(timer.marks) // 5
    t0, steps0 = timer.marks[first]
    n_batches = 8 * 64 // 128
    out = {
        "env_steps": model.num_timesteps,
        "updates": len(timer.marks) * 6 * n_batches,
        "units_per_s": (model.num_timesteps - steps0) / (finished - t0),
        "checksum": sum(float(p.detach().double().sum()) for p in model.policy.parameters()),
    }
    print(json.dumps(out))


if __name__ == "__main__":
    main()
