"""Amounts as people type them: `2m` for seconds, `3%` for a fraction."""

from __future__ import annotations

import re

from hotloop._util.errors import HotloopError

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PIECE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|min|s|m|h|d)?\s*")


def seconds(typed: str | float, what: str = "The time") -> float:
    """`90`, `90s`, `2m` or `1h30m` in seconds; `what` names the value in the complaint."""
    if isinstance(typed, (int, float)) and not isinstance(typed, bool):
        total = float(typed)
    else:
        total, at, pieces = 0.0, 0, _PIECE.finditer(str(typed))
        for piece in pieces:
            if piece.start() != at:
                break
            total, at = total + float(piece[1]) * _UNITS_S[piece[2] or "s"], piece.end()
        if at != len(str(typed)) or not str(typed).strip():
            raise HotloopError(f"{what} is {typed!r}; write it as 90s, 2m or 1h30m.")
    if not 0 < total < 1e9:
        raise HotloopError(f"{what} is {typed!r}; it must be above 0.")
    return total


def fraction(typed: str | float, what: str = "The share") -> float:
    """`3%` or `0.03` as 0.03; `what` names the value in the complaint."""
    try:
        value = (
            float(typed.strip()[:-1]) / 100
            if isinstance(typed, str) and typed.strip().endswith("%")
            else float(typed)
        )
    except ValueError:
        raise HotloopError(f"{what} is {typed!r}; write it as 3% or 0.03.") from None
    if not 0 < value < 1:
        raise HotloopError(f"{what} is {typed!r}; it must lie between 0 and 100 %.")
    return value
