"""Natural evolution strategy for a dynamic-soaring bird: the whole population flies at once in numpy."""
import argparse
import json
import time

import numpy as np


class WindShear:
    """A bird in a shear layer above the sea; state (height, speed, pitch, heading, energy), all birds in arrays."""

    def __init__(self, horizon, dt=0.1):
        self.horizon, self.dt = horizon, dt
        self.obs_dim, self.act_dim = 7, 2

    def start(self, shape, rng):
        # the same start for all members of one generation
        height, heading = rng.uniform(5.0, 15.0, shape[1]), rng.uniform(-np.pi, np.pi, shape[1])
        self.height = np.broadcast_to(height, shape).copy()
        self.heading = np.broadcast_to(heading, shape).copy()
        self.speed = np.full(shape, 15.0)
        self.pitch = np.zeros(shape)
        self.alive = np.ones(shape, bool)

    def observe(self):
        obs = np.stack([self.height / 10.0 - 1.0, self.speed / 10.0 - 1.5, self.pitch, np.sin(self.pitch),
                        np.cos(self.heading), np.sin(self.heading), self._wind() / 5.0], -1)
        return obs.astype(np.float32)

    def _wind(self):
        return 8.0 * np.log1p(np.maximum(self.height, 0.0)) / np.log1p(20.0)

    def step(self, action):
        lift, bank = action[..., 0], action[..., 1]
        drag = 0.002 * self.speed ** 2 * (1.0 + 0.5 * lift ** 2 + 0.5 * bank ** 2)
        climb = self.speed * np.sin(self.pitch)
        gust = 0.35 * climb * np.cos(self.heading)
        self.speed = np.clip(self.speed + self.dt * (-9.81 * np.sin(self.pitch) - drag + gust), 1.0, 40.0)
        self.pitch = np.clip(self.pitch + self.dt * 1.2 * lift - self.dt * 0.2 * np.cos(self.pitch), -0.8, 0.8)
        self.heading += self.dt * 1.5 * bank
        self.height += self.dt * climb
        self.alive &= (self.height > 0.0) & (self.height < 60.0) & (self.speed > 5.0)
        return np.where(self.alive, 1.0 + 0.02 * (self.speed - 15.0), 0.0)


class Policies:
    """Two-layer networks of the whole population, cut out of a matrix of parameters."""

    def __init__(self, obs_dim, hidden, act_dim):
        self.shapes = [(obs_dim, hidden), (1, hidden), (hidden, hidden), (1, hidden), (hidden, act_dim), (1, act_dim)]
        self.sizes = np.cumsum([0] + [a * b for a, b in self.shapes])
        self.n_params = int(self.sizes[-1])

    def load(self, flat):
        self.parts = [flat[:, a:b].reshape(-1, *shape)
                      for a, b, shape in zip(self.sizes[:-1], self.sizes[1:], self.shapes)]

    def act(self, obs):
        w1, b1, w2, b2, w3, b3 = self.parts
        h = np.matmul(obs, w1)
        h += b1
        np.tanh(h, out=h)
        h = np.matmul(h, w2)
        h += b2
        np.tanh(h, out=h)
        return np.tanh(np.matmul(h, w3) + b3)


class Adam:
    def __init__(self, n, lr, b1=0.9, b2=0.999):
        self.m, self.v, self.t = np.zeros(n, np.float32), np.zeros(n, np.float32), 0
        self.lr, self.b1, self.b2 = lr, b1, b2

    def step(self, theta, grad):
        self.t += 1
        self.m += (1 - self.b1) * (grad - self.m)
        self.v += (1 - self.b2) * (grad * grad - self.v)
        scale = self.lr * np.sqrt(1 - self.b2 ** self.t) / (1 - self.b1 ** self.t)
        theta += scale * self.m / (np.sqrt(self.v) + 1e-8)


def centred_ranks(x):
    ranks = np.empty(len(x), np.float32)
    ranks[x.argsort()] = np.linspace(-0.5, 0.5, len(x), dtype=np.float32)
    return ranks


def fly(world, policies, flat, episodes, rng):
    """Mean score of every parameter vector."""
    policies.load(flat)
    world.start((len(flat), episodes), rng)
    score = np.zeros((len(flat), episodes))
    for _ in range(world.horizon):
        score += world.step(policies.act(world.observe()))
        if not world.alive.any():
            break
    return score.mean(1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--generations", type=int, default=300)
    p.add_argument("--pairs", type=int, default=64)
    p.add_argument("--episodes", type=int, default=8)
    p.add_argument("--horizon", type=int, default=150)
    p.add_argument("--hidden", type=int, default=32)
    p.add_argument("--sigma", type=float, default=0.08)
    p.add_argument("--lr", type=float, default=0.03)
    p.add_argument("--decay", type=float, default=0.005)
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    rng = np.random.default_rng(args.seed)
    world = WindShear(args.horizon)
    policies = Policies(world.obs_dim, args.hidden, world.act_dim)
    theta = 0.2 * rng.standard_normal(policies.n_params, dtype=np.float32)
    adam, started, marked = Adam(policies.n_params, args.lr), None, 0
    for gen in range(args.generations):
        if gen == args.generations // 5:
            started, marked = time.perf_counter(), gen
        noise = rng.standard_normal((args.pairs, policies.n_params), dtype=np.float32)
        noise *= args.sigma
        scores = fly(world, policies, np.concatenate([theta + noise, theta - noise]), args.episodes, rng)
        ranks = centred_ranks(scores)
        weights = ranks[:args.pairs] - ranks[args.pairs:]
        grad = weights @ noise / (args.pairs * args.sigma ** 2)
        adam.step(theta, args.sigma * grad - args.decay * theta)
        if gen % 10 == 0:
            print(f"generation {gen:4d}  mean {scores.mean():7.2f}  best {scores.max():7.2f}")
    speed = (args.generations - marked) / (time.perf_counter() - started)
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": speed,
                      "checksum": float(np.abs(theta).sum(dtype=np.float64))}))


if __name__ == "__main__":
    main()
