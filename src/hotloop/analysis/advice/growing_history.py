"""Results of all that a container holds, computed again from its first item while the container grows."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from hotloop.analysis.advice.idioms import Match
from hotloop.analysis.advice.side_effects import Effects, effects_of, made_inside, purity_of, runs_quietly
from hotloop.analysis.advice.statements import COMPREHENSIONS, FUNCTIONS
from hotloop.analysis.hot_statements import LOOPS, Spot
from hotloop.analysis.source_names import Names, dotted

GATHERS = frozenset(
    {"stack", "array", "asarray", "concatenate", "cat", "tensor", "as_tensor", "vstack", "FloatTensor"}
    | {"mean", "std", "sum", "max", "min", "median", "var"}
)


def old_items_again(spot: Spot) -> Match | None:
    """A list made from all the items of a container that grows with the run, at every pass."""
    if not isinstance(spot.node, ast.Assign) or spot.calls_networks or spot.trains:
        return None
    value = spot.node.value
    if not isinstance(value, ast.ListComp | ast.DictComp | ast.SetComp):
        return None
    first = value.generators[0].iter
    name = dotted(first)
    inside: Iterable[ast.AST] = [value.value] if isinstance(value, ast.DictComp) else [value.elt]
    if "?" in name or "(" in name or not _grows(spot, name):
        return None
    effects = Effects()
    for node in inside:
        effects |= effects_of(spot.names, node)
    if not effects.pure:
        return None
    loop = next((one for one in spot.loops if isinstance(one, LOOPS)), None)
    if loop is not None:
        plain = {a for s in loop.body if s is not spot.node for a in effects_of(spot.names, s).changes}
        if plain & effects.reads - {name.rpartition(".")[2]}:
            return None
    return Match(
        "old_items_again",
        f"Compute it for new items of {name} only, and keep the old results",
        f"{name} grows during the run, and every pass computes the results of all its items again, of old "
        "ones too.",
        "Keep the list of results and append those of the new items (or keep it up to date where items are "
        "added and dropped).",
        (0.4, 0.8, 0.97),
        takes="all",
    )


def _grows(spot: Spot, name: str) -> bool:
    """Whether items are added to it during the run, and it is not emptied."""
    added = emptied = False
    own = f"self.{name.rpartition('.')[2]}" if "." in name else name
    trees: Iterable[ast.AST] = spot.names.trees if "." in name else [spot.scope]
    around = next((one for one in reversed(spot.loops) if isinstance(one, LOOPS)), None)
    if "." not in name and around is not None:
        trees = [around]
    constructors = {
        inner
        for tree in trees
        for f in ast.walk(tree)
        if isinstance(f, FUNCTIONS) and f.name in ("__init__", "__post_init__")
        for inner in ast.walk(f)
    }
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if dotted(node.func.value) in (name, own):
                    added |= node.func.attr in ("append", "extend", "add", "appendleft")
                    emptied |= node.func.attr == "clear"
            elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
                added |= dotted(node.target) in (name, own)
            elif isinstance(node, ast.Assign) and node not in constructors:
                stored = {dotted(t) for target in node.targets for t in ast.walk(target)}
                emptied |= bool(stored & {name, own})
            elif isinstance(node, ast.For | ast.comprehension):
                emptied |= bool({name, own} & {dotted(t) for t in ast.walk(node.target)})
    return added and not emptied


def history_again(spot: Spot) -> Match | None:
    """A result of everything that happened so far, computed from its beginning at every step."""
    node = spot.node
    if isinstance(node, ast.For):
        held, inside = node.iter, list(node.body)
    elif isinstance(node, ast.Assign | ast.Return | ast.AnnAssign) and node.value is not None:
        whole = _taken_as_a_whole(spot, node.value)
        loops = [n for n in ast.walk(node.value) if isinstance(n, COMPREHENSIONS)]
        if whole is not None:
            held, inside = whole, []
            if not spot.calls_networks and not effects_of(spot.names, node).pure:
                return None
        elif len(loops) != 1 or loops[0].generators[0].ifs:
            return None
        else:
            held, inside = loops[0].generators[0].iter, [node]
    else:
        return None
    if isinstance(held, ast.Call) and dotted(held.func) in ("enumerate", "list", "reversed", "zip", "tuple"):
        held = held.args[0] if held.args else held
    name = dotted(held)
    if "?" in name or "(" in name or not spot.names.is_appended(name) or "deque" in spot.names.of(name):
        return None
    if spot.trains or (spot.calls_networks and inside):
        return None
    if spot.calls_networks and not (runs_quietly(spot, node) or purity_of(spot).quiet):
        return None
    effects = Effects()
    own = frozenset(made_inside(spot.scope))
    for one in inside:
        effects |= effects_of(spot.names, one, own)
    if not effects.pure or effects.networks:
        return None
    attribute = name.rpartition(".")[2]
    loop = _loop_that_appends(spot, name, effects.reads - {attribute})
    if loop is None:
        return None
    if not inside and not spot.calls_networks and _only_gathers(node):
        return Match(
            "history_again",
            f"Keep {name} in a preallocated array, and use its filled part",
            f"Every pass of the loop in line {loop.lineno} adds to {name}, and gathers all of its items in a "
            "new array: the cost grows with the square of its length.",
            "Preallocate the array (capacity, ...), write row `count` when an item comes, and use "
            "`memory[:count]`, which copies nothing.",
            # Writing a row takes microseconds; what follows reads the same data, so caches stay as warm.
            (0.4, 0.75, 0.95),
            chills=False,
        )
    return Match(
        "history_again",
        f"Keep the result and add only the newest item of {name}, not all of them at every step",
        f"Every pass of the loop in line {loop.lineno} adds to {name}, and computes this again from its "
        "first item: the cost grows with the square of its length.",
        "Keep the result of the step before and apply only the newest item to it (a running sum, a "
        "recursive filter, the state of a recurrent network, an incremental update).",
        (0.5, 0.92, 0.99) if inside or spot.calls_networks else (0.85, 0.98, 1.0),
        takes="all",
        library_calls=("torch.nn.",) if spot.calls_networks else (),
        walks_memory=not inside,
    )


def _only_gathers(node: ast.AST) -> bool:
    """`known = torch.stack(self.memory)`: an array of all items, and nothing else."""
    value = getattr(node, "value", None)
    return (
        isinstance(value, ast.Call)
        and dotted(value.func).rpartition(".")[2] in GATHERS
        and bool(value.args)
        and isinstance(value.args[0], ast.Name | ast.Attribute)
    )


def _taken_as_a_whole(spot: Spot, value: ast.expr) -> ast.expr | None:
    """`history` of `net(torch.stack(history))`."""
    for call in ast.walk(value):
        if (
            isinstance(call, ast.Call)
            and dotted(call.func).rpartition(".")[2] in GATHERS
            and call.args
            and isinstance(call.args[0], ast.Name | ast.Attribute)
            and spot.names.is_appended(dotted(call.args[0]))
        ):
            return call.args[0]
    return None


def _loop_that_appends(spot: Spot, name: str, reads: frozenset[str]) -> ast.stmt | None:
    """A loop each pass of which both adds to a container and runs the spot, and changes nothing it reads."""
    attribute = name.rpartition(".")[2]
    loops = [one for one in spot.loops if isinstance(one, LOOPS) and one is not spot.node]
    places: list[tuple[ast.AST, ast.stmt]] = [(spot.node, loops[0])] if loops else []
    if not loops and isinstance(spot.scope, FUNCTIONS) and "." in name:
        places = _calling_loops(spot.names, spot.scope.name, 2)
    for call, loop in places:
        adds = [n for n in _always_run(loop) if _adds_to(spot.names, n, attribute, 2)]
        changes = effects_of(spot.names, loop).changes
        runs = call in getattr(loop, "body", ()) or any(call in ast.walk(s) for s in _always_run(loop))
        if adds and runs and not reads & changes:
            return loop
    return None


def _calling_loops(names: Names, function: str, levels: int) -> list[tuple[ast.AST, ast.stmt]]:
    """Calls of a function, or of functions that call it, with the loops around them."""
    found: list[tuple[ast.AST, ast.stmt]] = []
    for call in names.calls_of(function):
        above = names.parents.get(call)
        while above is not None and not isinstance(above, (*FUNCTIONS, *LOOPS)):
            above = names.parents.get(above)
        if isinstance(above, LOOPS):
            found.append((call, above))
        elif isinstance(above, FUNCTIONS) and levels:
            found += _calling_loops(names, above.name, levels - 1)
    return found


def _always_run(loop: ast.AST) -> Iterator[ast.stmt]:
    """Statements of a loop that every pass runs: those under an `if` or in an inner loop are left out."""
    for child in getattr(loop, "body", ()):
        if isinstance(child, ast.With | ast.AsyncWith | ast.Try):
            yield from _always_run(child)
        elif isinstance(child, ast.stmt) and not isinstance(child, (ast.If, *LOOPS)):
            yield child


def _adds_to(names: Names, node: ast.AST, attribute: str, depth: int) -> bool:
    """Whether it appends to a container of that name, itself or through functions that it calls."""
    for call in ast.walk(node):
        if not isinstance(call, ast.Call):
            continue
        owner, _, last = dotted(call.func).rpartition(".")
        if last in ("append", "extend", "appendleft") and owner.rpartition(".")[2] == attribute:
            return True
        functions = names.definitions.get(last, ())
        if depth and any(
            any(_adds_to(names, s, attribute, depth - 1) for s in _always_run(f)) for f in functions
        ):
            return True
    return False
