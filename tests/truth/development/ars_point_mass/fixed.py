"""Augmented random search: a linear policy flies a point mass around a disc to its goal."""

import argparse
import json
import math
import time

import numpy as np


class PointMass:
    dt = 0.05
    centre = (0.0, 0.0)
    radius = 0.35
    max_speed = 1.5

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.x, self.y = self.rng.uniform(-1, 1, 2).tolist()
        self.vx = self.vy = 0.0
        self.gx, self.gy = self.rng.uniform(-1, 1, 2).tolist()
        self.t = 0
        return self.observe()

    def observe(self):
        return np.array([self.x, self.y, self.vx, self.vy, self.gx - self.x, self.gy - self.y])

    def step(self, action):
        fx, fy = action.tolist()
        fx, fy = max(-1.0, min(1.0, fx)), max(-1.0, min(1.0, fy))
        vx, vy = 0.98 * self.vx + self.dt * fx * 4.0, 0.98 * self.vy + self.dt * fy * 4.0
        speed = math.sqrt(vx * vx + vy * vy)
        if speed > self.max_speed:
            vx, vy = vx * (self.max_speed / speed), vy * (self.max_speed / speed)
        x = max(-1.2, min(1.2, self.x + self.dt * vx))
        y = max(-1.2, min(1.2, self.y + self.dt * vy))
        cx, cy = self.centre
        distance = math.sqrt((x - cx) ** 2 + (y - cy) ** 2)
        if distance < self.radius:
            nx, ny = (x - cx) / (distance + 1e-9), (y - cy) / (distance + 1e-9)
            x, y = cx + self.radius * nx, cy + self.radius * ny
            inward = min(0.0, vx * nx + vy * ny)
            vx, vy = vx - inward * nx, vy - inward * ny
        self.x, self.y, self.vx, self.vy = x, y, vx, vy
        self.t += 1
        to_goal = math.sqrt((self.gx - x) ** 2 + (self.gy - y) ** 2)
        reward = -to_goal - 0.01 * (fx * fx + fy * fy)
        return self.observe(), reward, to_goal < 0.05 or self.t >= 150


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
