"""DQN for a single-product inventory problem (lost sales, lead time 2) with Stable-Baselines3."""
import json
import sys
import time

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EvalCallback
from stable_baselines3.common.monitor import Monitor

TOTAL_STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 30_000
SEED = 7


class InventoryEnv(gym.Env):
    """Order 0..8 units per day; pay for holding, ordering and lost sales."""

    metadata = {"render_modes": []}

    def __init__(self, horizon=120, capacity=40, lead_time=2):
        self.horizon = horizon
        self.capacity = capacity
        self.lead_time = lead_time
        self.price, self.cost, self.holding, self.penalty = 4.0, 2.0, 0.1, 1.0
        self.observation_space = spaces.Box(-1.0, 2.0, shape=(3 + lead_time,), dtype=np.float32)
        self.action_space = spaces.Discrete(9)

    def _obs(self):
        phase = 2 * np.pi * self.day / 7.0
        return np.array(
            [self.stock / self.capacity, np.sin(phase), np.cos(phase)]
            + [q / 8.0 for q in self.pipeline],
            dtype=np.float32,
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.day = 0
        self.stock = 15
        self.pipeline = [0] * self.lead_time
        rates = 4.0 + 2.0 * np.sin(2 * np.pi * np.arange(self.horizon) / 7.0)
        self.demand = self.np_random.poisson(rates).tolist()
        return self._obs(), {}

    def step(self, action):
        self.stock = min(self.capacity, self.stock + self.pipeline.pop(0))
        self.pipeline.append(int(action))
        demand = self.demand[self.day]
        sold = min(self.stock, demand)
        self.stock -= sold
        reward = (
            self.price * sold
            - self.cost * int(action)
            - self.holding * self.stock
            - self.penalty * (demand - sold)
        )
        self.day += 1
        return self._obs(), reward / 10.0, False, self.day >= self.horizon, {}


class SpeedMeter(BaseCallback):
    def __init__(self, start_at):
        super().__init__()
        self.start_at = start_at
        self.t0 = None

    def _on_step(self):
        if self.t0 is None and self.num_timesteps >= self.start_at:
            self.t0, self.n0 = time.perf_counter(), self.num_timesteps
        return True

    def _on_training_end(self):
        self.rate = (self.num_timesteps - self.n0) / (time.perf_counter() - self.t0)


def main():
    env = Monitor(InventoryEnv())
    eval_env = Monitor(InventoryEnv())
    eval_env.reset(seed=SEED + 100)

    model = DQN(
        "MlpPolicy",
        env,
        learning_rate=5e-4,
        buffer_size=50_000,
        learning_starts=1_000,
        batch_size=64,
        gamma=0.98,
        train_freq=4,
        gradient_steps=1,
        target_update_interval=500,
        exploration_fraction=0.3,
        exploration_final_eps=0.05,
        policy_kwargs=dict(net_arch=[64, 64]),
        seed=SEED,
        device="cpu",
        verbose=0,
    )
    evaluation = EvalCallback(
        eval_env,
        n_eval_episodes=10,
        eval_freq=500,
        deterministic=True,
        verbose=0,
    )
    meter = SpeedMeter(TOTAL_STEPS // 5)
    model.learn(TOTAL_STEPS, callback=CallbackList([evaluation, meter]))

    print(f"best mean reward {evaluation.best_mean_reward:.2f}")
    checksum = sum(p.double().sum().item() for p in model.q_net.parameters())
    print(json.dumps({
        "env_steps": model.num_timesteps,
        "updates": model._n_updates,
        "units_per_s": meter.rate,
        "checksum": round(checksum, 6),
    }))


if __name__ == "__main__":
    main()
