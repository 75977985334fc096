"""PPO for a fleet of boats in a current; all boats are stepped together."""

import argparse
import json
import math
import time

import numpy as np
import torch
from torch import nn


class Fleet:
    def __init__(self, n, seed):
        self.n = n
        self.rng = np.random.default_rng(seed)
        self.pos = np.empty((n, 2), np.float32)
        self.vel = np.zeros((n, 2), np.float32)
        self.goal = np.empty((n, 2), np.float32)
        self.t = self.rng.integers(0, 100, n)
        self._restart(np.arange(n))

    def _restart(self, i):
        self.pos[i] = self.rng.uniform(-1, 1, (len(i), 2))
        self.goal[i] = self.rng.uniform(-1, 1, (len(i), 2))
        self.vel[i] = 0.0

    def obs(self):
        return np.concatenate([self.pos, self.vel, self.goal - self.pos], 1)

    def step(self, action):
        self.vel *= 0.92
        self.vel += 0.03 * np.clip(action, -1, 1)
        self.vel[:, 0] += 0.005 * np.sin(3 * self.pos[:, 1])
        self.pos += self.vel
        np.clip(self.pos, -1.5, 1.5, out=self.pos)
        self.t += 1
        gap = self.goal - self.pos
        reward = -np.sqrt((gap * gap).sum(1))
        done = self.t >= 100
        if done.any():
            i = np.flatnonzero(done)
            self._restart(i)
            self.t[i] = 0
        return self.obs(), reward, done


class Model(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.pi = nn.Sequential(
            nn.Linear(6, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, 2),
        )
        self.v = nn.Sequential(
            nn.Linear(6, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, 1),
        )
        self.log_std = nn.Parameter(torch.full((2,), -0.5))

    def log_prob(self, mu, action):
        z = (action - mu) * torch.exp(-self.log_std)
        return (-0.5 * z * z - self.log_std).sum(-1) - math.log(2 * math.pi)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=40)
    ap.add_argument("--boats", type=int, default=128)
    ap.add_argument("--horizon", type=int, default=64)
    ap.add_argument("--hidden", type=int, default=256)
    args = ap.parse_args()
    torch.manual_seed(0)
    fleet, model = Fleet(args.boats, 0), Model(args.hidden)
    opt = torch.optim.Adam(model.parameters(), 3e-4, fused=True)
    n, size = args.horizon, args.horizon * args.boats
    obs = torch.empty(n + 1, args.boats, 6)
    act = torch.empty(n, args.boats, 2)
    rew, done = torch.empty(n, args.boats), torch.empty(n, args.boats)
    obs[0] = torch.from_numpy(fleet.obs())
    updates, skip = 0, args.iterations // 5
    for iteration in range(args.iterations):
        if iteration == skip:
            start = time.perf_counter()
        with torch.no_grad():
            std = model.log_std.exp()
            noise = torch.randn(n, args.boats, 2)
            for t in range(n):
                torch.add(model.pi(obs[t]), std * noise[t], out=act[t])
                o, r, d = fleet.step(act[t].numpy())
                obs[t + 1], rew[t], done[t] = torch.from_numpy(o), torch.from_numpy(r), torch.from_numpy(d)
            value = model.v(obs).squeeze(-1)
            delta = rew + 0.98 * (1 - done) * value[1:] - value[:-1]
            adv = torch.empty_like(rew)
            last = torch.zeros(args.boats)
            for t in reversed(range(n)):
                last = delta[t] + 0.98 * 0.95 * (1 - done[t]) * last
                adv[t] = last
            ret = (adv + value[:-1]).reshape(-1)
            logp = (-0.5 * noise * noise - model.log_std).sum(-1).reshape(-1) - math.log(2 * math.pi)
            adv = adv.reshape(-1)
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        flat_obs, flat_act = obs[:-1].reshape(size, 6), act.reshape(size, 2)
        for _ in range(4):
            for i in torch.randperm(size).split(1024):
                x = flat_obs[i]
                ratio = torch.exp(model.log_prob(model.pi(x), flat_act[i]) - logp[i])
                a = adv[i]
                pg = -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
                loss = pg + 0.5 * (model.v(x).squeeze(-1) - ret[i]).square().mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
                updates += 1
        obs[0] = obs[-1]
    rate = (args.iterations - skip) * size / (time.perf_counter() - start)
    checksum = float(sum(p.double().sum() for p in model.parameters()))
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": checksum}))


if __name__ == "__main__":
    main()
