import argparse
import json
import time

import torch
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env


class Rate(BaseCallback):
    def __init__(self, skip):
        super().__init__()
        self.skip = skip
        self.seen = None

    def _on_rollout_start(self):
        if self.seen is None and self.num_timesteps >= self.skip:
            self.seen = self.num_timesteps, time.perf_counter()

    def _on_step(self):
        return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--timesteps", type=int, default=240_000)
    parser.add_argument("--envs", type=int, default=16)
    args = parser.parse_args()
    torch.set_num_threads(1)
    env = make_vec_env("CartPole-v1", n_envs=args.envs, seed=2)
    model = A2C("MlpPolicy", env, n_steps=16, ent_coef=0.01, seed=2, device="cpu", verbose=0)
    rate = Rate(args.timesteps // 5)
    model.learn(args.timesteps, callback=rate, log_interval=100)
    steps, since = rate.seen
    result = {
        "env_steps": model.num_timesteps,
        "updates": model._n_updates,
        "units_per_s": (model.num_timesteps - steps) / (time.perf_counter() - since),
        "checksum": float(sum(p.double().sum() for p in model.policy.parameters())),
    }
    print(json.dumps(result))
