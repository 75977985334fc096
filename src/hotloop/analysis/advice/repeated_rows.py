"""Networks that compute the same rows several times, because their input was repeated before.

`obs.unsqueeze(1).repeat(1, n, 1).view(b * n, -1)` pairs every observation with several actions. A network, or
an encoder in it, that sees only the repeated part computes every row n times, forwards and backwards.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from hotloop.analysis.advice.idioms import Match, idiom
from hotloop.analysis.advice.side_effects import PURE_METHODS, turns_gradients_off
from hotloop.analysis.advice.statements import FUNCTIONS, assignments
from hotloop.analysis.hot_statements import LOOPS, Spot
from hotloop.analysis.source_names import dotted

REPEATS = frozenset({"repeat", "expand", "tile", "expand_as", "repeat_interleave"})
SHAPES = frozenset({"view", "reshape", "flatten", "contiguous", "to", "float", "clone", "detach", "squeeze"})
# Layers that treat steps or rows of their input differently, and layers that draw random numbers
OF_SEQUENCES = frozenset(
    {"LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell", "Conv1d", "Conv2d", "TransformerEncoder"}
    | {"TransformerDecoder", "MultiheadAttention", "scaled_dot_product_attention", "TransformerEncoderLayer"}
)
RANDOM = frozenset({"Dropout", "dropout", "NoisyLinear"})
UNKNOWN_TIMES = (0.4, 0.8, 0.9)  # saved by computing once what was computed 2 to 10 times
SOURCES = 4  # assignments and functions that are followed


@dataclass(frozen=True)
class _Repeated:
    times: int | None  # how often each row is there; None: not known
    merged: bool  # whether the copies are rows of one batch, next to each other
    line: int


@idiom
def repeated_rows(spot: Spot) -> Match | None:
    """A network, or the part of it that sees no other input, gets rows that were repeated before."""
    if isinstance(spot.node, LOOPS) or not spot.calls_networks or RANDOM & spot.names.mentioned:
        return None
    for name, call in spot.calls():
        if not _is_network(spot, name) or len(call.args) != 1 or call.keywords:
            continue
        fraction = spot.fraction_in(call)
        if fraction is not None and fraction < 0.3:
            continue
        here = _repeated(spot, spot.scope, call.args[0])
        if here is not None:
            return _advice(spot, name, here, 1.0, not _is_quiet(spot, call))
        through, part, learns = _repeated_by_callers(spot, call.args[0])
        if through is not None:
            return _advice(spot, name, through, part, learns)
    return None


def _is_quiet(spot: Spot, node: ast.AST) -> bool:
    """Whether it runs without gradients: then no backward pass follows."""
    above = spot.names.parents.get(node)
    while above is not None:
        if isinstance(above, ast.With) and turns_gradients_off(above):
            return True
        if isinstance(above, FUNCTIONS):
            names = [dotted(d.func if isinstance(d, ast.Call) else d) for d in above.decorator_list]
            return any(name.endswith(("no_grad", "inference_mode")) for name in names)
        above = spot.names.parents.get(above)
    return False


def _advice(spot: Spot, name: str, found: _Repeated, part: float, learns: bool) -> Match | None:
    if not found.merged and OF_SEQUENCES & spot.names.mentioned:
        return None  # its copies may be the steps of a sequence
    if found.times == 1:
        return None
    least, likely, most = UNKNOWN_TIMES
    if found.times:
        most = 1 - 1 / found.times
        least, likely = 0.5 * most, 0.95 * most
    times = f"{found.times} times" if found.times else "several times"
    return Match(
        "repeated_rows",
        f"Let {name} see every row once, and repeat what it returns (the rows are "
        f"repeated in line {found.line})",
        f"`{name}` gets the same rows {times} (line {found.line} repeats them, and "
        "nothing else goes in), so it "
        "computes every result again"
        f"{', and its gradient as well' if learns else ''}.",
        f"Call {name} with the rows as they are, and repeat or expand the results, where "
        "they meet what differs "
        "(torch.cat([features.unsqueeze(1).expand(-1, n, -1), actions], -1)).",
        (least * part, likely * part, most * part),
        safety="rounding",
        effort="minutes",
        takes="all",
        library_calls=("torch.nn",),
        backward=learns,
        chills=False,
    )


def _is_network(spot: Spot, name: str) -> bool:
    """An object that is called, `critic` or `self.encoder`, and no function or method that is known."""
    owner, _, last = name.rpartition(".")
    if "?" in name or "()" in name or last in spot.names.definitions:
        return False
    if owner.partition(".")[0] in ("torch", "np", "numpy", "F", "nn", "th", "math", "jnp"):
        return False
    known = last in REPEATS | SHAPES or PURE_METHODS.match(last)
    return (
        not known and not last[0].isupper() and last not in ("len", "list", "tuple", "zip", "print", "super")
    )


def _repeated_by_callers(spot: Spot, argument: ast.expr) -> tuple[_Repeated | None, float, bool]:
    """Of a parameter that goes in alone: what callers repeat, their part of the time, whether they learn.

    Callers without gradients count only if there are no others: backward passes decide about the gain.
    """
    scope = spot.scope
    if not isinstance(scope, FUNCTIONS) or not isinstance(argument, ast.Name):
        return None, 0.0, False
    words = [a.arg for a in scope.args.args]
    offset = 1 if words[:1] == ["self"] else 0
    assigned = any(
        isinstance(n, ast.Name) and n.id == argument.id and isinstance(n.ctx, ast.Store)
        for n in ast.walk(scope)
    )
    if argument.id not in words or assigned or len(words) - offset < 2:
        return None, 0.0, False
    place = words.index(argument.id) - offset
    found: list[tuple[_Repeated, float, bool]] = []
    learning = 0.0
    for line, share in spot.callers:
        calls = [
            (call, around)
            for call, around in _calls_at(spot, line)
            if len(call.args) == len(words) - offset and _is_this(spot, scope.name, call)
        ]
        if not calls:
            continue
        learns = not _is_quiet(spot, calls[0][0])
        learning += share if learns else 0.0
        repeated = [_repeated(spot, around, call.args[place]) for call, around in calls]
        if repeated[0] is not None and all(repeated):
            found.append((repeated[0], share, learns))
    learn = any(learns for _, _, learns in found)
    part = sum(share for _, share, learns in found if learns == learn)
    whole = learning if learn else 1.0
    return (found[0][0], min(part / whole, 1.0), learn) if part > 0.1 else (None, 0.0, False)


def _is_this(spot: Spot, function: str, call: ast.Call) -> bool:
    name = dotted(call.func)
    return name.rpartition(".")[2] == function or (
        function in ("forward", "__call__") and _is_network(spot, name)
    )


def _calls_at(spot: Spot, line: int) -> Iterator[tuple[ast.Call, ast.AST]]:
    """Calls of the statement at a line, with the function around."""
    for tree in spot.names.trees:
        for function in ast.walk(tree):
            if isinstance(function, FUNCTIONS):
                for node in ast.walk(function):
                    if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or node.lineno):
                        yield node, function


def _repeated(spot: Spot, scope: ast.AST, value: ast.expr, depth: int = SOURCES) -> _Repeated | None:
    """How rows were repeated on the way to a value; None: they were not, or that is not clear."""
    if not depth:
        return None
    if isinstance(value, ast.Subscript):
        of = _repeated(spot, scope, value.value, depth - 1)
        plain = isinstance(value.slice, ast.Name | ast.Slice)
        return of if of is not None and plain and not of.merged else None  # drawn from, copies are apart
    if isinstance(value, ast.Name):
        given = [
            node.value
            for node in ast.walk(scope)
            if isinstance(node, ast.Assign) and any(dotted(target) == value.id for target in node.targets)
        ]
        ways = [_repeated(spot, scope, one, depth - 1) for one in given]
        return ways[0] if ways and all(ways) else None
    if not isinstance(value, ast.Call):
        return None
    name = dotted(value.func)
    owner, _, last = name.rpartition(".")
    if last in SHAPES and isinstance(value.func, ast.Attribute):
        inside = _repeated(spot, scope, value.func.value, depth)
        joins = last in ("view", "reshape", "flatten") and inside is not None
        return _Repeated(inside.times, True, inside.line) if joins and inside else inside
    if last in REPEATS:
        return _rows_repeated(spot, scope, value, library=owner in ("torch", "np", "numpy"))
    made = spot.names.definitions.get(last, ())
    if len(made) == 1 and (not owner or owner == "self" or "." not in owner):
        returned = [n.value for n in ast.walk(made[0]) if isinstance(n, ast.Return) and n.value is not None]
        ways = [_repeated(spot, made[0], one, depth - 1) for one in returned]
        return ways[0] if ways and all(ways) else None
    return None


def _rows_repeated(spot: Spot, scope: ast.AST, call: ast.Call, *, library: bool) -> _Repeated | None:
    """Whether it repeats rows, not features or channels: the last axis stays as it is."""
    last = dotted(call.func).rpartition(".")[2]
    sizes = list(call.args)[1 if library else 0 :]
    if last == "repeat_interleave" or (last == "repeat" and library):
        axis = [k.value for k in call.keywords if k.arg in ("dim", "axis")] + sizes[1:2]
        if not sizes or not axis or not (isinstance(axis[0], ast.Constant) and axis[0].value in (0, 1)):
            return None
        return _Repeated(_number(spot, sizes[0]), axis[0].value == 0, call.lineno)
    if last == "expand_as":
        return None
    if len(sizes) == 1 and isinstance(sizes[0], ast.Tuple | ast.List):
        sizes = list(sizes[0].elts)
    if len(sizes) < 2 or len(sizes) > 3 or not _stays(sizes[-1], last):
        return None
    wide = [
        (place, size)
        for place, size in enumerate(sizes[:-1])
        if not isinstance(size, ast.Starred) and not _stays(size, last)
    ]
    if last == "expand" and not isinstance(call.func, ast.Attribute):
        return None
    if not wide:
        return None
    place, size = wide[-1]
    first = place == 0 and last in ("repeat", "tile")
    return _Repeated(_number(spot, size), first, call.lineno)


def _stays(size: ast.expr, how: str) -> bool:
    """`1` of repeat, `-1` or `x.shape[-1]` of expand: that axis is not repeated."""
    if isinstance(size, ast.UnaryOp):
        return how == "expand"
    if isinstance(size, ast.Constant):
        return size.value == 1 and how != "expand"
    taken = (
        size.value if isinstance(size, ast.Subscript) else size.func if isinstance(size, ast.Call) else None
    )
    return how == "expand" and taken is not None and dotted(taken).endswith((".shape", ".size"))


def _number(spot: Spot, value: ast.expr) -> int | None:
    """A number that is written down, or that a name gets as its only default: `n_agents=5`, `--n-agents`."""
    if isinstance(value, ast.Constant):
        return value.value if isinstance(value.value, int) else None
    names = {dotted(value).rpartition(".")[2]}
    nodes = [node for tree in spot.names.trees for node in ast.walk(tree)]
    found: set[object] = set()
    for _ in range(2):  # `n = self.world.n_agents`
        for target, given in (pair for node in nodes for pair in assignments(node)):
            if dotted(target).rpartition(".")[2] not in names:
                continue
            if isinstance(given, ast.Name | ast.Attribute) and dotted(given).rpartition(".")[2] != "shape":
                names.add(dotted(given).rpartition(".")[2])
            else:
                found.add(given.value if isinstance(given, ast.Constant) else None)
    for call in (node for node in nodes if isinstance(node, ast.Call) and node.args):
        option = call.args[0].value if isinstance(call.args[0], ast.Constant) else ""
        if dotted(call.func).endswith("add_argument") and _as_name(option) in names:
            values = [k.value for k in call.keywords if k.arg == "default"]
            found |= {one.value for one in values if isinstance(one, ast.Constant)}
    number = next(iter(found)) if len(found) == 1 else None
    return number if isinstance(number, int) and number > 0 else None


def _as_name(option: object) -> str:
    return str(option).lstrip("-").replace("-", "_")
