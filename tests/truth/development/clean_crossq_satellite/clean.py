"""CrossQ (sb3-contrib) that turns a small satellite towards a ground station with two reaction wheels."""
import argparse
import json
import math
import time

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from sb3_contrib import CrossQ
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor


class SatelliteEnv(gym.Env):
    """Two angles, two rates, two wheel speeds; the wheels saturate."""

    def __init__(self, dt=0.1, horizon=200):
        self.dt, self.horizon = dt, horizon
        self.observation_space = spaces.Box(-np.inf, np.inf, (8,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def _obs(self):
        (a, b), (ra, rb), (wa, wb) = self.angle, self.rate, self.wheel
        return np.array([math.sin(a), math.cos(a), math.sin(b), math.cos(b), ra, rb, wa, wb], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.angle = self.np_random.uniform(-math.pi, math.pi, 2).tolist()
        self.rate = self.np_random.uniform(-0.3, 0.3, 2).tolist()
        self.wheel = [0.0, 0.0]
        self.t = 0
        return self._obs(), {}

    def step(self, action):
        error = effort = 0.0
        for i, u in enumerate(action.tolist()):
            u = 0.0 if abs(self.wheel[i]) >= 2.0 and u * self.wheel[i] > 0 else max(-1.0, min(1.0, u))
            self.wheel[i] += self.dt * u
            coupling = 0.1 * self.rate[1 - i] * self.wheel[1 - i]
            self.rate[i] += self.dt * (u - coupling - 0.02 * self.rate[i])
            self.angle[i] = (self.angle[i] + self.dt * self.rate[i] + math.pi) % (2 * math.pi) - math.pi
            error += self.angle[i] ** 2 + 0.1 * self.rate[i] ** 2
            effort += u * u
        self.t += 1
        return self._obs(), -0.1 * error - 0.01 * effort, False, self.t >= self.horizon, {}


class Report(BaseCallback):
    """Return of the last episodes now and then, and the speed of the last 80 percent."""

    def __init__(self, total, every):
        super().__init__()
        self.total, self.every = total, every
        self.started = self.marked = self.speed = None

    def _on_step(self):
        n = self.num_timesteps
        if self.started is None and n >= self.total // 5:
            self.started, self.marked = time.perf_counter(), n
        if n % self.every == 0 and self.model.ep_info_buffer:
            print(f"steps {n} return {np.mean([e['r'] for e in self.model.ep_info_buffer]):.2f}")
        return True

    def _on_training_end(self):
        self.speed = (self.num_timesteps - self.marked) / (time.perf_counter() - self.started)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--total-timesteps", type=int, default=20000)
    p.add_argument("--learning-starts", type=int, default=200)
    p.add_argument("--critic-width", type=int, default=256)
    p.add_argument("--batch-size", type=int, default=128)
    p.add_argument("--learning-rate", type=float, default=1e-3)
    p.add_argument("--gamma", type=float, default=0.98)
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    env = Monitor(SatelliteEnv())
    model = CrossQ("MlpPolicy", env, learning_rate=args.learning_rate, buffer_size=max(args.total_timesteps, 1000),
                   learning_starts=args.learning_starts, batch_size=args.batch_size, gamma=args.gamma,
                   policy_kwargs={"net_arch": {"pi": [256, 256], "qf": [args.critic_width, args.critic_width]}},
                   seed=args.seed, device="cpu")
    report = Report(args.total_timesteps, 500)
    model.learn(args.total_timesteps, callback=report, log_interval=None)
    checksum = float(sum(q.detach().double().abs().sum() for q in model.actor.parameters()))
    print(json.dumps({"env_steps": args.total_timesteps, "updates": model._n_updates, "units_per_s": report.speed,
                      "checksum": checksum}))


if __name__ == "__main__":
    main()
