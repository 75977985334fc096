"""Random network distillation on islands joined by bridges that need keys. 32 worlds in lockstep, A2C with GAE."""
import json
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
UPDATES = int(sys.argv[1]) if len(sys.argv) > 1 else 180
WORLDS, STEPS, SIZE = 32, 16, 11


class Islands:
    """Four rooms of water-locked land. Doors between them open after the key of that room was found."""

    def __init__(self, n, rng):
        self.n, self.rng = n, rng
        self.wall = np.zeros((SIZE, SIZE), dtype=bool)
        self.wall[SIZE // 2, :] = self.wall[:, SIZE // 2] = True
        self.wall[0, :] = self.wall[-1, :] = self.wall[:, 0] = self.wall[:, -1] = True
        c = SIZE // 2
        self.doors = np.array([[c, 2], [SIZE - 3, c], [c, SIZE - 2]])
        self.keys = np.array([[2, 3], [SIZE - 2, 2], [SIZE - 3, SIZE - 2]])
        self.goal = np.array([1, SIZE - 2])
        self.move = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]])
        self.pos = np.ones((n, 2), dtype=int)
        self.held = np.zeros((n, 3), dtype=bool)
        self.age = rng.integers(0, 150, size=n)

    def obs(self):
        o = np.zeros((self.n, 2 * SIZE + 3), dtype=np.float32)
        i = np.arange(self.n)
        o[i, self.pos[:, 0]] = 1.0
        o[i, SIZE + self.pos[:, 1]] = 1.0
        o[:, 2 * SIZE:] = self.held
        return o

    def step(self, a):
        new = self.pos + self.move[a]
        blocked = self.wall[new[:, 0], new[:, 1]]
        for k in range(3):
            at_door = (new == self.doors[k]).all(1)
            blocked &= ~(at_door & self.held[:, k])
        self.pos = np.where(blocked[:, None], self.pos, new)
        for k in range(3):
            self.held[:, k] |= (self.pos == self.keys[k]).all(1)
        self.age += 1
        won = (self.pos == self.goal).all(1)
        done = won | (self.age >= 200)
        self.pos[done], self.held[done], self.age[done] = 1, False, 0
        return self.obs(), won.astype(np.float32), done.astype(np.float32)


class Novelty:
    """Prediction error of a fixed random network, divided by its standard deviation so far."""

    def __init__(self, n_in):
        self.fixed = nn.Sequential(nn.Linear(n_in, 512), nn.ReLU(), nn.Linear(512, 64))
        self.pred = nn.Sequential(nn.Linear(n_in, 512), nn.ReLU(), nn.Linear(512, 64))
        self.count, self.mean, self.m2 = 0, 0.0, 0.0

    def error(self, x):
        with torch.no_grad():
            target = self.fixed(x)
        return ((self.pred(x) - target) ** 2).mean(1)

    def reward(self, obs):
        with torch.no_grad():
            e = self.error(torch.from_numpy(obs)).numpy()
        n, m = len(e), float(e.mean(dtype=np.float64))
        delta = m - self.mean
        self.m2 += float(((e - m) ** 2).sum(dtype=np.float64)) + delta ** 2 * self.count * n / (self.count + n)
        self.mean += delta * n / (self.count + n)
        self.count += n
        return e / ((self.m2 / self.count) ** 0.5 + 1e-8)


class Policy(nn.Module):
    def __init__(self, n_in):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_in, 256), nn.Tanh())
        self.pi, self.v = nn.Linear(256, 4), nn.Linear(256, 1)

    def forward(self, x):
        h = self.body(x)
        return self.pi(h), self.v(h).squeeze(-1)


rng = np.random.default_rng(9)
torch.manual_seed(9)
world = Islands(WORLDS, rng)
obs = world.obs()
policy, novelty = Policy(obs.shape[1]), Novelty(obs.shape[1])
opt = torch.optim.Adam([*policy.parameters(), *novelty.pred.parameters()], lr=1e-3, fused=True)
visited, wins, t0 = np.zeros((SIZE, SIZE), dtype=int), 0, None
for u in range(UPDATES):
    if u == UPDATES // 5:
        t0 = time.perf_counter()
    O, A, R, D = [], [], [], []
    for _ in range(STEPS):
        with torch.no_grad():
            p = policy(torch.from_numpy(obs))[0].softmax(1).numpy()
        a = (rng.random((WORLDS, 1)) > p.cumsum(1)[:, :-1]).sum(1)
        O.append(obs)
        A.append(a)
        obs, r, d = world.step(a)
        np.add.at(visited, (world.pos[:, 0], world.pos[:, 1]), 1)
        R.append(5.0 * r + 0.3 * novelty.reward(obs).astype(np.float32))
        D.append(d)
        wins += int(r.sum())
    x = torch.from_numpy(np.stack(O + [obs]))
    with torch.no_grad():
        v = policy(x)[1].numpy()
    adv, last = np.zeros((STEPS, WORLDS), dtype=np.float32), 0.0
    for t in reversed(range(STEPS)):
        last = R[t] + 0.99 * v[t + 1] * (1 - D[t]) - v[t] + 0.99 * 0.95 * (1 - D[t]) * last
        adv[t] = last
    ret = torch.from_numpy(adv + v[:-1])
    logits, value = policy(x[:-1])
    logp = F.log_softmax(logits, -1)
    taken = logp.gather(-1, torch.from_numpy(np.stack(A))[..., None]).squeeze(-1)
    loss = -(taken * torch.from_numpy(adv)).mean() + 0.5 * F.mse_loss(value, ret) + 0.01 * (logp.exp() * logp).sum(-1).mean()
    loss = loss + novelty.error(x[1:].flatten(0, 1)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if u % 40 == 0:
        print(f"update {u:4d}: cells visited {(visited > 0).sum()}, wins {wins}, loss {loss.item():.3f}")
rate = (UPDATES - UPDATES // 5) * STEPS * WORLDS / (time.perf_counter() - t0)
print(json.dumps({"env_steps": None, "updates": UPDATES, "units_per_s": rate, "checksum": loss.item() + int((visited > 0).sum())}))
