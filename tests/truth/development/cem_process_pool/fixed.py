"""Cross-entropy method for a linear policy on Acrobot, candidates evaluated by worker processes."""

import argparse
import json
import multiprocessing as mp
import time

import gymnasium as gym
import numpy as np

_env = None


def init_worker():
    global _env
    _env = gym.make("Acrobot-v1", max_episode_steps=200)


def evaluate(job):
    theta, seed = job
    w, b = theta[:18].reshape(3, 6), theta[18:]
    obs, _ = _env.reset(seed=seed)
    total, steps = 0.0, 0
    while True:
        obs, reward, term, trunc, _ = _env.step(int(np.argmax(w @ obs + b)))
        total += reward
        steps += 1
        if term or trunc:
            return total, steps


class CEM:
    def __init__(self, dim, elite_frac=0.25, noise=0.1, seed=0):
        self.mean, self.std = np.zeros(dim), np.ones(dim)
        self.elite_frac, self.noise = elite_frac, noise
        self.rng = np.random.default_rng(seed)

    def ask(self, n):
        return self.mean + self.std * self.rng.standard_normal((n, len(self.mean)))

    def tell(self, thetas, scores):
        best = np.argsort(scores)[-int(len(scores) * self.elite_frac) :]
        self.mean = thetas[best].mean(0)
        self.std = thetas[best].std(0) + self.noise


def run_generation(cem, generation, population, pool):
    thetas = cem.ask(population)
    jobs = [(theta, 1000 * generation + i) for i, theta in enumerate(thetas)]
    results = pool.map(evaluate, jobs, chunksize=4)
    scores = np.array([r[0] for r in results])
    cem.tell(thetas, scores)
    return scores, sum(r[1] for r in results)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--generations", type=int, default=25)
    ap.add_argument("--population", type=int, default=64)
    ap.add_argument("--workers", type=int, default=2)
    args = ap.parse_args()
    cem = CEM(21)
    pool = mp.get_context("spawn").Pool(args.workers, initializer=init_worker)
    steps, skip = 0, args.generations // 5
    for generation in range(args.generations):
        if generation == skip:
            start, before = time.perf_counter(), steps
        scores, n = run_generation(cem, generation, args.population, pool)
        steps += n
        print(f"generation {generation}: mean {scores.mean():.1f}, best {scores.max():.1f}")
    rate = (steps - before) / (time.perf_counter() - start)
    pool.close()
    pool.join()
    print(
        json.dumps(
            {"env_steps": steps, "updates": None, "units_per_s": rate, "checksum": float(cem.mean.sum())}
        )
    )


if __name__ == "__main__":
    main()
