"""Which part of each backward pass belongs to some forward code: the part that it has in its own loss.

A backward pass shows nothing of the layers that it goes through, so its time is divided as the forward pass
of the loss was. What the loss is made of is read from the source: the statements that assign the names in it,
those that assign the names in these, and so on. Where the function that runs the pass only was given the
loss, its caller decides.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.advice.sampled_passes import in_torch, is_backward
from hotloop.analysis.advice.statements import FUNCTIONS
from hotloop.analysis.line_samples import LineSamples
from hotloop.analysis.parsed_source import parse_source
from hotloop.analysis.source_names import dotted
from hotloop.capture.samples import SampledFrame

CUT = ("detach", "item", "data", "numpy", "tolist")  # no gradient goes through these
QUIET = ("no_grad", "inference_mode")
LEARNING = ("torch.optim.", "torch.nn.utils.clip_grad", "torch.autograd.")
Floats = NDArray[np.float64]
Frames = tuple[SampledFrame, ...]


def backward_shares(lines: LineSamples, forward: Iterable[int]) -> Floats:
    """For each path, the part of it that is the backward pass of these forward samples; [paths]."""
    parts = np.zeros(len(lines.paths))
    mine = frozenset(forward)
    passes: dict[Frames, list[int]] = {}
    for number in lines.paths_where(is_backward):
        passes.setdefault(lines.paths[number].frames, []).append(number)
    scopes = _scopes(lines) if passes and mine else {}
    network = in_torch(lines, range(len(lines.paths)))
    network = frozenset(n for n in network if not lines.paths[n].called.startswith(LEARNING))
    for frames, numbers in passes.items():
        behind = _behind(lines, frames, network, scopes)
        whole = lines.weight_of(behind) if behind else 0.0
        if whole:
            parts[numbers] = lines.weight_of(behind & mine) / whole
    return parts


def _behind(
    lines: LineSamples, frames: Frames, network: frozenset[int], scopes: dict[tuple[str, int], ast.AST]
) -> frozenset[int]:
    """Samples of the forward pass behind a backward pass that was called from there."""
    for depth in range(len(frames) - 1, -1, -1):
        own = frames[depth]
        scope = scopes.get((own.file, own.first_line))
        rows = _rows_of_loss(scope, own.line) if scope is not None else None
        found = frozenset(
            n
            for n in network
            if _goes_through(lines.paths[n].frames, frames, depth)
            and (rows is None or lines.paths[n].frames[depth].line in rows)
        )
        if found:
            return found
    return frozenset()


def _goes_through(stack: Frames, frames: Frames, depth: int) -> bool:
    """Whether a stack leads to the same function by the same lines."""
    if len(stack) <= depth:
        return False
    above = all(
        (one.file, one.first_line, one.line) == (other.file, other.first_line, other.line)
        for one, other in zip(stack[:depth], frames[:depth], strict=True)
    )
    own, other = stack[depth], frames[depth]
    return above and (own.file, own.first_line) == (other.file, other.first_line)


def _scopes(lines: LineSamples) -> dict[tuple[str, int], ast.AST]:
    found: dict[tuple[str, int], ast.AST] = {}
    for source in lines.sources:
        tree = parse_source(source)
        if tree is not None:
            first = tree.body[0] if tree.body else None
            whole = source.function == "<module>" or not isinstance(first, FUNCTIONS)
            found[source.file, source.first_line] = tree if whole or first is None else first
    return found


def _rows_of_loss(scope: ast.AST, line: int) -> set[int]:
    """Lines of the statements that make what the statement at this line uses."""
    statements = list(_statements(scope, False))
    wanted: set[str] = set()
    rows: set[int] = set()
    for statement, _ in statements:
        if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            wanted |= _used(statement)
            rows.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    todo = True
    taken: set[ast.stmt] = set()
    while todo:
        todo = False
        for statement, is_quiet in statements:
            if statement in taken or is_quiet or statement.lineno >= line:
                continue
            if _made(statement) & wanted:
                taken.add(statement)
                wanted |= _used(statement)
                rows.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
                todo = True
    return rows


def _statements(scope: ast.AST, is_quiet: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """Simple statements, and whether they run without gradients."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            continue
        quiet = is_quiet or (
            isinstance(child, ast.With)
            and any(dotted(_called(item.context_expr)).endswith(QUIET) for item in child.items)
        )
        if isinstance(child, ast.stmt) and not hasattr(child, "body"):
            yield child, quiet
        else:
            yield from _statements(child, quiet)


def _called(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node


def _made(statement: ast.stmt) -> set[str]:
    """Names that a statement assigns, or adds something to: `states.append(h)`."""
    if isinstance(statement, ast.Assign):
        return {dotted(_base(n)) for target in statement.targets for n in _leaves(target)}
    if isinstance(statement, ast.AugAssign | ast.AnnAssign):
        return {dotted(_base(statement.target))}
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        if isinstance(function, ast.Attribute) and function.attr not in ("backward", "step", "zero_grad"):
            return {dotted(function.value)}
    return set()


def _leaves(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for one in target.elts:
            yield from _leaves(one)
    else:
        yield target


def _base(target: ast.expr) -> ast.expr:
    while isinstance(target, ast.Subscript | ast.Starred):
        target = target.value
    return target


def _used(node: ast.AST) -> set[str]:
    """Names through which gradients may flow into a statement."""
    if isinstance(node, ast.Attribute) and node.attr in CUT:
        return set()
    found = set()
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
        found.add(dotted(node))
    for child in ast.iter_child_nodes(node):
        found |= _used(child)
    return found - {"self"}
