"""Evolution strategy with antithetic noise and rank shaping for a chain of coupled oscillators; all arrays batched."""
import os
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import time

import numpy as np


class Chain:
    """24 coupled pendulums per member; damp them by pulling at four of them. Lockstep over the population."""

    def __init__(self, links=24, horizon=50):
        self.links, self.horizon = links, horizon
        lap = 2 * np.eye(links) - np.eye(links, k=1) - np.eye(links, k=-1)
        self.lap = lap.astype(np.float32)
        self.grip = np.zeros((4, links), dtype=np.float32)
        self.grip[np.arange(4), [2, 9, 15, 21]] = 1.0

    def score(self, policy, rng):
        n = policy.members
        th0 = rng.normal(size=(1, self.links)).astype(np.float32) * 0.4
        th = np.repeat(th0, n, axis=0)
        om = np.zeros_like(th)
        total = np.zeros(n, dtype=np.float32)
        obs = np.empty((n, 1, 2 * self.links), dtype=np.float32)
        for _ in range(self.horizon):
            obs[:, 0, :self.links] = th
            obs[:, 0, self.links:] = om
            u = policy.act(obs)
            om += 0.1 * (-th @ self.lap - 0.3 * th + u @ self.grip)
            om *= 0.995
            th += 0.1 * om
            total -= np.einsum("ij,ij->i", th, th) + 0.05 * np.einsum("ij,ij->i", u, u)
        return total / self.horizon


class BatchedPolicy:
    """One hidden layer, a matrix per member."""

    def __init__(self, theta, n_in, hidden, n_out):
        m = self.members = len(theta)
        a, b = n_in * hidden, n_in * hidden + hidden * n_out
        self.w1 = np.ascontiguousarray(theta[:, :a]).reshape(m, n_in, hidden)
        self.w2 = np.ascontiguousarray(theta[:, a:b]).reshape(m, hidden, n_out)

    def act(self, obs):
        h = np.matmul(obs, self.w1)
        np.tanh(h, out=h)
        return np.tanh(np.matmul(h, self.w2))[:, 0]


def ranks(x):
    r = np.empty(len(x), dtype=np.float32)
    r[x.argsort()] = np.arange(len(x), dtype=np.float32)
    return r / (len(x) - 1) - 0.5


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--generations", type=int, default=800)
    p.add_argument("--pairs", type=int, default=128)
    p.add_argument("--hidden", type=int, default=64)
    a = p.parse_args()
    rng = np.random.default_rng(55)
    chain = Chain()
    n_in, n_out = 2 * chain.links, 4
    dim = n_in * a.hidden + a.hidden * n_out
    theta = (rng.normal(size=dim) * 0.05).astype(np.float32)
    velocity = np.zeros_like(theta)
    best, t0 = -np.inf, None
    for g in range(a.generations):
        if g == a.generations // 5:
            t0 = time.perf_counter()
        noise = rng.standard_normal((a.pairs, dim), dtype=np.float32)
        both = np.concatenate([theta + 0.05 * noise, theta - 0.05 * noise])
        fit = chain.score(BatchedPolicy(both, n_in, a.hidden, n_out), rng)
        shaped = ranks(fit)
        grad = (shaped[:a.pairs] - shaped[a.pairs:]) @ noise / (a.pairs * 0.05)
        velocity = 0.9 * velocity + 0.1 * grad
        theta = theta + 0.08 * velocity
        best = max(best, float(fit.max()))
        if g % 100 == 0:
            print(f"generation {g}: mean {fit.mean():.4f}, best so far {best:.4f}")
    rate = (a.generations - a.generations // 5) / (time.perf_counter() - t0)
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": rate, "checksum": float(theta.sum()) + best}))


if __name__ == "__main__":
    main()
