"""sb3-contrib TRPO steers a boat into a harbour. Keeps the weights that did best when steering without noise."""
import argparse
import copy
import json
import math
import time

import gymnasium as gym
import numpy as np
from sb3_contrib import TRPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor


class HarbourEnv(gym.Env):
    """The boat always starts outside the mole, the current is the same every day. Action: rudder and throttle."""

    observation_space = gym.spaces.Box(-10.0, 10.0, (6,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    steps_made = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.y, self.heading, self.speed, self.turn, self.t = -4.0, 2.5, 0.0, 0.3, 0.0, 0
        return self.look(), {}

    def look(self):
        return np.array([self.x, self.y, math.cos(self.heading), math.sin(self.heading), self.speed, self.turn], np.float32)

    def step(self, action):
        HarbourEnv.steps_made += 1
        rudder, throttle = float(action[0]), float(action[1])
        before = math.hypot(self.x, self.y)
        self.turn = 0.8 * self.turn + 0.15 * rudder * self.speed
        self.heading += self.turn
        self.speed = min(1.0, max(0.0, self.speed + 0.08 * throttle - 0.02 * self.speed))
        current = 0.04 * math.sin(self.x)
        self.x += 0.2 * self.speed * math.cos(self.heading)
        self.y += 0.2 * self.speed * math.sin(self.heading) + current * 0.2
        self.t += 1
        distance = math.hypot(self.x, self.y)
        docked = distance < 0.4 and self.speed < 0.3
        astray = distance > 8.0
        reward = (before - distance) + (5.0 if docked else 0.0) - (2.0 if astray else 0.0) - 0.01
        return self.look(), reward, docked or astray, self.t >= 120, {}


class KeepBest(BaseCallback):
    """After each rollout, sails without noise and remembers the best weights."""

    def __init__(self, env, episodes):
        super().__init__()
        self.env, self.episodes = env, episodes
        self.best, self.best_weights, self.history = -math.inf, None, []

    def _on_step(self):
        return True

    def _on_rollout_start(self):
        mean, _ = evaluate_policy(self.model, self.env, n_eval_episodes=self.episodes, deterministic=True)
        self.history.append(mean)
        if mean > self.best:
            self.best, self.best_weights = mean, copy.deepcopy(self.model.policy.state_dict())


class Stopwatch(BaseCallback):
    def __init__(self, total):
        super().__init__()
        self.total, self.mark = total, None

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        if self.mark is None and self.num_timesteps >= self.total / 5:
            self.mark = (self.num_timesteps, time.perf_counter())

    def _on_training_end(self):
        steps, then = self.mark
        self.rate = (self.num_timesteps - steps) / (time.perf_counter() - then)


def run():
    parser = argparse.ArgumentParser()
    parser.add_argument("--timesteps", type=int, default=150_000)
    parser.add_argument("--rollout", type=int, default=1024)
    parser.add_argument("--eval-episodes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model = TRPO("MlpPolicy", Monitor(HarbourEnv()), n_steps=args.rollout, batch_size=args.rollout, gamma=0.99,
                 learning_rate=1e-3, n_critic_updates=5, seed=args.seed, device="cpu")
    keeper, watch = KeepBest(Monitor(HarbourEnv()), args.eval_episodes), Stopwatch(args.timesteps)
    model.learn(args.timesteps, callback=[keeper, watch])
    print("evaluations:", [round(float(r), 2) for r in keeper.history[-8:]], "best", round(float(keeper.best), 3))
    model.policy.load_state_dict(keeper.best_weights)
    checksum = sum(float(p.detach().double().abs().sum()) for p in model.policy.parameters())
    print(json.dumps({"env_steps": HarbourEnv.steps_made, "updates": None, "units_per_s": watch.rate,
                      "checksum": round(checksum, 5)}))


if __name__ == "__main__":
    run()
