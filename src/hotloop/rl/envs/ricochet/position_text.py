"""Positions as text, drawn with characters as people do:

    +--+--+--+--+
    |R    |     |
    +  +  +  +--+
    |   b     G |
    ...

`+` marks corners of cells, `-` and `|` walls. Letters are robots: R red, B blue, G green, Y yellow, P purple
(or S, silver). They are numbered in this order. A small letter is the target of that robot, `*` a target for
any robot. A cell may be one to three characters wide, and hold a robot and the target. The border is always
closed. Lines that start with `#` are comments.
"""

from __future__ import annotations

import os
from pathlib import Path

from hotloop._util.errors import HotloopError
from hotloop._util.read_files import Reader
from hotloop._util.units import counted
from hotloop.rl.envs.ricochet.board import (
    DOWN,
    RIGHT,
    Position,
    add_wall,
    check_position,
    empty_walls,
)

_FILE = Reader(1 << 20, remedy="pass a text file with a position")
ROBOTS = "RBGYP"
_SILVER = str.maketrans("Ss", "Pp")
ANY = "*"
_CORNERS = "+|-_=."
_REMEDY = "draw corners as +, walls as - and |, robots as R B G Y P, and the target as r b g y p or *"


def read_position(path: str | os.PathLike[str]) -> Position:
    """Read a position from a text file."""
    return parse_position(_FILE.read_text(Path(path)), source=os.fspath(path))


def parse_position(text: str, *, source: str = "this position") -> Position:
    """Return the position that a text draws; error messages call it `source`."""
    lines = [line.rstrip() for line in text.expandtabs().splitlines() if not line.lstrip().startswith("#")]
    while lines and not lines[0]:
        del lines[0]
    while lines and not lines[-1]:
        del lines[-1]
    margin = min((len(line) - len(line.lstrip()) for line in lines if line), default=0)
    lines = [line[margin:] for line in lines]
    size, wide = _size(lines, source)
    lines = [line.ljust(size * (wide + 1) + 1) for line in lines]
    _check_places(lines, size, wide, source)
    walls = empty_walls(size, walled_centre=False)
    pieces: dict[str, int] = {}
    for row in range(size):
        inside, below = lines[2 * row + 1], lines[2 * row + 2]
        for column in range(size):
            cell, at = row * size + column, column * (wide + 1)
            if inside[at + wide + 1] == "|":
                add_wall(walls, size, cell, RIGHT)
            if set(below[at + 1 : at + 1 + wide]) & set("-_="):
                add_wall(walls, size, cell, DOWN)
            for letter in inside[at + 1 : at + 1 + wide].translate(_SILVER).replace(" ", "").replace(".", ""):
                if letter not in ROBOTS + ROBOTS.lower() + ANY or letter in pieces:
                    what = "two" if letter in pieces else "the unknown"
                    raise HotloopError(f"{source} has {what} {letter!r} in row {row}; {_REMEDY}.")
                pieces[letter] = cell
    position = _position(size, walls, pieces, source)
    check_position(position)
    return position


def format_position(position: Position) -> str:
    """Draw a position as text, with cells two characters wide."""
    check_position(position)
    size = position.size
    lines = ["+--" * size + "+"]
    for row in range(size):
        inside, below = "|", "+"
        for column in range(size):
            cell = row * size + column
            letters = "".join(ROBOTS[robot] for robot, there in enumerate(position.robots) if there == cell)
            if cell == position.target:
                whose = position.target_robot
                letters += ANY if whose is None else ROBOTS[whose].lower()
            inside += letters.ljust(2) + ("|" if position.walls[cell] & 1 << RIGHT else " ")
            below += ("--" if position.walls[cell] & 1 << DOWN else "  ") + "+"
        lines += [inside, below]
    return "\n".join(lines) + "\n"


def _size(lines: list[str], source: str) -> tuple[int, int]:
    """Return the number of cells along a side, and their width in characters."""
    corners = [at for at, letter in enumerate(lines[0]) if letter == "+"] if lines else []
    wide = corners[1] - corners[0] - 1 if len(corners) > 1 else 0
    size = len(corners) - 1
    evenly = corners == list(range(0, size * (wide + 1) + 1, wide + 1))
    if not 1 <= wide <= 3 or not evenly or len(lines) != 2 * size + 1:
        raise HotloopError(
            f"{source} is not a square board: its first line has {len(corners)} corners, and there are "
            f"{len(lines)} lines, where n + 1 corners need 2 n + 1 lines; {_REMEDY}."
        )
    return size, wide


def _check_places(lines: list[str], size: int, wide: int, source: str) -> None:
    """Raise HotloopError for whatever stands where nothing would read it."""
    for number, line in enumerate(lines):
        for at, letter in enumerate(line):
            if at > size * (wide + 1):
                allowed = ""
            elif number % 2 == 0:
                allowed = _CORNERS if at % (wide + 1) == 0 else "-_="
            else:
                allowed = "|" if at % (wide + 1) == 0 else letter
            if letter not in allowed + " ":
                raise HotloopError(
                    f"{source} has {letter!r} in line {number + 1}, column {at + 1}, which is in no cell and "
                    f"no place for a wall; {_REMEDY}."
                )


def _position(size: int, walls: list[int], pieces: dict[str, int], source: str) -> Position:
    robots = [letter for letter in ROBOTS if letter in pieces]
    targets = [letter for letter in pieces if letter not in ROBOTS]
    if not robots or len(targets) != 1:
        raise HotloopError(
            f"{source} has {counted(len(robots), 'robot')} and {counted(len(targets), 'target')}; {_REMEDY}."
        )
    target = targets[0]
    if target != ANY and target.upper() not in robots:
        raise HotloopError(
            f"{source} has a target {target!r} but no robot {target.upper()!r}; add it, or use * for any."
        )
    whose = None if target == ANY else robots.index(target.upper())
    return Position(size, tuple(walls), tuple(pieces[letter] for letter in robots), pieces[target], whose)
