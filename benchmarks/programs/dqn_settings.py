"""The DQN that every trainer of `benchmarks/trainers.py` runs, on one CartPole.

The amount of work is Stable-Baselines3's default (32 transitions, a gradient step every 4 steps). Learning
rate and target interval are chosen so that CartPole is learned in the time given.
"""

from __future__ import annotations

from ppo_settings import Clock as Clock
from ppo_settings import arguments as arguments

WIDTH, BATCH_SIZE, BUFFER_SIZE = 64, 32, 100_000
TRAIN_FREQ = 4  # env steps per gradient step
LEARNING_STARTS, TARGET_UPDATE_INTERVAL = 100, 500
LEARNING_RATE, GAMMA, MAX_GRAD_NORM = 1e-3, 0.99, 10.0
INITIAL_EPS, FINAL_EPS, EXPLORATION_FRACTION = 1.0, 0.05, 0.1
WARM_UP = 600  # env steps before the clock starts


def epsilon(step: int, steps: int) -> float:
    """Probability of a random action after `step` of `steps` env steps."""
    done = min(step / (EXPLORATION_FRACTION * steps), 1.0)
    return INITIAL_EPS + done * (FINAL_EPS - INITIAL_EPS)
