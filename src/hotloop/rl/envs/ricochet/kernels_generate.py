"""The compiled generator; `generator.generate` is the readable reference, with the same random draws.

Instead of listing free cells and picking one, one pass counts them and a second finds the chosen one, so
nothing is allocated. During generation, two extra bits of a cell's walls mark cells inside an L and in the
centre.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.compiled import kernel
from hotloop.rl.envs.ricochet.kernels_solve import MOST_STATES, solve_board
from hotloop.rl.envs.streams import Streams, next_below

_IN_CORNER, _IN_CENTRE = 16, 32


@kernel
def generate_row(
    streams: Streams,
    row: int,
    walls: NDArray[np.uint8],
    pieces: NDArray[np.int32],
    size: int,
    robots: int,
    max_moves: int,
    words: NDArray[np.uint64],
    numbers: NDArray[np.int32],
) -> int:
    """Draw boards from the row's stream until one is solvable; return the length of a shortest solution.

    walls [size * size] and pieces [robots + 2] (cells of the robots, target, target's robot) are written;
    words and numbers are the solver's scratch.
    """
    must_turn: Any = np.bool_(False)  # a literal has its own type, which would compile the search again
    while True:
        if not _draw_position(streams, row, walls, pieces, size, robots):
            continue
        moves = solve_board(walls, pieces, size, robots, max_moves, must_turn, MOST_STATES, words, numbers)
        if moves >= 0:
            return moves


@kernel
def _draw_position(
    streams: Streams,
    row: int,
    walls: NDArray[np.uint8],
    pieces: NDArray[np.int32],
    size: int,
    robots: int,
) -> bool:
    """Draw a board, target and robots; return False if there was no room for an L."""
    write_empty_walls(walls, size)
    each = 2 if size < 10 else 4
    _draw_edge_walls(streams, row, walls, size, each)
    if not _draw_corners(streams, row, walls, size, each):
        return False
    pieces[robots] = _nth_corner(walls, size, next_below(streams, row, 4 * each))
    pieces[robots + 1] = next_below(streams, row, robots)
    placed = 0
    while placed < robots:
        cell = next_below(streams, row, size * size)
        free = walls[cell] & _IN_CENTRE == 0 and cell != pieces[robots]
        for robot in range(placed):
            free = free and pieces[robot] != cell
        if free:
            pieces[placed] = cell
            placed += 1
    for cell in range(size * size):
        walls[cell] &= 15
    return True


@kernel
def write_empty_walls(walls: NDArray[np.uint8], size: int) -> None:
    """Set the walls of border and centre, and mark the centre's cells."""
    first, last = (size - 1) // 2, size // 2
    for cell in range(size * size):
        row, column = cell // size, cell % size
        bits = 0
        for direction in range(4):
            next_row = row + (-1 if direction == 0 else 1 if direction == 1 else 0)
            next_column = column + (-1 if direction == 2 else 1 if direction == 3 else 0)
            outside = not (0 <= next_row < size and 0 <= next_column < size)
            inner = first <= row <= last and first <= column <= last
            next_inner = first <= next_row <= last and first <= next_column <= last
            if outside or inner != next_inner:
                bits |= 1 << direction
        if first <= row <= last and first <= column <= last:
            bits |= _IN_CENTRE
        walls[cell] = bits


@kernel
def _draw_edge_walls(streams: Streams, row: int, walls: NDArray[np.uint8], size: int, each: int) -> None:
    """Add walls at the border of each quadrant: half at the upper or lower side, half at the other."""
    for number in range(4 * each):
        quadrant, along_row = number // each, number % each < each // 2
        board_row = 0 if quadrant < 2 else size - 1
        board_column = 0 if quadrant % 2 == 0 else size - 1
        at_start = (board_column if along_row else board_row) == 0
        first = board_row * size if along_row else board_column
        stride, bit = (1, 8) if along_row else (size, 2)
        reach = 1  # cells on either side that must have no wall, either
        count = 0
        for distance in range(1, size // 2):
            at = first + (distance if at_start else size - 2 - distance) * stride
            count += int(_is_edge_free(walls, at, stride, bit, reach))
        if count == 0:
            reach = 0
            for distance in range(1, size // 2):
                at = first + (distance if at_start else size - 2 - distance) * stride
                count += int(_is_edge_free(walls, at, stride, bit, reach))
        chosen = next_below(streams, row, count)
        for distance in range(1, size // 2):
            at = first + (distance if at_start else size - 2 - distance) * stride
            if _is_edge_free(walls, at, stride, bit, reach):
                if chosen == 0:
                    walls[at] |= bit
                    walls[at + stride] |= bit >> 1
                    break
                chosen -= 1


@kernel
def _is_edge_free(walls: NDArray[np.uint8], at: int, stride: int, bit: int, reach: int) -> bool:
    """Whether there is no wall at this border cell or, with `reach` 1, next to it."""
    around = walls[at] | walls[at - reach * stride] | walls[at + reach * stride]
    return bool(around & bit == 0)


@kernel
def _draw_corners(streams: Streams, row: int, walls: NDArray[np.uint8], size: int, each: int) -> bool:
    """Add L-shaped walls in each quadrant around cells that touch neither border, centre nor each other."""
    turns = 0  # four orientations as base-4 digits, the next one lowest
    for number in range(4 * each):
        quadrant = number // each
        if number % 4 == 0:
            turns = _shuffled_turns(streams, row)
        count = 0
        for place in range((size // 2 - 1) ** 2):
            count += int(_is_corner_free(walls, size, _quadrant_cell(size, quadrant, place)))
        if count == 0:
            return False
        chosen = next_below(streams, row, count)
        for place in range((size // 2 - 1) ** 2):
            cell = _quadrant_cell(size, quadrant, place)
            if _is_corner_free(walls, size, cell):
                if chosen == 0:
                    walls[cell] |= _IN_CORNER
                    _add_corner(walls, size, cell, turns & 3)
                    break
                chosen -= 1
        turns >>= 2
    return True


@kernel
def _shuffled_turns(streams: Streams, row: int) -> int:
    """Return 0, 1, 2, 3 in random order, two bits each, the first lowest."""
    turns = 0b11100100
    for last in range(3, 0, -1):
        other = next_below(streams, row, last + 1)
        difference = (turns >> (2 * last) ^ turns >> (2 * other)) & 3
        turns ^= difference << (2 * last)
        if other != last:
            turns ^= difference << (2 * other)
    return turns


@kernel
def _quadrant_cell(size: int, quadrant: int, place: int) -> int:
    """Cells of a quadrant that are not on the border, counted from the board's corner."""
    down, along = 1 + place // (size // 2 - 1), 1 + place % (size // 2 - 1)
    row = down if quadrant < 2 else size - 1 - down
    column = along if quadrant % 2 == 0 else size - 1 - along
    return row * size + column


@kernel
def _is_corner_free(walls: NDArray[np.uint8], size: int, cell: int) -> bool:
    around = walls[cell] | walls[cell - size] | walls[cell + size] | walls[cell - 1] | walls[cell + 1]
    return bool(around & (_IN_CORNER | _IN_CENTRE) == 0)


@kernel
def _add_corner(walls: NDArray[np.uint8], size: int, cell: int, turn: int) -> None:
    """Add a wall above or below a cell and one to its left or right, each on both sides."""
    if turn < 2:
        walls[cell] |= 1
        walls[cell - size] |= 2
    else:
        walls[cell] |= 2
        walls[cell + size] |= 1
    if turn % 2 == 0:
        walls[cell] |= 4
        walls[cell - 1] |= 8
    else:
        walls[cell] |= 8
        walls[cell + 1] |= 4


@kernel
def _nth_corner(walls: NDArray[np.uint8], size: int, number: int) -> int:
    """Return the L cell with this number, row by row."""
    for cell in range(size * size):
        if walls[cell] & _IN_CORNER:
            if number == 0:
                return cell
            number -= 1
    return -1
