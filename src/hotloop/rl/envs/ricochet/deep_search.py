"""Shortest solutions of 15 moves and more: a breadth-first search over sets of positions.

With two to four robots there are at most 2.8 million arrangements of the robots other than the target's.
For each one, the cells of the target's robot that were reached are 256 bits. One record of a layer is an
arrangement with the bits that are new in this layer, and is expanded as a whole: the target's robot slides
from all its cells at once by bit operations, and a move of another robot leads to one arrangement for all
cells of the target's robot that are not in its way. So the cost is per arrangement, not per position:
hundreds of millions of positions are searched in seconds.

A second pass, backwards over the layers, keeps the positions from which the target can still be reached in
time. Among these, the first action in order is taken at every step, which gives the same solution as
`solver.solve_plainly`.

Cells are row * 16 + column on any board. A set is four 64-bit words of four rows each. An arrangement is
packed into an integer, 8 bits for each robot in ascending order of cells.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.compiled import kernel
from hotloop.rl.envs.ricochet.board import Position, move, neighbour

MOST_OTHERS = 3
_CELLS = 256
# Entries of `sets` for each arrangement: what was reached, then what is new in the next layer.
_WIDTH = 8
_STEPS = (-16, 16, -1, 1)
_ONE, _ROW, _THREE_ROWS = np.uint64(1), np.uint64(16), np.uint64(48)


class Layer(NamedTuple):
    """Records of a layer."""

    keys: NDArray[np.int64]  # [records] arrangements of the other robots, packed
    sets: NDArray[np.uint64]  # [records, 4] cells of the target's robot


class Table(NamedTuple):
    """Read-only facts about a board, and all arrangements."""

    stops: NDArray[np.int64]  # [256, 4] where slides end without robots
    blocked: NDArray[np.uint64]  # [4, 4] for each direction, the cells that a wall stops
    choose: NDArray[np.int64]  # [257, 4] binomial coefficients
    sets: NDArray[np.uint64]  # [arrangements, 8]
    scratch: NDArray[np.uint64]  # [6, 4]


def search(position: Position, max_moves: int, max_states: int) -> tuple[int, ...] | Literal[False] | None:
    """Return the actions of the first shortest solution; None within `max_moves`; False if it gave up.

    For two to four robots and a target with a robot; the position must be valid and not solved.
    """
    size, whose = position.size, position.target_robot
    assert whose is not None
    table = _make_table(position)
    target = _wide(position.target, size)
    layers = [_start(position)]
    _store(table, *layers[0], True)
    states = 1
    touched = np.zeros(len(table.sets), dtype=np.int64)
    while len(layers) <= max_moves:
        count = _expand(table, *layers[-1], touched)
        if count == 0:
            return None
        layer = Layer(np.zeros(count, dtype=np.int64), np.zeros((count, 4), dtype=np.uint64))
        states += _take_new(table, touched, layer.keys, layer.sets)
        layers.append(layer)
        if (layer.sets[:, target >> 6] >> np.uint64(target & 63) & _ONE).any():
            return _actions(position, _backwards(table, layers, target))
        if states > max_states:
            return False
    return None


def _backwards(table: Table, layers: list[Layer], target: int) -> list[dict[int, int]]:
    """Return for each layer the positions on shortest solutions: set of cells by arrangement."""
    least = _least_moves(table.stops, target)
    table.sets[...] = 0
    wanted = np.zeros(4, dtype=np.uint64)
    wanted[target >> 6] = _ONE << np.uint64(target & 63)
    good = _good_records(layers[-1], layers[-1].sets & wanted)
    found = [good]
    for left, layer in enumerate(reversed(layers[:-1]), start=1):
        reach = np.zeros(4, dtype=np.uint64)
        for cell, moves in least.items():
            if moves <= left:
                reach[cell >> 6] |= _ONE << np.uint64(cell & 63)
        _store(table, *good, True)
        kept = layer.sets & reach
        some = np.flatnonzero(kept.any(axis=1))
        layer = Layer(layer.keys[some], kept[some])
        result = np.zeros_like(layer.sets)
        _lead_to_good(table, layer.keys, layer.sets, result)
        _store(table, *good, False)
        good = _good_records(layer, result)
        found.append(good)
    return [{int(key): _whole(row) for key, row in zip(*one, strict=True)} for one in reversed(found)]


def _actions(position: Position, good: list[dict[int, int]]) -> tuple[int, ...]:
    """Follow the first action in order that stays on a shortest solution."""
    chosen = []
    for known in good[1:]:
        for action in range(4 * len(position.robots)):
            after = move(position, action)
            key, cell = _packed(after)
            if after != position and known.get(key, 0) >> cell & 1:
                chosen.append(action)
                position = after
                break
    return tuple(chosen)


def _good_records(layer: Layer, sets: NDArray[np.uint64]) -> Layer:
    some = np.flatnonzero(sets.any(axis=1))
    return Layer(layer.keys[some], sets[some])


def _whole(row: NDArray[np.uint64]) -> int:
    return sum(int(word) << 64 * at for at, word in enumerate(row))


def _wide(cell: int, size: int) -> int:
    return cell // size * 16 + cell % size


def _packed(position: Position) -> tuple[int, int]:
    """Return the packed arrangement of the other robots, and the cell of the target's robot."""
    cells = [_wide(cell, position.size) for cell in position.robots]
    own = cells.pop(position.target_robot or 0)
    return sum(cell << 8 * at for at, cell in enumerate(sorted(cells))) | len(cells) << 24, own


def _start(position: Position) -> Layer:
    key, cell = _packed(position)
    layer = Layer(np.array([key], dtype=np.int64), np.zeros((1, 4), dtype=np.uint64))
    layer.sets[0, cell >> 6] = _ONE << np.uint64(cell & 63)
    return layer


def _make_table(position: Position) -> Table:
    stops = np.zeros((_CELLS, 4), dtype=np.int64)
    blocked = np.zeros((4, 4), dtype=np.uint64)
    for cell in range(position.size**2):
        for direction in range(4):
            stop = cell
            while not position.walls[stop] >> direction & 1:
                stop = neighbour(position.size, stop, direction)  # type: ignore[assignment]
            wide = _wide(cell, position.size)
            stops[wide, direction] = _wide(stop, position.size)
            if stop == cell:
                blocked[direction, wide >> 6] |= _ONE << np.uint64(wide & 63)
    choose = np.zeros((_CELLS + 1, MOST_OTHERS + 1), dtype=np.int64)
    choose[:, 0] = 1
    for cell in range(1, _CELLS + 1):
        choose[cell, 1:] = choose[cell - 1, 1:] + choose[cell - 1, :-1]
    sets = np.zeros((int(choose[_CELLS, len(position.robots) - 1]), _WIDTH), dtype=np.uint64)
    return Table(stops, blocked, choose, sets, np.zeros((6, 4), dtype=np.uint64))


def _least_moves(stops: NDArray[np.int64], target: int) -> dict[int, int]:
    """Return a lower bound on the moves to the target by cell: a robot that may stop anywhere."""
    least = {target: 0}
    waiting = [target]
    for cell in waiting:  # grows during the loop
        for direction, step in enumerate(_STEPS):
            seen = cell
            while seen != stops[cell, direction]:
                seen += step
                if seen not in least:
                    least[seen] = least[cell] + 1
                    waiting.append(seen)
    return least


@kernel
def _rank(key: int, choose: NDArray[np.int64]) -> int:
    """Return the number of an arrangement: its rank among all of as many robots."""
    rank = 0
    for at in range(key >> 24):
        rank += choose[key >> 8 * at & 255, at + 1]
    return rank


@kernel
def _moved(key: int, at: int, cell: int) -> int:
    """Return an arrangement with its robot number `at` on another cell, sorted again."""
    count = key >> 24
    result, shift = 0, 0
    placed = False
    for other in range(count):
        if other != at:
            there = key >> 8 * other & 255
            if not placed and there > cell:
                result |= cell << shift
                shift += 8
                placed = True
            result |= there << shift
            shift += 8
    if not placed:
        result |= cell << shift
    return result | count << 24


@kernel
def _slide(key: int, cell: int, direction: int, stops: NDArray[np.int64]) -> int:
    """Return where a slide ends: at a wall or before a robot of the arrangement."""
    stop = int(stops[cell, direction])
    for at in range(key >> 24):
        other = key >> 8 * at & 255
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
def _offer(
    table: Table, key: int, offered: NDArray[np.uint64], touched: NDArray[np.int64], count: int
) -> int:
    """Add cells to an arrangement in the next layer, unless they were reached before; return the count."""
    rank = _rank(key, table.choose)
    sets = table.sets
    was = sets[rank, 4] | sets[rank, 5] | sets[rank, 6] | sets[rank, 7]
    new = np.uint64(0)
    for word in range(4):
        added = offered[word] & ~sets[rank, word]
        sets[rank, 4 + word] |= added
        new |= added
    if was == 0 and new != 0:
        touched[count] = key
        count += 1
    return count


@kernel
def _expand(
    table: Table, keys: NDArray[np.int64], sets: NDArray[np.uint64], touched: NDArray[np.int64]
) -> int:
    """Expand a layer; return the number of arrangements with new cells, whose keys are in `touched`."""
    count = 0
    rest, one = table.scratch[4], table.scratch[5]
    one[:] = 0
    for record in range(len(keys)):
        key = keys[record]
        _slide_all(table, key, sets[record], rest)
        count = _offer(table, key, rest, touched, count)
        for at in range(key >> 24):
            cell = key >> 8 * at & 255
            for direction in range(4):
                stop = _slide(key, cell, direction, table.stops)
                if stop == cell:
                    continue
                step = -16 if direction == 0 else 16 if direction == 1 else -1 if direction == 2 else 1
                for word in range(4):
                    rest[word] = sets[record, word]
                before = cell
                while before != stop:
                    ahead = before + step
                    bit = _ONE << np.uint64(ahead & 63)
                    if rest[ahead >> 6] & bit != 0:
                        rest[ahead >> 6] ^= bit
                        if before != cell:
                            one[ahead >> 6] = bit
                            count = _offer(table, _moved(key, at, before), one, touched, count)
                            one[ahead >> 6] = np.uint64(0)
                    before = ahead
                if rest[0] | rest[1] | rest[2] | rest[3] != 0:
                    count = _offer(table, _moved(key, at, stop), rest, touched, count)
    return count


@kernel
def _slide_all(table: Table, key: int, cells: NDArray[np.uint64], result: NDArray[np.uint64]) -> None:
    """Write where the target's robot can stop after one move from any of these cells."""
    ends = table.scratch  # for each direction the cells where a slide stops, at a wall or a robot
    for direction in range(4):
        for word in range(4):
            ends[direction, word] = table.blocked[direction, word]
    for at in range(key >> 24):
        cell = key >> 8 * at & 255
        if cell >= 16:
            ends[1, (cell - 16) >> 6] |= _ONE << np.uint64((cell - 16) & 63)
        if cell < 240:
            ends[0, (cell + 16) >> 6] |= _ONE << np.uint64((cell + 16) & 63)
        if cell & 15 > 0:
            ends[3, (cell - 1) >> 6] |= _ONE << np.uint64((cell - 1) & 63)
        if cell & 15 < 15:
            ends[2, (cell + 1) >> 6] |= _ONE << np.uint64((cell + 1) & 63)
    down, up = np.uint64(0), np.uint64(0)
    for word in range(4):
        # Right: in a run of free cells, adding ones carries into the end if any cell is occupied.
        free = ~ends[3, word]
        result[word] = ((cells[word] & free) + free) & ends[3, word]
        # Left: fill each run step by step; it has at most 15 steps, and shifts double.
        free = ~ends[2, word]
        filled, passed = cells[word] & free, free
        filled |= passed & (filled >> _ONE)
        passed &= passed >> _ONE
        filled |= passed & (filled >> np.uint64(2))
        passed &= passed >> np.uint64(2)
        filled |= passed & (filled >> np.uint64(4))
        passed &= passed >> np.uint64(4)
        filled |= passed & (filled >> np.uint64(8))
        result[word] |= (filled >> _ONE) & ends[2, word]
        # Down, with what comes from the rows above.
        free = ~ends[1, word]
        filled = cells[word] | down
        filled |= (filled & free) << _ROW
        filled |= (filled & free) << _ROW
        filled |= (filled & free) << _ROW
        arrived = (filled & free) << _ROW | down
        result[word] |= arrived & ends[1, word]
        down = (filled & free) >> _THREE_ROWS
    for word in (3, 2, 1, 0):
        free = ~ends[0, word]
        filled = cells[word] | up
        filled |= (filled & free) >> _ROW
        filled |= (filled & free) >> _ROW
        filled |= (filled & free) >> _ROW
        arrived = (filled & free) >> _ROW | up
        result[word] |= arrived & ends[0, word]
        up = (filled & free) << _THREE_ROWS


@kernel
def _take_new(
    table: Table, touched: NDArray[np.int64], keys: NDArray[np.int64], sets: NDArray[np.uint64]
) -> int:
    """Make the new cells of all touched arrangements a layer; return their number."""
    states = 0
    for record in range(len(keys)):
        keys[record] = touched[record]
        rank = _rank(touched[record], table.choose)
        for word in range(4):
            new = table.sets[rank, 4 + word]
            sets[record, word] = new
            table.sets[rank, word] |= new
            table.sets[rank, 4 + word] = 0
            while new != 0:
                new &= new - _ONE
                states += 1
    return states


@kernel
def _store(table: Table, keys: NDArray[np.int64], sets: NDArray[np.uint64], present: bool) -> None:
    """Mark the positions of some records as reached, or unmark them."""
    for record in range(len(keys)):
        rank = _rank(keys[record], table.choose)
        for word in range(4):
            table.sets[rank, word] = sets[record, word] if present else np.uint64(0)


@kernel
def _lead_to_good(
    table: Table, keys: NDArray[np.int64], sets: NDArray[np.uint64], result: NDArray[np.uint64]
) -> None:
    """Write which cells of each record lead by one move to a position that is marked."""
    rest = table.scratch[4]
    for record in range(len(keys)):
        key = keys[record]
        rank = _rank(key, table.choose)
        if table.sets[rank, 0] | table.sets[rank, 1] | table.sets[rank, 2] | table.sets[rank, 3] != 0:
            for cell in range(_CELLS):
                bit = _ONE << np.uint64(cell & 63)
                if sets[record, cell >> 6] & bit != 0:
                    for direction in range(4):
                        stop = _slide(key, cell, direction, table.stops)
                        if table.sets[rank, stop >> 6] >> np.uint64(stop & 63) & _ONE != 0:
                            result[record, cell >> 6] |= bit
        for at in range(key >> 24):
            cell = key >> 8 * at & 255
            for direction in range(4):
                stop = _slide(key, cell, direction, table.stops)
                if stop == cell:
                    continue
                step = -16 if direction == 0 else 16 if direction == 1 else -1 if direction == 2 else 1
                for word in range(4):
                    rest[word] = sets[record, word]
                before = cell
                while before != stop:
                    ahead = before + step
                    bit = _ONE << np.uint64(ahead & 63)
                    if rest[ahead >> 6] & bit != 0:
                        rest[ahead >> 6] ^= bit
                        if before != cell:
                            rank = _rank(_moved(key, at, before), table.choose)
                            result[record, ahead >> 6] |= table.sets[rank, ahead >> 6] & bit
                    before = ahead
                if rest[0] | rest[1] | rest[2] | rest[3] != 0:
                    rank = _rank(_moved(key, at, stop), table.choose)
                    for word in range(4):
                        result[record, word] |= rest[word] & table.sets[rank, word]
