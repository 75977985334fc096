"""Numbers as people read and type them: formatted with their unit, or parsed from `2m` and `3%`."""

from __future__ import annotations

import re

from hotloop._util.errors import HotloopError

_SECONDS_PER_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|min|s|m|h|d)?\s*")


def duration(ns: float | None) -> str:
    """Three digits and a fitting unit: `84.0 ns`, `1.25 ms`, `3 min 20 s`; `-` for unknown."""
    if ns is None:
        return "-"
    if abs(ns) >= 3600e9:
        hours, seconds = divmod(round(ns / 1e9), 3600)
        return f"{hours} h {seconds // 60:02d} min"
    if abs(ns) >= 120e9:
        minutes, seconds = divmod(round(ns / 1e9), 60)
        return f"{minutes} min {seconds:02d} s"
    return _scaled(ns, 1000.0, ("ns", "us", "ms", "s"))


def short_duration(ns: float | None) -> str:
    """A duration in at most 7 characters, for tables: `84.0 ns`, `200 s`, `0.56 h`."""
    if ns is not None and abs(ns) >= 999.5e9:
        return f"{ns / 3600e9:.{2 if ns < 36000e9 else 1 if ns < 360000e9 else 0}f} h"
    return "-" if ns is None else _scaled(ns, 1000.0, ("ns", "us", "ms", "s"))


def size(count: float | None) -> str:
    """Bytes as `1.50 MiB`; `-` for unknown."""
    return "-" if count is None else _scaled(count, 1024.0, ("B", "KiB", "MiB", "GiB", "TiB"))


def percent(fraction: float | None) -> str:
    """`12.3 %`; `-` for unknown."""
    return "-" if fraction is None else f"{100 * fraction:.1f} %"


def count(number: float | None) -> str:
    """`1,234,567`; `-` for unknown."""
    return "-" if number is None else f"{number:,.0f}"


def counted(number: int, what: str) -> str:
    """The number and the noun, with an s unless it is 1."""
    return f"{count(number)} {what}" if number == 1 else f"{count(number)} {what}s"


def short_count(number: int) -> str:
    """A count in at most 8 characters: `1234567`, `123.4 M`."""
    if number < 100_000_000:
        return str(number)
    return _scaled(float(number), 1000.0, ("", "k", "M", "G", "T"))


def _scaled(value: float, step: float, units: tuple[str, ...]) -> str:
    unit = units[0]
    for unit in units:
        if abs(value) < step * 0.9995 or unit == units[-1]:
            break
        value /= step
    digits = 0 if unit == units[0] and value == int(value) else 3 - len(str(int(abs(value))))
    return f"{value:.{max(digits, 0)}f} {unit}"


def parse_seconds(typed: str | float, what: str = "The time") -> float:
    """Seconds in `90`, `90s`, `2m` or `1h30m`; `what` names the value in the error message."""
    if isinstance(typed, (int, float)) and not isinstance(typed, bool):
        total = float(min(typed, 1e300))  # a larger int is no float
    else:
        total, end = 0.0, 0
        for amount in _AMOUNT.finditer(str(typed)):
            if amount.start() != end:
                break
            total += float(amount[1]) * _SECONDS_PER_UNIT[amount[2] or "s"]
            end = amount.end()
        if end != len(str(typed)) or not str(typed).strip():
            raise HotloopError(f"{what} is {typed!r}; write it as 90s, 2m or 1h30m.")
    if not 0 < total < 1e9:
        raise HotloopError(f"{what} is {typed!r}; it must be above 0.")
    return total


def parse_fraction(typed: str | float, what: str = "The share") -> float:
    """`3%`, `3` or `0.03` as 0.03: from 1 up it is percent; `what` names the value in the message."""
    try:
        value = (
            float(typed.strip()[:-1]) / 100
            if isinstance(typed, str) and typed.strip().endswith("%")
            else float(typed)
        )
        if not (isinstance(typed, str) and typed.strip().endswith("%")) and value >= 1:
            value /= 100
    except (TypeError, ValueError, OverflowError):
        raise HotloopError(f"{what} is {typed!r}; write it as 3% or 0.03.") from None
    if not 0 < value < 1:
        raise HotloopError(f"{what} is {typed!r}; it must lie between 0 and 100 %.")
    return value
