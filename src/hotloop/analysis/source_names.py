"""What the names in a script stand for, as far as its assignments show: lists, dicts, arrays, writers.

A hot statement says `if key in self.seen:`; whether that is slow depends on what `self.seen` is. The source
of the script, which the capture keeps, has `self.seen = []` somewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

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
    # Attributes of self that only the constructor sets, and whose items nobody changes.
    set_once: frozenset[str] = frozenset()
    # By plain name.
    functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)
    tiny: frozenset[str] = frozenset()  # attributes of self that are arrays of a few numbers
    trees: tuple[ast.AST, ...] = ()  # the pieces of source themselves

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """What each node of the source is part of."""
        return {
            child: node
            for tree in self.trees
            for node in ast.walk(tree)
            for child in ast.iter_child_nodes(node)
        }

    @cached_property
    def definitions(self) -> dict[str, tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]]:
        """All functions and methods by their plain names: several classes may have a `step`."""
        found: dict[str, dict[int, ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        for tree in self.trees:
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    found.setdefault(node.name, {}).setdefault(node.lineno, node)
        return {name: tuple(by_line.values()) for name, by_line in found.items()}

    @cached_property
    def trained(self) -> frozenset[str]:
        """Parameters and other tensors that an optimizer may change, as written and as `self.x`."""
        found: set[str] = set()
        for tree in self.trees:
            for node in ast.walk(tree):
                found |= {dotted(target) for target, value in _assigned(node) if _wants_gradients(value)}
                if isinstance(node, ast.Call) and dotted(node.func).endswith(".requires_grad_"):
                    found.add(dotted(node.func).removesuffix(".requires_grad_"))
        return frozenset(found | {_as_own(name) for name in found})

    def calls_of(self, function: str) -> list[ast.Call]:
        """Calls of a function or method by its plain name."""
        return [
            node
            for tree in self.trees
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] == function
        ]

    def of(self, name: str) -> frozenset[str]:
        """Kinds of a name as written (`self.seen`); of another object's attribute, as its class sets it."""
        return self.kinds.get(name) or self.kinds.get(_as_own(name)) or frozenset()

    def is_appended(self, name: str) -> bool:
        return name in self.appended or _as_own(name) in self.appended

    @property
    def made(self) -> frozenset[str]:
        """All kinds that some name has: classes whose instances the source makes."""
        return frozenset[str]().union(*self.kinds.values())

    def is_set_once(self, name: str) -> bool:
        """Whether only constructors set it: `self.x`; of `self.x.y`, what y is must be as well.

        `self._parent` may stay the same node while its `_n_visits` counts. Settings and shapes do not change.
        """
        first, *parts = name.split(".")[1:] or [""]
        own = f"self.{first}"
        if own not in self.set_once or own in self.trained or not name.startswith("self."):
            return False
        return first.strip("_").lower() in SETTINGS or all(part in OF_ARRAYS for part in parts)

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
    trees = list(trees)
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
    functions = {
        node.name: node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    once = frozenset(_set_once(trees) - appended)
    return Names(
        known, frozenset(appended), frozenset(mentioned), once, functions, _tiny(trees), tuple(trees)
    )


TRAINED = frozenset({"Parameter", "ParameterList", "ParameterDict", "Embedding", "requires_grad_"})
# Attributes that hold settings, and attributes of arrays and spaces that stay as they are
SETTINGS = frozenset(
    {"args", "arguments", "config", "cfg", "conf", "opt", "opts", "options", "settings", "hparams", "params"}
    | {"hyperparameters", "hyperparams", "spec", "flags", "constants"}
)
OF_ARRAYS = frozenset(
    {
        "shape",
        "size",
        "ndim",
        "dtype",
        "device",
        "T",
        "real",
        "imag",
        "itemsize",
        "nbytes",
        "n",
        "low",
        "high",
    }
)
FEW = 4  # elements
FILLED = ("zeros", "ones", "empty", "full", "randn", "rand", "standard_normal")


def _tiny(trees: Iterable[ast.AST]) -> frozenset[str]:
    """`self.x` that is only made as an array of a few numbers: `np.zeros(2)`, `np.array([x, y])`."""
    tiny: set[str] = set()
    large: set[str] = set()
    for tree in trees:
        for node in ast.walk(tree):
            for target, value in _assigned(node):
                if not isinstance(target, ast.Attribute) or not isinstance(value, ast.Call):
                    continue
                size = _elements_made(value)
                if size is not None:
                    (tiny if 1 < size <= FEW else large).add(dotted(target))
    return frozenset(tiny - large)


def _elements_made(call: ast.Call) -> float | None:
    """Number of elements of the array that a call makes; inf if it is not written there, None if none is."""
    last = dotted(call.func).rpartition(".")[2]
    given = [k.value for k in call.keywords if k.arg in ("size", "shape")]
    if last in ("array", "asarray", "float32", "float64") and call.args:
        literal = call.args[0]
        if not isinstance(literal, ast.List | ast.Tuple):
            return float("inf")
        nested = any(isinstance(e, ast.List | ast.Tuple | ast.Starred | ast.ListComp) for e in literal.elts)
        return float("inf") if nested else len(literal.elts)
    if last in FILLED:
        given = given or list(call.args[:1])
    elif last in ("uniform", "normal", "integers", "randint"):
        given = given or list(call.args[2:3])
    else:
        return None
    if not given:
        return None
    size = given[0].elts[0] if isinstance(given[0], ast.Tuple) and len(given[0].elts) == 1 else given[0]
    return (
        float(size.value) if isinstance(size, ast.Constant) and isinstance(size.value, int) else float("inf")
    )


CONSTRUCTORS = ("__init__", "__post_init__")


def _wants_gradients(value: ast.AST) -> bool:
    """`nn.Parameter(...)`, `torch.zeros(3, requires_grad=True)`, `torch.zeros(3).requires_grad_()`."""
    for call in (n for n in ast.walk(value) if isinstance(n, ast.Call)):
        if dotted(call.func).rpartition(".")[2] in TRAINED:
            return True
        if any(
            k.arg == "requires_grad" and not (isinstance(k.value, ast.Constant) and k.value.value is False)
            for k in call.keywords
        ):
            return True
    return False


def _changed_in_place(node: ast.AST) -> set[str]:
    """`self.mean` of `self.mean.copy_(x)` and of `self.mean.data.lerp_(x, 0.1)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return set()
    method = node.func.attr
    if not method.endswith("_") or method.endswith("__") or method == "requires_grad_":
        return set()
    return {".".join(dotted(node.func.value).split(".")[:2])}


def _buffer(node: ast.AST) -> str:
    """`adj` of `self.register_buffer("adj", ...)`."""
    if not isinstance(node, ast.Call) or dotted(node.func) != "self.register_buffer" or not node.args:
        return ""
    name = node.args[0]
    return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else ""


def _set_once(trees: Iterable[ast.AST]) -> set[str]:
    """`self.x` that is assigned in constructors alone, and not changed in place elsewhere."""
    made, changed = set(), set()
    for tree in trees:
        functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        for function in functions:
            for node in ast.walk(function):
                if function.name in CONSTRUCTORS and (buffer := _buffer(node)):
                    made.add(f"self.{buffer}")
                changed |= _changed_in_place(node)
                if not isinstance(node, ast.Attribute | ast.Subscript) or isinstance(node.ctx, ast.Load):
                    continue
                plain = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
                name = dotted(node if plain else node.value)
                own = function.name in CONSTRUCTORS and name.startswith("self.") and name.count(".") == 1
                if plain and own:
                    made.add(name)
                elif not own:  # `self.b[3] = 6.0` in a constructor is part of making it
                    changed.add(".".join(name.split(".")[:2]))
        for body in (n.body for n in ast.walk(tree) if isinstance(n, ast.ClassDef)):
            made |= {f"self.{dotted(t)}" for n in body if isinstance(n, ast.Assign) for t in n.targets}
    # `env.x = ...` from outside changes `self.x` as well.
    changed |= {_as_own(name) for name in changed}
    return made - changed


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
        if ".nn." in name:  # torch.nn.LSTM(...)
            return last
        return LIBRARIES.get(name.partition(".")[0]) or last
    if isinstance(value, ast.Name) and value.id in ("list", "dict", "set", "deque", "tuple", "str", "List"):
        return value.id.lower()
    return ""
