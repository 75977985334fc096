"""SB3 PPO on CartPole swing rewards, with a VecEnv wrapper that scales rewards by recent returns."""

import argparse
import json
import time
from collections import deque

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn


class ScaleByRecentReturns(VecEnvWrapper):
    """Divides rewards by the standard deviation of the discounted returns of the last steps.

    Unlike VecNormalize, old returns are forgotten, which helps when the policy improves quickly.
    """

    def __init__(self, venv: VecEnv, gamma: float = 0.99, window: int = 14_000, clip: float = 10.0):
        super().__init__(venv)
        self.gamma = gamma
        self.clip = clip
        self.running = np.zeros(venv.num_envs)
        self.recent: deque[float] = deque(maxlen=window)

    def reset(self) -> np.ndarray:
        self.running[:] = 0.0
        return self.venv.reset()

    def step_wait(self) -> VecEnvStepReturn:
        obs, rewards, dones, infos = self.venv.step_wait()
        self.running = self.running * self.gamma + rewards
        self.recent.extend(self.running.tolist())
        scale = np.std(self.recent) + 1e-8
        self.running[dones] = 0.0
        return obs, np.clip(rewards / scale, -self.clip, self.clip).astype(np.float32), dones, infos


class Stopwatch(BaseCallback):
    """Times the iterations after the first fifth."""

    def __init__(self, first: int):
        super().__init__()
        self.first = first
        self.iterations = 0
        self.began = 0.0

    def _on_rollout_start(self) -> None:
        if self.iterations == self.first:
            self.began = time.perf_counter()
        self.iterations += 1

    def _on_step(self) -> bool:
        return True


def make_env(seed: int):
    def thunk() -> gym.Env:
        env = gym.make("CartPole-v1")
        env.reset(seed=seed)
        return env

    return thunk


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=35)
    parser.add_argument("--n-envs", type=int, default=8)
    parser.add_argument("--n-steps", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=11)
    args = parser.parse_args()
    th.set_num_threads(1)

    venv = ScaleByRecentReturns(DummyVecEnv([make_env(args.seed + i) for i in range(args.n_envs)]))
    model = PPO(
        "MlpPolicy",
        venv,
        n_steps=args.n_steps,
        batch_size=256,
        n_epochs=args.epochs,
        learning_rate=5e-4,
        seed=args.seed,
        device="cpu",
    )
    watch = Stopwatch(args.iterations // 5)
    model.learn(args.iterations * args.n_steps * args.n_envs, callback=watch)
    elapsed = time.perf_counter() - watch.began
    print(
        json.dumps(
            {
                "env_steps": model.num_timesteps,
                "updates": args.iterations * args.epochs * (args.n_steps * args.n_envs // 256),
                "units_per_s": (watch.iterations - watch.first) / elapsed,
                "checksum": sum(p.detach().abs().sum().item() for p in model.policy.parameters()),
            }
        )
    )


if __name__ == "__main__":
    main()
