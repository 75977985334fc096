"""DQN with 128 bandit-like navigation tasks at once; the replay is one block of memory per field."""

import json
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import tyro


@dataclass
class Hyper:
    iterations: int = 14_000
    tasks: int = 128
    capacity: int = 65536
    batch: int = 256
    train_every: int = 2
    seed: int = 5


class Ring:
    def __init__(self, capacity, dim):
        self.capacity, self.count = capacity, 0
        self.obs = torch.zeros(capacity, dim)
        self.nxt = torch.zeros(capacity, dim)
        self.act = torch.zeros(capacity, 1, dtype=torch.int64)
        self.rew, self.end = torch.zeros(capacity), torch.zeros(capacity)

    def put(self, obs, act, rew, nxt, end):
        at = self.count % self.capacity
        part = slice(at, at + len(obs))
        self.obs[part], self.nxt[part], self.act[part, 0] = obs, nxt, act
        self.rew[part], self.end[part] = rew, end
        self.count += len(obs)

    def draw(self, n):
        pick = torch.randint(0, min(self.count, self.capacity), (n,))
        return self.obs[pick], self.act[pick], self.rew[pick], self.nxt[pick], self.end[pick]


def main(cfg: Hyper):
    torch.manual_seed(cfg.seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(cfg.seed)
    moves = np.array([[0.1, 0], [-0.1, 0], [0, 0.1], [0, -0.1], [0, 0]], np.float32)
    pos = rng.uniform(-1, 1, (cfg.tasks, 2)).astype(np.float32)
    goal = rng.uniform(-1, 1, (cfg.tasks, 2)).astype(np.float32)
    q = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 5))
    target = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 5))
    target.load_state_dict(q.state_dict())
    opt = torch.optim.Adam(q.parameters(), lr=3e-4, fused=True)
    ring, updates = Ring(cfg.capacity, 4), 0
    obs = torch.from_numpy(np.concatenate([pos, goal], 1))
    for i in range(cfg.iterations):
        if i == cfg.iterations // 5:
            t0 = time.perf_counter()
        with torch.inference_mode():
            act = q(obs).argmax(1).numpy()
        wander = rng.random(cfg.tasks) < max(0.05, 1 - 2 * i / cfg.iterations)
        act = np.where(wander, rng.integers(0, 5, cfg.tasks), act)
        pos = np.clip(pos + moves[act], -1, 1)
        away = np.abs(pos - goal).sum(1)
        there = away < 0.15
        nxt = torch.from_numpy(np.concatenate([pos, goal], 1))
        ring.put(
            obs,
            torch.from_numpy(act),
            torch.from_numpy(there - 0.1 * away),
            nxt,
            torch.from_numpy(there.astype(np.float32)),
        )
        if there.any():
            pos[there] = rng.uniform(-1, 1, (int(there.sum()), 2))
            nxt = torch.from_numpy(np.concatenate([pos, goal], 1))
        obs = nxt
        if i >= 50 and i % cfg.train_every == 0:
            o, a, r, o2, d = ring.draw(cfg.batch)
            with torch.no_grad():
                y = r + 0.95 * (1 - d) * target(o2).amax(1)
            loss = F.smooth_l1_loss(q(o).gather(1, a).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            updates += 1
            if updates % 250 == 0:
                target.load_state_dict(q.state_dict())
    speed = (cfg.iterations - cfg.iterations // 5) / (time.perf_counter() - t0)
    total = float(sum(p.double().sum() for p in q.parameters()))
    print(
        json.dumps(
            {
                "env_steps": cfg.iterations * cfg.tasks,
                "updates": updates,
                "units_per_s": speed,
                "checksum": total,
            }
        )
    )


if __name__ == "__main__":
    main(tyro.cli(Hyper))
