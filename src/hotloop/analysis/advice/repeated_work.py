"""Work that is done again although nothing changed, or whose result is not used: found by data flow.

A statement of a loop is needed as often as its result is read there. What is read only after the loop is
needed once; what depends on nothing that the loop changes, too; what only a logger reads is needed when it
logs. The source shows the data flow; what it costs was sampled. Only functions without side effects count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hotloop.analysis.advice.idioms import Match
from hotloop.analysis.hot_lines import LOOPS, Loop, Spot
from hotloop.analysis.source_names import Names, dotted

# Last words of functions that change something, or draw random numbers: calling them less often would be
# another program.
EFFECTS = re.compile(
    r"^(step\w*|\w*_step|reset\w*|backward|append\w*|extend|add\w*|push\w*|pop\w*|put\w*|insert|remove|update\w*|"
    r"train\w*|learn\w*|fit|send\w*|recv\w*|receive|get_nowait|write\w*|save\w*|dump|next|zero_grad|load_state_dict|"
    r"sample\w*|rvs|rand\w*|choice\w*|normal|uniform|shuffle|permut\w*|integers|multinomial|draw\w*|seed|manual_seed|"
    r"record\w*|print|info|debug|act|select_action|choose_action|get_action|predict|collect\w*|store\w*|"
    r"set\w*|clear|copy_|lerp_|mul_|zero_|fill_|submit|apply_async|map_async|acquire|release|sleep|wait|poll|open|"
    r"close|read\w*|perf_counter\w*|time|monotonic|clip_grad_\w+|eval|requires_grad_|start|join|flush|input|"
    r"get|popleft|appendleft|enqueue|dequeue|observe|advance|tick|play\w*|rollout\w*|simulate\w*|execute|\w+_)$"
)
LOGGING = re.compile(
    r"^(print|add_scalars?|add_histogram|add_text|add_image|add_figure|log|log_metrics?|log_dict|info|debug|"
    r"warning|record|record_mean|set_postfix|set_description|writerow|write|track)$"
)
PURE_LIBRARIES = (
    "numpy.",
    "np.",
    "torch.",
    "th.",
    "math.",
    "scipy.",
    "jnp.",
    "F.",
    "nn.functional.",
    "linalg.",
)
EXPENSIVE = 0.05  # share of training
# Draws of random numbers change the generator, not what they are given.
DRAWS = re.compile(
    r"^(\w*normal|uniform|integers|randint|rand\w*|random\w*|choices?|permutation|multinomial|poisson|exponential|"
    r"beta|gamma|dirichlet|binomial|gumbel|sample)$"
)


def repeated_work(spot: Spot) -> Match | None:
    """The first of these that the statement shows."""
    if isinstance(spot.node, LOOPS) or not isinstance(spot.node, ast.stmt):
        return None
    return read_after_the_loop(spot) or same_every_time(spot) or only_logged(spot)


# -- read only after the loop ----------------------------------------------------------------------------


def read_after_the_loop(spot: Spot) -> Match | None:
    """Every pass computes a value, and only that of the last pass is used."""
    loop = _statement_loop(spot)
    if loop is None or not isinstance(spot.node, ast.Assign | ast.AnnAssign):
        return None
    unread = _unread(loop, _purity(spot))
    if spot.node not in unread:
        return None
    names = sorted(_targets(spot.node) - {"_"})
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


def _unread(loop: ast.stmt, purity: _Purity) -> set[ast.stmt]:
    """Assignments in a loop that no other statement of the loop needs, nor their own next pass."""
    statements = list(_simple_statements(loop))
    unread: set[ast.stmt] = {
        s
        for s in statements
        if isinstance(s, ast.Assign | ast.AnnAssign)
        and _plain_targets(s)
        and not purity.statement_has_effects(s)
    }
    heads = [n for inner in ast.walk(loop) for n in _head_expressions(inner)]
    while True:
        needed = {n for s in statements if s not in unread for n in _loads(s)}
        needed |= {n for head in heads for n in _loads(head)}
        # A value that its own statement reads before it is assigned is carried from pass to pass.
        left = {
            s for s in unread if not (_targets(s) - {"_"}) & needed and not _carried(s, statements, unread)
        }
        if left == unread:
            return unread
        unread = left


def _read_by_inner_functions(scope: ast.AST) -> set[str]:
    """Names of a script or function that functions inside it read."""
    inner = [
        n for n in ast.walk(scope) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n is not scope
    ]
    return {name for function in inner for name in _loads(function)}


def _carried(statement: ast.stmt, statements: list[ast.stmt], unread: set[ast.stmt]) -> bool:
    """Whether a statement that is not after it reads what it assigns: `x = f(x)`."""
    names = _targets(statement) - {"_"}
    before = statements[: statements.index(statement) + 1]
    return any(names & _loads(other) for other in before if other in unread)


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
        if not where:
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
            (0.8, 0.97, 1.0),
            safety="safe",
            takes="own" if of_data or _is_heavy(name) else "all",
            library_calls=() if of_data or _is_heavy(name) else ("torch",),
            chills=False,
        )
    return None


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
    return _Purity(spot.names, frozenset())._function_is_pure(function, 2)


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


def _constant_since(spot: Spot, arguments: list[ast.expr]) -> str:
    """Where all arguments become fixed: "before the loop", "in the constructor"; "" if they change."""
    purity = _purity(spot)
    if any(purity.has_effects(a) for a in arguments) or not any(_loads(a) for a in arguments):
        return ""
    if all(_is_fixed(spot, argument) for argument in arguments):
        return "in the constructor"
    loop = _statement_loop(spot)
    if loop is None:
        return ""
    own = {dotted(n) for a in arguments for n in ast.walk(a) if isinstance(n, ast.Attribute)} - {"?"}
    own = {name for name in own if name.startswith("self.")}
    loaded = {n for argument in arguments for n in _loads(argument)} - _modules(spot)
    changed = {n for s in _simple_statements(loop) for n in _stores(s)} | _loop_targets(loop)
    changed |= {root for s in _simple_statements(loop) for root in _mutated(s, purity)}
    changed = _with_views(spot.scope, changed)
    if (loaded - {"self"}) & changed or (own and _may_change(loop, own, purity)):
        return ""
    return "before the loop" if not own or loaded else ""


def _may_change(loop: ast.stmt, attributes: set[str], purity: _Purity) -> bool:
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


MODULES = frozenset({"np", "numpy", "torch", "th", "math", "scipy", "linalg", "F", "nn"})


def _modules(spot: Spot) -> frozenset[str]:
    """Names of modules, unless the function uses one for something else: `th` is an angle, too."""
    return MODULES - _stores(spot.scope) - {n.arg for n in ast.walk(spot.scope) if isinstance(n, ast.arg)}


def _is_fixed(spot: Spot, value: ast.AST, depth: int = 3) -> bool:
    """Whether a value is the same at every call: constants, attributes that only the constructor sets."""
    for node in ast.walk(value):
        if isinstance(node, ast.Attribute) and dotted(node).startswith("self."):
            if not spot.names.is_set_once(dotted(node)):
                return False
        elif isinstance(node, ast.Name) and node.id.isupper():
            # A setting of the script, unless this function changes it: `A += np.outer(x, x)`.
            if any(
                node.id in _stores(s) or node.id in set(_mutated(s, _purity(spot)))
                for s in _simple_statements(spot.scope)
            ):
                return False
        elif isinstance(node, ast.Name) and node.id not in _modules(spot) | {"self"}:
            assigned = [s for s in _simple_statements(spot.scope) if node.id in _stores(s)]
            if len(assigned) != 1 or not isinstance(assigned[0], ast.Assign) or not depth:
                return False
            if _purity(spot).statement_has_effects(assigned[0]) or not _is_fixed(
                spot, assigned[0].value, depth - 1
            ):
                return False
            mutated = {root for s in _simple_statements(spot.scope) for root in _mutated(s, _purity(spot))}
            if node.id in _with_views(spot.scope, mutated):
                return False
    return True


def _with_views(scope: ast.AST, changed: set[str]) -> set[str]:
    """The names, and all that share memory with one of them: `left = both[:, :2]` is a view of `both`."""
    pairs = [
        (_targets(s), _loads(s.value))
        for s in _simple_statements(scope)
        if isinstance(s, ast.Assign) and _may_be_a_view(s.value)
    ]
    while True:
        more = {n for a, b in pairs if (a | b) & changed for n in a | b} - changed - MODULES
        if not more:
            return changed
        changed = changed | more


def _may_be_a_view(value: ast.AST) -> bool:
    """A name, an item, or a method that returns the same memory in another shape."""
    if isinstance(value, ast.Tuple | ast.List):
        return any(_may_be_a_view(element) for element in value.elts)
    if isinstance(value, ast.Call):
        shapes = ("view", "reshape", "ravel", "squeeze", "unsqueeze", "transpose", "t", "detach", "numpy")
        more = ("from_numpy", "as_tensor", "asarray", "flatten", "permute", "expand", "unpack")
        return dotted(value.func).rpartition(".")[2] in (*shapes, *more)
    return isinstance(value, ast.Name | ast.Attribute | ast.Subscript)


def _mutated(statement: ast.stmt, purity: _Purity) -> Iterator[str]:
    """Names whose object a statement may change: by item stores, `out=`, and calls with unknown effects."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield dotted(node.value).partition(".")[0]
        elif isinstance(node, ast.AugAssign):
            yield dotted(node.target).partition(".")[0]
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            for keyword in node.keywords:
                if keyword.arg == "out":
                    yield from _loads(keyword.value)
            last = name.rpartition(".")[2]
            if EFFECTS.match(last) or not purity.is_pure(node):
                yield name.partition(".")[0]
                for argument in node.args if not DRAWS.match(last) else ():
                    yield from _loads(argument)


# -- read by a logger alone ------------------------------------------------------------------------------


def only_logged(spot: Spot) -> Match | None:
    """Every pass computes something expensive that is only logged."""
    loop = _statement_loop(spot)
    node = spot.node
    if loop is None or not isinstance(node, ast.Assign | ast.AnnAssign) or not _trains(loop):
        return None
    purity = _purity(spot)
    if not _plain_targets(node) or purity.statement_has_effects(node) or not _makes_calls(node):
        return None
    if node not in _only_for_logs(spot.scope, loop, purity):
        return None
    names = sorted(_targets(node) - {"_"})
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


def _only_for_logs(scope: ast.AST, loop: ast.stmt, purity: _Purity) -> set[ast.stmt]:
    """Assignments of a loop whose values reach nothing but loggers and lists of numbers to log."""
    statements = list(_simple_statements(scope))
    lists = _logged_containers(scope, statements)
    candidates: set[ast.stmt] = {
        s
        for s in _simple_statements(loop)
        if isinstance(s, ast.Assign | ast.AnnAssign)
        and _plain_targets(s)
        and not purity.statement_has_effects(s)
    }
    heads = [n for inner in ast.walk(scope) for n in _head_expressions(inner)]
    while True:
        needed: set[str] = {n for head in heads for n in _loads(head)}
        for statement in statements:
            if statement not in candidates and not _logs(statement, lists):
                needed |= _loads(statement)
        left = {s for s in candidates if not (_targets(s) - {"_"}) & needed}
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
        if isinstance(statement, ast.Assign | ast.AnnAssign) and _targets(statement) <= found:
            continue
        found -= _loads(statement)
    heads = {n for inner in ast.walk(scope) for head in _head_expressions(inner) for n in _loads(head)}
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


def _simple_statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Statements without a body, in order; of nested functions, nothing."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(child, ast.stmt) and not hasattr(child, "body"):
            yield child
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _simple_statements(child)


def _head_expressions(node: ast.AST) -> Iterator[ast.expr]:
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


def _loads(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _stores(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _loop_targets(loop: ast.stmt) -> set[str]:
    return {
        name
        for inner in ast.walk(loop)
        if isinstance(inner, ast.For | ast.AsyncFor | ast.comprehension)
        for name in _stores(inner.target)
    }


def _targets(statement: ast.stmt) -> set[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {name for target in targets if target is not None for name in _stores(target)}


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


PURE_METHODS = re.compile(
    r"^(mean|std|var|sum|max|min|abs|sqrt|exp|log|log1p|clamp|clip|detach|numpy|cpu|float|double|long|int|bool|item|"
    r"tolist|norm|square|pow|squeeze|unsqueeze|view|reshape|flatten|softmax|log_softmax|argmax|argmin|gather|log_prob|"
    r"entropy|transpose|permute|t|dot|matmul|mm|bmm|outer|astype|round|any|all|cumsum|cumprod|median|quantile|amax|"
    r"amin|index_select|masked_select|chunk|split|expand|expand_as|repeat|type|size|dim|numel|items|keys|values|"
    r"parameters|named_parameters|trace|inverse|svd|eig|eigh|cholesky|tanh|sigmoid|relu|elu|softplus|lower|strip|"
    r"format|join|logsumexp|kl_divergence|prod|nonzero|histogram|cov|corrcoef|percentile|stack|cat|concatenate)$"
)
BUILTINS = frozenset(
    {"float", "int", "len", "max", "min", "sum", "abs", "round", "list", "tuple", "zip", "sorted", "range"}
    | {"dict", "enumerate", "str", "bool", "set", "reversed", "map", "any", "all", "isinstance", "getattr"}
)


@dataclass(frozen=True)
class _Purity:
    """Which calls have no effect but their result, as far as the source and the samples tell."""

    names: Names
    quiet: frozenset[ast.stmt]  # statements that run under torch.no_grad(), or in networks by the samples

    def statement_has_effects(self, statement: ast.stmt) -> bool:
        value = getattr(statement, "value", None)
        return value is None or self.has_effects(value, statement in self.quiet)

    def has_effects(self, value: ast.AST, quiet: bool = False, depth: int = 2) -> bool:
        return any(
            isinstance(n, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr)
            or (isinstance(n, ast.Call) and not self._is_pure(n, quiet, depth))
            for n in ast.walk(value)
        )

    def is_pure(self, call: ast.Call) -> bool:
        return self._is_pure(call, quiet=False, depth=2)

    def _is_pure(self, call: ast.Call, quiet: bool, depth: int) -> bool:
        name = dotted(call.func)
        last = name.rpartition(".")[2].removesuffix("()")
        # A method of a policy that is given the actions to judge draws none.
        judges = (
            last.startswith(("get_action", "evaluate_actions")) and len(call.args) + len(call.keywords) > 1
        )
        if EFFECTS.match(last) and not judges:
            return False
        if name in BUILTINS or name.startswith(PURE_LIBRARIES) or (PURE_METHODS.match(last) and "." in name):
            return "random" not in name
        if quiet or any(kind in NETWORKS for kind in self.names.of(name)):
            return True
        function = self.names.functions.get(last)
        return function is not None and depth > 0 and self._function_is_pure(function, depth - 1)

    def _function_is_pure(self, function: ast.FunctionDef | ast.AsyncFunctionDef, depth: int) -> bool:
        """Whether it changes nothing but arrays that it has made itself."""
        own = {name for statement in _simple_statements(function) for name in _stores(statement)}
        for node in ast.walk(function):
            if isinstance(node, ast.Global | ast.Nonlocal):
                return False
            if not isinstance(node, ast.Attribute | ast.Subscript) or isinstance(node.ctx, ast.Load):
                continue
            if isinstance(node, ast.Attribute) or dotted(node.value) not in own:
                return False
        return not any(self.has_effects(statement, depth=depth) for statement in function.body)


NETWORKS = frozenset(
    {
        "Sequential",
        "Linear",
        "Conv1d",
        "Conv2d",
        "LSTM",
        "GRU",
        "Embedding",
        "TransformerEncoder",
        "MLP",
        "ModuleList",
    }
)


def _purity(spot: Spot) -> _Purity:
    quiet = {
        statement
        for node in ast.walk(spot.scope)
        if isinstance(node, ast.With)
        and any(
            "no_grad" in dotted(i.context_expr) or "inference_mode" in dotted(i.context_expr)
            for i in node.items
        )
        for statement in _simple_statements(node)
    }
    if spot.calls_networks and not spot.trains and isinstance(spot.node, ast.stmt):
        quiet.add(spot.node)
    return _Purity(spot.names, frozenset(quiet))
