"""Recorded source text as syntax trees; text that is no Python has none, such as half of a lambda."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator

from hotloop.capture.samples import FunctionSource


def parse_source(source: FunctionSource) -> ast.Module | None:
    """The tree of a recorded function, with line numbers of the file; None if the text cannot be parsed."""
    tree = parse_text(source.text)
    if tree is not None:
        ast.increment_lineno(tree, source.first_line - 1)
    return tree


def walk_source(source: FunctionSource) -> Iterator[ast.AST]:
    """All nodes of a recorded function, as `parse_source` gives them; none if the text cannot be parsed."""
    tree = parse_source(source)
    return ast.walk(tree) if tree is not None else iter(())


def indentation(source: FunctionSource) -> int:
    """Columns (bytes) that `parse_source` takes away from the left of each line."""
    rows = source.text.splitlines()
    at = next((number for number, row in enumerate(rows) if row.strip()), None)
    if at is None:
        return 0
    dedented = textwrap.dedent(source.text).splitlines()[at]
    return len(rows[at].encode()) - len(dedented.encode())


def parse_text(text: str) -> ast.Module | None:
    """The tree of a piece of source, indented or not; None if it cannot be parsed."""
    try:
        return ast.parse(textwrap.dedent(text))
    except SyntaxError:
        return None


def line_text(source: FunctionSource, line: int) -> str:
    """A line of the file without its indentation; "" if the recorded text does not have it."""
    rows = source.text.splitlines()
    at = line - source.first_line
    return rows[at].strip() if 0 <= at < len(rows) else ""
