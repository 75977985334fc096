"""The DQN that every trainer of `benchmarks/trainers.py` runs, on one CartPole.

Amounts of work are Stable-Baselines3's defaults (32 transitions, an update for every 4 steps); the learning
rate and the target's interval are such that CartPole is learnt in the time given.
"""

from __future__ import annotations

from ppo_settings import Clock as Clock
from ppo_settings import arguments as arguments

HIDDEN, BATCH, CAPACITY = 64, 32, 100_000
TRAIN_EVERY = 4  # env steps for each update
LEARNING_STARTS, TARGET_EVERY = 100, 500
LEARNING_RATE, DISCOUNT, LARGEST_NORM = 1e-3, 0.99, 10.0
EPSILON_START, EPSILON_END, EPSILON_FRACTION = 1.0, 0.05, 0.1
WARM_UP = 600  # env steps before the clock starts


def epsilon(step: int, steps: int) -> float:
    """Chance of a random action after so many of all env steps."""
    done = min(step / (EPSILON_FRACTION * steps), 1.0)
    return EPSILON_START + done * (EPSILON_END - EPSILON_START)
