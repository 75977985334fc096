"""Networks that are run with gradients although nothing is learnt from the result."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hotloop._util.units import percent
from hotloop.analysis.advice.recommendation import Change, about, advise
from hotloop.analysis.advice.recomputed import trained_names
from hotloop.analysis.advice.run_view import RunView
from hotloop.analysis.advice.untrained_gradients import looked_at_gradients
from hotloop.analysis.findings import Claim, Recommendation, short_site
from hotloop.analysis.line_samples import LineSamples
from hotloop.analysis.parsed_source import parse_source
from hotloop.analysis.source_names import Names, dotted, names_in
from hotloop.capture.samples import SampledFrame

LEAST_SHARE = 0.15  # of training, in the function
SAVED = (0.12, 0.28, 0.42)  # of the time of small operations: making the graph, and taking it down
PLAIN = frozenset({"detach", "item", "numpy", "tolist", "argmax", "argmin", "int", "float", "bool", "astype"})
# Functions whose results have no graph: made of data, drawn, counted
GRAPH_FREE = frozenset(
    {"from_numpy", "tensor", "as_tensor", "Tensor", "FloatTensor", "LongTensor", "zeros", "ones", "arange"}
    | {"sample", "len", "range", "multinomial", "perf_counter", "choice", "randint", "random"}
)
# Functions and methods whose results have a graph if what they are given has one
OF_ANYTHING = frozenset({"max", "min", "sum", "abs", "list", "tuple", "dict", "zip", "enumerate", "sorted"})
OF_TENSORS = frozenset(
    {"float", "double", "to", "cpu", "cuda", "unsqueeze", "squeeze", "view", "reshape", "flatten", "copy"}
    | {"mean", "clamp", "clip", "items", "keys", "values", "long", "append", "pop"}
)
OWN = (ast.List, ast.ListComp, ast.Dict, ast.DictComp, ast.Set)
FILLING = frozenset({"append", "extend", "insert", "add", "update", "setdefault"})
MAKE_OWN = frozenset({"list", "dict", "deque", "defaultdict", "set"})
SHOWN = frozenset({"print", "info", "debug", "warning", "add_scalar", "set_postfix"})
LEAST_THROUGH = 0.05  # of training, in backward passes through a network that nobody trains
QUIET = ("no_grad", "inference_mode", "set_grad_enabled")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Key = tuple[str, int]


@dataclass(frozen=True)
class _Function:
    node: ast.FunctionDef | ast.AsyncFunctionDef
    names: Names


def gradients_not_needed(run: RunView) -> list[Recommendation]:
    """A function that calls networks with gradients and returns plain numbers."""
    lines = run.unbiased_lines
    if lines is None:
        return []
    functions = functions_of(lines)
    for key, paths in _by_share(lines, functions):
        function = functions[key]
        if not _tracks(lines, function, functions, key, paths):
            continue
        tensors = frozenset(n for n in paths if _is_arithmetic(lines, n))
        share = lines.share_of(tensors)
        if share < LEAST_SHARE:
            continue
        name = function.node.name
        site = f"{key[0]}:{function.node.lineno}"
        made = advise(
            run,
            "gradients_not_needed",
            None,
            f"Run `{name}` under torch.no_grad() ({short_site(site)})",
            [
                f"`{name}` and what it calls took {percent(share)} of training in torch.",
                "It runs with gradients enabled and returns plain numbers or detached tensors, so autograd "
                "builds a graph of every operation, and throws it away.",
                f"Assumption: without the graph {about(SAVED[1])} of that time is saved (between "
                f"{about(SAVED[0])} and {about(SAVED[2])}).",
            ],
            f"Put @torch.no_grad() above `def {name}` (no backward pass is run inside of it). The numbers "
            "stay the same.",
            lines.gain(tensors, SAVED),
            Change(f"@torch.no_grad() above `def {name}`", "minutes", "safe"),
        )
        return [replace(made, site=site, claim=Claim(sampled=tuple(sorted(tensors))))]
    return []


def target_with_gradients(run: RunView) -> list[Recommendation]:
    """A network that no optimizer trains, evaluated with gradients: backward passes run through it.

    For recordings that did not look at gradients themselves.
    """
    lines = run.unbiased_lines
    if lines is None or looked_at_gradients(run):
        return []
    backward = frozenset(lines.paths_where(lambda path: path.called.endswith(".backward")))
    forward = frozenset(lines.paths_where(lambda path: path.called.startswith("torch.nn.modules.")))
    for key, function in functions_of(lines).items():
        # Of the passes that lead to its backward pass, not of those that choose actions.
        whole = lines.share_of({n for n in forward if _line_in(lines, n, key)})
        for statement, network in _untrained_calls(function):
            rows = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
            mine = {n for n in forward if _line_in(lines, n, key) in rows}
            part = lines.share_of(mine) / whole if whole else 0.0
            if not mine or lines.share_of(backward) * part < LEAST_THROUGH:
                continue
            site = f"{key[0]}:{statement.lineno}"
            line = short_site(site)
            saved = (0.3 * part, 0.8 * part, min(1.1 * part, 1.0))
            made = advise(
                run,
                "target_with_gradients",
                None,
                f"Evaluate {network} under torch.no_grad() ({line})",
                [
                    f"{line} has {percent(part)} of the forward passes of `{function.node.name}`, and "
                    f"backward passes took {percent(lines.share_of(backward))} of training.",
                    f"No optimizer gets the parameters of {network}, but its result reaches the loss with "
                    "gradients, so every backward pass runs through it, too.",
                    f"Assumption: {about(saved[1])} of the backward passes is saved (between "
                    f"{about(saved[0])} and {about(saved[2])}).",
                ],
                "Compute the targets under `with torch.no_grad():` (or .detach() them). The gradients of the "
                "networks that are trained stay the same, as long as only the target depends on it.",
                lines.gain(backward, saved),
                Change("with torch.no_grad(): around the targets", "minutes", "semantic"),
            )
            return [replace(made, site=site, claim=Claim(sampled=tuple(sorted(backward))))]
    return []


def _line_in(lines: LineSamples, number: int, key: _Key) -> int:
    return next((f.line for f in lines.paths[number].frames if (f.file, f.first_line) == key), 0)


def _untrained_calls(function: _Function) -> list[tuple[ast.stmt, str]]:
    """Statements that call a copy of a trained network with gradients, in a function that runs backward."""
    node, names = function.node, function.names
    trained = trained_names(names)
    if not trained or not _learns(node) or {"requires_grad_", "requires_grad"} & names.mentioned:
        return []
    copies = {
        dotted(call.func).removesuffix(".load_state_dict")
        for tree in names.trees
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and dotted(call.func).endswith(".load_state_dict")
    }
    copies |= {name for name, kinds in names.kinds.items() if "deepcopy" in kinds}
    last = {name.rpartition(".")[2] for name in trained}
    copies = {name.rpartition(".")[2] for name in copies} - last
    found: list[tuple[ast.stmt, str]] = []
    for statement in ast.walk(node):
        if not isinstance(statement, ast.Assign) or _quiet_at(node, statement.lineno):
            continue
        calls = {dotted(n.func) for n in ast.walk(statement.value) if isinstance(n, ast.Call)}
        detached = any(isinstance(n, ast.Attribute) and n.attr in ("detach", "data") for n in ast.walk(node))
        network = next((c for c in sorted(calls) if c.rpartition(".")[2] in copies), None)
        if network is not None and not detached:
            found.append((statement, network))
    return found


def functions_of(lines: LineSamples) -> dict[_Key, _Function]:
    """Functions of the user by file and first line of their source."""
    trees: dict[str, list[tuple[int, ast.Module]]] = {}
    for source in lines.sources:
        tree = parse_source(source)
        if tree is not None:
            trees.setdefault(source.file, []).append((source.first_line, tree))
    found: dict[_Key, _Function] = {}
    for file, pieces in trees.items():
        names = names_in(tree for _, tree in pieces)
        for first, tree in pieces:
            if tree.body and isinstance(tree.body[0], FUNCTIONS):
                found[file, first] = _Function(tree.body[0], names)
    return found


def _by_share(lines: LineSamples, functions: dict[_Key, _Function]) -> list[tuple[_Key, set[int]]]:
    """Functions with the samples of all that they call; the outermost first."""
    paths: dict[_Key, set[int]] = {}
    for number, path in enumerate(lines.paths):
        for frame in path.frames:
            key = frame.file, frame.first_line
            if key in functions:
                paths.setdefault(key, set()).add(number)
    shares = {key: lines.share_of(found) for key, found in paths.items()}
    return [
        (key, paths[key])
        for key in sorted(shares, key=lambda key: -shares[key])
        if shares[key] >= LEAST_SHARE
    ]


def _is_arithmetic(lines: LineSamples, number: int) -> bool:
    """Whether a sample lies in torch, or in a line of the user's that computes with tensors."""
    path = lines.paths[number]
    return path.called.startswith("torch.") or not path.called


def _tracks(
    lines: LineSamples,
    function: _Function,
    functions: dict[_Key, _Function],
    key: _Key,
    paths: set[int],
) -> bool:
    node = function.node
    if node.name in ("forward", "__call__", "__init__", "main", "train", "learn") or not returns_plain(node):
        return False
    if "Parameter" in function.names.made and any(isinstance(n, ast.BinOp) for n in ast.walk(node)):
        return False  # an attribute in an expression may be trained
    if not any(lines.paths[n].called.startswith("torch.nn.modules.") for n in paths):
        return False
    if any(lines.paths[n].called.endswith(".backward") for n in paths):
        return False
    names = function.names
    if "set_grad_enabled" in names.mentioned or "requires_grad_" in names.mentioned:
        return False
    # Neither the function, nor what it calls, nor whoever calls it turns gradients off or learns.
    below: set[_Key] = set()
    above: set[tuple[_Key, int]] = set()
    for number in paths:
        frames = lines.paths[number].frames
        at = _place_of(frames, key)
        below |= {(f.file, f.first_line) for f in frames[at:]}
        above |= {((f.file, f.first_line), f.line) for f in frames[:at]}
    below &= functions.keys()
    for one in below:
        called = functions[one].node
        if mentions_quiet(called) or _learns(called) or keeps_graphs(called):
            return False
    return not any(
        one in functions and _quiet_at(functions[one].node, line) for one, line in above
    ) and not _called_quietly(names, node.name)


def _place_of(frames: Sequence[SampledFrame], key: _Key) -> int:
    return next(i for i, f in enumerate(frames) if (f.file, f.first_line) == key)


def mentions_quiet(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Attribute | ast.Name) and dotted(n).endswith(QUIET) for n in ast.walk(node))


def _learns(node: ast.AST) -> bool:
    calls = {dotted(n.func).rpartition(".")[2] for n in ast.walk(node) if isinstance(n, ast.Call)}
    return bool(calls & {"backward", "grad", "zero_grad"})


def _quiet_at(node: ast.FunctionDef | ast.AsyncFunctionDef, line: int) -> bool:
    """Whether gradients are off in that line of a function."""
    if any(mentions_quiet(decorator) for decorator in node.decorator_list):
        return True
    return any(
        isinstance(n, ast.With)
        and n.lineno <= line <= (n.end_lineno or n.lineno)
        and any(mentions_quiet(item.context_expr) for item in n.items)
        for n in ast.walk(node)
    )


def _called_quietly(names: Names, function: str) -> bool:
    """Whether some call of it stands under no_grad: then gradients are off where they can be."""
    for call in names.calls_of(function):
        above = names.parents.get(call)
        while above is not None:
            if isinstance(above, ast.With) and any(mentions_quiet(i.context_expr) for i in above.items):
                return True
            above = names.parents.get(above)
    return False


def keeps_graphs(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether it stores a result with its graph: `self.saved_log_probs.append(m.log_prob(action))`.

    What a loss later learns from is lost under no_grad, whatever the function returns.
    """
    lists, outside, carrying = graph_carriers(node)
    for n in ast.walk(node):
        if isinstance(n, ast.Assign | ast.AnnAssign | ast.AugAssign) and n.value is not None:
            targets = n.targets if isinstance(n, ast.Assign) else [n.target]
            parts = [part for target in targets for part in _parts(target)]
            leaves = any(_root(part) not in lists for part in parts if not isinstance(part, ast.Name))
            leaves |= any(isinstance(part, ast.Name) and part.id in outside for part in parts)
            if leaves and carries_graph(n.value, carrying):
                return True
        elif isinstance(n, ast.Expr) and isinstance(n.value, ast.Call):
            given = [*n.value.args, *(word.value for word in n.value.keywords)]
            kept = _last_called(n.value) not in SHOWN and _root(n.value.func) not in lists
            if kept and any(carries_graph(a, carrying) for a in given):
                return True
        elif isinstance(n, ast.Yield) and n.value is not None and carries_graph(n.value, carrying):
            return True
    return False


def graph_carriers(node: ast.AST, plain: frozenset[str] = frozenset()) -> tuple[set[str], set[str], set[str]]:
    """Containers that a scope makes, names of outer scopes that it sets, and names that may hold a graph.

    `plain` are functions that are known to return plain numbers.
    """
    assigned = [n for n in ast.walk(node) if isinstance(n, ast.Assign | ast.AnnAssign | ast.AugAssign)]
    outside = {name for n in ast.walk(node) if isinstance(n, ast.Global | ast.Nonlocal) for name in n.names}
    lists = {
        target.id
        for n in assigned
        if isinstance(n, ast.Assign) and (isinstance(n.value, OWN) or _last_called(n.value) in MAKE_OWN)
        for target in n.targets
        if isinstance(target, ast.Name)
    } - outside
    carrying: set[str] = set()
    for _ in range(3):  # names that hold a graph, through other names
        for n in assigned:
            if n.value is not None and carries_graph(n.value, carrying, plain):
                targets = n.targets if isinstance(n, ast.Assign) else [n.target]
                stored = {name for target in targets for name in _stored(target)}
                carrying |= stored | {root for target in targets if (root := _root(target)) in lists}
    return lists, outside, carrying


def _stored(target: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _parts(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        return [part for element in target.elts for part in _parts(element)]
    return [target]


def _root(node: ast.AST) -> str:
    """`self` of `self.saved[i].append`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _last_called(node: ast.AST) -> str:
    return dotted(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


def carries_graph(value: ast.AST, carrying: set[str], plain: frozenset[str] = frozenset()) -> bool:
    """Whether a value may come with a graph: what a network or an unknown function returns."""
    if isinstance(value, ast.Name):
        return value.id in carrying
    if isinstance(value, ast.Call):
        name = dotted(value.func)
        last = name.rpartition(".")[2]
        numbers = name.startswith(("np.", "numpy.", "random.", "time.", "math."))
        if numbers or last in PLAIN | GRAPH_FREE | plain:
            return False
        given = [*value.args, *(word.value for word in value.keywords)]
        if last in OF_ANYTHING or (isinstance(value.func, ast.Attribute) and last in OF_TENSORS):
            owner = [value.func.value] if isinstance(value.func, ast.Attribute) else []
            return any(carries_graph(one, carrying, plain) for one in (*given, *owner))
        return True
    return any(carries_graph(child, carrying, plain) for child in ast.iter_child_nodes(value))


def returns_plain(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function returns numbers and arrays only, by .item(), .numpy(), int(...) and the like."""
    returned = [n.value for n in ast.walk(node) if isinstance(n, ast.Return)]
    if not returned:
        return False
    assigned: dict[str, list[ast.expr]] = {}
    for n in ast.walk(node):
        if isinstance(n, ast.Assign):
            for target in n.targets:
                if isinstance(target, ast.Name):
                    assigned.setdefault(target.id, []).append(n.value)
    for name, values in filled_containers(node).items():  # `actions = {}`, with actions for each agent
        if name in assigned and all(map(_is_empty, assigned[name])):
            assigned[name] = values
    own = {arg.arg for arg in ast.walk(node) if isinstance(arg, ast.arg)} - assigned.keys()
    return all(value is not None and _is_plain(value, assigned, own) for value in returned)


def filled_containers(node: ast.AST) -> dict[str, list[ast.expr]]:
    """What is stored in containers, by their names: `actions[agent] = a`, `actions.append(a)`."""
    found: dict[str, list[ast.expr]] = {}
    for n in ast.walk(node):
        if isinstance(n, ast.Assign):
            for target in n.targets:
                if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                    found.setdefault(target.value.id, []).append(n.value)
        elif (
            isinstance(n, ast.Call)
            and isinstance(n.func, ast.Attribute)
            and n.func.attr in FILLING
            and isinstance(n.func.value, ast.Name)
        ):
            found.setdefault(n.func.value.id, []).extend(n.args)
    return found


def _is_empty(value: ast.expr) -> bool:
    """`{}`, `[]`, `dict()`, `list()`"""
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.Call):
        return dotted(value.func) in ("dict", "list") and not value.args and not value.keywords
    return isinstance(value, ast.List) and not value.elts


def _is_plain(
    value: ast.expr, assigned: dict[str, list[ast.expr]], own: set[str], seen: frozenset[str] = frozenset()
) -> bool:
    """`own` are arguments of the function; a name in `seen` is being looked at: `p = zip(moves, p)`."""
    if isinstance(value, ast.Tuple | ast.List):
        return bool(value.elts) and all(_is_plain(e, assigned, own, seen) for e in value.elts)
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.ListComp | ast.DictComp):
        made_of = value.elt if isinstance(value, ast.ListComp) else value.value
        return _is_plain(made_of, assigned, own, seen)
    if isinstance(value, ast.Subscript):
        return _is_plain(value.value, assigned, own, seen)
    if isinstance(value, ast.BinOp):  # noise, added: `action + self.sigma * rng.normal(size=2)`
        sides = (value.left, value.right)
        plain = [_is_plain(one, assigned, own, seen) for one in sides]
        return any(plain) and all(
            one or isinstance(side, ast.Constant | ast.Attribute) or _root(side) in own
            for one, side in zip(plain, sides, strict=True)
        )
    if isinstance(value, ast.IfExp):
        return _is_plain(value.body, assigned, own, seen) and _is_plain(value.orelse, assigned, own, seen)
    if isinstance(value, ast.Call):
        name = dotted(value.func)
        last = name.rpartition(".")[2]
        if last in PLAIN - {"argmax", "argmin", "astype"} or name.startswith(("np.", "numpy.", "random.")):
            return True
        if isinstance(value.func, ast.Attribute) and last in ("astype", "copy", "clip", "flatten", "squeeze"):
            return _is_plain(value.func.value, assigned, own, seen)
        if name in ("zip", "dict", "list", "tuple"):  # of numbers, for something that the caller gave
            plain = [_is_plain(a, assigned, own, seen) for a in value.args]
            return any(plain) and all(
                one or _was_given(a, assigned, own) for one, a in zip(plain, value.args, strict=True)
            )
        return "rng" in name
    if isinstance(value, ast.Name):
        if value.id in seen:
            return True
        made = assigned.get(value.id, [])
        return bool(made) and all(_is_plain(one, assigned, own, seen | {value.id}) for one in made)
    return False


def _was_given(value: ast.expr, assigned: dict[str, list[ast.expr]], own: set[str]) -> bool:
    """`board.availables`, or a name for it, of an argument `board`: no result of a network."""
    if isinstance(value, ast.Attribute):
        return dotted(value).partition(".")[0] in own - {"self"}
    made = assigned.get(value.id, []) if isinstance(value, ast.Name) else []
    return bool(made) and all(
        isinstance(one, ast.Attribute) and _was_given(one, assigned, own) for one in made
    )
