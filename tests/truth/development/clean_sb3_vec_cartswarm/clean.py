"""SB3 PPO with a vectorised environment of our own: 128 carts balance poles in one numpy step."""
import json
import sys
import time

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

torch.set_num_threads(1)
TOTAL = int(sys.argv[1]) if len(sys.argv) > 1 else 128 * 64 * 9


class CartSwarm(VecEnv):
    def __init__(self, n, seed=0):
        super().__init__(n, spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(2))
        self.rng = np.random.default_rng(seed)
        self.s = np.zeros((4, n))
        self.age = np.zeros(n, dtype=int)
        self.render_mode = None
        self.no_info = [{} for _ in range(n)]

    def reset(self):
        self.s = self.rng.uniform(-0.05, 0.05, size=(4, self.num_envs))
        self.age[:] = 0
        return self.s.T.astype(np.float32)

    def step_async(self, actions):
        self.actions = actions

    def step_wait(self):
        x, v, th, om = self.s
        force = np.where(self.actions == 1, 10.0, -10.0)
        c, s = np.cos(th), np.sin(th)
        temp = (force + 0.05 * om * om * s) / 1.1
        alpha = (9.8 * s - c * temp) / (0.5 * (4.0 / 3.0 - 0.1 * c * c / 1.1))
        acc = temp - 0.05 * alpha * c / 1.1
        self.s = np.stack([x + 0.02 * v, v + 0.02 * acc, th + 0.02 * om, om + 0.02 * alpha])
        self.age += 1
        fell = (np.abs(self.s[0]) > 2.4) | (np.abs(self.s[2]) > 0.2095)
        late = self.age >= 500
        done = fell | late
        infos = self.no_info
        if done.any():
            infos = list(infos)
            for i in np.flatnonzero(done):
                infos[i] = {"terminal_observation": self.s[:, i].astype(np.float32),
                            "TimeLimit.truncated": bool(late[i] and not fell[i]),
                            "episode": {"r": float(self.age[i]), "l": int(self.age[i]), "t": 0.0}}
            k = int(done.sum())
            self.s[:, done] = self.rng.uniform(-0.05, 0.05, size=(4, k))
            self.age[done] = 0
        return self.s.T.astype(np.float32), np.ones(self.num_envs, dtype=np.float32), done, infos

    def close(self):
        pass

    def get_attr(self, name, indices=None):
        return [getattr(self, name)] * self.num_envs

    def set_attr(self, name, value, indices=None):
        setattr(self, name, value)

    def env_method(self, name, *args, indices=None, **kwargs):
        return [getattr(self, name)(*args, **kwargs)] * self.num_envs

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * self.num_envs


class Report(BaseCallback):
    """A line per rollout, and the clock."""

    mark = None

    def _on_step(self):
        return True

    def _on_rollout_start(self):
        if self.mark is None and self.num_timesteps >= TOTAL // 5:
            self.mark = (self.num_timesteps, time.perf_counter())

    def _on_rollout_end(self):
        lengths = [e["l"] for e in self.model.ep_info_buffer]
        if lengths:
            print(f"{self.num_timesteps:7d} steps: mean length {np.mean(lengths):.1f}")


if __name__ == "__main__":
    env = CartSwarm(128, seed=4)
    model = PPO("MlpPolicy", env, n_steps=64, batch_size=2048, n_epochs=6, learning_rate=1e-3, seed=4, device="cpu",
                policy_kwargs=dict(net_arch=[256, 256], optimizer_kwargs=dict(fused=True)))
    report = Report()
    model.learn(TOTAL, callback=report)
    n, t = report.mark
    rate = (model.num_timesteps - n) / (time.perf_counter() - t)
    total = sum(p.detach().double().sum().item() for p in model.policy.parameters())
    print(json.dumps({"env_steps": model.num_timesteps, "updates": model._n_updates // 6 * 24, "units_per_s": rate,
                      "checksum": total}))
