"""Lines of text that fit the terminal: wrapping, bars, columns and colour, by terminal columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.color import ColorSystem
from rich.style import Style

from hotloop.report.safe_text import columns, shown

EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class Pen:
    """Lays out text for a given width, with or without colour and characters beyond ASCII."""

    width: int = 80
    colour: bool = False
    unicode: bool = True

    def clean(self, text: str, width: int | None = None) -> str:
        """Foreign text, escaped, on one line; cut in the middle to `width` columns."""
        safe = shown(text)
        if self.unicode:
            return shown(safe, width)
        safe = safe.encode("ascii", "backslashreplace").decode("ascii")
        return shown(safe, width).replace("…", "~")

    def paint(self, text: str, style: str) -> str:
        """`text` in a rich style such as `bold` or `#0072b2`; unchanged without colour."""
        if not self.colour:
            return text
        return Style.parse(style).render(text, color_system=ColorSystem.EIGHT_BIT)

    def dim(self, lines: str) -> str:
        """Less important lines, dimmed."""
        return "\n".join(self.paint(line, "dim") for line in lines.split("\n"))

    def heading(self, text: str, aside: str = "") -> str:
        """A section's title, with a remark at the right edge if there is room."""
        room = self.width - len(text) - 2
        aside = self.clean(aside, max(room, 8)) if aside and room > 12 else ""
        gap = " " * max(self.width - columns(text) - columns(aside), 1)
        line = self.paint(text, "bold") + (gap + self.paint(aside, "dim") if aside else "")
        rule = ("─" if self.unicode else "-") * self.width
        return f"{line}\n{self.paint(rule, 'dim')}"

    def bar(self, fraction: float, width: int, style: str = "") -> str:
        """A bar for 0..1 of at most `width` columns; anything above 0 stays visible."""
        full = min(max(fraction, 0.0), 1.0) * width
        if not self.unicode:
            drawn = "#" * max(round(full), 1 if fraction > 0 else 0)
        else:
            eighths = max(round(full * 8), 1 if fraction > 0 else 0)
            drawn = EIGHTHS[-1] * (eighths // 8) + EIGHTHS[eighths % 8].strip()
        return self.paint(drawn, style) if style and drawn else drawn

    def wrap(self, text: str, first: str = "", rest: str | None = None) -> str:
        """Foreign text, cleaned and wrapped; `first` starts the first line, `rest` the others."""
        rest = " " * columns(first) if rest is None else rest
        lines, line = [], first
        bare = True
        for word in self._words(text, self.width - max(columns(first), columns(rest))):
            if not bare and columns(line) + 1 + columns(word) > self.width:
                lines.append(line)
                line, bare = rest, True
            line += word if bare else " " + word
            bare = False
        return "\n".join([*lines, line.rstrip()])

    def command(self, text: str, first: str = "", rest: str | None = None) -> str:
        """A command to copy, wrapped between words with a backslash at the end of each line."""
        rest = " " * (columns(first) + 2) if rest is None else rest
        lines, line, bare = [], first, True
        for word in self.clean(text).split(" "):
            if not bare and columns(line) + 3 + columns(word) > self.width:
                lines.append(line + " \\")
                line, bare = rest, True
            line += word if bare else " " + word
            bare = False
        return "\n".join([*lines, line])

    def _words(self, text: str, room: int) -> list[str]:
        """Words to wrap: those longer than a line in pieces, those longer than three cut in the middle."""
        pieces: list[str] = []
        room = max(room, 8)
        for word in self.clean(text).split(" "):
            left = word if columns(word) <= room else self.clean(word, 3 * room - 3)
            while columns(left) > room:
                piece = take(left, room)
                pieces.append(piece)
                left = left[len(piece) :]
            pieces.append(left)
        return pieces


def take(text: str, width: int) -> str:
    """The start of a text that fits `width` columns, at least one character."""
    end = 1
    while end < len(text) and columns(text[: end + 1]) <= width:
        end += 1
    return text[:end]


def table(pen: Pen, rows: Sequence[Sequence[str]], indent: str = "  ", spare: int = 0) -> list[str]:
    """Aligned columns: the first left-aligned and cut to fit, the others right-aligned.

    `spare` columns stay free at the right. Cells must not contain colour codes.
    """
    others = [
        max(columns(cell) for cell in column) for column in zip(*(row[1:] for row in rows), strict=True)
    ]
    room = pen.width - len(indent) - sum(2 + width for width in others) - spare
    names = [pen.clean(row[0], max(room, 8)) if row[0] else "" for row in rows]
    first = max(columns(name) for name in names)
    lines = []
    for name, row in zip(names, rows, strict=True):
        cells = [name + " " * (first - columns(name))]
        cells += [" " * (w - columns(c)) + c for c, w in zip(row[1:], others, strict=True)]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines
