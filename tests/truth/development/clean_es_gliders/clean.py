"""Evolution strategy: every candidate flies 128 gliders at once, and all candidates fly together."""

import argparse
import json
import time

import numpy as np

F32 = np.float32
SHAPES = ((64, 6), (64, 64), (2, 64))  # of the three layers' weights
N_WEIGHTS = sum(rows * columns for rows, columns in SHAPES)


class Gliders:
    """State arrays have the shape (candidates, quantities, gliders)."""

    def __init__(self, candidates, gliders, rng):
        self.obs = np.empty((candidates, 6, gliders), F32)
        self.pos, self.vel, self.gap = self.obs[:, :2], self.obs[:, 2:4], self.obs[:, 4:]
        self.obs[:, :4] = rng.standard_normal((4, gliders), dtype=F32)
        self.goal = rng.standard_normal((2, gliders), dtype=F32)
        np.subtract(self.goal, self.pos, out=self.gap)
        self.score = np.zeros(candidates, F32)

    def step(self, action):
        self.vel *= F32(0.95)
        action *= F32(0.1)
        self.vel += action
        self.pos += F32(0.1) * self.vel
        np.subtract(self.goal, self.pos, out=self.gap)
        self.score -= np.einsum("ckg,ckg->c", self.gap, self.gap)


def unpack(thetas):
    weights, at = [], 0
    for rows, columns in SHAPES:
        weights.append(thetas[:, at : at + rows * columns].reshape(-1, rows, columns))
        at += rows * columns
    return weights


def evaluate(thetas, gliders, horizon, rng):
    n = len(thetas)
    w1, w2, w3 = unpack(thetas)
    world = Gliders(n, gliders, rng)
    h1, h2 = np.empty((n, 64, gliders), F32), np.empty((n, 64, gliders), F32)
    action = np.empty((n, 2, gliders), F32)
    for _ in range(horizon):
        np.matmul(w1, world.obs, out=h1)
        np.tanh(h1, out=h1)
        np.matmul(w2, h1, out=h2)
        np.tanh(h2, out=h2)
        np.matmul(w3, h2, out=action)
        np.clip(action, -1, 1, out=action)
        world.step(action)
    return world.score / (gliders * horizon)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--generations", type=int, default=200)
    ap.add_argument("--pairs", type=int, default=16)
    ap.add_argument("--gliders", type=int, default=128)
    ap.add_argument("--horizon", type=int, default=50)
    args = ap.parse_args()
    rng = np.random.default_rng(0)
    theta = 0.1 * rng.standard_normal(N_WEIGHTS, dtype=F32)
    per_generation = 2 * args.pairs * args.gliders * args.horizon
    skip = args.generations // 5
    for generation in range(args.generations):
        if generation == skip:
            start = time.perf_counter()
        noise = rng.standard_normal((args.pairs, N_WEIGHTS), dtype=F32)
        thetas = np.concatenate([theta + F32(0.1) * noise, theta - F32(0.1) * noise])
        scores = evaluate(thetas, args.gliders, args.horizon, rng)
        ranks = scores.argsort().argsort().astype(F32) / (len(scores) - 1) - F32(0.5)
        theta += F32(0.5 / args.pairs) * ((ranks[: args.pairs] - ranks[args.pairs :]) @ noise)
        if generation % 10 == 0:
            print(f"generation {generation:4d}: {scores.mean():.3f}")
    rate = (args.generations - skip) * per_generation / (time.perf_counter() - start)
    print(
        json.dumps({"env_steps": None, "updates": None, "units_per_s": rate, "checksum": float(theta.sum())})
    )


if __name__ == "__main__":
    main()
