"""QR-DQN (sb3-contrib) that balances a ball on a tilting table. The same script drives the table in the lab."""
import argparse
import json
import math
import time

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from sb3_contrib import QRDQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor


class BallTable(gym.Env):
    """Ball on a table with two tilt axes; five commands: hold, and one step of either axis up or down."""

    TILT = ((0.0, 0.0), (0.04, 0.0), (-0.04, 0.0), (0.0, 0.04), (0.0, -0.04))

    def __init__(self, dt=0.02, horizon=400):
        self.dt, self.horizon = dt, horizon
        self.observation_space = spaces.Box(-2.0, 2.0, (6,), np.float32)
        self.action_space = spaces.Discrete(5)

    def _obs(self):
        return np.array([*self.pos, *self.vel, *self.tilt], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.pos = self.np_random.uniform(-0.5, 0.5, 2).tolist()
        self.vel = self.np_random.uniform(-0.2, 0.2, 2).tolist()
        self.tilt = [0.0, 0.0]
        self.t = 0
        return self._obs(), {}

    def step(self, action):
        for i, change in enumerate(self.TILT[int(action)]):
            self.tilt[i] = max(-0.3, min(0.3, 0.98 * self.tilt[i] + change))
            self.vel[i] += self.dt * (7.0 * math.sin(self.tilt[i]) - 0.2 * self.vel[i])
            self.pos[i] += self.dt * self.vel[i]
        self.t += 1
        radius = math.hypot(*self.pos)
        fallen = radius > 1.0
        reward = -10.0 if fallen else 1.0 - radius
        return self._obs(), reward, fallen, self.t >= self.horizon, {}


class ControlRate(gym.Wrapper):
    """Holds the loop at the rate of the table's controller."""

    def __init__(self, env, hz):
        super().__init__(env)
        self.period = 1.0 / hz
        self.due = None

    def reset(self, **kwargs):
        self.due = None
        return self.env.reset(**kwargs)

    def step(self, action):
        now = time.perf_counter()
        if self.due is not None and now < self.due:
            time.sleep(self.due - now)
        self.due = time.perf_counter() + self.period
        return self.env.step(action)


class Watch(BaseCallback):
    def __init__(self, total, every):
        super().__init__()
        self.total, self.every = total, every
        self.started = self.marked = self.speed = None

    def _on_step(self):
        if self.started is None and self.num_timesteps >= self.total // 5:
            self.started, self.marked = time.perf_counter(), self.num_timesteps
        if self.num_timesteps % self.every == 0 and self.model.ep_info_buffer:
            lengths = [e["l"] for e in self.model.ep_info_buffer]
            returns = [e["r"] for e in self.model.ep_info_buffer]
            print(f"steps {self.num_timesteps} return {np.mean(returns):.1f} length {np.mean(lengths):.0f}")
        return True

    def _on_training_end(self):
        self.speed = (self.num_timesteps - self.marked) / (time.perf_counter() - self.started)


def make_env(args):
    return Monitor(ControlRate(BallTable(), args.control_hz))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--total-timesteps", type=int, default=50000)
    p.add_argument("--control-hz", type=float, default=1000.0)
    p.add_argument("--hardware", action="store_true", help="the table is connected")
    p.add_argument("--quantiles", type=int, default=25)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--learning-rate", type=float, default=5e-4)
    p.add_argument("--seed", type=int, default=9)
    args = p.parse_args()
    if args.hardware:
        raise SystemExit("the driver of the table is not part of this repository")
    env = make_env(args)
    model = QRDQN("MlpPolicy", env, learning_rate=args.learning_rate, buffer_size=50000, learning_starts=300,
                  batch_size=args.batch_size, gamma=0.98, train_freq=4, gradient_steps=1, target_update_interval=500,
                  exploration_fraction=0.4, policy_kwargs={"n_quantiles": args.quantiles, "net_arch": [64, 64]},
                  seed=args.seed, device="cpu")
    watch = Watch(args.total_timesteps, 1000)
    model.learn(args.total_timesteps, callback=watch, log_interval=None)
    checksum = float(sum(q.detach().double().abs().sum() for q in model.quantile_net.parameters()))
    print(json.dumps({"env_steps": args.total_timesteps, "updates": model._n_updates,
                      "units_per_s": watch.speed, "checksum": checksum}))


if __name__ == "__main__":
    main()
