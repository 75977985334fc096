"""Batches and tensors made item by item."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from hotloop.analysis.advice.idioms.questions import (
    TENSORS,
    appended_to,
    call_of,
    called_names,
    comprehensions,
    is_loop,
    is_same,
    saw_call,
)
from hotloop.analysis.advice.idioms.registry import Match, idiom
from hotloop.analysis.hot_statements import Spot
from hotloop.analysis.source_names import dotted

TELLING = 0.05  # share of training at which what a conversion costs tells what it converts
CONVERTING = frozenset(
    {"float", "int", "bool", "asarray", "array", "tensor", "as_tensor", "from_numpy", "numpy", "cpu", "item"}
    | {
        "detach",
        "astype",
        "clone",
        "copy",
        "flatten",
        "reshape",
        "ravel",
        "to",
        "squeeze",
        "unsqueeze",
        "view",
    }
    | {"list", "tuple", "zip", "len", "float32", "get", "transpose", "frombuffer", "stack", "concatenate"}
)


DIAGONAL = ("diag", "eye", "identity", "diagflat")


@idiom
def independent_draws(spot: Spot) -> Match | None:
    """`rng.multivariate_normal(mean, np.diag(std**2), size=n)`: independent numbers, through a matrix."""
    call = None if is_loop(spot) else call_of(spot, ".multivariate_normal")
    if call is None:
        return None
    given = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "cov")]
    if not given or not _is_diagonal(spot, given[0]):
        return None
    return Match(
        "independent_draws",
        "Draw independent normal numbers without a covariance matrix",
        "multivariate_normal decomposes the matrix at each call (SVD), though it is diagonal.",
        "Use mean + std * rng.standard_normal((n, len(mean))): the same distribution, with other random "
        "numbers.",
        (0.6, 0.93, 0.99),
        part=call,
        safety="semantic",
        library_calls=("multivariate_normal",),
    )


def _is_diagonal(spot: Spot, matrix: ast.expr) -> bool:
    """Whether it is made by `diag` or `eye`, and only scaled, here or where its name gets its one value."""
    if isinstance(matrix, ast.Call):
        return dotted(matrix.func).rpartition(".")[2] in DIAGONAL
    if isinstance(matrix, ast.BinOp):
        left, right = (_is_diagonal(spot, side) for side in (matrix.left, matrix.right))
        if isinstance(matrix.op, ast.Mult):
            return left or right
        return left if isinstance(matrix.op, ast.Div) else left and right and isinstance(matrix.op, ast.Add)
    values = _values_of(spot, dotted(matrix))
    # A name for another name, or a value made of the one before, tells nothing.
    return len(values) == 1 and isinstance(values[0], ast.Call | ast.BinOp) and _is_diagonal(spot, values[0])


def _values_of(spot: Spot, name: str) -> list[ast.expr]:
    """All that is assigned to a name, or changes it in place."""
    found: list[ast.expr] = []
    for node in (n for tree in spot.names.trees for n in ast.walk(tree)):
        if isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            places = [t.value if isinstance(t, ast.Subscript) else t for t in targets]
            if any(dotted(place) == name for place in places):
                found.append(node.value)
    return found


@idiom
def decomposing_for_each_draw(spot: Spot) -> Match | None:
    """`[rng.multivariate_normal(mean, cov) for _ in range(n)]`: each draw decomposes the same matrix."""
    loops = [n for n in ast.walk(spot.node) if isinstance(n, (ast.ListComp, ast.GeneratorExp, ast.SetComp))]
    around = [*loops, *(loop for loop in spot.loops if isinstance(loop, ast.For))]
    call = call_of(spot, ".multivariate_normal", "MultivariateNormal", ".MultivariateNormal")
    if is_loop(spot) or call is None or not around or len(call.args) > 2:
        return None
    if any(keyword.arg in ("size", "scale_tril") for keyword in call.keywords):
        return None
    parts = [n for loop in around for n in ast.walk(loop) if isinstance(n, (ast.Name, ast.Attribute))]
    changed = {dotted(n) for n in parts if not isinstance(n.ctx, ast.Load)}
    if any(dotted(n) in changed for argument in call.args for n in ast.walk(argument)):
        return None  # another matrix each time
    return Match(
        "decomposing_for_each_draw",
        "Draw all samples with one call",
        "Every call decomposes the same covariance matrix again, which takes longer than drawing.",
        "Pass size=n (or call .sample((n,)) of one torch distribution) once, outside of the loop; or "
        "decompose once (np.linalg.cholesky) and multiply standard normal numbers.",
        (0.6, 0.93, 0.99),
        part=call,
        safety="rounding",
        library_calls=("multivariate_normal", "torch.distributions"),
    )


@idiom
def matrix_for_each_draw(spot: Spot) -> Match | None:
    """`rng.multivariate_normal(self.mean, self.cov)`, one draw at a time: an SVD for each."""
    call = None if is_loop(spot) else call_of(spot, ".multivariate_normal")
    if call is None or spot.function.endswith("__init__") or len(call.args) != 2:
        return None
    methods = [k.value for k in call.keywords if k.arg == "method"]
    if any(not isinstance(m, ast.Constant) or m.value == "cholesky" for m in methods):
        return None
    if any(k.arg == "size" for k in call.keywords) or dotted(call.func).startswith("scipy"):
        return None
    if spot.function == "<module>" and not spot.loops:
        return None  # once
    old = dotted(call.func) in ("np.random.multivariate_normal", "numpy.random.multivariate_normal")
    return Match(
        "matrix_for_each_draw",
        "Draw through a Cholesky factor, not through an SVD of the covariance matrix",
        "multivariate_normal decomposes the matrix by an SVD at each call and checks it, which takes far "
        "longer than the draw.",
        ("" if old else 'Pass method="cholesky", or ')
        + ("Draw" if old else "draw")
        + " mean + np.linalg.cholesky(cov) @ rng.standard_normal(len(mean)); keep the factor while the "
        "matrix stays the same, or update it along with the matrix. These are other numbers of the same "
        "distribution.",
        # Measured with 3 to 64 dimensions: 74 to 96 % with method="cholesky", 85 to 97 % with the factor.
        (0.7, 0.91, 0.97),
        part=call,
        safety="semantic",
        library_calls=("multivariate_normal",),
        chills=False,
    )


DRAWS = frozenset({"randint", "randrange", "choice", "sample", "integers", "random", "uniform", "rand"})
STEPS_AND_NETWORKS = frozenset({"step", "reset", "forward", "act", "predict", "backward"})


@idiom
def batch_drawn_one_by_one(spot: Spot) -> Match | None:
    """`for _ in range(batch_size): i = random.randrange(n); states.append(memory[i].state)`."""
    loop = spot.node
    if not isinstance(loop, ast.For) or spot.trains or spot.calls_networks:
        return None
    if not isinstance(loop.iter, ast.Call) or dotted(loop.iter.func) not in ("range", "trange"):
        return None
    words = {name.rpartition(".")[2] for statement in loop.body for name in called_names(statement)}
    if words & STEPS_AND_NETWORKS or not _takes_what_it_drew(loop) or not _collects(loop):
        return None
    return Match(
        "batch_drawn_one_by_one",
        "Draw the whole batch at once",
        "Each pass of the loop draws one item of the batch and looks up its parts in Python.",
        "Keep observations, actions, rewards ... in one preallocated array each, draw all indices with one "
        "call (rng.integers(n, size=batch_size)) and index the arrays; np.where decides for all rows.",
        (0.6, 0.9, 0.98),
        safety="semantic",
        effort="hours",
        takes="all",
    )


def _is_one_draw(node: ast.AST) -> bool:
    """`random.randrange(n)`, `random.sample(memory, 1)`, `np.random.randint(n)`: one item, not many."""
    if not isinstance(node, ast.Call):
        return False
    owner, _, last = dotted(node.func).rpartition(".")
    if last not in DRAWS or not ("random" in owner or "rng" in owner.lower()):
        return False
    if any(keyword.arg in ("size", "k") for keyword in node.keywords):
        return False
    if last == "sample":
        return len(node.args) == 2 and isinstance(node.args[1], ast.Constant) and node.args[1].value == 1
    most = 2 if last in ("randint", "randrange", "uniform", "integers") else 1
    return len(node.args) <= most


def _takes_what_it_drew(loop: ast.For) -> bool:
    """Whether something is drawn and an item of a container is looked up by it."""
    drawn: set[str] = set()
    for statement in loop.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign) and any(_is_one_draw(n) for n in ast.walk(node.value)):
                drawn |= {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return any(
        isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Load)
        and any(isinstance(n, ast.Name) and n.id in drawn for n in ast.walk(node))
        for statement in loop.body
        for node in ast.walk(statement)
    )


def _collects(loop: ast.For) -> bool:
    """Whether each pass appends to at least two lists, or writes a row of at least two arrays."""
    kept: set[str] = set()
    for statement in loop.body:
        for node in ast.walk(statement):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "append"
            ):
                kept.add(ast.unparse(node.func.value))
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                kept.add(ast.unparse(node.value))
    return len(kept) >= 2


@idiom
def indices_one_by_one(spot: Spot) -> Match | None:
    """`[i for i, done in enumerate(dones) if done == 0]`: the places of values, looked at one by one."""
    if is_loop(spot):
        return None
    for made in comprehensions(spot.node):
        if not isinstance(made, ast.ListComp | ast.GeneratorExp) or len(made.generators) != 1:
            continue
        source = made.generators[0]
        target, numbered = source.target, source.iter
        if (
            isinstance(target, ast.Tuple)
            and len(target.elts) == 2
            and all(isinstance(element, ast.Name) for element in target.elts)
            and isinstance(numbered, ast.Call)
            and dotted(numbered.func) == "enumerate"
            and len(source.ifs) == 1
        ):
            number, value = (element.id for element in target.elts if isinstance(element, ast.Name))
            if isinstance(made.elt, ast.Name) and made.elt.id == number and _is_about(source.ifs[0], value):
                return Match(
                    "indices_one_by_one",
                    "Find the indices with one array operation",
                    "Values are compared one by one in Python; for elements of a tensor, each comparison is "
                    "an operation of its own.",
                    "Use torch.nonzero(dones == 0).squeeze(1) or np.flatnonzero(dones == 0), or index with "
                    "the boolean mask itself.",
                    (0.6, 0.9, 0.98),
                )
    return None


def _is_about(condition: ast.expr, value: str) -> bool:
    """`done`, `not done`, `done == 0`: a look at the value itself, and not whether there is one."""
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        condition = condition.operand
    if isinstance(condition, ast.Compare):
        kept = (ast.Is, ast.IsNot, ast.In, ast.NotIn)
        if any(isinstance(op, kept) for op in condition.ops):
            return False
        condition = condition.left
    return isinstance(condition, ast.Name) and condition.id == value


@idiom
def tensor_of_a_list(spot: Spot) -> Match | None:
    if is_loop(spot):
        return None
    call = call_of(spot, *TENSORS)
    if call is None or not call.args:
        return None
    given = call.args[0]
    of_list = isinstance(given, ast.ListComp | ast.List | ast.GeneratorExp) or (
        isinstance(given, ast.Call) and dotted(given.func) in ("list", "tuple", "zip")
    )
    of_list = of_list or (isinstance(given, ast.Name) and _built_item_by_item(spot, given.id))
    # From an array it is one copy. If making a tensor is all that a hot statement does, it came from a list.
    of_list = of_list or (spot.share >= TELLING and _is_all(spot, call))
    if not of_list:
        return None
    return Match(
        "tensor_of_a_list",
        "Make the tensor from one array",
        "A tensor made from a list is filled element by element.",
        "Store samples in preallocated numpy arrays and use torch.from_numpy(array[indices]); at least "
        "wrap the list in np.array(...) (np.stack for arrays) first.",
        (0.6, 0.9, 0.98),
        part=call,
    )


def _is_all(spot: Spot, call: ast.Call) -> bool:
    """Whether the statement only makes this call, and perhaps converts its result."""
    value = getattr(spot.node, "value", None)
    while isinstance(value, ast.Call) and value is not call and isinstance(value.func, ast.Attribute):
        value = value.func.value
    return value is call and not any(isinstance(inner, ast.Call) for a in call.args for inner in ast.walk(a))


def _built_item_by_item(spot: Spot, name: str) -> bool:
    """Whether the name is unpacked from zip(*...) or filled by append or a comprehension in this function."""
    for inner in ast.walk(spot.scope):
        if isinstance(inner, ast.Assign):
            names = {n.id for target in inner.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
            if name in names and (
                isinstance(inner.value, ast.ListComp)
                or (isinstance(inner.value, ast.List) and not _is_one_item(inner.value))
                or any(isinstance(n, ast.Call) and dotted(n.func) == "zip" for n in ast.walk(inner.value))
            ):
                return True
    return appended_to(spot, name)


def _is_one_item(given: ast.AST) -> bool:
    """`[self.x, self.y, self.vx, 0.5 * angle]`: the numbers of one observation, written out."""
    numbers = (ast.Attribute, ast.Constant, ast.Subscript, ast.BinOp, ast.UnaryOp)
    return (
        isinstance(given, ast.List)
        and len(given.elts) > 2
        and all(isinstance(e, numbers) for e in given.elts)
    )


def _made_of_one_item(spot: Spot, given: ast.expr) -> bool:
    """Whether such a list is given, or a name that stands for one."""
    if not isinstance(given, ast.Name):
        return _is_one_item(given)
    made = [
        inner.value
        for inner in ast.walk(spot.scope)
        if isinstance(inner, ast.Assign)
        and inner is not spot.node
        and any(isinstance(target, ast.Name) and target.id == given.id for target in inner.targets)
    ]
    return bool(made) and all(map(_is_one_item, made)) and not appended_to(spot, given.id)


@idiom
def stack_of_items(spot: Spot) -> Match | None:
    """np.array([... for ...]), np.stack([...]), zip(*batch): a batch assembled from Python objects."""
    if is_loop(spot):
        return None
    names = (
        "numpy.array",
        "numpy.asarray",
        "numpy.stack",
        "torch.stack",
        "numpy.vstack",
        "numpy.concatenate",
        "torch.cat",
        "numpy.fromiter",
    )
    for name, call in spot.calls():
        if any(is_same(name, wanted) for wanted in names) and call.args:
            given = call.args[0]
            if _made_of_one_item(spot, given):
                continue
            if _indexes_items(given):
                return replace(_item_by_item(("torchrl.data", "tensordict", "torch.utils.data")), part=call)
            if (
                (isinstance(given, ast.ListComp | ast.GeneratorExp) and _only_converts(given.elt))
                or (isinstance(given, ast.Call) and dotted(given.func) in ("list", "tuple"))
                or (isinstance(given, ast.Name) and _built_item_by_item(spot, given.id))
                or (spot.share >= TELLING and is_same(name, "numpy.array") and _is_all(spot, call))
            ):
                return replace(_item_by_item(), part=call)
        if name == "zip" and any(isinstance(argument, ast.Starred) for argument in call.args):
            return _item_by_item()
    return None


def _only_converts(element: ast.AST) -> bool:
    """Whether an element of a batch is taken as it is; one that is computed costs what computing it costs."""
    return all(name.rpartition(".")[2] in CONVERTING for name in called_names(element))


def _indexes_items(given: ast.expr) -> bool:
    """`[buffer[i] for i in rows]`: whatever library the buffer is from, it is asked once for each item."""
    if not isinstance(given, ast.ListComp | ast.GeneratorExp):
        return False
    names = {n.id for loop in given.generators for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    elements = given.elt.elts if isinstance(given.elt, ast.Tuple) else [given.elt]
    return all(
        isinstance(element, ast.Subscript)
        and any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(element.slice))
        for element in elements
    )


def _item_by_item(library_calls: tuple[str, ...] = ()) -> Match:
    return Match(
        "stack_of_items",
        "Store experience in arrays and index the batch at once",
        "The batch is put together from Python objects, one at a time.",
        "Keep one preallocated array for each field and take array[indices]; it copies the batch in one go.",
        (0.6, 0.9, 0.98),
        effort="hours",
        library_calls=library_calls,
    )


@idiom
def storage_of_objects(spot: Spot) -> Match | None:
    """TorchRL's ListStorage keeps one TensorDict for each transition."""
    if is_loop(spot) or "ListStorage" not in spot.names.mentioned:
        return None
    if not any("torchrl.data.replay_buffers" in name for name in spot.called):
        return None
    return Match(
        "storage_of_objects",
        "Keep experience in tensors (LazyTensorStorage)",
        "ListStorage keeps one object for each transition and stacks a batch of them at every sample.",
        "Use LazyTensorStorage(max_size), which has one tensor for each field and indexes it once.",
        (0.6, 0.92, 0.98),
        library_calls=("torchrl.data", "tensordict"),
    )


@idiom
def tensordicts_one_by_one(spot: Spot) -> Match | None:
    """`step = batch[t]` in a loop: indexing a TensorDict makes a new one with every field."""
    if is_loop(spot) or not (spot.loops or any(comprehensions(spot.node))):
        return None
    if not any(name.startswith(("tensordict.", "torchrl.")) for name in spot.called[:2]):
        return None
    items = {
        n.id
        for loop in (*spot.loops, *comprehensions(spot.node))
        for target in ([loop.target] if isinstance(loop, ast.For) else [g.target for g in _generators(loop)])
        for n in ast.walk(target)
        if isinstance(n, ast.Name)
    }
    for node in ast.walk(spot.node):
        taken = (
            isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Load)
            and isinstance(node.slice, ast.Name | ast.BinOp)
            and bool({n.id for n in ast.walk(node.slice) if isinstance(n, ast.Name)} & items)
        )
        turned = isinstance(node, ast.Call) and dotted(node.func).endswith((".to_dict", ".unbind"))
        turned = turned and bool({n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & items)
        if taken or turned:
            return Match(
                "tensordicts_one_by_one",
                "Take whole fields out of the TensorDict, not one row at a time",
                "Indexing a TensorDict makes a new one, with a tensor for each of its fields; for a row of "
                "numbers that costs a hundred times the arithmetic.",
                'Read the fields before the loop (rewards = batch["next", "reward"]) and compute with whole '
                "tensors, or with tolist() where a loop has to remain.",
                (0.6, 0.93, 0.99),
                library_calls=("tensordict", "torchrl.data"),
            )
    return None


def _generators(node: ast.AST) -> list[ast.comprehension]:
    return list(getattr(node, "generators", []))


@idiom
def sampling_from_a_container(spot: Spot) -> Match | None:
    if is_loop(spot):
        return None
    drawn = call_of(spot, "random.sample", "random.choices", "rng.sample")
    if drawn or saw_call(spot, "random.sample", "random.choices"):
        return Match(
            "sampling_from_a_container",
            "Draw indices with numpy and index arrays",
            "random.sample works in Python, and indexing the middle of a deque walks through it.",
            "Draw rng.integers(0, size, batch_size) and index preallocated arrays with it.",
            (0.7, 0.95, 0.99),
            walks_memory=True,
            safety="semantic",
            effort="hours",
        )
    if any("deque" in spot.names.of(dotted(n.value)) for n in _indexed_in_loops(spot)):
        return Match(
            "indexing_a_deque",
            "Keep experience in a list or array, not in a deque",
            "Indexing the middle of a deque walks through it, element after element.",
            "Use preallocated arrays with a write position (or a list as a ring) and index them at once.",
            (0.7, 0.95, 0.99),
            walks_memory=True,
            effort="hours",
        )
    if any(_takes_a_few(inner) for inner in ast.walk(spot.node)) or _shuffles_for_a_few(spot):
        return Match(
            "permuting_to_draw_a_few",
            "Draw the indices you need instead of permuting all",
            "The whole range is permuted and only its first few entries are used.",
            "Use rng.integers(0, n, size=k) (torch.randint); for an epoch, permute once and walk through it.",
            (0.7, 0.95, 0.99),
            walks_memory=True,
            safety="semantic",
        )
    call = call_of(spot, "numpy.random.choice", ".choice")
    if call is None or _draws_one_of_a_list(spot, call):
        return None
    if any(keyword.arg == "p" for keyword in call.keywords):
        several = _draws_several(call)
        return Match(
            "sampling_with_probabilities",
            "Draw from a sum tree or a cumulative sum" if several else "Draw from a cumulative sum",
            "np.random.choice(p=...) checks and sums all probabilities at every call.",
            "Keep a sum tree (O(log n) for each draw), or np.searchsorted(np.cumsum(p), rng.random(n))."
            if several
            else "Use np.searchsorted(np.cumsum(p), rng.random(), side='right'), and keep the cumulative sum "
            "where p stays the same (a sum tree where there are thousands).",
            # Measured: 0.77 for one of a few, 0.55 for 64 of 20,000 by a cumulative sum; a tree saves more.
            (0.5, 0.85, 0.99) if several else (0.55, 0.77, 0.9),
            part=call,
            walks_memory=several,
            safety="semantic",
            effort="hours" if several else "minutes",
        )
    return Match(
        "choice_of_indices",
        "Draw indices with rng.integers",
        "np.random.choice without replacement permutes the whole range; with it, it is still slower than "
        "integers.",
        "Use rng.integers(0, n, size=k).",
        (0.7, 0.95, 0.99),
        part=call,
        walks_memory=True,
        safety="semantic",
    )


def _draws_one_of_a_list(spot: Spot, call: ast.Call) -> bool:
    """`random.choice(moves)`, or `rng.choice(moves)` of a random.Random: one index, however long it is."""
    owner = dotted(call.func).rpartition(".")[0]
    if owner == "random" or any(name.endswith("Random.choice") for name in spot.called):
        return True
    return bool(spot.names.of(owner) & {"Random", "SystemRandom"})


def _draws_several(call: ast.Call) -> bool:
    """`rng.choice(n, size=k, p=p)`, but not with a size of 1."""
    sizes = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg == "size")]
    return any(not (isinstance(size, ast.Constant) and size.value in (1, None)) for size in sizes)


def _takes_a_few(node: ast.AST) -> bool:
    """`rng.permutation(n)[:k]`."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Slice):
        return False
    name = dotted(node.value.func) if isinstance(node.value, ast.Call) else ""
    return node.slice.lower is None and name.endswith((".permutation", ".randperm"))


def _shuffles_for_a_few(spot: Spot) -> bool:
    """`random.shuffle(memory)` in a function that then takes `memory[:k]`."""
    call = call_of(spot, ".shuffle")
    if call is None or not call.args:
        return False
    name = dotted(call.args[0])
    return name != "?" and any(
        isinstance(n, ast.Subscript)
        and isinstance(n.slice, ast.Slice)
        and n.slice.lower is None
        and dotted(n.value) == name
        for n in ast.walk(spot.scope)
    )


def _indexed_in_loops(spot: Spot) -> Iterator[ast.Subscript]:
    """`x[i]` in a comprehension, or in a statement inside a loop."""
    inside: list[ast.AST] = [spot.node] if spot.loops else list(comprehensions(spot.node))
    for outer in inside:
        for inner in ast.walk(outer):
            if isinstance(inner, ast.Subscript) and not isinstance(inner.slice, ast.Constant):
                yield inner
