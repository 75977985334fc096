"""Natural evolution strategies: the whole population acts in one batched product per layer."""

import argparse
import itertools
import json
import time

import numpy as np


class Population:
    def __init__(self, sizes, n_pairs, sigma, seed):
        self.sizes, self.n_pairs, self.sigma = sizes, n_pairs, sigma
        self.rng = np.random.default_rng(seed)
        self.weights = [
            self.rng.standard_normal((i, o), dtype=np.float32) / np.float32(np.sqrt(i))
            for i, o in itertools.pairwise(sizes)
        ]
        self.noise = [np.empty((n_pairs, *w.shape), np.float32) for w in self.weights]

    def perturb(self):
        members = []
        for w, eps in zip(self.weights, self.noise, strict=True):
            self.rng.standard_normal(out=eps, dtype=np.float32)
            both = np.empty((2 * self.n_pairs, *w.shape), np.float32)
            np.multiply(eps, np.float32(self.sigma), out=both[: self.n_pairs])
            np.subtract(w, both[: self.n_pairs], out=both[self.n_pairs :])
            both[: self.n_pairs] += w
            members.append(both)
        return members

    def update(self, fitness, lr):
        rank = np.empty(fitness.size, np.float32)
        rank[fitness.argsort()] = np.linspace(-0.5, 0.5, fitness.size, dtype=np.float32)
        score = rank[: self.n_pairs] - rank[self.n_pairs :]
        for w, eps in zip(self.weights, self.noise, strict=True):
            grad = score @ eps.reshape(self.n_pairs, -1)
            w += (lr / (self.n_pairs * self.sigma)) * grad.reshape(w.shape)


def evaluate(members, episodes, horizon, rng):
    """Mean return of every member on its own batch of hovering drones."""
    n = len(members[0])
    start = rng.uniform(-1, 1, (episodes, 4)).astype(np.float32)
    pos, vel = np.tile(start[:, :2], (n, 1, 1)), np.tile(start[:, 2:], (n, 1, 1))
    total = np.zeros(n, np.float64)
    x = np.empty((n, episodes, 4), np.float32)
    for _ in range(horizon):
        x[..., :2], x[..., 2:] = pos, vel
        h = x
        for w in members[:-1]:
            h = h @ w
            np.maximum(h, 0.0, out=h)
        u = np.clip(h @ members[-1], -1, 1)
        vel = np.float32(0.95) * vel + np.float32(0.1) * u
        pos = pos + np.float32(0.1) * vel
        total -= np.square(pos).sum(axis=(1, 2)) / episodes
    return total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--generations", type=int, default=36)
    ap.add_argument("--pairs", type=int, default=24)
    ap.add_argument("--episodes", type=int, default=128)
    ap.add_argument("--horizon", type=int, default=40)
    args = ap.parse_args()
    pop = Population([4, 192, 192, 2], args.pairs, 0.05, seed=3)
    rng = np.random.default_rng(4)
    t0, g0 = time.perf_counter(), 0
    for g in range(args.generations):
        if g == args.generations // 5:
            t0, g0 = time.perf_counter(), g
        fitness = evaluate(pop.perturb(), args.episodes, args.horizon, rng)
        pop.update(fitness, lr=0.02)
        if g % 10 == 0:
            print(f"generation {g} best {fitness.max():.2f} mean {fitness.mean():.2f}")
    rate = (args.generations - g0) / (time.perf_counter() - t0)
    print(
        json.dumps(
            {
                "env_steps": args.generations * 2 * args.pairs * args.episodes * args.horizon,
                "updates": args.generations,
                "units_per_s": rate,
                "checksum": float(sum(w.sum(dtype=np.float64) for w in pop.weights)),
            }
        )
    )


if __name__ == "__main__":
    main()
