"""What runs in the time between regions, by the lines that were sampled there.

The neighbours of a gap tell where it is, not what runs in it. Functions on the sampled stack do: the library
function that the user's line called, else the user's own functions from the inside out.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable
from dataclasses import replace

from hotloop.analysis.categories import CategoryPatterns, category_of_name
from hotloop.analysis.findings import Breakdown, CategoryShare
from hotloop.analysis.line_samples import LineSamples
from hotloop.analysis.source_names import dotted
from hotloop.capture.samples import FunctionSource, SampledPath

# Library functions by the beginning of their names; what is missing here goes by its words.
LIBRARIES = (
    ("torch.utils.tensorboard", "logging"),
    ("tensorboard", "logging"),
    ("wandb", "logging"),
    ("logging.", "logging"),
    ("torch.utils.data", "data"),
    ("torch.optim", "optimizer"),
    ("torch.autograd", "backward"),
    ("torch.nn.functional", "other"),  # losses, but activations too
    ("torch", "other"),
    ("numpy", "other"),
)
# A function named after a network is no forward pass: that has a region.
NOT_IN_GAPS = frozenset({"policy", "model"})
LEAST_SHARE = 0.005  # of the wall time; less stays where it was
ENV_METHODS = frozenset({"step", "reset", "step_wait", "step_async"})
ACTIONS = frozenset({"action", "actions", "act", "acts"})
_Key = tuple[str, int]


def category_of_path(
    path: SampledPath, patterns: CategoryPatterns = (), scoring: frozenset[_Key] = frozenset()
) -> str:
    """What the code on a sampled stack does; "other" if its names do not tell.

    `scoring` are functions, by file and first line, whose name does not tell: see `scoring_functions` and
    `collecting_functions`.
    """
    if path.called:
        for start, kind in LIBRARIES:
            if path.called.startswith(start):
                if kind != "other":
                    return kind
                break
        else:
            kind, _ = category_of_name(path.called, patterns)
            if kind and kind not in NOT_IN_GAPS:
                return kind
    for frame in reversed(path.frames):
        if (frame.file, frame.first_line) in scoring:
            continue
        kind, _ = category_of_name(frame.function, patterns)
        if kind and kind not in NOT_IN_GAPS:
            return kind
    return "other"


def scoring_functions(sources: Iterable[FunctionSource]) -> frozenset[_Key]:
    """Functions that get actions: `evaluate(self, state, action)` of PPO is a part of the loss.

    Whoever sees how good a policy is gives it observations, and gets the actions.
    """
    found: set[_Key] = set()
    for source in sources:
        try:
            tree = ast.parse(textwrap.dedent(source.text))
        except SyntaxError:
            continue
        function = tree.body[0] if tree.body else None
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            words = {word for arg in function.args.args for word in arg.arg.lower().split("_")}
            if words & ACTIONS and category_of_name(function.name)[0] == "evaluation":
                found.add((source.file, source.first_line))
    return frozenset(found)


def collecting_functions(sources: Iterable[FunctionSource]) -> frozenset[_Key]:
    """Functions that step an env, but are not its `step` or `reset`: `explore_env(self, env)` of an agent.

    They act, step and store; what they do themselves is not the env's.
    """
    found: set[_Key] = set()
    for source in sources:
        name = source.function.rpartition(".")[2].lstrip("_")
        if name in ENV_METHODS or category_of_name(name)[0] != "environment":
            continue
        try:
            tree = ast.parse(textwrap.dedent(source.text))
        except SyntaxError:
            continue
        calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args)
        stepped = (f.value for f in calls if isinstance(f, ast.Attribute) and f.attr == "step")
        if any("env" in dotted(of).lower() for of in stepped):
            found.add((source.file, source.first_line))
    return frozenset(found)


def with_contents_of_gaps(
    own: Breakdown, gaps_ns: int, lines: LineSamples | None, patterns: CategoryPatterns = ()
) -> Breakdown:
    """The breakdown of a thread with the time in gaps, `gaps_ns`, divided by what was sampled in them."""
    if lines is None or lines.biased or gaps_ns <= 0:
        return own
    between = lines.node == 0  # a gap gets its name when it is over
    weights: dict[str, float] = {}
    scoring = scoring_functions(lines.sources) | collecting_functions(lines.sources)
    kinds = [category_of_path(path, patterns, scoring) for path in lines.paths]
    for number, weight_ns in zip(
        lines.path[between].tolist(), lines.weight_ns[between].tolist(), strict=True
    ):
        weights[kinds[number]] = weights.get(kinds[number], 0.0) + weight_ns
    whole = sum(weights.values())
    moved = {
        kind: round(gaps_ns * weight / whole)
        for kind, weight in weights.items()
        if kind != "other" and gaps_ns * weight / whole >= LEAST_SHARE * own.wall_ns
    }
    if not moved:
        return own
    found = {part.category: part for part in own.categories}
    for kind, time_ns in {**moved, "other": -sum(moved.values())}.items():
        part = found.get(kind) or CategoryShare(kind, 0, 0.0, 0)
        own_ns = max(part.own_ns + time_ns, 0)
        found[kind] = replace(part, own_ns=own_ns, share=own_ns / own.wall_ns if own.wall_ns else 0.0)
    parts = sorted(found.values(), key=lambda part: (-part.own_ns, part.category))
    return replace(own, categories=tuple(parts))
