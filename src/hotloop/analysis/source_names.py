"""What the names in a script stand for, as far as its assignments show: lists, dicts, arrays, writers.

A hot statement says `if key in self.seen:`; whether that is slow depends on what `self.seen` is. The source
of the script, which the capture keeps, has `self.seen = []` somewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

LITERALS: dict[type[ast.AST], str] = {
    ast.List: "list",
    ast.ListComp: "list",
    ast.Dict: "dict",
    ast.DictComp: "dict",
    ast.Set: "set",
    ast.SetComp: "set",
    ast.Tuple: "tuple",
    ast.JoinedStr: "str",
}
MADE_BY = {
    "sorted": "list",
    "tolist": "list",
    "split": "list",
    "defaultdict": "dict",
    "OrderedDict": "dict",
    "Counter": "dict",
    "frozenset": "set",
    "range": "range",
}
LIBRARIES = {"np": "array", "numpy": "array", "torch": "tensor", "th": "tensor", "pd": "frame"}
HASHED = frozenset({"dict", "set", "range"})  # `in` takes the same time whatever their length
SCANNED = frozenset({"list", "deque", "tuple"})


@dataclass(frozen=True)
class Names:
    """What was assigned to each name, and which names grow by append."""

    kinds: dict[str, frozenset[str]] = field(default_factory=dict)
    appended: frozenset[str] = frozenset()
    mentioned: frozenset[str] = frozenset()  # every name and attribute in the source

    def of(self, name: str) -> frozenset[str]:
        """Kinds of a name as written (`self.seen`); of another object's attribute, as its class sets it."""
        return self.kinds.get(name) or self.kinds.get(_as_own(name)) or frozenset()

    def is_appended(self, name: str) -> bool:
        return name in self.appended or _as_own(name) in self.appended

    def is_scanned(self, name: str) -> bool:
        """Whether it is a list or the like. Unknown counts only if something is appended to it."""
        kinds = self.of(name)
        return bool(kinds & SCANNED) and not kinds & HASHED if kinds else self.is_appended(name)


def _as_own(name: str) -> str:
    """`self.seen` for `agent.seen`."""
    return f"self.{name.rpartition('.')[2]}" if "." in name else name


def dotted(node: ast.AST) -> str:
    """`self.buffer.pop` for that expression; "?" stands for what is no plain name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    if isinstance(node, ast.Call):
        return f"{dotted(node.func)}()"
    return "?"


def names_in(trees: Iterable[ast.AST]) -> Names:
    """All names that these pieces of source assign to."""
    kinds: dict[str, set[str]] = {}
    appended, mentioned = set(), set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                mentioned.add(node.id)
            elif isinstance(node, ast.Attribute):
                mentioned.add(node.attr)
            for target, value in _assigned(node):
                if kind := _kind(value):
                    kinds.setdefault(dotted(target), set()).add(kind)
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("append", "extend")
            ):
                appended.add(dotted(node.func.value))
    known = {name: frozenset(found) for name, found in kinds.items()}
    return Names(known, frozenset(appended), frozenset(mentioned))


def _assigned(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Targets with the expression, or the annotation, that says what they are."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=False)
            else:
                yield target, node.value
    elif isinstance(node, ast.AnnAssign):
        yield node.target, node.annotation
        if node.value is not None:
            yield node.target, node.value
    elif isinstance(node, ast.arg) and node.annotation is not None:
        yield ast.Name(node.arg), node.annotation
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr


def _kind(value: ast.AST) -> str:
    if type(value) in LITERALS:
        return LITERALS[type(value)]
    if isinstance(value, ast.Constant):
        return type(value.value).__name__ if value.value is not None else ""
    if isinstance(value, ast.Subscript):  # an annotation: list[int]
        return _kind(value.value) if isinstance(value.value, ast.Name | ast.Attribute) else ""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult) and isinstance(value.left, ast.List):
        return "list"
    if isinstance(value, ast.Call):
        name = dotted(value.func)
        last = name.rpartition(".")[2]
        if last in MADE_BY:
            return MADE_BY[last]
        return LIBRARIES.get(name.partition(".")[0]) or last
    if isinstance(value, ast.Name) and value.id in ("list", "dict", "set", "deque", "tuple", "str", "List"):
        return value.id.lower()
    return ""
