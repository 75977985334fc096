"""PETS in miniature: an ensemble of dynamics networks and a cross-entropy planner for a two-link arm."""
import argparse
import json
import math
import time

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)


class Arm:
    """Two links in a plane, torques at both joints, the tip should reach a point."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.q = self.rng.uniform(-1, 1, 2)
        self.dq = np.zeros(2)
        ang, rad = self.rng.uniform(-math.pi, math.pi), self.rng.uniform(0.5, 1.6)
        self.goal = np.array([rad * math.cos(ang), rad * math.sin(ang)])
        return self.obs()

    def obs(self):
        return np.concatenate([np.cos(self.q), np.sin(self.q), self.dq, self.goal]).astype(np.float32)

    def step(self, u):
        for _ in range(2):
            acc = 4.0 * u - 0.8 * self.dq - np.array([0.6 * math.sin(self.q[1]) * self.dq[1] ** 2, 0.0])
            self.dq = np.clip(self.dq + 0.05 * acc, -6, 6)
            self.q = self.q + 0.05 * self.dq
        tip = np.array([math.cos(self.q[0]) + math.cos(self.q.sum()), math.sin(self.q[0]) + math.sin(self.q.sum())])
        return self.obs(), -float(np.linalg.norm(tip - self.goal)) - 0.01 * float(u @ u)


class Ensemble(nn.Module):
    """All members at once with batched matrices."""

    def __init__(self, members=4, hidden=48):
        super().__init__()
        def weight(i, o):
            return nn.Parameter(torch.randn(members, i, o) / math.sqrt(i))
        self.w1, self.w2, self.w3 = weight(8, hidden), weight(hidden, hidden), weight(hidden, 6)
        self.b1, self.b2 = nn.Parameter(torch.zeros(members, 1, hidden)), nn.Parameter(torch.zeros(members, 1, hidden))
        self.members = members

    def forward(self, x):
        h = torch.tanh(torch.baddbmm(self.b1, x, self.w1))
        h = torch.tanh(torch.baddbmm(self.b2, h, self.w2))
        return torch.bmm(h, self.w3)


def reward(state, goal, u):
    c, s = state[..., 0:2], state[..., 2:4]
    c12 = c[..., 0] * c[..., 1] - s[..., 0] * s[..., 1]
    s12 = s[..., 0] * c[..., 1] + c[..., 0] * s[..., 1]
    dx, dy = c[..., 0] + c12 - goal[0], s[..., 0] + s12 - goal[1]
    return -torch.sqrt(dx * dx + dy * dy + 1e-8) - 0.01 * (u * u).sum(-1)


class Planner:
    def __init__(self, model, horizon, samples, rounds, gen):
        self.model, self.horizon, self.samples, self.rounds, self.gen = model, horizon, samples, rounds, gen
        self.mean = torch.zeros(horizon, 2)

    def rollout(self, obs, plans):
        m, n = self.model.members, self.samples // self.model.members
        state = obs[:6].expand(m, n, 6)
        plans = plans.view(m, n, self.horizon, 2)
        total = torch.zeros(m, n)
        for t in range(self.horizon):
            u = plans[:, :, t]
            state = state + self.model(torch.cat([state, u], -1))
            total = total + reward(state, obs[6:], u)
        return total.flatten()

    def act(self, obs):
        obs = torch.from_numpy(obs)
        mean, std = torch.cat([self.mean[1:], torch.zeros(1, 2)]), torch.full((self.horizon, 2), 0.6)
        for _ in range(self.rounds):
            noise = torch.randn(self.samples, self.horizon, 2, generator=self.gen)
            plans = (mean + std * noise).clamp(-1, 1)
            score = self.rollout(obs, plans)
            elite = plans[score.topk(self.samples // 10).indices]
            mean, std = elite.mean(0), elite.std(0) + 0.02
        self.mean = mean
        return mean[0].numpy().astype(np.float64)


def fit(model, opt, X, Y, gen, updates):
    for _ in range(updates):
        idx = torch.randint(len(X), (model.members, 64), generator=gen)
        loss = ((model(X[idx]) - Y[idx]) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--episodes", type=int, default=9)
    ap.add_argument("--horizon", type=int, default=15)
    ap.add_argument("--samples", type=int, default=200)
    args = ap.parse_args()
    torch.manual_seed(3)
    gen = torch.Generator().manual_seed(3)
    env, model = Arm(3), Ensemble()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    planner = Planner(model, args.horizon, args.samples, 4, gen)
    rows, targets, updates, t0, score = [], [], 0, None, 0.0
    for ep in range(args.episodes):
        if ep == max(1, args.episodes // 5):
            t0 = time.perf_counter()
        obs, score = env.reset(), 0.0
        for _ in range(50):
            u = env.rng.uniform(-1, 1, 2) if ep == 0 else planner.act(obs)
            nxt, r = env.step(u)
            rows.append(np.concatenate([obs[:6], u]).astype(np.float32))
            targets.append(nxt[:6] - obs[:6])
            obs, score = nxt, score + r
        X, Y = torch.from_numpy(np.stack(rows)), torch.from_numpy(np.stack(targets))
        loss = fit(model, opt, X, Y, gen, 150)
        updates += 150
        print(f"episode {ep}: return {score:.2f}, model loss {loss:.5f}")
    rate = (args.episodes - max(1, args.episodes // 5)) / (time.perf_counter() - t0)
    print(json.dumps({"env_steps": None, "updates": updates, "units_per_s": rate, "checksum": loss + score}))


if __name__ == "__main__":
    main()
