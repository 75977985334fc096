"""Settings of Ricochet Robots."""

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
FARTHEST = 2  # longest lookahead of `symbolic`, in moves
PICTURE = 128
"""Height and width of an `rgb_image` observation in pixels."""


@dataclass(frozen=True, slots=True)
class RicochetConfig:
    """Settings of a Ricochet Robots environment."""

    board_size: int = 8
    """Number of cells along a side, 7 to 16."""
    robots: int = 4
    """Number of robots, 1 to 5."""
    obs_mode: str = "rgb_image"
    """`rgb_image` uint8 [3, 128, 128], `image` float32 planes, `symbolic` float32 vector."""
    lookahead: int = 0
    """For `symbolic`. 1 adds where each move ends and whether it solves the board; 2: or one move later."""
    rendering: str = "compiled"
    """Renderer of `rgb_image`: `pil` (the reference) or `compiled`; the pixels are the same."""
    noop: bool = False
    """Whether there is a no-op, as the last action."""
    max_episode_steps: int = 100
    """Steps after which an episode is truncated."""
    max_solution_moves: int = 6
    """Longest shortest solution of a generated board in moves, 1 to 12."""
    step_reward: float = -0.01
    """Reward of every step, the last one included."""
    goal_reward: float = 1.0
    """Reward added when the target's robot stops on the target."""

    def __post_init__(self) -> None:
        self._check_number("board_size", SMALLEST, LARGEST, "smaller boards have no room for their walls")
        self._check_number("robots", 1, MOST_ROBOTS, "there are five colours")
        self._check_number("max_episode_steps", 1, 2**31 - 1, "an episode needs at least one step")
        self._check_number("max_solution_moves", 1, DEEPEST, "deeper searches at every reset take too long")
        self._check_number("lookahead", 0, FARTHEST, "a longer lookahead would solve the board")
        if self.lookahead and self.obs_mode != "symbolic":
            raise HotloopError(
                f"lookahead={self.lookahead} needs obs_mode='symbolic', not {self.obs_mode!r}; change one."
            )
        for name in ("step_reward", "goal_reward"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise HotloopError(f"{name}={value!r} is not a valid reward; use a finite number.")
        for name, allowed in (("obs_mode", OBSERVATION_MODES), ("rendering", RENDERINGS)):
            value = getattr(self, name)
            if value not in allowed:
                raise HotloopError(f"unknown {name}={value!r}; use {' or '.join(map(repr, allowed))}.")

    def _check_number(self, name: str, least: int, most: int, why: str) -> None:
        value: Any = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise HotloopError(
                f"{name}={value!r} is out of range; use a whole number from {least} to {most} ({why})."
            )

    @property
    def actions(self) -> int:
        """Number of actions: robot * 4 + direction, then the no-op."""
        return 4 * self.robots + int(self.noop)

    @property
    def numbers_ahead(self) -> int:
        """Number of values that lookahead adds to a symbolic observation."""
        return 4 * self.robots * (2 + self.lookahead) if self.lookahead else 0

    @property
    def walls_per_quadrant(self) -> int:
        """Edge walls, and as many L-shaped walls, in each quadrant."""
        return 2 if self.board_size < 10 else 4
