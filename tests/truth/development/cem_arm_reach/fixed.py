"""Cross-entropy method: a small tanh policy for a planar three-joint arm. Numpy only."""
import argparse
import json
import math
import time

import numpy as np


class ArmReach:
    LINKS = (1.0, 0.8, 0.5)

    def __init__(self, seed):
        self.rng = np.random.RandomState(seed)
        self.horizon = 80

    def tip(self):
        x = y = a = 0.0
        for length, q in zip(self.LINKS, self.q):
            a += q
            x += length * math.cos(a)
            y += length * math.sin(a)
        return x, y

    def observe(self):
        x, y = self.tip()
        self.dist = math.hypot(self.gx - x, self.gy - y)
        return np.array([*self.q, *self.qd, self.gx - x, self.gy - y])

    def reset(self):
        self.q = [0.1, 0.2, 0.1]
        self.qd = [0.0, 0.0, 0.0]
        r, a = self.rng.uniform(0.8, 2.0), self.rng.uniform(-math.pi, math.pi)
        self.gx, self.gy = r * math.cos(a), r * math.sin(a)
        self.t = 0
        return self.observe()

    def step(self, torque):
        cost = 0.0
        for j, u in enumerate(torque.tolist()):
            self.qd[j] = 0.9 * self.qd[j] + 0.1 * u
            self.q[j] += 0.15 * self.qd[j]
            cost += 0.001 * u * u
        self.t += 1
        obs = self.observe()
        return obs, -self.dist - cost, self.t >= self.horizon


class Policy:
    def __init__(self, n_in, n_hidden, n_out):
        self.shapes = [(n_in, n_hidden), (n_hidden,), (n_hidden, n_out), (n_out,)]
        self.sizes = [int(np.prod(s)) for s in self.shapes]
        self.n_params = sum(self.sizes)

    def set_params(self, theta):
        parts = np.split(theta, np.cumsum(self.sizes)[:-1])
        self.w1, self.b1, self.w2, self.b2 = [p.reshape(s) for p, s in zip(parts, self.shapes)]

    def __call__(self, obs):
        h = np.tanh(obs @ self.w1 + self.b1)
        return np.tanh(h @ self.w2 + self.b2)


def run_episode(env, policy):
    obs = env.reset()
    total = 0.0
    done = False
    while not done:
        obs, reward, done = env.step(policy(obs))
        total += reward
    return total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("generations", type=int, nargs="?", default=800)
    parser.add_argument("--population", type=int, default=40)
    parser.add_argument("--elite", type=int, default=8)
    args = parser.parse_args()

    rng = np.random.default_rng(42)
    env = ArmReach(seed=42)
    policy = Policy(8, 32, 3)
    mean = np.zeros(policy.n_params)
    std = np.full(policy.n_params, 0.5)

    env_steps = 0
    warm = args.generations // 5
    for gen in range(args.generations):
        if gen == warm:
            start = time.perf_counter()
        noise = max(0.03, 0.15 * (1 - gen / 100))
        scale = np.sqrt(std ** 2 + noise ** 2)
        samples = mean + scale * rng.standard_normal((args.population, policy.n_params))
        scores = np.empty(args.population)
        for i, theta in enumerate(samples):
            policy.set_params(theta)
            scores[i] = run_episode(env, policy)
            env_steps += env.horizon
        elite = samples[np.argsort(scores)[-args.elite:]]
        mean = elite.mean(axis=0)
        std = elite.std(axis=0)
        if gen % 10 == 0:
            print(f"gen {gen:4d}  mean {scores.mean():8.2f}  best {scores.max():8.2f}  std {std.mean():.3f}")

    elapsed = time.perf_counter() - start
    print(json.dumps({
        "env_steps": env_steps,
        "updates": None,
        "units_per_s": (args.generations - warm) / elapsed,
        "checksum": round(float(mean.sum()), 6),
    }))


if __name__ == "__main__":
    main()
