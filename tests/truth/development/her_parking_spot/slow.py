"""Hindsight experience replay with TD3: park a cart on a given spot, facing a given way."""
import json
import sys
import time

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import TD3, HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise

torch.set_num_threads(1)


class ParkingSpot(gym.Env):
    """Goal: x, y, cos and sin of the heading. Reward 0 when parked well enough, else -1."""

    def __init__(self, tolerance=0.15, max_steps=50):
        self.tolerance = tolerance
        self.max_steps = max_steps
        goal = spaces.Box(-2.0, 2.0, (4,), np.float32)
        self.observation_space = spaces.Dict(
            {"observation": spaces.Box(-4.0, 4.0, (5,), np.float32), "achieved_goal": goal, "desired_goal": goal})
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.weights = np.array([1.0, 1.0, 0.25, 0.25], dtype=np.float32)

    def _observe(self):
        achieved = np.array([self.x, self.y, np.cos(self.heading), np.sin(self.heading)], dtype=np.float32)
        return {"observation": np.append(achieved, np.float32(self.speed)), "achieved_goal": achieved,
                "desired_goal": self.goal.copy()}

    def _error(self, achieved, desired):
        gap = np.abs(achieved - desired) * self.weights
        return np.sqrt(np.sum(gap * gap))

    def compute_reward(self, achieved_goal, desired_goal, info):
        achieved = np.atleast_2d(achieved_goal)
        desired = np.atleast_2d(desired_goal)
        rewards = np.zeros(len(achieved), dtype=np.float32)
        for i in range(len(achieved)):
            error = self._error(achieved[i], desired[i])
            rewards[i] = 0.0 if error < self.tolerance else -1.0
        return rewards if np.ndim(achieved_goal) > 1 else float(rewards[0])

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.y = self.np_random.uniform(-0.5, 0.5, 2)
        self.heading = self.np_random.uniform(-np.pi, np.pi)
        self.speed = 0.0
        spot, way = self.np_random.uniform(-1.0, 1.0, 2), self.np_random.uniform(-np.pi, np.pi)
        self.goal = np.array([spot[0], spot[1], np.cos(way), np.sin(way)], dtype=np.float32)
        self.t = 0
        return self._observe(), {}

    def step(self, action):
        self.t += 1
        self.speed = 0.7 * self.speed + 0.1 * float(action[0])
        self.heading += 0.6 * float(action[1])
        self.x = min(2.0, max(-2.0, self.x + self.speed * np.cos(self.heading)))
        self.y = min(2.0, max(-2.0, self.y + self.speed * np.sin(self.heading)))
        obs = self._observe()
        reward = self.compute_reward(obs["achieved_goal"], obs["desired_goal"], {})
        return obs, reward, False, self.t >= self.max_steps, {"is_success": reward == 0.0}


class Pace(BaseCallback):
    def __init__(self, first, last):
        super().__init__()
        self.first, self.last = first, last

    def _on_step(self):
        if self.num_timesteps == self.first:
            self.start = time.perf_counter()
        return True

    def steps_per_second(self):
        return (self.last - self.first) / (time.perf_counter() - self.start)


def main(total):
    env = ParkingSpot()
    model = TD3(
        "MultiInputPolicy", env, replay_buffer_class=HerReplayBuffer,
        replay_buffer_kwargs=dict(n_sampled_goal=4, goal_selection_strategy="future"),
        learning_starts=500, batch_size=256, buffer_size=50000, gamma=0.95, learning_rate=1e-3, seed=11,
        action_noise=NormalActionNoise(np.zeros(2), 0.2 * np.ones(2)), policy_kwargs=dict(net_arch=[64, 64]), device="cpu")
    pace = Pace(total // 5, total)
    model.learn(total, callback=pace, log_interval=None)
    rate = pace.steps_per_second()
    print(f"{len(model.ep_info_buffer)} episodes, success {np.mean(model.ep_success_buffer):.2f}")
    checksum = float(sum(p.detach().double().abs().sum() for p in model.actor.parameters()))
    print(json.dumps({"env_steps": total, "updates": model._n_updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3000)
