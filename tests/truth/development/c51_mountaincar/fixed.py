import dataclasses
import json
import random
import time
from argparse import ArgumentParser

import gymnasium as gym
import numpy as np
import torch
import torch.nn as nn


@dataclasses.dataclass
class Config:
    env: str = "MountainCar-v0"
    seed: int = 3
    steps: int = 9000
    lr: float = 2.5e-4
    buffer_size: int = 20000
    gamma: float = 0.99
    batch_size: int = 64
    n_atoms: int = 51
    v_min: float = -100.0
    v_max: float = 0.0
    learn_start: int = 1000
    train_every: int = 4
    target_every: int = 500


class DistributionalQ(nn.Module):
    def __init__(self, cfg: Config, n_obs: int, n_actions: int):
        super().__init__()
        self.n_actions, self.n_atoms = n_actions, cfg.n_atoms
        self.register_buffer("z", torch.linspace(cfg.v_min, cfg.v_max, cfg.n_atoms))
        self.net = nn.Sequential(
            nn.Linear(n_obs, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, n_actions * cfg.n_atoms),
        )

    def forward(self, x):
        return self.net(x).view(-1, self.n_actions, self.n_atoms)

    def greedy(self, x):
        pmf = torch.softmax(self(x), dim=2)
        return (pmf * self.z).sum(2).argmax(1), pmf


class Replay:
    """Arrays of fixed size, overwritten from the front."""

    def __init__(self, size, n_obs, rng):
        self.obs = np.zeros((size, n_obs), np.float32)
        self.next_obs = np.zeros((size, n_obs), np.float32)
        self.action = np.zeros(size, np.int64)
        self.reward = np.zeros(size, np.float32)
        self.done = np.zeros(size, np.float32)
        self.size, self.n, self.rng = size, 0, rng

    def add(self, o, a, r, o2, d):
        i = self.n % self.size
        self.obs[i], self.action[i], self.reward[i], self.next_obs[i], self.done[i] = o, a, r, o2, d
        self.n += 1

    def sample(self, k):
        idx = self.rng.integers(0, min(self.n, self.size), k)
        return tuple(
            torch.from_numpy(x[idx]) for x in (self.obs, self.action, self.reward, self.next_obs, self.done)
        )


def project(cfg, z, next_pmf, reward, done):
    """Categorical projection of r + gamma * z onto the fixed support."""
    delta_z = (cfg.v_max - cfg.v_min) / (cfg.n_atoms - 1)
    batch = reward.shape[0]
    target = torch.zeros(batch, cfg.n_atoms)
    tz = (reward[:, None] + (1 - done[:, None]) * cfg.gamma * z).clamp(cfg.v_min, cfg.v_max)
    b = (tz - cfg.v_min) / delta_z
    low = b.floor().long().clamp(0, cfg.n_atoms - 1)
    up = (low + 1).clamp(0, cfg.n_atoms - 1)
    w_up = b - low
    target.scatter_add_(1, low, next_pmf * (1 - w_up))
    target.scatter_add_(1, up, next_pmf * w_up)
    return target


def train(cfg: Config):
    random.seed(cfg.seed)
    torch.manual_seed(cfg.seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(cfg.seed)
    env = gym.make(cfg.env)
    n_obs, n_actions = env.observation_space.shape[0], int(env.action_space.n)
    q, q_target = DistributionalQ(cfg, n_obs, n_actions), DistributionalQ(cfg, n_obs, n_actions)
    q_target.load_state_dict(q.state_dict())
    opt = torch.optim.Adam(q.parameters(), lr=cfg.lr, eps=0.01 / cfg.batch_size)
    replay = Replay(cfg.buffer_size, n_obs, rng)
    rows = torch.arange(cfg.batch_size)

    updates = 0
    obs, _ = env.reset(seed=cfg.seed)
    clock, clock_step = time.time(), 0
    for step in range(cfg.steps):
        if step == cfg.steps // 5:
            clock, clock_step = time.time(), step
        eps = max(0.05, 1 - step / (0.5 * cfg.steps))
        if random.random() < eps:
            action = random.randrange(n_actions)
        else:
            with torch.no_grad():
                action = int(q.greedy(torch.from_numpy(obs)[None])[0])
        obs2, reward, term, trunc, _ = env.step(action)
        replay.add(obs, action, reward, obs2, term)
        obs = env.reset()[0] if term or trunc else obs2

        if step >= cfg.learn_start and step % cfg.train_every == 0:
            o, a, r, o2, d = replay.sample(cfg.batch_size)
            with torch.no_grad():
                a2, pmf2 = q_target.greedy(o2)
                target = project(cfg, q.z, pmf2[rows, a2], r, d)
            logp = torch.log_softmax(q(o)[rows, a], dim=1)
            loss = -(target * logp).sum(1).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            updates += 1
            if updates % cfg.target_every == 0:
                q_target.load_state_dict(q.state_dict())
                print(f"step {step}: loss {loss.item():.4f}")
    seconds = time.time() - clock
    weights = float(sum(p.detach().double().abs().sum() for p in q.parameters()))
    return {
        "env_steps": cfg.steps,
        "updates": updates,
        "units_per_s": (cfg.steps - clock_step) / seconds,
        "checksum": weights,
    }


if __name__ == "__main__":
    parser = ArgumentParser()
    for field in dataclasses.fields(Config):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    print(json.dumps(train(Config(**vars(parser.parse_args())))))
