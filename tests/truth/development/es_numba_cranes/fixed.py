"""Evolution strategy for a gantry crane whose load and rope change from generation to generation (domain randomisation)."""
import argparse
import json
import math
import time

import numpy as np
from numba import njit

STEPS = 400


@njit(cache=False)
def rollout(w, x0, goal, load, rope, friction):
    """Return of one run of this crane with these weights."""
    x, v, th, om = x0, 0.0, 0.0, 0.0
    total = 0.0
    for t in range(STEPS):
        o0, o1, o2, o3 = goal - x, v, math.sin(th), om
        force = 0.0
        for h in range(8):
            z = w[h, 0] * o0 + w[h, 1] * o1 + w[h, 2] * o2 + w[h, 3] * o3 + w[h, 4]
            force += w[h, 5] * math.tanh(z)
        force = min(max(force, -3.0), 3.0)
        s, c = math.sin(th), math.cos(th)
        acc = (force - friction * v + load * s * (rope * om * om + 9.8 * c)) / (1.0 + load * s * s)
        om_acc = (-acc * c - 9.8 * s) / rope - 0.05 * om
        v += 0.02 * acc
        x += 0.02 * v
        om += 0.02 * om_acc
        th += 0.02 * om
        total -= abs(goal - x) + 0.5 * abs(th) + 0.01 * force * force
    return total / STEPS


def centred_ranks(values):
    ranks = np.empty(len(values))
    ranks[np.argsort(values)] = np.arange(len(values))
    return ranks / (len(values) - 1) - 0.5


def evolve(generations, population, sigma, lr, seed):
    rng = np.random.default_rng(seed)
    mean = 0.1 * rng.normal(size=(8, 6))
    best, t0 = -np.inf, None
    for g in range(generations):
        if g == generations // 5:
            t0 = time.perf_counter()
        load, rope, friction = rng.uniform(0.5, 1.5), rng.uniform(0.8, 1.6), rng.uniform(0.1, 0.3)
        starts, goals = rng.uniform(-1, 1, 6), rng.uniform(-2, 2, 6)
        noise = rng.normal(size=(population // 2, 8, 6))
        noise = np.concatenate([noise, -noise])
        fitness = np.array([np.mean([rollout(mean + sigma * e, s, goal, load, rope, friction) for s, goal in zip(starts, goals)])
                            for e in noise])
        mean += lr / (population * sigma) * np.tensordot(centred_ranks(fitness), noise, axes=1)
        best = max(best, fitness.max())
        print(f"generation {g}: mean {fitness.mean():.3f} best so far {best:.3f}")
    return mean, (generations - generations // 5) / (time.perf_counter() - t0)


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--generations", type=int, default=18)
    p.add_argument("--population", type=int, default=1200)
    a = p.parse_args()
    weights, speed = evolve(a.generations, a.population, 0.1, 0.2, 1)
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": speed, "checksum": round(float(np.abs(weights).sum()), 8)}))
