"""What code reads and changes outside of itself, and which calls have no effect but their result.

`Purity` judges calls, by their names and by the functions of the script that they call. `Effects` says by
names of attributes what code reads and changes, through the functions that it calls. Where the source does
not tell, code counts as having an effect.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass

from hotloop.analysis.advice.statements import (
    FUNCTIONS,
    names_assigned,
    names_loaded,
    names_stored,
    simple_statements,
)
from hotloop.analysis.hot_statements import Spot
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
# Draws of random numbers change the generator, not what they are given.
DRAWS = re.compile(
    r"^(\w*normal|uniform|integers|randint|rand\w*|random\w*|choices?|permutation|multinomial|poisson|exponential|"
    r"beta|gamma|dirichlet|binomial|gumbel|sample)$"
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
MODULES = frozenset({"np", "numpy", "torch", "th", "math", "scipy", "linalg", "F", "nn"})
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
CHANGING = frozenset(
    {"append", "extend", "add", "update", "pop", "clear", "insert", "remove", "popleft", "appendleft", "push"}
    | {"setdefault", "fill", "sort", "reverse", "discard", "put", "store", "resize", "shuffle", "popitem"}
)
DEEPEST = 4  # calls of functions that are followed


@dataclass(frozen=True)
class Purity:
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
        return function is not None and depth > 0 and self.function_is_pure(function, depth - 1)

    def function_is_pure(self, function: ast.FunctionDef | ast.AsyncFunctionDef, depth: int) -> bool:
        """Whether it changes nothing but arrays that it has made itself."""
        own = {name for statement in simple_statements(function) for name in names_stored(statement)}
        for node in ast.walk(function):
            if isinstance(node, ast.Global | ast.Nonlocal):
                return False
            if not isinstance(node, ast.Attribute | ast.Subscript) or isinstance(node.ctx, ast.Load):
                continue
            if isinstance(node, ast.Attribute) or dotted(node.value) not in own:
                return False
        return not any(self.has_effects(statement, depth=depth) for statement in function.body)


def turns_gradients_off(block: ast.With) -> bool:
    """`with torch.no_grad():`, or inference mode."""
    contexts = [dotted(item.context_expr) for item in block.items]
    return any("no_grad" in name or "inference_mode" in name for name in contexts)


def purity_of(spot: Spot) -> Purity:
    quiet = {
        statement
        for node in ast.walk(spot.scope)
        if isinstance(node, ast.With) and turns_gradients_off(node)
        for statement in simple_statements(node)
    }
    if spot.calls_networks and not spot.trains and isinstance(spot.node, ast.stmt):
        quiet.add(spot.node)
    return Purity(spot.names, frozenset(quiet))


def names_mutated(statement: ast.stmt, purity: Purity) -> Iterator[str]:
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
                    yield from names_loaded(keyword.value)
            last = name.rpartition(".")[2]
            if EFFECTS.match(last) or not purity.is_pure(node):
                yield name.partition(".")[0]
                for argument in node.args if not DRAWS.match(last) else ():
                    yield from names_loaded(argument)


def with_views(scope: ast.AST, changed: set[str]) -> set[str]:
    """The names, and all that share memory with one of them: `left = both[:, :2]` is a view of `both`."""
    pairs = [
        (names_assigned(s), names_loaded(s.value))
        for s in simple_statements(scope)
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


def runs_quietly(spot: Spot, call: ast.AST) -> bool:
    """Whether a call stands under `torch.no_grad()`."""
    above = spot.names.parents.get(call)
    while above is not None:
        if isinstance(above, ast.With) and turns_gradients_off(above):
            return True
        above = spot.names.parents.get(above)
    return False


@dataclass(frozen=True)
class Effects:
    """What code reads and changes outside of itself, by plain names of attributes."""

    reads: frozenset[str] = frozenset()
    changes: frozenset[str] = frozenset()
    unknown: bool = False  # it draws random numbers, logs, waits, or changes what cannot be named
    networks: bool = False  # it calls an object, as networks are called

    def __or__(self, other: Effects) -> Effects:
        return Effects(
            self.reads | other.reads,
            self.changes | other.changes,
            self.unknown or other.unknown,
            self.networks or other.networks,
        )

    @property
    def pure(self) -> bool:
        return not self.unknown and not self.changes


def effects_of(
    names: Names, node: ast.AST, own: frozenset[str] = frozenset(), depth: int = DEEPEST
) -> Effects:
    """Effects of statements; `own` are names of objects that they made themselves and may change."""
    if isinstance(node, FUNCTIONS):
        given = {a.arg for a in ast.walk(node) if isinstance(a, ast.arg)}
        own = frozenset(made_inside(node) - given)
    found = Effects()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Global | ast.Nonlocal | ast.Await | ast.Yield | ast.YieldFrom):
            found |= Effects(unknown=True)
        elif isinstance(inner, ast.Attribute | ast.Subscript) and not isinstance(inner.ctx, ast.Load):
            found |= _changed(inner, own)
        elif isinstance(inner, ast.Attribute):
            found |= Effects(reads=frozenset({inner.attr}))
        elif isinstance(inner, ast.Call):
            found |= _effects_of_call(names, inner, own, depth)
    return found


def made_inside(function: ast.AST) -> set[str]:
    """Names that hold what the function computed: not its parameters, nor attributes under another name."""
    made: set[str] = set()
    shared: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                stored = {
                    n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
                }
                alias = isinstance(node.value, ast.Attribute | ast.Subscript | ast.Name)
                (shared if alias else made).update(stored)
        elif isinstance(node, ast.For | ast.comprehension | ast.AnnAssign | ast.NamedExpr):
            made |= {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
    return made - shared


def _changed(target: ast.Attribute | ast.Subscript, own: frozenset[str]) -> Effects:
    """Effects of a store to `self.x`, `self.x[i]`, `array[i]`."""
    base: ast.AST = target
    while isinstance(base, ast.Subscript):
        base = base.value
    if isinstance(base, ast.Attribute):
        return Effects(changes=frozenset({base.attr}))
    if isinstance(base, ast.Name) and base.id in own:
        return Effects()
    return Effects(unknown=True)


GENERATORS = ("default_rng", "RandomState", "Random", "Generator", "PCG64", "SeedSequence")


def _draws_from_a_seed(call: ast.Call) -> bool:
    """`np.random.default_rng(seed).normal(size=n)`: the same numbers for the same seed; or the generator."""
    made = call.func.value if isinstance(call.func, ast.Attribute) else None
    made = made if isinstance(made, ast.Call) else call
    return dotted(made.func).rpartition(".")[2] in GENERATORS and bool(made.args)


def _effects_of_call(names: Names, call: ast.Call, own: frozenset[str], depth: int) -> Effects:
    name = dotted(call.func)
    owner, _, last = name.rpartition(".")
    functions = names.definitions.get(last, ())
    if functions and owner.partition(".")[0] not in MODULES:
        if not depth:
            return Effects(unknown=True)
        found = Effects()
        for function in functions:
            found |= effects_of(names, function, depth=depth - 1)
        return found
    if any(keyword.arg == "out" for keyword in call.keywords):
        return Effects(unknown=True)
    if _draws_from_a_seed(call):
        return Effects()
    if owner in MODULES:
        return Effects(unknown=bool(EFFECTS.match(last)) and last not in CHANGING)
    if last in CHANGING or (last.endswith("_") and not last.endswith("__")):
        if owner in own:
            return Effects()
        attribute = owner.rpartition(".")[2].removesuffix("()")
        return Effects(changes=frozenset({attribute}), unknown=not attribute or attribute == "?")
    logs = LOGGING.match(last) and bool(call.args or call.keywords)  # `x.log()` is a logarithm
    if EFFECTS.match(last) or DRAWS.match(last) or logs or "random" in name:
        return Effects(unknown=True)
    if isinstance(call.func, ast.Name):  # a parameter, or a function of a file that is not known
        known = name[0].isupper() or hasattr(builtins, name) or name == "deepcopy" or PURE_METHODS.match(name)
        return Effects(networks=not known)
    plain = isinstance(call.func, ast.Attribute) and name.partition(".")[0] == "self" and name.count(".") == 1
    return Effects(networks=plain)
