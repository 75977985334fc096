"""Results that nobody reads: entries of an info dict, attributes, whole copies to take a few items from."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotloop.analysis.advice.idioms import Match, idiom
from hotloop.analysis.advice.side_effects import purity_of
from hotloop.analysis.advice.statements import FUNCTIONS
from hotloop.analysis.hot_statements import LOOPS, Spot
from hotloop.analysis.source_names import Names, dotted

# Keys that libraries read
KNOWN = frozenset(
    {"episode", "terminal_observation", "final_observation", "final_info", "action_mask", "is_success"}
    | {"TimeLimit.truncated", "_episode", "r", "l", "t", "final_obs", "lives", "success"}
)
COPIES = frozenset({"copy", "clone"})


@idiom
def never_read(spot: Spot) -> Match | None:
    """`info["spectrum"] = np.fft.rfft(...)`, and nothing asks for that entry."""
    if isinstance(spot.node, LOOPS) or not isinstance(spot.node, ast.stmt) or spot.trains:
        return None
    if not _is_a_program(spot.names):
        return None  # a module that others import: they may read it
    for name, value in _kept_for_nobody(spot):
        computes = any(isinstance(n, ast.Call) for n in ast.walk(value))
        quiet = not purity_of(spot).has_effects(value)
        if computes and (quiet or (not spot.calls_networks and _draws(value))):
            return Match(
                "never_read",
                f"Do not compute {name}: nothing in the script reads it",
                f"Every pass computes {name}, and no other line of the script asks for it.",
                "Leave it out, or compute it only when it is asked for (a method that the one who needs it "
                "calls, every hundredth step).",
                (0.5, 0.95, 1.0),
                takes="all",
                chills=False,
            )
    return None


def _is_a_program(names: Names) -> bool:
    """Whether the file runs something itself: `main()`, `if __name__ == "__main__"`, a loop."""
    for tree in names.trees:
        for node in tree.body if isinstance(tree, ast.Module) else ():
            if isinstance(node, LOOPS) or (isinstance(node, ast.If) and "__name__" in ast.dump(node.test)):
                return True
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                called = {dotted(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)}
                if called & names.functions.keys():
                    return True
    return False


def _draws(value: ast.AST) -> bool:
    """Whether it only draws a picture, by its name: `self.render()`, `self._draw()`."""
    calls = [dotted(n.func).rpartition(".")[2] for n in ast.walk(value) if isinstance(n, ast.Call)]
    return any(call.lstrip("_").startswith(("draw", "render", "frame", "picture", "image")) for call in calls)


def _kept_for_nobody(spot: Spot) -> Iterator[tuple[str, ast.expr]]:
    """Values that go into a dict entry or an attribute that is never read, with its name."""
    node = spot.node
    for inner in ast.walk(node):
        if isinstance(inner, ast.Dict):
            for key, value in zip(inner.keys, inner.values, strict=True):
                if _is_unread_key(spot.names, key):
                    assert isinstance(key, ast.Constant)
                    yield f"the entry {key.value!r}", value
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return
    target = node.targets[0]
    if isinstance(target, ast.Subscript) and _is_unread_key(spot.names, target.slice):
        assert isinstance(target.slice, ast.Constant)
        yield f"the entry {target.slice.value!r}", node.value
    own = isinstance(target, ast.Attribute) and dotted(target).startswith("self.")
    if own and not _attribute_is_read(spot.names, dotted(target).rpartition(".")[2]):
        yield dotted(target), node.value
    if isinstance(target, ast.Name) and isinstance(spot.scope, FUNCTIONS):
        readers = [
            n
            for n in ast.walk(spot.scope)
            if isinstance(n, ast.Name) and n.id == target.id and isinstance(n.ctx, ast.Load)
        ]
        keys = [_key_of(spot.names, reader) for reader in readers]
        if readers and all(key is not None and _is_unread_key(spot.names, key) for key in keys):
            yield f"`{target.id}` for {', '.join(sorted({repr(k.value) for k in keys if k}))}", node.value


def _key_of(names: Names, reader: ast.AST) -> ast.Constant | None:
    """The key under which a name is put into a dict, if that is all that is done with it there."""
    below, above = reader, names.parents.get(reader)
    if isinstance(above, ast.Call) and dotted(above.func).endswith((".copy", ".tolist", "float", "list")):
        below, above = above, names.parents.get(above)
    if isinstance(above, ast.Dict):
        for key, value in zip(above.keys, above.values, strict=True):
            if value is below and isinstance(key, ast.Constant):
                return key
    if isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Subscript):
        key = above.targets[0].slice
        return key if isinstance(key, ast.Constant) else None
    return None


def _is_unread_key(names: Names, key: ast.AST | None) -> bool:
    """A text that the script uses only to store something, in dicts of which it reads single entries."""
    if not isinstance(key, ast.Constant) or not isinstance(key.value, str) or key.value in KNOWN:
        return False
    if not any("info" in n or n in ("stats", "extras", "extra", "meta") for n in names.mentioned):
        return False
    for tree in names.trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node.value == key.value and not names_stored(names, node):
                return False
            loaded = isinstance(node, ast.Name) and "info" in node.id and isinstance(node.ctx, ast.Load)
            if loaded and not _reads_an_entry(names, node):
                return False
    return True


def names_stored(names: Names, key: ast.AST) -> bool:
    """Whether a text is a key that is written: `{key: x}`, `info[key] = x`."""
    above = names.parents.get(key)
    if isinstance(above, ast.Dict):
        return key in above.keys
    return isinstance(above, ast.Subscript) and isinstance(above.ctx, ast.Store)


def _reads_an_entry(names: Names, name: ast.AST) -> bool:
    """`info["x"]`, `info.get("x")`, or `info` handed on by a `return`: nobody looks at all of it."""
    above = names.parents.get(name)
    if isinstance(above, ast.Subscript):
        return True
    if isinstance(above, ast.Attribute):
        return above.attr in ("get", "update", "setdefault", "pop")
    while isinstance(above, ast.Tuple):
        above = names.parents.get(above)
    return isinstance(above, ast.Return)


def _attribute_is_read(names: Names, attribute: str) -> bool:
    for tree in names.trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == attribute and isinstance(node.ctx, ast.Load):
                return True
            if isinstance(node, ast.Constant) and node.value == attribute:
                return True  # getattr, get_attr of vector envs, __slots__
            if isinstance(node, ast.ClassDef) and any(
                dotted(base).rpartition(".")[2] in ("BaseCallback", "LightningModule", "Module", "Callback")
                for base in node.bases
            ):
                return True  # a library may read it
    return False


@idiom
def copied_to_read(spot: Spot) -> Match | None:
    """`data = self.memory.copy()`, and then only `data[rows]`."""
    node = spot.node
    value = getattr(node, "value", None)
    if not isinstance(node, ast.Assign | ast.Return) or not isinstance(value, ast.Call):
        return None
    if not isinstance(value.func, ast.Attribute) or value.func.attr not in COPIES or value.args:
        return None
    what = dotted(value.func.value)
    if "." not in what or "?" in what or "(" in what:
        return None
    if isinstance(node, ast.Assign):
        targets = [t for t in node.targets if isinstance(t, ast.Name)]
        only_read = bool(targets) and all(_only_indexed(spot.names, spot.scope, t.id) for t in targets)
    else:
        only_read = isinstance(spot.scope, FUNCTIONS) and _callers_only_index(spot.names, spot.scope.name)
    if not only_read:
        return None
    return Match(
        "copied_to_read",
        f"Do not copy {what} as a whole to read a few items of it",
        f"Every pass copies all of {what}, and then only takes items from the copy.",
        "Index the original: an index array makes a copy of the items that it takes.",
        (0.8, 0.97, 1.0),
        walks_memory=True,
    )


def _only_indexed(names: Names, scope: ast.AST, name: str) -> bool:
    readers = [
        n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
    ]
    indexed = [names.parents.get(n) for n in readers]
    return bool(readers) and all(
        (isinstance(above, ast.Subscript) and isinstance(above.ctx, ast.Load) and above.value in readers)
        or (isinstance(above, ast.Call) and dotted(above.func) == "len")
        for above in indexed
    )


def _callers_only_index(names: Names, function: str) -> bool:
    """Whether each call of it is indexed at once, or kept under a name that is only indexed."""
    calls = names.calls_of(function)
    for call in calls:
        above = names.parents.get(call)
        if isinstance(above, ast.Subscript) and above.value is call:
            continue
        if not isinstance(above, ast.Assign) or not isinstance(above.targets[0], ast.Name):
            return False
        around: ast.AST | None = above
        while around is not None and not isinstance(around, FUNCTIONS):
            around = names.parents.get(around)
        if around is None or not _only_indexed(names, around, above.targets[0].id):
            return False
    return bool(calls)
