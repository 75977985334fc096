"""A2C from Stable-Baselines3 on CartPole with a callback for our dashboard (TensorBoard and csv)."""
import argparse
import json
import tempfile
import time

import gymnasium as gym
import numpy as np
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure


class TiltReward(gym.RewardWrapper):
    """Rewards an upright pole a little more than a tilted one."""

    def reward(self, reward):
        theta = self.unwrapped.state[2]
        return float(reward) * (1.0 - 2.0 * abs(float(theta)))


class DashboardCallback(BaseCallback):
    """Shows how far the cart is from the middle and how the pole leans."""

    def __init__(self, every=500):
        super().__init__()
        self.every = every
        self.episode_lengths = []
        self.running_length = None

    def _on_step(self) -> bool:
        state = self.locals["new_obs"]
        self.logger.record_mean("dashboard/cart", float(np.abs(state[:, 0]).mean()))
        self.logger.record_mean("dashboard/lean", float(np.abs(state[:, 2]).mean()))
        for info in self.locals["infos"]:
            if "episode" in info:
                self.episode_lengths.append(info["episode"]["l"])
        if self.episode_lengths:
            self.logger.record("dashboard/episode_length", self.episode_lengths[-1])
        if self.n_calls % self.every == 0:
            self.logger.dump(self.num_timesteps)
        return True


class Clock(BaseCallback):
    """Speed of the last four fifths of the run."""

    def __init__(self, total):
        super().__init__()
        self.total, self.started, self.first = total, None, 0

    def _on_step(self) -> bool:
        if self.started is None and self.num_timesteps >= self.total // 5:
            self.started, self.first = time.perf_counter(), self.num_timesteps
        return True

    def speed(self):
        return (self.num_timesteps - self.first) / (time.perf_counter() - self.started)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--timesteps", type=int, default=200_000)
    parser.add_argument("--n-envs", type=int, default=4)
    parser.add_argument("--n-steps", type=int, default=16)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()

    env = make_vec_env("CartPole-v1", n_envs=args.n_envs, seed=args.seed, wrapper_class=TiltReward)
    model = A2C("MlpPolicy", env, n_steps=args.n_steps, learning_rate=7e-4, gamma=0.98, gae_lambda=0.95,
                ent_coef=0.005, seed=args.seed, device="cpu")
    dashboard, clock = DashboardCallback(), Clock(args.timesteps)
    with tempfile.TemporaryDirectory() as folder:
        model.set_logger(configure(folder, ["csv", "tensorboard"]))
        model.learn(args.timesteps, callback=CallbackList([dashboard, clock]), log_interval=100)
        speed = clock.speed()
    lengths = dashboard.episode_lengths[-50:]
    print("mean length of the last episodes:", round(float(np.mean(lengths)), 1))
    checksum = sum(float(p.detach().double().abs().sum()) for p in model.policy.parameters())
    env.close()
    print(json.dumps({
        "env_steps": model.num_timesteps,
        "updates": model._n_updates,
        "units_per_s": speed,
        "checksum": round(checksum, 5),
    }))


if __name__ == "__main__":
    main()
