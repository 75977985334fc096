"""Data that are prepared whenever they are drawn from a memory, though they could be prepared when stored."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hotloop.analysis.advice.idioms import Match, idiom
from hotloop.analysis.advice.side_effects import DRAWS
from hotloop.analysis.advice.statements import FUNCTIONS
from hotloop.analysis.hot_statements import LOOPS, Spot
from hotloop.analysis.source_names import dotted

MEMORY = re.compile(r"(Replay|Buffer|Memory|Dataset)\w*$")
DRAWN = frozenset({"sample", "sample_batch", "__getitem__", "__getitems__", "get_batch", "draw"})
# What makes data smaller: pictures of half the width, grey ones
SHRINKS = frozenset(
    {
        "avg_pool2d",
        "max_pool2d",
        "adaptive_avg_pool2d",
        "interpolate",
        "resize",
        "cvtColor",
        "rescale",
        "zoom",
    }
    | {"downscale_local_mean", "block_reduce", "rgb_to_grayscale", "rgb2gray", "to_grayscale", "area_resize"}
)
AUGMENTS = re.compile(r"rand|noise|augment|jitter|crop|flip|cutout|shift", re.IGNORECASE)


@idiom
def prepared_at_every_draw(spot: Spot) -> Match | None:
    """A transform of the replay buffer makes pictures small whenever a batch is drawn."""
    scope = spot.scope
    if isinstance(spot.node, LOOPS) or not isinstance(scope, FUNCTIONS) or spot.calls_networks or spot.trains:
        return None
    if not _shrinks(scope) or _draws(scope):
        return None
    if scope.name in DRAWN:
        memory = f"`{spot.function}`" if _shrinks(spot.node) else ""
    else:
        memory = _transform_of_a_memory(spot) or _called_when_drawn(spot, scope.name)
    if not memory:
        return None
    return Match(
        "prepared_at_every_draw",
        f"Store what `{spot.function}` returns; do not compute it again for every batch that is drawn",
        f"It makes the data smaller whenever {memory} is drawn from, each item again in "
        "every batch that it is "
        "part of, and the memory holds (and gathers) the large form.",
        "Apply it once, before the data are stored (the policy has often computed it "
        "already), and keep the small "
        "form only.",
        (0.6, 0.93, 0.99),
        effort="hours",
        takes="all",
        library_calls=("torch",),
        also_called=("torchrl.data.replay_buffers",) if "transform" in memory else (),
        walks_memory=True,
    )


def _shrinks(function: ast.AST) -> bool:
    """Whether its result is smaller than what it gets, by what it calls or by strides: `x[::2, ::2]`."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in SHRINKS:
            return True
        if isinstance(node, ast.Slice) and isinstance(node.step, ast.Constant):
            step = node.step.value
            if isinstance(step, int) and step > 1:
                return True
    return False


def _draws(function: ast.AST) -> bool:
    """Whether it augments: other numbers at each draw are the point of it."""
    names = [dotted(n.func).rpartition(".")[2] for n in ast.walk(function) if isinstance(n, ast.Call)]
    return any(DRAWS.match(name) or AUGMENTS.search(name) for name in names)


def _transform_of_a_memory(spot: Spot) -> str:
    """The kind of replay buffer that gets an object of this class, or this function, as its transform."""
    owner = spot.function.rpartition(".")[0].rpartition(".")[2]
    wanted = {owner} if owner else {spot.function}
    for tree in spot.names.trees:
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = dotted(node.func)
            last = name.rpartition(".")[2]
            given: list[ast.expr] = []
            if MEMORY.search(last):
                given = [k.value for k in node.keywords if (k.arg or "").endswith("transform")]
            elif last == "append_transform" and any(
                MEMORY.search(kind) for kind in _made_by(spot, name.rpartition(".")[0])
            ):
                given = [*node.args, *(k.value for k in node.keywords)]
                last = name.rpartition(".")[0]
            for value in given:
                if wanted & _classes_in(spot, value):
                    return f"`{last}` (its transform)"
    return ""


def _made_by(spot: Spot, name: str) -> Iterator[str]:
    for tree in spot.names.trees:
        for node in ast.walk(tree):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                continue
            if any(dotted(t) == name for t in node.targets):
                yield dotted(node.value.func).rpartition(".")[2]


def _classes_in(spot: Spot, value: ast.expr) -> set[str]:
    """Names in `Compose(Shrink(...), ToTensor())`, and what a name was assigned."""
    found = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
    for name in [*found]:
        for tree in spot.names.trees:
            for node in ast.walk(tree):
                if isinstance(node, ast.Assign) and any(dotted(t) == name for t in node.targets):
                    found |= {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
    return found


def _called_when_drawn(spot: Spot, function: str) -> str:
    """The `sample` or `__getitem__` of the script that calls this function, on what it keeps; "": none."""
    for name in DRAWN:
        for drawn in spot.names.definitions.get(name, ()):
            for call in ast.walk(drawn):
                if not isinstance(call, ast.Call) or dotted(call.func).rpartition(".")[2] != function:
                    continue
                lines = {line for line, share in spot.callers if share > 0.3}
                if not lines or lines & set(range(call.lineno, (call.end_lineno or call.lineno) + 1)):
                    return f"`{name}`"
    return ""
