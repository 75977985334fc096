"""Containers that grow, are searched, sorted or rebuilt in the loop."""

from __future__ import annotations

import ast
import re

from hotloop.analysis.advice.idioms.questions import (
    _names,
    appended_to,
    call_of,
    called_names,
    comprehensions,
    has,
    is_loop,
    is_same,
    saw_call,
)
from hotloop.analysis.advice.idioms.registry import Match, idiom
from hotloop.analysis.hot_statements import Spot
from hotloop.analysis.source_names import dotted

LEAST_TINY = 3  # statements of a function that compute with arrays of a few elements
SHORT = 1000  # elements of a window that nobody needs to keep in an array


@idiom
def growing_array(spot: Spot) -> Match | None:
    node = spot.node
    if not isinstance(node, ast.Assign | ast.AugAssign):
        return None
    call = _innermost(node.value)
    if isinstance(node, ast.Assign) and _adds_to_a_list(node):
        return _grows([dotted(target) for target in node.targets])
    if not isinstance(call, ast.Call):
        return None
    names = (
        "numpy.append",
        "numpy.concatenate",
        "numpy.vstack",
        "numpy.hstack",
        "numpy.r_",
        "numpy.delete",
        "numpy.insert",
        "numpy.roll",
        "torch.roll",
        "torch.cat",
        "torch.concat",
        "torch.vstack",
        "torch.hstack",
        "pandas.concat",
        "jnp.append",
        "jnp.concatenate",
    )
    if not any(is_same(dotted(call.func), name) for name in names):
        return None
    targets = [dotted(t) for t in (node.targets if isinstance(node, ast.Assign) else [node.target])]
    given = {dotted(inner) for argument in call.args for inner in ast.walk(argument)}
    if not any(target in given and "?" not in target for target in targets):
        return None
    return _grows(targets)


def _innermost(value: ast.expr) -> ast.expr:
    """`np.vstack(...)` of `np.vstack(...)[-n:].astype(x)`: the call that makes the array."""
    while True:
        if isinstance(value, ast.Subscript):
            value = value.value
        elif (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Attribute)
            and isinstance(value.func.value, ast.Call | ast.Subscript)
        ):
            value = value.func.value
        else:
            return value


def _adds_to_a_list(node: ast.Assign) -> bool:
    """`history = history + [x]`, `history = [*history, x]`: a copy of the whole list."""
    names = {dotted(target) for target in node.targets} - {"?"}
    value = node.value
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return isinstance(value.right, ast.List) and dotted(value.left) in names
    return isinstance(value, ast.List | ast.Tuple) and any(
        isinstance(e, ast.Starred) and dotted(e.value) in names for e in value.elts
    )


def _grows(targets: list[str]) -> Match:
    return Match(
        "growing_array",
        f"Preallocate {targets[0]} instead of growing it",
        "Each append copies everything that is already there, so it gets slower as the run goes on.",
        "Preallocate the array and write to index i, or append to a list and convert once.",
        (0.9, 0.99, 1.0),
        walks_memory=True,
    )


@idiom
def pop_from_the_front(spot: Spot) -> Match | None:
    if is_loop(spot):
        return None
    for name, call in spot.calls():
        zero = bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0
        owner = spot.names.of(name.rpartition(".")[0])
        if zero and name.endswith((".pop", ".insert")) and not owner - {"list"}:
            return Match(
                "pop_from_the_front",
                f"Use a deque or a ring for {name.rpartition('.')[0]}",
                "Removing from the front of a list moves every other element.",
                "Use collections.deque(maxlen=...), or a preallocated array with a write position.",
                (0.9, 0.99, 1.0),
                walks_memory=True,
            )
    node = spot.node
    if (isinstance(node, ast.Delete) and _deletes_the_front(spot, node)) or (
        isinstance(node, ast.Assign) and _slices_itself(node)
    ):
        return Match(
            "pop_from_the_front",
            "Use a deque or a ring instead of slicing the list",
            "Every pass copies the list to drop its first elements.",
            "Use collections.deque(maxlen=...), or a preallocated array with a write position.",
            (0.9, 0.99, 1.0),
            walks_memory=True,
        )
    return None


def _deletes_the_front(spot: Spot, node: ast.Delete) -> bool:
    """`del x[0]` or `del x[:n]` of a list."""
    for target in node.targets:
        if not isinstance(target, ast.Subscript) or spot.names.of(dotted(target.value)) - {"list"}:
            continue
        index = target.slice
        if isinstance(index, ast.Slice) and index.lower is None:
            return True
        if isinstance(index, ast.Constant) and index.value == 0:
            return True
    return False


def _slices_itself(node: ast.Assign) -> bool:
    value = node.value
    return (
        isinstance(value, ast.Subscript)
        and isinstance(value.slice, ast.Slice)
        and any(dotted(target) == dotted(value.value) for target in node.targets)
    )


@idiom
def linear_scan(spot: Spot) -> Match | None:
    """`x in some_list`, `.index(...)`, `.count(...)`; dicts and sets find elements at once."""
    if is_loop(spot):
        return None
    for inner in ast.walk(spot.node):
        if isinstance(inner, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn) for op in inner.ops):
            searched = inner.comparators[0]
            if _made_to_search(searched):
                return _searches_a_copy(searched)
            what = dotted(searched)
            if not spot.names.is_scanned(what):
                continue
            return Match(
                "linear_scan",
                f"Look up membership in a set or dict ({what})",
                "`in` on a list compares element by element, and the list grows.",
                "Keep a set (or a dict) beside the list and ask that.",
                (0.9, 0.99, 1.0),
                walks_memory=True,
            )
    for name, call in spot.calls():
        owner = name.rpartition(".")[0]
        if name.endswith((".index", ".count")) and call.args and spot.names.is_scanned(owner):
            return Match(
                "linear_scan",
                f"Look up positions in a dict ({owner})",
                "The list is searched from its start at every pass.",
                "Keep a dict from value to position.",
                (0.85, 0.98, 1.0),
                walks_memory=True,
            )
    return None


@idiom
def searching_rows(spot: Spot) -> Match | None:
    """`np.where((states == state).all(axis=1))`: every known state is compared with this one."""
    if is_loop(spot):
        return None
    finders = ("where", "argmax", "flatnonzero", "nonzero", "any", "argwhere")
    for name, call in spot.calls():
        if name.rpartition(".")[2] not in finders:
            continue
        for inner in ast.walk(call):
            if (
                isinstance(inner, ast.Call)
                and isinstance(inner.func, ast.Attribute)
                and inner.func.attr == "all"
                and isinstance(inner.func.value, ast.Compare)
                and isinstance(inner.func.value.ops[0], ast.Eq)
            ):
                return Match(
                    "searching_rows",
                    "Look up rows in a dict instead of comparing with all of them",
                    "Every pass compares one state with all the states that are known.",
                    "Keep a dict from the state (a tuple of ints, or a number from ravel_multi_index) to its "
                    "row.",
                    (0.8, 0.97, 1.0),
                    walks_memory=True,
                )
    return None


@idiom
def tree_in_python(spot: Spot) -> Match | None:
    """A sum tree for prioritised replay that calls itself for each level: `self._retrieve(left, value)`."""
    scope = spot.scope
    if is_loop(spot) or not isinstance(scope, ast.FunctionDef):
        return None
    recursive = any(name in (scope.name, f"self.{scope.name}") for name in called_names(scope))
    heap = any(
        isinstance(n, ast.BinOp)
        and isinstance(n.op, ast.Mult | ast.FloorDiv)
        and any(isinstance(side, ast.Constant) and side.value == 2 for side in (n.left, n.right))
        for n in ast.walk(scope)
    )
    if not recursive or not heap or not has(scope, ast.Subscript):
        return None
    return Match(
        "tree_in_python",
        "Walk the tree for the whole batch at once",
        "The function calls itself once for each level of the tree and each sample.",
        "Keep the tree in one numpy array and walk all samples down together, a level at a time with array "
        "expressions (so does each update of priorities on the way up), or compile it with numba.",
        (0.6, 0.88, 0.98),
        effort="hours",
        safety="rounding",
        takes="all",
    )


@idiom
def parameter_statistics(spot: Spot) -> Match | None:
    """Norms, means or histograms of every weight or gradient, one tensor after the other."""
    over: list[ast.AST] = []
    if isinstance(spot.node, ast.For):
        over = [spot.node.iter]
    elif not is_loop(spot):
        over = [g.iter for c in comprehensions(spot.node) for g in c.generators]
        over += [loop.iter for loop in spot.loops if isinstance(loop, ast.For)]
    parameters = (".parameters", ".named_parameters")
    if not any(name.endswith(parameters) for node in over for name in called_names(node)):
        return None
    measured = (".norm", ".mean", ".std", ".var", ".abs", ".max", ".min", ".item", ".median")
    changed = any(name.endswith(("_", ".copy_", ".step", ".add_histogram")) for name, _ in spot.calls())
    if changed or not any(name.endswith(measured) for name, _ in spot.calls()):
        return None
    return Match(
        "parameter_statistics",
        "Compute statistics of weights and gradients rarely, or for all at once",
        "Several small operations run for every tensor of the network, and each result is read or logged.",
        "Log them every few hundred updates. If a norm is needed every time, torch._foreach_norm takes all "
        "tensors in one call (clip_grad_norm_ returns the norm).",
        (0.7, 0.95, 1.0),
        takes="all",
        library_calls=("",),
    )


@idiom
def matrix_inverse(spot: Spot) -> Match | None:
    names = ("linalg.inv", "linalg.pinv", "torch.inverse", "numpy.linalg.inv", "numpy.linalg.pinv")
    call = call_of(spot, *names)
    if is_loop(spot) or not (call or saw_call(spot, "linalg.inv", "linalg.pinv")):
        return None
    return Match(
        "matrix_inverse",
        "Solve instead of inverting, or update the inverse",
        "A matrix is inverted from scratch at every pass.",
        "Use solve(A, b). If A grows by one observation at a time, update its inverse (Sherman-Morrison) or "
        "its Cholesky factor; keep the result while A stays the same.",
        (0.45, 0.8, 0.97),
        part=call,
        safety="rounding",
        effort="hours",
    )


@idiom
def scipy_statistics(spot: Spot) -> Match | None:
    """scipy.stats checks and broadcasts its arguments for each call."""
    if is_loop(spot) or not (
        any(name.startswith("scipy.stats") for name in spot.called[:2])
        or any(
            re.match(r"(scipy\.)?stats\.\w+(\(\))?\.(log)?(pdf|cdf|pmf|ppf|sf|rvs)$", n)
            for n, _ in spot.calls()
        )
    ):
        return None
    return Match(
        "scipy_statistics",
        "Write the density or the draw with numpy",
        "scipy.stats checks and broadcasts its arguments in Python: 50 to 100 us for each call, whatever it "
        "computes.",
        "Use the formula (exp, log, math.erf), a generator's own draws (rng.normal, clipped or drawn again "
        "for a truncated one), or one call for all values.",
        (0.5, 0.9, 0.98),
        safety="semantic",
    )


@idiom
def tiny_arrays(spot: Spot) -> Match | None:
    """numpy on vectors of two or three elements, such as the position of one car."""
    if is_loop(spot) or not spot.names.tiny:
        return None
    tiny = spot.names.tiny | _tiny_locals(spot.scope, spot.names.tiny)
    values = [v for n in ast.walk(spot.scope) if (v := _value_of(n)) is not None]
    if sum(_computes_with(value, tiny) for value in values) < LEAST_TINY:
        return None
    value = _value_of(spot.node)
    # Next to several such statements, other calls of numpy handle the same few numbers.
    calls_numpy = any(name.startswith(("np.", "numpy.")) for name, _ in spot.calls())
    if value is None or not (_computes_with(value, tiny) or calls_numpy):
        return None
    return Match(
        "tiny_arrays",
        "Use plain numbers instead of arrays of a few elements",
        "A numpy operation costs about a microsecond (np.clip and np.linalg.norm five) even for two numbers.",
        "Keep x and y as floats and use math (hypot, sqrt, min, max), or step many copies at once in one "
        "array.",
        (0.4, 0.8, 0.95),
        safety="rounding",
        effort="hours",
        takes="own",
    )


def _value_of(node: ast.AST) -> ast.expr | None:
    if isinstance(node, ast.Assign | ast.AugAssign | ast.Return | ast.Expr | ast.AnnAssign):
        return node.value
    return None


def _tiny_locals(scope: ast.AST, tiny: frozenset[str]) -> frozenset[str]:
    """Local names that are computed from tiny arrays."""
    found: set[str] = set()
    for _ in range(2):
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign) and _computes_with(node.value, tiny | found):
                reduced = isinstance(node.value, ast.Call) and dotted(node.value.func).endswith(
                    (".norm", ".dot", ".sum", ".mean", "float", "hypot", ".max", ".min")
                )
                found |= {t.id for t in node.targets if isinstance(t, ast.Name) and not reduced}
    return frozenset(found)


def _computes_with(value: ast.AST, tiny: frozenset[str]) -> bool:
    """Arithmetic, or a numpy function, with one of these arrays as a direct operand."""
    for node in ast.walk(value):
        if isinstance(node, ast.BinOp) and {dotted(node.left), dotted(node.right)} & tiny:
            return True
        if isinstance(node, ast.Call) and dotted(node.func).startswith(("np.", "numpy.")):
            listed = [e for a in node.args if isinstance(a, ast.List | ast.Tuple) for e in a.elts]
            if any(dotted(given) in tiny for given in (*node.args, *listed)):
                return True
    return False


def _made_to_search(node: ast.AST) -> bool:
    """A list that is made to be searched once: `[key(x) for x in seen]`, `seen[:t]`, `list(seen)`."""
    if isinstance(node, ast.Call):
        name = dotted(node.func)
        return name in ("list", "tuple", "sorted", "set", "frozenset") or name.endswith(
            (".tolist", ".values", ".copy")
        )
    return isinstance(node, ast.ListComp | ast.GeneratorExp) or (
        isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)
    )


def _searches_a_copy(node: ast.AST) -> Match:
    return Match(
        "linear_scan",
        "Look up membership in a set, not in a list made for each test",
        "Every test builds a list and then compares element by element, so its cost grows with the length: "
        "quadratic over an episode.",
        "Keep a set (or a dict from key to the first position) and ask that; build it once, in one pass.",
        (0.85, 0.98, 1.0),
        takes="all",
        chills=False,
    )


@idiom
def python_builtin_over_an_array(spot: Spot) -> Match | None:
    """`max(self.priorities)` of an array: Python's builtin takes it apart element by element."""
    if is_loop(spot):
        return None
    for name, call in spot.calls():
        if name not in ("max", "min", "sum", "any", "all", "sorted", "list", "map") or not call.args:
            continue
        given = call.args[-1] if name == "map" else call.args[0]
        owner = given.value if isinstance(given, ast.Subscript) else given
        kinds = spot.names.of(dotted(owner))
        if len(call.args) > 1 and name != "map":
            continue
        if kinds & {"array", "tensor"} and not kinds - {"array", "tensor"}:
            return Match(
                "python_builtin_over_an_array",
                f"Use {dotted(owner)}.{name if name in ('max', 'min', 'sum', 'any', 'all') else 'tolist'}() "
                f"instead of Python's {name}()",
                f"Python's {name}() makes an object of every element of the array.",
                "Use the array's own method, which is a hundred times as fast, or keep the value up to date "
                "as elements change.",
                (0.85, 0.98, 1.0),
                walks_memory=True,
                safety="rounding" if name == "sum" else "safe",
            )
    return None


@idiom
def sorting_each_time(spot: Spot) -> Match | None:
    call = call_of(spot, "sorted", ".sort", "numpy.argsort", "numpy.sort", "torch.sort", "torch.argsort")
    if is_loop(spot) or call is None:
        return None
    if call.args and _computed_here(spot, call.args[0]):
        if not any(isinstance(n, ast.Subscript) and n.value is call for n in ast.walk(spot.node)):
            return None  # values that are new each time have to be sorted each time
        return Match(
            "sorting_for_a_few",
            "Select the best k instead of sorting all",
            "All values are sorted, and only some of them are used.",
            "Use numpy.partition or argpartition (torch.topk, heapq.nsmallest), which do not put all values "
            "in order.",
            (0.2, 0.6, 0.95),
            part=call,
        )
    return Match(
        "sorting_each_time",
        "Keep it sorted instead of sorting each time",
        "The whole collection is sorted at every pass.",
        "Use heapq or bisect.insort, or numpy.argpartition if only the best k are needed.",
        (0.6, 0.9, 0.99),
        part=call,
        walks_memory=True,
    )


def _computed_here(spot: Spot, value: ast.AST) -> bool:
    """Whether array expressions of the same function have made the value."""
    if isinstance(value, ast.BinOp | ast.UnaryOp):
        return True
    made = [
        n.value
        for n in ast.walk(spot.scope)
        if isinstance(n, ast.Assign) and any(dotted(target) == dotted(value) for target in n.targets)
    ]
    return bool(made) and all(
        isinstance(one, ast.BinOp | ast.UnaryOp)
        or (isinstance(one, ast.Call) and dotted(one.func).startswith(("np.", "numpy.", "torch.", "?")))
        for one in made
    )


@idiom
def statistics_of_everything(spot: Spot) -> Match | None:
    call = call_of(
        spot,
        "numpy.mean",
        "numpy.std",
        "numpy.sum",
        "numpy.max",
        "numpy.var",
        "numpy.median",
        "numpy.percentile",
        "statistics.mean",
        "statistics.stdev",
        "sum",
        "numpy.histogram",
        "numpy.array",
        "numpy.asarray",
    )
    if is_loop(spot):
        return None
    call = call or _array_call_on_a_container(spot)
    if call is None or not call.args:
        return None
    argument = call.args[0]
    if "deque" in spot.names.of(dotted(argument)) and not _is_short(spot, dotted(argument)):
        return Match(
            "statistics_of_a_window",
            f"Keep the window of {dotted(argument)} in an array, or running sums",
            "A deque is turned into an array, element by element, at every pass.",
            "Keep the last values in a NumPy ring buffer and take the statistic of that, or keep running "
            "sums (mean and variance, Welford).",
            (0.7, 0.93, 0.99),
            walks_memory=True,
            safety="rounding",
        )
    # A bare name or attribute: a container that was filled over time. An expression is a computation.
    if isinstance(argument, ast.Subscript):
        grows = _entry_grows(spot, argument)
    else:
        grows = isinstance(argument, ast.Attribute | ast.Name) and _grows_with_the_run(spot, dotted(argument))
    if not grows:
        return None
    return Match(
        "statistics_of_everything",
        f"Keep a running statistic of {ast.unparse(argument)}",
        "A list that grows with the run is converted and reduced at every pass.",
        "Update a running mean (or a deque of the last 100), and compute over everything once at the end.",
        (0.85, 0.98, 1.0),
        walks_memory=True,
        safety="rounding",
    )


ARRAY_LIBRARIES = ("numpy.", "scipy.", "pandas.", "statistics.", "torch.", "sklearn.")


def _array_call_on_a_container(spot: Spot) -> ast.Call | None:
    """`savgol_filter(self.rewards, 11, 3)`, where one is added each time: any function of a library."""
    ran = spot.called[0] if spot.called else ""
    if not ran.startswith(ARRAY_LIBRARIES):
        return None
    for name, call in spot.calls():
        last = name.rpartition(".")[2]
        if not call.args or last in spot.names.functions or last != ran.rpartition(".")[2] or last in DRAWING:
            continue
        fraction = spot.fraction_in(call)
        held = dotted(call.args[0])
        if "?" in held or "()" in held or (fraction is not None and fraction < MOSTLY):
            continue
        if "deque" in spot.names.of(held):
            # Of unknown length, it may be the last few frames
            if last in ("stack", "vstack", "concatenate") and _length(spot, held) > SHORT:
                return call
        elif _one_added_each_time(spot, held):
            return call
    return None


DRAWING = ("choice", "sample", "choices", "shuffle", "permutation")


def _one_added_each_time(spot: Spot, name: str) -> bool:
    """Whether each pass appends to it once, and not in a loop of its own."""
    around = set(spot.loops)
    for node in ast.walk(spot.scope):
        if not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "append"
            and dotted(node.func.value) == name
        ):
            continue
        above, inside = spot.names.parents.get(node), False
        while above is not None and above is not spot.scope:
            inside = inside or (
                isinstance(above, ast.For | ast.While | ast.comprehension) and above not in around
            )
            above = spot.names.parents.get(above)
        return not inside
    return False


STATISTICS = ("max", "min", "sum", "mean", "any", "all", "count_nonzero")
LEAST_OF_A_TABLE = 0.08  # of training: less may be a small array
MOSTLY = 0.3  # of the statement


@idiom
def statistic_of_a_table(spot: Spot) -> Match | None:
    """`self.priorities[:n].max()` for every item that is added, which changes one element."""
    if is_loop(spot) or spot.share < LEAST_OF_A_TABLE:
        return None
    for name, call in spot.calls():
        what = name.rpartition(".")[2]
        table = _reduced_table(call) if what in STATISTICS else ""
        fraction = spot.fraction_in(call)
        if not table or fraction is None or fraction < MOSTLY or not _changes_by_elements(spot, table):
            continue
        return Match(
            "statistic_of_a_table",
            f"Keep a running {what} of {table}",
            "All elements are read again, though only a few of them have changed since the last time.",
            "Update the value where elements change; where that is not possible (a maximum that is lowered), "
            "compute it once for each batch.",
            (0.8, 0.97, 1.0),
            part=call,
            walks_memory=True,
            safety="rounding" if what in ("sum", "mean") else "semantic",
        )
    return None


def _reduced_table(call: ast.Call) -> str:
    """`self.x` of `self.x.max()`, `self.x[a:b].max()` or `np.max(self.x)`: all of an attribute; else ""."""
    function = call.func
    if not isinstance(function, ast.Attribute) or call.keywords:
        return ""
    is_module = isinstance(function.value, ast.Name) and function.value.id in ("np", "numpy", "torch", "th")
    if len(call.args) != int(is_module):
        return ""  # along an axis
    table = call.args[0] if is_module else function.value
    if isinstance(table, ast.Subscript) and isinstance(table.slice, ast.Slice):
        table = table.value
    return dotted(table) if isinstance(table, ast.Attribute) else ""


def _changes_by_elements(spot: Spot, table: str) -> bool:
    """Whether some recorded function assigns to elements of the table."""
    return any(
        isinstance(n, ast.Subscript)
        and not isinstance(n.ctx, ast.Load)
        and not isinstance(n.slice, ast.Slice)
        and dotted(n.value) == table
        for tree in spot.names.trees
        for n in ast.walk(tree)
    )


def _is_short(spot: Spot, name: str) -> bool:
    """Whether the source makes it as a deque of a few elements: `recent = deque(maxlen=100)`."""
    return 0 < _length(spot, name) <= SHORT


def _length(spot: Spot, name: str) -> float:
    """The most elements that a deque holds; 0 if the source does not say."""
    attribute = f"self.{name.rpartition('.')[2]}" if "." in name else name
    for tree in (spot.scope, *spot.names.trees):
        for node in ast.walk(tree):
            if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Call):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if not any(dotted(target) in (name, attribute) for target in targets):
                continue
            given = [k.value for k in node.value.keywords if k.arg == "maxlen"] or node.value.args[1:2]
            if given:
                return _number(spot, given[0]) or 0
    return 0


def _number(spot: Spot, node: ast.expr) -> float | None:
    """The number that an expression is, as far as assignments and defaults of arguments say."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int) else None
    if not isinstance(node, ast.Name | ast.Attribute):
        return None
    last = dotted(node).rpartition(".")[2]
    found: list[float] = []
    for inner in (n for tree in spot.names.trees for n in ast.walk(tree)):
        values: list[ast.expr] = []
        if isinstance(inner, ast.Assign | ast.AnnAssign) and inner.value is not None:
            targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
            values = [inner.value] if any(dotted(t).rpartition(".")[2] == last for t in targets) else []
        elif isinstance(inner, ast.arguments):
            with_default = inner.args[len(inner.args) - len(inner.defaults) :]
            values = [d for a, d in zip(with_default, inner.defaults, strict=True) if a.arg == last]
            values += [
                d for a, d in zip(inner.kwonlyargs, inner.kw_defaults, strict=True) if d and a.arg == last
            ]
        elif isinstance(inner, ast.keyword) and inner.arg == last:
            values = [inner.value]
        found += [v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, int)]
    return max(found, default=None)


def _entry_grows(spot: Spot, entry: ast.Subscript) -> bool:
    """Whether a list in a dict only grows: `self.times[agent] += [t]`, and nobody empties one of them."""
    name = dotted(entry.value)
    if "?" in name or isinstance(entry.slice, ast.Slice):
        return False
    turning = {
        name for loop in spot.loops if isinstance(loop, ast.For) for name in _names(loop.target, ast.Store)
    }
    if turning & _names(entry.slice, ast.Load):
        return False  # another list at every pass

    def is_entry(node: ast.AST) -> bool:
        return isinstance(node, ast.Subscript) and dotted(node.value) == name

    grows = False
    for node in (node for tree in spot.names.trees for node in ast.walk(tree)):
        if isinstance(node, ast.AugAssign) and is_entry(node.target):
            grows = grows or isinstance(node.value, ast.List)
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_entry(node.func.value)
        ):
            if node.func.attr in ("clear", "pop", "popleft"):
                return False
            grows = grows or node.func.attr in ("append", "extend")
        elif isinstance(node, ast.Assign | ast.Delete) and any(is_entry(one) for one in node.targets):
            return False
    return grows and "deque" not in spot.names.of(name) and not _made_again(spot, name)


def _made_again(spot: Spot, name: str) -> bool:
    """Whether a container is assigned in a loop or, as an attribute, outside of constructors."""
    places: list[ast.AST] = []
    for node in (node for tree in spot.names.trees for node in ast.walk(tree)):
        is_function = isinstance(node, ast.FunctionDef) and "." in name and node.name != "__init__"
        if is_function or isinstance(node, ast.For | ast.While):
            places.append(node)
    return any(
        isinstance(inner, ast.Assign) and any(dotted(target) == name for target in inner.targets)
        for place in places
        for inner in ast.walk(place)
    )


def _grows_with_the_run(spot: Spot, name: str) -> bool:
    """Whether it is appended to, and not emptied in the same loop (without one, in the same function)."""
    appended = appended_to(spot, name) or ("." in name and spot.names.is_appended(name))
    if not appended or "deque" in spot.names.of(name):
        return False
    around: ast.AST = spot.loops[0] if spot.loops else spot.scope
    return not any(
        isinstance(inner, ast.Assign) and any(dotted(target) == name for target in inner.targets)
        for inner in ast.walk(around)
    ) and f"{name}.clear" not in called_names(around)
