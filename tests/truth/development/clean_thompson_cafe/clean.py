"""Linear Thompson sampling: what a chain of cafes recommends; a day of guests is decided at once."""

import argparse
import json
import time

import numpy as np

DISHES, SIZE, GUESTS = 12, 48, 400


class Chain:
    """Guests with features; the noisy rating of a dish is linear in them."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.taste = self.rng.normal(0, 0.5, (DISHES, SIZE))

    def guests(self):
        return self.rng.normal(0, 1 / np.sqrt(SIZE), (GUESTS, SIZE))

    def ratings(self, features, dishes):
        return np.einsum("gi,gi->g", features, self.taste[dishes]) + self.rng.normal(0, 0.3, GUESTS)


class Posterior:
    """Normal posterior over the weights of each dish, kept as precision and moment."""

    def __init__(self, rng):
        self.rng = rng
        self.precision = np.tile(np.eye(SIZE), (DISHES, 1, 1))
        self.moment = np.zeros((DISHES, SIZE))

    def draw(self):
        """One sample of the weights a dish, [DISHES, SIZE]."""
        factor = np.linalg.cholesky(self.precision)
        upper = factor.transpose(0, 2, 1)
        half = np.linalg.solve(factor, self.moment[..., None])
        return np.linalg.solve(upper, half + 0.3 * self.rng.normal(size=half.shape))[..., 0]

    def learn(self, features, dishes, ratings):
        for dish in range(DISHES):
            rows = dishes == dish
            seen = features[rows]
            self.precision[dish] += seen.T @ seen
            self.moment[dish] += seen.T @ ratings[rows]


def main(days):
    chain, posterior = Chain(41), Posterior(np.random.default_rng(42))
    marks, regret = [], 0.0
    for _ in range(days):
        marks.append(time.perf_counter())
        features = chain.guests()
        dishes = (features @ posterior.draw().T).argmax(axis=1)
        posterior.learn(features, dishes, chain.ratings(features, dishes))
        worth = features @ chain.taste.T
        regret += float((worth.max(axis=1) - worth[np.arange(GUESTS), dishes]).sum())
    marks.append(time.perf_counter())
    print(f"regret of a guest {regret / (days * GUESTS):.4f}")
    first = days // 5
    rate = (days - first) / (marks[-1] - marks[first])
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": rate, "checksum": regret}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--days", type=int, default=13_000)
    main(parser.parse_args().days)
