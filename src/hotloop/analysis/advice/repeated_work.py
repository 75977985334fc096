"""Work that is done again although nothing changed, or whose result is not used: found by data flow.

A statement of a loop is needed as often as its result is read there. What is read only after the loop is
needed once; what depends on nothing that the loop changes, too; what only a logger reads is needed when it
logs. The source shows the data flow; what it costs was sampled. Only functions without side effects count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from hotloop.analysis.advice.idioms import Match
from hotloop.analysis.advice.idioms.questions import LEAST_FRACTION
from hotloop.analysis.advice.side_effects import (
    DRAWS,
    EFFECTS,
    LOGGING,
    MODULES,
    NETWORKS,
    PURE_LIBRARIES,
    PURE_METHODS,
    Purity,
    names_mutated,
    purity_of,
    with_views,
)
from hotloop.analysis.advice.statements import (
    head_expressions,
    loop_targets,
    names_assigned,
    names_loaded,
    names_stored,
    simple_statements,
)
from hotloop.analysis.hot_statements import LOOPS, Loop, Spot
from hotloop.analysis.source_names import dotted

MUCH_ELSE = 3  # further calls, operations and items of a statement, from which on they take time as well


def repeated_work(spot: Spot) -> Match | None:
    """The first of these that the statement shows."""
    if isinstance(spot.node, LOOPS) or not isinstance(spot.node, ast.stmt):
        return None
    return (
        read_after_the_loop(spot)
        or same_in_a_comprehension(spot)
        or same_every_time(spot)
        or only_logged(spot)
    )


# -- read only after the loop ----------------------------------------------------------------------------


def read_after_the_loop(spot: Spot) -> Match | None:
    """Every pass computes a value, and only that of the last pass is used."""
    loop = _statement_loop(spot)
    if loop is None or not isinstance(spot.node, ast.Assign | ast.AnnAssign):
        return None
    unread = _unread(loop, purity_of(spot))
    if spot.node not in unread:
        return None
    names = sorted(names_assigned(spot.node) - {"_"})
    if set(names) & _read_by_inner_functions(spot.scope):
        return None
    if not names or not _makes_calls(spot.node):
        return None
    return Match(
        "read_after_the_loop",
        f"Compute {' and '.join(f'`{name}`' for name in names[:3])} once after the loop, not at every pass",
        "Nothing in the loop reads it: each pass overwrites the value of the one before (every minibatch, "
        "say, where one value for each epoch is enough), and only the last value is used.",
        "Move these lines behind the loop. What is learnt stays the same.",
        (0.75, 0.96, 1.0),
        takes="all",
        library_calls=("",),
        chills=False,
    )


def _unread(loop: ast.stmt, purity: Purity) -> set[ast.stmt]:
    """Assignments in a loop that no other statement of the loop needs, nor their own next pass."""
    statements = list(simple_statements(loop))
    unread: set[ast.stmt] = {
        s
        for s in statements
        if isinstance(s, ast.Assign | ast.AnnAssign)
        and _plain_targets(s)
        and not purity.statement_has_effects(s)
    }
    heads = [n for inner in ast.walk(loop) for n in head_expressions(inner)]
    while True:
        needed = {n for s in statements if s not in unread for n in names_loaded(s)}
        needed |= {n for head in heads for n in names_loaded(head)}
        # A value that its own statement reads before it is assigned is carried from pass to pass.
        left = {
            s
            for s in unread
            if not (names_assigned(s) - {"_"}) & needed and not _carried(s, statements, unread)
        }
        if left == unread:
            return unread
        unread = left


def _read_by_inner_functions(scope: ast.AST) -> set[str]:
    """Names of a script or function that functions inside it read."""
    inner = [
        n for n in ast.walk(scope) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n is not scope
    ]
    return {name for function in inner for name in names_loaded(function)}


def _carried(statement: ast.stmt, statements: list[ast.stmt], unread: set[ast.stmt]) -> bool:
    """Whether a statement that is not after it reads what it assigns: `x = f(x)`."""
    names = names_assigned(statement) - {"_"}
    before = statements[: statements.index(statement) + 1]
    return any(names & names_loaded(other) for other in before if other in unread)


# -- the same at every pass ------------------------------------------------------------------------------


def same_every_time(spot: Spot) -> Match | None:
    """A function of a library that gets the same arguments again."""
    for name, call in spot.calls():
        drawn = name.endswith((".multivariate_normal", "MultivariateNormal().sample")) and not _size_given(
            call
        )
        of_data = _reduced_data(spot, call)
        if not of_data and (not (drawn or _is_heavy(name) or _is_own_and_pure(spot, name)) or not call.args):
            continue
        if "()" in name and not drawn:
            continue  # a method of a value that was computed just now
        if any(keyword.arg == "out" for keyword in call.keywords):
            continue  # its result goes where the caller says, which is not the same as computing it again
        where = _constant_since(spot, [*of_data, *call.args, *(k.value for k in call.keywords)])
        if where == "in the constructor" and of_data and not isinstance(of_data[0], ast.Attribute):
            continue  # a name for what some method returned: who knows what that reads
        fraction = spot.fraction_in(call)
        if not where or (fraction is not None and fraction < LEAST_FRACTION):
            continue
        what = dotted(call.func)
        if drawn:
            return Match(
                "same_every_time",
                f"Draw all samples with one call of {what} (size=n)",
                "Each call decomposes the same covariance matrix again (an SVD), which costs far more than "
                "the draw.",
                "Draw the whole population at once with size=n, or decompose once (Cholesky) and multiply "
                "standard normal numbers. The draws are other numbers from the same distribution.",
                (0.75, 0.96, 0.99),
                safety="semantic",
                takes="own",
            )
        return Match(
            "same_every_time",
            f"Compute {what}(...) once {where}",
            f"Its arguments do not change ({where} they are fixed), so it returns the same every time.",
            "Compute it once, keep the result, and use that; compute it again only when an argument changes.",
            (0.8, 0.97, 1.0) if fraction is not None else _saved_by(spot.node, call),
            part=None if fraction is None else call,
            safety="safe",
            takes="own" if of_data or _is_heavy(name) else "all",
            library_calls=() if of_data or _is_heavy(name) else ("torch",),
            chills=False,
        )
    return _same_product(spot)


def _same_product(spot: Spot) -> Match | None:
    """`d @ self.adj @ d`, where the constructor alone sets the matrices."""
    for node in ast.walk(spot.node):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.MatMult):
            continue
        fraction = spot.fraction_in(node)
        where = "" if spot.trains else _constant_since(spot, [node.left, node.right], settings=False)
        if not where or (fraction is not None and fraction < LEAST_FRACTION):
            continue
        return Match(
            "same_every_time",
            f"Compute `{ast.unparse(node)}` once {where}",
            f"Its factors do not change ({where} they are fixed), so the product is the same every time.",
            "Compute it once, keep the result (in a module: register_buffer), and use that; compute it again "
            "only when a factor changes.",
            (0.8, 0.97, 1.0),
            part=None if fraction is None else node,
            takes="own",
            chills=False,
        )
    return None


def same_in_a_comprehension(spot: Spot) -> Match | None:
    """`[a for a, q in enumerate(values) if q == np.max(values)]`: the maximum for each of the values."""
    for one in ast.walk(spot.node):
        if not isinstance(one, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            continue
        items = {n.id for g in one.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        results = [one.key, one.value] if isinstance(one, ast.DictComp) else [one.elt]
        for part in (*results, *(test for g in one.generators for test in g.ifs)):
            for call in ast.walk(part):
                if not isinstance(call, ast.Call) or not call.args or items & names_loaded(call):
                    continue
                name = dotted(call.func)
                known = name in ("max", "min", "sum", "sorted") or _is_heavy(name)
                # Of a whole container: `max(a, 0)` costs nothing.
                whole = len(call.args) == 1 and isinstance(
                    call.args[0], ast.Name | ast.Attribute | ast.Subscript
                )
                fraction = spot.fraction_in(call)
                if fraction is not None and fraction < LEAST_FRACTION:
                    continue
                if known and whole and not purity_of(spot).has_effects(call.args[0]):
                    return Match(
                        "same_in_a_comprehension",
                        f"Compute {name}({ast.unparse(call.args[0])}) once, not for every item",
                        "The expression for the items computes it again for each of them, with the same "
                        "arguments.",
                        f"Assign `best = {name}({ast.unparse(call.args[0])})` before it and compare with "
                        "that; or use arrays: np.flatnonzero(values == values.max()).",
                        (0.25, 0.55, 0.85) if fraction is None else (0.5, 0.9, 1.0),
                        part=None if fraction is None else call,
                        takes="own",
                        chills=False,
                    )
    return None


def _saved_by(statement: ast.AST, call: ast.Call) -> tuple[float, float, float]:
    """The part of a statement that one of its calls takes; the rest is computed as before."""
    inside = set(ast.walk(call))
    others = (ast.Call, ast.BinOp, ast.Subscript)
    rest = [n for n in ast.walk(statement) if n not in inside and isinstance(n, others)]
    return (0.3, 0.6, 1.0) if len(rest) > MUCH_ELSE else (0.8, 0.97, 1.0)


_CHEAP = re.compile(
    r"\.(zeros|ones|empty|full|array|asarray|as_tensor|tensor|from_numpy|arange|float32|int64)$"
)


# Functions and classes of scipy, imported by name, that compute when they are called
FITTED = frozenset(
    {"CubicSpline", "interp1d", "splrep", "UnivariateSpline", "RegularGridInterpolator", "PchipInterpolator"}
    | {"KDTree", "cKDTree", "Delaunay", "ConvexHull", "griddata", "cdist", "expm", "lu_factor", "cho_factor"}
    | {"cholesky", "eigh", "svd", "inv", "pinv", "butter", "firwin", "rfft", "fft", "cumulative_trapezoid"}
    | {"solve_discrete_are", "solve_continuous_are", "RectBivariateSpline", "Akima1DInterpolator"}
)
CHECKS = re.compile(r"^(is\w+|allclose|array_equal|random\w*)$")


def _is_heavy(name: str) -> bool:
    """A function without side effects that computes; making an array is another matter."""
    last = name.rpartition(".")[2]
    library = name.startswith(PURE_LIBRARIES) or ".linalg." in name or name in FITTED
    return library and not _CHEAP.search(name) and not EFFECTS.match(last) and not CHECKS.match(last)


def _is_own_and_pure(spot: Spot, name: str) -> bool:
    """A function of the script that only computes, such as `compute_gae`; not one that calls networks."""
    function = spot.names.functions.get(name)
    if function is None or spot.trains or spot.calls_networks:
        return False
    return Purity(spot.names, frozenset()).function_is_pure(function, 2)


REDUCTIONS = frozenset(
    {"mean", "std", "var", "sum", "max", "min", "median", "prod", "norm", "argsort", "cumsum", "cumprod"}
    | {"argmax", "argmin", "quantile", "any", "all", "unique", "amax", "amin", "trace", "count_nonzero"}
)
LEARNT = frozenset({"Parameter", "ParameterList", "Embedding"})


def _reduced_data(spot: Spot, call: ast.Call) -> list[ast.expr]:
    """`self.rewards` of `self.rewards.mean()`: an array that a method reads as a whole; else nothing."""
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr not in REDUCTIONS:
        return []
    name = dotted(function.value)
    if name in MODULES or "?" in name or "()" in name or spot.names.of(name) & (LEARNT | NETWORKS):
        return []
    plain = name.rpartition(".")[2]
    filled = any(
        isinstance(n, ast.Subscript)
        and not isinstance(n.ctx, ast.Load)
        and dotted(n.value).rpartition(".")[2] == plain
        for tree in spot.names.trees
        for n in ast.walk(tree)
    )
    return [] if filled else [function.value]


def _size_given(call: ast.Call) -> bool:
    return len(call.args) > 2 or any(keyword.arg == "size" for keyword in call.keywords)


def _constant_since(spot: Spot, arguments: list[ast.expr], settings: bool = True) -> str:
    """Where all arguments become fixed: "before the loop", "in the constructor"; "" if they change.

    Names in capitals are settings of the script; without `settings` they may be matrices that are learnt.
    """
    purity = purity_of(spot)
    if spot.names.trained & {dotted(n) for a in arguments for n in ast.walk(a)}:
        return ""
    if any(purity.has_effects(a) for a in arguments) or not any(names_loaded(a) for a in arguments):
        return ""
    if all(_is_fixed(spot, argument, settings) for argument in arguments):
        return "in the constructor"
    loop = _statement_loop(spot)
    if loop is None:
        return ""
    own = {dotted(n) for a in arguments for n in ast.walk(a) if isinstance(n, ast.Attribute)} - {"?"}
    own = {name for name in own if name.startswith("self.")}
    loaded = {n for argument in arguments for n in names_loaded(argument)} - _modules(spot)
    changed = {n for s in simple_statements(loop) for n in names_stored(s)} | loop_targets(loop)
    changed |= {root for s in simple_statements(loop) for root in names_mutated(s, purity)}
    changed = with_views(spot.scope, changed | _parts_of_changed_objects(spot.scope, loop, purity))
    if (loaded - {"self"}) & changed or (own and _may_change(loop, own, purity)):
        return ""
    return "before the loop" if not own or loaded else ""


def _parts_of_changed_objects(scope: ast.AST, loop: ast.stmt, purity: Purity) -> set[str]:
    """Names of what an object returned that the loop changes: `obs = world.reset()` with `world.step(...)`.

    It may be an array that the object goes on filling. Generators of random numbers keep none.
    """
    changed = {
        dotted(n.func).partition(".")[0]
        for n in ast.walk(loop)
        if isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and not DRAWS.match(n.func.attr)
        and purity.has_effects(n)
    }
    return {
        name
        for statement in simple_statements(scope)
        if isinstance(statement, ast.Assign)
        for n in ast.walk(statement.value)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
        if dotted(n.func).partition(".")[0] in changed - MODULES
        for name in names_stored(statement)
    }


def _may_change(loop: ast.stmt, attributes: set[str], purity: Purity) -> bool:
    """Whether a loop may change attributes of self: it stores to them, or calls something with effects."""
    stores = {
        ".".join(dotted(n if isinstance(n, ast.Attribute) else n.value).split(".")[:2])
        for n in ast.walk(loop)
        if isinstance(n, ast.Attribute | ast.Subscript) and not isinstance(n.ctx, ast.Load)
    }
    if stores & {".".join(name.split(".")[:2]) for name in attributes}:
        return True
    calls = [
        n
        for n in ast.walk(loop)
        if isinstance(n, ast.Call)
        and dotted(n.func).startswith("self.")
        and not DRAWS.match(dotted(n.func).rpartition(".")[2])
    ]
    return any(purity.has_effects(call) for call in calls)


def _modules(spot: Spot) -> frozenset[str]:
    """Names of modules, unless the function uses one for something else: `th` is an angle, too."""
    return (
        MODULES - names_stored(spot.scope) - {n.arg for n in ast.walk(spot.scope) if isinstance(n, ast.arg)}
    )


def _is_fixed(spot: Spot, value: ast.AST, settings: bool, depth: int = 3) -> bool:
    """Whether a value is the same at every call: constants, attributes that only the constructor sets."""
    methods = {
        n.func
        for n in ast.walk(value)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and PURE_METHODS.match(n.func.attr)
    }
    for node in ast.walk(value):
        if node in methods:
            continue  # `self.adjacency.sum`: what it belongs to is looked at by itself
        if isinstance(node, ast.Attribute) and dotted(node).startswith("self."):
            if not spot.names.is_set_once(dotted(node)):
                return False
        elif isinstance(node, ast.Name) and node.id.isupper() and settings:
            # A setting of the script, unless this function changes it: `A += np.outer(x, x)`.
            if any(
                node.id in names_stored(s) or node.id in set(names_mutated(s, purity_of(spot)))
                for s in simple_statements(spot.scope)
            ):
                return False
        elif isinstance(node, ast.Name) and node.id not in _modules(spot) | {"self"}:
            assigned = [s for s in simple_statements(spot.scope) if node.id in names_stored(s)]
            if len(assigned) != 1 or not isinstance(assigned[0], ast.Assign) or not depth:
                return False
            if purity_of(spot).statement_has_effects(assigned[0]) or not _is_fixed(
                spot, assigned[0].value, settings, depth - 1
            ):
                return False
            mutated = {
                root for s in simple_statements(spot.scope) for root in names_mutated(s, purity_of(spot))
            }
            if node.id in with_views(spot.scope, mutated):
                return False
    return True


# -- read by a logger alone ------------------------------------------------------------------------------


def only_logged(spot: Spot) -> Match | None:
    """Every pass computes something expensive that is only logged."""
    loop = _statement_loop(spot)
    node = spot.node
    if loop is None or not isinstance(node, ast.Assign | ast.AnnAssign) or not _trains(loop):
        return None
    purity = purity_of(spot)
    if not _plain_targets(node) or purity.statement_has_effects(node) or not _makes_calls(node):
        return None
    if node not in _only_for_logs(spot.scope, loop, purity):
        return None
    names = sorted(names_assigned(node) - {"_"})
    if not names:
        return None
    return Match(
        "only_logged",
        f"Compute {' and '.join(f'`{name}`' for name in names[:3])} only when it is logged, less often",
        "Only log output uses it: neither the loss nor an env sees it, so training does not need it at every "
        "pass.",
        "Compute such diagnostics every 100 updates, or once for each epoch or rollout. What is learnt stays "
        "the same.",
        (0.75, 0.96, 1.0),
        takes="all",
        library_calls=("",),
        chills=False,
    )


def _only_for_logs(scope: ast.AST, loop: ast.stmt, purity: Purity) -> set[ast.stmt]:
    """Assignments of a loop whose values reach nothing but loggers and lists of numbers to log."""
    statements = list(simple_statements(scope))
    lists = _logged_containers(scope, statements)
    candidates: set[ast.stmt] = {
        s
        for s in simple_statements(loop)
        if isinstance(s, ast.Assign | ast.AnnAssign)
        and _plain_targets(s)
        and not purity.statement_has_effects(s)
    }
    heads = [n for inner in ast.walk(scope) for n in head_expressions(inner)]
    while True:
        needed: set[str] = {n for head in heads for n in names_loaded(head)}
        for statement in statements:
            if statement not in candidates and not _logs(statement, lists):
                needed |= names_loaded(statement)
        left = {s for s in candidates if not (names_assigned(s) - {"_"}) & needed}
        if left == candidates:
            return candidates
        candidates = left


def _logs(statement: ast.stmt, lists: set[str]) -> bool:
    """A logging call, or adding to a container of numbers that are only logged."""
    if isinstance(statement, ast.Assign) and all(
        isinstance(t, ast.Subscript) and dotted(t.value) in lists for t in statement.targets
    ):
        return True
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    owner, _, method = dotted(statement.value.func).rpartition(".")
    if method in ("append", "extend", "update", "add"):
        return owner in lists
    return bool(LOGGING.match(method))


def _logged_containers(scope: ast.AST, statements: list[ast.stmt]) -> set[str]:
    """Lists and dicts that are filled, and otherwise only read by loggers, or returned with string keys."""
    filled = {
        dotted(n.func.value)
        for n in ast.walk(scope)
        if isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr in ("append", "extend")
    }
    filled |= {
        dotted(n.value)
        for n in ast.walk(scope)
        if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)
    }
    found = {name for name in filled if "?" not in name and "." not in name}
    for statement in statements:
        if _logs(statement, found):
            continue
        if isinstance(statement, ast.Assign | ast.AnnAssign) and names_assigned(statement) <= found:
            continue
        found -= names_loaded(statement)
    heads = {n for inner in ast.walk(scope) for head in head_expressions(inner) for n in names_loaded(head)}
    return found - heads


def _trains(loop: ast.stmt) -> bool:
    return any(
        isinstance(n, ast.Call)
        and dotted(n.func).rpartition(".")[2] in ("backward", "step", "update", "learn", "train")
        for n in ast.walk(loop)
    )


# -- small questions ---------------------------------------------------------------------------------------


def _statement_loop(spot: Spot) -> ast.stmt | None:
    """The innermost loop around a statement, comprehensions aside."""
    loops: Iterable[Loop] = spot.loops
    return next((loop for loop in loops if isinstance(loop, LOOPS)), None)


def _plain_targets(statement: ast.Assign | ast.AnnAssign) -> bool:
    """Whether it assigns to names alone, not to items or attributes."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return all(
        isinstance(n, ast.Name | ast.Tuple | ast.List | ast.Starred | ast.Store)
        for target in targets
        for n in ast.walk(target)
    )


def _makes_calls(statement: ast.AST) -> bool:
    return any(isinstance(n, ast.Call | ast.BinOp) for n in ast.walk(statement))
