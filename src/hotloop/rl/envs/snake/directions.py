"""Turns and steps by arithmetic: lookups in a tuple compile to branches, which mispredict because the
actions of an exploring agent are random."""

from __future__ import annotations

from hotloop.rl.envs.compiled import inlined_part


@inlined_part
def turned(heading: int, action: int) -> int:
    """`(heading + TURNS[action]) % 4`, with the turns packed as three pairs of bits."""
    return (heading + (0b01_11_00 >> (2 * action))) & 3


@inlined_part
def row_step(direction: int) -> int:
    """`ROW_STEP[direction]`: -1 up, 1 down, else 0."""
    return (direction - 1) * (1 - (direction & 1))


@inlined_part
def column_step(direction: int) -> int:
    """`COLUMN_STEP[direction]`: 1 right, -1 left, else 0."""
    return (2 - direction) * (direction & 1)
