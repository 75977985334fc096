"""Settings of the platformer, and the constants that rules and kernels share.

Lengths are integers: a tile is 16 pixels, a pixel 16 units. Positions, speeds (units per frame) and
accelerations (units per frame squared) are never rounded, so compiled and plain code agree exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, get_args

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.frame_preprocessing import (
    HEIGHT,
    WIDTH,
    FramePreprocessing,
    check_max_episode_steps,
    check_preprocessing,
)

Difficulty = Literal["easy", "normal", "hard"]

TILE = 16  # pixels
ROWS = HEIGHT // TILE
UNIT_BITS = 4  # a pixel is 1 << 4 units
TILE_BITS = 8  # a tile is 1 << 8 units
FRAMES_PER_S = 60

# ---- cells of a level


class Tile(IntEnum):
    """A cell of the level; GRASS to PIPE_RIGHT are solid."""

    EMPTY = 0
    GRASS = 1
    DIRT = 2
    BRICK = 3
    COIN_BLOCK = 4
    STAR_BLOCK = 5  # looks like COIN_BLOCK
    USED_BLOCK = 6
    STONE = 7
    PLANK = 8
    PIPE_TOP_LEFT = 9
    PIPE_TOP_RIGHT = 10
    PIPE_LEFT = 11
    PIPE_RIGHT = 12
    COIN = 13
    BUSH_LEFT = 14
    BUSH_MIDDLE = 15
    BUSH_RIGHT = 16
    FLOWER = 17
    POLE = 18
    POLE_TOP = 19
    FLAG = 20
    WALL = 21
    WALL_TOP = 22
    DOOR = 23
    WINDOW = 24
    POLE_FLAG = 25  # where the flag is tied


FIRST_SOLID, LAST_SOLID = int(Tile.GRASS), int(Tile.PIPE_RIGHT)
TILES = len(Tile)

# ---- actions: nothing, right, right + A, right + B, right + A + B, A, left

ACTIONS = 7
DIRECTIONS = (0, 1, 1, 1, 1, 0, -1)
JUMPS = (False, False, True, False, True, True, False)  # A
RUNS = (False, False, False, True, True, False, False)  # B

# ---- the player; x and y are the left and top of its box

BOX_WIDTH, BOX_HEIGHT = 12 << UNIT_BITS, 15 << UNIT_BITS
WALK_SPEED, RUN_SPEED = 24, 40
PUSH, TURN_PUSH, FRICTION = 1, 2, 1
JUMP_SPEED = 66  # plus a quarter of the horizontal speed
HELD_GRAVITY, GRAVITY = 2, 7  # while rising with A held; otherwise
FALL_SPEED = 72
BOUNCE_SPEED, HELD_BOUNCE_SPEED = 44, 72  # off an enemy, with A held
SAFE_FRAMES = 90  # after losing the star
START_COLUMN = 3
LIVES = 2

# ---- enemies

BLOB, BEETLE = 0, 1  # a beetle turns at edges
WAITING, WALKING, SQUASHED, GONE = range(4)
ENEMY_SIZE = 14 << UNIT_BITS
ENEMY_SPEED, ENEMY_GRAVITY, ENEMY_FALL_SPEED = 8, 4, 64
STOMP_DEPTH = 9 << UNIT_BITS  # feet at most this far below an enemy's top squash it
SQUASHED_FRAMES = 24
WAKE_DISTANCE, LEAVE_DISTANCE = (WIDTH + 16) << UNIT_BITS, 48 << UNIT_BITS  # from the camera's left edge
MOST_ENEMIES = 24

# ---- clock, camera, points

CLOCK = 400
FRAMES_PER_TICK = 24
CAMERA_LEAD = 104  # pixels from the camera's left edge to the player, at most
POP_FRAMES = 20  # how long the coin from a block is visible
COIN_POINTS, STOMP_POINTS, BRICK_POINTS, STAR_POINTS, CLOCK_POINTS = 200, 100, 50, 1000, 10
DEATH_REWARD, MOST_REWARD = -15, 15

SMALL, TALL = 0, 1
STATUS_NAMES = ("small", "tall")


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """Settings of the level generator for one difficulty."""

    width: int  # tiles
    pit: int  # width of the widest pit in tiles, at least 2
    pipe: int  # height of the highest pipe in tiles
    stairs: int  # height of the highest stairs in tiles
    enemies: int  # most enemies in one group
    beetles: bool  # whether some enemies turn at edges
    steps: bool  # whether the ground level changes
    bridges: bool  # whether wide pits have plank bridges


PLANS: dict[str, LevelPlan] = {
    "easy": LevelPlan(112, pit=3, pipe=2, stairs=3, enemies=1, beetles=False, steps=False, bridges=False),
    "normal": LevelPlan(144, pit=4, pipe=3, stairs=4, enemies=2, beetles=True, steps=True, bridges=True),
    "hard": LevelPlan(176, pit=5, pipe=4, stairs=4, enemies=3, beetles=True, steps=True, bridges=True),
}
MOST_COLUMNS = max(plan.width for plan in PLANS.values())


@dataclass(frozen=True, slots=True)
class PlatformerConfig:
    """Settings of the platformer environment."""

    level: int | None = None
    """Seed of the level to play; None: a new level for each episode."""
    difficulty: Difficulty = "easy"
    """`easy`, `normal` or `hard`: wider pits, more enemies, longer levels."""
    preprocessing: FramePreprocessing | None = field(default_factory=FramePreprocessing)
    """How frames become observations; None: raw RGB frames, uint8 [240, 256, 3], one per step."""
    max_episode_steps: int | None = None
    """Steps after which an episode is truncated; None: only the game clock limits it."""

    def __post_init__(self) -> None:
        if self.level is not None and (
            isinstance(self.level, bool) or not isinstance(self.level, int) or self.level < 0
        ):
            raise HotloopError(
                f"level={self.level!r} is not a valid level; use a whole number of at least 0, "
                "or None for a new level in each episode."
            )
        if self.difficulty not in get_args(Difficulty):
            raise HotloopError(
                f"unknown difficulty={self.difficulty!r}; use {', '.join(get_args(Difficulty))}."
            )
        check_preprocessing(self.preprocessing)
        check_max_episode_steps(self.max_episode_steps)

    @property
    def plan(self) -> LevelPlan:
        """Settings of the level generator."""
        return PLANS[self.difficulty]

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of one row's observation."""
        return (HEIGHT, WIDTH, 3) if self.preprocessing is None else self.preprocessing.shape
