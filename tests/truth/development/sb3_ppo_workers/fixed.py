"""PPO baseline for CartPole with eight environments."""

import json
import time

import torch
import tyro
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv


class Speed(BaseCallback):
    def __init__(self, warm):
        super().__init__()
        self.warm, self.mark = warm, None

    def _on_rollout_start(self):
        if self.mark is None and self.num_timesteps >= self.warm:
            self.mark = (self.num_timesteps, time.perf_counter())

    def _on_step(self):
        return True


def main(
    total_timesteps: int = 24_576, n_envs: int = 8, n_steps: int = 128, seed: int = 17, debug: bool = False
):
    torch.set_num_threads(1)
    vec_cls = SubprocVecEnv if debug else DummyVecEnv
    venv = make_vec_env("CartPole-v1", n_envs=n_envs, seed=seed, vec_env_cls=vec_cls)
    model = PPO("MlpPolicy", venv, n_steps=n_steps, batch_size=256, n_epochs=4, seed=seed, device="cpu")
    speed = Speed(total_timesteps // 5)
    model.learn(total_timesteps, callback=speed)
    steps, since = speed.mark
    rate = (model.num_timesteps - steps) / (time.perf_counter() - since)
    venv.close()
    batches = n_envs * n_steps // 256
    print(
        json.dumps(
            {
                "env_steps": model.num_timesteps,
                "updates": model._n_updates * batches,
                "units_per_s": rate,
                "checksum": float(sum(p.double().sum() for p in model.policy.parameters())),
            }
        )
    )


if __name__ == "__main__":
    tyro.cli(main)
