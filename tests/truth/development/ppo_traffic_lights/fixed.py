# PPO on a 4-arm intersection, 8 parallel environments, learning curves written while training.
import argparse
import json
import os
import tempfile
import time

import gymnasium as gym
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

N_ENVS = 8
N_STEPS = 128


class Intersection(gym.Env):
    """Cars arrive on four arms. Action: which of two phases is green. Switching costs one step of yellow."""

    def __init__(self, episode_len=200):
        super().__init__()
        self.episode_len = episode_len
        self.observation_space = gym.spaces.Box(0.0, np.inf, (7,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        rates = self.np_random.uniform(0.1, 0.45, size=4)
        self.arrivals = (self.np_random.random((self.episode_len, 4)) < rates).astype(np.float32)
        self.queues = np.zeros(4, dtype=np.float32)
        self.phase = 0
        self.since_switch = 0
        self.t = 0
        return self._get_obs(), {}

    def _get_obs(self):
        obs = np.empty(7, dtype=np.float32)
        obs[:4] = self.queues
        obs[:4] /= 10.0
        obs[4] = self.phase
        obs[5] = self.since_switch / 10.0
        obs[6] = self.t / self.episode_len
        return obs

    def step(self, action):
        if action != self.phase:
            self.phase = int(action)
            self.since_switch = 0
        else:
            self.since_switch += 1
            green = slice(0, 2) if self.phase == 0 else slice(2, 4)
            self.queues[green] = np.maximum(self.queues[green] - 1.0, 0.0)
        self.queues += self.arrivals[self.t]
        self.t += 1
        waiting = float(self.queues.sum())
        return self._get_obs(), -waiting / 20.0, False, self.t >= self.episode_len, {"waiting": waiting}


class TrainingMonitor(BaseCallback):
    """Collects episode returns and queue lengths and keeps a png of them up to date."""

    def __init__(self, out_dir, total_steps, window=20):
        super().__init__()
        self.path = os.path.join(out_dir, "training.png")
        self.total_steps = total_steps
        self.window = window
        self.returns = []
        self.waiting = []
        self.waiting_sum = 0.0
        self.t0 = None

    def _on_step(self):
        for info in self.locals["infos"]:
            self.waiting_sum += info["waiting"]
            if "episode" in info:
                self.returns.append(info["episode"]["r"])
        if self.t0 is None and self.num_timesteps >= self.total_steps // 5:
            self.t0, self.n0 = time.perf_counter(), self.num_timesteps
        return True

    def _on_rollout_end(self):
        self.waiting.append(self.waiting_sum / (N_ENVS * N_STEPS))
        self.waiting_sum = 0.0
        if len(self.waiting) % 25 == 0:
            self.plot()

    def _on_training_end(self):
        self.rate = (self.num_timesteps - self.n0) / (time.perf_counter() - self.t0)
        self.plot()

    def plot(self):
        fig, axes = plt.subplots(1, 2, figsize=(10, 4))
        axes[0].plot(self.returns, alpha=0.3)
        if len(self.returns) >= self.window:
            smooth = np.convolve(self.returns, np.ones(self.window) / self.window, mode="valid")
            axes[0].plot(np.arange(self.window - 1, len(self.returns)), smooth)
        axes[0].set_xlabel("episode")
        axes[0].set_ylabel("return")
        axes[1].plot(self.waiting)
        axes[1].set_xlabel("rollout")
        axes[1].set_ylabel("cars waiting")
        fig.tight_layout()
        fig.savefig(self.path)
        plt.close(fig)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int, nargs="?", default=90 * N_ENVS * N_STEPS)
    args = parser.parse_args()

    venv = make_vec_env(Intersection, n_envs=N_ENVS, seed=3)
    model = PPO(
        "MlpPolicy", venv, n_steps=N_STEPS, batch_size=128, n_epochs=6, learning_rate=3e-4,
        gamma=0.99, gae_lambda=0.95, ent_coef=0.01, seed=3, device="cpu",
    )
    with tempfile.TemporaryDirectory() as out_dir:
        monitor = TrainingMonitor(out_dir, args.steps)
        model.learn(args.steps, callback=monitor)
    print("mean return of the last 20 episodes: %.2f" % np.mean(monitor.returns[-20:]))

    rollouts = model.num_timesteps // (N_ENVS * N_STEPS)
    print(json.dumps({
        "env_steps": model.num_timesteps,
        "updates": rollouts * 6 * (N_ENVS * N_STEPS // 128),
        "units_per_s": monitor.rate,
        "checksum": round(sum(p.detach().double().sum().item() for p in model.policy.parameters()), 6),
    }))


if __name__ == "__main__":
    main()
