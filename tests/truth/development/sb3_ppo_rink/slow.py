"""PPO from Stable-Baselines3 learns to push a puck into the goal; the last episode is kept as a film."""

import argparse
import json
import math
import time

import cv2
import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv


class RinkEnv(gym.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, render_mode="rgb_array"):
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(-4, 4, (8,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        u = self.np_random.uniform(-0.8, 0.8, 4).tolist()
        self.x, self.y, self.px, self.py = u
        self.vx = self.vy = self.qx = self.qy = 0.0
        self.t = 0
        return self._obs(), {}

    def _obs(self):
        return np.array(
            [self.x, self.y, self.vx, self.vy, self.px - self.x, self.py - self.y, self.qx, self.qy],
            np.float32,
        )

    def step(self, action):
        ax, ay = action.tolist()
        self.vx, self.vy = 0.9 * self.vx + 0.05 * ax, 0.9 * self.vy + 0.05 * ay
        self.x = min(1.0, max(-1.0, self.x + self.vx))
        self.y = min(1.0, max(-1.0, self.y + self.vy))
        dx, dy = self.px - self.x, self.py - self.y
        d = math.hypot(dx, dy)
        if d < 0.15:
            self.qx += 0.1 * dx / (d + 1e-6)
            self.qy += 0.1 * dy / (d + 1e-6)
        self.qx, self.qy = 0.97 * self.qx, 0.97 * self.qy
        self.px = min(1.0, max(-1.0, self.px + self.qx))
        self.py = min(1.0, max(-1.0, self.py + self.qy))
        self.t += 1
        goal = self.px > 0.95 and abs(self.py) < 0.3
        reward = 10.0 * goal - 0.05 * d - 0.02 * math.hypot(1 - self.px, self.py)
        return self._obs(), reward, goal, self.t >= 150, {}

    def render(self):
        def at(x, y):
            return int(80 + 72 * x), int(80 + 72 * y)

        img = np.full((160, 160, 3), 240, np.uint8)
        cv2.rectangle(img, at(-1, -1), at(1, 1), (120, 160, 200), 3, cv2.LINE_AA)
        cv2.line(img, at(1, -0.3), at(1, 0.3), (0, 0, 255), 5, cv2.LINE_AA)
        cv2.circle(img, at(0, 0), 30, (200, 120, 120), 2, cv2.LINE_AA)
        cv2.circle(img, at(self.px, self.py), 6, (20, 20, 20), -1, cv2.LINE_AA)
        cv2.circle(img, at(self.x, self.y), 10, (30, 120, 30), -1, cv2.LINE_AA)
        cv2.putText(img, f"t={self.t}", (8, 18), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (0, 0, 0), 1, cv2.LINE_AA)
        return img


class FilmCallback(BaseCallback):
    """Films all environments during the first one's latest episode, and writes the film after training."""

    def __init__(self, total):
        super().__init__()
        self.total = total
        self.frames = []
        self.start = None

    def _on_step(self):
        if self.start is None and self.num_timesteps >= self.total // 5:
            self.start, self.before = time.perf_counter(), self.num_timesteps
        if self.locals["dones"][0]:
            self.frames = []
        self.frames.append(self.training_env.render())
        return True

    def _on_training_end(self):
        self.rate = (self.num_timesteps - self.before) / (time.perf_counter() - self.start)
        np.savez("film.npz", frames=np.stack(self.frames))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--timesteps", type=int, default=80000)
    parser.add_argument("--n-envs", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    env = DummyVecEnv([RinkEnv for _ in range(args.n_envs)])
    model = PPO("MlpPolicy", env, n_steps=256, batch_size=256, n_epochs=4, seed=7, device="cpu")
    film = FilmCallback(args.timesteps)
    model.learn(args.timesteps, callback=film)
    checksum = float(sum(p.double().sum() for p in model.policy.parameters()))
    updates = model._n_updates * (256 * args.n_envs // 256)
    print(
        json.dumps(
            {
                "env_steps": model.num_timesteps,
                "updates": updates,
                "units_per_s": film.rate,
                "checksum": checksum,
            }
        )
    )


if __name__ == "__main__":
    main()
