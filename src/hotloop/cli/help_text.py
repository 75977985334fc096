"""What --help prints: one look for all verbs, no wider than the terminal, no types, no empty defaults."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field

from hotloop.cli.output import terminal_width

WIDE = 10_000  # columns in which tyro lays out its help, so that it breaks no lines
MOST_WIDTH, LEAST_WIDTH = 100, 50
INDENT, GAP = 2, 2
MOST_NAME_WIDTH = 26  # a longer option has its description below it
_KINDS = {"INT": "N", "FLOAT": "NUMBER", "STR": "TEXT"}
_COMMAND = re.compile(r"(?:hotloop|python|pip|make)\s")


@dataclass
class Group:
    """Arguments under one title: how each is written, and what it does."""

    title: str
    rows: list[tuple[str, str]] = field(default_factory=list)


def help_width() -> int:
    """Columns for help: the terminal's, within what reads well; 80 where there is none."""
    return max(min(terminal_width(), MOST_WIDTH), LEAST_WIDTH)


def help_text(told: str, prog: str, about: str, tail: str = "", width: int | None = None) -> str:
    """Help of a verb, from what tyro printed with `WIDE` columns.

    `about` is the docstring of its arguments, `tail` what follows the options, such as `-- COMMAND`.
    """
    columns = width or help_width()
    groups = read_groups(told)
    names = [name for group in groups if group.title == "arguments" for name, _ in group.rows]
    words = [f"usage: {prog}", "[options]", *names, *([tail] if tail else [])]
    usage = textwrap.fill(
        " ".join(words),
        columns,
        subsequent_indent=" " * 7,
        break_long_words=False,
        break_on_hyphens=False,
    )
    parts = [usage, paragraphs(about, columns)]
    parts += [f"{group.title}:\n{table(group.rows, columns)}" for group in groups]
    return "\n\n".join(part for part in parts if part) + "\n"


def read_groups(told: str) -> list[Group]:
    """The arguments in the boxes that tyro draws."""
    groups: list[Group] = []
    for line in told.splitlines():
        if line.startswith(("╭", "+")):
            title = line.strip("╭╮+─- ")
            groups.append(Group("arguments" if "positional" in title else title or "options"))
        elif line.startswith(("│", "|")) and groups:
            inside = line[2:].rstrip(" │|")
            rows = groups[-1].rows
            if inside[:1] not in ("", " "):
                name, _, what = inside.partition("  ")
                rows.append((name.strip(), what.strip()))
            elif inside and rows:
                rows[-1] = (rows[-1][0], f"{rows[-1][1]} {inside.strip()}".strip())
    return [Group(group.title, [_plain(*row) for row in group.rows]) for group in groups]


def _plain(name: str, what: str) -> tuple[str, str]:
    """An argument without types and defaults that say nothing."""
    name = re.sub(r"\{None\}\|", "", name).replace("{None,", "{")
    name = re.sub(r"\b(INT|FLOAT|STR)\b", lambda found: _KINDS[found[0]], name)
    pair = re.fullmatch(r"--([\w-]+), --no-\1", name)
    if pair:
        name = f"--[no-]{pair[1]}"
        what = what.replace("(default: False)", "(default: off)").replace("(default: True)", "(default: on)")
    if name.startswith("-h, --help"):
        return name, "Show this help."
    return name, re.sub(r" ?\((?:default: (?:None|''|)|required)\)", "", what)


def table(rows: Iterable[tuple[str, str]], width: int) -> str:
    """Names and what they mean in two columns; the description of a long name begins below it."""
    rows = list(rows)
    fitting = [len(name) for name, _ in rows if len(name) <= MOST_NAME_WIDTH]
    at = INDENT + max(fitting, default=MOST_NAME_WIDTH) + GAP
    lines = []
    for name, what in rows:
        begin = " " * INDENT + name
        wrapped = textwrap.wrap(what, width - at, break_on_hyphens=False) or [""]
        if len(name) > MOST_NAME_WIDTH and what:
            lines += textwrap.wrap(begin, width, subsequent_indent=" " * 2 * INDENT, break_on_hyphens=False)
            wrapped = ["", *wrapped]
        else:
            wrapped[0] = begin.ljust(at) + wrapped[0]
        lines += [wrapped[0].rstrip()] if wrapped[0] else []
        lines += [" " * at + line for line in wrapped[1:]]
    return "\n".join(lines)


def paragraphs(text: str, width: int) -> str:
    """A docstring with its paragraphs wrapped; command lines and indented ones stay as they are."""
    found = []
    for part in re.split(r"\n\s*\n", text.strip()):
        lines = part.splitlines()
        if all(line.startswith("    ") for line in lines):
            found.append(part)
        elif all(_COMMAND.match(line) for line in lines):
            found.append(textwrap.indent(part, "    "))
        else:
            found.append(
                textwrap.fill(" ".join(line.strip() for line in lines), width, break_on_hyphens=False)
            )
    return "\n\n".join(found)
