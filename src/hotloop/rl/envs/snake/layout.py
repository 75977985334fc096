"""Layout of the arrays that hold the state of the games.

A cell is one integer, row * 64 + column, so that kernels need no division. For each row of the batch:

- `snakes` int16 [rows, RING + size * size]: a few fields, then the snake's cells as a ring; the head is at
  RING + snakes[row, HEAD_AT], older cells lie before it.
- `boards` uint64 [rows, 2 * size]: bit c of word r is set where the snake is on (r, c); the second half is
  room for flood fills.
- `streams`: the random numbers.

Two small arrays of settings serve the whole batch: `options` int64 and `payoffs` float64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.snake.config import SnakeConfig

Snakes = NDArray[np.int16]
Boards = NDArray[np.uint64]
Options = NDArray[np.int64]
Payoffs = NDArray[np.float64]

ROW_SHIFT, COLUMN_MASK = 6, 63
NOWHERE = -1

# Fields of `snakes`.
HEAD_AT = 0  # position of the head in the ring
LENGTH = 1
HEADING = 2
FOOD_AT = 3  # cell of the food, NOWHERE on a full board
LEFT_AT = 4  # cell that the tail left in the last move, NOWHERE if it stayed
OUTCOME = 5  # what the last reset or step did
FINAL_LENGTH = 6  # length at the end of the episode that the last step ended
RING = 8

# Values of OUTCOME; DIED and above end the episode.
BEGUN, MOVED, ATE, DIED, WON = 0, 1, 2, 3, 4

# Fields of `options`.
SIZE, ABSOLUTE, TAIL_BLOCKS, MAX_STEPS, OBSERVATION, FLOOD = 0, 1, 2, 3, 4, 5
FEATURES, PLANES3, PLANES5, GRID = 0, 1, 2, 3
_OBSERVATIONS = {"features": FEATURES, "planes": PLANES3, "planes5": PLANES5, "grid": GRID}

# Fields of `payoffs`.
FOOD_PAYS, DEATH_PAYS, STEP_PAYS, SHAPING = 0, 1, 2, 3


def make_options(config: SnakeConfig) -> Options:
    """Return the integer settings of the kernels."""
    return np.array(
        [
            config.size,
            config.actions == "absolute",
            config.tail_blocks,
            config.max_episode_steps,
            _OBSERVATIONS[config.observation],
            config.flood_fill == "compiled",
        ],
        dtype=np.int64,
    )


def make_payoffs(config: SnakeConfig) -> Payoffs:
    """Return the rewards of the kernels."""
    return np.array(
        [config.food_reward, config.death_reward, config.step_reward, config.distance_shaping],
        dtype=np.float64,
    )


def make_snakes(rows: int, size: int) -> Snakes:
    """Allocate the state of `rows` games."""
    return np.zeros((rows, RING + size * size), dtype=np.int16)


def make_boards(rows: int, size: int) -> Boards:
    """Allocate `rows` boards."""
    return np.zeros((rows, 2 * size), dtype=np.uint64)


def body_of(snakes: Snakes, row: int) -> list[tuple[int, int]]:
    """Return the cells (row, column) of one snake, head first."""
    ring = snakes[row, RING:].tolist()
    head_at, length = int(snakes[row, HEAD_AT]), int(snakes[row, LENGTH])
    cells = (ring[head_at - back] for back in range(length))  # a negative index wraps around
    return [(cell >> ROW_SHIFT, cell & COLUMN_MASK) for cell in cells]
