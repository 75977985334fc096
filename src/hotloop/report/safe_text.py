"""Makes foreign text, such as region names (any Unicode string of any length), safe to print."""

from __future__ import annotations

import unicodedata

from hotloop._util.visible import visible


def shown(name: str, width: int | None = None) -> str:
    """`name` on one line: control characters escaped, cut in the middle to `width` columns."""
    text = visible(name) or '""'
    if width is None or columns(text) <= width:
        return text
    head, tail = (width - 1) // 2, width - 1 - (width - 1) // 2
    return f"{_take(text, head)}…{_take(text[::-1], tail)[::-1]}"


def words(name: str) -> str:
    """An enum value in words: `no_difference` -> `no difference`."""
    return name.replace("_", " ")


def columns(text: str) -> int:
    """Terminal columns of a text; wide characters count two, combining ones none."""
    return sum(_columns(c) for c in text)


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _take(text: str, width: int) -> str:
    taken, used = "", 0
    for character in text:
        used += _columns(character)
        if used > width:
            break
        taken += character
    return taken
