"""Generates random boards in plain Python: the reference for the compiled generator.

Quadrants are numbered upper left, upper right, lower left, lower right. Cells inside a quadrant are counted
from the board's corner, so one rule covers all four.
"""

from __future__ import annotations

import numpy as np

from hotloop.rl.envs.ricochet.board import (
    DOWN,
    LEFT,
    RIGHT,
    UP,
    Position,
    add_wall,
    centre_cells,
    empty_walls,
    neighbour,
)
from hotloop.rl.envs.ricochet.config import RicochetConfig
from hotloop.rl.envs.ricochet.solver import solve_plainly

# The two sides of each L.
CORNERS = ((UP, LEFT), (UP, RIGHT), (DOWN, LEFT), (DOWN, RIGHT))


def generate(rng: np.random.Generator, config: RicochetConfig) -> tuple[Position, int]:
    """Return a position solvable within `max_solution_moves`, and the length of a shortest solution.

    Boards without room for an L-shaped wall or without such a solution are discarded.
    """
    while True:
        position = draw_position(rng, config)
        if position is not None:
            solution = solve_plainly(position, config.max_solution_moves)
            if solution is not None:
                return position, len(solution)


def draw_position(rng: np.random.Generator, config: RicochetConfig) -> Position | None:
    """Draw a board, target and robots; None if there was no room for an L-shaped wall."""
    size = config.board_size
    walls = empty_walls(size)
    _draw_edge_walls(rng, walls, config)
    corners = _draw_corners(rng, walls, config)
    if corners is None:
        return None
    target = sorted(corners)[int(rng.random() * len(corners))]
    target_robot = int(rng.random() * config.robots)
    robots: list[int] = []
    while len(robots) < config.robots:
        cell = int(rng.random() * size * size)
        if cell not in centre_cells(size) and cell != target and cell not in robots:
            robots.append(cell)
    return Position(size, tuple(walls), tuple(robots), target, target_robot)


def _draw_edge_walls(rng: np.random.Generator, walls: list[int], config: RicochetConfig) -> None:
    """Add walls at the border of each quadrant: half at the upper or lower side, half at the other.

    They are not adjacent to each other if there is enough room.
    """
    size, half = config.board_size, config.board_size // 2
    for quadrant in range(4):
        row = 0 if quadrant < 2 else size - 1
        column = 0 if quadrant % 2 == 0 else size - 1
        for along_row in (True, False):
            side = RIGHT if along_row else DOWN
            line = [row * size + at if along_row else at * size + column for at in range(size)]
            at_start = (column if along_row else row) == 0
            for _ in range(config.walls_per_quadrant // 2):
                places = [at if at_start else size - 2 - at for at in range(1, half)]
                free = [at for at in places if not walls[line[at]] & 1 << side]
                apart = [at for at in free if not (walls[line[at - 1]] | walls[line[at + 1]]) & 1 << side]
                chosen = apart or free
                at = chosen[int(rng.random() * len(chosen))]
                add_wall(walls, size, line[at], side)


def _draw_corners(rng: np.random.Generator, walls: list[int], config: RicochetConfig) -> list[int] | None:
    """Add L-shaped walls in each quadrant around cells that touch neither border, centre nor each other.

    The four orientations are equally frequent: they come in shuffled groups of four.
    """
    size, half = config.board_size, config.board_size // 2
    corners: list[int] = []
    turns: list[int] = []
    for quadrant in range(4):
        for _ in range(config.walls_per_quadrant):
            if not turns:
                turns = [0, 1, 2, 3]
                for last in (3, 2, 1):
                    other = int(rng.random() * (last + 1))
                    turns[last], turns[other] = turns[other], turns[last]
            places = []
            for down in range(1, half):
                for along in range(1, half):
                    row = down if quadrant < 2 else size - 1 - down
                    column = along if quadrant % 2 == 0 else size - 1 - along
                    cell = row * size + column
                    around = [
                        cell,
                        *(neighbour(size, cell, direction) for direction in (UP, DOWN, LEFT, RIGHT)),
                    ]
                    if not any(one in corners or one in centre_cells(size) for one in around):
                        places.append(cell)
            if not places:
                return None
            cell = places[int(rng.random() * len(places))]
            for direction in CORNERS[turns.pop(0)]:
                add_wall(walls, size, cell, direction)
            corners.append(cell)
    return corners
