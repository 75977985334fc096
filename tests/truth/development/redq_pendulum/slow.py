"""REDQ: randomised ensembled double Q-learning (Chen et al. 2021) on Pendulum."""
import argparse
import copy
import json
import math
import time
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)


@dataclass
class Config:
    steps: int = 700
    warmup: int = 100
    ensemble: int = 10
    subset: int = 2
    utd: int = 2
    batch: int = 64
    hidden: int = 64
    gamma: float = 0.99
    tau: float = 0.005
    lr: float = 1e-3
    seed: int = 4


class Actor(nn.Module):
    def __init__(self, obs_dim, act_dim, hidden):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs_dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
                                  nn.Linear(hidden, 2 * act_dim))

    def forward(self, obs):
        mu, log_std = self.body(obs).chunk(2, -1)
        std = log_std.clamp(-8, 2).exp()
        noise = torch.randn_like(mu)
        u = mu + std * noise
        a = torch.tanh(u)
        logp = (-0.5 * noise ** 2 - std.log() - 0.5 * math.log(2 * math.pi)
                - torch.log(1 - a ** 2 + 1e-6)).sum(-1)
        return a, logp


class Critic(nn.Module):
    def __init__(self, n_in, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n_in, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
                                 nn.Linear(hidden, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


class Critics(nn.Module):
    """N independent critics; returns (N, batch)."""

    def __init__(self, n, n_in, hidden):
        super().__init__()
        self.members = nn.ModuleList(Critic(n_in, hidden) for _ in range(n))

    def forward(self, x):
        return torch.stack([member(x) for member in self.members])


def run(cfg):
    torch.manual_seed(cfg.seed)
    rng = np.random.default_rng(cfg.seed)
    env = gym.make("Pendulum-v1")
    obs_dim, act_dim = 3, 1
    actor = Actor(obs_dim, act_dim, cfg.hidden)
    critics = Critics(cfg.ensemble, obs_dim + act_dim, cfg.hidden)
    targets = copy.deepcopy(critics).requires_grad_(False)
    pi_opt = torch.optim.Adam(actor.parameters(), lr=cfg.lr)
    q_opt = torch.optim.Adam(critics.parameters(), lr=cfg.lr)
    alpha = 0.1
    data = {k: torch.zeros(cfg.steps, d) for k, d in dict(o=obs_dim, a=act_dim, n=obs_dim).items()}
    data["r"] = torch.zeros(cfg.steps)
    source, shadow = list(critics.parameters()), list(targets.parameters())

    obs, _ = env.reset(seed=cfg.seed)
    updates, start = 0, 0.0
    for t in range(cfg.steps):
        if t == cfg.steps // 5:
            start = time.perf_counter()
        if t < cfg.warmup:
            act = rng.uniform(-1, 1, act_dim).astype(np.float32)
        else:
            with torch.no_grad():
                act = actor(torch.from_numpy(obs))[0].numpy()
        nxt, rew, term, trunc, _ = env.step(2.0 * act)
        data["o"][t], data["a"][t] = torch.from_numpy(obs), torch.from_numpy(act)
        data["n"][t], data["r"][t] = torch.from_numpy(nxt), float(rew) / 10.0
        obs = env.reset()[0] if term or trunc else nxt
        if t < cfg.warmup:
            continue
        for _ in range(cfg.utd):
            idx = torch.from_numpy(rng.integers(0, t + 1, cfg.batch))
            o, a, n, r = data["o"][idx], data["a"][idx], data["n"][idx], data["r"][idx]
            with torch.no_grad():
                n_act, n_logp = actor(n)
                pick = torch.from_numpy(rng.choice(cfg.ensemble, cfg.subset, replace=False))
                q_next = targets(torch.cat([n, n_act], -1))[pick].amin(0)
                y = r + cfg.gamma * (q_next - alpha * n_logp)
            loss = ((critics(torch.cat([o, a], -1)) - y) ** 2).mean(-1).sum()
            q_opt.zero_grad()
            loss.backward()
            q_opt.step()
            updates += 1
            with torch.no_grad():
                torch._foreach_lerp_(shadow, source, cfg.tau)
        new_a, logp = actor(o)
        pi_loss = (alpha * logp - critics(torch.cat([o, new_a], -1)).mean(0)).mean()
        pi_opt.zero_grad()
        pi_loss.backward()
        pi_opt.step()
        updates += 1
    rate = (cfg.steps - cfg.steps // 5) / (time.perf_counter() - start)
    check = round(float(data["r"].mean()), 6)
    return {"env_steps": cfg.steps, "updates": updates, "units_per_s": rate, "checksum": check}


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=Config.steps)
    print(json.dumps(run(Config(steps=ap.parse_args().steps))))
