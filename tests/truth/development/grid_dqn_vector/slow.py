"""Double DQN on many small grid worlds at once."""

import json
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import tyro


@dataclass
class Config:
    seed: int = 3
    num_envs: int = 256
    iterations: int = 9000
    grid: int = 7
    buffer_size: int = 100_000
    batch_size: int = 128
    learning_starts: int = 5_000
    train_every: int = 4
    gamma: float = 0.97
    lr: float = 5e-4
    target_every: int = 200


class GridWorlds:
    """Agents walk to a goal cell; everything is an array over the worlds."""

    MOVES = np.array([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def __init__(self, n, size, rng):
        self.n, self.size, self.rng = n, size, rng
        self.agent = rng.integers(0, size, (n, 2))
        self.goal = rng.integers(0, size, (n, 2))
        self.age = np.zeros(n, dtype=np.int64)

    def observe(self):
        obs = np.empty((self.n, 6), dtype=np.float32)
        obs[:, 0:2] = self.agent / self.size
        obs[:, 2:4] = self.goal / self.size
        obs[:, 4:6] = (self.goal - self.agent) / self.size
        return obs

    def step(self, actions):
        self.agent = np.clip(self.agent + self.MOVES[actions], 0, self.size - 1)
        self.age += 1
        reached = (self.agent == self.goal).all(1)
        reward = np.where(reached, 1.0, -0.02).astype(np.float32)
        next_obs = self.observe()
        over = reached | (self.age >= 40)
        if over.any():
            k = int(over.sum())
            self.agent[over] = self.rng.integers(0, self.size, (k, 2))
            self.goal[over] = self.rng.integers(0, self.size, (k, 2))
            self.age[over] = 0
        return next_obs, reward, reached


class ReplayBuffer:
    def __init__(self, size, obs_dim):
        self.size = size
        self.obs = np.zeros((size, obs_dim), dtype=np.float32)
        self.next_obs = np.zeros((size, obs_dim), dtype=np.float32)
        self.actions = np.zeros(size, dtype=np.int64)
        self.rewards = np.zeros(size, dtype=np.float32)
        self.dones = np.zeros(size, dtype=np.float32)
        self.pos = 0
        self.full = False

    def add(self, obs, action, reward, next_obs, done):
        self.obs[self.pos] = obs
        self.next_obs[self.pos] = next_obs
        self.actions[self.pos] = action
        self.rewards[self.pos] = reward
        self.dones[self.pos] = done
        self.pos += 1
        if self.pos == self.size:
            self.full, self.pos = True, 0

    def __len__(self):
        return self.size if self.full else self.pos

    def sample(self, n, rng):
        idx = rng.integers(0, len(self), n)
        arrays = (self.obs, self.actions, self.rewards, self.next_obs, self.dones)
        return [torch.from_numpy(a[idx]) for a in arrays]


def make_net():
    return nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


def main(cfg: Config):
    torch.manual_seed(cfg.seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(cfg.seed)
    envs = GridWorlds(cfg.num_envs, cfg.grid, rng)
    q, target = make_net(), make_net()
    target.load_state_dict(q.state_dict())
    opt = torch.optim.Adam(q.parameters(), lr=cfg.lr)
    buffer = ReplayBuffer(cfg.buffer_size, 6)

    obs = envs.observe()
    updates = 0
    for it in range(cfg.iterations):
        if it == cfg.iterations // 5:
            t0 = time.perf_counter()
        eps = max(0.05, 1.0 - it / (0.5 * cfg.iterations))
        with torch.inference_mode():
            actions = q(torch.from_numpy(obs)).argmax(1).numpy()
        explore = rng.random(cfg.num_envs) < eps
        actions = np.where(explore, rng.integers(0, 4, cfg.num_envs), actions)
        next_obs, rewards, dones = envs.step(actions)
        for i in range(cfg.num_envs):
            buffer.add(obs[i], actions[i], rewards[i], next_obs[i], dones[i])
        obs = envs.observe()

        if len(buffer) >= cfg.learning_starts and it % cfg.train_every == 0:
            s, a, r, s2, d = buffer.sample(cfg.batch_size, rng)
            with torch.no_grad():
                best = q(s2).argmax(1, keepdim=True)
                y = r + cfg.gamma * (1 - d) * target(s2).gather(1, best).squeeze(1)
            loss = F.smooth_l1_loss(q(s).gather(1, a[:, None]).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            updates += 1
            if updates % cfg.target_every == 0:
                target.load_state_dict(q.state_dict())
    took = time.perf_counter() - t0
    checksum = sum(p.double().sum().item() for p in q.parameters())
    print(
        json.dumps(
            {
                "env_steps": cfg.iterations * cfg.num_envs,
                "updates": updates,
                "units_per_s": (cfg.iterations - cfg.iterations // 5) / took,
                "checksum": checksum,
            }
        )
    )


if __name__ == "__main__":
    main(tyro.cli(Config))
