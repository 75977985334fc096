"""Results that are computed again because of how a function is called.

`repeated_work` looks at one function. Here the loop is often in a caller: `observe(agent)` is called for
every agent and computes all distances each time. A call can be saved if nothing that it reads has changed
since. What a function reads and changes is known by names of attributes, through the functions that it
calls.
"""

from __future__ import annotations

import ast
import re

from hotloop.analysis.advice.growing_history import history_again, old_items_again
from hotloop.analysis.advice.idioms import Match
from hotloop.analysis.advice.side_effects import (
    BUILTINS,
    DEEPEST,
    DRAWS,
    EFFECTS,
    MODULES,
    effects_of,
    names_mutated,
    purity_of,
    runs_quietly,
    turns_gradients_off,
)
from hotloop.analysis.advice.statements import (
    COMPREHENSIONS,
    FUNCTIONS,
    all_names,
    assignments,
    names_stored,
    simple_statements,
)
from hotloop.analysis.hot_statements import LOOPS, Spot
from hotloop.analysis.source_names import Names, dotted

MOST_CALLED = 0.6  # part of the time of a function that has to come through such calls


def recomputed(spot: Spot) -> Match | None:
    """The first of these that the statement or loop shows."""
    if isinstance(spot.node, ast.For):
        return history_again(spot)
    if isinstance(spot.node, LOOPS) or not isinstance(spot.node, ast.stmt):
        return None
    return (
        same_call_twice(spot)
        or same_in_the_loop(spot)
        or targets_in_the_loop(spot)
        or same_for_every_item(spot)
        or from_fixed_data(spot)
        or fixed_method(spot)
        or old_items_again(spot)
        or history_again(spot)
        or read_under_a_condition(spot)
        or overwritten_by_the_caller(spot)
        or total_of_a_tree(spot)
    )


# -- the same twice in a row -------------------------------------------------------------------------------


def same_call_twice(spot: Spot) -> Match | None:
    """`action = net(obs)[0]` and then `value = net(obs)[1]`: the same call with the same arguments."""
    node = spot.node
    block = _block_of(spot.names, node)
    if node not in block or spot.trains:
        return None
    before = block[: block.index(node)]
    for name, call in spot.calls():
        last = name.rpartition(".")[2]
        own = last in spot.names.functions
        network = (
            spot.calls_networks and not own and bool(call.args) and name.partition(".")[0] not in MODULES
        )
        if "?" in name or "()" in name or not (own or network) or EFFECTS.match(last):
            continue
        effects = effects_of(spot.names, call)
        if not effects.pure or (effects.networks and "Dropout" in spot.names.mentioned):
            continue
        text, used = ast.dump(call), all_names(call)
        for place in range(len(before) - 1, -1, -1):
            earlier = before[place]
            if not any(isinstance(n, ast.Call) and ast.dump(n) == text for n in ast.walk(earlier)):
                continue
            between = before[place:]
            stored = {n for s in between for n in names_stored(s)}
            later = [effects_of(spot.names, s) for s in before[place + 1 :]]
            asked = isinstance(earlier, ast.If) and text in {ast.dump(n) for n in ast.walk(earlier.test)}
            if used & stored or (isinstance(earlier, (ast.If, *LOOPS)) and not asked):
                break
            if any(e.unknown or e.changes & effects.reads or (e.changes and network) for e in later):
                break
            return Match(
                "same_call_twice",
                f"Call {ast.unparse(call)[:50]} once, not again (line {earlier.lineno} has the result)",
                f"Line {earlier.lineno} made the same call, and nothing that it needs has changed since.",
                "Keep the result of the first call and use it here.",
                (0.5, 0.9, 0.99),
                part=call,
                takes="all",
                library_calls=("torch",),
                chills=False,
            )
    return None


def _block_of(names: Names, node: ast.AST) -> list[ast.stmt]:
    """The statements among which a statement stands."""
    above = names.parents.get(node)
    for field in ("body", "orelse", "finalbody"):
        block = getattr(above, field, None)
        if isinstance(block, list) and node in block:
            return block
    return []


# -- the same at every pass of the loop around -------------------------------------------------------------


def same_in_the_loop(spot: Spot) -> Match | None:
    """`if i in board.legal_moves()`, in a loop over i: a function of the script that finds nothing new."""
    loop = next((one for one in spot.loops if isinstance(one, ast.For)), None)
    if loop is None or spot.trains or _does_unknown_things(spot.names, loop):
        return None
    purity = purity_of(spot)
    stored = names_stored(loop) | {
        n
        for s in simple_statements(loop)
        if not effects_of(spot.names, s).pure
        for n in names_mutated(s, purity)
    }
    for name, call in spot.calls():
        last = name.rpartition(".")[2]
        if last not in spot.names.functions or "?" in name or "()" in name:
            continue
        effects = effects_of(spot.names, call)
        used = {n for part in (call.func, *call.args, *call.keywords) for n in all_names(part)}
        if used & stored or not effects.pure or (effects.networks and not runs_quietly(spot, call)):
            continue
        changes = effects_of(spot.names, loop).changes
        if effects.reads & changes or not effects.reads or _trained_below(spot, used):
            continue
        if _changed_by_alias(spot.names, effects.reads):
            continue
        return Match(
            "same_in_the_loop",
            f"Call {name}(...) once before the loop (line {loop.lineno}), not at every pass",
            f"Nothing that `{name}` reads changes in that loop, so every pass gets the same result.",
            "Move the call in front of the loop and use its result there.",
            (0.6, 0.95, 0.99),
            part=call,
            takes="all",
            library_calls=("torch",),
            chills=False,
        )
    return None


LEARNING = frozenset({"backward", "zero_grad", "clip_grad_norm_", "append", "item"})


def _does_unknown_things(names: Names, loop: ast.AST) -> bool:
    """Whether a loop calls something that may change anything: an env, a function that is not known."""
    for call in ast.walk(loop):
        if not isinstance(call, ast.Call):
            continue
        last = dotted(call.func).rpartition(".")[2]
        learns = last in LEARNING or (last == "step" and not call.args)
        if not learns and not DRAWS.match(last) and effects_of(names, call).unknown:
            return True
        known = last in names.definitions or "." in dotted(call.func) or dotted(call.func) in BUILTINS
        if not known and not learns:
            return True
    return False


def _changed_by_alias(names: Names, attributes: frozenset[str]) -> bool:
    """Whether one of these is changed in place under another name: `p = self.pos; p += v`, or by `out=`."""
    for tree in names.trees:
        aliases = {
            target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Attribute)
            and node.value.attr in attributes
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.AugAssign) and all_names(node.target) & aliases:
                return True
            if (
                isinstance(node, ast.Subscript)
                and isinstance(node.ctx, ast.Store)
                and all_names(node.value) & aliases
            ):
                return True
            if isinstance(node, ast.keyword) and node.arg == "out":
                given = {n.attr for n in ast.walk(node.value) if isinstance(n, ast.Attribute)}
                if given & attributes or all_names(node.value) & aliases:
                    return True
    return False


def _trained_below(spot: Spot, used: set[str]) -> bool:
    """Whether one of these names is, or may be, a network that an optimizer changes."""
    if not spot.calls_networks:
        return False
    trained = trained_names(spot.names)
    return not trained or bool({name.partition(".")[0] for name in trained} & used)


OPTIMIZERS = ("Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "LBFGS")


def trained_names(names: Names) -> frozenset[str]:
    """Networks whose parameters an optimizer gets: `net` of `Adam(net.parameters())`; empty if unclear."""
    found: set[str] = set()
    for tree in names.trees:
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not dotted(node.func).endswith(OPTIMIZERS) or not node.args:
                continue
            given = {
                dotted(n.func).removesuffix(".parameters")
                for n in ast.walk(node.args[0])
                if isinstance(n, ast.Call) and dotted(n.func).endswith(".parameters")
            }
            if not given:
                return frozenset()
            found |= given
    return frozenset(found)


# -- the same for every item of a caller's loop --------------------------------------------------------------


def same_for_every_item(spot: Spot) -> Match | None:
    """A function that is called for each item, or each step of a plan, computes what all of them share."""
    scope = spot.scope
    if not isinstance(scope, FUNCTIONS) or scope.name.startswith("__"):
        return None
    call = _shared_call(spot, scope) or _shared_reduction(spot, scope)
    if call is None:
        return None
    what = dotted(call.func)
    effects = effects_of(spot.names, call)
    if not effects.pure:
        return None
    if effects.reads & effects_of(spot.names, scope).changes or _changed_by_alias(spot.names, effects.reads):
        return None
    where = _repeated_by_callers(spot, scope.name, effects.reads, 2)
    if where is None:
        return None
    return Match(
        "same_for_every_item",
        f"Call {what}() once, not again for each item (the loop is in line {where})"
        if what not in WHOLE
        else f"Compute {ast.unparse(call)[:60]} once, not again for each item (the loop is in line {where})",
        f"`{scope.name}` is called in a loop (line {where}), and nothing that `{what}` reads changes there: "
        "every pass computes the same again.",
        f"Call it once before that loop and hand the result to `{scope.name}` (or keep it until something "
        "changes); better still, compute all items from it with whole arrays.",
        (0.5, 0.92, 0.99),
        takes="all",
        effort="hours",
    )


def _shared_call(spot: Spot, scope: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.Call | None:
    """A call of a function of the script with nothing that depends on the arguments of this one."""
    given = {a.arg for a in ast.walk(scope.args) if isinstance(a, ast.arg)} - {"self", "cls"}
    tainted = _depending_on(scope, given)
    if not given:
        return None  # nothing tells the calls apart: the caller is the place to look at
    for name, call in spot.calls():
        last = name.rpartition(".")[2]
        if last not in spot.names.functions or last == scope.name:
            continue
        used = {n.id for n in ast.walk(call) if isinstance(n, ast.Name)}
        if not used & tainted:
            return call
    return None


WHOLE = frozenset({"sum", "max", "min", "any", "all", "sorted", "list", "tuple", "set", "dict"})


def _shared_reduction(spot: Spot, scope: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.Call | None:
    """`sum(c.visits for c in self.children)` in a function with arguments, none of which it needs."""
    value = getattr(spot.node, "value", None)
    if not isinstance(spot.node, ast.Assign | ast.AnnAssign) or not isinstance(value, ast.Call):
        return None
    given = {a.arg for a in ast.walk(scope.args) if isinstance(a, ast.arg)} - {"self", "cls"}
    reads_attributes = any(isinstance(n, ast.Attribute) for a in value.args for n in ast.walk(a))
    name = dotted(value.func)
    library = name.partition(".")[0] in MODULES and "." in name
    # Without arguments, calls differ by the random numbers that they draw.
    if not (given or effects_of(spot.names, scope).unknown) or not reads_attributes:
        return None
    if not (name in WHOLE or library):
        return None
    bound = {n for c in ast.walk(value) if isinstance(c, ast.comprehension) for n in all_names(c.target)}
    used = all_names(value) - bound
    return value if not used & _depending_on(scope, given) else None


def _depending_on(scope: ast.AST, given: set[str]) -> set[str]:
    """Names whose values depend on these, or on a loop."""
    tainted = set(given)
    while True:
        more: set[str] = set()
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                stored = {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
                if isinstance(node, ast.AugAssign) or tainted & all_names(node.value):
                    more |= stored
            elif isinstance(node, ast.For | ast.comprehension):
                more |= all_names(node.target)
        if more <= tainted:
            return tainted
        tainted |= more


def _repeated_by_callers(spot: Spot, function: str, reads: frozenset[str], levels: int) -> int | None:
    """Line of a loop that calls a function again while nothing that was read changes; None: there is none."""
    hot = dict(spot.callers)
    good = 0.0
    where: dict[int, float] = {}
    for call in [*spot.names.calls_of(function), *_given_as_key(spot.names, function)]:
        span = range(call.lineno, (call.end_lineno or call.lineno) + 1)
        share = max((hot.get(line, 0.0) for line in span), default=0.0)
        loop = _loop_around(spot.names, call)
        if isinstance(call, ast.Call) and loop is not None and _other_object(call, loop):
            continue
        if loop is None:
            around = _function_around(spot.names, call)
            if around is None or not levels or reads & effects_of(spot.names, around).changes:
                continue
            line = _repeated_by_callers(spot, around.name, reads, levels - 1)
        else:
            line = loop.lineno if not reads & effects_of(spot.names, loop).changes else None
        if line is not None and line not in where:
            where[line] = share
            good += share
    known = levels == 2 and bool(hot)
    if not where or (known and good < MOST_CALLED):
        return None
    return max(where, key=lambda line: where[line])


KEYED = frozenset({"max", "min", "sorted", "sort", "map", "filter", "nlargest", "nsmallest", "groupby"})


def _loop_around(names: Names, node: ast.AST) -> ast.For | ast.ListComp | None:
    """The innermost loop around a node in the same function; `max(x, key=lambda ...)` is a loop, too."""
    above = names.parents.get(node)
    inside = False  # a lambda that something calls for each item
    while above is not None and not isinstance(above, FUNCTIONS):
        if isinstance(above, (*LOOPS, *COMPREHENSIONS)):
            return above  # type: ignore[return-value]
        if isinstance(above, ast.Call) and dotted(above.func).rpartition(".")[2] in KEYED and inside:
            return above  # type: ignore[return-value]
        inside |= isinstance(above, ast.Lambda | ast.keyword)
        above = names.parents.get(above)
    return None


def _given_as_key(names: Names, function: str) -> list[ast.expr]:
    """`self.score` of `max(children, key=self.score)`: a function that is handed over, not called."""
    return [
        keyword.value
        for tree in names.trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "key"
        and isinstance(keyword.value, ast.Name | ast.Attribute)
        and dotted(keyword.value).rpartition(".")[2] == function
    ]


def _other_object(call: ast.Call, loop: ast.AST) -> bool:
    """Whether each pass calls the method of another object: `for node in nodes: node.score(x)`."""
    root = dotted(call.func).partition(".")[0]
    if not isinstance(call.func, ast.Attribute) or root in ("self", "?"):
        return False
    return any(
        isinstance(n, ast.Name) and n.id == root and isinstance(n.ctx, ast.Store) for n in ast.walk(loop)
    )


def _function_around(names: Names, node: ast.AST) -> ast.FunctionDef | None:
    above = names.parents.get(node)
    while above is not None:
        if isinstance(above, ast.FunctionDef):
            return above
        above = names.parents.get(above)
    return None


# -- computed from data that never changes -------------------------------------------------------------------


def from_fixed_data(spot: Spot) -> Match | None:
    """A result of data that only the constructor sets, for an item or a stretch of them."""
    scope = spot.scope
    if not isinstance(scope, FUNCTIONS) or scope.name in ("__init__", "__post_init__"):
        return None
    for name, call in spot.calls():
        last = name.rpartition(".")[2]
        if last not in spot.names.functions or last == scope.name or not call.args or call.keywords:
            continue
        if not all(_is_part_of_fixed(spot, scope, argument) for argument in call.args):
            continue
        effects = effects_of(spot.names, call)
        function = spot.names.functions[last]
        if not effects.pure or effects.networks or not _reads_fixed_only(spot, function):
            continue
        return Match(
            "from_fixed_data",
            f"Precompute {name}(...) once for all the data, and look it up",
            "It is computed again from data that only the constructor sets, so the same results come back "
            f"each time `{scope.name}` is called.",
            "Compute the results for all items (or for the whole series, if each value depends only on what "
            "comes before it) once in the constructor, and take a slice or an item of them here; or cache "
            "them by index.",
            (0.7, 0.96, 1.0),
            takes="all",
        )
    return None


def fixed_method(spot: Spot) -> Match | None:
    """`Ad, Bd = self._discretise()` in every step: it reads nothing but what the constructor has set."""
    scope = spot.scope
    if not isinstance(scope, FUNCTIONS) or scope.name in ("__init__", "__post_init__") or spot.calls_networks:
        return None
    for name, call in spot.calls():
        last = name.rpartition(".")[2]
        if name != f"self.{last}" or last == scope.name or call.args or call.keywords:
            continue
        defined = spot.names.definitions.get(last, ())
        if len(defined) != 1 or not _reads_fixed_only(spot, defined[0]):
            continue
        effects = effects_of(spot.names, call)
        reads = {
            n.attr for n in ast.walk(defined[0]) if isinstance(n, ast.Attribute) and dotted(n.value) == "self"
        }
        if (
            not reads
            or not effects.pure
            or effects.networks
            or _changed_by_alias(spot.names, frozenset(reads))
        ):
            continue
        fills = {n for s in simple_statements(scope) for n in names_mutated(s, purity_of(spot))}
        if fills & {
            n for target, value in assignments(spot.node) if value is call for n in all_names(target)
        }:
            continue  # a new array that is filled here
        return Match(
            "fixed_method",
            f"Call {name}() once, in the constructor, and keep the result",
            f"`{last}` reads only what the constructor sets ({', '.join(sorted(reads)[:4])}), so every call "
            "computes the same again.",
            "Compute it at the end of the constructor (again where one of these is set), "
            "keep it as an attribute, "
            "and use that here.",
            (0.6, 0.95, 1.0),
            part=call,
            takes="all",
            library_calls=("torch",),
            chills=False,
        )
    return None


def _is_part_of_fixed(spot: Spot, scope: ast.AST, value: ast.AST, depth: int = 3) -> bool:
    """`self.data`, `self.data[i]["rewards"]`, `self.prices[:self.day]`: the data are fixed."""
    while isinstance(value, ast.Subscript):
        value = value.value
    if isinstance(value, ast.Attribute):
        return dotted(value).startswith("self.") and spot.names.is_set_once(dotted(value))
    if not isinstance(value, ast.Name) or not depth:
        return False
    assigned = [pair for node in ast.walk(scope) for pair in assignments(node) if dotted(pair[0]) == value.id]
    return len(assigned) == 1 and _is_part_of_fixed(spot, scope, assigned[0][1], depth - 1)


def _reads_fixed_only(spot: Spot, function: ast.AST, depth: int = DEEPEST) -> bool:
    """Whether a function reads no attribute of self that changes."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            inner = spot.names.functions.get(dotted(node.func).rpartition(".")[2])
            if inner is not None and inner is not function:
                if not depth or not _reads_fixed_only(spot, inner, depth - 1):
                    return False
                continue
        if not isinstance(node, ast.Attribute) or dotted(node.value) != "self":
            continue
        if node.attr not in spot.names.functions and not spot.names.is_set_once(f"self.{node.attr}"):
            return False
    return True


# -- networks that nobody trains in the loop ---------------------------------------------------------------

# In names of networks that are not trained
STILL = re.compile(r"target|frozen|teacher|\bref|_ref|old_|_old|reference")
MOVES = re.compile(r"polyak|soft_update|hard_update|update_target|lerp|load_state_dict|copy_$|sync")


def targets_in_the_loop(spot: Spot) -> Match | None:
    """`plans = [net(nxt) for net in self.target_actors]` under `no_grad`, again for every agent of a loop."""
    node, loop = spot.node, next((one for one in spot.loops if isinstance(one, ast.For)), None)
    if loop is None or not isinstance(node, ast.Assign) or not spot.calls_networks or spot.trains:
        return None
    if not runs_quietly(spot, node.value) or "Dropout" in spot.names.mentioned:
        return None
    read = {dotted(n) for n in ast.walk(node.value) if isinstance(n, ast.Attribute | ast.Name)}
    if not any(STILL.search(name.lower()) for name in read):
        return None
    called = [dotted(n.func) for n in ast.walk(loop) if isinstance(n, ast.Call)]
    effects = effects_of(spot.names, node.value)
    if any(MOVES.search(name) for name in called) or effects.unknown:
        return None
    if effects.reads & effects_of(spot.names, loop).changes:
        return None
    own = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    stored = {
        dotted(n)
        for n in ast.walk(loop)
        if isinstance(n, ast.Attribute | ast.Name) and not isinstance(n.ctx, ast.Load)
    } - own
    subscripts = [n for n in ast.walk(loop) if isinstance(n, ast.Subscript)]
    items = {dotted(n.value) for n in subscripts if isinstance(n.ctx, ast.Store)}
    mine = {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    if not mine or (read - own) & (stored | items | mine | _changed_in_place(spot, loop)):
        return None
    return Match(
        "targets_in_the_loop",
        f"Compute {' and '.join(f'`{name}`' for name in sorted(mine))} once before the loop "
        f"(line {loop.lineno})",
        "No pass changes these networks or what they are given, so every pass gets the same result.",
        "Move the statement in front of the loop and use its result there.",
        (0.5, 0.85, 0.97),
        takes="all",
        library_calls=("torch",),
        chills=False,
    )


def _changed_in_place(spot: Spot, loop: ast.For) -> set[str]:
    """Names of tensors and other objects that a loop may change: `nxt.mul_(0.9)`, `augment(nxt)`.

    Calls of objects, `policy(nxt)`, are networks here: the statement stands in a loop that trains them.
    """
    purity = purity_of(spot)
    found: set[str] = set()
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign):
            found.add(dotted(node.target))
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            owner, _, last = name.rpartition(".")
            if EFFECTS.match(last) or (last.endswith("_") and not last.endswith("__")):
                found.add(owner)
            if last in spot.names.functions and not purity.is_pure(node):
                found |= {dotted(argument) for argument in node.args}
            found |= {dotted(keyword.value) for keyword in node.keywords if keyword.arg == "out"}
    return found


# -- read under a condition only -----------------------------------------------------------------------------


def read_under_a_condition(spot: Spot) -> Match | None:
    """Every pass computes a value that only some passes use."""
    node = spot.node
    loop = next((one for one in spot.loops if isinstance(one, LOOPS)), None)
    if loop is None or not isinstance(node, ast.Assign) or spot.trains or not _is_quiet(spot, node):
        return None
    stored = {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)} - {"_"}
    plain = all(isinstance(t, ast.Name | ast.Tuple) for t in node.targets)
    if not stored or not plain or not any(isinstance(n, ast.Call) for n in ast.walk(node.value)):
        return None
    readers = [
        n
        for n in ast.walk(spot.scope)
        if isinstance(n, ast.Name) and n.id in stored and isinstance(n.ctx, ast.Load)
    ]
    tests = {_condition_around(spot.names, spot.scope, reader, node) for reader in readers}
    test = next(iter(tests), None)
    if len(tests) != 1 or test is None or stored & all_names(test.test):
        return None
    every = _passes_between(spot, test.test)
    saved = (1 - 1 / every,) * 3 if every else (0.3, 0.8, 0.98)
    names = " and ".join(f"`{name}`" for name in sorted(stored)[:3])
    return Match(
        "read_under_a_condition",
        f"Compute {names} only when it is used (under the condition in line {test.lineno})",
        f"Every pass of the loop computes it, and only passes with `{ast.unparse(test.test)}` use it"
        f"{f': one in {every}' if every else ''}.",
        "Move the line under that condition. What is learnt stays the same, as long as it draws no random "
        "numbers.",
        (max(saved[0] - 0.03, 0.0), saved[1], min(saved[2] + 0.02, 1.0)),
        takes="all",
        library_calls=("",),
        chills=False,
    )


def _is_quiet(spot: Spot, node: ast.Assign) -> bool:
    """Whether the value is computed without effects: networks under `no_grad`, functions that only read."""
    effects, purity = effects_of(spot.names, node.value), purity_of(spot)
    known = all(purity.is_pure(n) for n in ast.walk(node.value) if isinstance(n, ast.Call))
    if effects.pure and known and not effects.networks and not spot.calls_networks:
        return True
    above = spot.names.parents.get(node) or _with_around(spot.scope, node)
    while above is not None:
        if isinstance(above, ast.With) and turns_gradients_off(above):
            return not effects.changes
        above = spot.names.parents.get(above)
    return False


def _with_around(scope: ast.AST, node: ast.AST) -> ast.AST | None:
    return next((w for w in ast.walk(scope) if isinstance(w, ast.With) and node in ast.walk(w)), None)


def _condition_around(names: Names, scope: ast.AST, reader: ast.AST, made: ast.AST) -> ast.If | None:
    """The `if` that holds a reader but not the statement that made the value."""
    found: ast.If | None = None
    above: ast.AST | None = reader
    while above is not None and above is not scope:
        below, above = above, names.parents.get(above)
        if isinstance(above, ast.If) and below in above.body and made not in ast.walk(above):
            found = above
    return found


def _passes_between(spot: Spot, test: ast.expr) -> int | None:
    """10 for `step % 10 == 0`, also with a setting in place of the number; None if it is not like that."""
    if not (isinstance(test, ast.Compare) and isinstance(test.left, ast.BinOp)):
        return None
    divisor = test.left.right
    if not isinstance(test.left.op, ast.Mod) or not isinstance(test.ops[0], ast.Eq):
        return None
    if isinstance(divisor, ast.Name):
        values = [
            value
            for tree in spot.names.trees
            for node in ast.walk(tree)
            for target, value in assignments(node)
            if dotted(target) == divisor.id
        ]
        constants = {v.value for v in values if isinstance(v, ast.Constant)}
        if len(constants) != 1 or len(constants) != len({ast.dump(v) for v in values}):
            return None
        number = constants.pop()
    else:
        number = divisor.value if isinstance(divisor, ast.Constant) else None
    return number if isinstance(number, int) and number > 1 else None


# -- returned, and overwritten by the next call ------------------------------------------------------------


def overwritten_by_the_caller(spot: Spot) -> Match | None:
    """`return self.draw(), reward`, called in a loop that keeps only the last picture: frame skip."""
    scope, node = spot.scope, spot.node
    if not isinstance(scope, FUNCTIONS) or not isinstance(node, ast.Return):
        return None
    parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
    for place, part in enumerate(parts):
        if not isinstance(part, ast.Call) or not effects_of(spot.names, part).pure:
            continue
        what = dotted(part.func)
        if what.rpartition(".")[2] not in spot.names.definitions:
            continue
        loop = _loop_that_keeps_the_last(spot.names, scope.name, place, len(parts))
        if loop is not None:
            return Match(
                "overwritten_by_the_caller",
                f"Call {what}() only for the last pass of the loop in line {loop.lineno}",
                f"That loop calls `{scope.name}` several times and keeps only the last of these results.",
                f"Split `{scope.name}`: advance the state in the loop, and call {what}() once behind it.",
                (0.4, 0.74, 0.92),
                takes="all",
                effort="hours",
            )
    return None


def _loop_that_keeps_the_last(names: Names, function: str, place: int, count: int) -> ast.For | None:
    """A loop in which one part of what a function returns is overwritten before anything reads it."""
    for call in names.calls_of(function):
        loop = _loop_around(names, call)
        above = names.parents.get(call)
        if not isinstance(loop, ast.For) or not isinstance(above, ast.Assign):
            continue
        target = above.targets[0]
        if isinstance(target, ast.Tuple) and len(target.elts) == count:
            target = target.elts[place]
        elif count > 1:
            continue
        kept = target
        if not isinstance(kept, ast.Name) or kept.id == "_":
            continue
        read = any(
            isinstance(n, ast.Name) and n.id == kept.id and isinstance(n.ctx, ast.Load)
            for n in ast.walk(loop)
        )
        if not read:
            return loop
    return None


# -- totals of a tree ----------------------------------------------------------------------------------------


def total_of_a_tree(spot: Spot) -> Match | None:
    """A function or property that adds up the same of all its children, down to the leaves."""
    scope = spot.scope
    if not isinstance(scope, ast.FunctionDef) or len(scope.args.args) != 1:
        return None
    parameter = scope.args.args[0].arg
    reduces = any(
        isinstance(n, ast.Call) and dotted(n.func) in ("sum", "max", "min", "len", "any", "all", "np.sum")
        for n in ast.walk(scope)
    )
    over = [n for n in ast.walk(scope) if isinstance(n, ast.For | ast.comprehension)]
    stored = [n for n in over if dotted(n.iter).startswith(f"{parameter}.")]
    names = {name for n in stored for name in all_names(n.target)}
    again = any(
        (isinstance(n, ast.Attribute) and n.attr == scope.name and dotted(n.value) in names)
        or (isinstance(n, ast.Call) and dotted(n.func) == scope.name and {dotted(a) for a in n.args} & names)
        for n in ast.walk(scope)
    )
    if not stored or not again or not (reduces or any(isinstance(n, ast.AugAssign) for n in ast.walk(scope))):
        return None
    if not effects_of(spot.names, scope, depth=1).changes <= {scope.name}:
        return None
    return Match(
        "total_of_a_tree",
        f"Keep `{scope.name}` as a number in each node, not as a sum over the tree below it",
        f"Reading `{scope.name}` walks through all nodes below, again for every node that is compared.",
        "Store the total in the node and update it on the way up when a leaf changes (backpropagation).",
        (0.8, 0.985, 1.0),
        takes="all",
    )
