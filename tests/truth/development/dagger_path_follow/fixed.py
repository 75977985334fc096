#!/usr/bin/env python
"""DAgger: a small network learns to follow a track from a pure-pursuit expert."""
import argparse
import json
import math
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn


class TrackEnv(gym.Env):
    """Bicycle model on a closed track. Observation: 5 track points ahead in the car's frame, and the speed."""

    N_POINTS = 200

    def __init__(self):
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (11,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        phi = np.linspace(0, 2 * np.pi, self.N_POINTS, endpoint=False)
        a, b = self.np_random.uniform(-3, 3, 2)
        radius = 20 + a * np.cos(2 * phi) + b * np.sin(3 * phi)
        self.track = np.stack([radius * np.cos(phi), radius * np.sin(phi)], axis=1)
        self.nearest = 0
        self.x, self.y = self.track[0] + self.np_random.uniform(-1, 1, 2)
        self.heading = math.pi / 2 + self.np_random.uniform(-0.3, 0.3)
        self.speed = 3.0
        self.t = 0
        return self._obs(), {}

    def _obs(self):
        idx = (self.nearest + np.arange(2, 22, 4)) % self.N_POINTS
        d = self.track[idx] - (self.x, self.y)
        c, s = math.cos(self.heading), math.sin(self.heading)
        obs = np.empty(11, np.float32)
        obs[0:5] = (c * d[:, 0] + s * d[:, 1]) / 10.0
        obs[5:10] = (c * d[:, 1] - s * d[:, 0]) / 10.0
        obs[10] = self.speed / 10.0
        return obs

    def step(self, action):
        steer, gas = float(action[0]), float(action[1])
        dt = 0.1
        self.speed = min(max(self.speed + 3.0 * gas * dt, 0.5), 10.0)
        self.heading += self.speed * math.tan(0.5 * steer) / 2.5 * dt
        self.x += self.speed * math.cos(self.heading) * dt
        self.y += self.speed * math.sin(self.heading) * dt
        window = (self.nearest + np.arange(8)) % self.N_POINTS
        d = self.track[window] - (self.x, self.y)
        dist = (d * d).sum(axis=1)
        k = int(dist.argmin())
        self.nearest = int(window[k])
        off = math.sqrt(float(dist[k]))
        self.t += 1
        reward = self.speed * dt - 0.1 * off
        return self._obs(), reward, off > 4.0, self.t >= 300, {}


def expert(obs):
    """Pure pursuit on the third point, slower in bends."""
    px, py = 10.0 * obs[2], 10.0 * obs[7]
    curvature = 2.0 * py / (px * px + py * py)
    steer = 2.0 * math.atan(2.5 * curvature)
    wanted = 8.0 - 20.0 * abs(curvature)
    gas = 0.5 * (wanted - 10.0 * obs[10])
    return np.clip(np.array([steer, gas], np.float32), -1.0, 1.0)


class Aggregate:
    """The aggregated data set; the oldest samples make room when it is full."""

    def __init__(self, capacity):
        self.obs = torch.zeros(capacity, 11)
        self.act = torch.zeros(capacity, 2)
        self.capacity, self.pos, self.size = capacity, 0, 0

    def extend(self, obs, act):
        idx = (self.pos + torch.arange(len(obs))) % self.capacity
        self.obs[idx] = torch.from_numpy(obs)
        self.act[idx] = torch.from_numpy(act)
        self.pos = (self.pos + len(obs)) % self.capacity
        self.size = min(self.size + len(obs), self.capacity)


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(11, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2), nn.Tanh()
        )

    def forward(self, obs):
        return self.net(obs)


class DAgger:
    def __init__(self, seed, capacity=6000, batch_size=128, epochs=2):
        torch.manual_seed(seed)
        self.rng = np.random.default_rng(seed)
        self.env = TrackEnv()
        self.obs, _ = self.env.reset(seed=seed)
        self.student = Student()
        self.optimizer = torch.optim.Adam(self.student.parameters(), lr=1e-3)
        self.data = Aggregate(capacity)
        self.batch_size, self.epochs = batch_size, epochs
        self.env_steps = self.updates = 0

    def collect(self, n, beta):
        """Drive n steps; the expert labels every state and holds the wheel with probability beta."""
        obs_list = np.empty((n, 11), np.float32)
        act_list = np.empty((n, 2), np.float32)
        crashes = 0
        for i in range(n):
            label = expert(self.obs)
            obs_list[i], act_list[i] = self.obs, label
            if self.rng.random() < beta:
                action = label
            else:
                with torch.no_grad():
                    action = self.student(torch.from_numpy(self.obs)).numpy()
            self.obs, _, terminated, truncated, _ = self.env.step(action)
            crashes += terminated
            if terminated or truncated:
                self.obs, _ = self.env.reset()
        self.env_steps += n
        self.data.extend(obs_list, act_list)
        return crashes

    def fit(self):
        total = 0.0
        for _ in range(self.epochs):
            for idx in torch.randperm(self.data.size).split(self.batch_size):
                obs, act = self.data.obs[idx], self.data.act[idx]
                loss = nn.functional.mse_loss(self.student(obs), act)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                total += loss.detach()
                self.updates += 1
        return total.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("iterations", type=int, nargs="?", default=240)
    parser.add_argument("--steps", type=int, default=600)
    args = parser.parse_args()

    dagger = DAgger(seed=6)
    dagger.collect(6000, beta=1.0)
    warm = args.iterations // 5
    for it in range(args.iterations):
        if it == warm:
            t0 = time.perf_counter()
        loss = dagger.fit()
        crashes = dagger.collect(args.steps, beta=0.7 ** it)
        if it % 20 == 0:
            print(f"iteration {it}: loss {loss:.4f}, crashes {crashes}")
    rate = (args.iterations - warm) / (time.perf_counter() - t0)
    print(json.dumps({
        "env_steps": dagger.env_steps,
        "updates": dagger.updates,
        "units_per_s": rate,
        "checksum": round(sum(p.detach().double().sum().item() for p in dagger.student.parameters()), 6),
    }))


if __name__ == "__main__":
    main()
