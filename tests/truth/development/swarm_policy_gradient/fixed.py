"""Boids-like swarm: one policy steers all agents towards each other without collisions. Plain policy gradient."""

import json
import time
from typing import NamedTuple

import numpy as np
import torch
import torch.nn as nn
import tyro


class Settings(NamedTuple):
    agents: int = 24
    horizon: int = 50
    iterations: int = 250
    seed: int = 2
    lr: float = 1e-3


class Swarm:
    def __init__(self, n, seed):
        self.n = n
        self.rng = np.random.default_rng(seed)
        self.crowding = np.zeros(n)

    def reset(self):
        self.x = self.rng.uniform(-1, 1, (self.n, 2))
        self.v = np.zeros((self.n, 2))
        return self.observe()

    def observe(self):
        gap = self.x[None, :, :] - self.x[:, None, :]
        dist = np.sqrt((gap * gap).sum(-1))
        np.fill_diagonal(dist, 10.0)
        self.crowding = (dist < 0.2).sum(1)
        centre = gap.sum(1) / (self.n - 1)
        return np.concatenate([self.x, self.v, centre, dist.min(1, keepdims=True)], 1).astype(np.float32)

    def step(self, force):
        self.v = np.clip(0.9 * self.v + 0.05 * force, -0.2, 0.2)
        self.x = np.clip(self.x + self.v, -2, 2)
        obs = self.observe()
        pull = np.hypot(obs[:, 4], obs[:, 5])
        return obs, (-pull - 0.1 * self.crowding).astype(np.float32)


def train(cfg: Settings):
    torch.manual_seed(cfg.seed)
    torch.set_num_threads(1)
    env = Swarm(cfg.agents, cfg.seed)
    actor = nn.Sequential(nn.Linear(7, 64), nn.Tanh(), nn.Linear(64, 2))
    critic = nn.Sequential(nn.Linear(7, 64), nn.Tanh(), nn.Linear(64, 1))
    log_std = nn.Parameter(torch.full((2,), -0.5))
    params = [*actor.parameters(), *critic.parameters(), log_std]
    opt = torch.optim.Adam(params, lr=cfg.lr)
    updates, stamps = 0, [time.perf_counter()]
    for _ in range(cfg.iterations):
        obs = env.reset()
        os, acts, rs = [], [], []
        for _ in range(cfg.horizon):
            with torch.no_grad():
                mean = actor(torch.from_numpy(obs))
                act = mean + log_std.exp() * torch.randn_like(mean)
            os.append(obs)
            acts.append(act)
            obs, reward = env.step(act.numpy())
            rs.append(reward)
        ret = np.zeros((cfg.horizon, cfg.agents), dtype=np.float32)
        run = np.zeros(cfg.agents, dtype=np.float32)
        for t in reversed(range(cfg.horizon)):
            run = rs[t] + 0.95 * run
            ret[t] = run
        o, a, g = torch.from_numpy(np.concatenate(os)), torch.cat(acts), torch.from_numpy(ret.reshape(-1))
        for _ in range(4):
            v = critic(o).squeeze(1)
            logp = torch.distributions.Normal(actor(o), log_std.exp()).log_prob(a).sum(1)
            loss = -(logp * (g - v).detach()).mean() + 0.5 * (g - v).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            updates += 1
        stamps.append(time.perf_counter())
    return env, params, updates, stamps


if __name__ == "__main__":
    cfg = tyro.cli(Settings)
    env, params, updates, stamps = train(cfg)
    first = cfg.iterations // 5
    speed = (cfg.iterations - first) / (stamps[-1] - stamps[first])
    print(
        json.dumps(
            {
                "env_steps": None,
                "updates": updates,
                "units_per_s": speed,
                "checksum": float(sum(p.double().sum() for p in params)),
            }
        )
    )
