"""Policy gradients that learn from the graphs of single steps instead of computing the batch again.

REINFORCE and actor-critic examples act with gradients on, keep each step's log-probability in a list, and
stack the list for the loss. The backward pass then walks through one small graph for every step.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hotloop._util.units import percent
from hotloop.analysis.advice.gradients import carries_graph, graph_carriers, mentions_quiet, returns_plain
from hotloop.analysis.advice.idioms.loops import RECURRENT
from hotloop.analysis.advice.recommendation import Change, about, advise, rate
from hotloop.analysis.advice.run_view import RunView
from hotloop.analysis.findings import Claim, Recommendation, short_site
from hotloop.analysis.line_samples import LineSamples
from hotloop.analysis.parsed_source import parse_source
from hotloop.analysis.source_names import dotted

LEAST_BACKWARD = 0.1  # share of training
LEAST_STEPS = 8  # of the loop for each update; with fewer there is little to batch
SAVED = (0.6, 0.93, 0.98)  # of the backward passes
SAVED_ACTING = 0.4  # of torch while acting: making the graph, and log-probabilities of single actions
RANDOM = frozenset(
    {"Dropout", "NoisyLinear", "BatchNorm1d", "BatchNorm2d"}
)  # a second pass gives other numbers
STACKS = ("torch.stack", "torch.cat", "th.stack", "th.cat", "stack", "cat", "sum")
LOGARITHMS = frozenset({"log_prob", "log_softmax", "logsigmoid", "log", "cross_entropy"})


ENV = frozenset({"step", "reset"})
_Gives = dict[str, set[int] | None]  # functions, and where in their results log-probabilities are


@dataclass(frozen=True)
class _Kept:
    """A list that keeps results of single steps with their graphs."""

    name: str  # of the list, without what it belongs to
    site: str  # where it grows


def graphs_step_by_step(run: RunView) -> Recommendation | None:
    """Log-probabilities of single steps are kept with their graphs and stacked for the loss."""
    lines = run.unbiased_lines
    if lines is None or not run.updates or run.iterations < LEAST_STEPS * run.updates:
        return None
    backward = frozenset(lines.paths_where(lambda path: path.called.endswith(".backward")))
    share = lines.share_of(backward)
    if share < LEAST_BACKWARD:
        return None
    kept = next(_kept_graphs(lines), None)
    if kept is None:
        return None
    acting = frozenset(
        lines.paths_where(lambda path: path.called.startswith(("torch.nn.modules.", "torch.distributions.")))
    )
    made = advise(
        run,
        "graphs_step_by_step",
        None,
        f"Compute what the loss needs for the whole batch, not step by step ({short_site(kept.site)})",
        [
            f"Backward passes took {percent(share)} of training: each goes back through the graphs of "
            f"{rate(run.iterations / run.updates)} single steps.",
            f"{short_site(kept.site)} keeps results of single steps with their graphs in `{kept.name}`, and "
            "the loss stacks them.",
            f"Assumption: {about(SAVED[1])} of the backward passes is saved (between {about(SAVED[0])} and "
            f"{about(SAVED[2])}), and {about(SAVED_ACTING)} of networks and distributions while acting.",
        ],
        "Act under torch.no_grad() and keep observations and actions. When it is time to learn, call the "
        "network once for all of them and take log-probabilities and values from that. The gradients are the "
        "same up to rounding, as long as the weights have not changed since.",
        lines.gain(backward, SAVED, SAVED_ACTING * lines.among(acting).astype(np.float64)),
        Change("one forward pass for the whole batch before the loss", "hours", "rounding"),
    )
    return replace(made, site=kept.site, claim=Claim(sampled=tuple(sorted(backward | acting))))


def _kept_graphs(lines: LineSamples) -> Iterator[_Kept]:
    """Lists of log-probabilities with their graphs that some loss of the same file adds up."""
    files: dict[str, list[ast.Module]] = {}
    for source in lines.sources:
        tree = parse_source(source)
        if tree is not None:
            files.setdefault(source.file, []).append(tree)
    for file, trees in files.items():
        nodes = [node for tree in trees for node in ast.walk(tree)]
        mentioned = {n.attr for n in nodes if isinstance(n, ast.Attribute)}
        mentioned |= {n.id for n in nodes if isinstance(n, ast.Name)}
        if mentioned & (RECURRENT | RANDOM):
            continue
        functions = {n.name: n for n in nodes if isinstance(n, ast.FunctionDef)}
        plain = {name for name, node in functions.items() if returns_plain(node) or mentions_quiet(node)}
        gives = {name: _given_back(node) for name, node in functions.items() if name not in plain}
        gives = {name: places for name, places in gives.items() if places != set()}
        read = {name for tree in trees for name in _added_up(tree)}
        for tree in trees:
            for name, line in _grown(tree, gives, plain):
                if name in read:
                    yield _Kept(name, f"{file}:{line}")


def _given_back(function: ast.FunctionDef) -> set[int] | None:
    """At which places of the tuple that it returns a function has log-probabilities; None: everywhere."""
    known = _logarithms(function, {})
    returned = [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None]
    if returned and all(isinstance(value, ast.Tuple) for value in returned):
        rows = [value.elts for value in returned if isinstance(value, ast.Tuple)]
        return {place for row in rows for place, one in enumerate(row) if _takes_logarithms(one, {}, known)}
    return None if any(_takes_logarithms(value, {}, known) for value in returned) else set()


def _logarithms(tree: ast.AST, gives: _Gives) -> set[str]:
    """Names of log-probabilities."""
    known: set[str] = set()
    for _ in range(3):  # through other names
        for node in ast.walk(tree):
            if not isinstance(node, ast.Assign) or not _takes_logarithms(node.value, gives, known):
                continue
            last = _last(node.value.func) if isinstance(node.value, ast.Call) else ""
            places = gives.get(last) if last not in LOGARITHMS else None
            for target in node.targets:
                parts = target.elts if isinstance(target, ast.Tuple) else [target]
                chosen = [part for at, part in enumerate(parts) if places is None or at in places]
                known |= {part.id for part in chosen if isinstance(part, ast.Name)}
    return known


def _grown(tree: ast.Module, gives: _Gives, plain: set[str]) -> Iterator[tuple[str, int]]:
    """Lists to which log-probabilities are appended with gradients on."""
    if mentions_quiet(tree):  # somewhere in this function: where, is not looked at
        return
    _, _, carrying = graph_carriers(tree, frozenset(plain))
    known = _logarithms(tree, gives) & carrying
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "append"
            and any(_takes_logarithms(given, gives, known) for given in node.args)
            and any(carries_graph(given, carrying, frozenset(plain)) for given in node.args)
        ):
            yield dotted(node.func.value).rpartition(".")[2], node.lineno


def _takes_logarithms(node: ast.AST, gives: _Gives, known: set[str]) -> bool:
    """Whether it computes log-probabilities, calls a function that gives some, or names one."""
    if isinstance(node, ast.Call):
        last = _last(node.func)
        if last in LOGARITHMS or last in gives:
            return True
        if last in ENV:
            return False  # what comes of an action is another thing
    elif isinstance(node, ast.Name):
        return node.id in known
    return any(_takes_logarithms(child, gives, known) for child in ast.iter_child_nodes(node))


def _added_up(tree: ast.Module) -> set[str]:
    """Names of lists that code with a backward pass stacks, or goes through to make a loss of each item."""
    nodes = list(ast.walk(tree))
    if not any(isinstance(n, ast.Attribute) and n.attr == "backward" for n in nodes):
        return set()
    also: dict[str, str] = {}  # `saved = model.saved_actions`
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute):
            also |= {t.id: node.value.attr for t in node.targets if isinstance(t, ast.Name)}
    detached = {
        _last(inner)
        for node in nodes
        if isinstance(node, ast.Call) and dotted(node.func).endswith(".detach")
        for inner in ast.walk(node.func)
    }
    stacked = {
        _last(given)
        for node in nodes
        if isinstance(node, ast.Call) and dotted(node.func) in STACKS
        for given in node.args
    } - detached
    losses = {_last(n.value) for n in nodes if isinstance(n, ast.Attribute) and n.attr == "backward"}
    for loop in (n for n in nodes if isinstance(n, ast.For)):
        items = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
        if any(_uses_items(inner, items, stacked, losses) for inner in ast.walk(loop)):
            stacked |= {_last(n) for n in ast.walk(loop.iter)}
    return {name for one in stacked for name in (one, also.get(one, one)) if name}


def _uses_items(node: ast.AST, items: set[str], stacked: set[str], losses: set[str]) -> bool:
    """`losses.append(-log_prob * R)` of a list that is stacked, or `loss += -log_prob * R`."""
    if isinstance(node, ast.AugAssign):
        given, fits = [node.value], _last(node.target) in losses
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
        given, fits = list(node.args), _last(node.func.value) in stacked
    else:
        return False
    return fits and any(isinstance(n, ast.Name) and n.id in items for one in given for n in ast.walk(one))


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
