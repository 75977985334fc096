"""Small questions about the source of a hot spot."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from hotloop.analysis.hot_statements import Spot
from hotloop.analysis.source_names import dotted

_ALIASES = {"np": "numpy", "pd": "pandas", "th": "torch", "T": "torch", "dist": "torch.distributions"}
TENSORS = (
    "torch.tensor",
    "torch.as_tensor",
    "torch.FloatTensor",
    "torch.LongTensor",
    "torch.Tensor",
    "torch.BoolTensor",
    "torch.DoubleTensor",
    "torch.IntTensor",
)
_CASES = (ast.ExceptHandler, ast.match_case)
_BODIES = (ast.stmt, *_CASES)


LEAST_FRACTION = 0.1  # of the time of a spot: a call that takes less is not what makes it slow


def call_of(spot: Spot, *names: str) -> ast.Call | None:
    """A call whose dotted name ends with one of `names` (`np.append` matches `numpy.append` too).

    Calls that are known to take hardly any of the spot's time are passed over.
    """
    for name, call in spot.calls():
        if any(is_same(name, wanted) for wanted in names):
            fraction = spot.fraction_in(call)
            if fraction is None or fraction >= LEAST_FRACTION:
                return call
    return None


def has_call(spot: Spot, *names: str) -> bool:
    """Whether there is such a call, however little time it takes."""
    return any(is_same(name, wanted) for name, _ in spot.calls() for wanted in names)


def is_same(written: str, wanted: str) -> bool:
    head, _, rest = written.partition(".")
    full = f"{_ALIASES.get(head, head)}.{rest}" if rest else head
    if wanted.startswith("."):  # a method of anything
        return rest != "" and f".{rest}".endswith(wanted)
    return full == wanted or full.endswith(f".{wanted}")


def saw_call(spot: Spot, *functions: str) -> bool:
    """Whether samples saw one of these library functions called from the spot."""
    return any(
        name == wanted or name.endswith(f".{wanted}") for name in spot.called[:3] for wanted in functions
    )


def is_loop(spot: Spot) -> bool:
    return isinstance(spot.node, ast.For | ast.While | ast.AsyncFor)


def comprehensions(node: ast.AST) -> Iterator[ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp):
            yield inner


def has(node: ast.AST, *kinds: type[ast.AST]) -> bool:
    return any(isinstance(inner, kinds) for inner in ast.walk(node))


def called_names(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call):
            yield dotted(inner.func)


def appended_to(spot: Spot, name: str) -> bool:
    return any(
        isinstance(inner, ast.Call)
        and isinstance(inner.func, ast.Attribute)
        and inner.func.attr in ("append", "extend")
        and dotted(inner.func.value) == name
        for inner in ast.walk(spot.scope)
    )


def carries_over(loop: ast.For) -> bool:
    """Whether a pass needs a value that the one before has assigned, as a recurrent network does."""
    read = _names(loop.iter, ast.Load)
    read |= _read_first(loop.body, _names(loop.target, ast.Store))[0]
    return bool(read & _kept_in(loop.body))


def _read_first(body: Sequence[ast.stmt], assigned: set[str]) -> tuple[set[str], set[str]]:
    """Names that are read before a pass assigns them, and those that it has surely assigned at the end."""
    read: set[str] = set()
    for statement in body:
        heads = [child for child in ast.iter_child_nodes(statement) if not isinstance(child, _BODIES)]
        branches = [
            part
            for name in ("body", "orelse", "finalbody", "handlers", "cases")
            if isinstance(part := getattr(statement, name, None), list)
        ]
        if not branches:
            heads = [statement]
        for head in heads:
            read |= _names(head, ast.Load) - assigned
        inside = assigned | {name for head in heads for name in _names(head, ast.Store)}
        ends = []
        for branch in branches:
            rows = [
                row
                for one in branch
                for row in (getattr(one, "body", None) or [] if isinstance(one, _CASES) else [one])
            ]
            reads, end = _read_first(rows, inside)
            read |= reads
            ends.append(end)
        certain = isinstance(statement, ast.With | ast.AsyncWith)
        if isinstance(statement, ast.If):
            assigned = ends[0] & ends[1]
        elif certain or not branches:
            assigned = ends[0] if ends else inside
    return read, assigned


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """Names that are loaded or stored, but for those of comprehensions, which are gone at their end."""
    own = {
        n.id
        for inner in ast.walk(node)
        if isinstance(inner, ast.comprehension)
        for n in ast.walk(inner.target)
        if isinstance(n, ast.Name)
    }
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, context)} - own


def _kept_in(body: Sequence[ast.stmt]) -> set[str]:
    """Names that a pass assigns; sums over all passes (`total += x`) are no matter of the next one."""
    sums = {
        id(node.target)
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }
    return {
        node.id
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in sums
    } - {
        n.id
        for statement in body
        for inner in ast.walk(statement)
        if isinstance(inner, ast.comprehension)
        for n in ast.walk(inner.target)
        if isinstance(n, ast.Name)
    }


def is_stream(spot: Spot, owner: str) -> bool:
    """Whether it is an asyncio stream to another process: `await writer.drain()`."""
    return f"{owner}.drain" in set(called_names(spot.scope))


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
