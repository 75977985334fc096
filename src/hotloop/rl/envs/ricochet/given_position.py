"""Positions that users give to the environment: checked against its settings, and solved."""

from __future__ import annotations

import os
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.ricochet.board import (
    Position,
    centre_cells,
    check_position,
    has_walled_centre,
    is_solved,
)
from hotloop.rl.envs.ricochet.config import RicochetConfig
from hotloop.rl.envs.ricochet.position_text import parse_position, read_position
from hotloop.rl.envs.ricochet.solver import solve

GIVEN = (str, os.PathLike, Position)
GAVE_UP = -2


def playable(given: Any, config: RicochetConfig) -> tuple[Position, int]:
    """Return a position and the length of its shortest solution; -1: it has none, -2: the search gave up.

    The position is given as such, as text, or as the path of a text file.
    Raises HotloopError if it does not fit the environment or is solved already.
    """
    if not isinstance(given, GIVEN):
        raise HotloopError(
            f"a position of type {type(given).__name__} is not known; pass a Position, its text, or the "
            "pathlib.Path of a file."
        )
    if isinstance(given, Position):
        position = given
    else:
        position = parse_position(given) if isinstance(given, str) else read_position(given)
    check_position(position)
    size, robots = position.size, len(position.robots)
    if (size, robots) != (config.board_size, config.robots):
        raise HotloopError(
            f"a position of {size} x {size} cells with {robots} robots does not fit this environment; create "
            f"it with board_size={size}, robots={robots}."
        )
    if is_solved(position):
        raise HotloopError("this position is solved already; move the target or its robot.")
    inside = set(centre_cells(position.size)) & {*position.robots, position.target}
    if inside and has_walled_centre(position.walls, position.size):
        raise HotloopError(
            f"cell {min(inside)} is inside the walled centre; robots and target must be outside."
        )
    try:
        solution = solve(position)
    except HotloopError:  # more positions than can be searched
        return position, GAVE_UP
    return position, -1 if solution is None else len(solution)
