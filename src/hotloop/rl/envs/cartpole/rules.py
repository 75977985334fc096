"""CartPole for one cart in plain Python: the reference for the kernels.

A pole stands on a cart that is pushed left or right at every step (Barto, Sutton and Anderson, 1983). All
operations are in the order of Gymnasium's CartPole-v1, because floating-point rounding depends on it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

GRAVITY = 9.8
CART_MASS = 1.0
POLE_MASS = 0.1
TOTAL_MASS = POLE_MASS + CART_MASS
HALF_LENGTH = 0.5  # of the pole
POLE_MASS_LENGTH = POLE_MASS * HALF_LENGTH
FORCE = 10.0
TIMESTEP_S = 0.02
POSITION_LIMIT = 2.4
ANGLE_LIMIT = 12 * 2 * math.pi / 360  # radians
START_LOW, START_HIGH = -0.05, 0.05  # of each of the four numbers at the start of an episode

State = tuple[float, float, float, float]  # position, velocity, angle, angular velocity
Outcome = tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]


class CartPoleRules:
    """One cart-pole; initial states come from `rng`."""

    def __init__(
        self, rng: np.random.Generator, *, max_episode_steps: int = 500, sutton_barto_reward: bool = False
    ):
        self.rng = rng
        self.max_episode_steps = max_episode_steps
        self.sutton_barto_reward = sutton_barto_reward
        self.state: State = (0.0, 0.0, 0.0, 0.0)
        self.elapsed = 0

    def reset(
        self, *, low: float = START_LOW, high: float = START_HIGH
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start an episode with each number of the state drawn uniformly from [low, high)."""
        position, velocity, angle, spin = (low + (high - low) * self.rng.random() for _ in range(4))
        self.state = (position, velocity, angle, spin)
        self.elapsed = 0
        return self.observation(), {}

    def step(self, action: int) -> Outcome:
        """Push left (0) or right (1) for one time step."""
        self.state = pushed(self.state, FORCE if action == 1 else -FORCE)
        self.elapsed += 1
        terminated = abs(self.state[0]) > POSITION_LIMIT or abs(self.state[2]) > ANGLE_LIMIT
        truncated = self.elapsed >= self.max_episode_steps
        if self.sutton_barto_reward:
            reward = -1.0 if terminated else 0.0
        else:
            reward = 1.0
        return self.observation(), reward, terminated, truncated, {}

    def observation(self) -> NDArray[np.float32]:
        """Return the state, rounded to float32."""
        return np.array(self.state, dtype=np.float32)


def pushed(state: State, force: float) -> State:
    """Return the state one time step later, by Euler integration of the equations of motion."""
    position, velocity, angle, spin = state
    cosine, sine = math.cos(angle), math.sin(angle)
    push = (force + POLE_MASS_LENGTH * (spin * spin) * sine) / TOTAL_MASS
    spin_change = (GRAVITY * sine - cosine * push) / (
        HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * (cosine * cosine) / TOTAL_MASS)
    )
    acceleration = push - POLE_MASS_LENGTH * spin_change * cosine / TOTAL_MASS
    return (
        position + TIMESTEP_S * velocity,
        velocity + TIMESTEP_S * acceleration,
        angle + TIMESTEP_S * spin,
        spin + TIMESTEP_S * spin_change,
    )
