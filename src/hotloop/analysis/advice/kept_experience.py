"""Whether a function keeps what it saw of an env: then it collects experience, whatever it returns."""

from __future__ import annotations

import ast

from hotloop.analysis.parsed_source import parse_text
from hotloop.analysis.source_names import dotted

# Parts of the names of methods that keep their arguments
STORES = ("add", "append", "extend", "insert", "push", "put", "remember", "store", "observe")


def keeps_experience(source: str) -> bool:
    """Whether observations outlive the function: in a buffer, in an attribute, or as where it goes on from.

    Lists of its own that it throws away are not kept; nor are sums of rewards, as evaluations log them.
    """
    tree = parse_text(source)
    functions = [n for n in (tree.body if tree is not None else []) if isinstance(n, ast.FunctionDef)]
    if not functions:
        return False
    seen = _seen(functions[0])
    local = {n.id for n in ast.walk(functions[0]) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return any(_keeps(node, seen, local) for node in ast.walk(functions[0]))


def _seen(function: ast.FunctionDef) -> set[str]:
    """Names of observations, and of what they are gathered in."""
    seen: set[str] = set()
    before = -1
    while len(seen) > before:
        before = len(seen)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                if _comes_from_env(node.value):
                    seen |= {_first(target) for target in node.targets}
                elif _uses(node.value, seen):
                    for target in node.targets:
                        targets = target.elts if isinstance(target, ast.Tuple) else [target]
                        seen |= {dotted(t.value) for t in targets if isinstance(t, ast.Subscript)}
                        seen |= {
                            dotted(t) for t in targets if isinstance(node.value, ast.Name | ast.Attribute)
                        }
            elif _is_store(node) and _given(node, seen):
                assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
                seen.add(dotted(node.func.value))
    return seen - {"", "?"}


def _comes_from_env(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and dotted(value.func).rpartition(".")[2] in ("step", "reset")


def _first(target: ast.expr) -> str:
    """`obs` of `obs, reward, done, info`."""
    while isinstance(target, ast.Tuple | ast.List) and target.elts:
        target = target.elts[0]
    return dotted(target)


def _uses(value: ast.AST, names: set[str]) -> bool:
    return any(
        dotted(node) in names
        for node in ast.walk(value)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
    )


def _is_store(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and any(word in node.func.attr.lower() for word in STORES)
    )


def _given(call: ast.AST, seen: set[str]) -> bool:
    assert isinstance(call, ast.Call)
    return any(_uses(one, seen) for one in (*call.args, *(k.value for k in call.keywords)))


def _keeps(node: ast.AST, seen: set[str], local: set[str]) -> bool:
    if _is_store(node) and _given(node, seen):
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        owner = dotted(node.func.value)
        return owner.partition(".")[0] not in local or "." in owner
    if isinstance(node, ast.Assign):
        for target in node.targets:
            for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                place = one.value if isinstance(one, ast.Subscript) else one
                if isinstance(place, ast.Attribute) and dotted(place) in seen:
                    return True
    return False
