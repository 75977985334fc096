"""Linear Thompson sampling that recommends podcasts to a stream of listeners (synthetic log with drift)."""
import argparse
import json
import time

import numpy as np


class Listeners:
    """Listeners with a taste vector; a pool of episodes that is renewed every day."""

    def __init__(self, taste_dim, topic_dim, pool, noise, rng):
        self.rng, self.pool, self.noise = rng, pool, noise
        self.taste_dim, self.topic_dim = taste_dim, topic_dim
        self.dim = taste_dim * topic_dim + topic_dim
        self.truth = rng.normal(0.0, 1.0, self.dim) / np.sqrt(self.dim)
        self.new_day()

    def new_day(self):
        topics = self.rng.gamma(0.5, 1.0, (self.pool, self.topic_dim))
        self.topics = topics / topics.sum(1, keepdims=True)
        self.truth += self.rng.normal(0.0, 0.01, self.dim)

    def arrive(self):
        """Features of every episode in the pool for the next listener."""
        taste = self.rng.normal(0.0, 1.0, self.taste_dim)
        cross = (self.topics[:, :, None] * taste).reshape(self.pool, -1)
        return np.concatenate([cross, self.topics], 1)

    def respond(self, features, choice):
        means = features @ self.truth
        return means[choice] + self.noise * self.rng.normal(), means.max() - means[choice]


class ThompsonSampling:
    """Bayesian linear regression, one weight vector for all episodes."""

    def __init__(self, dim, prior, noise, forget, rng):
        self.rng, self.noise2, self.forget = rng, noise ** 2, forget
        self.cov = np.eye(dim) * prior
        self.mean = np.zeros(dim)

    def choose(self, features):
        theta = self.rng.multivariate_normal(self.mean, self.cov)
        return int((features @ theta).argmax())

    def update(self, x, reward):
        cx = self.cov @ x
        gain = cx / (self.noise2 + x @ cx)
        self.mean += gain * (reward - x @ self.mean)
        self.cov -= np.outer(gain, cx)

    def inflate(self):
        """Between two days the tastes move a little."""
        self.cov = 0.5 * (self.cov + self.cov.T)
        self.cov[np.diag_indices_from(self.cov)] += self.forget


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=100000)
    p.add_argument("--day", type=int, default=2000)
    p.add_argument("--pool", type=int, default=1200)
    p.add_argument("--taste-dim", type=int, default=5)
    p.add_argument("--topic-dim", type=int, default=5)
    p.add_argument("--prior", type=float, default=0.5)
    p.add_argument("--noise", type=float, default=0.3)
    p.add_argument("--forget", type=float, default=1e-4)
    p.add_argument("--seed", type=int, default=11)
    args = p.parse_args()
    rng = np.random.default_rng(args.seed)
    world = Listeners(args.taste_dim, args.topic_dim, args.pool, args.noise, rng)
    policy = ThompsonSampling(world.dim, args.prior, args.noise, args.forget, np.random.default_rng(args.seed + 1))
    regret, day_regret, started, marked = 0.0, 0.0, None, 0
    for t in range(args.rounds):
        if t == args.rounds // 5:
            started, marked = time.perf_counter(), t
        features = world.arrive()
        choice = policy.choose(features)
        reward, missed = world.respond(features, choice)
        policy.update(features[choice], reward)
        day_regret += missed
        if (t + 1) % args.day == 0:
            print(f"day {(t + 1) // args.day:3d}  mean regret {day_regret / args.day:.4f}")
            regret, day_regret = regret + day_regret, 0.0
            world.new_day()
            policy.inflate()
    speed = (args.rounds - marked) / (time.perf_counter() - started)
    print(f"total regret {regret:.1f}")
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": speed,
                      "checksum": float(np.abs(policy.mean).sum())}))


if __name__ == "__main__":
    main()
