"""QR-DQN with wide networks and large batches on Acrobot."""
import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
from sb3_contrib import QRDQN
from stable_baselines3.common.callbacks import BaseCallback


class Progress(BaseCallback):
    """Prints the mean return from time to time and keeps the speed of the last four fifths."""

    def __init__(self, total):
        super().__init__()
        self.total, self.start_at = total, total // 5
        self.rate = None

    def _on_step(self):
        if self.num_timesteps == self.start_at:
            self.start = time.perf_counter()
        if self.num_timesteps % 400 == 0 and self.model.ep_info_buffer:
            returns = [ep["r"] for ep in self.model.ep_info_buffer]
            print(f"{self.num_timesteps:6d} steps: return {np.mean(returns[-10:]):.1f}", flush=True)
        return True

    def _on_training_end(self):
        self.rate = (self.num_timesteps - self.start_at) / (time.perf_counter() - self.start)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--timesteps", type=int, default=2000)
    ap.add_argument("--width", type=int, default=512)
    args = ap.parse_args()
    env = gym.make("Acrobot-v1")
    model = QRDQN(
        "MlpPolicy", env, learning_rate=3e-4, buffer_size=50_000, learning_starts=200, batch_size=512, train_freq=4,
        gradient_steps=1, target_update_interval=500, exploration_fraction=0.4, seed=17, device="cpu",
        policy_kwargs=dict(net_arch=[args.width, args.width], n_quantiles=20, optimizer_class=torch.optim.Adam,
                           optimizer_kwargs=dict(eps=1e-4, fused=True)))
    progress = Progress(args.timesteps)
    model.learn(args.timesteps, callback=progress, log_interval=None)
    env.close()
    checksum = float(sum(p.detach().double().abs().sum() for p in model.quantile_net.parameters()))
    print(json.dumps({"env_steps": model.num_timesteps, "updates": model._n_updates, "units_per_s": progress.rate,
                      "checksum": checksum}))


if __name__ == "__main__":
    main()
