"""Fitted Q-iteration with random Fourier features: one Cholesky factor, then a matrix product per sweep (numpy, scipy)."""
import argparse
import json
import time

import numpy as np
from scipy.linalg import cho_factor, cho_solve

ACTIONS = np.array([-1.0, 0.0, 1.0], dtype=np.float32)


def pendulum(rows, rng):
    """Random transitions of a pendulum: state, index of the action, reward, next state."""
    angle = rng.uniform(-np.pi, np.pi, rows).astype(np.float32)
    speed = rng.uniform(-6, 6, rows).astype(np.float32)
    which = rng.integers(0, 3, rows)
    faster = np.clip(speed + 0.1 * (7.5 * np.sin(angle) + 3.0 * ACTIONS[which]), -6, 6)
    turned = (angle + 0.1 * faster + np.pi) % (2 * np.pi) - np.pi
    reward = -(turned ** 2 + 0.1 * faster ** 2) / 10
    return np.stack([angle, speed], 1), which, reward.astype(np.float32), np.stack([turned, faster], 1)


class Fourier:
    def __init__(self, n, rng):
        self.w = rng.normal(0, 1.0, (3, n)).astype(np.float32)
        self.b = rng.uniform(0, 2 * np.pi, n).astype(np.float32)

    def __call__(self, states):
        inputs = np.stack([np.cos(states[:, 0]), np.sin(states[:, 0]), states[:, 1] / 3], axis=1).astype(np.float32)
        return np.cos(inputs @ self.w + self.b)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sweeps", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=24_000)
    parser.add_argument("--features", type=int, default=400)
    parser.add_argument("--gamma", type=float, default=0.97)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    states, which, reward, following = pendulum(args.rows, rng)
    phi = Fourier(args.features, rng)
    after = phi(following)
    parts, factors, rewards = [], [], []
    for a in range(3):
        mine = which == a
        x = phi(states[mine])
        parts.append(x)
        rewards.append((np.flatnonzero(mine), reward[mine]))
        factors.append(cho_factor(x.T @ x + 1.0 * np.eye(args.features, dtype=np.float32)))
    weights = np.zeros((args.features, 3), np.float32)
    first = args.sweeps // 5
    for sweep in range(args.sweeps):
        if sweep == first:
            start = time.perf_counter()
        best = (after @ weights).max(axis=1)
        fresh = np.empty_like(weights)
        for a in range(3):
            rows, r = rewards[a]
            fresh[:, a] = cho_solve(factors[a], parts[a].T @ (r + args.gamma * best[rows]))
        change = float(np.abs(fresh - weights).max())
        weights = fresh
        if sweep % 100 == 0:
            print(f"sweep {sweep}: mean best value {best.mean():.3f}, change {change:.5f}", flush=True)
    speed = (args.sweeps - first) / (time.perf_counter() - start)
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": speed, "checksum": round(float(best.mean()), 4)}))


if __name__ == "__main__":
    main()
