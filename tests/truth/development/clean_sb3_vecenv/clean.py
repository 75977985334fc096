"""PPO from Stable-Baselines3 with a VecEnv that steps all mountain cars in one array."""

import argparse
import json
import time

import numpy as np
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv


class HillCars(VecEnv):
    def __init__(self, n, seed):
        super().__init__(n, spaces.Box(-2.0, 2.0, (2,), np.float32), spaces.Box(-1.0, 1.0, (1,), np.float32))
        self.rng = np.random.default_rng(seed)
        self.x = np.zeros(n)
        self.v = np.zeros(n)
        self.t = np.zeros(n, int)
        self.render_mode = None

    def _obs(self):
        return np.stack([self.x, 10 * self.v], axis=1).astype(np.float32)

    def reset(self):
        self.x = self.rng.uniform(-0.6, -0.4, self.num_envs)
        self.v = np.zeros(self.num_envs)
        self.t = self.rng.integers(0, 200, self.num_envs)
        return self._obs()

    def step_async(self, actions):
        self.force = actions[:, 0]

    def step_wait(self):
        self.v = np.clip(self.v + 0.0015 * self.force - 0.0025 * np.cos(3 * self.x), -0.07, 0.07)
        self.x = np.clip(self.x + self.v, -1.2, 0.6)
        self.v[self.x <= -1.2] = 0.0
        self.t += 1
        goal = self.x >= 0.45
        reward = 100.0 * goal - 0.1 * self.force**2 + 10 * np.abs(self.v)
        done = goal | (self.t >= 200)
        infos = [{} for _ in range(self.num_envs)]
        if done.any():
            last = self._obs()
            for i in np.flatnonzero(done):
                infos[i] = {"terminal_observation": last[i], "TimeLimit.truncated": not goal[i]}
            self.x[done] = self.rng.uniform(-0.6, -0.4, int(done.sum()))
            self.v[done] = 0.0
            self.t[done] = 0
        return self._obs(), reward.astype(np.float32), done, infos

    def close(self):
        pass

    def get_attr(self, attr_name, indices=None):
        return [getattr(self, attr_name)] * self.num_envs

    def set_attr(self, attr_name, value, indices=None):
        setattr(self, attr_name, value)

    def env_method(self, method_name, *args, indices=None, **kwargs):
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * self.num_envs


class IterationClock(BaseCallback):
    def __init__(self):
        super().__init__()
        self.times = []

    def _on_rollout_start(self):
        self.times.append(time.perf_counter())

    def _on_step(self):
        return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=7)
    args = parser.parse_args()
    n_envs, n_steps = 128, 64
    env = HillCars(n_envs, seed=1)
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=n_steps,
        batch_size=1024,
        n_epochs=10,
        gamma=0.99,
        learning_rate=3e-4,
        policy_kwargs={
            "net_arch": {"pi": [384, 384], "vf": [384, 384]},
            "optimizer_kwargs": {"eps": 1e-5, "fused": True},
        },
        seed=1,
        device="cpu",
    )
    clock = IterationClock()
    model.learn(args.iterations * n_envs * n_steps, callback=clock)
    marks = [*clock.times, time.perf_counter()]
    first = len(clock.times) // 5
    print(
        json.dumps(
            {
                "env_steps": model.num_timesteps,
                "updates": args.iterations * 10 * (n_envs * n_steps // 1024),
                "units_per_s": (len(marks) - 1 - first) / (marks[-1] - marks[first]),
                "checksum": sum(p.detach().double().sum().item() for p in model.policy.parameters()),
            }
        )
    )


if __name__ == "__main__":
    main()
