"""Truncated quantile critics (sb3-contrib) on Pendulum with four copies of the environment."""
import json
import sys
import time

import torch
from sb3_contrib import TQC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 1200
torch.set_num_threads(1)


class Clock(BaseCallback):
    began = None

    def _on_step(self):
        if self.began is None and self.num_timesteps >= STEPS // 5:
            self.began, self.first = time.perf_counter(), self.num_timesteps
        return True


env = make_vec_env("Pendulum-v1", n_envs=4, seed=3)
model = TQC("MlpPolicy", env, learning_rate=7e-4, learning_starts=200, train_freq=1, gradient_steps=1, batch_size=512,
            buffer_size=10_000, seed=3, device="cpu", top_quantiles_to_drop_per_net=2,
            policy_kwargs=dict(net_arch=[256, 256], n_critics=2, optimizer_kwargs=dict(fused=True)))
clock = Clock()
model.learn(STEPS, callback=clock)
rate = (model.num_timesteps - clock.first) / (time.perf_counter() - clock.began)
print(json.dumps({"env_steps": model.num_timesteps, "updates": None, "units_per_s": rate,
                  "checksum": sum(p.detach().double().abs().sum().item() for p in model.policy.parameters())}))
