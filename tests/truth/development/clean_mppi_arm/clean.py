"""MPPI control of a three-joint arm: thousands of noisy plans are rolled out together in numpy, float32."""
import argparse
import json
import time

import numpy as np

LENGTHS = np.array([0.6, 0.4, 0.3], np.float32)


def tip(angles):
    """Position of the hand; angles: (3, ...)"""
    direction = np.cumsum(angles, axis=0)
    return LENGTHS @ np.cos(direction), LENGTHS @ np.sin(direction)


def roll_out(angles, speeds, plans, goal):
    """plans: (horizon, 3, samples). Cost of every plan, all samples in step."""
    angles, speeds = angles[:, None], speeds[:, None]
    cost = np.zeros(plans.shape[2], np.float32)
    for torque in plans:
        speeds = 0.92 * speeds + 0.08 * torque
        angles = angles + 0.05 * speeds
        x, y = tip(angles)
        x -= goal[0]
        y -= goal[1]
        cost += x * x + y * y
    return cost + 0.1 * (speeds * speeds).sum(axis=0)


class Controller:
    def __init__(self, horizon, samples, sigma, temperature, rng):
        self.plan = np.zeros((horizon, 3), np.float32)
        self.samples, self.sigma, self.temperature, self.rng = samples, np.float32(sigma), temperature, rng

    def act(self, angles, speeds, goal):
        noise = self.rng.standard_normal((len(self.plan), 3, self.samples), dtype=np.float32)
        noise *= self.sigma
        cost = roll_out(angles, speeds, self.plan[:, :, None] + noise, goal)
        weight = np.exp((cost.min() - cost) / self.temperature).astype(np.float32)
        weight /= weight.sum()
        self.plan += noise @ weight
        torque = self.plan[0].copy()
        self.plan[:-1] = self.plan[1:]
        self.plan[-1] = 0.0
        return torque, float(cost.min())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=3000)
    ap.add_argument("--horizon", type=int, default=25)
    ap.add_argument("--samples", type=int, default=1500)
    ap.add_argument("--sigma", type=float, default=1.0)
    ap.add_argument("--temperature", type=float, default=0.5)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    rng = np.random.default_rng(args.seed)
    controller = Controller(args.horizon, args.samples, args.sigma, args.temperature, rng)
    angles, speeds = np.zeros(3, np.float32), np.zeros(3, np.float32)
    goal = np.array([0.5, 0.6], np.float32)
    misses, first = [], args.steps // 5
    for step in range(args.steps):
        if step == first:
            clock = time.perf_counter()
        if step % 100 == 0:
            turn, reach = rng.uniform(0, 2 * np.pi), rng.uniform(0.4, 1.2)
            goal = np.array([reach * np.cos(turn), reach * np.sin(turn)], np.float32)
        torque, best = controller.act(angles, speeds, goal)
        speeds = 0.92 * speeds + 0.08 * torque
        angles = angles + 0.05 * speeds
        misses.append(float(np.hypot(*(np.array(tip(angles)) - goal))))
        if step % 200 == 199:
            print(f"step {step + 1}: mean distance {np.mean(misses[-200:]):.3f}, best plan {best:.2f}")
    speed = (args.steps - first) / (time.perf_counter() - clock)
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": speed, "checksum": round(float(np.sum(misses)), 3)}))


if __name__ == "__main__":
    main()
