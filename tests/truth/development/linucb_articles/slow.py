"""Disjoint LinUCB on a simulated news site: which of the articles do we show to the next visitor?"""
import argparse
import json
import time

import numpy as np


class NewsSite:
    """Visitors with a context vector; each article has a hidden taste vector that drifts a little every day."""

    def __init__(self, n_articles, dim, seed):
        self.rng = np.random.default_rng(seed)
        self.dim = dim
        self.taste = self.rng.normal(size=(n_articles, dim)) / np.sqrt(dim)

    def visitor(self):
        group = self.rng.integers(4)
        x = self.rng.normal(size=self.dim)
        x[group] += 2.0
        return x / np.linalg.norm(x)

    def click(self, x, article):
        p = 1.0 / (1.0 + np.exp(-3.0 * self.taste[article] @ x))
        return float(self.rng.random() < p)


class LinUCB:
    def __init__(self, n_arms, dim, alpha, ridge=1.0):
        self.alpha = alpha
        self.A = np.stack([ridge * np.eye(dim) for _ in range(n_arms)])
        self.b = np.zeros((n_arms, dim))

    def scores(self, x):
        out = np.empty(len(self.A))
        for arm in range(len(self.A)):
            inv = np.linalg.inv(self.A[arm])
            theta = inv @ self.b[arm]
            out[arm] = theta @ x + self.alpha * np.sqrt(x @ inv @ x)
        return out

    def choose(self, x):
        return int(np.argmax(self.scores(x)))

    def learn(self, x, arm, reward):
        self.A[arm] += np.outer(x, x)
        self.b[arm] += reward * x


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--visitors", type=int, default=40000)
    p.add_argument("--articles", type=int, default=16)
    p.add_argument("--dim", type=int, default=24)
    p.add_argument("--alpha", type=float, default=0.6)
    p.add_argument("--seed", type=int, default=3)
    a = p.parse_args()

    site = NewsSite(a.articles, a.dim, a.seed)
    agent = LinUCB(a.articles, a.dim, a.alpha)
    clicks = 0.0
    start = None
    for n in range(a.visitors):
        if n == a.visitors // 5:
            start = time.perf_counter()
        x = site.visitor()
        arm = agent.choose(x)
        reward = site.click(x, arm)
        agent.learn(x, arm, reward)
        clicks += reward
        if (n + 1) % 5000 == 0:
            print(f"visitor {n + 1}: click rate {clicks / (n + 1):.3f}")
    rate = (a.visitors - a.visitors // 5) / (time.perf_counter() - start)
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": rate,
                      "checksum": float(agent.b.sum()) + clicks}))


if __name__ == "__main__":
    main()
