"""Actor-critic in a cave with pits. The cave is the same in every episode, only start and exit move."""

import json
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import tyro

STEPS = ((0, 1), (1, 0), (0, -1), (-1, 0))


@dataclass
class Args:
    updates: int = 1400
    n_steps: int = 64
    size: int = 24
    limit: int = 40
    seed: int = 12


class Cave:
    def __init__(self, args: Args):
        self.size, self.limit, self.seed = args.size, args.limit, args.seed
        self.rng = np.random.default_rng(args.seed)

    def carve(self):
        dice = np.random.default_rng(self.seed)
        rock = [[dice.random() < 0.4 for _ in range(self.size)] for _ in range(self.size)]
        for _ in range(3):
            rock = [[self.neighbours(rock, r, c) >= 5 for c in range(self.size)] for r in range(self.size)]
        return np.array(rock)

    def neighbours(self, rock, r, c):
        count = 0
        for dr in (-1, 0, 1):
            for dc in (-1, 0, 1):
                rr, cc = r + dr, c + dc
                count += not (0 <= rr < self.size and 0 <= cc < self.size) or rock[rr][cc]
        return count

    def reset(self):
        self.rock = self.carve()
        free = np.argwhere(~self.rock)
        start, end = self.rng.choice(len(free), 2, replace=False)
        self.at, self.exit = tuple(free[start].tolist()), tuple(free[end].tolist())
        self.t = 0
        return self.look()

    def blocked(self, r, c):
        return not (0 <= r < self.size and 0 <= c < self.size) or bool(self.rock[r, c])

    def look(self):
        r, c = self.at
        walls = [float(self.blocked(r + dr, c + dc)) for dr, dc in STEPS]
        away = [(self.exit[0] - r) / self.size, (self.exit[1] - c) / self.size]
        return np.array(walls + away, dtype=np.float32)

    def step(self, action):
        r, c = self.at[0] + STEPS[action][0], self.at[1] + STEPS[action][1]
        before = abs(self.exit[0] - self.at[0]) + abs(self.exit[1] - self.at[1])
        if not self.blocked(r, c):
            self.at = (r, c)
        after = abs(self.exit[0] - self.at[0]) + abs(self.exit[1] - self.at[1])
        self.t += 1
        found = self.at == self.exit
        return self.look(), 0.1 * (before - after) + float(found), found or self.t >= self.limit


def main(args: Args):
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(args.seed)
    env = Cave(args)
    body = nn.Sequential(nn.Linear(6, 64), nn.Tanh())
    pi, v = nn.Linear(64, 4), nn.Linear(64, 1)
    params = [*body.parameters(), *pi.parameters(), *v.parameters()]
    opt = torch.optim.Adam(params, lr=1e-3)
    obs, steps = env.reset(), args.n_steps
    o, a = np.zeros((steps, 6), np.float32), np.zeros(steps, np.int64)
    r, d = np.zeros(steps, np.float32), np.zeros(steps, np.float32)
    for k in range(args.updates):
        if k == args.updates // 5:
            t0 = time.perf_counter()
        with torch.inference_mode():
            for t in range(steps):
                logits = pi(body(torch.from_numpy(obs))).numpy()
                o[t], a[t] = obs, (logits + rng.gumbel(size=4)).argmax()
                obs, r[t], d[t] = env.step(int(a[t]))
                if d[t]:
                    obs = env.reset()
            tail = float(v(body(torch.from_numpy(obs))))
        g = np.zeros(steps, np.float32)
        for t in range(steps - 1, -1, -1):
            tail = r[t] + 0.97 * tail * (1 - d[t])
            g[t] = tail
        h, target = body(torch.from_numpy(o)), torch.from_numpy(g)
        value = v(h).squeeze(1)
        nll = F.cross_entropy(pi(h), torch.from_numpy(a), reduction="none")
        loss = (nll * (target - value).detach()).mean() + F.mse_loss(value, target)
        opt.zero_grad()
        loss.backward()
        opt.step()
    speed = (args.updates - args.updates // 5) / (time.perf_counter() - t0)
    total = float(sum(p.double().sum() for p in params))
    print(json.dumps({"env_steps": None, "updates": args.updates, "units_per_s": speed, "checksum": total}))


if __name__ == "__main__":
    main(tyro.cli(Args))
