import argparse
import json
import time

import gymnasium as gym
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EvalCallback
from stable_baselines3.common.monitor import Monitor


class Stopwatch(BaseCallback):
    """Remembers when the first fifth of the run was over."""

    def __init__(self, total):
        super().__init__()
        self.total = total
        self.begin = None
        self.at = 0

    def _on_step(self):
        if self.begin is None and self.num_timesteps >= self.total // 5:
            self.begin, self.at = time.perf_counter(), self.num_timesteps
        return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--timesteps", type=int, default=12_000)
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()

    torch.set_num_threads(1)
    env = Monitor(gym.make("MountainCar-v0"))
    eval_env = Monitor(gym.make("MountainCar-v0"))

    model = DQN(
        "MlpPolicy",
        env,
        learning_rate=4e-3,
        batch_size=128,
        buffer_size=10_000,
        learning_starts=1_000,
        gamma=0.98,
        target_update_interval=600,
        train_freq=16,
        gradient_steps=8,
        exploration_fraction=0.2,
        exploration_final_eps=0.07,
        policy_kwargs={"net_arch": [64, 64]},
        seed=args.seed,
        device="cpu",
    )
    watch = Stopwatch(args.timesteps)
    evaluation = EvalCallback(eval_env, n_eval_episodes=10, eval_freq=10_000, verbose=0, warn=False)
    model.learn(args.timesteps, callback=CallbackList([watch, evaluation]))
    seconds = time.perf_counter() - watch.begin

    print(
        json.dumps(
            {
                "env_steps": model.num_timesteps,
                "updates": model._n_updates,
                "units_per_s": (model.num_timesteps - watch.at) / seconds,
                "checksum": float(sum(p.double().sum() for p in model.q_net.parameters())),
            }
        )
    )
