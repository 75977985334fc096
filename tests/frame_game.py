"""A small game with frames for tests: walk along a corridor; one bright column shows the position."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

SIDE, STACK = 36, 2
LEFT, STAY, RIGHT = range(3)


class Corridor(gymnasium.Env[NDArray[np.uint8], Any]):
    """Frames uint8 [2, 36, 36]; +1 for a step to the right, -1 to the left; ends at the wall, or by time."""

    observation_space = Box(0, 255, (STACK, SIDE, SIDE), np.uint8)
    action_space = Discrete(3)

    def __init__(self, length: int = 16, most_steps: int = 24):
        self.length, self.most_steps = length, most_steps
        self.place = self.steps = 0
        self.frames = np.zeros((STACK, SIDE, SIDE), dtype=np.uint8)

    def _frame(self) -> NDArray[np.uint8]:
        frame = np.zeros((SIDE, SIDE), dtype=np.uint8)
        frame[:, 2 * self.place : 2 * self.place + 2] = 255
        return frame

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.steps = 0
        self.frames[:] = self._frame()
        return self.frames.copy(), {"x_pos": 0}

    def step(self, action: Any) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        moved = int(action) - STAY
        self.place = max(self.place + moved, 0)
        self.steps += 1
        self.frames[:-1], self.frames[-1] = self.frames[1:].copy(), self._frame()
        terminated = self.place >= self.length
        truncated = not terminated and self.steps >= self.most_steps
        return self.frames.copy(), float(moved), terminated, truncated, {"x_pos": self.place}


def make_corridor(seed: int) -> Corridor:
    """For collectors."""
    return Corridor()
