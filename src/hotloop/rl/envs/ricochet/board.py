"""The board of Ricochet Robots in plain Python: positions, moves and observations.

Cells are numbered row by row. The walls of a cell are four bits, one for each direction. A wall between two
cells is set in both, and the border of the board consists of walls, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError

UP, DOWN, LEFT, RIGHT = range(4)
OPPOSITE = (DOWN, UP, RIGHT, LEFT)


@dataclass(frozen=True, slots=True)
class Position:
    """A board with its robots and the target."""

    size: int
    """Number of cells along a side."""
    walls: tuple[int, ...]
    """Per cell, row by row: bit d is set if there is a wall on side d (up, down, left, right)."""
    robots: tuple[int, ...]
    """The cell of each robot."""
    target: int
    """The target's cell."""
    target_robot: int | None
    """The robot that must stop on the target; None: any robot."""


def neighbour(size: int, cell: int, direction: int) -> int | None:
    """Return the adjacent cell in a direction, or None across the border."""
    row, column = divmod(cell, size)
    row += (-1, 1, 0, 0)[direction]
    column += (0, 0, -1, 1)[direction]
    return row * size + column if 0 <= row < size and 0 <= column < size else None


@cache
def centre_cells(size: int) -> tuple[int, ...]:
    """Return the walled-in cells in the middle: one on boards of odd size, four on even ones."""
    middle = (size // 2,) if size % 2 else (size // 2 - 1, size // 2)
    return tuple(row * size + column for row in middle for column in middle)


def add_wall(walls: list[int], size: int, cell: int, direction: int) -> None:
    """Add a wall on one side of a cell, and to the cell behind it."""
    walls[cell] |= 1 << direction
    other = neighbour(size, cell, direction)
    if other is not None:
        walls[other] |= 1 << OPPOSITE[direction]


def empty_walls(size: int, *, walled_centre: bool = True) -> list[int]:
    """Return a board with only its border and its walled centre, if it has one."""
    walls = [0] * (size * size)
    centre = centre_cells(size) if walled_centre else ()
    for cell in range(size * size):
        for direction in (UP, DOWN, LEFT, RIGHT):
            other = neighbour(size, cell, direction)
            if other is None or (cell in centre) != (other in centre):
                add_wall(walls, size, cell, direction)
    return walls


def has_walled_centre(walls: Sequence[int], size: int) -> bool:
    """Whether walls all around close the centre."""
    return all(bits & empty == empty for bits, empty in zip(walls, empty_walls(size), strict=True))


def check_position(position: Position) -> None:
    """Raise HotloopError if the board is invalid: kernels rely on a closed border and two-sided walls."""
    numbers = [position.size, position.target, *position.walls, *position.robots]
    numbers += [] if position.target_robot is None else [position.target_robot]
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
            raise HotloopError(
                f"a position holds {number!r}; its size, walls, robots, target and target_robot are whole "
                "numbers."
            )
    size, cells, robots = position.size, range(position.size**2), position.robots
    if not 1 <= size <= 16 or not 1 <= len(robots) <= 5:
        raise HotloopError(
            f"a board {size} cells wide with {len(robots)} robots is not supported; "
            "use boards up to 16 x 16 with 1 to 5 robots."
        )
    if len(position.walls) != len(cells) or any(
        neighbour(size, cell, side) is None and not position.walls[cell] & 1 << side
        for cell in cells
        for side in range(4)
    ):
        raise HotloopError(
            f"the walls of this board are not {size} x {size} cells with a closed border; "
            f"start from empty_walls({size}) and use add_wall."
        )
    for cell in cells:
        if not 0 <= position.walls[cell] < 16:
            raise HotloopError(
                f"the walls {position.walls[cell]} of cell {cell} are not known; use four bits, 0 to 15."
            )
        for side in range(4):
            other = neighbour(size, cell, side)
            has = bool(position.walls[cell] & 1 << side)
            if other is not None and has != bool(position.walls[other] & 1 << OPPOSITE[side]):
                raise HotloopError(
                    f"there is a wall between cells {cell} and {other} on one side only; "
                    "a wall belongs to both cells: use add_wall."
                )
    if any(cell not in cells for cell in (*robots, position.target)) or len(set(robots)) < len(robots):
        raise HotloopError(
            f"robots on {robots} and target on {position.target} do not have separate cells; "
            f"cells are 0 to {len(cells) - 1}."
        )
    if position.target_robot is not None and not 0 <= position.target_robot < len(robots):
        raise HotloopError(
            f"target_robot={position.target_robot} does not exist; use 0 to {len(robots) - 1}, "
            "or None for any robot."
        )


def slide(position: Position, robot: int, direction: int) -> int:
    """Return the cell where a sliding robot stops: at a wall or another robot."""
    cell = position.robots[robot]
    while not position.walls[cell] & (1 << direction):
        ahead = neighbour(position.size, cell, direction)
        if ahead is None or ahead in position.robots:
            break
        cell = ahead
    return cell


def move(position: Position, action: int) -> Position:
    """Return the position after robot `action // 4` slides in direction `action % 4`."""
    robot, direction = divmod(action, 4)
    robots = list(position.robots)
    robots[robot] = slide(position, robot, direction)
    return replace(position, robots=tuple(robots))


def is_solved(position: Position) -> bool:
    """Whether the target's robot rests on the target, or any robot if the target is for any."""
    if position.target_robot is None:
        return position.target in position.robots
    return position.robots[position.target_robot] == position.target


def symbolic(position: Position) -> NDArray[np.float32]:
    """Return the position as a vector, float32 [3 robots + 2 + 2 size^2], values in 0..1.

    Row and column of each robot and of the target (divided by size - 1), which robot is the target's
    (one-hot; all 1 if any is), then for each cell whether it has a wall below and a wall on the right.
    """
    last = np.float32(position.size - 1)
    places = [*position.robots, position.target]
    coordinates = np.array([divmod(cell, position.size) for cell in places], dtype=np.float32) / last
    whose = np.zeros(len(position.robots), dtype=np.float32)
    whose[list(_targets(position))] = 1
    walls = np.array(position.walls)
    sides = np.stack([(walls >> DOWN) & 1, (walls >> RIGHT) & 1], axis=1)
    return np.concatenate([coordinates.ravel(), whose, sides.ravel().astype(np.float32)])


def ahead(position: Position, lookahead: int) -> NDArray[np.float32]:
    """Return what each move would lead to, float32 [4 robots (2 + lookahead)]; empty without lookahead.

    For each action: where its robot would end, row and column seen from the target and divided by size - 1;
    whether that solves the board; with lookahead 2 also whether one more move of the target's robot would.
    """
    last = np.float32(position.size - 1)
    target = np.array(divmod(position.target, position.size), dtype=np.float32)
    seen: list[np.float32] = []
    for action in range(4 * len(position.robots) if lookahead else 0):
        after = move(position, action)
        end = np.array(divmod(after.robots[action // 4], position.size), dtype=np.float32)
        solves = action // 4 in _targets(position) and after.robots[action // 4] == position.target
        seen += [*((end - target) / last), np.float32(solves)]
        if lookahead >= 2:
            further = (move(after, 4 * one + way) for one in _targets(position) for way in range(4))
            seen.append(np.float32(any(is_solved(one) for one in further)))
    return np.array(seen, dtype=np.float32)


def image(position: Position) -> NDArray[np.float32]:
    """Return the position as planes of 0 and 1, float32 [robots + 6, size, size].

    One plane for each robot, the target, the target's robot (all robots if any is), then walls up, down, left
    and right.
    """
    planes = np.zeros((len(position.robots) + 6, position.size * position.size), dtype=np.float32)
    for plane, cell in enumerate((*position.robots, position.target)):
        planes[plane, cell] = 1
    planes[-5, [position.robots[robot] for robot in _targets(position)]] = 1
    walls = np.array(position.walls)
    for direction in (UP, DOWN, LEFT, RIGHT):
        planes[direction - 4] = (walls >> direction) & 1
    return planes.reshape(-1, position.size, position.size)


def _targets(position: Position) -> Sequence[int]:
    """Return the robots that may reach the target."""
    return range(len(position.robots)) if position.target_robot is None else (position.target_robot,)
