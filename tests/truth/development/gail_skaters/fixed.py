"""GAIL: imitate figure skaters from recorded runs. Discriminator against policy gradient, everything in one file."""
import json
import sys
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


class Rink:
    """Skaters glide on ice: position, velocity, phase of the figure. 24 at once, 60 steps each."""

    def __init__(self, n, rng):
        self.n, self.rng = n, rng

    def reset(self):
        self.p = self.rng.normal(size=(self.n, 2)) * 0.2 + np.array([1.0, 0.0])
        self.v = np.zeros((self.n, 2))
        self.t = 0
        return self.obs()

    def obs(self):
        ph = np.full((self.n, 1), 0.1 * self.t)
        return np.concatenate([self.p, self.v, np.sin(ph), np.cos(ph)], 1).astype(np.float32)

    def step(self, u):
        self.v = 0.97 * self.v + 0.15 * np.clip(u, -1, 1)
        self.p = self.p + 0.15 * self.v
        self.t += 1
        return self.obs()

    def expert(self):
        """Follow a figure of eight."""
        a = 0.1 * self.t
        want = np.array([np.cos(a), np.sin(2 * a) / 2])
        return np.clip(2.0 * (want - self.p) - 1.2 * self.v + 0.1 * self.rng.normal(size=(self.n, 2)), -1, 1)


@dataclass
class Recording:
    skater: int
    obs: np.ndarray
    act: np.ndarray


def record(rink, rounds):
    out = []
    for k in range(rounds):
        o, O, A = rink.reset(), [], []
        for _ in range(60):
            a = rink.expert()
            O.append(o)
            A.append(a.astype(np.float32))
            o = rink.step(a)
        O, A = np.stack(O, 1), np.stack(A, 1)
        out += [Recording(k * rink.n + i, O[i], A[i]) for i in range(rink.n)]
    return out


class ExpertData:
    def __init__(self, recordings):
        self.recordings = recordings
        self.data = self.pairs()

    def pairs(self):
        obs = np.concatenate([r.obs for r in self.recordings])
        act = np.concatenate([r.act for r in self.recordings])
        return np.concatenate([obs, act], axis=1)

    def batch(self, n, rng):
        return torch.from_numpy(self.data[rng.integers(len(self.data), size=n)])


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 2))
        self.v = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 1))
        self.log_std = nn.Parameter(torch.full((2,), -1.0))

    def logp(self, obs, act):
        return (-((act - self.mu(obs)) / self.log_std.exp()) ** 2 / 2 - self.log_std).sum(-1)


def discount(r, gamma=0.97):
    out, acc = np.zeros_like(r), 0.0
    for t in range(len(r) - 1, -1, -1):
        acc = r[t] + gamma * acc
        out[t] = acc
    return out


def main(iterations):
    rng = np.random.default_rng(77)
    torch.manual_seed(77)
    rink = Rink(24, rng)
    expert = ExpertData(record(rink, 80))
    print(f"{len(expert.recordings)} recordings, {len(expert.pairs())} pairs")
    policy = Policy()
    disc = nn.Sequential(nn.Linear(8, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 1))
    opt_p = torch.optim.Adam(policy.parameters(), lr=2e-3)
    opt_d = torch.optim.Adam(disc.parameters(), lr=1e-4)
    updates, t0 = 0, None
    for it in range(iterations):
        if it == iterations // 5:
            t0 = time.perf_counter()
        o, O, A = rink.reset(), [], []
        std = policy.log_std.detach().exp().numpy()
        for _ in range(60):
            with torch.no_grad():
                a = policy.mu(torch.from_numpy(o)).numpy() + std * rng.normal(size=(24, 2)).astype(np.float32)
            O.append(o)
            A.append(a)
            o = rink.step(a)
        obs, act = torch.from_numpy(np.stack(O)), torch.from_numpy(np.stack(A))
        fake = torch.cat([obs, act], -1)
        flat = fake.flatten(0, 1)
        for _ in range(5):
            mine = flat[torch.from_numpy(rng.integers(len(flat), size=256))]
            theirs = expert.batch(256, rng)
            d_loss = F.softplus(disc(mine)).mean() + F.softplus(-disc(theirs)).mean()
            opt_d.zero_grad()
            d_loss.backward()
            opt_d.step()
            updates += 1
        with torch.no_grad():
            reward = F.softplus(disc(fake).squeeze(-1)).numpy()
        ret = torch.from_numpy(discount(reward))
        for _ in range(3):
            v = policy.v(obs).squeeze(-1)
            adv = (ret - v).detach()
            adv = (adv - adv.mean()) / (adv.std() + 1e-6)
            loss = -(policy.logp(obs, act) * adv).mean() + 0.1 * F.mse_loss(v, ret)
            opt_p.zero_grad()
            loss.backward()
            opt_p.step()
            updates += 1
        if it % 50 == 0:
            print(f"iteration {it}: discriminator {d_loss.item():.3f}, imitation reward {reward.mean():.3f}")
    rate = (iterations - iterations // 5) / (time.perf_counter() - t0)
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": d_loss.item() + float(ret.mean())}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 240)
