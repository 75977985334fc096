"""REINFORCE with baseline for a robot that finds its way between round obstacles with a lidar."""

import argparse
import json
import math
import time

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn
from gymnasium import spaces


class LidarNav(gym.Env):
    metadata = {"render_modes": []}

    def __init__(self, n_rays=40, n_obstacles=12, max_range=3.0):
        self.n_rays, self.max_range = n_rays, max_range
        self.n_obstacles = n_obstacles
        self.action_space = spaces.Discrete(3)
        self.observation_space = spaces.Box(-10.0, 10.0, (n_rays + 3,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.obstacles = self.np_random.uniform(-4, 4, (self.n_obstacles, 2))
        self.radii = self.np_random.uniform(0.2, 0.5, self.n_obstacles)
        self.pos = np.array([-4.5, -4.5])
        self.heading = math.pi / 4
        self.goal = np.array([4.5, 4.5])
        self.t = 0
        return self._obs(), {}

    def _scan(self):
        ranges = np.full(self.n_rays, self.max_range)
        for i in range(self.n_rays):
            ang = self.heading + 2 * math.pi * i / self.n_rays
            d = np.array([math.cos(ang), math.sin(ang)])
            for j in range(self.n_obstacles):
                rel = self.obstacles[j] - self.pos
                along = rel @ d
                if along <= 0:
                    continue
                miss2 = rel @ rel - along * along
                r2 = self.radii[j] ** 2
                if miss2 < r2:
                    ranges[i] = min(ranges[i], max(along - math.sqrt(r2 - miss2), 0.0))
        return ranges

    def _obs(self):
        to_goal = self.goal - self.pos
        bearing = math.atan2(to_goal[1], to_goal[0]) - self.heading
        dist = float(np.hypot(*to_goal))
        tail = [math.cos(bearing), math.sin(bearing), dist / 10]
        return np.concatenate([self._scan() / self.max_range, tail]).astype(np.float32)

    def step(self, action):
        before = float(np.hypot(*(self.goal - self.pos)))
        self.heading += 0.3 * (int(action) - 1)
        self.pos = self.pos + 0.2 * np.array([math.cos(self.heading), math.sin(self.heading)])
        self.t += 1
        after = float(np.hypot(*(self.goal - self.pos)))
        gap = np.hypot(*(self.obstacles - self.pos).T) - self.radii
        crash = bool((gap < 0.1).any()) or bool(np.abs(self.pos).max() > 6)
        arrived = after < 0.4
        reward = before - after - 2.0 * crash + 5.0 * arrived
        return self._obs(), reward, crash or arrived, self.t >= 100, {}


class Net(nn.Module):
    def __init__(self, n_in):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_in, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.pi = nn.Linear(64, 3)
        self.v = nn.Linear(64, 1)

    def forward(self, x):
        h = self.body(x)
        return torch.log_softmax(self.pi(h), -1), self.v(h).squeeze(-1)


def run_episode(env, net, rng):
    obs_list, act_list, rew_list = [], [], []
    obs, _ = env.reset(seed=int(rng.integers(1 << 30)))
    while True:
        with torch.no_grad():
            logp, _ = net(torch.from_numpy(obs))
        cdf = logp.exp().cumsum(0).numpy()
        action = min(int(np.searchsorted(cdf, rng.random())), 2)
        obs_list.append(obs)
        act_list.append(action)
        obs, reward, term, trunc, _ = env.step(action)
        rew_list.append(reward)
        if term or trunc:
            return np.stack(obs_list), np.array(act_list), rew_list


def discount(rewards, gamma):
    out, acc = np.zeros(len(rewards), np.float32), 0.0
    for i in range(len(rewards) - 1, -1, -1):
        acc = rewards[i] + gamma * acc
        out[i] = acc
    return out


def main(episodes, seed):
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    env = LidarNav()
    net = Net(env.observation_space.shape[0])
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    steps = 0
    t0, s0 = time.perf_counter(), 0
    for ep in range(episodes):
        if ep == episodes // 5:
            t0, s0 = time.perf_counter(), steps
        obs, act, rew = run_episode(env, net, rng)
        ret = torch.from_numpy(discount(rew, 0.98))
        logp, v = net(torch.from_numpy(obs))
        adv = (ret - v).detach()
        chosen = logp.gather(1, torch.from_numpy(act)[:, None]).squeeze(1)
        loss = -(chosen * adv).mean() + 0.5 * (ret - v).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        steps += len(rew)
        if ep % 50 == 0:
            print(f"episode {ep} length {len(rew)} return {sum(rew):.2f}")
    rate = (steps - s0) / (time.perf_counter() - t0)
    checksum = sum(p.detach().double().sum().item() for p in net.parameters())
    print(json.dumps({"env_steps": steps, "updates": episodes, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--episodes", type=int, default=260)
    cli.add_argument("--seed", type=int, default=14)
    ns = cli.parse_args()
    main(ns.episodes, ns.seed)
