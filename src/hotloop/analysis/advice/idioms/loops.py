"""Loops in Python over elements that one array operation could handle."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from hotloop.analysis.advice.idioms.questions import (
    TENSORS,
    _names,
    call_of,
    called_names,
    carries_over,
    comprehensions,
    has,
    has_call,
    is_loop,
    is_same,
    saw_call,
)
from hotloop.analysis.advice.idioms.registry import Match, idiom
from hotloop.analysis.advice.side_effects import purity_of
from hotloop.analysis.hot_statements import Spot
from hotloop.analysis.source_names import dotted

CONTAINERS = (ast.Dict, ast.List, ast.ListComp, ast.DictComp, ast.Set, ast.Tuple)
OF_TENSORS = frozenset(
    {
        "unsqueeze",
        "squeeze",
        "float",
        "view",
        "reshape",
        "flatten",
        "to",
        "astype",
        "copy",
        "permute",
        "numpy",
    }
    | {
        "sample",
        "log_prob",
        "argmax",
        "item",
        "max",
        "mean",
        "items",
        "append",
        "detach",
        "cpu",
        "tolist",
        "get",
    }
)
REDUCED = frozenset(
    {"mean", "sum", "max", "min", "any", "all", "norm", "array_equal", "allclose", "argmax", "argmin", "dot"}
)
LOOPS_AND_TRY = (ast.For, ast.While, ast.AsyncFor, ast.Try, ast.With)
RECURRENT = frozenset({"LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell"})
_SAVED_ON = {"float": (0.35, 0.65, 0.98), "tensor": (0.85, 0.96, 0.995), "array": (0.7, 0.9, 0.99)}
COUNTERS = frozenset({"range", "enumerate", "trange", "count", "tqdm"})
OF_NUMBERS = frozenset({"int", "float", "bool", "abs", "round", "max", "min", "divmod", "chr"})
IN_PLACE = frozenset(  # methods of tensors
    {"add_", "sub_", "mul_", "div_", "addcmul_", "addcdiv_", "lerp_", "copy_", "clamp_", "masked_fill_"}
    | {"index_add_", "index_copy_", "index_fill_", "scatter_", "scatter_add_", "scatter_reduce_", "put_"}
)
COMPILERS = frozenset(
    {"njit", "jit", "vectorize", "guvectorize", "script", "compile", "pmap", "vmap", "cfunc", "stencil"}
)


PASSING_ON = frozenset({"zip", "enumerate", "list", "tuple", "sorted", "reversed", "set", "tqdm"})


def _walked(iterated: ast.AST) -> Iterator[str]:
    """Names whose elements a loop goes over: `a` and `b` for `zip(a.items(), b)`, nothing in `f(a)`."""
    if isinstance(iterated, ast.Call):
        name = dotted(iterated.func)
        yield name
        if isinstance(iterated.func, ast.Attribute):
            yield from _walked(iterated.func.value)
        if name.rpartition(".")[2] in PASSING_ON:
            for argument in iterated.args:
                yield from _walked(argument)
    elif isinstance(iterated, (ast.Name, ast.Attribute)):
        yield dotted(iterated)


@idiom
def parameters_one_by_one(spot: Spot) -> Match | None:
    """`for p, t in zip(net.parameters(), target.parameters()): t.data.lerp_(p.data, tau)`."""
    if not isinstance(spot.node, ast.For) or has_call(spot, ".item"):
        return None
    over = list(called_names(spot.node.iter))
    sources = sum(name.endswith((".parameters", ".named_parameters", ".buffers")) for name in over)
    kept = {
        dotted(target)
        for n in ast.walk(spot.scope)
        if isinstance(n, ast.Assign) and any(".state_dict" in name for name in called_names(n.value))
        for target in n.targets
    }
    walked = set(_walked(spot.node.iter))
    states = any(name in kept or name.endswith(".state_dict") for name in walked) and bool(
        [n for n in ast.walk(spot.node) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)]
    )
    clamps = sources == 1 and has_call(spot, ".clamp_", ".mul_", ".div_", ".add_", ".nan_to_num_")
    if sources < 2 and not states and not clamps:
        return None
    if clamps:
        return Match(
            "parameters_one_by_one",
            "Change all gradients or parameters with one call",
            "The loop starts a small operation for each parameter tensor.",
            "Use torch.nn.utils.clip_grad_value_(net.parameters(), 1.0) or clip_grad_norm_, which take all "
            "tensors at once, or torch._foreach_clamp_... on the list of gradients.",
            (0.3, 0.65, 0.85),
        )
    return Match(
        "parameters_one_by_one",
        "Update all parameters with one call",
        "The loop starts several small operations for each parameter tensor.",
        "Under no_grad, use torch._foreach_lerp_(list(target.parameters()), list(net.parameters()), tau), "
        "with the lists made once; or copy less often.",
        (0.4, 0.8, 0.92),
        safety="rounding",
    )


@idiom
def ensemble_one_by_one(spot: Spot) -> Match | None:
    """`[critic(x) for critic in self.critics]`: several networks of the same shape, one after the other."""
    loops: list[tuple[ast.AST, ast.AST, ast.AST]] = []
    if isinstance(spot.node, ast.For) and not carries_over(spot.node) and not _trains(spot):
        loops = [(spot.node.target, spot.node.iter, s) for s in spot.node.body]
    elif not is_loop(spot):
        loops = [
            (c.generators[0].target, c.generators[0].iter, c.value if isinstance(c, ast.DictComp) else c.elt)
            for c in comprehensions(spot.node)
        ]
    for target, iterated, body in loops:
        owner, member, with_rows = _members_of_loop(spot, target, iterated)
        if not member or _members(spot, owner) == 2 or (with_rows and not _are_alike(spot, owner)):
            continue
        calls = [n for n in ast.walk(body) if isinstance(n, ast.Call) and dotted(n.func) == member]
        shared = [
            c
            for c in calls
            if not any(isinstance(n, ast.Name) and n.id == member for a in c.args for n in ast.walk(a))
        ]
        if not shared:
            continue
        return Match(
            "ensemble_one_by_one",
            "Evaluate the networks of the ensemble in one batched call, not one after the other",
            "Networks of the same shape are asked one by one: every network calls each of its "
            "layers, again in backward and in the optimizer.",
            "Keep the weights of all members in one tensor [members, in, out] and use torch.baddbmm (or "
            "torch.func.stack_module_state with vmap).",
            (0.3, 0.68, 0.85),
            safety="rounding",
            effort="hours",
            takes="all",
            library_calls=("torch.nn",),
            backward=True,
            optimizer=True,
        )
    return None


def _members_of_loop(spot: Spot, target: ast.AST, iterated: ast.AST) -> tuple[str, str, bool]:
    """Name of a ModuleList that is gone through, name of its item, and whether each gets rows of its own.

    `for net in self.nets`, or `for net, rows in zip(self.nets, x)`.
    """
    if isinstance(target, ast.Name):
        return dotted(iterated), target.id if "ModuleList" in spot.names.of(dotted(iterated)) else "", False
    if isinstance(iterated, ast.Call) and dotted(iterated.func) == "zip" and isinstance(target, ast.Tuple):
        for one, given in zip(target.elts, iterated.args, strict=False):
            if isinstance(one, ast.Name) and "ModuleList" in spot.names.of(dotted(given)):
                return dotted(given), one.id, True
    return "", "", False


def _are_alike(spot: Spot, name: str) -> bool:
    """Whether `name = nn.ModuleList(make() for _ in range(n))` makes all networks in the same way."""
    for made in _given_to_lists(spot, name):
        if isinstance(made, ast.ListComp | ast.GeneratorExp):
            numbers = {n.id for g in made.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
            return not any(isinstance(n, ast.Name) and n.id in numbers for n in ast.walk(made.elt))
    return False


def _members(spot: Spot, name: str) -> int | None:
    """Number of networks in `self.critics = nn.ModuleList([...])`, if it is written there."""
    for given in _given_to_lists(spot, name):
        if isinstance(given, ast.List | ast.Tuple):
            return len(given.elts)
        count = [n for n in ast.walk(given) if isinstance(n, ast.Call) and dotted(n.func) == "range"]
        number = count[0].args[-1] if count and count[0].args else None
        if isinstance(number, ast.Constant) and isinstance(number.value, int):
            return number.value
    return None


def _given_to_lists(spot: Spot, name: str) -> Iterator[ast.expr]:
    """What `self.critics = nn.ModuleList(...)` is given, wherever that is written."""
    for node in (n for tree in spot.names.trees for n in ast.walk(tree)):
        if (
            isinstance(node, ast.Assign)
            and any(dotted(t).rpartition(".")[2] == name.rpartition(".")[2] for t in node.targets)
            and isinstance(node.value, ast.Call)
            and node.value.args
        ):
            yield node.value.args[0]


@idiom
def network_in_a_loop(spot: Spot) -> Match | None:
    """A network called once for each agent, env or sample."""
    if not isinstance(spot.node, ast.For) or not spot.calls_networks:
        return None
    if _trains(spot) or carries_over(spot.node) or _takes_batches(spot, spot.node):
        return None
    if not _asks_about_items(spot.node):
        return None
    return Match(
        "network_in_a_loop",
        "Call the network once for all items",
        "The loop calls a network for one item at a time; a batch of a few items takes hardly longer.",
        "Stack the inputs (agents, envs, samples), call the network once, and split the result.",
        (0.5, 0.84, 0.97),
        safety="rounding",
        takes="all",
        library_calls=("torch.nn", "distributions"),
    )


def _asks_about_items(loop: ast.For) -> bool:
    """Whether a call gets something of the loop's item, and nothing goes on from one call to the next.

    `for _ in range(simulations)` searches a tree, which each pass changes; a `while` loop plays an episode.
    """
    if any(isinstance(n, ast.While) for n in ast.walk(loop)):
        return False
    known = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    answers: set[str] = set()  # what calls returned is data: its methods belong to no item
    asks = False
    for statement in ast.walk(loop):
        if isinstance(statement, ast.Assign) and known & _names(statement.value, ast.Load):
            made = {name for target in statement.targets for name in _names(target, ast.Store)}
            if isinstance(statement.value, ast.Call) and not _looks_up(statement.value):
                answers |= made - known
            known |= made
        if isinstance(statement, ast.Call) and isinstance(statement.func, ast.Name | ast.Attribute):
            if dotted(statement.func).endswith((".step", ".reset")):
                return False
            given = [*statement.args, *(k.value for k in statement.keywords)]
            asks |= any(known & _names(one, ast.Load) for one in given)
        if isinstance(statement, ast.Call) and known & _names(statement.func, ast.Load):
            if isinstance(statement.func, ast.Attribute) and not (known - answers) & _names(
                statement.func, ast.Load
            ):
                continue
            method = statement.func.attr if isinstance(statement.func, ast.Attribute) else ""
            if method not in OF_TENSORS:
                return False  # each item has its own network: `policies[k](obs[k])`, `agent.act(obs)`
    return asks


def _looks_up(call: ast.Call) -> bool:
    """`policies.get(name)`: what comes back belongs to the item."""
    return dotted(call.func).rpartition(".")[2] in ("get", "pop", "setdefault", "next", "getattr")


def _takes_batches(spot: Spot, loop: ast.For) -> bool:
    """`for batch in loader`, `for i in range(0, n, size): net(x[i:i + size])`: each pass has many items."""
    iterated = loop.iter
    while isinstance(iterated, ast.Call) and dotted(iterated.func) in ("enumerate", "iter", "tqdm", "zip"):
        iterated = iterated.args[0] if iterated.args else ast.Constant(0)
    if isinstance(iterated, ast.Call):
        name = dotted(iterated.func)
        return (name in ("range", "trange") and _strides(iterated)) or name.endswith(
            (".split", ".chunk", ".array_split")
        )
    return bool(spot.names.of(dotted(iterated)) & {"DataLoader"})


def _strides(counter: ast.Call) -> bool:
    """`range(0, n, size)`, but not `range(n - 1, -1, -1)`."""
    if len(counter.args) != 3:
        return False
    step = counter.args[2]
    if isinstance(step, ast.UnaryOp):
        step = step.operand
    return not (isinstance(step, ast.Constant) and step.value == 1)


@idiom
def added_one_by_one(spot: Spot) -> Match | None:
    """`for transition in batch: buffer.add(transition)`: a call for each item."""
    if not isinstance(spot.node, ast.For) or len(spot.node.body) != 1 or _trains(spot):
        return None
    only = spot.node.body[0]
    if not isinstance(only, ast.Expr) or not isinstance(only.value, ast.Call):
        return None
    owner, _, method = dotted(only.value.func).rpartition(".")
    names = {n.id for n in ast.walk(spot.node.target) if isinstance(n, ast.Name)}
    given = {n.id for a in only.value.args for n in ast.walk(a) if isinstance(n, ast.Name)}
    if method not in ("add", "push", "store", "append", "insert", "put", "remember", "add_sample"):
        return None
    if (
        not owner
        or "?" in owner
        or not names & given
        or spot.names.of(owner) & {"list", "deque", "dict", "set"}
    ):
        return None
    defined = spot.names.definitions.get(method, ())
    if defined and not any(_writes_rows(function) for function in defined):
        return None  # a queue or a tree takes its items one by one
    return Match(
        "added_one_by_one",
        f"Add the whole batch to {owner} at once (extend), not item by item",
        "Items are taken out of the batch and stored one by one.",
        f"Use {owner}.extend(batch) (TorchRL), or write rows `position:position + n` of the preallocated "
        "arrays in one assignment.",
        (0.4, 0.85, 0.97),
        takes="all",
        library_calls=("torchrl.data", "tensordict", "replay", "buffer"),
    )


def _writes_rows(function: ast.AST) -> bool:
    """`self.observations[self.position] = observation`: a store of arrays."""
    return any(
        isinstance(n, ast.Subscript)
        and isinstance(n.ctx, ast.Store)
        and isinstance(n.value, ast.Attribute)
        and not isinstance(n.slice, ast.Constant)
        for n in ast.walk(function)
    )


@idiom
def rows_one_by_one(spot: Spot) -> Match | None:
    """`for a, b in zip(rows, others): out.append(np.mean(a - b))`: small numpy calls for each row."""
    if is_loop(spot):
        found = isinstance(spot.node, ast.For) and _loop_reduces_rows(spot, spot.node)
    else:
        found = any(_comprehension_reduces_rows(spot, one) for one in comprehensions(spot.node))
    if not found or _trains(spot) or spot.calls_networks:
        return None
    return Match(
        "rows_one_by_one",
        "Compute all rows at once with an axis argument, not row by row",
        "The loop reduces one row at a time to a number; each numpy call costs microseconds.",
        "Use whole arrays and `axis=-1`: np.mean(np.abs(a - b), axis=-1), (a == b).all(axis=-1), "
        "np.where(distance < limit, 0.0, -1.0).",
        (0.6, 0.95, 0.99),
        safety="rounding",
        takes="all",
    )


def _loop_reduces_rows(spot: Spot, loop: ast.For) -> bool:
    if carries_over(loop) or any(isinstance(s, LOOPS_AND_TRY) for s in loop.body):
        return False
    items = _elements_of(loop)
    if isinstance(loop.iter, ast.Call) and dotted(loop.iter.func) == "range":
        rows = _rows_by_index(spot, loop)
    else:
        rows = items if _iterates_rows(loop.iter) else set()
    collects = any(
        (isinstance(n, ast.Call) and dotted(n.func).endswith(".append"))
        or (isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store))
        for s in loop.body
        for n in ast.walk(s)
    )
    if not rows or not collects:
        return False
    known = set(rows)
    for statement in loop.body:
        if isinstance(statement, ast.Assign) and known & _names(statement.value, ast.Load):
            known |= {n for t in statement.targets for n in _names(t, ast.Store)}
    return _reduces(spot, loop.body, known)


def _comprehension_reduces_rows(
    spot: Spot, node: ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp
) -> bool:
    """`np.array([distance(a, g) for a, g in zip(achieved, desired)])`, with a function of the script."""
    if len(node.generators) != 1 or isinstance(node, ast.DictComp | ast.SetComp):
        return False
    first = node.generators[0]
    names = {n.id for n in ast.walk(first.target) if isinstance(n, ast.Name)}
    called = [n for n in ast.walk(node.elt) if isinstance(n, ast.Call) and _only_numpy(spot, n)]
    rows = [
        c for c in called if names & {n.id for a in c.args for n in ast.walk(a) if isinstance(n, ast.Name)}
    ]
    return bool(rows) and _iterates_rows(first.iter) and _reduces(spot, [ast.Expr(node.elt)], names)


def _rows_by_index(spot: Spot, loop: ast.For) -> set[str]:
    """The index of `for i in range(len(rows))`, if all that it does is to take rows: `rows[i]`."""
    if (
        not isinstance(loop.iter, ast.Call)
        or len(loop.iter.args) != 1
        or not isinstance(loop.target, ast.Name)
    ):
        return set()
    index, size = loop.target.id, loop.iter.args[0]
    counted = isinstance(size, ast.Call) and dotted(size.func) == "len"
    counted |= isinstance(size, ast.Subscript) and dotted(size.value).endswith(".shape")
    uses = [n for s in loop.body for n in ast.walk(s) if isinstance(n, ast.Name) and n.id == index]
    taken = [n.slice for s in loop.body for n in ast.walk(s) if isinstance(n, ast.Subscript)]
    return {index} if counted and uses and all(any(u is t for t in taken) for u in uses) else set()


def _reduces(spot: Spot, body: Sequence[ast.stmt], known: set[str]) -> bool:
    """Whether rows are reduced to numbers by numpy, here or in small functions of the script."""
    reduced = False
    for statement in body:
        if _multiplies_matrices(statement):
            return False
        for call in ast.walk(statement):
            if not isinstance(call, ast.Call):
                continue
            name = dotted(call.func)
            last = name.rpartition(".")[2]
            if is_compiled(spot, name):
                return False
            rows = known & {n.id for a in call.args for n in ast.walk(a) if isinstance(n, ast.Name)}
            if last in spot.names.functions and name.partition(".")[0] not in ("np", "numpy", "torch"):
                if not _only_numpy(spot, call):
                    return False
                reduced |= bool(rows)
            elif last in REDUCED and name.startswith(("np.", "numpy.", "torch.", "linalg.")):
                reduced |= bool(rows)
    return reduced


def _only_numpy(spot: Spot, call: ast.Call) -> bool:
    """Whether a function of the script computes a number with numpy from its arguments, and does no more."""
    defined = spot.names.definitions.get(dotted(call.func).rpartition(".")[2], ())
    if len(defined) != 1:
        return False
    function = defined[0]
    reduces = False
    for node in ast.walk(function):
        if isinstance(node, (*LOOPS_AND_TRY, ast.Yield, ast.Await, ast.Global, ast.comprehension)):
            return False
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            return False
        if isinstance(node, ast.Call):
            owner, _, last = dotted(node.func).rpartition(".")
            plain = owner in ("np", "numpy", "np.linalg", "numpy.linalg", "linalg", "math")
            builtin = dotted(node.func) in ("float", "int", "bool", "abs", "min", "max", "len")
            method = bool(owner) and last in REDUCED | {"astype", "copy"}
            if not (plain or builtin or method):
                return False
            reduces |= last in REDUCED
    return reduces and any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(function))


def _iterates_rows(iterated: ast.AST) -> bool:
    """`rows`, `zip(rows, others)`, `enumerate(rows)`: the rows themselves, not a count."""
    if isinstance(iterated, ast.Call):
        name = dotted(iterated.func)
        return name in ("zip", "enumerate") and all(_iterates_rows(a) for a in iterated.args)
    return isinstance(iterated, ast.Name | ast.Attribute | ast.Subscript)


@idiom
def tensor_rows_one_by_one(spot: Spot) -> Match | None:
    """`for i in range(b): img = x[i] * c[i]; img = img.clamp(0, 1); out[i] = img`: image by image."""
    loop = spot.node
    if not isinstance(loop, ast.For) or spot.calls_networks or _trains(spot) or carries_over(loop):
        return None
    if _takes_batches(spot, loop) or any(
        isinstance(n, LOOPS_AND_TRY) for s in loop.body for n in ast.walk(s)
    ):
        return None
    rows = _rows_taken(loop)
    if not rows or not _collects(loop):
        return None
    operations = calls = 0
    for node in (n for s in loop.body for n in ast.walk(s)):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            owner, _, last = name.rpartition(".")
            plain = name in OF_NUMBERS | {"len", "range", "slice"} or last in ("append", "tolist", "item")
            if not plain and (
                not owner or last not in OF_IMAGES or owner.partition(".")[0] in ("cv2", "PIL")
            ):
                return None  # who knows what that does, and whether it takes a batch
            calls += not plain and bool(rows & _names(node, ast.Load))
        elif isinstance(node, ast.BinOp) and not isinstance(node.op, ast.MatMult):
            operations += bool(rows & _names(node, ast.Load))
    operations += calls
    if calls < 2 or operations < LEAST_OPERATIONS:
        return None
    return Match(
        "tensor_rows_one_by_one",
        "Work on the whole batch at once, not on one row after the other",
        f"Each pass of the loop starts some {operations} small tensor operations for one "
        f"row of a batch; what an "
        "operation costs is mostly its start, whatever the size.",
        "Give every operation the whole batch: factors of each row as [n, 1, 1, 1], "
        "reductions with dim=(1, 2, 3), "
        "crops by unfold and an index for each row (or grid_sample), masks by comparing "
        "torch.arange with the "
        "bounds.",
        (0.4, 0.78, 0.95),
        safety="rounding",
        effort="hours",
        takes="all",
        chills=False,
    )


LEAST_OPERATIONS = 5  # in a pass
OF_IMAGES = frozenset(
    {"clamp", "clip", "mean", "std", "var", "flip", "roll", "pad", "abs", "sqrt", "exp", "log", "min", "max"}
    | {
        "sum",
        "norm",
        "std_mean",
        "var_mean",
        "where",
        "masked_fill",
        "rot90",
        "sign",
        "tanh",
        "sigmoid",
        "round",
    }
    | {
        "fliplr",
        "flipud",
        "square",
        "pow",
        "float",
        "div",
        "mul",
        "add",
        "sub",
        "unsqueeze",
        "squeeze",
        "clone",
    }
    | {
        "maximum",
        "minimum",
        "copy",
        "astype",
        "softmax",
        "log_softmax",
        "cumsum",
        "amax",
        "amin",
        "clamp_",
        "add_",
    }
    | {"mul_", "div_", "sub_", "zero_", "fill_", "relu", "argmax", "logsumexp"}
)


def _rows_taken(loop: ast.For) -> set[str]:
    """Names of rows of arrays (`x = batch[i, :, a:b]`, `for x in batch`) and of what is made of them."""
    numbers = isinstance(loop.iter, ast.Call) and dotted(loop.iter.func) == "range"
    counted: set[str] = set()
    if numbers:
        counted = _names(loop.target, ast.Store)
    elif isinstance(loop.target, ast.Tuple) and dotted(getattr(loop.iter, "func", loop.iter)) == "enumerate":
        counted = _names(loop.target.elts[0], ast.Store)
    rows = _elements_of(loop) - counted if not numbers and _iterates_rows(loop.iter) else set()
    for statement in loop.body:
        value = getattr(statement, "value", None)
        if not isinstance(statement, ast.Assign) or value is None:
            continue
        taken = any(
            isinstance(n, ast.Subscript) and counted & _names(n.slice, ast.Load) for n in ast.walk(value)
        )
        ends = isinstance(value, ast.Call) and dotted(value.func).endswith((".tolist", ".item"))
        if (taken or rows & _names(value, ast.Load)) and not ends:
            rows |= {name for target in statement.targets for name in _names(target, ast.Store)}
    return rows


def _collects(loop: ast.For) -> bool:
    """Whether rows are put together again: `out[i] = row`, `out.append(row)`."""
    return any(
        (isinstance(n, ast.Call) and dotted(n.func).endswith(".append"))
        or (isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store) and isinstance(n.value, ast.Name))
        for s in loop.body
        for n in ast.walk(s)
    )


@idiom
def recurrent_step_by_step(spot: Spot) -> Match | None:
    """A recurrent network called for one time step after the other on a sequence that is already there."""
    if not isinstance(spot.node, ast.For) or not spot.calls_networks or _trains(spot):
        return None
    if not carries_over(spot.node) or not (spot.names.made & RECURRENT):
        return None
    # Acting needs the step before: only a loop over recorded data can be replaced.
    words = {name.rpartition(".")[2] for name, _ in spot.calls()}
    if words & {"sample", "multinomial", "item", "act", "argmax", "step"}:
        return None
    return Match(
        "recurrent_step_by_step",
        "Run the recurrent network over the whole sequence at once",
        "The loop calls the LSTM or GRU for one time step at a time, so every step pays for the calls (and "
        "again in backward); the network takes whole sequences.",
        "Give nn.LSTM or nn.GRU the sequence [time, batch, features] in one call (instead of a cell). Where "
        "episodes end inside, split the sequence there, or reset the state by a mask for each stretch.",
        (0.5, 0.88, 0.96),
        safety="rounding",
        effort="hours",
        takes="all",
        library_calls=("torch.nn", "distributions"),
        backward=True,
    )


@idiom
def elementwise_loop(spot: Spot) -> Match | None:
    """A Python loop that computes with one element of an array, tensor or list at a time."""
    if not isinstance(spot.node, ast.For):
        return None
    loop = spot.node
    names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    arithmetic = any(has(statement, ast.BinOp, ast.AugAssign) for statement in loop.body)
    if _trains(spot) or not arithmetic or not _handles_elements(spot, loop) or _takes_batches(spot, loop):
        return None
    if _tells_others(spot, loop):
        return None  # a heap or an agent takes its items one by one
    if _calls_its_items(loop, names):
        return None  # layers of a network, each of which gets what the one before made
    if _needs_what_it_changed(loop, names):
        return None  # array expressions would give other results: tables are learnt one entry at a time
    return Match(
        "elementwise_loop",
        "Compute with whole arrays instead of element by element",
        "Each pass of this loop handles one element; on tensors and arrays an operation on one element "
        "costs as much as on thousands.",
        "Vectorise it with numpy or torch. If each element needs the one before (returns, GAE), loop over "
        "plain Python floats (tensor.tolist()) or numpy, use scipy.signal.lfilter, or compile it with "
        "numba.",
        # Measured by benchmarks/remedies.py: array expressions save 83 to 90 % of a loop over elements of an
        # array and 90 to 99 % over those of a tensor, but 35 to 60 % over plain floats (numba: nearly all).
        _SAVED_ON[_kind_of_elements(spot, loop)],
        effort="hours",
        safety="rounding",
        takes="all",
    )


def _calls_its_items(loop: ast.For, names: set[str]) -> bool:
    """`for layer in layers: x = layer(x)`, `for i in range(n): x = layers[i](x)`."""
    for node in ast.walk(loop):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr == "forward":
            called = called.value
        if isinstance(called, ast.Subscript):
            called = called.slice
        if isinstance(called, ast.Name) and called.id in names:
            return True
    return False


@idiom
def rows_changed_one_by_one(spot: Spot) -> Match | None:
    """`for i in range(len(x)): x[i].index_add_(0, index[i], values[i])`, as in categorical DQN."""
    loop = spot.node
    if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name) or _trains(spot):
        return None
    if not isinstance(loop.iter, ast.Call) or dotted(loop.iter.func) != "range":
        return None
    index = loop.target.id

    def is_row(node: ast.AST) -> bool:
        return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name) and node.slice.id == index

    for statement in loop.body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        method = call.func if isinstance(call, ast.Call) else None
        if (
            not isinstance(call, ast.Call)
            or not isinstance(method, ast.Attribute)
            or method.attr not in IN_PLACE
            or not isinstance(method.value, ast.Subscript)
            or not is_row(method.value)
            or spot.names.of(dotted(method.value.value)) != {"tensor"}
            or not any(is_row(node) for argument in call.args for node in ast.walk(argument))
            or any(
                isinstance(node, ast.Subscript) and index in _names(node.slice, ast.Load) and not is_row(node)
                for node in ast.walk(statement)
            )
        ):
            return None
    return Match(
        "rows_changed_one_by_one",
        "Change all rows of the tensor with one call",
        "Each pass changes one row; an operation on one row costs nearly as much as on all of them.",
        "Give whole tensors a dimension: x.scatter_add_(1, index, values) for rows of x.index_add_(0, ...), "
        "and x.add_(y), x.copy_(y) or x.lerp_(y, w) on the whole.",
        # Measured by benchmarks/remedies.py: 97 and 98 % for rows of 51 numbers, 62 % for rows of 7,056.
        (0.6, 0.96, 0.985),
        effort="minutes",
        safety="rounding",
        takes="all",
    )


def _kind_of_elements(spot: Spot, loop: ast.For) -> Literal["float", "tensor", "array"]:
    """What the innermost passes compute with; an operation on an element costs more in this order."""
    names = _elements_of(loop) | {
        name for inner in ast.walk(loop) if isinstance(inner, ast.For) for name in _elements_of(inner)
    }
    bases: list[ast.AST] = [
        n.value
        for n in _used_in(loop.body)
        if isinstance(n, ast.Subscript)
        and isinstance(n.ctx, ast.Load)
        and names & {inner.id for inner in ast.walk(n.slice) if isinstance(inner, ast.Name)}
    ]
    kinds = [spot.names.of(dotted(base)) for base in bases]
    if any("tensor" in kind for kind in kinds):
        return "tensor"
    if "dict" in set[str]().union(*kinds):  # plain numbers, and as many as there are moves in a game
        return "float"
    libraries = {dotted(n.func).partition(".")[0] for n in ast.walk(loop) if isinstance(n, ast.Call)}
    if libraries & {"torch", "th"}:
        return "tensor"
    if libraries & {"np", "numpy"} or not all(kind and kind <= {"list", "tuple"} for kind in kinds):
        return "array"
    loops = [loop, *(n for n in ast.walk(loop) if isinstance(n, ast.For))]
    return "float" if all(_gives_numbers(spot, one.iter) for one in loops) else "array"


def _gives_numbers(spot: Spot, iterated: ast.AST) -> bool:
    """`range(n)`, or what `tolist()` and other lists give, also through `enumerate`, `zip` and `reversed`."""
    if isinstance(iterated, ast.Call):
        name = dotted(iterated.func).rpartition(".")[2]
        if name in ("enumerate", "zip", "reversed"):
            return all(_gives_numbers(spot, argument) for argument in iterated.args)
        return name in ("range", "tolist")
    return bool(spot.names.of(dotted(iterated))) and spot.names.of(dotted(iterated)) <= {"list", "tuple"}


def _handles_elements(spot: Spot, loop: ast.For) -> bool:
    """Whether the source shows that a pass handles one element, or one column, and not a large array.

    `state = model(state, actions[t])` may be any amount of work for each pass: nobody can tell from the
    source. Numbers give themselves away: they are compared in an `if`, turned into floats, used as indices,
    given to `math`, added up backwards in time.
    """
    if any(is_compiled(spot, name) for name, _ in spot.calls()) or _multiplies_matrices(loop):
        return False
    elements = _elements_of(loop)
    if not elements:
        return False
    # `scores[i, j] = play(game)` says nothing about what `play` does.
    results = _results_of_functions(spot, loop)
    used = [node for node in _used_in(loop.body) if node not in results]

    def is_element(node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in elements
        return isinstance(node, ast.Subscript) and bool(
            elements & {n.id for n in ast.walk(node.slice) if isinstance(n, ast.Name)}
        )

    def holds_element(node: ast.AST) -> bool:
        return any(is_element(inner) for inner in ast.walk(node))

    for node in used:
        if isinstance(node, ast.Subscript):
            index = node.slice
            if "dict" in spot.names.of(dotted(node.value)):
                continue  # a key
            if isinstance(index, ast.Tuple) and holds_element(node) and not has(index, ast.Starred):
                slices = [e for e in index.elts if isinstance(e, ast.Slice)]
                plain = [e for e in index.elts if not isinstance(e, ast.Slice) and not _is_ellipsis(e)]
                # x[i, j] is one number; x[:, j] is one column, unless time runs along it.
                column = len(slices) == 1 and slices[0].lower is slices[0].upper is None
                if len(plain) == len(index.elts) or (
                    column and len(index.elts) == 2 and not carries_over(loop)
                ):
                    return True
            elif isinstance(index, ast.Name | ast.Subscript) and isinstance(node.value, ast.Subscript):
                return holds_element(node)  # x[i][j]
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            scalar = name in OF_NUMBERS or name.startswith("math.")
            if (scalar and any(holds_element(a) for a in node.args)) or (
                name.endswith(".item") and holds_element(node)
            ):
                return True
        elif isinstance(node, ast.If | ast.IfExp | ast.BoolOp):
            test = node.test if isinstance(node, ast.If | ast.IfExp) else node
            alone = test.operand if isinstance(test, ast.UnaryOp) else test
            if isinstance(alone, ast.Subscript) and is_element(alone) and not has(alone.slice, ast.Slice):
                return True  # if done[i]: an array has no truth value
            compared = [n for n in ast.walk(test) if isinstance(n, ast.Compare)]
            if any(_compares_an_element(one, loop, is_element) for one in compared):
                return True
    # Loops inside, with arithmetic on elements of both.
    inner = [n for n in used if isinstance(n, ast.For)]
    if any(_elements_of(one) and _computes_with(one, _elements_of(one) | elements) for one in inner):
        return True
    backwards = any(
        isinstance(n, ast.Call) and dotted(n.func) == "reversed" for n in ast.walk(loop.iter)
    ) or _counts_down(loop.iter)
    return backwards and any(holds_element(n) for n in used if isinstance(n, ast.BinOp | ast.AugAssign))


def _results_of_functions(spot: Spot, loop: ast.For) -> set[ast.AST]:
    """Targets of assignments whose value is a call of one of the script's functions."""
    return {
        target
        for node in ast.walk(loop)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and dotted(node.value.func).rpartition(".")[2] in spot.names.functions
        for target in node.targets
    }


def _tells_others(spot: Spot, loop: ast.For) -> bool:
    """Whether each pass calls a method of the script's for its effect: `model.insert(priority, state)`."""
    for node in ast.walk(loop):
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            function = spot.names.functions.get(call.func.attr)
            if function is not None and not purity_of(spot).function_is_pure(function, 2):
                return True
    return False


def _computes_with(loop: ast.For, elements: set[str]) -> bool:
    """Whether arithmetic in a loop has to do with its elements, or with what was made from them."""
    known = set(elements)
    for statement in loop.body:
        for node in ast.walk(statement):
            if not isinstance(node, ast.Assign) or isinstance(node.value, CONTAINERS):
                continue
            if known & _names(node.value, ast.Load):
                known |= {name for target in node.targets for name in _names(target, ast.Store)}
    return any(
        isinstance(n, ast.BinOp | ast.AugAssign)
        and known & {m.id for m in ast.walk(n) if isinstance(m, ast.Name)}
        for statement in loop.body
        for n in ast.walk(statement)
    )


def _multiplies_matrices(loop: ast.AST) -> bool:
    products = ("dot", "matmul", "einsum", "tensordot", "solve", "lstsq", "inv", "svd", "bmm", "mm")
    return has(loop, ast.MatMult) or any(name.rpartition(".")[2] in products for name in called_names(loop))


def _elements_of(loop: ast.For) -> set[str]:
    """Names that stand for an element, or its index; not `_`, which only counts."""
    return {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)} - {"_"}


def _compares_an_element(node: ast.Compare, loop: ast.For, is_element: Callable[[ast.AST], bool]) -> bool:
    """`x[i] > best`, `reward < 0` of a loop over rewards; not `step == skip` of a counter."""
    counts = isinstance(loop.iter, ast.Call) and dotted(loop.iter.func).rpartition(".")[2] in COUNTERS
    for side in (node.left, *node.comparators):
        if isinstance(side, ast.Subscript) and is_element(side):
            return True
        if not counts and isinstance(side, ast.Name) and is_element(side):
            return not isinstance(node.ops[0], ast.In | ast.NotIn | ast.Is | ast.IsNot)
    return False


def _counts_down(iterated: ast.AST) -> bool:
    """`range(n - 1, -1, -1)`."""
    return (
        isinstance(iterated, ast.Call)
        and dotted(iterated.func) == "range"
        and len(iterated.args) == 3
        and isinstance(iterated.args[2], ast.UnaryOp)
        and isinstance(iterated.args[2].op, ast.USub)
    )


def _is_ellipsis(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def is_compiled(spot: Spot, name: str) -> bool:
    """Whether a function of the file is compiled by numba, jax or torch, or made by one that compiles it."""
    if any(called.startswith("numba.") for called in spot.called):
        return True
    last = name.rpartition(".")[2]
    functions = list(spot.names.definitions.get(last, ()))
    for tree in spot.names.trees if not functions else ():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Call)
                and any(dotted(target).rpartition(".")[2] == last for target in node.targets)
            ):
                maker = dotted(node.value.func).rpartition(".")[2].removesuffix("()")
                if maker in COMPILERS:
                    return True
                functions += [
                    inner
                    for outer in spot.names.definitions.get(maker, ())
                    for inner in ast.walk(outer)
                    if isinstance(inner, ast.FunctionDef) and inner is not outer
                ]
    return any(
        dotted(d.func if isinstance(d, ast.Call) else d).rpartition(".")[2] in COMPILERS
        for function in functions
        for d in function.decorator_list
    )


def _used_in(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Everything in these statements but text and tests such as `i % 100 == 0`."""
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        yield node
        for child in ast.iter_child_nodes(node):
            of_test = isinstance(node, ast.If) and child is node.test
            if isinstance(child, ast.JoinedStr) or (of_test and has(child, ast.Mod, ast.FloorDiv)):
                continue
            todo.append(child)


def _needs_what_it_changed(loop: ast.For, names: set[str]) -> bool:
    """Whether it writes elements chosen by data (not by the loop), and reads others of the same array."""
    places = [n for s in loop.body for n in ast.walk(s) if isinstance(n, ast.Subscript)]
    written = {
        dotted(place.value)
        for place in places
        if isinstance(place.ctx, ast.Store)
        and not has(place.slice, ast.Slice)
        and not isinstance(place.slice, ast.Constant)
        and not names & {n.id for n in ast.walk(place.slice) if isinstance(n, ast.Name)}
    }
    return any(isinstance(p.ctx, ast.Load) and dotted(p.value) in written - {"?"} for p in places)


def _trains(spot: Spot) -> bool:
    """Whether a loop steps an env or learns: a loop over time, which stays."""
    return spot.trains or any(
        name.endswith((".step", ".backward", ".learn", ".train", ".reset", "_step", ".zero_grad", ".fit"))
        for name, _ in spot.calls()
    )


@idiom
def sums_of_suffixes(spot: Spot) -> Match | None:
    """`sum(g ** k * r for k, r in enumerate(rewards[t:]))` for every t."""
    steps = {
        n.id
        for loop in spot.loops
        if isinstance(loop, ast.For)
        for n in ast.walk(loop.target)
        if isinstance(n, ast.Name)
    }
    steps |= {
        n.id
        for inner in comprehensions(spot.node)
        for g in inner.generators
        for n in ast.walk(g.target)
        if isinstance(n, ast.Name)
    }
    if isinstance(spot.node, ast.For) and steps and _adds_what_is_left(spot.node, steps):
        return _adds_up_again(ast.unparse(spot.node.iter))
    if is_loop(spot):
        return None
    for name, call in spot.calls():
        if name.rpartition(".")[2] not in ("sum", "dot", "mean", "max", "min", "cumsum", "prod"):
            continue
        for inner in ast.walk(call):
            if not isinstance(inner, ast.Subscript) or not isinstance(inner.slice, ast.Slice):
                continue
            lower, upper = inner.slice.lower, inner.slice.upper
            ends = [one for one in (lower, upper) if one is not None]
            if len(ends) != 1 or not {n.id for n in ast.walk(ends[0]) if isinstance(n, ast.Name)} & steps:
                continue  # a window has two ends
            return _adds_up_again(ast.unparse(inner))
    return None


def _adds_what_is_left(loop: ast.For, steps: set[str]) -> bool:
    """`for k in range(t, n): total += g ** (k - t) * r[k]`, in a loop over t."""
    counts = isinstance(loop.iter, ast.Call) and dotted(loop.iter.func) == "range"
    used = {n.id for n in ast.walk(loop.iter) if isinstance(n, ast.Name)}
    simple = all(isinstance(s, ast.AugAssign | ast.Assign | ast.Expr) for s in loop.body)
    adds = any(isinstance(s, ast.AugAssign) and isinstance(s.op, ast.Add) for s in loop.body)
    indexed = any(isinstance(n, ast.Subscript) for s in loop.body for n in ast.walk(s))
    ends = len(loop.iter.args) if isinstance(loop.iter, ast.Call) else 0
    both = ends == 2 and isinstance(loop.iter, ast.Call) and _has_steps(loop.iter.args[1], steps)
    return counts and bool(used & steps) and simple and adds and indexed and len(loop.body) <= 3 and not both


def _has_steps(node: ast.AST, steps: set[str]) -> bool:
    return any(isinstance(n, ast.Name) and n.id in steps for n in ast.walk(node))


def _adds_up_again(what: str) -> Match:
    return Match(
        "sums_of_suffixes",
        f"Carry the sum from step to step, do not add up {what} for each of them",
        "Every step adds up all the steps after (or before) it again, so the cost grows with the square of "
        "the length.",
        "Go through the steps once, backwards for returns: g = r + gamma * g; or use a cumulative sum.",
        (0.7, 0.96, 1.0),
        takes="all",
        safety="rounding",
    )


@idiom
def computing_in_comprehensions(spot: Spot) -> Match | None:
    if is_loop(spot) or any(is_compiled(spot, name) for name, _ in spot.calls()):
        return None
    for comprehension in comprehensions(spot.node):
        if isinstance(comprehension.generators[0].iter, ast.Tuple | ast.List):
            continue  # a few things written down, not the elements of an array
        element = comprehension.value if isinstance(comprehension, ast.DictComp) else comprehension.elt
        computes = any(
            name.startswith(("math.", "np.", "numpy.", "torch."))
            and not any(is_same(name, t) for t in ("torch.from_numpy", "numpy.asarray", *TENSORS))
            for name in called_names(element)
        )
        if computes or has(element, ast.BinOp, ast.Compare):
            return Match(
                "computing_in_comprehensions",
                "Compute with whole arrays instead of a comprehension",
                "The arithmetic runs once for each element in Python.",
                "Put the values in an array once and use one numpy expression.",
                (0.6, 0.93, 0.99),
                safety="rounding",
                takes="all",
            )
    return None


@idiom
def numpy_vectorize(spot: Spot) -> Match | None:
    if not (
        call_of(spot, "numpy.vectorize", "numpy.apply_along_axis", "numpy.frompyfunc")
        or saw_call(spot, "apply_along_axis")
    ):
        return None
    return Match(
        "numpy_vectorize",
        "Replace np.vectorize or apply_along_axis by array expressions",
        "They call a Python function for each element.",
        "Write the function with array operations, or compile it with numba.",
        (0.7, 0.95, 0.99),
        effort="hours",
        safety="rounding",
    )
