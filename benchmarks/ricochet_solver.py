"""How long the exact solver of Ricochet takes for the longest solutions on a published board.

    python benchmarks/ricochet_solver.py

The board is that of the tests of Lireer/ricochet-robot-solver, with a robot in each corner. `sets` is the
search over sets of positions, `positions` the one over single positions. CPU time: the machine may be busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from hotloop.rl.envs.ricochet import deep_search, solver
from hotloop.rl.envs.ricochet.board import Position
from hotloop.rl.envs.ricochet.position_text import parse_position

BOARD = """
+--+--+--+--+--+--+--+--+--+--+--+--+--+--+--+--+
|Y    |                             |         B |
+  +  +  +  +--+  +  +  +  +  +  +  +  +  +  +  +
|              |                                |
+  +  +  +  +  +  +  +  +  +  +  +  +  +  +  +  +
|                                   |           |
+  +  +  +  +  +  +  +  +  +  +  +--+  +--+  +  +
|  |                  b                   |     |
+  +--+  +  +  +  +  +  +  +  +  +  +  +  +  +  +
|                             |                 |
+  +  +  +  +  +--+  +  +  +  +--+  +--+  +  +  +
|              |                    |           |
+--+  +  +  +  +  +  +  +  +  +  +  +  +  +  +--+
|           |                                   |
+  +  +  +--+  +  +  +--+--+  +  +  +  +  +  +  +
|                    |     |                    |
+  +  +--+  +  +  +  +  +  +  +  +  +  +  +  +  +
|        |           |     |                    |
+  +  +  +  +  +  +  +--+--+  +  +  +  +  +  +--+
|              |                 |              |
+  +  +  +  +  +--+  +  +  +  +  +--+  +  +  +  +
|     |                                         |
+  +--+  +  +  +  +  +  +  +  +  +  +  +  +--+  +
|                                            |  |
+  +  +  +  +--+  +  +  +  +--+  +  +  +  +  +  +
|              |           |                    |
+--+  +  +  +  +  +  +  +  +  +  +  +  +  +  +  +
|                                               |
+  +  +  +  +  +  +--+  +  +  +  +  +  +  +  +  +
|                 |                    |        |
+  +  +  +  +  +  +  +  +  +  +  +  +--+  +  +  +
|G          |                             |   R |
+--+--+--+--+--+--+--+--+--+--+--+--+--+--+--+--+
"""
RED, BLUE, GREEN, YELLOW = range(4)
CASES = (((12, 4), RED), ((5, 5), YELLOW), ((1, 8), RED), ((2, 8), YELLOW), ((3, 7), BLUE))
MOST_STATES = 1 << 26


def main() -> None:
    """Solve each case both ways and print a table."""
    board = parse_position(BOARD)
    deep_search.search(board, 2, MOST_STATES)  # compiles
    print("| target | robot | moves | sets, CPU s | positions, CPU s |")
    print("| --- | --- | ---: | ---: | ---: |")
    for (row, column), robot in CASES:
        position = replace(board, target=16 * row + column, target_robot=robot)
        solution, sets_s = timed(position, lambda one: deep_search.search(one, 64, MOST_STATES << 2))
        again, positions_s = timed(position, over_positions)
        assert solution == again
        assert isinstance(solution, tuple)
        print(
            f"| {row}, {column} | {robot} | {len(solution)} | {sets_s:.2f} | {positions_s:.2f} |", flush=True
        )


Search = Callable[[Position], "tuple[int, ...] | bool | None"]


def timed(position: Position, search: Search) -> tuple[tuple[int, ...] | bool | None, float]:
    """Return the solution and the CPU time in s."""
    began_s = time.process_time()
    return search(position), time.process_time() - began_s


def over_positions(position: Position) -> tuple[int, ...] | None:
    """Solve without the deep search."""
    kept = solver._SHALLOW
    solver._SHALLOW = MOST_STATES
    try:
        return solver.solve(position, max_states=MOST_STATES)
    finally:
        solver._SHALLOW = kept


if __name__ == "__main__":
    main()
