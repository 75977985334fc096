"""Stable-Baselines3 A2C on Acrobot with a callback that keeps an eye on weights and entropy."""
import json
import os
import sys
import tempfile
import time

import gymnasium as gym
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor

torch.set_num_threads(1)
TOTAL = int(sys.argv[1]) if len(sys.argv) > 1 else 9000
CUT = TOTAL // 5


class WeightWatch(BaseCallback):
    """Norm, spread and largest absolute weight of each parameter, for the plots in the lab book."""

    def __init__(self):
        super().__init__()
        self.largest = 0.0

    def measure(self):
        for name, p in self.model.policy.named_parameters():
            self.logger.record(f"weights/{name}_norm", p.detach().norm().item())
            self.logger.record(f"weights/{name}_std", p.detach().std().item())
            self.largest = p.detach().abs().max().item()
            self.logger.record(f"weights/{name}_max", self.largest)

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        if (self.model._n_updates + 1) % 25 == 0 or self.num_timesteps >= TOTAL:
            self.measure()


class Progress(BaseCallback):
    def __init__(self, every):
        super().__init__()
        self.every = every
        self.started_at = None

    def _on_step(self) -> bool:
        if self.started_at is None and self.num_timesteps >= CUT:
            self.started_at = (self.num_timesteps, time.perf_counter())
        if self.num_timesteps % self.every == 0:
            buf = self.model.ep_info_buffer
            mean = sum(e["r"] for e in buf) / len(buf) if buf else float("nan")
            print(f"[{self.num_timesteps:6d}] episodes {len(buf)}  mean return {mean:.1f}")
        return True

    def _on_training_end(self) -> None:
        n, t = self.started_at
        self.rate = (self.num_timesteps - n) / (time.perf_counter() - t)


class EnergyBonus(gym.RewardWrapper):
    """A small bonus for height, otherwise the first success takes for ever."""

    def reward(self, reward):
        c1, s1, c2, s2 = self.unwrapped._get_ob()[:4]
        height = -c1 - (c1 * c2 - s1 * s2)
        return float(reward) + 0.1 * float(height)


def make_env():
    env = gym.make("Acrobot-v1")
    return Monitor(EnergyBonus(env))


def main():
    folder = tempfile.mkdtemp(prefix="a2c_")
    env = make_env()
    model = A2C("MlpPolicy", env, n_steps=16, learning_rate=1e-3, ent_coef=0.01, seed=13, device="cpu",
                policy_kwargs=dict(net_arch=[64, 64]))
    model.set_logger(configure(folder, ["csv"]))
    progress = Progress(every=2000)
    watch = WeightWatch()
    model.learn(TOTAL, callback=CallbackList([watch, progress]), log_interval=25)
    rows = sum(1 for _ in open(os.path.join(folder, "progress.csv")))
    print(f"{rows - 1} rows of statistics in {folder}, largest weight {watch.largest:.3f}")
    total = sum(p.detach().double().sum().item() for p in model.policy.parameters())
    print(json.dumps({"env_steps": model.num_timesteps, "updates": model._n_updates, "units_per_s": progress.rate,
                      "checksum": total}))


if __name__ == "__main__":
    main()
