"""Cross-entropy method for MountainCarContinuous."""

import argparse
import json
import time

import gymnasium as gym
import numpy as np


def features(obs):
    x, v = obs
    return np.array([1.0, x, v * 20, x * x, x * v * 20, np.sin(3 * x)])


def episode_return(theta, seed, max_steps):
    env = gym.make("MountainCarContinuous-v0", max_episode_steps=max_steps)
    obs, _ = env.reset(seed=seed)
    total = 0.0
    while True:
        action = np.tanh(theta @ features(obs))
        obs, reward, terminated, truncated, _ = env.step(np.array([action], dtype=np.float32))
        total += float(reward) + 10 * abs(float(obs[1]))
        if terminated or truncated:
            break
    env.close()
    return total


def cem(generations, population, elite, max_steps, seed=0):
    rng = np.random.default_rng(seed)
    mean, std = np.zeros(6), np.full(6, 2.0)
    times = []
    for g in range(generations):
        times.append(time.perf_counter())
        thetas = mean + std * rng.normal(size=(population, 6))
        scores = np.array([episode_return(theta, g, max_steps) for theta in thetas])
        best = thetas[np.argsort(scores)[-elite:]]
        mean, std = best.mean(0), best.std(0) + 0.1 / (g + 1)
    times.append(time.perf_counter())
    return mean, times


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("-g", "--generations", type=int, default=450)
    ap.add_argument("-p", "--population", type=int, default=40)
    ap.add_argument("--elite", type=int, default=8)
    ap.add_argument("--max-steps", type=int, default=50)
    a = ap.parse_args()
    mean, times = cem(a.generations, a.population, a.elite, a.max_steps)
    first = a.generations // 5
    print(
        json.dumps(
            {
                "env_steps": a.generations * a.population * a.max_steps,
                "updates": None,
                "units_per_s": (a.generations - first) / (times[-1] - times[first]),
                "checksum": float(mean.sum()),
            }
        )
    )
