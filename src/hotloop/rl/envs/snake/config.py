"""Settings of Snake, shared by the readable rules and the compiled batch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from hotloop._util.errors import HotloopError

Actions = Literal["relative", "absolute"]
Observation = Literal["features", "planes", "planes5", "grid"]
FloodFill = Literal["off", "python", "cached", "every_k", "compiled", "every_k_compiled"]
ROW_BY_ROW = ("python", "cached", "every_k", "every_k_compiled")
EVERY_K = ("every_k", "every_k_compiled")

SMALLEST, LARGEST = 4, 64  # the starting snake must fit; a row of the board is one 64-bit word
START_LENGTH = 3

# Order of directions and absolute actions; a right turn adds one.
UP, RIGHT, DOWN, LEFT = 0, 1, 2, 3
ROW_STEP = (-1, 0, 1, 0)
COLUMN_STEP = (0, 1, 0, -1)
# Relative actions: straight, left, right. The features that look ahead are in the same order.
TURNS = (0, 3, 1)

# Values in the uint8 `grid` observation.
FREE, BODY, TAIL, HEAD, FOOD = 0, 1, 2, 3, 4

BASE_FEATURES = 11
FLOOD_FEATURES = 3
PLANES = {"planes": 3, "planes5": 5}


@dataclass(frozen=True)
class SnakeConfig:
    """Rules, rewards and observations.

    The reward of a step is exactly one of `food_reward`, `death_reward` and `step_reward`. A step that
    neither eats nor dies also gets `distance_shaping` times the reduction of the Manhattan distance to the
    food.
    """

    size: int = 10
    """Rows and columns of the board, 4 to 64."""
    actions: Actions = "relative"
    """`relative`: 0 straight, 1 left, 2 right; `absolute`: 0 up, 1 right, 2 down, 3 left."""
    observation: Observation = "features"
    """`features` float32 [11 or 14], `planes` float32 [3, n, n], `planes5` float32 [5, n, n],
    `grid` uint8 [n, n]."""
    flood_fill: FloodFill = "off"
    """How to compute the three reachable-area features; all but `every_k` ones give the same numbers."""
    flood_every: int = 4
    """For both `every_k`: steps between flood fills in an episode; values in between are stale."""
    tail_blocks: bool = False
    """Whether the head dies on the cell that the tail leaves in the same step."""
    food_reward: float = 10.0
    """Reward for eating, the last food included."""
    death_reward: float = -10.0
    """Reward for hitting the border or the body."""
    step_reward: float = -0.01
    """Reward for every other step."""
    distance_shaping: float = 0.0
    """Reward per cell by which a step brings the head closer to the food; negative for moving away."""
    max_episode_steps: int = 1000
    """Steps after which an episode is truncated."""

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or not SMALLEST <= self.size <= LARGEST:
            raise HotloopError(
                f"size={self.size!r} is not a valid board size; "
                f"use a whole number from {SMALLEST} to {LARGEST}."
            )
        for name, kinds in (("actions", Actions), ("observation", Observation), ("flood_fill", FloodFill)):
            if getattr(self, name) not in get_args(kinds):
                raise HotloopError(
                    f"{name}={getattr(self, name)!r} is not a valid choice; "
                    f"use one of {', '.join(get_args(kinds))}."
                )
        if self.flood_fill != "off" and self.observation != "features":
            raise HotloopError(
                f"flood_fill={self.flood_fill!r} adds to the features, "
                f"but observation={self.observation!r} has none; "
                "use observation='features' or flood_fill='off'."
            )
        for name in ("flood_every", "max_episode_steps"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise HotloopError(
                    f"{name}={getattr(self, name)!r} is not a valid number of steps; "
                    "use a whole number of at least 1."
                )

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> SnakeConfig:
        """Create a config; raises HotloopError on unknown settings."""
        known = [field.name for field in fields(cls)]
        unknown = [name for name in settings if name not in known]
        if unknown:
            raise HotloopError(f"Snake has no setting {', '.join(unknown)}; it has {', '.join(known)}.")
        return cls(**settings)

    @property
    def action_count(self) -> int:
        """Number of actions: 3 relative or 4 absolute ones."""
        return 3 if self.actions == "relative" else 4

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of one row's observation."""
        if self.observation == "features":
            return (BASE_FEATURES + (FLOOD_FEATURES if self.flood_fill != "off" else 0),)
        board = (self.size, self.size)
        return board if self.observation == "grid" else (PLANES[self.observation], *board)
