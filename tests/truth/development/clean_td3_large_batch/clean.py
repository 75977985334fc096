"""Stable-Baselines3 TD3 on Pendulum with large networks; learns in bursts after each episode."""
import argparse
import json
import time

import numpy as np
from stable_baselines3 import TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise


class Tempo(BaseCallback):
    def __init__(self, total):
        super().__init__()
        self.total, self.begun, self.at = total, None, 0
        self.returns = []

    def _on_step(self):
        for info in self.locals["infos"]:
            if "episode" in info:
                self.returns.append(info["episode"]["r"])
        return True

    def _on_rollout_start(self):
        if self.begun is None and self.num_timesteps >= self.total // 5:
            self.begun, self.at = time.perf_counter(), self.num_timesteps
        if self.returns and len(self.returns) % 5 == 0:
            print(f"{self.num_timesteps} steps, return {np.mean(self.returns[-5:]):.0f}")

    def speed(self):
        return (self.num_timesteps - self.at) / (time.perf_counter() - self.begun)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--timesteps", type=int, default=20_000)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--gradient-steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    model = TD3(
        "MlpPolicy",
        "Pendulum-v1",
        learning_rate=1e-3,
        buffer_size=50_000,
        learning_starts=400,
        batch_size=args.batch_size,
        gamma=0.98,
        train_freq=(200, "step"),
        gradient_steps=args.gradient_steps,
        policy_delay=2,
        action_noise=NormalActionNoise(np.zeros(1), 0.2 * np.ones(1)),
        policy_kwargs={"net_arch": [512, 384]},
        seed=args.seed,
        device="cpu",
    )
    tempo = Tempo(args.timesteps)
    model.learn(args.timesteps, callback=tempo, log_interval=None)
    speed = tempo.speed()
    checksum = sum(float(p.detach().double().abs().sum()) for p in model.actor.parameters())
    print(json.dumps({
        "env_steps": model.num_timesteps,
        "updates": model._n_updates,
        "units_per_s": speed,
        "checksum": round(checksum, 4),
    }))


if __name__ == "__main__":
    main()
