import os

os.environ["OMP_NUM_THREADS"] = "1"  # tiny matrices, tiny networks

import json
import sys
import time

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DQN

torch.set_num_threads(1)

N_ZONES = 40
DT = 180.0  # s, time step of the solver
SUBSTEPS = 5  # the controller acts every 15 minutes


class BuildingEnv(gym.Env):
    """RC model of a building: zones exchange heat with their neighbours and with the outside.

    One heat pump feeds all zones; the agent chooses its power level. Implicit Euler because the system is stiff.
    """

    LEVELS = np.linspace(0.0, 1.0, 5)

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        self.capacity = rng.uniform(0.8e6, 1.6e6, N_ZONES)  # J/K
        coupling = np.zeros((N_ZONES, N_ZONES))  # W/K
        for i in range(N_ZONES - 1):
            coupling[i, i + 1] = coupling[i + 1, i] = rng.uniform(40, 90)
        for _ in range(N_ZONES // 2):
            i, j = rng.choice(N_ZONES, 2, replace=False)
            coupling[i, j] = coupling[j, i] = rng.uniform(20, 60)
        self.coupling = coupling
        self.leak = rng.uniform(8, 25, N_ZONES)  # W/K to the outside
        self.share = rng.dirichlet(np.full(N_ZONES, 20.0)) * 9000.0  # W at full power
        rates = self.coupling - np.diag(self.coupling.sum(axis=1) + self.leak)
        system = np.eye(N_ZONES) - DT * rates / self.capacity[:, None]
        self.inverse = np.linalg.inv(system)
        self.observation_space = spaces.Box(-np.inf, np.inf, (N_ZONES + 3,), np.float32)
        self.action_space = spaces.Discrete(len(self.LEVELS))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.temp = self.np_random.uniform(17.0, 22.0, N_ZONES)
        self.mean_outside = self.np_random.uniform(-5.0, 8.0)
        return self._obs(), {}

    def _outside(self):
        return self.mean_outside + 5.0 * np.sin(2 * np.pi * self.t * SUBSTEPS * DT / 86400.0)

    def _obs(self):
        phase = 2 * np.pi * self.t * SUBSTEPS * DT / 86400.0
        rest = (self._outside() / 10.0, np.sin(phase), np.cos(phase))
        return np.concatenate([(self.temp - 20.0) / 5.0, rest]).astype(np.float32)

    def _advance(self, power, outside):
        """One implicit Euler step."""
        gain = (power * self.share + self.leak * outside) / self.capacity
        self.temp = self.inverse @ (self.temp + DT * gain)

    def step(self, action):
        power = self.LEVELS[action]
        outside = self._outside()
        for _ in range(SUBSTEPS):
            self._advance(power, outside)
        self.t += 1
        discomfort = np.abs(self.temp - 20.5).mean()
        reward = float(-discomfort - 0.3 * power)
        return self._obs(), reward, False, self.t >= 192, {}


total = int(sys.argv[1]) if len(sys.argv) > 1 else 16_000
env = BuildingEnv()
model = DQN(
    "MlpPolicy",
    env,
    learning_rate=5e-4,
    buffer_size=20_000,
    learning_starts=500,
    batch_size=32,
    train_freq=8,
    target_update_interval=1000,
    exploration_fraction=0.3,
    policy_kwargs={"net_arch": [64, 64], "optimizer_kwargs": {"fused": True}},
    seed=7,
    device="cpu",
)
first = total // 5
model.learn(first, log_interval=None)
start = time.perf_counter()
model.learn(total - first, log_interval=None, reset_num_timesteps=False)
seconds = time.perf_counter() - start

checksum = sum(p.double().abs().sum().item() for p in model.q_net.parameters())
print(
    json.dumps(
        {
            "env_steps": model.num_timesteps,
            "updates": model._n_updates,
            "units_per_s": (total - first) / seconds,
            "checksum": checksum,
        }
    )
)
