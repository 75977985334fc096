"""DQN keeps a chain of tanks at their levels. A callback writes snapshots from which a run can be resumed."""
import argparse
import json
import os
import shutil
import tempfile
import time

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback, CallbackList


class TankChain(gym.Env):
    """A row of tanks; valve k moves water from tank 4k to the next ones, action 0 does nothing."""

    def __init__(self, tanks=32):
        self.n = tanks
        self.action_space = spaces.Discrete(tanks // 4 + 1)
        self.observation_space = spaces.Box(-5.0, 5.0, (2 * tanks,), np.float32)
        self.wanted = 0.5 + 0.3 * np.sin(np.arange(tanks) / 3.0)

    def _obs(self):
        return np.concatenate([self.level, self.wanted - self.level]).astype(np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.level = self.wanted + self.np_random.normal(0.0, 0.2, self.n)
        return self._obs(), {}

    def step(self, action):
        if action > 0:
            k = 4 * (int(action) - 1)
            amount = 0.25 * self.level[k]
            self.level[k] -= amount
            self.level[k + 1:k + 4] += amount / 3
        flow = 0.05 * np.diff(self.level)
        self.level[:-1] += flow
        self.level[1:] -= flow
        self.level += self.np_random.normal(0.0, 0.01, self.n)
        reward = -float(np.mean(np.abs(self.wanted - self.level)))
        return self._obs(), reward, False, False, {}


class Snapshots(BaseCallback):
    """Keeps the newest state of the run in a folder."""

    def __init__(self, folder, every):
        super().__init__()
        self.folder, self.every = folder, every

    def save_memory(self):
        memory, n = self.model.replay_buffer, self.model.replay_buffer.size()
        np.savez_compressed(os.path.join(self.folder, "memory.npz"), obs=memory.observations[:n],
                            next_obs=memory.next_observations[:n], actions=memory.actions[:n],
                            rewards=memory.rewards[:n], dones=memory.dones[:n])

    def _on_step(self):
        if self.num_timesteps % self.every == 0:
            torch.save(self.model.policy.state_dict(), os.path.join(self.folder, "policy.pt"))
        return True

    def _on_training_end(self):
        self.save_memory()


class Stopwatch(BaseCallback):
    def __init__(self, start_at):
        super().__init__()
        self.start_at = start_at

    def _on_step(self):
        if self.num_timesteps == self.start_at:
            self.t0 = time.perf_counter()
        return True

    def _on_training_end(self):
        self.rate = (self.num_timesteps - self.start_at) / (time.perf_counter() - self.t0)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=12000)
    ap.add_argument("--snapshot-every", type=int, default=250)
    ap.add_argument("--seed", type=int, default=5)
    args = ap.parse_args()
    torch.set_num_threads(1)
    folder = tempfile.mkdtemp(prefix="tanks_")
    env = TimeLimit(TankChain(), 200)
    model = DQN("MlpPolicy", env, learning_starts=400, buffer_size=20000, batch_size=64, train_freq=2, gradient_steps=1,
                target_update_interval=500, learning_rate=5e-4, policy_kwargs=dict(net_arch=[128, 64]), seed=args.seed,
                device="cpu")
    watch = Stopwatch(args.steps // 5)
    model.learn(args.steps, callback=CallbackList([Snapshots(folder, args.snapshot_every), watch]), log_interval=None)
    returns = [ep["r"] for ep in model.ep_info_buffer]
    sizes = {name: os.path.getsize(os.path.join(folder, name)) // 1024 for name in sorted(os.listdir(folder))}
    print(f"returns: first {returns[0]:.2f}, last {np.mean(returns[-10:]):.2f}; files (KB): {sizes}")
    shutil.rmtree(folder)
    print(json.dumps({"env_steps": model.num_timesteps, "updates": model._n_updates, "units_per_s": watch.rate,
                      "checksum": float(np.sum(returns))}))


if __name__ == "__main__":
    main()
