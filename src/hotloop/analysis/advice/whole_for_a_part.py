"""Everything is computed and a part is used: the last value of a history, the rows of a minibatch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotloop.analysis.advice.idioms import IDIOMS, Match
from hotloop.analysis.advice.statements import (
    FUNCTIONS,
    assignments,
    names_loaded,
    names_stored,
    simple_statements,
)
from hotloop.analysis.hot_statements import LOOPS, Spot
from hotloop.analysis.source_names import dotted

ESTIMATORS = frozenset({"GAE", "VTrace", "TDLambdaEstimator", "TD0Estimator", "TD1Estimator"})
# Functions whose result has another order or meaning than the series: its last entry is not that of now.
NO_SERIES = frozenset(
    {"sort", "argsort", "sorted", "topk", "partition", "argpartition", "unique", "histogram", "polyfit"}
    | {"lstsq", "svd", "eig", "eigh", "split", "array_split", "quantile", "where", "nonzero", "searchsorted"}
)
PASSED_ON = frozenset({"iloc", "values", "loc", "array"})  # of a data frame or series


def history_for_its_last_value(spot: Spot) -> Match | None:
    """`moving_average(self.close[:self.t + 1], 20)[-1]`: everything up to now, for one number."""
    if isinstance(spot.node, LOOPS) or not isinstance(spot.node, ast.stmt):
        return None
    histories = _histories(spot)
    if not histories:
        return None
    calls = [call for _, call in spot.calls() if _reads(call, histories) and not _is_length(call)]
    if not calls or not _only_last_values_leave(spot, histories):
        return None
    if any(dotted(call.func).rpartition(".")[2] in NO_SERIES for call in calls):
        return None
    source = sorted(histories.values())[0]
    return Match(
        "history_for_its_last_value",
        f"Do not compute over all of {source} to read the last value",
        "Every step computes a value for each moment so far, and reads the last one only; it gets slower "
        "as the episode goes on.",
        "If all data are known at the start (prices of an episode), compute the columns once there and read "
        "row t at each step: the same numbers, where a value depends on earlier ones only. Else update a "
        "running value, or compute over the last few entries.",
        (0.6, 0.93, 1.0),
        safety="semantic",
        effort="hours",
        takes="all",
        walks_memory=True,
    )


def _histories(spot: Spot) -> dict[str, str]:
    """Local names for all of a series up to now, and for what is computed from it entry by entry."""
    found: dict[str, str] = {}
    for statement in simple_statements(spot.scope):
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            continue
        target = statement.targets[0]
        if not isinstance(target, ast.Name):
            continue
        prefix = _prefix(spot, statement.value)
        if prefix:
            found[target.id] = prefix
        elif _reads(statement.value, found) and not _takes_the_end(statement.value, found):
            found[target.id] = next(
                found[name] for name in sorted(found) if _reads(statement.value, {name: ""})
            )
    return found


def _prefix(spot: Spot, value: ast.AST) -> str:
    """`self.close[:self.t + 1]`: the name of the series; "" for anything else."""
    if not isinstance(value, ast.Subscript) or not isinstance(value.slice, ast.Slice):
        return ""
    begin, end = value.slice.lower, value.slice.upper
    if value.slice.step is not None or end is None:
        return ""
    if begin is not None and not (isinstance(begin, ast.Constant) and begin.value == 0):
        return ""
    owner = value.value
    while isinstance(owner, ast.Attribute) and owner.attr in PASSED_ON:
        owner = owner.value
    bound = {dotted(n) for n in ast.walk(end) if isinstance(n, ast.Name | ast.Attribute)} - {"self"}
    name = dotted(owner)
    if "?" in name or not any(_counts_up(spot, one) for one in bound):
        return ""
    return name


def _counts_up(spot: Spot, name: str) -> bool:
    """Whether a name is that of the time: `self.t += 1`, `for t in range(n)`."""
    last = name.rpartition(".")[2]
    for tree in spot.names.trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
                found = dotted(node.target).rpartition(".")[2] == last
            elif isinstance(node, ast.For) and isinstance(node.iter, ast.Call):
                found = dotted(node.target) == last and dotted(node.iter.func) == "range"
            else:
                continue
            if found:
                return True
    return False


def _reads(node: ast.AST, names: dict[str, str]) -> bool:
    return bool(names_loaded(node) & names.keys())


def _is_length(call: ast.Call) -> bool:
    return dotted(call.func) == "len"


def _is_last(node: ast.AST) -> bool:
    """`x[-1]`, `x.iloc[-1]`, `x[-3:]`."""
    if not isinstance(node, ast.Subscript):
        return False
    index = node.slice.lower if isinstance(node.slice, ast.Slice) else node.slice
    if isinstance(node.slice, ast.Slice) and node.slice.upper is not None:
        return False
    return (
        isinstance(index, ast.UnaryOp)
        and isinstance(index.op, ast.USub)
        and isinstance(index.operand, ast.Constant)
    )


def _takes_the_end(value: ast.AST, histories: dict[str, str]) -> bool:
    """Whether a history is read for its last entries only."""
    return not any(True for _ in _outside_of_ends(value, histories))


def _outside_of_ends(node: ast.AST, histories: dict[str, str]) -> Iterator[ast.Name]:
    """Places that read a history as a whole."""
    if _is_last(node):
        return
    if isinstance(node, ast.Call) and _is_length(node):
        return
    if isinstance(node, ast.Name) and node.id in histories and isinstance(node.ctx, ast.Load):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _outside_of_ends(child, histories)


def _only_last_values_leave(spot: Spot, histories: dict[str, str]) -> bool:
    """Whether whole histories only make other histories."""
    ends = 0
    for node in ast.walk(spot.scope):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            makes = isinstance(node, ast.Assign) and dotted(node.targets[0]) in histories
            if not makes and any(True for _ in _outside_of_ends(node, histories)):
                return False
            ends += any(_is_last(n) and _reads(n, histories) for n in ast.walk(node))
        elif isinstance(node, ast.If | ast.While) and any(_outside_of_ends(node.test, histories)):
            return False
    return ends > 0


# -- boards --------------------------------------------------------------------------------------------------


def all_lines_after_a_move(spot: Spot) -> Match | None:
    """`for line in LINES: if all(board[c] == me ...): return True`, after one cell was filled."""
    loop, function = spot.node, spot.scope
    if not isinstance(loop, ast.For) or not isinstance(function, FUNCTIONS) or spot.loops:
        return None
    if not _answers_in(loop) or names_loaded(loop.iter) & {
        a.arg for a in function.args.args if a.arg != "self"
    }:
        return None
    boards = _indexed_in(function, loop)
    callers = [_change_before(spot, call) for call in spot.names.calls_of(function.name)]
    changed = [one for one in callers if one is not None]
    if not boards or not changed or any(one not in boards for one in changed):
        return None
    return Match(
        "all_lines_after_a_move",
        f"Look only at the lines through the cell that changed, not at all of them ({function.name})",
        f"A move fills one cell of {changed[0]}, and then every line of the board is looked at. Only lines "
        "through that cell can be new.",
        "Make a table once: for each cell, the lines through it. Look at those of the last move. The answers "
        "are the same if every move is checked.",
        (0.5, 0.87, 0.97),
        safety="semantic",
        effort="hours",
        takes="own",
        chills=False,
    )


def _answers_in(loop: ast.For) -> bool:
    """Whether a pass may end the search: an `if` with a `return` of a plain value."""
    return any(
        isinstance(n, ast.If)
        and any(isinstance(s, ast.Return) for s in n.body)
        and any(isinstance(c, ast.Compare | ast.Call) for c in ast.walk(n.test))
        for n in ast.walk(loop)
    )


def _indexed_in(function: ast.AST, loop: ast.For) -> set[str]:
    """Last names of what the loop takes elements of by its items: `board` of `board[a]`, `self.board[a]`."""
    items = {
        n.id
        for inner in ast.walk(loop)
        if isinstance(inner, ast.For)
        for n in ast.walk(inner.target)
        if isinstance(n, ast.Name)
    }
    items |= {n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    taken = {
        dotted(n.value)
        for n in ast.walk(loop)
        if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load) and names_loaded(n.slice) & items
    }
    found = set()
    for name in taken - {"?"}:
        found.add(name.rpartition(".")[2])
        for statement in simple_statements(function):  # board, me = self.board, self.player
            for target, value in assignments(statement):
                if dotted(target) == name:
                    found.add(dotted(value).rpartition(".")[2])
    return found


def _change_before(spot: Spot, call: ast.Call) -> str | None:
    """What the caller changed one entry of before it asked; None: nothing, or more than one."""
    around: ast.AST | None = call
    while around is not None and not isinstance(around, FUNCTIONS):
        around = spot.names.parents.get(around)
    if around is None:
        return None
    stores = [n for n in _stored_entries(spot, around) if n.lineno <= call.lineno]
    for other in ast.walk(around):  # drop_piece(board, row, column, piece)
        if isinstance(other, ast.Call) and other.lineno <= call.lineno and other is not call:
            defined = spot.names.definitions.get(dotted(other.func).rpartition(".")[2], ())
            stores += [n for function in defined for n in _stored_entries(spot, function)]
    if len(stores) != 1:
        return None
    board: ast.AST = stores[0]
    while isinstance(board, ast.Subscript):
        if isinstance(board.slice, ast.Slice):
            return None
        board = board.value
    return dotted(board).rpartition(".")[2]


def _stored_entries(spot: Spot, function: ast.AST) -> list[ast.Subscript]:
    """Entries that a function assigns outside of loops; one in a loop counts twice."""
    found = []
    for node in ast.walk(function):
        if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Store):
            continue
        if not isinstance(spot.names.parents.get(node), ast.Assign):
            continue
        found.append(node)
        above = spot.names.parents.get(node)
        while above is not None and above is not function:
            if isinstance(above, LOOPS):
                found.append(node)
                break
            above = spot.names.parents.get(above)
    return found


# -- minibatches ---------------------------------------------------------------------------------------------


def batch_for_each_minibatch(spot: Spot) -> Match | None:
    """Advantages (or outputs of a network) of the whole batch, computed again before every minibatch."""
    loop = next((one for one in spot.loops if isinstance(one, ast.For)), None)
    if isinstance(spot.node, LOOPS) or loop is None or not _learns_directly(loop):
        return None
    what = _estimates(spot, loop) or _indexes_the_result(spot, loop)
    if not what:
        return None
    return Match(
        "batch_for_each_minibatch",
        f"Compute {what} once, not before every minibatch",
        "The whole batch goes through it for every minibatch, which uses a part of the result.",
        "Advantages, returns and old log-probabilities: compute them once for each batch (or each epoch), "
        "before the loop over minibatches. What the loss needs with gradients: index its input first.",
        (0.5, 0.85, 0.98),
        safety="semantic",
        takes="all",
        library_calls=("torchrl", "tensordict", "torch.nn"),
    )


def _learns_directly(loop: ast.For) -> bool:
    """Whether a pass is one gradient step: a backward pass that lies in no inner loop."""
    return any(
        isinstance(n, ast.Call) and dotted(n.func).endswith(".backward")
        for s in loop.body
        for n in _without_inner_loops(s)
    )


def _without_inner_loops(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, (*LOOPS, *FUNCTIONS, ast.Lambda)):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _without_inner_loops(child)


def _assigned_in(loop: ast.For) -> set[str]:
    return names_stored(loop.target) | {name for s in loop.body for name in names_stored(s)}


def _estimates(spot: Spot, loop: ast.For) -> str:
    """TorchRL: `advantage(batch)` in a loop that draws its minibatches from a buffer."""
    node = spot.node
    call = node.value if isinstance(node, ast.Expr | ast.Assign) else None
    if not isinstance(call, ast.Call) or not spot.names.of(dotted(call.func)) & ESTIMATORS:
        return ""
    given = set().union(*(names_loaded(a) for a in call.args)) if call.args else set()
    draws = any(
        isinstance(n, ast.Call) and dotted(n.func).endswith(".sample") for s in loop.body for n in ast.walk(s)
    )
    return dotted(call.func) if given and not given & _assigned_in(loop) and draws else ""


def _indexes_the_result(spot: Spot, loop: ast.For) -> str:
    """`adv = gae(rewards, critic(obs))` and then `adv[rows]`, with rows of this pass."""
    node = spot.node
    if not isinstance(node, ast.Assign) or not any(isinstance(n, ast.Call) for n in ast.walk(node.value)):
        return ""
    changed = _assigned_in(loop)
    if any(word in ast.unparse(node.value) for word in ("rand", "perm", "choice", "sample", "shuffle")):
        return ""  # drawn anew on purpose
    names = {name for target in node.targets for name in names_stored(target)}
    if not names or names_loaded(node.value) & changed or node not in loop.body:
        return ""
    indexed = 0
    for statement in loop.body:
        if statement is node:
            continue
        inside = [
            n.value
            for n in ast.walk(statement)
            if isinstance(n, ast.Subscript)
            and isinstance(n.value, ast.Name)
            and n.value.id in names
            and names_loaded(n.slice) & changed
        ]
        used = [
            n
            for n in ast.walk(statement)
            if isinstance(n, ast.Name) and n.id in names and isinstance(n.ctx, ast.Load)
        ]
        if any(not any(n is one for one in inside) for n in used):
            return ""
        indexed += len(inside)
    return " and ".join(sorted(names)) if indexed else ""


IDIOMS[:0] = [history_for_its_last_value, batch_for_each_minibatch, all_lines_after_a_move]
