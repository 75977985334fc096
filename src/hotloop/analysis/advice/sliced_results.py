"""Results for all positions of a sequence of which a fixed slice is used.

`logits = head(hidden); log_probs = logits.log_softmax(-1).gather(2, tokens); return log_probs[:, 40:]`: every
step of that chain works position by position, so the slice can be taken before it. How many positions were
used is known where a recording looked at the gradients of a layer; the source alone shows the chain.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hotloop._util.units import percent
from hotloop.analysis.advice.padded_sequences import LEAST_CALLS
from hotloop.analysis.advice.recommendation import LEAST_SAVED, Change, about, advise
from hotloop.analysis.advice.run_view import RunView
from hotloop.analysis.advice.sampled_passes import (
    backward_paths,
    below,
    fact,
    in_torch,
    statement_of,
)
from hotloop.analysis.advice.statements import FUNCTIONS
from hotloop.analysis.findings import Claim, Recommendation, short_site
from hotloop.analysis.line_samples import LineSamples
from hotloop.analysis.parsed_source import indentation, parse_source
from hotloop.analysis.source_names import Names, dotted, names_in

LEAST_UNUSED = 0.2  # of the positions
SAVED = (0.7, 0.95, 1.0)  # times the unused part
UNKNOWN = (0.1, 0.4, 0.9)  # unused part where it was not seen
LAST_ONLY = (0.2, 0.8, 0.98)  # the same if a single position is read
# Layers and functions that give each position its own result. Dropout draws other numbers for a slice.
LAYERS = frozenset(
    {"Linear", "LayerNorm", "RMSNorm", "ReLU", "GELU", "SiLU", "ELU", "Tanh", "Sigmoid", "LeakyReLU"}
    | {"Mish", "Identity", "LogSoftmax", "Softmax", "Softplus"}
)
POINTWISE = frozenset(
    {"exp", "log", "tanh", "sigmoid", "relu", "gelu", "silu", "elu", "softplus", "float", "double", "half"}
    | {"clamp", "neg", "square", "sqrt", "contiguous", "add", "sub", "mul", "div", "pow", "logsigmoid", "abs"}
)
ALONG = frozenset(  # work along one axis, which must not be that of the slice
    {"log_softmax", "softmax", "gather", "squeeze", "logsumexp", "argmax", "argmin", "max", "min", "sum"}
    | {"amax", "amin", "take_along_dim", "mean"}
)
MODULES = ("F", "torch", "th", "T", "nn", "functional", "np", "numpy")
MOST_STEPS = 12


@dataclass(frozen=True)
class Sliced:
    """A chain of position-wise work of which a slice is used."""

    slice: ast.Subscript
    nodes: tuple[ast.expr, ...]  # the work, from the slice back to where it begins
    base: ast.expr  # what goes in
    axis: int
    is_single: bool  # one position
    is_certain: bool  # the source shows that there are more axes behind that of the slice

    @property
    def rows(self) -> list[int]:
        return sorted(
            {n for one in self.nodes for n in range(one.lineno, (one.end_lineno or one.lineno) + 1)}
        )


def sliced_results(run: RunView) -> list[Recommendation]:
    """Position-wise results of which a fixed slice is used."""
    lines = run.unbiased_lines
    if lines is None:
        return []
    seen = [one for one in fact(run, "positions") or () if _is_slice(one)]
    found: list[tuple[float, Recommendation]] = []
    for key, function, names, moved in _functions(lines):
        chains = find_sliced(names, function)
        mine = [one for one in seen if tuple(one["frames"][-1][:2]) == key]
        for chain in chains:
            evidence = next((one for one in mine if one["frames"][-1][2] in chain.rows), None)
            if evidence is not None or chain.is_certain:
                found += _recommendation(run, lines, key, chain, evidence, moved)
    return [made for _, made in sorted(found, key=lambda one: -one[0])[:1]]


def _is_slice(one: Any) -> bool:
    """Whether the same slice of the results of a layer was used every time."""
    (first, last), (least, most) = one["first"], one["last"]
    return bool(
        one["gradients"]
        and one["kind"] == "Linear"
        and first == last
        and least == most
        and one["calls"] >= LEAST_CALLS
        and 1 - (most - first) / one["steps"] >= LEAST_UNUSED
    )


def _recommendation(
    run: RunView,
    lines: LineSamples,
    key: tuple[str, int],
    chain: Sliced,
    seen: Any,
    moved: int,
) -> list[tuple[float, Recommendation]]:
    rows = chain.rows
    paths = frozenset(n for n in _own(lines, key, rows) if not _runs(lines, n, chain.base, moved))
    if seen is not None:
        steps, first, last = seen["steps"], seen["first"][0], seen["last"][0]
        unused = 1 - (last - first) / steps
        saved = tuple(unused * one for one in SAVED)
    else:
        saved = LAST_ONLY if chain.is_single else UNKNOWN
    low, likely, high = saved
    # The backward pass gets cheaper, too: by the part of the chain in the forward pass behind that loss.
    also = np.zeros(len(lines.path))
    part = 0.0
    if seen is not None:
        whole = in_torch(lines, below(lines, statement_of(seen["frames"], seen["backward"])))
        weight = lines.weight_of(whole)
        part = lines.weight_of(paths & whole) / weight if weight else 0.0
        backward = backward_paths(lines, seen["backward"])
        also = np.where(lines.among(backward), part * likely, 0.0)
    expected = lines.share_of(paths) * likely + float((also * lines.weight_ns).sum()) / lines.total_ns
    if expected < LEAST_SAVED:
        return []
    site = f"{key[0]}:{rows[0]}"
    line = short_site(site)
    evidence = [f"{_where(key[0], rows)} took {percent(lines.share_of(paths))} of training."]
    if seen is not None:
        evidence.append(
            f"In {seen['calls']} calls that were looked at, the layer there computed {steps:.0f} positions "
            f"for each sequence, and the loss used those from {first} to {last - 1} alone: all gradients of "
            "the others are exactly zero."
        )
        if part > 0.01:
            evidence.append(
                f"It is {percent(part)} of the forward pass behind that loss; the same part of the backward "
                "pass is counted."
            )
    evidence.append(
        f"Only {ast.unparse(chain.slice)} is used, and each step before it works position by position."
    )
    evidence.append(
        f"Assumption: {about(likely)} of that work is saved (between {about(low)} and {about(high)})."
    )
    cut, base = _slice_text(chain.slice), ast.unparse(chain.base)
    shown = base if len(base) <= 60 else "what goes in"
    remedy = (
        f"Take the slice first: {shown}{cut}, and the same positions of what goes with it (indices, masks). "
        "The results are the same up to rounding."
    )
    title = f"Take {cut} before the work on every position, not after it ({line})"
    made = advise(
        run,
        "sliced_results",
        None,
        title,
        evidence,
        remedy,
        lines.gain(paths, (low, likely, high), also),
        Change("slice the input instead of the result", "minutes", "rounding"),
    )
    return [(expected, replace(made, site=site, claim=Claim(sampled=tuple(sorted(paths)))))]


def _where(file: str, rows: list[int]) -> str:
    name = short_site(file)
    return f"{name}:{rows[0]}" if len(rows) == 1 else f"{name} lines {rows[0]} to {rows[-1]}"


def _slice_text(node: ast.Subscript) -> str:
    inner = ast.unparse(node.slice)
    return f"[{inner[1:-1] if isinstance(node.slice, ast.Tuple) and inner.startswith('(') else inner}]"


def _own(lines: LineSamples, key: tuple[str, int], rows: list[int]) -> Iterator[int]:
    """Samples of these lines in torch, without other functions of the user."""
    for number, path in enumerate(lines.paths):
        last = path.line
        own = last is not None and (last.file, last.first_line) == key and last.line in rows
        if own and (path.called.startswith("torch.") or not path.called):
            yield number


def _runs(lines: LineSamples, number: int, part: ast.expr, moved: int) -> bool:
    """Whether a sample is known to have run inside an expression."""
    place = lines.paths[number].expression
    if place is None:
        return False
    begin = part.lineno, part.col_offset + moved
    end = part.end_lineno or part.lineno, (part.end_col_offset or 0) + moved
    return begin <= (place.line, place.column) and (place.end_line, place.end_column) <= end


def _functions(lines: LineSamples) -> Iterator[tuple[tuple[str, int], ast.AST, Names, int]]:
    """Functions and scripts by file and first line, with the indentation that parsing took away."""
    parsed = [(source, tree) for source in lines.sources if (tree := parse_source(source)) is not None]
    for file in {source.file for source, _ in parsed}:
        names = names_in(tree for source, tree in parsed if source.file == file)
        for source, tree in parsed:
            first = tree.body[0] if tree.body else None
            if source.file == file:
                is_function = isinstance(first, FUNCTIONS) and source.function != "<module>"
                own: ast.AST = first if is_function and first is not None else tree
                yield (file, source.first_line), own, names, indentation(source)


# -- in the source ------------------------------------------------------------------------------------


def find_sliced(names: Names, scope: ast.AST) -> Iterator[Sliced]:
    """Chains of position-wise work of which only a slice is used, in one function."""
    own = list(_walk(scope))
    for node in own:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            axis = _sliced_axis(node, names)
            if axis is None:
                continue
            found = _chain(names, own, node, axis)
            if found is not None:
                yield found


def _walk(scope: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            yield child
            yield from _walk(child)


def _sliced_axis(node: ast.Subscript, names: Names) -> int | None:
    """The one axis that is cut to fixed bounds, if it is not the first; None for anything else."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    cut = [at for at, part in enumerate(parts) if not _is_all(part)]
    if len(cut) != 1 or cut[0] == 0:
        return None
    part = parts[cut[0]]
    if isinstance(part, ast.Slice):
        bounds = [one for one in (part.lower, part.upper) if one is not None]
        fixed = part.step is None and all(_is_fixed(one, names) for one in bounds)
        # `[:, 1:]` and `[:, :-1]` shift a sequence by one step: nothing to be saved.
        by_one = all(isinstance(_number(one), int) and abs(_number(one) or 0) <= 1 for one in bounds)
        return cut[0] if fixed and not by_one else None
    return cut[0] if _number(part) is not None else None


def _is_all(part: ast.expr) -> bool:
    return isinstance(part, ast.Slice) and part.lower is None and part.upper is None and part.step is None


def _number(node: ast.expr | None) -> int | None:
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node, sign = node.operand, -1
    return sign * node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None


def _is_fixed(node: ast.expr, names: Names) -> bool:
    """Constants, settings and sizes, and sums of them."""
    if isinstance(node, ast.BinOp):
        return _is_fixed(node.left, names) and _is_fixed(node.right, names)
    if isinstance(node, ast.UnaryOp):
        return _is_fixed(node.operand, names)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int)
    if isinstance(node, ast.Name):
        return True
    if isinstance(node, ast.Attribute):
        return "?" not in dotted(node)
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    return isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in ("len", "size")


def _chain(names: Names, own: list[ast.AST], node: ast.Subscript, axis: int) -> Sliced | None:
    """Follow what is sliced back through position-wise work."""
    work: list[ast.expr] = []
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    certain = len(parts) > axis + 1
    here: ast.expr = node.value
    for _ in range(MOST_STEPS):
        if isinstance(here, ast.Name):
            made = _made_once(own, here)
            if made is None:
                break
            here = made
            continue
        below, sure = _step_back(names, here, axis)
        if below is None:
            break
        certain |= sure
        work.append(here)
        here = below
    if not work or not any(isinstance(one, ast.Call) for one in work):
        return None
    single = not isinstance(parts[axis], ast.Slice)
    return Sliced(node, tuple(work), here, axis, single, certain)


def _made_once(own: list[ast.AST], name: ast.Name) -> ast.expr | None:
    """What a name stands for, if it is assigned once and read here alone."""
    stores = [
        n for n in own if isinstance(n, ast.Name) and n.id == name.id and not isinstance(n.ctx, ast.Load)
    ]
    loads = [n for n in own if isinstance(n, ast.Name) and n.id == name.id and isinstance(n.ctx, ast.Load)]
    if len(stores) != 1 or len(loads) != 1:
        return None
    for node in own:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and node.targets[0] is stores[0]:
            return node.value
    return None


def _step_back(names: Names, node: ast.expr, axis: int) -> tuple[ast.expr | None, bool]:
    """What goes into one step of position-wise work (None: it is none), and whether it shows more axes."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return node.operand, False
    if isinstance(node, ast.BinOp):
        if isinstance(node.right, ast.Constant):
            return node.left, False
        return (node.right, False) if isinstance(node.left, ast.Constant) else (None, False)
    if not isinstance(node, ast.Call):
        return None, False
    last = dotted(node.func).rpartition(".")[2]
    if _is_function(node):
        assert isinstance(node.func, ast.Attribute)
        is_method = dotted(node.func.value) not in (*MODULES, "torch.nn.functional", "nn.functional")
        given = [node.func.value, *node.args] if is_method else list(node.args)
        if not given:
            return None, False
        if last in POINTWISE:
            return given[0], False
        words = [k.value for k in node.keywords if k.arg in ("dim", "axis")]
        dim = _number(next(iter([*words, *given[1:2]]), None))
        if dim is None or (0 <= dim <= axis) or dim < -1:
            return None, False
        return given[0], dim > axis
    if len(node.args) == 1 and not node.keywords and _is_layer(names, dotted(node.func)):
        return node.args[0], False
    return None, False


def _is_function(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr in POINTWISE | ALONG


def _is_layer(names: Names, name: str) -> bool:
    """Whether a name stands for layers that work position by position."""
    kinds = names.of(name)
    if not kinds or not kinds <= LAYERS | {"Sequential"}:
        return False
    if "Sequential" not in kinds:
        return True
    made = [
        node.value
        for tree in names.trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and any(dotted(target) == name for target in node.targets)
        and isinstance(node.value, ast.Call)
    ]
    return bool(made) and all(
        isinstance(part, ast.Call) and dotted(part.func).rpartition(".")[2] in LAYERS
        for call in made
        for part in call.args
    )
