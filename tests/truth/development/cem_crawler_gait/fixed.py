"""Cross-entropy method with a full covariance matrix finds a gait for a crawler with two legs (numpy only)."""
import argparse
import json
import time

import numpy as np

JOINTS, FEATURES = 4, 8
DIM = JOINTS * FEATURES


def simulate(parameters, steps, rng):
    """Crawls with every row of `parameters` at the same time and gives the distance covered by each."""
    n = len(parameters)
    gains = parameters.reshape(n, JOINTS, FEATURES)
    angle = np.zeros((n, JOINTS))
    velocity = np.zeros((n, JOINTS))
    distance = np.zeros(n)
    effort = np.zeros(n)
    features = np.empty((n, FEATURES))
    gusts = rng.normal(0.0, 0.01, size=steps)
    for t in range(steps):
        phase = 0.15 * t
        features[:, :JOINTS] = angle
        features[:, 4], features[:, 5] = np.sin(phase), np.cos(phase)
        features[:, 6], features[:, 7] = np.sin(2 * phase), 1.0
        torque = np.tanh(np.einsum("njf,nf->nj", gains, features))
        velocity = 0.85 * velocity + 0.2 * torque - 0.05 * angle
        moved = 0.1 * velocity
        angle = np.clip(angle + moved, -1.2, 1.2)
        down = 1.0 / (1.0 + np.exp(8.0 * angle[:, ::2]))
        push = -(velocity[:, 1::2] * down).sum(axis=1)
        distance += 0.1 * push + gusts[t]
        effort += (torque ** 2).sum(axis=1)
    return distance - 0.002 * effort


class CrossEntropy:
    def __init__(self, dim, population, elite, rng):
        self.mean = np.zeros(dim)
        self.cov = np.eye(dim)
        self.population, self.elite, self.rng = population, elite, rng

    def ask(self):
        return self.rng.multivariate_normal(self.mean, self.cov, size=self.population)

    def tell(self, candidates, scores):
        best = candidates[np.argsort(-scores)[: self.elite]]
        self.mean = 0.3 * self.mean + 0.7 * best.mean(axis=0)
        spread = np.cov(best, rowvar=False)
        self.cov = 0.5 * self.cov + 0.5 * spread + 1e-3 * np.eye(len(self.mean))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--generations", type=int, default=800)
    parser.add_argument("--population", type=int, default=80)
    parser.add_argument("--elite", type=int, default=20)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--seed", type=int, default=4)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    search = CrossEntropy(DIM, args.population, args.elite, rng)
    started, warm = 0.0, args.generations // 5
    for generation in range(args.generations):
        if generation == warm:
            started = time.perf_counter()
        candidates = search.ask()
        scores = simulate(candidates, args.steps, rng)
        search.tell(candidates, scores)
        if generation % 50 == 0:
            print(f"generation {generation:4d}  best {scores.max():7.3f}  mean {scores.mean():7.3f}  "
                  f"spread {np.sqrt(np.trace(search.cov) / DIM):.3f}")
    speed = (args.generations - warm) / (time.perf_counter() - started)
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": speed,
                      "checksum": round(float(np.abs(search.mean).sum()), 4)}))


if __name__ == "__main__":
    main()
