"""OpenAI-style evolution strategies with a shared noise table and a pool of workers."""

import argparse
import json
import multiprocessing as mp
import time

import numpy as np

OBS, HIDDEN, ACT = 3, 32, 1
SHAPES = [(OBS, HIDDEN), (HIDDEN,), (HIDDEN, HIDDEN), (HIDDEN,), (HIDDEN, ACT), (ACT,)]
DIM = sum(int(np.prod(s)) for s in SHAPES)


class NoiseTable:
    def __init__(self, seed=123, size=1_000_000):
        self.noise = np.random.default_rng(seed).standard_normal(size, dtype=np.float32)

    def get(self, i):
        return self.noise[i : i + DIM]

    def sample_index(self, rng):
        return int(rng.integers(0, len(self.noise) - DIM + 1))


def unflatten(theta):
    out, i = [], 0
    for s in SHAPES:
        n = int(np.prod(s))
        out.append(theta[i : i + n].reshape(s))
        i += n
    return out


def play(theta, seed, horizon=60, batch=8):
    """Mean return of `batch` pendulums under one policy."""
    w1, b1, w2, b2, w3, b3 = unflatten(theta)
    rng = np.random.default_rng(seed)
    th = rng.uniform(-np.pi, np.pi, batch)
    w = rng.uniform(-1, 1, batch)
    total = np.zeros(batch)
    for _ in range(horizon):
        x = np.stack([np.cos(th), np.sin(th), w], 1).astype(np.float32)
        u = 2 * np.tanh(np.tanh(np.tanh(x @ w1 + b1) @ w2 + b2) @ w3 + b3)[:, 0]
        norm = (th + np.pi) % (2 * np.pi) - np.pi
        total -= norm**2 + 0.1 * w**2 + 0.001 * u**2
        w = np.clip(w + (15 * np.sin(th) + 3 * u) * 0.05, -8, 8)
        th = th + 0.05 * w
    return float(total.mean())


def evaluate(job):
    theta, sigma, index, seed, table = job
    eps = table.get(index)
    return play(theta + sigma * eps, seed), play(theta - sigma * eps, seed)


def ranks(x):
    r = np.empty(x.size, dtype=np.float32)
    r[x.ravel().argsort()] = np.arange(x.size)
    return (r / (x.size - 1) - 0.5).reshape(x.shape)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--generations", type=int, default=30)
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--sigma", type=float, default=0.05)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()

    rng = np.random.default_rng(0)
    table = NoiseTable()
    theta = (0.1 * rng.standard_normal(DIM)).astype(np.float32)
    velocity = np.zeros_like(theta)
    with mp.get_context("fork").Pool(args.workers) as pool:
        t0, g0 = time.perf_counter(), 0
        for gen in range(args.generations):
            if gen == args.generations // 5:
                t0, g0 = time.perf_counter(), gen
            idx = [table.sample_index(rng) for _ in range(args.pairs)]
            jobs = [(theta, args.sigma, i, 1000 * gen + k, table) for k, i in enumerate(idx)]
            scores = np.array(pool.map(evaluate, jobs, chunksize=1))
            weights = ranks(scores)
            grad = sum((weights[k, 0] - weights[k, 1]) * table.get(i) for k, i in enumerate(idx))
            velocity = 0.9 * velocity + args.lr * grad / (args.pairs * args.sigma)
            theta = theta + 0.1 * velocity
            if gen % 10 == 0:
                print(f"gen {gen:4d} mean {scores.mean():8.1f} best {scores.max():8.1f}")
        rate = (args.generations - g0) / (time.perf_counter() - t0)
    result = {
        "env_steps": args.generations * args.pairs * 2 * 60 * 8,
        "updates": args.generations,
        "units_per_s": rate,
        "checksum": float(theta.astype(np.float64).sum()),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
