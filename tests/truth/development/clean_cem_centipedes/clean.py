"""Cross-entropy method for a centipede; the whole population walks at once, two-layer policies as batched products."""
import argparse
import json
import time

import numpy as np

LEGS = 24
N_OBS = 2 * LEGS + 4
N_HIDDEN = 192


class Centipedes:
    """n animals side by side; every array has the animal as first axis."""

    def __init__(self, n, trials, rng):
        self.shape = (n, trials, LEGS)
        self.rng = rng

    def reset(self):
        n, trials, legs = self.shape
        # All candidates start from the same random poses, which makes them comparable.
        pose = self.rng.uniform(-0.3, 0.3, (1, trials, legs)).astype(np.float32)
        self.obs = np.zeros((n, trials, N_OBS), np.float32)
        self.angle, self.speed = self.obs[..., :legs], self.obs[..., legs : 2 * legs]
        self.body = self.obs[..., 2 * legs :]
        self.angle[:] = pose
        self.body[..., 3] = 1.0
        return self.obs

    def step(self, torque, clock):
        self.speed *= 0.8
        self.speed += 0.3 * torque
        self.angle += 0.2 * self.speed
        np.clip(self.angle, -1, 1, out=self.angle)
        thrust = np.where(self.angle < 0, -self.speed, 0).mean(2)
        self.body[..., 0] = 0.9 * self.body[..., 0] + 0.1 * thrust
        self.body[..., 1] = np.sin(clock)
        self.body[..., 2] = np.cos(clock)
        return self.body[..., 0]


def unpack(genes):
    cut = N_OBS * N_HIDDEN
    return (
        np.ascontiguousarray(genes[:, :cut].reshape(-1, N_OBS, N_HIDDEN)),
        np.ascontiguousarray(genes[:, cut:].reshape(-1, N_HIDDEN, LEGS)),
    )


def evaluate(world, genes, steps):
    w1, w2 = unpack(genes)
    obs = world.reset()
    score = np.zeros(len(genes), np.float32)
    for t in range(steps):
        hidden = np.matmul(obs, w1)
        np.maximum(hidden, 0, out=hidden)
        torque = np.matmul(hidden, w2)
        np.clip(torque, -1, 1, out=torque)
        score += world.step(torque, 0.3 * t).mean(1)
    return score / steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--generations", type=int, default=100)
    parser.add_argument("--population", type=int, default=96)
    parser.add_argument("--elites", type=int, default=16)
    parser.add_argument("--trials", type=int, default=48)
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    rng = np.random.default_rng(34)
    world = Centipedes(args.population, args.trials, rng)
    size = N_OBS * N_HIDDEN + N_HIDDEN * LEGS
    mean, std = np.zeros(size, np.float32), np.full(size, 0.3, np.float32)
    for g in range(args.generations):
        if g == args.generations // 5:
            began = time.perf_counter()
        genes = rng.standard_normal((args.population, size), dtype=np.float32)
        genes *= std
        genes += mean
        score = evaluate(world, genes, args.steps)
        best = genes[np.argpartition(-score, args.elites)[: args.elites]]
        mean = best.mean(0)
        std = best.std(0) + np.float32(0.02)
        if g % 10 == 0:
            print(f"generation {g}: best {score.max():.3f}, mean {score.mean():.3f}")
    rate = (args.generations - args.generations // 5) / (time.perf_counter() - began)
    print(json.dumps({"env_steps": None, "updates": None, "units_per_s": rate, "checksum": float(np.abs(mean).sum())}))


if __name__ == "__main__":
    main()
