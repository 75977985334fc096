"""The settings of Ricochet Robots, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hotloop._util.errors import HotloopError

SMALLEST, LARGEST = 7, 16
MOST_ROBOTS = 5
DEEPEST = 12
OBSERVATION_MODES = ("rgb_image", "image", "symbolic")
RENDERINGS = ("compiled", "pil")
FARTHEST = 2  # moves that `symbolic` can look ahead
PICTURE = 128
"""Height and width of an `rgb_image` observation in pixels."""


@dataclass(frozen=True, slots=True)
class RicochetConfig:
    """What a Ricochet Robots environment is made of."""

    board_size: int = 8
    """Cells along a side, 7 to 16."""
    robots: int = 4
    """1 to 5."""
    obs_mode: str = "rgb_image"
    """`rgb_image` uint8 [3, 128, 128], `image` float32 planes, `symbolic` float32 vector."""
    lookahead: int = 0
    """With `symbolic`, 1: also where each move ends and whether it solves; 2: and whether one more would."""
    rendering: str = "compiled"
    """Who draws `rgb_image`: `pil` (the reference) or `compiled`; the pixels are the same."""
    noop: bool = False
    """Whether one more action, the last, moves nothing."""
    max_episode_steps: int = 100
    """Steps after which an episode is truncated."""
    max_solution_moves: int = 6
    """Every board made has a solution of at most so many moves, 1 to 12."""
    step_reward: float = -0.01
    """For every step, the last included."""
    goal_reward: float = 1.0
    """Added when the target's robot stops on the target."""

    def __post_init__(self) -> None:
        self._check_number("board_size", SMALLEST, LARGEST, "smaller boards have no room for their walls")
        self._check_number("robots", 1, MOST_ROBOTS, "there are five colours")
        self._check_number("max_episode_steps", 1, 2**31 - 1, "an episode needs a step")
        self._check_number("max_solution_moves", 1, DEEPEST, "deeper searches at every reset take too long")
        self._check_number("lookahead", 0, FARTHEST, "to look farther is to solve it")
        if self.lookahead and self.obs_mode != "symbolic":
            raise HotloopError(
                f"lookahead={self.lookahead} needs obs_mode='symbolic', not {self.obs_mode!r}; leave one out."
            )
        for name in ("step_reward", "goal_reward"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise HotloopError(f"{name}={value!r} is no reward; give a finite number.")
        for name, allowed in (("obs_mode", OBSERVATION_MODES), ("rendering", RENDERINGS)):
            value = getattr(self, name)
            if value not in allowed:
                raise HotloopError(f"{name}={value!r} is not known; use {' or '.join(map(repr, allowed))}.")

    def _check_number(self, name: str, least: int, most: int, why: str) -> None:
        value: Any = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise HotloopError(
                f"{name}={value!r} cannot be used; give a whole number from {least} to {most} ({why})."
            )

    @property
    def actions(self) -> int:
        """Number of actions: robot * 4 + direction, then the no-op."""
        return 4 * self.robots + int(self.noop)

    @property
    def numbers_ahead(self) -> int:
        """Numbers that looking ahead adds to a symbolic observation."""
        return 4 * self.robots * (2 + self.lookahead) if self.lookahead else 0

    @property
    def walls_per_quadrant(self) -> int:
        """Edge walls, and as many L-shaped walls, in each quadrant."""
        return 2 if self.board_size < 10 else 4
