"""Makes foreign text, such as names of files and regions, safe to print on one line."""

from __future__ import annotations


def visible(text: str) -> str:
    """`text` with control characters, line breaks and lone surrogates escaped: `\\x1b` for an escape."""
    if text.isascii() and text.isprintable():
        return text
    import unicodedata  # a large module, and most text needs none of it

    return "".join(_visible(c, unicodedata.category(c)) for c in text)


def _visible(character: str, kind: str) -> str:
    if kind in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    return character
