"""OpenAI-style evolution strategy with mirrored sampling on a two-link reacher, all in NumPy."""

import argparse
import json
import time

import numpy as np

OBS, HIDDEN, ACT = 8, 200, 2
SHAPES = [(OBS, HIDDEN), (HIDDEN,), (HIDDEN, HIDDEN), (HIDDEN,), (HIDDEN, ACT), (ACT,)]
SIZES = [int(np.prod(shape)) for shape in SHAPES]
PARAMETERS = sum(SIZES)
STARTS = 6


def unpack(flat):
    parts, at = [], 0
    for shape, size in zip(SHAPES, SIZES, strict=True):
        parts.append(flat[at : at + size].reshape(shape))
        at += size
    return parts


def observe(angles, speeds, goals):
    tip = np.stack([np.cos(angles).sum(1), np.sin(angles).sum(1)], axis=1)
    return np.concatenate(
        [np.sin(angles), np.cos(angles), 0.2 * speeds, goals - tip], axis=1, dtype=np.float32
    )


def rollout(flat, starts, goals, steps):
    """Mean return over the start positions, which are simulated side by side."""
    w1, b1, w2, b2, w3, b3 = unpack(flat)
    angles, speeds = starts.copy(), np.zeros_like(starts)
    total = 0.0
    for _ in range(steps):
        x = observe(angles, speeds, goals)
        torque = np.tanh(np.tanh(np.tanh(x @ w1 + b1) @ w2 + b2) @ w3 + b3)
        speeds = 0.9 * speeds + 0.4 * torque
        angles = angles + 0.15 * speeds
        total -= float(np.square(x[:, 6:]).sum()) + 0.01 * float(np.square(torque).sum())
    return total / (STARTS * steps)


def noise_of(seed):
    return np.random.default_rng(seed).standard_normal(PARAMETERS, dtype=np.float32)


def centred_ranks(scores):
    ranks = np.empty(len(scores), dtype=np.float32)
    ranks[np.argsort(scores)] = np.arange(len(scores), dtype=np.float32)
    return ranks / (len(scores) - 1) - 0.5


class Adam:
    def __init__(self, size, rate):
        self.m, self.v, self.t, self.rate = np.zeros(size, np.float32), np.zeros(size, np.float32), 0, rate

    def step(self, gradient):
        self.t += 1
        self.m += 0.1 * (gradient - self.m)
        self.v += 0.001 * (np.square(gradient) - self.v)
        corrected = np.sqrt(self.v / (1 - 0.999**self.t)) + 1e-8
        return self.rate * self.m / (1 - 0.9**self.t) / corrected


def evolve(generations, pairs, steps, sigma=0.05):
    rng = np.random.default_rng(11)
    theta = np.concatenate(
        [(rng.standard_normal(s) / np.sqrt(s[0])).ravel() if len(s) == 2 else np.zeros(s) for s in SHAPES]
    ).astype(np.float32)
    optimizer, marks, best = Adam(PARAMETERS, 0.02), [], -np.inf
    for _ in range(generations):
        marks.append(time.perf_counter())
        starts = rng.uniform(-np.pi, np.pi, (STARTS, 2)).astype(np.float32)
        goals = rng.uniform(-1, 1, (STARTS, 2)).astype(np.float32)
        seeds = rng.integers(0, 2**31, pairs)
        scores = np.empty((2, pairs))
        for i, seed in enumerate(seeds):
            scores[0, i] = rollout(theta + sigma * noise_of(seed), starts, goals, steps)
            scores[1, i] = rollout(theta - sigma * noise_of(seed), starts, goals, steps)
        weights = centred_ranks(scores.ravel()).reshape(2, pairs)
        gradient = np.zeros(PARAMETERS, dtype=np.float32)
        for i, seed in enumerate(seeds):
            gradient += (weights[0, i] - weights[1, i]) * noise_of(seed)
        theta = theta + optimizer.step(gradient / (2 * pairs * sigma))
        best = max(best, scores.max())
    marks.append(time.perf_counter())
    return theta, best, marks


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--generations", type=int, default=300)
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--steps", type=int, default=12)
    given = parser.parse_args()
    theta, best, marks = evolve(given.generations, given.pairs, given.steps)
    first = given.generations // 5
    rate = (given.generations - first) / (marks[-1] - marks[first])
    checksum = float(np.abs(theta).sum()) + best
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": rate, "checksum": checksum}))
