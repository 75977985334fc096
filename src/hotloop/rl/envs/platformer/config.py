"""The platformer's settings, and the numbers that rules and kernels share.

Lengths are whole numbers: a tile is 16 pixels, a pixel 16 units, so positions, speeds (units a frame) and
accelerations (units a frame and frame) have no rounding and compiled code agrees with plain code exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, get_args

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.frame_preprocessing import HEIGHT, WIDTH, FramePreprocessing, check_preprocessing

Difficulty = Literal["easy", "normal", "hard"]

TILE = 16  # pixels
ROWS = HEIGHT // TILE
UNIT_BITS = 4  # a pixel is 1 << 4 units
TILE_BITS = 8  # a tile is 1 << 8 units
FRAMES_PER_S = 60

# ---- what the cells of a level are made of


class Tile(IntEnum):
    """A cell of the level; those from GRASS to PIPE_RIGHT stop what moves."""

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
ACTION_NAMES = ("nothing", "right", "right + A", "right + B", "right + A + B", "A", "left")

# ---- the player; x and y are the left and top of its box

BOX_WIDTH, BOX_HEIGHT = 12 << UNIT_BITS, 15 << UNIT_BITS
WALK_SPEED, RUN_SPEED = 24, 40
PUSH, TURN_PUSH, FRICTION = 1, 2, 1
JUMP_SPEED = 66  # and a quarter of the speed along
HELD_GRAVITY, GRAVITY = 2, 7  # rising with A held, otherwise
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
STOMP_DEPTH = 9 << UNIT_BITS  # how far feet may be below an enemy's top and still squash it
SQUASHED_FRAMES = 24
WAKE_DISTANCE, LEAVE_DISTANCE = (WIDTH + 16) << UNIT_BITS, 48 << UNIT_BITS  # from the camera's left
MOST_ENEMIES = 24

# ---- clock, camera, points

CLOCK = 400
FRAMES_PER_TICK = 24
CAMERA_LEAD = 104  # pixels from the camera's left to the player at most
POP_FRAMES = 20  # how long the coin out of a block is seen
COIN_POINTS, STOMP_POINTS, BRICK_POINTS, STAR_POINTS, CLOCK_POINTS = 200, 100, 50, 1000, 10
DEATH_REWARD, MOST_REWARD = -15, 15

SMALL, TALL = 0, 1
STATUS_NAMES = ("small", "tall")


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """What a difficulty means for the generator."""

    width: int  # tiles
    pit: int  # tiles of the widest pit, at least 2
    pipe: int  # tiles of the highest pipe
    stairs: int  # tiles of the highest stairs
    enemies: int  # in one group, at most
    beetles: bool  # whether some enemies turn at edges
    steps: bool  # whether the ground changes its height
    bridges: bool  # whether there are planks over wide pits


PLANS: dict[str, LevelPlan] = {
    "easy": LevelPlan(112, pit=3, pipe=2, stairs=3, enemies=1, beetles=False, steps=False, bridges=False),
    "normal": LevelPlan(144, pit=4, pipe=3, stairs=4, enemies=2, beetles=True, steps=True, bridges=True),
    "hard": LevelPlan(176, pit=5, pipe=4, stairs=4, enemies=3, beetles=True, steps=True, bridges=True),
}
MOST_COLUMNS = max(plan.width for plan in PLANS.values())


@dataclass(frozen=True, slots=True)
class PlatformerConfig:
    """What a platformer environment is made of."""

    level: int | None = None
    """The seed of the one level that is played; None: a new level for each episode."""
    difficulty: Difficulty = "easy"
    """`easy`, `normal` or `hard`: wider pits, more enemies, longer levels."""
    preprocessing: FramePreprocessing | None = field(default_factory=FramePreprocessing)
    """What happens to the frames; None: RGB frames uint8 [240, 256, 3] as they are, one for each step."""
    max_episode_steps: int | None = None
    """The episode is truncated after so many steps; None: only the game's clock limits it."""

    def __post_init__(self) -> None:
        if self.level is not None and (
            isinstance(self.level, bool) or not isinstance(self.level, int) or self.level < 0
        ):
            raise HotloopError(
                f"level={self.level!r} is no level; give a whole number of at least 0, "
                "or None for a new level in each episode."
            )
        if self.difficulty not in get_args(Difficulty):
            raise HotloopError(
                f"difficulty={self.difficulty!r} is not known; use {', '.join(get_args(Difficulty))}."
            )
        check_preprocessing(self.preprocessing)
        most: Any = self.max_episode_steps
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise HotloopError(
                f"max_episode_steps={most!r} is not a number of steps; "
                "give a whole number of at least 1, or None for no limit but the clock."
            )

    @property
    def plan(self) -> LevelPlan:
        """What the difficulty means for the generator."""
        return PLANS[self.difficulty]

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Of one row's observation."""
        return (HEIGHT, WIDTH, 3) if self.preprocessing is None else self.preprocessing.shape
