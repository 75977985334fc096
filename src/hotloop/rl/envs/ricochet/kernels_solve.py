"""The compiled search for a shortest solution; `solver.solve_plainly` is the readable reference.

It differs in three ways that do not change the result: a position is one 64-bit word; slides without robots
come from a table; and the search deepens iteratively, pruning positions that cannot reach the target within
the limit even if the target's robot could stop anywhere. Pruning never drops a position on a solution
within the limit, nor one first reached from such a position, so both searches find the same solution.
(Measured on two busy cores, boards of 8 x 8 with 4 robots: a solution of 5 moves takes 31 us instead of 154
us; one of 8 moves takes as long as without pruning.)

Cells are row * 16 + column on any board, so that row and column are bit fields.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.compiled import kernel

LONGEST = 200
"""Longest solution that can be searched for."""
NO_SOLUTION, GAVE_UP, _FULL, _CUT = -1, -2, -3, -4

# Offsets in the int32 scratch: slides, least moves, cells, order, path found, queue.
_STOPS, _LEAST, _CELLS, _ORDER, PATH, _LINKS = 0, 1024, 1280, 1288, 1296, 1536
# The uint64 scratch: number of this search, hash table, queue of positions.
_TABLE = 1
_ROOM = 1 << 14
MOST_STATES = 1 << 26
"""Most positions that a search can store."""
_KEY_BITS = 42
_MIX = np.uint64(0x9E3779B97F4A7C15)


def make_scratch() -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Allocate scratch memory for one thread: 16,384 positions; longer searches allocate more."""
    return np.zeros(_TABLE + 3 * _ROOM, dtype=np.uint64), np.zeros(_LINKS + _ROOM, dtype=np.int32)


@kernel
def solve_board(
    walls: NDArray[np.uint8],
    pieces: NDArray[np.int32],
    size: int,
    robots: int,
    max_moves: int,
    must_turn: bool,
    max_states: int,
    words: NDArray[np.uint64],
    numbers: NDArray[np.int32],
) -> int:
    """Return the length of a shortest solution, NO_SOLUTION within `max_moves`, or GAVE_UP.

    walls [size * size] as in `Position`; pieces: a cell for each robot, the target, the target's robot (-1:
    any).
    The actions are left in `numbers[PATH:]`.
    """
    _look_up_slides(walls, size, numbers)
    target = pieces[robots] // size * 16 + pieces[robots] % size
    _look_up_least_moves(target, size, numbers)
    whose = pieces[robots + 1]
    # np.int64: any other argument type would compile the search again.
    limit: Any = np.int64(LONGEST + 1)
    for robot in range(robots):
        if whose < 0 or robot == whose:
            own = numbers[_LEAST + pieces[robot] // size * 16 + pieces[robot] % size]
            limit = min(limit, np.int64(own))
    room: Any = np.int64(_ROOM)
    own_words, own_numbers = words, numbers
    found = NO_SOLUTION
    while limit <= max_moves:
        found = _search(pieces, size, robots, target, limit, must_turn, room, own_words, own_numbers)
        if found == _FULL:
            room *= 4
            if room > max_states:
                return GAVE_UP
            own_words = np.zeros(_TABLE + 3 * room, dtype=np.uint64)
            own_numbers = np.zeros(_LINKS + room, dtype=np.int32)
            for at in range(_LINKS):
                own_numbers[at] = numbers[at]
        elif found == _CUT:
            limit += 1
        else:
            break
    for at in range(found):
        numbers[PATH + at] = own_numbers[PATH + at]
    return found if found >= 0 else NO_SOLUTION


@kernel
def _look_up_slides(walls: NDArray[np.uint8], size: int, numbers: NDArray[np.int32]) -> None:
    """Compute where slides end on a board without robots, for each cell and direction."""
    for row in range(size):
        for column in range(size):
            bits = walls[row * size + column]
            at = row * 16 + column
            numbers[_STOPS + at * 4] = at if bits & 1 else numbers[_STOPS + (at - 16) * 4]
            numbers[_STOPS + at * 4 + 2] = at if bits & 4 else numbers[_STOPS + (at - 1) * 4 + 2]
    for row in range(size - 1, -1, -1):
        for column in range(size - 1, -1, -1):
            bits = walls[row * size + column]
            at = row * 16 + column
            numbers[_STOPS + at * 4 + 1] = at if bits & 2 else numbers[_STOPS + (at + 16) * 4 + 1]
            numbers[_STOPS + at * 4 + 3] = at if bits & 8 else numbers[_STOPS + (at + 1) * 4 + 3]


@kernel
def _look_up_least_moves(target: int, size: int, numbers: NDArray[np.int32]) -> None:
    """Compute a lower bound on the moves to the target for each cell: a robot that may stop anywhere."""
    for at in range(256):
        numbers[_LEAST + at] = LONGEST + 1
    numbers[_LEAST + target] = 0
    depth = 0
    grown = True
    while grown:
        grown = False
        for row in range(size):
            for column in range(size):
                at = row * 16 + column
                if numbers[_LEAST + at] != depth:
                    continue
                for direction in range(4):
                    step = -16 if direction == 0 else 16 if direction == 1 else -1 if direction == 2 else 1
                    stop = numbers[_STOPS + at * 4 + direction]
                    seen = at
                    while seen != stop:
                        seen += step
                        if numbers[_LEAST + seen] > depth + 1:
                            numbers[_LEAST + seen] = depth + 1
                            grown = True
        depth += 1


@kernel
def _search(
    pieces: NDArray[np.int32],
    size: int,
    robots: int,
    target: int,
    limit: int,
    must_turn: bool,
    room: int,
    words: NDArray[np.uint64],
    numbers: NDArray[np.int32],
) -> int:
    """Search breadth-first among positions that may reach the target within `limit`.

    Returns _CUT if there is no solution but positions were pruned, _FULL if there are more than `room`.
    """
    whose = pieces[robots + 1]
    start = np.uint64(0)
    for robot in range(robots):
        cell = pieces[robot] // size * 16 + pieces[robot] % size
        numbers[_CELLS + robot] = cell
        start |= np.uint64(cell) << np.uint64(8 * robot)
        if (whose < 0 or robot == whose) and cell == target and not must_turn:
            return 0
    queue = _TABLE + 2 * room
    words[0] = words[0] + np.uint64(1)
    if words[0] >> np.uint64(64 - _KEY_BITS) != 0:
        words[:queue] = 0
        words[0] = np.uint64(1)
    words[queue] = start
    numbers[_LINKS] = -1
    _insert(start, robots, whose, room, words, numbers)
    head, tail, level_end, depth = 0, 1, 1, 0
    cut = False
    while head < tail:
        if head == level_end:
            depth += 1
            level_end = tail
        if depth == limit:
            return _CUT
        state = words[queue + head]
        for robot in range(robots):
            numbers[_CELLS + robot] = int((state >> np.uint64(8 * robot)) & np.uint64(255))
        for robot in range(robots):
            cell = numbers[_CELLS + robot]
            for direction in range(4):
                stop = _slide(cell, direction, robots, numbers)
                if stop == cell:
                    continue
                shift = np.uint64(8 * robot)
                after = state ^ (np.uint64(cell ^ stop) << shift)
                if whose < 0 or robot == whose:
                    if must_turn:
                        after |= np.uint64(1) << np.uint64(40 + direction // 2)
                    if stop == target and (not must_turn or after >> np.uint64(40) == 3):
                        _write_path(head, depth, robot * 4 + direction, numbers)
                        return depth + 1
                    least = numbers[_LEAST + stop]
                    if whose < 0:
                        for other in range(robots):
                            if other != robot:
                                least = min(least, numbers[_LEAST + numbers[_CELLS + other]])
                    if depth + 1 + least > limit:
                        cut = True
                        continue
                elif depth + 1 + numbers[_LEAST + numbers[_CELLS + whose]] > limit:
                    cut = True
                    continue
                numbers[_CELLS + robot] = stop
                new = _insert(after, robots, whose, room, words, numbers)
                numbers[_CELLS + robot] = cell
                if new:
                    if tail == room:
                        return _FULL
                    words[queue + tail] = after
                    numbers[_LINKS + tail] = head * 32 + robot * 4 + direction
                    tail += 1
        head += 1
    return _CUT if cut else NO_SOLUTION


@kernel
def _slide(cell: int, direction: int, robots: int, numbers: NDArray[np.int32]) -> int:
    """Return where a slide ends: at the wall from the table, or before the nearest robot."""
    stop = int(numbers[_STOPS + cell * 4 + direction])
    for robot in range(robots):
        other = int(numbers[_CELLS + robot])
        if direction == 0:
            if stop <= other < cell and (other ^ cell) & 15 == 0:
                stop = other + 16
        elif direction == 1:
            if cell < other <= stop and (other ^ cell) & 15 == 0:
                stop = other - 16
        elif direction == 2:
            if stop <= other < cell:
                stop = other + 1
        elif cell < other <= stop:
            stop = other - 1
    return stop


@kernel
def _insert(
    state: Any,
    robots: int,
    whose: int,
    room: int,
    words: NDArray[np.uint64],
    numbers: NDArray[np.int32],
) -> bool:
    """Store a position, with the other robots sorted by cell; return False if it was known."""
    count = 0
    for robot in range(robots):
        if robot != whose:
            cell = numbers[_CELLS + robot]
            at = count
            while at > 0 and numbers[_ORDER + at - 1] > cell:
                numbers[_ORDER + at] = numbers[_ORDER + at - 1]
                at -= 1
            numbers[_ORDER + at] = cell
            count += 1
    key = state >> np.uint64(40)
    if whose >= 0:
        key = key << np.uint64(8) | np.uint64(numbers[_CELLS + whose])
    for at in range(count):
        key = key << np.uint64(8) | np.uint64(numbers[_ORDER + at])
    # The upper bits are the number of this search; entries of older searches count as empty.
    key |= words[0] << np.uint64(_KEY_BITS)
    mask = np.uint64(2 * room - 1)
    slot = (key * _MIX) >> np.uint64(32) & mask
    while words[_TABLE + int(slot)] >> np.uint64(_KEY_BITS) == words[0]:
        if words[_TABLE + int(slot)] == key:
            return False
        slot = (slot + np.uint64(1)) & mask
    words[_TABLE + int(slot)] = key
    return True


@kernel
def _write_path(head: int, depth: int, action: int, numbers: NDArray[np.int32]) -> None:
    """Collect the actions that led to the position at `head` of the queue, and the last one."""
    numbers[PATH + depth] = action
    at = head
    while depth > 0:
        depth -= 1
        numbers[PATH + depth] = numbers[_LINKS + at] & 31
        at = numbers[_LINKS + at] >> 5
