"""Augmented random search: a linear policy flies a point mass around a disc to its goal."""

import argparse
import json
import time

import numpy as np


class PointMass:
    dt = 0.05
    centre = np.array([0.0, 0.0])
    radius = 0.35
    max_speed = 1.5

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.pos = self.rng.uniform(-1, 1, 2)
        self.vel = np.zeros(2)
        self.goal = self.rng.uniform(-1, 1, 2)
        self.t = 0
        return self.observe()

    def observe(self):
        return np.concatenate([self.pos, self.vel, self.goal - self.pos])

    def step(self, action):
        force = np.clip(action, -1.0, 1.0)
        self.vel = 0.98 * self.vel + self.dt * force * 4.0
        speed = np.linalg.norm(self.vel)
        if speed > self.max_speed:
            self.vel = self.vel * (self.max_speed / speed)
        self.pos = np.clip(self.pos + self.dt * self.vel, -1.2, 1.2)
        away = self.pos - self.centre
        distance = np.linalg.norm(away)
        if distance < self.radius:
            normal = away / (distance + 1e-9)
            self.pos = self.centre + self.radius * normal
            self.vel = self.vel - np.minimum(0.0, np.dot(self.vel, normal)) * normal
        self.t += 1
        to_goal = np.linalg.norm(self.goal - self.pos)
        reward = -to_goal - 0.01 * np.sum(np.square(force))
        return self.observe(), float(reward), bool(to_goal < 0.05) or self.t >= 150


class Filter:
    """Running mean and standard deviation of the observations."""

    def __init__(self, n):
        self.n, self.sum, self.squares = 1e-2, np.zeros(n), np.full(n, 1e-2)
        self.freeze()

    def see(self, obs):
        self.n += 1
        self.sum += obs
        self.squares += obs * obs

    def freeze(self):
        self.mean = self.sum / self.n
        self.scale = 1 / np.sqrt(np.maximum(self.squares / self.n - self.mean**2, 1e-6))


def rollout(env, theta, norm):
    obs, done, total, steps = env.reset(), False, 0.0, 0
    while not done:
        norm.see(obs)
        obs, reward, done = env.step(theta @ ((obs - norm.mean) * norm.scale))
        total += reward
        steps += 1
    return total, steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=80)
    parser.add_argument("--directions", type=int, default=16)
    parser.add_argument("--top", type=int, default=8)
    parser.add_argument("--step-size", type=float, default=0.05)
    parser.add_argument("--noise", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=9)
    args = parser.parse_args()

    rng = np.random.default_rng(args.seed)
    env = PointMass(args.seed)
    theta, norm = np.zeros((2, 6)), Filter(6)
    steps, skip = 0, args.iterations // 5
    for iteration in range(args.iterations):
        if iteration == skip:
            start, before = time.perf_counter(), steps
        deltas = rng.standard_normal((args.directions, 2, 6))
        scores = np.empty((args.directions, 2))
        for i, delta in enumerate(deltas):
            for j, sign in enumerate((1, -1)):
                scores[i, j], n = rollout(env, theta + sign * args.noise * delta, norm)
                steps += n
        norm.freeze()
        order = np.argsort(-scores.max(1))[: args.top]
        gain = scores[order, 0] - scores[order, 1]
        theta += args.step_size / (args.top * scores[order].std()) * np.tensordot(gain, deltas[order], 1)
        if iteration % 10 == 0:
            print(f"{iteration:4d}  mean return {scores.mean():.2f}")
    rate = (steps - before) / (time.perf_counter() - start)
    print(
        json.dumps({"env_steps": None, "updates": None, "units_per_s": rate, "checksum": float(theta.sum())})
    )


if __name__ == "__main__":
    main()
