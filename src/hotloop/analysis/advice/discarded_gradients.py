"""Gradients of weights that the optimizer behind a backward pass does not step, and that are zeroed unread.

The actor's loss of DDPG, TD3 and SAC goes through the critics. Their weights require gradients, so the
backward pass computes them, too, and the critics' next `zero_grad` throws them away. Recordings saw this for
passes that they looked at, whatever the script looks like. Where they could not tell, the source may.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hotloop._util.units import percent
from hotloop.analysis.advice.recommendation import LEAST_SAVED, Change, about, advise
from hotloop.analysis.advice.recomputed import OPTIMIZERS
from hotloop.analysis.advice.run_view import RunView
from hotloop.analysis.advice.sampled_passes import backward_paths, fact
from hotloop.analysis.advice.statements import FUNCTIONS, all_names, assignments
from hotloop.analysis.advice.untrained_gradients import saved_of_pass, timed_evidence
from hotloop.analysis.findings import Claim, Recommendation, Safety, short_site
from hotloop.analysis.line_samples import LineSamples
from hotloop.analysis.parsed_source import parse_source
from hotloop.analysis.source_names import Names, dotted, names_in

# Of a backward pass through a network: a layer's gradients of weights cost as much as those of its input,
# and one layer of each chain has an input that needs none.
SAVED = (0.25, 0.45, 0.55)
QUIET = ("no_grad", "inference_mode", "set_grad_enabled")
CUT = ("detach", "item", "data", "numpy", "tolist")  # no gradient goes through these
NO_FORWARD = frozenset(
    {"parameters", "named_parameters", "state_dict", "load_state_dict", "zero_grad", "train", "eval", "to"}
    | {"requires_grad_", "apply", "modules", "children", "optimizer", "step"}
)
CLEARING = ("zero_", "detach_", "requires_grad_")
MOST_NAMED = 4  # networks
MOST_DEPTH = 6  # assignments and functions through which a loss is followed
_Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class _Event:
    """A call that makes, uses or drops gradients, in the order of the source."""

    line: int
    kind: Literal["zero", "backward", "step"]
    networks: frozenset[str] = frozenset()  # whose gradients are dropped or used; of a step, empty: unknown
    loss: ast.expr | None = None
    statement: ast.stmt | None = None


@dataclass(frozen=True)
class _Discarded:
    """A backward pass that computes gradients for nothing."""

    event: _Event
    used: frozenset[str]  # networks that are stepped
    unused: frozenset[str]  # networks whose gradients are dropped
    forward: tuple[tuple[int, str], ...]  # lines that call a network for the loss, with that network
    shared: bool  # whether another loss uses the same forward pass


@dataclass
class _Source:
    """One file, as far as the capture keeps it."""

    names: Names
    scopes: dict[tuple[str, int], _Scope] = field(default_factory=dict)  # by file and first line


def discarded_gradients(run: RunView) -> list[Recommendation]:
    """A backward pass through networks that another optimizer trains."""
    lines = run.unbiased_lines
    if lines is None:
        return []
    seen = fact(run, "gradients") or {}
    advice: list[tuple[float, Recommendation]] = []
    sources = _sources(lines)
    if not _has_unseen_reader(sources, seen):
        known_frames = seen.get("known", ())
        discarded = (one for one in seen.get("unused", ()) if one.get("discarded"))
        measured = (_seen(run, lines, one, _site(one["frames"], known_frames)) for one in discarded)
        advice += [one for one in measured if one is not None]
    known = {(file, line) for file, _, line in (frames[-1] for frames in seen.get("known", ()))}
    for source in sources:
        for key, scope in source.scopes.items():
            for found in find_discarded(source.names, scope):
                if any((key[0], row) in known for row in _rows(found)):
                    continue  # what was seen decides
                made = _recommendation(run, lines, key, found)
                if made is not None:
                    advice.append(made)
    return [made for _, made in sorted(advice, key=lambda one: -one[0])[:1]]


def _site(frames: Any, known: Any) -> str:
    """The line of a pass; where one helper runs the passes of several losses, the line that called it."""
    for depth in range(len(frames), 0, -1):
        file, _, row = frames[depth - 1]
        others = (one for one in known if one != frames and len(one) >= depth)
        if not any((one[depth - 1][0], one[depth - 1][2]) == (file, row) for one in others):
            return f"{file}:{row}"
    file, _, row = frames[-1]
    return f"{file}:{row}"


def _seen(run: RunView, lines: LineSamples, found: Any, site: str) -> tuple[float, Recommendation] | None:
    """Advice about passes whose gradients were seen to be cleared unread."""
    backward = backward_paths(lines, found["frames"])
    share, of_all = lines.share_of(backward), found["elements"] / max(found["of_elements"], 1)
    is_timed = found["total_ns"] > 0
    low, likely, high = saved_of_pass(found) if is_timed else [of_all * one for one in SAVED]
    if share * likely < LEAST_SAVED:
        return None
    line = short_site(site)
    discarded, names = found["discarded"], _and(found["discarded"])
    evidence = [
        f"{line} took {percent(share)} of training.",
        f"{found['passes']} of {found['of_passes']} backward passes that were looked at computed gradients "
        f"of {_and([*discarded, *found['modules']])}: {percent(of_all)} of all elements. Those of {names} "
        "were cleared each time before their optimizer made a step, and nothing read them.",
    ]
    if found["modules"]:
        evidence.append(f"No optimizer steps {_and(found['modules'])}.")
    evidence += (
        timed_evidence(found)
        if is_timed
        else [f"Assumption: {about(likely)} of the pass is saved (between {about(low)} and {about(high)})."]
    )
    rounds = found["attention"] or found["folds"]
    inputs = "[" + ", ".join(f"*{name}.parameters()" for name in found["wanted"]) + "]"
    named = f".backward(inputs={inputs})" if found["wanted"] else ".backward(inputs=...)"
    only = "" if found["wanted"] else " with all parameters that are stepped after it"
    by_inputs = found["keeps_graph"] or found["partly_frozen"] or rounds
    if by_inputs:
        remedy = f"Write {named}{only} there."
        change = named
        if found["keeps_graph"]:
            remedy += " Another pass uses the same graph, so these networks cannot be frozen meanwhile."
        elif rounds:
            remedy += (
                f" (Freezing {names} around the forward pass of this loss saves a little more, but then "
                "torch may choose other operations there, whose results differ by rounding.)"
            )
    else:
        shown = discarded[:MOST_NAMED]
        change = "; ".join(f"{name}.requires_grad_(False)" for name in shown)
        back = "; ".join(f"{name}.requires_grad_(True)" for name in shown)
        more = " (and likewise the others)" if len(discarded) > MOST_NAMED else ""
        remedy = (
            f"Call {change}{more} before the forward pass of this loss and {back} after its backward pass, "
        )
        remedy += f"or write {named}{only}. Not no_grad: the loss goes through there to what is trained."
    if found["modules"]:
        remedy += f" Freeze {_and(found['modules'])} once, before training."
    remedy += " The gradients that are used stay the same to the bit."
    safety: Safety = "safe"
    made = advise(
        run,
        "discarded_gradients",
        None,
        f"Do not compute gradients of {names} in this backward pass ({line})",
        evidence,
        remedy,
        lines.gain(backward, (low, likely, high)),
        Change(change, "minutes", safety),
    )
    claim = Claim(sampled=tuple(sorted(backward)))
    made = replace(made, site=site, claim=claim, changed_elsewhere=not by_inputs)
    return share * likely, made


def _and(names: list[str]) -> str:
    return " and ".join(names[:3]) + (" and others" if len(names) > 3 else "")


def _has_unseen_reader(sources: list[_Source], seen: Any) -> bool:
    """Whether the script reads gradients by hand where no window saw it: now and then, for a log."""
    known = {(file, line) for file, line in seen.get("readers", ())}
    for source in sources:
        for (file, _), scope in source.scopes.items():
            for node in ast.walk(scope):
                if isinstance(node, ast.Attribute) and _reads_gradient(source.names, node):
                    rows = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                    if not any((file, row) in known for row in rows):
                        return True
    return False


def _reads_gradient(names: Names, node: ast.Attribute) -> bool:
    """Whether `p.grad` is more than a test for None, and more than what is zeroed."""
    if node.attr not in ("grad", "_grad") or not isinstance(node.ctx, ast.Load):
        return False
    above = names.parents.get(node)
    if isinstance(above, ast.Attribute) and above.attr == "data":
        above = names.parents.get(above)
    if isinstance(above, ast.Attribute) and above.attr in CLEARING:
        return False
    if isinstance(above, ast.Call) and above.func is node:
        return False  # torch.autograd.grad(...)
    return not (isinstance(above, ast.Compare) and all(_is_none(one) for one in above.comparators))


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _rows(found: _Discarded) -> range:
    statement = found.event.statement
    if statement is None:
        return range(0)
    return range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)


def _recommendation(
    run: RunView, lines: LineSamples, key: tuple[str, int], found: _Discarded
) -> tuple[float, Recommendation] | None:
    statement = found.event.statement
    if statement is None:
        return None
    rows = _rows(found)
    backward = frozenset(
        n
        for n in lines.paths_where(lambda path: path.called.endswith(".backward"))
        if _line_in(lines, n, key) in rows
    )
    part = _part_of_unused(lines, key, found)
    low, likely, high = (part * one for one in SAVED)
    if lines.share_of(backward) * likely < LEAST_SAVED:
        return None
    site = f"{key[0]}:{statement.lineno}"
    line = short_site(site)
    unused, used = " and ".join(sorted(found.unused)), " and ".join(sorted(found.used))
    loss = ast.unparse(found.event.loss) if found.event.loss is not None else "the loss"
    inputs = " + ".join(f"list({name}.parameters())" for name in sorted(found.used))
    made = advise(
        run,
        "discarded_gradients",
        None,
        f"Do not compute gradients of {unused} in {loss}.backward() ({line})",
        [
            f"{line} took {percent(lines.share_of(backward))} of training.",
            f"The loss goes through {unused}, so the backward pass computes the gradients of those weights, "
            f"too. The optimizer behind it only steps {used}, and zero_grad() drops the others unread.",
            f"Assumption: {about(likely)} of the pass is saved (between {about(low)} and {about(high)}).",
        ],
        f"Write {loss}.backward(inputs={inputs}). The gradients that are used stay the same."
        if found.shared
        else f"Write {loss}.backward(inputs={inputs}), or call requires_grad_(False) on {unused} before the "
        "forward pass of this loss and requires_grad_(True) after it. The gradients that are used stay the "
        "same.",
        lines.gain(backward, (low, likely, high)),
        Change(f"{loss}.backward(inputs={inputs})", "minutes", "safe"),
    )
    made = replace(made, site=site, claim=Claim(sampled=tuple(sorted(backward))))
    return lines.share_of(backward) * likely, made


def _part_of_unused(lines: LineSamples, key: tuple[str, int], found: _Discarded) -> float:
    """Part of the forward passes of the loss that runs in networks whose gradients are dropped."""
    by_line: dict[int, set[bool]] = {}
    for line, network in found.forward:
        by_line.setdefault(line, set()).add(network in found.unused)
    unused = whole = 0.0
    for n in lines.paths_where(lambda path: path.called.startswith("torch.")):
        kinds = by_line.get(_line_in(lines, n, key))
        if kinds:
            whole += lines.weight_of([n])
            unused += lines.weight_of([n]) * sum(kinds) / len(kinds)
    return unused / whole if whole else 0.5


def _line_in(lines: LineSamples, number: int, key: tuple[str, int]) -> int:
    return next((f.line for f in lines.paths[number].frames if (f.file, f.first_line) == key), 0)


def _sources(lines: LineSamples) -> list[_Source]:
    trees: dict[str, dict[tuple[str, int], ast.Module]] = {}
    modules: dict[str, ast.Module] = {}
    for source in lines.sources:
        tree = parse_source(source)
        if tree is None:
            continue
        if source.function == "<module>":
            modules[source.file] = tree
        trees.setdefault(source.file, {})[source.file, source.first_line] = tree
    found = []
    for file, pieces in trees.items():
        # The file itself has everything; pieces of it would count its statements twice.
        one = _Source(names_in([modules[file]] if file in modules else pieces.values()))
        for key, tree in pieces.items():
            first = tree.body[0] if tree.body else None
            if file in modules and tree is modules[file]:
                one.scopes[key] = tree
            elif isinstance(first, FUNCTIONS):
                one.scopes[key] = first
        found.append(one)
    return found


# -- which gradients are dropped ----------------------------------------------------------------------


def find_discarded(names: Names, scope: _Scope) -> Iterator[_Discarded]:
    """Backward passes of a function (or of a script's own code) that compute gradients nobody reads."""
    optimizers = _Optimizers(names)
    events = _events(scope, optimizers)
    for at, event in enumerate(events):
        if event.kind != "backward" or event.loss is None:
            continue
        behind = [e for e in events[at + 1 :] if e.kind != "zero"]
        steps = list(itertools.takewhile(lambda e: e.kind == "step", behind))
        if not steps or not all(step.networks for step in steps):
            continue
        used = {network for step in steps for network in step.networks}
        forward = [
            (line, call)
            for line, call in _forward_calls(names, scope, event.loss, event.line, {}, MOST_DEPTH)
            if call.rpartition(".")[2] not in NO_FORWARD
        ]
        called = [(line, owner) for line, call in forward if (owner := optimizers.owner_of(call))]
        unused = {owner for _, owner in called if not any(_related(owner, one) for one in used)}
        if not unused or not any(_related(owner, one) for _, owner in called for one in used):
            continue
        if _is_frozen(names, unused | used) or _are_shared(names, unused, used):
            continue
        if not all(_is_dropped(names, optimizers, events, at, scope, one) for one in unused):
            continue
        if any(_is_quiet_function(names, call) for _, call in forward):
            continue
        others = {
            call
            for other in events
            if other.kind == "backward" and other is not event and other.loss is not None
            for call in _forward_calls(names, scope, other.loss, other.line, {}, MOST_DEPTH)
        }
        shared = any(call in others for call in forward if optimizers.owner_of(call[1]) in unused)
        yield _Discarded(event, frozenset(used), frozenset(unused), tuple(called), shared)


def _related(one: str, other: str) -> bool:
    """Whether one network is the other, or a part of it."""
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


class _Optimizers:
    """Which networks each optimizer steps; what is not certain is left out."""

    def __init__(self, names: Names) -> None:
        self.parameters: dict[str, frozenset[str] | None] = {}
        self.networks: dict[str, frozenset[str] | None] = {}
        pairs = [
            pair for tree in names.trees for node in ast.walk(tree) for pair in assignments(_as_assign(node))
        ]
        for target, value in pairs:
            if ".parameters" in ast.unparse(value) and not _is_optimizer(value):
                found = self._in(value)
                if found is not None:
                    self.parameters[dotted(target)] = found
        for target, value in pairs:
            if _is_optimizer(value) and isinstance(value, ast.Call):
                given = value.args[0] if value.args else next((k.value for k in value.keywords), None)
                name, made = dotted(target), self._in(given) if given is not None else None
                known = self.networks.get(name, made)
                self.networks[name] = made if known == made else None
        # `self.optimizer = Adam(self.parameters())` in the network itself
        self.own = {
            name.removeprefix("self.")
            for name, made in self.networks.items()
            if made == frozenset({"self"}) and name.startswith("self.")
        }
        self.trained = {one for made in self.networks.values() for one in made or ()} - {"self"}
        if self.own:
            self.trained |= {
                dotted(node.func.value).rpartition(".")[0]
                for tree in names.trees
                for node in ast.walk(tree)
                if isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "step"
                and dotted(node.func.value).rpartition(".")[2] in self.own
            } - {"", "self"}

    def stepped_by(self, optimizer: str) -> frozenset[str] | None:
        """Networks that an optimizer steps; None: unknown."""
        owner, _, last = optimizer.rpartition(".")
        if last in self.own and owner and owner != "self":
            return frozenset({owner})
        return self.networks.get(optimizer)

    def owner_of(self, call: str) -> str:
        """The trained network that is called: `self.critic` of `self.critic.q1`; "" for none."""
        found = [one for one in self.trained if call == one or call.startswith(f"{one}.")]
        return max(found, key=len, default="")

    def _in(self, given: ast.AST) -> frozenset[str] | None:
        """Networks in what an optimizer is given: lists, chains and groups of `net.parameters()`."""
        parts: list[ast.AST] = []
        if isinstance(given, ast.List | ast.Tuple):
            parts = list(given.elts)
        elif isinstance(given, ast.Starred):
            parts = [given.value]
        elif isinstance(given, ast.BinOp) and isinstance(given.op, ast.Add):
            parts = [given.left, given.right]
        elif isinstance(given, ast.Dict):
            parts = [
                value
                for name, value in zip(given.keys, given.values, strict=True)
                if isinstance(name, ast.Constant) and name.value == "params"
            ]
        elif isinstance(given, ast.Call):
            name = dotted(given.func)
            if name.endswith(".parameters"):
                return frozenset({name.removesuffix(".parameters")})
            if name.rpartition(".")[2] in ("list", "chain", "tuple", "set"):
                parts = list(given.args)
        elif isinstance(given, ast.Name | ast.Attribute):
            return self.parameters.get(dotted(given))
        found = [self._in(part) for part in parts]
        if not found or any(one is None for one in found):
            return None
        return frozenset[str]().union(*(one for one in found if one is not None))


def _as_assign(node: ast.AST) -> ast.AST:
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return ast.copy_location(ast.Assign([node.target], node.value), node)
    return node


def _is_optimizer(value: ast.AST) -> bool:
    return isinstance(value, ast.Call) and dotted(value.func).rpartition(".")[2] in OPTIMIZERS


def _events(scope: _Scope, optimizers: _Optimizers) -> list[_Event]:
    found: list[_Event] = []
    for statement in _own_statements(scope):
        for call in ast.walk(statement):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            owner, what = dotted(call.func.value), call.func.attr
            if what == "backward" and not any(k.arg == "inputs" for k in call.keywords):
                if owner.endswith("autograd") and call.args:
                    found.append(_Event(call.lineno, "backward", loss=call.args[0], statement=statement))
                else:
                    found.append(_Event(call.lineno, "backward", loss=call.func.value, statement=statement))
            elif what == "zero_grad":
                dropped = optimizers.stepped_by(owner) or frozenset({owner})
                found.append(_Event(call.lineno, "zero", dropped))
            elif what == "step":
                given = [owner, *(dotted(a) for a in call.args)]  # scaler.step(optimizer)
                stepped = [s for name in given if (s := optimizers.stepped_by(name)) is not None]
                if stepped or (not call.args and "sched" not in owner):
                    found.append(_Event(call.lineno, "step", stepped[0] if stepped else frozenset()))
    return sorted(found, key=lambda event: event.line)


def _own_statements(scope: ast.AST) -> Iterator[ast.stmt]:
    """Statements without a body, not those of inner functions and classes."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            continue
        if isinstance(child, ast.stmt) and not hasattr(child, "body"):
            yield child
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _own_statements(child)


def _is_dropped(
    names: Names, optimizers: _Optimizers, events: list[_Event], at: int, scope: _Scope, network: str
) -> bool:
    """Whether the next thing that happens to the network's gradients is that they are zeroed."""

    def first(events: list[_Event]) -> str:
        return next(
            (
                e.kind
                for e in events
                if e.kind != "backward" and any(_related(network, one) for one in e.networks)
            ),
            "",
        )

    # The function is called again and again: behind its end comes its beginning.
    if first([*events[at + 1 :], *events[: at + 1]]) not in ("zero", ""):
        return False
    elsewhere = [first(_events(other, optimizers)) for other in _scopes_of(names) if other is not scope]
    here = first(events)
    return "step" not in elsewhere and ("zero" in elsewhere or here == "zero")


def _scopes_of(names: Names) -> Iterator[_Scope]:
    for tree in names.trees:
        if isinstance(tree, ast.Module):
            yield tree
        yield from (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS))


# -- what a loss is made of ---------------------------------------------------------------------------


def _forward_calls(
    names: Names, scope: _Scope, value: ast.AST, line: int, given: dict[str, str], depth: int
) -> Iterator[tuple[int, str]]:
    """Calls through which gradients of a value flow, with their lines; names of arguments are replaced."""
    if depth == 0:
        return
    if isinstance(value, ast.Attribute) and value.attr in CUT:
        return
    if isinstance(value, ast.Call):
        name = dotted(value.func)
        if name.rpartition(".")[2] in CUT or name.endswith(QUIET):
            return
        yield value.lineno, _with_arguments(name, given)
        parts: list[ast.AST] = [*value.args, *(k.value for k in value.keywords)]
        if isinstance(value.func, ast.Attribute):
            parts.append(value.func.value)
        yield from _of_function(names, value, given, depth)
        for part in parts:
            yield from _forward_calls(names, scope, part, line, given, depth)
        return
    if isinstance(value, ast.Name):
        made = _made_before(scope, value.id, line)
        if made is not None and not _is_quiet(scope, made.lineno) and getattr(made, "value", None):
            yield from _forward_calls(names, scope, made.value, made.lineno, given, depth - 1)  # type: ignore[attr-defined]
            if isinstance(made, ast.AugAssign):
                yield from _forward_calls(names, scope, value, made.lineno, given, depth - 1)
        return
    for part in ast.iter_child_nodes(value):
        yield from _forward_calls(names, scope, part, line, given, depth)


def _of_function(
    names: Names, call: ast.Call, given: dict[str, str], depth: int
) -> Iterator[tuple[int, str]]:
    """Calls in a function of the script that computes (a part of) the loss."""
    owner, _, last = dotted(call.func).rpartition(".")
    defined = names.definitions.get(last, ())
    if (
        len(defined) != 1
        or owner not in ("", "self")
        or any(_mentions(d, QUIET) for d in _decorators(defined))
    ):
        return
    function = defined[0]
    words = [a.arg for a in (*function.args.posonlyargs, *function.args.args) if a.arg != "self"]
    passed = dict(zip(words, (dotted(a) for a in call.args), strict=False))
    passed |= {k.arg: dotted(k.value) for k in call.keywords if k.arg}
    passed = {word: _with_arguments(name, given) for word, name in passed.items() if "?" not in name}
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            inside = _forward_calls(names, function, node.value, node.lineno, passed, depth - 1)
            yield from ((call.lineno, name) for _, name in inside)


def _decorators(functions: tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]) -> list[ast.expr]:
    return [decorator for function in functions for decorator in function.decorator_list]


def _with_arguments(name: str, given: dict[str, str]) -> str:
    first, dot, rest = name.partition(".")
    return f"{given.get(first, first)}{dot}{rest}"


def _made_before(scope: _Scope, name: str, line: int) -> ast.stmt | None:
    """The last assignment to a name above a line."""
    found = [
        s
        for s in _own_statements(scope)
        if isinstance(s, ast.Assign | ast.AugAssign | ast.AnnAssign)
        and s.lineno < line
        and name
        in {
            n.id
            for target in (s.targets if isinstance(s, ast.Assign) else [s.target])
            for n in ast.walk(target)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
    ]
    return max(found, key=lambda s: s.lineno, default=None)


def _is_quiet(scope: _Scope, line: int) -> bool:
    """Whether gradients are off in that line."""
    if isinstance(scope, FUNCTIONS) and any(_mentions(d, QUIET) for d in scope.decorator_list):
        return True
    return any(
        isinstance(n, ast.With)
        and n.lineno <= line <= (n.end_lineno or n.lineno)
        and any(_mentions(item.context_expr, QUIET) for item in n.items)
        for n in ast.walk(scope)
    )


def _is_quiet_function(names: Names, call: str) -> bool:
    """Whether a method of the script with that name turns gradients off."""
    defined = names.definitions.get(call.rpartition(".")[2], ())
    return any(_mentions(d, QUIET) for d in _decorators(defined))


def _mentions(node: ast.AST, words: tuple[str, ...]) -> bool:
    return any(isinstance(n, ast.Attribute | ast.Name) and dotted(n).endswith(words) for n in ast.walk(node))


# -- what forbids the advice --------------------------------------------------------------------------


def _is_frozen(names: Names, networks: set[str]) -> bool:
    """Whether requires_grad is changed for one of these networks, or for what is not known."""
    optimizers = _Optimizers(names)
    for tree in names.trees:
        for node in ast.walk(tree):
            what = _frozen_by(node)
            if what is None:
                continue
            found = _resolved(names, optimizers, node, what)
            if not found or any(_related(one, network) for one in found for network in networks):
                return True
    return False


def _frozen_by(node: ast.AST) -> ast.AST | None:
    """What a statement or call changes requires_grad of."""
    if isinstance(node, ast.Call):
        last = dotted(node.func).rpartition(".")[2]
        if last == "requires_grad_" and isinstance(node.func, ast.Attribute):
            return node.func.value
        if "requires_grad" in last or "freeze" in last.lower():
            return ast.Tuple(list(node.args))
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Attribute) and target.attr == "requires_grad":
                return target.value
    return None


def _resolved(names: Names, optimizers: _Optimizers, node: ast.AST, what: ast.AST) -> set[str]:
    """Networks that `what` stands for: through loops, lists of parameters and arguments; empty: unknown."""
    above: ast.AST | None = node
    if isinstance(what, ast.Call):  # `target = copy.deepcopy(net).requires_grad_(False)`
        while above is not None and not isinstance(above, ast.Assign):
            above = names.parents.get(above)
        return {dotted(t) for t in above.targets} if isinstance(above, ast.Assign) else set()
    roots = {dotted(n) for n in ast.walk(what) if isinstance(n, ast.Name | ast.Attribute)} - {"self", "?"}
    roots = {one for one in roots if "?" not in one}
    function: ast.AST | None = None
    while above is not None and function is None:
        above = names.parents.get(above)
        if isinstance(above, ast.For) and roots & all_names(above.target):
            roots -= all_names(above.target)
            iterated = {dotted(n) for n in ast.walk(above.iter) if isinstance(n, ast.Name | ast.Attribute)}
            roots |= {one.removesuffix(".parameters") for one in iterated if "?" not in one}
        function = above if isinstance(above, FUNCTIONS) else None
    found = {net for one in roots for net in (optimizers.parameters.get(one) or {one})}
    if isinstance(function, FUNCTIONS):
        words = {a.arg for a in function.args.args} - {"self"}
        if any(one.partition(".")[0] in words for one in found):
            calls = names.calls_of(function.name)
            given = {dotted(n) for c in calls for a in c.args for n in ast.walk(a)}
            return {one.removesuffix(".parameters") for one in given if "?" not in one} - {"self"}
    return found


def _are_shared(names: Names, unused: set[str], used: set[str]) -> bool:
    """Whether networks may have parts in common: one is made of the other, or both of a third."""
    made: dict[str, set[str]] = {}
    for tree in names.trees:
        for node in ast.walk(tree):
            for target, value in assignments(_as_assign(node)):
                name = dotted(target)
                if name in unused | used and isinstance(value, ast.Call):
                    parts = {dotted(n) for a in value.args for n in ast.walk(a)}
                    parts |= {dotted(k.value) for k in value.keywords}
                    made.setdefault(name, set()).update(parts)
                elif isinstance(value, ast.Attribute) and any(
                    dotted(value).startswith(f"{one}.") for one in unused | used
                ):
                    return True  # `self.encoder = self.critic.encoder`
    # A network that both are given is called somewhere, or asked for its parameters.
    called = {dotted(n.func) for tree in names.trees for n in ast.walk(tree) if isinstance(n, ast.Call)}
    networks = {one for one in called if one.partition(".")[0] == one or one.startswith("self.")}
    networks |= {one.removesuffix(".parameters") for one in called if one.endswith(".parameters")}
    for one in unused:
        for other in used:
            common = made.get(one, set()) & made.get(other, set()) & networks
            if common or one in made.get(other, set()) or other in made.get(one, set()):
                return True
    return "copy_conv_weights_from" in names.mentioned
