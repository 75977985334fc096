"""Loops in which a thread waits for something that another one changes: a flag, a counter, a file.

    while not flag.value:
        time.sleep(0.001)

Nobody logs such a wait, so it looks like work. Its lines tell.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from hotloop.analysis.parsed_source import walk_source
from hotloop.capture.model import Process, Thread
from hotloop.capture.samples import FunctionSource, Samples

NAPS = ("sleep", "sched_yield")
MOST_STATEMENTS = 4
_LEAVES = (ast.Break, ast.Return, ast.Raise, ast.Continue)


def waiting_lines(sources: Iterable[FunctionSource]) -> dict[tuple[str, int], int]:
    """Lines of loops that only wait, as (file, line), and the line in which their loop begins."""
    found: dict[tuple[str, int], int] = {}
    for source in sources:
        for node in walk_source(source):
            if isinstance(node, ast.While) and _only_waits(node):
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    found[source.file, line] = node.lineno
    return found


def _only_waits(loop: ast.While) -> bool:
    asked = {node.id for node in ast.walk(loop.test) if isinstance(node, ast.Name)}
    naps = leaves = False
    for statement in loop.body:
        if isinstance(statement, ast.Expr) and _is_nap(statement.value):
            naps = True
        elif isinstance(statement, ast.If) and isinstance(statement.body[-1], _LEAVES):
            leaves = True
        elif isinstance(statement, ast.Assign) and all(
            isinstance(target, ast.Name) and target.id in asked for target in statement.targets
        ):
            continue
        elif not isinstance(statement, ast.Pass):
            return False
    spins = all(isinstance(statement, ast.Pass) for statement in loop.body)
    asks = leaves if isinstance(loop.test, ast.Constant) else True
    return (naps or spins) and asks and len(loop.body) <= MOST_STATEMENTS and not loop.orelse


def _is_nap(value: ast.expr) -> bool:
    if not isinstance(value, ast.Call):
        return False
    name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
    return name in NAPS


def polled_wait(process: Process, thread: Thread, samples: Samples) -> tuple[float, str]:
    """Share of the samples of a thread in such loops, and the place of the one that took most."""
    lines = waiting_lines(process.sources)
    whole = float(samples["weight_ns"].sum())
    if not lines or not whole or thread.folded_threads:
        return 0.0, ""
    at: dict[str, float] = {}
    for path, weight in zip(samples["path"].tolist(), samples["weight_ns"].tolist(), strict=True):
        for frame in reversed(process.paths[path].frames if path < len(process.paths) else ()):
            if (frame.file, frame.line) in lines:
                place = f"{frame.file}:{lines[frame.file, frame.line]}"
                at[place] = at.get(place, 0.0) + weight
                break
    place = max(at, key=lambda one: at[one], default="")
    return sum(at.values()) / whole, place
