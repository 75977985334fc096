"""Train PPO on CartPole and keep the model with the best training reward."""

import argparse
import json
import os
import tempfile
import time
from collections import deque

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

torch.set_num_threads(1)


class SaveBestModel(BaseCallback):
    """
    Saves the model whenever the mean reward of the last 100 training episodes has improved.

    :param log_dir: folder for the model
    :param margin: improvement below which nothing is saved
    """

    def __init__(self, log_dir: str, margin: float = 5.0, verbose: int = 1):
        super().__init__(verbose)
        self.log_dir = log_dir
        self.save_path = os.path.join(log_dir, "best_model")
        self.margin = margin
        self.best_mean_reward = -np.inf
        self.rewards: deque[float] = deque(maxlen=100)
        self.episodes = 0

    def _on_step(self) -> bool:
        if not self.locals["dones"].any():
            return True
        # an episode has finished: has the training reward improved?
        for done, info in zip(self.locals["dones"], self.locals["infos"], strict=True):
            if done:
                self.rewards.append(info["episode"]["r"])
                self.episodes += 1
        if self.episodes >= 20:
            mean_reward = float(np.mean(self.rewards))
            if mean_reward > self.best_mean_reward + self.margin:
                self.best_mean_reward = mean_reward
                self.model.save(self.save_path)
                if self.verbose:
                    print(f"{self.num_timesteps} steps: new best mean reward {mean_reward:.1f}")
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timesteps", type=int, default=26_624)
    parser.add_argument("--n-envs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as log_dir:
        env = make_vec_env("CartPole-v1", n_envs=args.n_envs, seed=args.seed, monitor_dir=log_dir)
        model = PPO(
            "MlpPolicy",
            env,
            n_steps=128,
            batch_size=256,
            n_epochs=6,
            learning_rate=1e-4,
            policy_kwargs={"optimizer_kwargs": {"eps": 1e-5, "fused": True}},
            seed=args.seed,
            device="cpu",
        )
        callback = SaveBestModel(log_dir)

        per_rollout = model.n_steps * args.n_envs
        rollouts = args.timesteps // per_rollout
        first = rollouts // 5
        model.learn(first * per_rollout, callback=callback)
        start = time.perf_counter()
        model.learn((rollouts - first) * per_rollout, callback=callback, reset_num_timesteps=False)
        seconds = time.perf_counter() - start
        env.close()

    checksum = sum(p.double().abs().sum().item() for p in model.policy.parameters())
    result = {
        "env_steps": rollouts * per_rollout,
        "updates": rollouts * model.n_epochs * per_rollout // model.batch_size,
        "units_per_s": (rollouts - first) * per_rollout / seconds,
        "checksum": checksum,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
