"""Pitch and torque control of a wind turbine with Stable-Baselines3's TD3. Power coefficient from the maker's table."""
import argparse
import json
import time

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from scipy.interpolate import RectBivariateSpline
from stable_baselines3 import TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise

torch.set_num_threads(1)

TIP_SPEED = np.linspace(1.0, 14.0, 105)
PITCH = np.linspace(-5.0, 30.0, 141)


def cp_table():
    lam, beta = np.meshgrid(TIP_SPEED, PITCH, indexing="ij")
    li = 1.0 / (1.0 / (lam + 0.08 * (beta + 6)) - 0.035 / ((beta + 6) ** 3 / 500 + 1))
    cp = 0.5176 * (116.0 / li - 0.4 * np.maximum(beta, 0) - 5.0) * np.exp(-21.0 / li) + 0.0068 * lam
    return np.clip(cp, 0.0, 0.59)


class Turbine(gym.Env):
    """5 MW machine, one second per step. Observation: rotor speed, pitch, wind (noisy), power."""

    def __init__(self, hours=0.1):
        self.surface = RectBivariateSpline(TIP_SPEED, PITCH, cp_table())
        self.observation_space = spaces.Box(-5.0, 5.0, (5,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.horizon = int(hours * 3600)

    def _power_coefficient(self, tip_speed, pitch):
        return float(self.surface.ev(tip_speed, pitch))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.omega, self.pitch, self.wind, self.t = 1.0, 2.0, 9.0 + 3.0 * self.np_random.random(), 0
        self.power = 0.0
        return self._obs(), {}

    def _obs(self):
        gust = self.wind + 0.3 * self.np_random.standard_normal()
        return np.array([self.omega - 1.0, self.pitch / 15, gust / 10 - 1, self.power / 5, self.t / self.horizon],
                        dtype=np.float32)

    def step(self, action):
        self.pitch = float(np.clip(self.pitch + 2.0 * action[0], -4.0, 28.0))
        torque = 2.4 + 2.0 * float(action[1])
        self.wind += 0.1 * (11.0 - self.wind) + 0.5 * self.np_random.standard_normal()
        self.wind = float(np.clip(self.wind, 3.0, 24.0))
        tip = float(np.clip(63.0 * self.omega / self.wind, 1.0, 14.0))
        cp = self._power_coefficient(tip, self.pitch)
        aero = 0.5 * 1.225 * np.pi * 63.0 ** 2 * cp * self.wind ** 3 / 1e6
        self.omega += 0.12 * (aero / max(self.omega, 0.2) - torque)
        self.omega = float(np.clip(self.omega, 0.2, 2.0))
        self.power = torque * self.omega
        reward = self.power / 5 - 2.0 * max(0.0, self.omega - 1.35) - 0.5 * max(0.0, self.power - 5.5)
        reward -= 0.01 * float(action @ action)
        self.t += 1
        return self._obs(), float(reward), False, self.t >= self.horizon, {"power": self.power}


class Meter(BaseCallback):
    """Mean power of the last 1000 seconds, and the speed of training."""

    def __init__(self, total):
        super().__init__()
        self.total, self.power, self.mark = total, [], None

    def _on_step(self):
        self.power.append(self.locals["infos"][0]["power"])
        if self.mark is None and self.num_timesteps >= self.total // 5:
            self.mark = (self.num_timesteps, time.perf_counter())
        if self.num_timesteps % 1000 == 0:
            print(f"{self.num_timesteps:6d} s   mean power {np.mean(self.power[-1000:]):.2f} MW")
        return True

    def speed(self):
        return (self.num_timesteps - self.mark[0]) / (time.perf_counter() - self.mark[1])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=4500)
    args = ap.parse_args()
    env = Turbine()
    model = TD3("MlpPolicy", env, learning_starts=400, train_freq=4, gradient_steps=1, batch_size=100, seed=2,
                buffer_size=20000, device="cpu", policy_kwargs=dict(net_arch=[64, 64]),
                action_noise=NormalActionNoise(np.zeros(2), 0.2 * np.ones(2)))
    meter = Meter(args.steps)
    model.learn(args.steps, callback=meter)
    print(json.dumps({"env_steps": model.num_timesteps, "updates": model._n_updates, "units_per_s": meter.speed(),
                      "checksum": float(np.sum(meter.power))}))


if __name__ == "__main__":
    main()
