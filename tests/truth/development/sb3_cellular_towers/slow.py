"""SB3 DQN that switches the sectors of cellular towers for a moving crowd, made for a cluster that may stop the job any time."""
import argparse
import json
import tempfile
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor


class TowerEnv(gym.Env):
    """Crowds wander over a map of cells; the boosted tower serves its neighbourhood."""

    def __init__(self, grid=6, n_groups=40, n_towers=9, horizon=150):
        self.grid, self.n_groups, self.n_towers, self.horizon = grid, n_groups, n_towers, horizon
        side = np.linspace(1.0 / 6, 5.0 / 6, 3)
        self.towers = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
        self.observation_space = spaces.Box(-1.0, 5.0, (grid * grid + n_towers,), np.float32)
        self.action_space = spaces.Discrete(n_towers)

    def _obs(self):
        cells = (self.people * self.grid).astype(np.int64) @ np.array([self.grid, 1])
        counts = np.bincount(cells, minlength=self.grid * self.grid)
        return np.concatenate([counts / 4.0, self.battery]).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.people = self.np_random.uniform(0.0, 0.999, (self.n_groups, 2))
        self.centre = self.np_random.uniform(0.2, 0.8, 2)
        self.battery = np.ones(self.n_towers)
        self.t = 0
        return self._obs(), {}

    def step(self, action):
        self.centre = np.clip(self.centre + self.np_random.normal(0.0, 0.03, 2), 0.1, 0.9)
        pull = 0.05 * (self.centre - self.people)
        self.people = np.clip(self.people + pull + self.np_random.normal(0.0, 0.03, self.people.shape), 0.0, 0.999)
        self.battery = np.minimum(self.battery + 0.05, 1.0)
        served = (np.square(self.people - self.towers[action]).sum(1) < 0.03).sum()
        reward = float(served * self.battery[action]) / self.n_groups
        self.battery[action] *= 0.6
        self.t += 1
        return self._obs(), reward, False, self.t >= self.horizon, {}


class ResumeCallback(BaseCallback):
    """Leaves everything behind that is needed to resume the run after the job was stopped."""

    def __init__(self, folder, every):
        super().__init__()
        self.folder, self.every = Path(folder), every
        self.saved = 0

    def _init_callback(self):
        self.folder.mkdir(parents=True, exist_ok=True)

    def _on_step(self):
        if self.num_timesteps % self.every == 0:
            self.model.save(self.folder / "model")
            self._save_replay()
            self.saved += 1
        return True

    def _save_replay(self):
        replay = self.model.replay_buffer
        np.savez_compressed(self.folder / "replay.npz", observations=replay.observations,
                            next_observations=replay.next_observations, actions=replay.actions,
                            rewards=replay.rewards, dones=replay.dones, pos=replay.pos, full=replay.full)


class ProgressCallback(BaseCallback):
    """Prints the mean return now and then and keeps the time of the last 80 percent."""

    def __init__(self, total, every):
        super().__init__()
        self.total, self.every = total, every
        self.started = self.marked = self.speed = None

    def _on_step(self):
        if self.started is None and self.num_timesteps >= self.total // 5:
            self.started, self.marked = time.perf_counter(), self.num_timesteps
        if self.num_timesteps % self.every == 0 and self.model.ep_info_buffer:
            mean = np.mean([e["r"] for e in self.model.ep_info_buffer])
            print(f"steps {self.num_timesteps} return {mean:.2f} epsilon {self.model.exploration_rate:.2f}")
        return True

    def _on_training_end(self):
        self.speed = (self.num_timesteps - self.marked) / (time.perf_counter() - self.started)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--total-timesteps", type=int, default=100000)
    p.add_argument("--buffer-size", type=int, default=100000)
    p.add_argument("--learning-starts", type=int, default=500)
    p.add_argument("--checkpoint-every", type=int, default=500)
    p.add_argument("--learning-rate", type=float, default=5e-4)
    p.add_argument("--folder", default=None)
    p.add_argument("--seed", type=int, default=4)
    args = p.parse_args()
    env = Monitor(TowerEnv())
    model = DQN("MlpPolicy", env, learning_rate=args.learning_rate, buffer_size=args.buffer_size,
                learning_starts=args.learning_starts, batch_size=64, gamma=0.95, train_freq=4,
                target_update_interval=1000, exploration_fraction=0.3, policy_kwargs={"net_arch": [128, 128]},
                seed=args.seed, device="cpu")
    with tempfile.TemporaryDirectory() as scratch:
        resume = ResumeCallback(args.folder or scratch, args.checkpoint_every)
        progress = ProgressCallback(args.total_timesteps, 2000)
        model.learn(args.total_timesteps, callback=[progress, resume], log_interval=None)
    print(f"{resume.saved} checkpoints")
    checksum = float(sum(q.detach().double().abs().sum() for q in model.q_net.parameters()))
    print(json.dumps({"env_steps": args.total_timesteps, "updates": model._n_updates,
                      "units_per_s": progress.speed, "checksum": checksum}))


if __name__ == "__main__":
    main()
