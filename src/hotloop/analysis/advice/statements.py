"""Small questions about statements: which names they read and store, and what decides about them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def simple_statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Statements without a body, in order; of nested functions, nothing."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(child, ast.stmt) and not hasattr(child, "body"):
            yield child
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from simple_statements(child)


def head_expressions(node: ast.AST) -> Iterator[ast.expr]:
    """What decides about the flow: tests, iterables, contexts, and what inner functions read."""
    if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
        yield node.test
    elif isinstance(node, ast.For | ast.AsyncFor):
        yield node.iter
    elif isinstance(node, ast.With | ast.AsyncWith):
        for item in node.items:
            yield item.context_expr
    elif isinstance(node, ast.Lambda):
        yield node.body


def all_names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def names_loaded(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def names_stored(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def loop_targets(loop: ast.stmt) -> set[str]:
    return {
        name
        for inner in ast.walk(loop)
        if isinstance(inner, ast.For | ast.AsyncFor | ast.comprehension)
        for name in names_stored(inner.target)
    }


def names_assigned(statement: ast.stmt) -> set[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {name for target in targets if target is not None for name in names_stored(target)}


def assignments(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Targets with what is assigned to them; `a, b = x` gives a part of x to both."""
    if not isinstance(node, ast.Assign):
        return
    for target in node.targets:
        if isinstance(target, ast.Tuple):
            split = isinstance(node.value, ast.Tuple) and len(node.value.elts) == len(target.elts)
            values = node.value.elts if split and isinstance(node.value, ast.Tuple) else ()
            for place, element in enumerate(target.elts):
                yield element, values[place] if values else node.value
        else:
            yield target, node.value
