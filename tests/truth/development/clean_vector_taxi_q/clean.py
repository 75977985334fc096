"""Tabular double Q-learning, 16384 taxis at once on one shared table; everything in numpy arrays."""
import argparse
import json
import time

import numpy as np


class Taxis:
    """A 12x12 town with one-way rows. Passenger and destination are among six stands."""

    def __init__(self, n, seed):
        self.n = n
        self.rng = np.random.default_rng(seed)
        self.size = 12
        self.stands = np.array([5, 37, 61, 88, 110, 137])
        pos = np.arange(self.size ** 2)
        r, c = np.divmod(pos, self.size)
        move = np.stack([np.maximum(r - 1, 0) * 12 + c, r * 12 + np.minimum(c + 1, 11),
                         np.minimum(r + 1, 11) * 12 + c, r * 12 + np.maximum(c - 1, 0)])
        move[1, r % 4 == 1] = pos[r % 4 == 1]
        move[3, r % 4 == 3] = pos[r % 4 == 3]
        self.move = move
        self.n_states = 144 * 7 * 6
        self.pos = self.rng.integers(144, size=n)
        self.who = self.rng.integers(6, size=n)
        self.to = self.rng.integers(6, size=n)

    def state(self):
        return (self.pos * 7 + self.who) * 6 + self.to

    def step(self, a):
        """Actions 0-3 drive, 4 is pick up or drop."""
        drive = a < 4
        slip = self.rng.random(self.n) < 0.05
        here = self.pos
        self.pos = np.where(drive & ~slip, self.move[np.minimum(a, 3), here], here)
        aboard = self.who == 6
        stand = self.stands[np.minimum(self.who, 5)]
        pick = ~drive & ~aboard & (here == stand)
        drop = ~drive & aboard & (here == self.stands[self.to])
        reward = np.where(drive, -0.05, -0.4)
        reward[pick] = 0.5
        reward[drop] = 3.0
        self.who[pick] = 6
        k = int(drop.sum())
        self.who[drop] = self.rng.integers(6, size=k)
        self.to[drop] = self.rng.integers(6, size=k)
        return self.state(), reward, drop


def train(steps, n, seed):
    env = Taxis(n, seed)
    rng = np.random.default_rng(seed + 1)
    q = np.zeros((2, env.n_states, 5))
    s = env.state()
    rows = np.arange(n)
    income, t0 = 0.0, None
    for t in range(steps):
        if t == steps // 5:
            t0 = time.perf_counter()
        eps = max(0.02, 1.0 - 1.5 * t / steps)
        both = q[0, s] + q[1, s]
        a = np.where(rng.random(n) < eps, rng.integers(5, size=n), both.argmax(1))
        s2, r, dropped = env.step(a)
        side = t & 1
        best = q[side, s2].argmax(1)
        target = r + 0.97 * np.where(dropped, 0.0, q[1 - side, s2, best])
        flat = s * 5 + a
        table = q[side].reshape(-1)
        count = np.bincount(flat, minlength=len(table))
        error = np.bincount(flat, weights=target - table[flat], minlength=len(table))
        hit = count > 0
        table[hit] += 0.3 * error[hit] / count[hit]
        income += float(r.sum())
        s = s2
        if (t + 1) % 300 == 0:
            print(f"step {t + 1}: reward per taxi and step {income / (300 * n):.4f}")
            income = 0.0
    rate = (steps - steps // 5) * n / (time.perf_counter() - t0)
    return {"env_steps": None, "updates": None, "units_per_s": rate, "checksum": float(q.sum())}


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=2400)
    ap.add_argument("--taxis", type=int, default=16384)
    ap.add_argument("--seed", type=int, default=0)
    a = ap.parse_args()
    print(json.dumps(train(a.steps, a.taxis, a.seed)))
