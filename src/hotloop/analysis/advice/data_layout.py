"""Data that are larger than what is used of them: wide numbers, nearly empty tables, one-hot rows."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotloop.analysis.advice.idioms import IDIOMS, Match, idiom
from hotloop.analysis.hot_statements import LOOPS, Spot
from hotloop.analysis.source_names import dotted

ALLOCATORS = frozenset({"zeros", "empty", "ones", "full"})
DOUBLE = frozenset({"float", "np.float64", "numpy.float64", "torch.float64", "torch.double", "np.double"})
TABLE_SHARE = 0.15  # of training, for one update of a whole table: small tables take less than a step


def _stored(spot: Spot) -> Iterator[tuple[str, ast.expr]]:
    """What the script assigns, with the names (`self.obs`) that it is assigned to."""
    for tree in spot.names.trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                        pairs = zip(target.elts, node.value.elts, strict=False)
                        yield from ((dotted(one), value) for one, value in pairs)
                    else:
                        yield dotted(target), node.value


def _is_double(value: ast.AST) -> bool:
    """`np.zeros((n, 4))`: without a dtype numpy takes float64."""
    if not isinstance(value, ast.Call):
        return False
    module, _, last = dotted(value.func).rpartition(".")
    if last not in ALLOCATORS or module not in ("np", "numpy", "torch", "th"):
        return False
    given = [dotted(k.value) for k in value.keywords if k.arg == "dtype"]
    place = 2 if last == "full" else 1
    if not given and len(value.args) > place:
        given = [dotted(value.args[place])]
    return given[0] in DOUBLE if given else module in ("np", "numpy")


def _own(name: str) -> str:
    return f"self.{name.rpartition('.')[2]}" if "." in name else name


@idiom
def wide_storage(spot: Spot) -> Match | None:
    """A memory of float64 numbers from which batches are converted to float32."""
    node = spot.node
    if isinstance(node, LOOPS) or not {"float32", "FloatTensor", "float"} & spot.names.mentioned:
        return None
    if not {"torch", "th", "jnp"} & spot.names.mentioned:
        return None
    doubles = {name for name, value in _stored(spot) if _is_double(value)}
    doubles -= {name for name, value in _stored(spot) if not _is_double(value)}
    held = [
        n
        for n in ast.walk(node)
        if isinstance(n, ast.Subscript)
        and not isinstance(n.slice, ast.Constant | ast.Slice)
        and _own(dotted(n.value)) in doubles
    ]
    if not held or not any(isinstance(n.ctx, ast.Load) for n in held) or not _converts(spot, node):
        return None
    names = sorted({dotted(n.value) for n in held})
    pixels = "uint8" in spot.names.mentioned and any(
        isinstance(n, ast.Constant) and n.value in (255, 255.0, 256, 256.0)
        for tree in spot.names.trees
        for n in ast.walk(tree)
    )
    wanted = "uint8" if pixels else "float32"
    return Match(
        "wide_storage",
        f"Store {', '.join(names[:3])} as {wanted}, not as float64",
        f"np.zeros makes float64: {'eight times' if pixels else 'twice'} the memory of {wanted} to write, to "
        "gather and to convert for every batch.",
        f"Give the arrays dtype=np.{wanted}; the network gets the same float32 numbers"
        f"{' (uint8 holds pixels exactly)' if pixels else ' if that is what was put in'}.",
        (0.6, 0.88, 0.96) if pixels else (0.3, 0.55, 0.75),
        library_calls=("torch.",),
        walks_memory=True,
    )


def _converts(spot: Spot, node: ast.AST) -> bool:
    """Whether what is read becomes float32 there, or in the same function."""
    for inner in (*ast.walk(node), *ast.walk(spot.scope)):
        if isinstance(inner, ast.Call):
            last = dotted(inner.func).rpartition(".")[2]
            if last in ("float", "FloatTensor", "Tensor") and dotted(inner.func) != "float":
                return True
        if isinstance(inner, ast.Attribute) and inner.attr == "float32":
            return True
    return False


CONVERTS = frozenset({"list", "tuple", "np.array", "numpy.array", "np.asarray", "sorted"})


def list_to_draw_from(spot: Spot) -> Match | None:
    """`random.choice(list(model.keys()))`: a list of everything, to take one or a few of it."""
    if isinstance(spot.node, LOOPS):
        return None
    for name, call in spot.calls():
        last = name.rpartition(".")[2]
        if last not in ("choice", "choices", "sample", "randrange") or not call.args:
            continue
        made = call.args[0]
        if not isinstance(made, ast.Call) or dotted(made.func) not in CONVERTS or not made.args:
            continue
        held = made.args[0]
        keys = isinstance(held, ast.Call) and dotted(held.func).endswith((".keys", ".values", ".items"))
        what = (
            dotted(held.func.value)
            if keys and isinstance(held, ast.Call) and isinstance(held.func, ast.Attribute)
            else dotted(held)
        )
        if "?" in what or "()" in what or what in ("range", "zip"):
            continue
        return Match(
            "list_to_draw_from",
            f"Keep a list of {what} beside it, do not build one to draw from it",
            f"Every draw copies all of {what} into a new list, to take one or a few items of it.",
            "Append to a list where items are added (in the same order), and draw from that; for a deque, "
            "use a list with a write position.",
            (0.6, 0.9, 0.98),
            walks_memory=True,
        )
    return None


DRAWN = frozenset(
    {"normal", "uniform", "standard_normal", "random", "integers", "randint", "randn", "rand", "gauss"}
)


def draws_one_by_one(spot: Spot) -> Match | None:
    """`[rng.normal(0, s) for _ in range(n)]`: numpy draws n numbers in one call."""
    for inner in ast.walk(spot.node):
        if not isinstance(inner, ast.ListComp | ast.GeneratorExp) or len(inner.generators) != 1:
            continue
        calls = [n for n in ast.walk(inner.elt) if isinstance(n, ast.Call)]
        counts = inner.generators[0].iter
        if len(calls) != 1 or not (isinstance(counts, ast.Call) and dotted(counts.func) == "range"):
            continue
        owner, _, last = dotted(calls[0].func).rpartition(".")
        above = spot.names.parents.get(inner)
        wrapped = isinstance(above, ast.Call) and dotted(above.func) in ("np.array", "np.asarray")
        numpy = (
            owner in ("np.random", "numpy.random")
            or (owner == "random" and wrapped)
            or bool(spot.names.of(owner) & {"default_rng", "array", "RandomState"})
        )
        sized = len(calls[0].args) > 2 or any(k.arg == "size" for k in calls[0].keywords)
        if last not in DRAWN or not numpy or sized or inner.generators[0].ifs:
            continue
        return Match(
            "draws_one_by_one",
            f"Draw all numbers with one call of {owner}.{last} (size=n)",
            "Each call of numpy for a single number costs as much as one for a hundred.",
            "Pass size=n to numpy; it draws the same numbers in the same order (normal, uniform, random).",
            (0.5, 0.88, 0.97),
            safety="semantic" if owner == "random" else "safe",
        )
    return None


IDIOMS.insert(0, draws_one_by_one)
IDIOMS.insert(0, list_to_draw_from)  # before what is known about drawing itself


@idiom
def whole_tables(spot: Spot) -> Match | None:
    """`w += alpha * delta * e`, with traces `e` that are zero nearly everywhere."""
    node = spot.node
    if not isinstance(node, ast.AugAssign) or not isinstance(node.op, ast.Add | ast.Mult | ast.Sub):
        return None
    target = dotted(node.target)
    if "?" in target or spot.share < TABLE_SHARE:
        return None
    used = {dotted(n) for n in ast.walk(node.value) if isinstance(n, ast.Attribute | ast.Name)}
    traces = _traces(spot)
    table = target if isinstance(node.op, ast.Mult) and target in traces else ""
    if not table:
        table = next((name for name in sorted(used & traces) if name != target), "")
    if not table:
        return None
    return Match(
        "whole_tables",
        f"Update only the entries of {table} that are not zero",
        f"Every step reads and writes all entries of {table} (and of what is updated with it), though each "
        "step sets only a few of them and the others are zero, or nearly.",
        "Keep the indices of the entries that were set (in this episode, or until they have decayed) and "
        "update those alone: w[index] += alpha * delta * e[index].",
        (0.3, 0.75, 0.95),
        walks_memory=True,
        safety="rounding",
    )


def _traces(spot: Spot) -> set[str]:
    """Arrays of zeros that get single entries set, and are multiplied as a whole."""
    zeros = {
        name
        for name, value in _stored(spot)
        if isinstance(value, ast.Call) and dotted(value.func).rpartition(".")[2] in ("zeros", "zeros_like")
    }
    entries, scaled = set(), set()
    for tree in spot.names.trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                if not isinstance(node.slice, ast.Slice):
                    entries.add(dotted(node.value))
            elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult):
                scaled.add(dotted(node.target))
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
                given = {dotted(n) for n in ast.walk(node.value)}
                scaled |= {dotted(t) for t in node.targets} & given
    return zeros & entries & scaled - {"?"}


@idiom
def reduced_at_every_change(spot: Spot) -> Match | None:
    """`self.priorities.max()` in the function that sets one priority: all of them are read for one change."""
    scope = spot.scope
    if isinstance(spot.node, LOOPS) or not isinstance(scope, ast.FunctionDef):
        return None
    arrays = {
        name
        for name, value in _stored(spot)
        if isinstance(value, ast.Call) and dotted(value.func).rpartition(".")[2] in ALLOCATORS
    }
    lists = {name for name in spot.names.appended if name.startswith("self.")}
    changed = {
        dotted(n.value)
        for n in ast.walk(scope)
        if isinstance(n, ast.Subscript)
        and isinstance(n.ctx, ast.Store)
        and not isinstance(n.slice, ast.Slice)
    }
    changed |= {
        dotted(n.func.value)
        for n in ast.walk(scope)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "append"
    }
    for name, call in spot.calls():
        owner, _, last = name.rpartition(".")
        if last not in ("max", "min", "sum", "argmax", "argmin"):
            continue
        held: ast.AST = call.args[0] if call.args and owner in ("", "np", "numpy") else call.func
        if isinstance(held, ast.Attribute) and held is call.func:
            held = held.value
        while isinstance(held, ast.Subscript) and isinstance(held.slice, ast.Slice):
            held = held.value
        what = dotted(held)
        if what.startswith("self.") and what in changed and what in (arrays if owner else arrays | lists):
            return Match(
                "reduced_at_every_change",
                f"Keep the {last} of {what} up to date, do not compute it from all entries",
                f"`{scope.name}` changes one entry of {what} and reads all of them.",
                "Keep the number and update it with each entry that changes (for a maximum that may fall, a "
                "heap or a tree of maxima).",
                (0.7, 0.95, 1.0),
                walks_memory=True,
                safety="rounding",
            )
    return None


@idiom
def one_hot_products(spot: Spot) -> Match | None:
    """`np.eye(n)[state] @ w`: a row of a table, found by multiplying with zeros."""
    if isinstance(spot.node, LOOPS):
        return None
    hot = _one_hot_names(spot.scope)
    for inner in ast.walk(spot.node):
        product = isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.MatMult)
        if product and isinstance(inner, ast.BinOp) and {dotted(inner.left), dotted(inner.right)} & hot:
            return Match(
                "one_hot_products",
                "Index the table instead of multiplying it with a one-hot vector",
                "The product reads the whole table to take one row of it: all other entries are zero.",
                "Take w[state] (a row) or w[:, state] (a column).",
                (0.5, 0.9, 0.99),
                walks_memory=True,
            )
        if not isinstance(inner, ast.Subscript) or not isinstance(inner.ctx, ast.Load):
            continue
        made = inner.value
        if (
            isinstance(made, ast.Call)
            and dotted(made.func).rpartition(".")[2] in ("eye", "identity")
            and not isinstance(inner.slice, ast.Slice)
        ):
            return Match(
                "one_hot_products",
                "Index the table instead of building an identity matrix",
                "A whole identity matrix is built at every pass to take one row of it.",
                "Take w[state] instead of a product with a one-hot row; where a one-hot row is needed, build "
                "the matrix once, or set one entry of np.zeros(n).",
                (0.5, 0.85, 0.98),
                walks_memory=True,
            )
    return None


def _one_hot_names(scope: ast.AST) -> set[str]:
    """`v` of `v = np.zeros(n); v[state] = 1`, with no other store."""
    zeros: set[str] = set()
    stores: dict[str, list[bool]] = {}
    for node in ast.walk(scope):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Name) and isinstance(node.value, ast.Call):
                if dotted(node.value.func) in ("np.zeros", "numpy.zeros", "torch.zeros"):
                    zeros.add(target.id)
            elif isinstance(target, ast.Subscript) and not isinstance(target.slice, ast.Slice | ast.Tuple):
                one = isinstance(node.value, ast.Constant) and node.value.value == 1
                stores.setdefault(dotted(target.value), []).append(one)
    return {name for name in zeros if stores.get(name) == [True]}
