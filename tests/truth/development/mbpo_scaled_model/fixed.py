"""Model-based control of MountainCarContinuous: a probabilistic dynamics net and short random-shooting plans in it."""
import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn


class Store:
    def __init__(self, size):
        self.inputs = np.zeros((size, 3), np.float32)
        self.outputs = np.zeros((size, 3), np.float32)
        self.n = 0

    def add(self, obs, act, nxt, rew):
        self.inputs[self.n] = (*obs, act)
        self.outputs[self.n] = (*(nxt - obs), rew)
        self.n += 1

    def all(self):
        return self.inputs[:self.n], self.outputs[:self.n]


class DynamicsModel:
    """Gaussian net on standardised data."""

    def __init__(self, store, hidden=48):
        self.store = store
        self.net = nn.Sequential(nn.Linear(3, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 6))
        self.opt = torch.optim.Adam(self.net.parameters(), 1e-3)
        self.updates = 0

    def scalers(self):
        x, y = self.store.all()
        return [torch.from_numpy(s) for s in (x.mean(0), x.std(0) + 1e-6, y.mean(0), y.std(0) + 1e-6)]

    def fit(self, rounds, rng):
        x, y = map(torch.from_numpy, self.store.all())
        self.scale = xm, xs, ym, ys = self.scalers()
        x, y = (x - xm) / xs, (y - ym) / ys
        for _ in range(rounds):
            idx = torch.from_numpy(rng.integers(0, len(x), 128))
            mean, logvar = self.net(x[idx]).chunk(2, -1)
            logvar = logvar.clamp(-8, 2)
            loss = ((y[idx] - mean) ** 2 * (-logvar).exp() + logvar).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.updates += 1

    @torch.no_grad()
    def predict(self, obs, act):
        xm, xs, ym, ys = self.scale
        x = torch.cat([obs, act[:, None]], 1)
        mean = self.net((x - xm) / xs)[:, :3]
        out = mean * ys + ym
        return obs + out[:, :2], out[:, 2]


def plan(model, obs, rng, horizon, candidates):
    knots = torch.from_numpy(rng.uniform(-1, 1, (horizon, candidates)).astype(np.float32))
    s = torch.from_numpy(np.asarray(obs, np.float32)).expand(candidates, 2)
    total = torch.zeros(candidates)
    for t in range(horizon):
        s, r = model.predict(s, knots[t])
        total += r + 0.5 * s[:, 1].abs()
    return float(knots[0, total.argmax()])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=1600)
    ap.add_argument("--random", type=int, default=1500, help="random steps before the planner takes over")
    ap.add_argument("--horizon", type=int, default=12)
    ap.add_argument("--candidates", type=int, default=256)
    opt = ap.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(6)
    rng = np.random.default_rng(6)
    env = gym.make("MountainCarContinuous-v0", max_episode_steps=300)
    store = Store(opt.random + opt.steps)
    model = DynamicsModel(store)
    obs, _ = env.reset(seed=6)
    t0 = None
    for t in range(opt.random + opt.steps):
        k = t - opt.random
        if k == opt.steps // 5:
            t0 = time.perf_counter()
        if k == 0:
            model.fit(200, rng)
        act = rng.uniform(-1, 1) if k < 0 else plan(model, obs, rng, opt.horizon, opt.candidates)
        nxt, rew, term, trunc, _ = env.step(np.array([act], np.float32))
        store.add(obs, act, nxt, rew)
        obs = env.reset()[0] if term or trunc else nxt
        if k >= 0 and k % 200 == 199:
            model.fit(100, rng)
            print("step", k + 1, "position", round(float(obs[0]), 3))
    rate = (opt.steps - opt.steps // 5) / (time.perf_counter() - t0)
    check = round(float(store.inputs.sum(dtype=np.float64)), 3)
    print(json.dumps({"env_steps": opt.random + opt.steps, "updates": model.updates, "units_per_s": rate, "checksum": check}))


if __name__ == "__main__":
    main()
