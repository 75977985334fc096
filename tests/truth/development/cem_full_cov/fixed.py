"""Cross-entropy method with a full covariance matrix on Pendulum-v1 (no gradients, numpy only)."""

import argparse
import json
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gymnasium as gym
import numpy as np

OBS_DIM = 3
HIDDEN = 24
N_PARAMS = OBS_DIM * HIDDEN + HIDDEN + HIDDEN + 1


class TanhPolicy:
    """Views into one flat parameter vector, so that a candidate is nothing but an array."""

    def __init__(self, theta: np.ndarray):
        i = OBS_DIM * HIDDEN
        self.w1 = theta[:i].reshape(OBS_DIM, HIDDEN)
        self.b1 = theta[i : i + HIDDEN]
        self.w2 = theta[i + HIDDEN : i + 2 * HIDDEN]
        self.b2 = theta[-1]

    def act(self, obs: np.ndarray) -> np.ndarray:
        h = np.tanh(obs @ self.w1 + self.b1)
        return np.tanh(h @ self.w2 + self.b2).reshape(1) * 2.0


def evaluate(env: gym.Env, theta: np.ndarray, horizon: int, seed: int) -> tuple[float, int]:
    policy = TanhPolicy(theta)
    obs, _ = env.reset(seed=seed)
    total, steps = 0.0, 0
    for _ in range(horizon):
        obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
        total += reward
        steps += 1
        if terminated or truncated:
            break
    return total, steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--generations", type=int, default=60)
    parser.add_argument("--population", type=int, default=48)
    parser.add_argument("--elites", type=int, default=12)
    parser.add_argument("--horizon", type=int, default=150)
    parser.add_argument("--extra-std", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=3)
    args = parser.parse_args()

    rng = np.random.default_rng(args.seed)
    env = gym.make("Pendulum-v1")
    mean = np.zeros(N_PARAMS)
    cov = np.eye(N_PARAMS)
    env_steps = 0
    warmup = args.generations // 5
    start = time.perf_counter()

    for generation in range(args.generations):
        if generation == warmup:
            start = time.perf_counter()
        noise_floor = args.extra_std**2 * max(0.05, 1.0 - generation / 30)

        candidates = rng.multivariate_normal(mean, cov, size=args.population)
        scores = []
        for theta in candidates:
            score, steps = evaluate(env, theta, args.horizon, seed=generation)
            scores.append(score)
            env_steps += steps

        order = np.argsort(scores)[::-1][: args.elites]
        elites = candidates[order]
        mean = elites.mean(axis=0)
        cov = np.cov(elites, rowvar=False) + noise_floor * np.eye(N_PARAMS)
        if generation % 10 == 0:
            print(f"gen {generation:3d}  best {max(scores):9.1f}  mean {np.mean(scores):9.1f}")

    elapsed = time.perf_counter() - start
    print(
        json.dumps(
            {
                "env_steps": env_steps,
                "updates": None,
                "units_per_s": (args.generations - warmup) / elapsed,
                "checksum": float(np.abs(mean).sum()),
            }
        )
    )


if __name__ == "__main__":
    main()
