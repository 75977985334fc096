"""Code that is known to be slow in training loops, recognised in the source of hot lines.

An idiom is one function: it looks at a `Spot` (a hot statement or loop) and returns a `Match` or None. It
names a mechanism that the source shows; how much it costs was sampled. `saved` is the part of the spot's
time that the remedy removes: an assumption, which benchmarks/truth.py checks on pairs of scripts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from hotloop.analysis.findings import Effort, Safety
from hotloop.analysis.hot_lines import Spot
from hotloop.analysis.source_names import dotted


@dataclass(frozen=True)
class Match:
    """An idiom found at a spot."""

    name: str  # stable, snake_case
    title: str  # what to do, a few words
    why: str  # the mechanism, one sentence
    remedy: str  # what to write instead
    saved: tuple[float, float, float]  # least, most likely, most
    safety: Safety = "safe"
    effort: Effort = "minutes"
    # Names of functions of torch or an RL library that are part of it. Other calls into those libraries (a
    # forward pass, a step of the env) that share its line are not.
    library_calls: tuple[str, ...] = ()
    # Other functions of the user that the statement calls: "hooks" are called by a library on its behalf (a
    # key function, __deepcopy__, a constructor) and go away with it, functions that it names itself do not.
    takes: Literal["own", "hooks", "all"] = "hooks"
    # Whether it reads or writes so much memory at each pass that what runs next finds cold caches.
    walks_memory: bool = False
    backward: bool = False  # whether backward passes get cheaper with it, too
    optimizer: bool = False  # whether steps of the optimizer do
    chills: bool = True  # whether it leaves cold caches at all: code that training runs anyway does not
    waits: bool = False  # whether it is about waiting; else time that its lines wait is not its own
    patch: str = ""  # name of the patch in `hotloop try` that makes this change, if there is one
    helpers: bool = False  # whether what threads and processes do meanwhile takes less time with it, too
    # Beginnings of library functions that take less time with it, wherever they are called: an event loop
    also_called: tuple[str, ...] = ()


Idiom = Callable[[Spot], Match | None]
IDIOMS: list[Idiom] = []
MOSTLY = 0.6  # share of a statement's time asleep from which on it is a wait
QUEUES = frozenset({"Queue", "SimpleQueue", "LifoQueue", "PriorityQueue", "JoinableQueue"})
LOCKS = frozenset({"Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition"})
TELLING = 0.05  # share of training at which what a conversion costs tells what it converts


def idiom(function: Idiom) -> Idiom:
    """Register an idiom; earlier ones win."""
    IDIOMS.append(function)
    return function


def match(spot: Spot) -> Match | None:
    """The first idiom that the spot shows."""
    for function in IDIOMS:
        found = function(spot)
        if found is not None:
            return found
    return None


# -- small questions about source -------------------------------------------------------------------


def _calls(spot: Spot, *names: str) -> ast.Call | None:
    """A call whose dotted name ends with one of `names` (`np.append` matches `numpy.append` too)."""
    for name, call in spot.calls():
        for wanted in names:
            if _same(name, wanted):
                return call
    return None


_ALIASES = {"np": "numpy", "pd": "pandas", "th": "torch", "T": "torch", "dist": "torch.distributions"}


def _same(written: str, wanted: str) -> bool:
    head, _, rest = written.partition(".")
    full = f"{_ALIASES.get(head, head)}.{rest}" if rest else head
    if wanted.startswith("."):  # a method of anything
        return rest != "" and f".{rest}".endswith(wanted)
    return full == wanted or full.endswith(f".{wanted}")


def _called(spot: Spot, *functions: str) -> bool:
    """Whether samples saw one of these library functions called from the spot."""
    return any(
        name == wanted or name.endswith(f".{wanted}") for name in spot.called[:3] for wanted in functions
    )


def _is_loop(spot: Spot) -> bool:
    return isinstance(spot.node, ast.For | ast.While | ast.AsyncFor)


def _comprehensions(node: ast.AST) -> Iterator[ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp):
            yield inner


def _has(node: ast.AST, *kinds: type[ast.AST]) -> bool:
    return any(isinstance(inner, kinds) for inner in ast.walk(node))


# -- copies and serialisation -----------------------------------------------------------------------


@idiom
def deep_copy(spot: Spot) -> Match | None:
    names = ("deepcopy", "copy.deepcopy", "dataclasses.asdict", "asdict", "dataclasses.astuple")
    if _is_loop(spot) or not (_calls(spot, *names) or _called(spot, "copy.deepcopy", "dataclasses.asdict")):
        return None
    return Match(
        "deep_copy",
        "Copy arrays, not whole objects",
        "copy.deepcopy walks every object in Python.",
        "Copy only what changes: array.copy() for arrays, clone() for tensors, or keep what is needed to "
        "restore the state. Values that nobody changes need no copy.",
        (0.7, 0.97, 1.0),
        walks_memory=True,
    )


@idiom
def pickling(spot: Spot) -> Match | None:
    names = (
        "pickle.dumps",
        "pickle.loads",
        "cloudpickle.dumps",
        "cloudpickle.loads",
        "dill.dumps",
        "dill.loads",
    )
    if _is_loop(spot) or not _calls(spot, *names, "cPickle.dumps", "cPickle.loads"):
        return None
    return Match(
        "pickling",
        "Take pickling out of the loop",
        "Every pass turns objects into bytes and back.",
        "Keep arrays as arrays: write them into preallocated (shared) memory, or send buffers instead of "
        "objects.",
        (0.7, 0.95, 1.0),
        effort="hours",
    )


@idiom
def json_text(spot: Spot) -> Match | None:
    if _is_loop(spot) or not (
        _calls(spot, "json.dumps", "json.loads", "json.dump", "json.load", "yaml.dump", "yaml.safe_load")
        or _called(spot, "json.dumps", "json.loads", "json.dump", "json.load")
        or _converts_for_json(spot)
    ):
        return None
    return Match(
        "json_text",
        "Keep JSON out of the loop",
        "Numbers are turned into text (or back) at every pass.",
        "Pass arrays or tuples; write JSON once at the end, or every few thousand steps.",
        (0.75, 0.95, 1.0),
    )


def _converts_for_json(spot: Spot) -> bool:
    """`{"image": image.tolist()}`, `np.array(message["image"])`: arrays as lists, for JSON."""
    if not {"json"} & spot.names.mentioned or not {"dumps", "loads"} & spot.names.mentioned:
        return False
    for node in ast.walk(spot.node):
        if isinstance(node, ast.Dict) and any(n.endswith(".tolist") for n in _called_names(node)):
            return True
        if (
            isinstance(node, ast.Call)
            and any(_same(dotted(node.func), n) for n in ("numpy.array", "numpy.asarray"))
            and node.args
            and isinstance(node.args[0], ast.Subscript)
            and _is_text(node.args[0].slice)
        ):
            return True
    return False


@idiom
def weights_copied(spot: Spot) -> Match | None:
    if _is_loop(spot) or not _calls(spot, ".state_dict", ".load_state_dict", ".parameters_to_vector"):
        return None
    return Match(
        "weights_copied",
        "Copy weights less often, or in place",
        "state_dict and load_state_dict build dictionaries and copy every tensor through Python.",
        "Load weights only when they have changed (keep a version number, or once for each rollout), and "
        "copy them in place with torch._foreach_copy_ (lerp for soft updates).",
        (0.5, 0.85, 0.97),
        library_calls=("state_dict",),
    )


# -- growing containers ------------------------------------------------------------------------------


@idiom
def growing_array(spot: Spot) -> Match | None:
    node = spot.node
    if not isinstance(node, ast.Assign | ast.AugAssign):
        return None
    call = _innermost(node.value)
    if isinstance(node, ast.Assign) and _adds_to_a_list(node):
        return _grows([dotted(target) for target in node.targets])
    if not isinstance(call, ast.Call):
        return None
    names = (
        "numpy.append",
        "numpy.concatenate",
        "numpy.vstack",
        "numpy.hstack",
        "numpy.r_",
        "numpy.delete",
        "numpy.insert",
        "numpy.roll",
        "torch.roll",
        "torch.cat",
        "torch.concat",
        "torch.vstack",
        "torch.hstack",
        "pandas.concat",
        "jnp.append",
        "jnp.concatenate",
    )
    if not any(_same(dotted(call.func), name) for name in names):
        return None
    targets = [dotted(t) for t in (node.targets if isinstance(node, ast.Assign) else [node.target])]
    given = {dotted(inner) for argument in call.args for inner in ast.walk(argument)}
    if not any(target in given and "?" not in target for target in targets):
        return None
    return _grows(targets)


def _innermost(value: ast.expr) -> ast.expr:
    """`np.vstack(...)` of `np.vstack(...)[-n:].astype(x)`: the call that makes the array."""
    while True:
        if isinstance(value, ast.Subscript):
            value = value.value
        elif (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Attribute)
            and isinstance(value.func.value, ast.Call | ast.Subscript)
        ):
            value = value.func.value
        else:
            return value


def _adds_to_a_list(node: ast.Assign) -> bool:
    """`history = history + [x]`, `history = [*history, x]`: a copy of the whole list."""
    names = {dotted(target) for target in node.targets} - {"?"}
    value = node.value
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return isinstance(value.right, ast.List) and dotted(value.left) in names
    return isinstance(value, ast.List | ast.Tuple) and any(
        isinstance(e, ast.Starred) and dotted(e.value) in names for e in value.elts
    )


def _grows(targets: list[str]) -> Match:
    return Match(
        "growing_array",
        f"Preallocate {targets[0]} instead of growing it",
        "Each append copies everything that is already there, so it gets slower as the run goes on.",
        "Preallocate the array and write to index i, or append to a list and convert once.",
        (0.9, 0.99, 1.0),
        walks_memory=True,
    )


@idiom
def pop_from_the_front(spot: Spot) -> Match | None:
    if _is_loop(spot):
        return None
    for name, call in spot.calls():
        zero = bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0
        owner = spot.names.of(name.rpartition(".")[0])
        if zero and name.endswith((".pop", ".insert")) and not owner - {"list"}:
            return Match(
                "pop_from_the_front",
                f"Use a deque or a ring for {name.rpartition('.')[0]}",
                "Removing from the front of a list moves every other element.",
                "Use collections.deque(maxlen=...), or a preallocated array with a write position.",
                (0.9, 0.99, 1.0),
                walks_memory=True,
            )
    node = spot.node
    if (isinstance(node, ast.Delete) and _deletes_the_front(spot, node)) or (
        isinstance(node, ast.Assign) and _slices_itself(node)
    ):
        return Match(
            "pop_from_the_front",
            "Use a deque or a ring instead of slicing the list",
            "Every pass copies the list to drop its first elements.",
            "Use collections.deque(maxlen=...), or a preallocated array with a write position.",
            (0.9, 0.99, 1.0),
            walks_memory=True,
        )
    return None


def _deletes_the_front(spot: Spot, node: ast.Delete) -> bool:
    """`del x[0]` or `del x[:n]` of a list."""
    for target in node.targets:
        if not isinstance(target, ast.Subscript) or spot.names.of(dotted(target.value)) - {"list"}:
            continue
        index = target.slice
        if isinstance(index, ast.Slice) and index.lower is None:
            return True
        if isinstance(index, ast.Constant) and index.value == 0:
            return True
    return False


def _slices_itself(node: ast.Assign) -> bool:
    value = node.value
    return (
        isinstance(value, ast.Subscript)
        and isinstance(value.slice, ast.Slice)
        and any(dotted(target) == dotted(value.value) for target in node.targets)
    )


@idiom
def linear_scan(spot: Spot) -> Match | None:
    """`x in some_list`, `.index(...)`, `.count(...)`; dicts and sets find elements at once."""
    if _is_loop(spot):
        return None
    for inner in ast.walk(spot.node):
        if isinstance(inner, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn) for op in inner.ops):
            searched = inner.comparators[0]
            if _made_to_search(searched):
                return _searches_a_copy(searched)
            what = dotted(searched)
            if not spot.names.is_scanned(what):
                continue
            return Match(
                "linear_scan",
                f"Look up membership in a set or dict ({what})",
                "`in` on a list compares element by element, and the list grows.",
                "Keep a set (or a dict) beside the list and ask that.",
                (0.9, 0.99, 1.0),
                walks_memory=True,
            )
    for name, call in spot.calls():
        owner = name.rpartition(".")[0]
        if name.endswith((".index", ".count")) and call.args and spot.names.is_scanned(owner):
            return Match(
                "linear_scan",
                f"Look up positions in a dict ({owner})",
                "The list is searched from its start at every pass.",
                "Keep a dict from value to position.",
                (0.85, 0.98, 1.0),
                walks_memory=True,
            )
    return None


@idiom
def searching_rows(spot: Spot) -> Match | None:
    """`np.where((states == state).all(axis=1))`: every known state is compared with this one."""
    if _is_loop(spot):
        return None
    finders = ("where", "argmax", "flatnonzero", "nonzero", "any", "argwhere")
    for name, call in spot.calls():
        if name.rpartition(".")[2] not in finders:
            continue
        for inner in ast.walk(call):
            if (
                isinstance(inner, ast.Call)
                and isinstance(inner.func, ast.Attribute)
                and inner.func.attr == "all"
                and isinstance(inner.func.value, ast.Compare)
                and isinstance(inner.func.value.ops[0], ast.Eq)
            ):
                return Match(
                    "searching_rows",
                    "Look up rows in a dict instead of comparing with all of them",
                    "Every pass compares one state with all the states that are known.",
                    "Keep a dict from the state (a tuple of ints, or a number from ravel_multi_index) to its "
                    "row.",
                    (0.8, 0.97, 1.0),
                    walks_memory=True,
                )
    return None


@idiom
def tree_in_python(spot: Spot) -> Match | None:
    """A sum tree for prioritised replay that calls itself for each level: `self._retrieve(left, value)`."""
    scope = spot.scope
    if _is_loop(spot) or not isinstance(scope, ast.FunctionDef):
        return None
    recursive = any(name in (scope.name, f"self.{scope.name}") for name in _called_names(scope))
    heap = any(
        isinstance(n, ast.BinOp)
        and isinstance(n.op, ast.Mult | ast.FloorDiv)
        and any(isinstance(side, ast.Constant) and side.value == 2 for side in (n.left, n.right))
        for n in ast.walk(scope)
    )
    if not recursive or not heap or not _has(scope, ast.Subscript):
        return None
    return Match(
        "tree_in_python",
        "Walk the tree for the whole batch at once",
        "The function calls itself once for each level of the tree and each sample.",
        "Keep the tree in one numpy array and walk all samples down together, a level at a time with array "
        "expressions (so does each update of priorities on the way up), or compile it with numba.",
        (0.6, 0.88, 0.98),
        effort="hours",
        safety="rounding",
        takes="all",
    )


@idiom
def parameter_statistics(spot: Spot) -> Match | None:
    """Norms, means or histograms of every weight or gradient, one tensor after the other."""
    over: list[ast.AST] = []
    if isinstance(spot.node, ast.For):
        over = [spot.node.iter]
    elif not _is_loop(spot):
        over = [g.iter for c in _comprehensions(spot.node) for g in c.generators]
        over += [loop.iter for loop in spot.loops if isinstance(loop, ast.For)]
    parameters = (".parameters", ".named_parameters")
    if not any(name.endswith(parameters) for node in over for name in _called_names(node)):
        return None
    measured = (".norm", ".mean", ".std", ".var", ".abs", ".max", ".min", ".item", ".median")
    changed = any(name.endswith(("_", ".copy_", ".step", ".add_histogram")) for name, _ in spot.calls())
    if changed or not any(name.endswith(measured) for name, _ in spot.calls()):
        return None
    return Match(
        "parameter_statistics",
        "Compute statistics of weights and gradients rarely, or for all at once",
        "Several small operations run for every tensor of the network, and each result is read or logged.",
        "Log them every few hundred updates. If a norm is needed every time, torch._foreach_norm takes all "
        "tensors in one call (clip_grad_norm_ returns the norm).",
        (0.7, 0.95, 1.0),
        takes="all",
        library_calls=("",),
    )


@idiom
def matrix_inverse(spot: Spot) -> Match | None:
    names = ("linalg.inv", "linalg.pinv", "torch.inverse", "numpy.linalg.inv", "numpy.linalg.pinv")
    if _is_loop(spot) or not (_calls(spot, *names) or _called(spot, "linalg.inv", "linalg.pinv")):
        return None
    return Match(
        "matrix_inverse",
        "Solve instead of inverting, or update the inverse",
        "A matrix is inverted from scratch at every pass.",
        "Use solve(A, b). If A grows by one observation at a time, update its inverse (Sherman-Morrison) or "
        "its Cholesky factor; keep the result while A stays the same.",
        (0.45, 0.8, 0.97),
        safety="rounding",
        effort="hours",
    )


@idiom
def scipy_statistics(spot: Spot) -> Match | None:
    """scipy.stats checks and broadcasts its arguments for each call."""
    if _is_loop(spot) or not (
        any(name.startswith("scipy.stats") for name in spot.called[:2])
        or any(
            re.match(r"(scipy\.)?stats\.\w+(\(\))?\.(log)?(pdf|cdf|pmf|ppf|sf|rvs)$", n)
            for n, _ in spot.calls()
        )
    ):
        return None
    return Match(
        "scipy_statistics",
        "Write the density or the draw with numpy",
        "scipy.stats checks and broadcasts its arguments in Python: 50 to 100 us for each call, whatever it "
        "computes.",
        "Use the formula (exp, log, math.erf), a generator's own draws (rng.normal, clipped or drawn again "
        "for a truncated one), or one call for all values.",
        (0.5, 0.9, 0.98),
        safety="semantic",
    )


@idiom
def tiny_arrays(spot: Spot) -> Match | None:
    """numpy on vectors of two or three elements, such as the position of one car."""
    if _is_loop(spot) or not spot.names.tiny:
        return None
    tiny = spot.names.tiny | _tiny_locals(spot.scope, spot.names.tiny)
    values = [v for n in ast.walk(spot.scope) if (v := _value_of(n)) is not None]
    if sum(_computes_with(value, tiny) for value in values) < LEAST_TINY:
        return None
    value = _value_of(spot.node)
    # Next to several such statements, other calls of numpy handle the same few numbers.
    calls_numpy = any(name.startswith(("np.", "numpy.")) for name, _ in spot.calls())
    if value is None or not (_computes_with(value, tiny) or calls_numpy):
        return None
    return Match(
        "tiny_arrays",
        "Use plain numbers instead of arrays of a few elements",
        "A numpy operation costs about a microsecond (np.clip and np.linalg.norm five) even for two numbers.",
        "Keep x and y as floats and use math (hypot, sqrt, min, max), or step many copies at once in one "
        "array.",
        (0.4, 0.8, 0.95),
        safety="rounding",
        effort="hours",
        takes="own",
    )


LEAST_TINY = 3  # statements of a function that compute with arrays of a few elements


def _value_of(node: ast.AST) -> ast.expr | None:
    if isinstance(node, ast.Assign | ast.AugAssign | ast.Return | ast.Expr | ast.AnnAssign):
        return node.value
    return None


def _tiny_locals(scope: ast.AST, tiny: frozenset[str]) -> frozenset[str]:
    """Local names that are computed from tiny arrays."""
    found: set[str] = set()
    for _ in range(2):
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign) and _computes_with(node.value, tiny | found):
                reduced = isinstance(node.value, ast.Call) and dotted(node.value.func).endswith(
                    (".norm", ".dot", ".sum", ".mean", "float", "hypot", ".max", ".min")
                )
                found |= {t.id for t in node.targets if isinstance(t, ast.Name) and not reduced}
    return frozenset(found)


def _computes_with(value: ast.AST, tiny: frozenset[str]) -> bool:
    """Arithmetic, or a numpy function, with one of these arrays as a direct operand."""
    for node in ast.walk(value):
        if isinstance(node, ast.BinOp) and {dotted(node.left), dotted(node.right)} & tiny:
            return True
        if isinstance(node, ast.Call) and dotted(node.func).startswith(("np.", "numpy.")):
            listed = [e for a in node.args if isinstance(a, ast.List | ast.Tuple) for e in a.elts]
            if any(dotted(given) in tiny for given in (*node.args, *listed)):
                return True
    return False


def _made_to_search(node: ast.AST) -> bool:
    """A list that is made to be searched once: `[key(x) for x in seen]`, `seen[:t]`, `list(seen)`."""
    if isinstance(node, ast.Call):
        name = dotted(node.func)
        return name in ("list", "tuple", "sorted", "set", "frozenset") or name.endswith(
            (".tolist", ".values", ".copy")
        )
    return isinstance(node, ast.ListComp | ast.GeneratorExp) or (
        isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)
    )


def _searches_a_copy(node: ast.AST) -> Match:
    return Match(
        "linear_scan",
        "Look up membership in a set, not in a list made for each test",
        "Every test builds a list and then compares element by element, so its cost grows with the length: "
        "quadratic over an episode.",
        "Keep a set (or a dict from key to the first position) and ask that; build it once, in one pass.",
        (0.85, 0.98, 1.0),
        takes="all",
        chills=False,
    )


@idiom
def python_builtin_over_an_array(spot: Spot) -> Match | None:
    """`max(self.priorities)` of an array: Python's builtin takes it apart element by element."""
    if _is_loop(spot):
        return None
    for name, call in spot.calls():
        if name not in ("max", "min", "sum", "any", "all", "sorted", "list", "map") or not call.args:
            continue
        given = call.args[-1] if name == "map" else call.args[0]
        owner = given.value if isinstance(given, ast.Subscript) else given
        kinds = spot.names.of(dotted(owner))
        if len(call.args) > 1 and name != "map":
            continue
        if kinds & {"array", "tensor"} and not kinds - {"array", "tensor"}:
            return Match(
                "python_builtin_over_an_array",
                f"Use {dotted(owner)}.{name if name in ('max', 'min', 'sum', 'any', 'all') else 'tolist'}() "
                f"instead of Python's {name}()",
                f"Python's {name}() makes an object of every element of the array.",
                "Use the array's own method, which is a hundred times as fast, or keep the value up to date "
                "as elements change.",
                (0.85, 0.98, 1.0),
                walks_memory=True,
                safety="rounding" if name == "sum" else "safe",
            )
    return None


@idiom
def sorting_each_time(spot: Spot) -> Match | None:
    call = _calls(spot, "sorted", ".sort", "numpy.argsort", "numpy.sort", "torch.sort", "torch.argsort")
    if _is_loop(spot) or call is None:
        return None
    if call.args and _computed_here(spot, call.args[0]):
        if not any(isinstance(n, ast.Subscript) and n.value is call for n in ast.walk(spot.node)):
            return None  # values that are new each time have to be sorted each time
        return Match(
            "sorting_for_a_few",
            "Select the best k instead of sorting all",
            "All values are sorted, and only some of them are used.",
            "Use numpy.partition or argpartition (torch.topk, heapq.nsmallest), which do not put all values "
            "in order.",
            (0.2, 0.6, 0.95),
        )
    return Match(
        "sorting_each_time",
        "Keep it sorted instead of sorting each time",
        "The whole collection is sorted at every pass.",
        "Use heapq or bisect.insort, or numpy.argpartition if only the best k are needed.",
        (0.6, 0.9, 0.99),
        walks_memory=True,
    )


def _computed_here(spot: Spot, value: ast.AST) -> bool:
    """Whether array expressions of the same function have made the value."""
    if isinstance(value, ast.BinOp | ast.UnaryOp):
        return True
    made = [
        n.value
        for n in ast.walk(spot.scope)
        if isinstance(n, ast.Assign) and any(dotted(target) == dotted(value) for target in n.targets)
    ]
    return bool(made) and all(
        isinstance(one, ast.BinOp | ast.UnaryOp)
        or (isinstance(one, ast.Call) and dotted(one.func).startswith(("np.", "numpy.", "torch.", "?")))
        for one in made
    )


@idiom
def statistics_of_everything(spot: Spot) -> Match | None:
    call = _calls(
        spot,
        "numpy.mean",
        "numpy.std",
        "numpy.sum",
        "numpy.max",
        "numpy.var",
        "numpy.median",
        "numpy.percentile",
        "statistics.mean",
        "statistics.stdev",
        "sum",
        "numpy.histogram",
        "numpy.array",
        "numpy.asarray",
    )
    if _is_loop(spot) or call is None or not call.args:
        return None
    argument = call.args[0]
    if "deque" in spot.names.of(dotted(argument)) and not _is_short(spot, dotted(argument)):
        return Match(
            "statistics_of_a_window",
            f"Keep the window of {dotted(argument)} in an array, or running sums",
            "A deque is turned into an array, element by element, at every pass.",
            "Keep the last values in a NumPy ring buffer and take the statistic of that, or keep running "
            "sums (mean and variance, Welford).",
            (0.7, 0.93, 0.99),
            walks_memory=True,
            safety="rounding",
        )
    # A bare name or attribute: a container that was filled over time. An expression is a computation.
    if not isinstance(argument, ast.Attribute | ast.Name) or not _grows_with_the_run(spot, dotted(argument)):
        return None
    return Match(
        "statistics_of_everything",
        f"Keep a running statistic of {dotted(argument)}",
        "A list that grows with the run is converted and reduced at every pass.",
        "Update a running mean (or a deque of the last 100), and compute over everything once at the end.",
        (0.85, 0.98, 1.0),
        walks_memory=True,
        safety="rounding",
    )


SHORT = 1000  # elements of a window that nobody needs to keep in an array


def _is_short(spot: Spot, name: str) -> bool:
    """Whether the source makes it as a deque of a few elements: `recent = deque(maxlen=100)`."""
    return any(
        isinstance(n, ast.Assign)
        and any(dotted(target) == name for target in n.targets)
        and isinstance(n.value, ast.Call)
        and any(
            k.arg == "maxlen"
            and isinstance(k.value, ast.Constant)
            and isinstance(k.value.value, int)
            and k.value.value <= SHORT
            for k in n.value.keywords
        )
        for n in ast.walk(spot.scope)
    )


def _grows_with_the_run(spot: Spot, name: str) -> bool:
    """Whether it is appended to, and not emptied in the same loop (without one, in the same function)."""
    appended = _appended_to(spot, name) or ("." in name and spot.names.is_appended(name))
    if not appended or "deque" in spot.names.of(name):
        return False
    around: ast.AST = spot.loops[0] if spot.loops else spot.scope
    return not any(
        isinstance(inner, ast.Assign) and any(dotted(target) == name for target in inner.targets)
        for inner in ast.walk(around)
    ) and f"{name}.clear" not in _called_names(around)


def _called_names(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call):
            yield dotted(inner.func)


def _appended_to(spot: Spot, name: str) -> bool:
    return any(
        isinstance(inner, ast.Call)
        and isinstance(inner.func, ast.Attribute)
        and inner.func.attr in ("append", "extend")
        and dotted(inner.func.value) == name
        for inner in ast.walk(spot.scope)
    )


# -- batches made item by item -----------------------------------------------------------------------

_TENSORS = (
    "torch.tensor",
    "torch.as_tensor",
    "torch.FloatTensor",
    "torch.LongTensor",
    "torch.Tensor",
    "torch.BoolTensor",
    "torch.DoubleTensor",
    "torch.IntTensor",
)


@idiom
def tensor_of_a_list(spot: Spot) -> Match | None:
    if _is_loop(spot):
        return None
    call = _calls(spot, *_TENSORS)
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
                isinstance(inner.value, ast.ListComp | ast.List)
                or any(isinstance(n, ast.Call) and dotted(n.func) == "zip" for n in ast.walk(inner.value))
            ):
                return True
    return _appended_to(spot, name)


@idiom
def stack_of_items(spot: Spot) -> Match | None:
    """np.array([... for ...]), np.stack([...]), zip(*batch): a batch assembled from Python objects."""
    if _is_loop(spot):
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
        if any(_same(name, wanted) for wanted in names) and call.args:
            given = call.args[0]
            if _indexes_items(given):
                return _item_by_item(("torchrl.data", "tensordict", "torch.utils.data"))
            if (
                (isinstance(given, ast.ListComp | ast.GeneratorExp) and _only_converts(given.elt))
                or (isinstance(given, ast.Call) and dotted(given.func) in ("list", "tuple"))
                or (isinstance(given, ast.Name) and _built_item_by_item(spot, given.id))
                or (spot.share >= TELLING and _same(name, "numpy.array") and _is_all(spot, call))
            ):
                return _item_by_item()
        if name == "zip" and any(isinstance(argument, ast.Starred) for argument in call.args):
            return _item_by_item()
    return None


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


def _only_converts(element: ast.AST) -> bool:
    """Whether an element of a batch is taken as it is; one that is computed costs what computing it costs."""
    return all(name.rpartition(".")[2] in CONVERTING for name in _called_names(element))


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
    if _is_loop(spot) or "ListStorage" not in spot.names.mentioned:
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
def sampling_from_a_container(spot: Spot) -> Match | None:
    if _is_loop(spot):
        return None
    if _calls(spot, "random.sample", "random.choices", "rng.sample") or _called(
        spot, "random.sample", "random.choices"
    ):
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
    call = _calls(spot, "numpy.random.choice", ".choice")
    if call is None or _draws_one_of_a_list(spot, call):
        return None
    if any(keyword.arg == "p" for keyword in call.keywords):
        return Match(
            "sampling_with_probabilities",
            "Draw from a sum tree or a cumulative sum",
            "np.random.choice(p=...) checks and sums all probabilities at every call.",
            "Keep a sum tree (O(log n) for each draw), or np.searchsorted(np.cumsum(p), rng.random(n)).",
            # Measured: 0.77 for one of a few, 0.55 for 64 of 20,000 by a cumulative sum; a tree saves more.
            (0.5, 0.85, 0.99) if _draws_several(call) else (0.55, 0.77, 0.9),
            walks_memory=True,
            safety="semantic",
            effort="hours",
        )
    return Match(
        "choice_of_indices",
        "Draw indices with rng.integers",
        "np.random.choice without replacement permutes the whole range; with it, it is still slower than "
        "integers.",
        "Use rng.integers(0, n, size=k).",
        (0.7, 0.95, 0.99),
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
    """`rng.choice(n, size=k, p=p)`."""
    return len(call.args) > 1 or any(keyword.arg == "size" for keyword in call.keywords)


def _takes_a_few(node: ast.AST) -> bool:
    """`rng.permutation(n)[:k]`."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Slice):
        return False
    name = dotted(node.value.func) if isinstance(node.value, ast.Call) else ""
    return node.slice.lower is None and name.endswith((".permutation", ".randperm"))


def _shuffles_for_a_few(spot: Spot) -> bool:
    """`random.shuffle(memory)` in a function that then takes `memory[:k]`."""
    call = _calls(spot, ".shuffle")
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
    inside: list[ast.AST] = [spot.node] if spot.loops else list(_comprehensions(spot.node))
    for outer in inside:
        for inner in ast.walk(outer):
            if isinstance(inner, ast.Subscript) and not isinstance(inner.slice, ast.Constant):
                yield inner


# -- loops over elements ----------------------------------------------------------------------------


@idiom
def parameters_one_by_one(spot: Spot) -> Match | None:
    """`for p, t in zip(net.parameters(), target.parameters()): t.data.lerp_(p.data, tau)`."""
    if not isinstance(spot.node, ast.For) or _calls(spot, ".item"):
        return None
    over = list(_called_names(spot.node.iter))
    sources = sum(name.endswith((".parameters", ".named_parameters", ".buffers")) for name in over)
    kept = {
        dotted(target)
        for n in ast.walk(spot.scope)
        if isinstance(n, ast.Assign) and any(".state_dict" in name for name in _called_names(n.value))
        for target in n.targets
    }
    walked = {dotted(n) for n in ast.walk(spot.node.iter)} | set(over)
    states = any(name in kept or name.endswith(".state_dict") for name in walked) and bool(
        [n for n in ast.walk(spot.node) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)]
    )
    clamps = sources == 1 and _calls(spot, ".clamp_", ".mul_", ".div_", ".add_", ".nan_to_num_") is not None
    if sources < 2 and not states and not clamps:
        return None
    if clamps:
        return Match(
            "parameters_one_by_one",
            "Change all gradients or parameters with one call",
            "The loop starts a small operation for each parameter tensor.",
            "Use torch.nn.utils.clip_grad_value_(net.parameters(), 1.0) or clip_grad_norm_, which take all "
            "tensors at once, or torch._foreach_clamp_... on the list of gradients.",
            (0.3, 0.65, 0.85),
        )
    return Match(
        "parameters_one_by_one",
        "Update all parameters with one call",
        "The loop starts several small operations for each parameter tensor.",
        "Under no_grad, use torch._foreach_lerp_(list(target.parameters()), list(net.parameters()), tau), "
        "with the lists made once; or copy less often.",
        (0.4, 0.8, 0.92),
        safety="rounding",
    )


@idiom
def ensemble_one_by_one(spot: Spot) -> Match | None:
    """`[critic(x) for critic in self.critics]`: several networks of the same shape, one after the other."""
    loops: list[tuple[ast.AST, ast.AST, ast.AST]] = []
    if isinstance(spot.node, ast.For) and not _carries_over(spot.node) and not _trains(spot):
        loops = [(spot.node.target, spot.node.iter, s) for s in spot.node.body]
    elif not _is_loop(spot):
        loops = [
            (c.generators[0].target, c.generators[0].iter, c.value if isinstance(c, ast.DictComp) else c.elt)
            for c in _comprehensions(spot.node)
        ]
    for target, iterated, body in loops:
        owner = dotted(iterated)
        if "ModuleList" not in spot.names.of(owner) or _members(spot, owner) == 2:
            continue
        names = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
        calls = [n for n in ast.walk(body) if isinstance(n, ast.Call) and dotted(n.func) in names]
        shared = [
            c
            for c in calls
            if not any(isinstance(n, ast.Name) and n.id in names for a in c.args for n in ast.walk(a))
        ]
        if not shared:
            continue
        return Match(
            "ensemble_one_by_one",
            "Evaluate the networks of the ensemble in one batched call, not one after the other",
            "Networks of the same shape get the same input one by one: every network calls each of its "
            "layers, again in backward and in the optimizer.",
            "Keep the weights of all members in one tensor [members, in, out] and use torch.baddbmm (or "
            "torch.func.stack_module_state with vmap).",
            (0.3, 0.68, 0.85),
            safety="rounding",
            effort="hours",
            takes="all",
            library_calls=("torch.nn",),
            backward=True,
            optimizer=True,
        )
    return None


def _members(spot: Spot, name: str) -> int | None:
    """Number of networks in `self.critics = nn.ModuleList([...])`, if it is written there."""
    for tree in spot.names.trees:
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Assign)
                and any(dotted(t).rpartition(".")[2] == name.rpartition(".")[2] for t in node.targets)
                and isinstance(node.value, ast.Call)
                and node.value.args
            ):
                given = node.value.args[0]
                if isinstance(given, ast.List | ast.Tuple):
                    return len(given.elts)
                count = [n for n in ast.walk(given) if isinstance(n, ast.Call) and dotted(n.func) == "range"]
                number = count[0].args[-1] if count and count[0].args else None
                if isinstance(number, ast.Constant) and isinstance(number.value, int):
                    return number.value
    return None


@idiom
def network_in_a_loop(spot: Spot) -> Match | None:
    """A network called once for each agent, env or sample."""
    if not isinstance(spot.node, ast.For) or not spot.calls_networks:
        return None
    if _trains(spot) or _carries_over(spot.node) or _takes_batches(spot, spot.node):
        return None
    if not _asks_about_items(spot.node):
        return None
    return Match(
        "network_in_a_loop",
        "Call the network once for all items",
        "The loop calls a network for one item at a time; a batch of a few items takes hardly longer.",
        "Stack the inputs (agents, envs, samples), call the network once, and split the result.",
        (0.5, 0.84, 0.97),
        safety="rounding",
        takes="all",
        library_calls=("torch.nn", "distributions"),
    )


def _asks_about_items(loop: ast.For) -> bool:
    """Whether a call gets something of the loop's item, and nothing goes on from one call to the next.

    `for _ in range(simulations)` searches a tree, which each pass changes; a `while` loop plays an episode.
    """
    if any(isinstance(n, ast.While) for n in ast.walk(loop)):
        return False
    known = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    asks = False
    for statement in ast.walk(loop):
        if isinstance(statement, ast.Assign) and known & _names(statement.value, ast.Load):
            known |= {name for target in statement.targets for name in _names(target, ast.Store)}
        if isinstance(statement, ast.Call) and isinstance(statement.func, ast.Name | ast.Attribute):
            if dotted(statement.func).endswith((".step", ".reset")):
                return False
            given = [*statement.args, *(k.value for k in statement.keywords)]
            asks |= any(known & _names(one, ast.Load) for one in given)
        if isinstance(statement, ast.Call) and known & _names(statement.func, ast.Load):
            method = statement.func.attr if isinstance(statement.func, ast.Attribute) else ""
            if method not in OF_TENSORS:
                return False  # each item has a network of its own: `policies[k](obs[k])`, `agent.act(obs)`
    return asks


OF_TENSORS = frozenset(
    {
        "unsqueeze",
        "squeeze",
        "float",
        "view",
        "reshape",
        "flatten",
        "to",
        "astype",
        "copy",
        "permute",
        "numpy",
    }
    | {
        "sample",
        "log_prob",
        "argmax",
        "item",
        "max",
        "mean",
        "items",
        "append",
        "detach",
        "cpu",
        "tolist",
        "get",
    }
)


def _takes_batches(spot: Spot, loop: ast.For) -> bool:
    """`for batch in loader`, `for i in range(0, n, size): net(x[i:i + size])`: each pass has many items."""
    iterated = loop.iter
    while isinstance(iterated, ast.Call) and dotted(iterated.func) in ("enumerate", "iter", "tqdm", "zip"):
        iterated = iterated.args[0] if iterated.args else ast.Constant(0)
    if isinstance(iterated, ast.Call):
        name = dotted(iterated.func)
        return (name == "range" and len(iterated.args) == 3) or name.endswith(
            (".split", ".chunk", ".array_split")
        )
    return bool(spot.names.of(dotted(iterated)) & {"DataLoader"})


@idiom
def added_one_by_one(spot: Spot) -> Match | None:
    """`for transition in batch: buffer.add(transition)`: a call for each item."""
    if not isinstance(spot.node, ast.For) or len(spot.node.body) != 1 or _trains(spot):
        return None
    only = spot.node.body[0]
    if not isinstance(only, ast.Expr) or not isinstance(only.value, ast.Call):
        return None
    owner, _, method = dotted(only.value.func).rpartition(".")
    names = {n.id for n in ast.walk(spot.node.target) if isinstance(n, ast.Name)}
    given = {n.id for a in only.value.args for n in ast.walk(a) if isinstance(n, ast.Name)}
    if method not in ("add", "push", "store", "append", "insert", "put", "remember", "add_sample"):
        return None
    if (
        not owner
        or "?" in owner
        or not names & given
        or spot.names.of(owner) & {"list", "deque", "dict", "set"}
    ):
        return None
    defined = spot.names.definitions.get(method, ())
    if defined and not any(_writes_rows(function) for function in defined):
        return None  # a queue or a tree takes its items one by one
    return Match(
        "added_one_by_one",
        f"Add the whole batch to {owner} at once (extend), not item by item",
        "Items are taken out of the batch and stored one by one.",
        f"Use {owner}.extend(batch) (TorchRL), or write rows `position:position + n` of the preallocated "
        "arrays in one assignment.",
        (0.4, 0.85, 0.97),
        takes="all",
        library_calls=("torchrl.data", "tensordict", "replay", "buffer"),
    )


def _writes_rows(function: ast.AST) -> bool:
    """`self.observations[self.position] = observation`: a store of arrays."""
    return any(
        isinstance(n, ast.Subscript)
        and isinstance(n.ctx, ast.Store)
        and isinstance(n.value, ast.Attribute)
        and not isinstance(n.slice, ast.Constant)
        for n in ast.walk(function)
    )


REDUCED = frozenset(
    {"mean", "sum", "max", "min", "any", "all", "norm", "array_equal", "allclose", "argmax", "argmin", "dot"}
)


@idiom
def rows_one_by_one(spot: Spot) -> Match | None:
    """`for a, b in zip(rows, others): out.append(np.mean(a - b))`: small numpy calls for each row."""
    if _is_loop(spot):
        found = isinstance(spot.node, ast.For) and _loop_reduces_rows(spot, spot.node)
    else:
        found = any(_comprehension_reduces_rows(spot, one) for one in _comprehensions(spot.node))
    if not found or _trains(spot) or spot.calls_networks:
        return None
    return Match(
        "rows_one_by_one",
        "Compute all rows at once with an axis argument, not row by row",
        "The loop reduces one row at a time to a number; each numpy call costs microseconds.",
        "Use whole arrays and `axis=-1`: np.mean(np.abs(a - b), axis=-1), (a == b).all(axis=-1), "
        "np.where(distance < limit, 0.0, -1.0).",
        (0.6, 0.95, 0.99),
        safety="rounding",
        takes="all",
    )


def _loop_reduces_rows(spot: Spot, loop: ast.For) -> bool:
    if _carries_over(loop) or any(isinstance(s, LOOPS_AND_TRY) for s in loop.body):
        return False
    items = _elements_of(loop)
    if isinstance(loop.iter, ast.Call) and dotted(loop.iter.func) == "range":
        rows = _rows_by_index(spot, loop)
    else:
        rows = items if _iterates_rows(loop.iter) else set()
    collects = any(
        (isinstance(n, ast.Call) and dotted(n.func).endswith(".append"))
        or (isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store))
        for s in loop.body
        for n in ast.walk(s)
    )
    if not rows or not collects:
        return False
    known = set(rows)
    for statement in loop.body:
        if isinstance(statement, ast.Assign) and known & _names(statement.value, ast.Load):
            known |= {n for t in statement.targets for n in _names(t, ast.Store)}
    return _reduces(spot, loop.body, known)


def _comprehension_reduces_rows(
    spot: Spot, node: ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp
) -> bool:
    """`np.array([distance(a, g) for a, g in zip(achieved, desired)])`, with a function of the script."""
    if len(node.generators) != 1 or isinstance(node, ast.DictComp | ast.SetComp):
        return False
    first = node.generators[0]
    names = {n.id for n in ast.walk(first.target) if isinstance(n, ast.Name)}
    called = [n for n in ast.walk(node.elt) if isinstance(n, ast.Call) and _only_numpy(spot, n)]
    rows = [
        c for c in called if names & {n.id for a in c.args for n in ast.walk(a) if isinstance(n, ast.Name)}
    ]
    return bool(rows) and _iterates_rows(first.iter) and _reduces(spot, [ast.Expr(node.elt)], names)


def _rows_by_index(spot: Spot, loop: ast.For) -> set[str]:
    """The index of `for i in range(len(rows))`, if all that it does is to take rows: `rows[i]`."""
    if (
        not isinstance(loop.iter, ast.Call)
        or len(loop.iter.args) != 1
        or not isinstance(loop.target, ast.Name)
    ):
        return set()
    index, size = loop.target.id, loop.iter.args[0]
    counted = isinstance(size, ast.Call) and dotted(size.func) == "len"
    counted |= isinstance(size, ast.Subscript) and dotted(size.value).endswith(".shape")
    uses = [n for s in loop.body for n in ast.walk(s) if isinstance(n, ast.Name) and n.id == index]
    taken = [n.slice for s in loop.body for n in ast.walk(s) if isinstance(n, ast.Subscript)]
    return {index} if counted and uses and all(any(u is t for t in taken) for u in uses) else set()


def _reduces(spot: Spot, body: Sequence[ast.stmt], known: set[str]) -> bool:
    """Whether rows are reduced to numbers by numpy, here or in small functions of the script."""
    reduced = False
    for statement in body:
        if _multiplies_matrices(statement):
            return False
        for call in ast.walk(statement):
            if not isinstance(call, ast.Call):
                continue
            name = dotted(call.func)
            last = name.rpartition(".")[2]
            if _is_compiled(spot, name):
                return False
            rows = known & {n.id for a in call.args for n in ast.walk(a) if isinstance(n, ast.Name)}
            if last in spot.names.functions and name.partition(".")[0] not in ("np", "numpy", "torch"):
                if not _only_numpy(spot, call):
                    return False
                reduced |= bool(rows)
            elif last in REDUCED and name.startswith(("np.", "numpy.", "torch.", "linalg.")):
                reduced |= bool(rows)
    return reduced


def _only_numpy(spot: Spot, call: ast.Call) -> bool:
    """Whether a function of the script computes a number with numpy from its arguments, and does no more."""
    defined = spot.names.definitions.get(dotted(call.func).rpartition(".")[2], ())
    if len(defined) != 1:
        return False
    function = defined[0]
    reduces = False
    for node in ast.walk(function):
        if isinstance(node, (*LOOPS_AND_TRY, ast.Yield, ast.Await, ast.Global, ast.comprehension)):
            return False
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            return False
        if isinstance(node, ast.Call):
            owner, _, last = dotted(node.func).rpartition(".")
            plain = owner in ("np", "numpy", "np.linalg", "numpy.linalg", "linalg", "math")
            builtin = dotted(node.func) in ("float", "int", "bool", "abs", "min", "max", "len")
            method = bool(owner) and last in REDUCED | {"astype", "copy"}
            if not (plain or builtin or method):
                return False
            reduces |= last in REDUCED
    return reduces and any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(function))


LOOPS_AND_TRY = (ast.For, ast.While, ast.AsyncFor, ast.Try, ast.With)


def _iterates_rows(iterated: ast.AST) -> bool:
    """`rows`, `zip(rows, others)`, `enumerate(rows)`: the rows themselves, not a count."""
    if isinstance(iterated, ast.Call):
        name = dotted(iterated.func)
        return name in ("zip", "enumerate") and all(_iterates_rows(a) for a in iterated.args)
    return isinstance(iterated, ast.Name | ast.Attribute | ast.Subscript)


RECURRENT = frozenset({"LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell"})


@idiom
def recurrent_step_by_step(spot: Spot) -> Match | None:
    """A recurrent network called for one time step after the other on a sequence that is already there."""
    if not isinstance(spot.node, ast.For) or not spot.calls_networks or _trains(spot):
        return None
    if not _carries_over(spot.node) or not (spot.names.made & RECURRENT):
        return None
    # Acting needs the step before: only a loop over recorded data can be replaced.
    words = {name.rpartition(".")[2] for name, _ in spot.calls()}
    if words & {"sample", "multinomial", "item", "act", "argmax", "step"}:
        return None
    return Match(
        "recurrent_step_by_step",
        "Run the recurrent network over the whole sequence at once",
        "The loop calls the LSTM or GRU for one time step at a time, so every step pays for the calls (and "
        "again in backward); the network takes whole sequences.",
        "Give nn.LSTM or nn.GRU the sequence [time, batch, features] in one call (instead of a cell). Where "
        "episodes end inside, split the sequence there, or reset the state by a mask for each stretch.",
        (0.5, 0.88, 0.96),
        safety="rounding",
        effort="hours",
        takes="all",
        library_calls=("torch.nn", "distributions"),
        backward=True,
    )


def _carries_over(loop: ast.For) -> bool:
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


_CASES = (ast.ExceptHandler, ast.match_case)
_BODIES = (ast.stmt, *_CASES)


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


@idiom
def elementwise_loop(spot: Spot) -> Match | None:
    """A Python loop that computes with one element of an array, tensor or list at a time."""
    if not isinstance(spot.node, ast.For):
        return None
    loop = spot.node
    names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
    arithmetic = any(_has(statement, ast.BinOp, ast.AugAssign) for statement in loop.body)
    if _trains(spot) or not arithmetic or not _handles_elements(spot, loop):
        return None
    if _needs_what_it_changed(loop, names):
        return None  # array expressions would give other results: tables are learnt one entry at a time
    return Match(
        "elementwise_loop",
        "Compute with whole arrays instead of element by element",
        "Each pass of this loop handles one element; on tensors and arrays an operation on one element "
        "costs as much as on thousands.",
        "Vectorise it with numpy or torch. If each element needs the one before (returns, GAE), loop over "
        "plain Python floats (tensor.tolist()) or numpy, use scipy.signal.lfilter, or compile it with "
        "numba.",
        # Measured by benchmarks/remedies.py: array expressions save 83 to 90 % of a loop over elements of an
        # array and 90 to 99 % over those of a tensor, but 35 to 60 % over plain floats (numba: nearly all).
        _SAVED_ON[_kind_of_elements(spot, loop)],
        effort="hours",
        safety="rounding",
        takes="all",
    )


_SAVED_ON = {"float": (0.35, 0.65, 0.98), "tensor": (0.85, 0.96, 0.995), "array": (0.7, 0.9, 0.99)}


def _kind_of_elements(spot: Spot, loop: ast.For) -> Literal["float", "tensor", "array"]:
    """What the innermost passes compute with; an operation on an element costs more in this order."""
    names = _elements_of(loop) | {
        name for inner in ast.walk(loop) if isinstance(inner, ast.For) for name in _elements_of(inner)
    }
    bases: list[ast.AST] = [
        n.value
        for n in _used_in(loop.body)
        if isinstance(n, ast.Subscript)
        and isinstance(n.ctx, ast.Load)
        and names & {inner.id for inner in ast.walk(n.slice) if isinstance(inner, ast.Name)}
    ]
    kinds = [spot.names.of(dotted(base)) for base in bases]
    if any("tensor" in kind for kind in kinds):
        return "tensor"
    libraries = {dotted(n.func).partition(".")[0] for n in ast.walk(loop) if isinstance(n, ast.Call)}
    if libraries & {"torch", "th"}:
        return "tensor"
    if libraries & {"np", "numpy"} or not all(kind and kind <= {"list", "tuple"} for kind in kinds):
        return "array"
    loops = [loop, *(n for n in ast.walk(loop) if isinstance(n, ast.For))]
    return "float" if all(_gives_numbers(spot, one.iter) for one in loops) else "array"


def _gives_numbers(spot: Spot, iterated: ast.AST) -> bool:
    """`range(n)`, or what `tolist()` and other lists give, also through `enumerate`, `zip` and `reversed`."""
    if isinstance(iterated, ast.Call):
        name = dotted(iterated.func).rpartition(".")[2]
        if name in ("enumerate", "zip", "reversed"):
            return all(_gives_numbers(spot, argument) for argument in iterated.args)
        return name in ("range", "tolist")
    return bool(spot.names.of(dotted(iterated))) and spot.names.of(dotted(iterated)) <= {"list", "tuple"}


COUNTERS = frozenset({"range", "enumerate", "trange", "count", "tqdm"})
OF_NUMBERS = frozenset({"int", "float", "bool", "abs", "round", "max", "min", "divmod", "chr"})


def _handles_elements(spot: Spot, loop: ast.For) -> bool:
    """Whether the source shows that a pass handles one element, or one column, and not a large array.

    `state = model(state, actions[t])` may be any amount of work for each pass: nobody can tell from the
    source. Numbers give themselves away: they are compared in an `if`, turned into floats, used as indices,
    given to `math`, added up backwards in time.
    """
    if any(_is_compiled(spot, name) for name, _ in spot.calls()) or _multiplies_matrices(loop):
        return False
    elements = _elements_of(loop)
    if not elements:
        return False
    used = list(_used_in(loop.body))

    def is_element(node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in elements
        return isinstance(node, ast.Subscript) and bool(
            elements & {n.id for n in ast.walk(node.slice) if isinstance(n, ast.Name)}
        )

    def holds_element(node: ast.AST) -> bool:
        return any(is_element(inner) for inner in ast.walk(node))

    for node in used:
        if isinstance(node, ast.Subscript):
            index = node.slice
            if isinstance(index, ast.Tuple) and holds_element(node) and not _has(index, ast.Starred):
                slices = [e for e in index.elts if isinstance(e, ast.Slice)]
                plain = [e for e in index.elts if not isinstance(e, ast.Slice) and not _is_ellipsis(e)]
                # x[i, j] is one number; x[:, j] is one column, unless time runs along it.
                column = len(slices) == 1 and slices[0].lower is slices[0].upper is None
                if len(plain) == len(index.elts) or (
                    column and len(index.elts) == 2 and not _carries_over(loop)
                ):
                    return True
            elif isinstance(index, ast.Name | ast.Subscript) and isinstance(node.value, ast.Subscript):
                return holds_element(node)  # x[i][j]
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            scalar = name in OF_NUMBERS or name.startswith("math.")
            if (scalar and any(holds_element(a) for a in node.args)) or (
                name.endswith(".item") and holds_element(node)
            ):
                return True
        elif isinstance(node, ast.If | ast.IfExp | ast.BoolOp):
            test = node.test if isinstance(node, ast.If | ast.IfExp) else node
            alone = test.operand if isinstance(test, ast.UnaryOp) else test
            if isinstance(alone, ast.Subscript) and is_element(alone) and not _has(alone.slice, ast.Slice):
                return True  # if done[i]: an array has no truth value
            compared = [n for n in ast.walk(test) if isinstance(n, ast.Compare)]
            if any(_compares_an_element(one, loop, is_element) for one in compared):
                return True
    # Loops inside, with arithmetic on elements of both.
    inner = [n for n in used if isinstance(n, ast.For)]
    if any(_elements_of(one) and any(_has(s, ast.BinOp, ast.AugAssign) for s in one.body) for one in inner):
        return True
    backwards = any(
        isinstance(n, ast.Call) and dotted(n.func) == "reversed" for n in ast.walk(loop.iter)
    ) or _counts_down(loop.iter)
    return backwards and any(holds_element(n) for n in used if isinstance(n, ast.BinOp | ast.AugAssign))


def _multiplies_matrices(loop: ast.AST) -> bool:
    products = ("dot", "matmul", "einsum", "tensordot", "solve", "lstsq", "inv", "svd", "bmm", "mm")
    return _has(loop, ast.MatMult) or any(name.rpartition(".")[2] in products for name in _called_names(loop))


def _elements_of(loop: ast.For) -> set[str]:
    """Names that stand for an element, or its index; not `_`, which only counts."""
    return {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)} - {"_"}


def _compares_an_element(node: ast.Compare, loop: ast.For, is_element: Callable[[ast.AST], bool]) -> bool:
    """`x[i] > best`, `reward < 0` of a loop over rewards; not `step == skip` of a counter."""
    counts = isinstance(loop.iter, ast.Call) and dotted(loop.iter.func).rpartition(".")[2] in COUNTERS
    for side in (node.left, *node.comparators):
        if isinstance(side, ast.Subscript) and is_element(side):
            return True
        if not counts and isinstance(side, ast.Name) and is_element(side):
            return not isinstance(node.ops[0], ast.In | ast.NotIn | ast.Is | ast.IsNot)
    return False


def _counts_down(iterated: ast.AST) -> bool:
    """`range(n - 1, -1, -1)`."""
    return (
        isinstance(iterated, ast.Call)
        and dotted(iterated.func) == "range"
        and len(iterated.args) == 3
        and isinstance(iterated.args[2], ast.UnaryOp)
        and isinstance(iterated.args[2].op, ast.USub)
    )


def _is_ellipsis(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


COMPILERS = frozenset(
    {"njit", "jit", "vectorize", "guvectorize", "script", "compile", "pmap", "vmap", "cfunc", "stencil"}
)


def _is_compiled(spot: Spot, name: str) -> bool:
    """Whether a function of the file is compiled by numba, jax or torch, or made by one that compiles it."""
    if any(called.startswith("numba.") for called in spot.called):
        return True
    last = name.rpartition(".")[2]
    functions = list(spot.names.definitions.get(last, ()))
    for tree in spot.names.trees if not functions else ():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Call)
                and any(dotted(target).rpartition(".")[2] == last for target in node.targets)
            ):
                maker = dotted(node.value.func).rpartition(".")[2].removesuffix("()")
                if maker in COMPILERS:
                    return True
                functions += [
                    inner
                    for outer in spot.names.definitions.get(maker, ())
                    for inner in ast.walk(outer)
                    if isinstance(inner, ast.FunctionDef) and inner is not outer
                ]
    return any(
        dotted(d.func if isinstance(d, ast.Call) else d).rpartition(".")[2] in COMPILERS
        for function in functions
        for d in function.decorator_list
    )


def _used_in(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Everything in these statements but text and tests such as `i % 100 == 0`."""
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        yield node
        for child in ast.iter_child_nodes(node):
            of_test = isinstance(node, ast.If) and child is node.test
            if isinstance(child, ast.JoinedStr) or (of_test and _has(child, ast.Mod, ast.FloorDiv)):
                continue
            todo.append(child)


def _needs_what_it_changed(loop: ast.For, names: set[str]) -> bool:
    """Whether it writes elements chosen by data (not by the loop), and reads others of the same array."""
    places = [n for s in loop.body for n in ast.walk(s) if isinstance(n, ast.Subscript)]
    written = {
        dotted(place.value)
        for place in places
        if isinstance(place.ctx, ast.Store)
        and not _has(place.slice, ast.Slice)
        and not isinstance(place.slice, ast.Constant)
        and not names & {n.id for n in ast.walk(place.slice) if isinstance(n, ast.Name)}
    }
    return any(isinstance(p.ctx, ast.Load) and dotted(p.value) in written - {"?"} for p in places)


def _trains(spot: Spot) -> bool:
    """Whether a loop steps an env or learns: a loop over time, which stays."""
    return spot.trains or any(
        name.endswith((".step", ".backward", ".learn", ".train", ".reset", "_step", ".zero_grad", ".fit"))
        for name, _ in spot.calls()
    )


@idiom
def sums_of_suffixes(spot: Spot) -> Match | None:
    """`sum(g ** k * r for k, r in enumerate(rewards[t:]))` for every t."""
    steps = {
        n.id
        for loop in spot.loops
        if isinstance(loop, ast.For)
        for n in ast.walk(loop.target)
        if isinstance(n, ast.Name)
    }
    steps |= {
        n.id
        for inner in _comprehensions(spot.node)
        for g in inner.generators
        for n in ast.walk(g.target)
        if isinstance(n, ast.Name)
    }
    if isinstance(spot.node, ast.For) and steps and _adds_what_is_left(spot.node, steps):
        return _adds_up_again(ast.unparse(spot.node.iter))
    if _is_loop(spot):
        return None
    for name, call in spot.calls():
        if name.rpartition(".")[2] not in ("sum", "dot", "mean", "max", "min", "cumsum", "prod"):
            continue
        for inner in ast.walk(call):
            if not isinstance(inner, ast.Subscript) or not isinstance(inner.slice, ast.Slice):
                continue
            lower, upper = inner.slice.lower, inner.slice.upper
            ends = [one for one in (lower, upper) if one is not None]
            if len(ends) != 1 or not {n.id for n in ast.walk(ends[0]) if isinstance(n, ast.Name)} & steps:
                continue  # a window has two ends
            return _adds_up_again(ast.unparse(inner))
    return None


def _adds_what_is_left(loop: ast.For, steps: set[str]) -> bool:
    """`for k in range(t, n): total += g ** (k - t) * r[k]`, in a loop over t."""
    counts = isinstance(loop.iter, ast.Call) and dotted(loop.iter.func) == "range"
    used = {n.id for n in ast.walk(loop.iter) if isinstance(n, ast.Name)}
    simple = all(isinstance(s, ast.AugAssign | ast.Assign | ast.Expr) for s in loop.body)
    adds = any(isinstance(s, ast.AugAssign) and isinstance(s.op, ast.Add) for s in loop.body)
    indexed = any(isinstance(n, ast.Subscript) for s in loop.body for n in ast.walk(s))
    ends = len(loop.iter.args) if isinstance(loop.iter, ast.Call) else 0
    both = ends == 2 and isinstance(loop.iter, ast.Call) and _has_steps(loop.iter.args[1], steps)
    return counts and bool(used & steps) and simple and adds and indexed and len(loop.body) <= 3 and not both


def _has_steps(node: ast.AST, steps: set[str]) -> bool:
    return any(isinstance(n, ast.Name) and n.id in steps for n in ast.walk(node))


def _adds_up_again(what: str) -> Match:
    return Match(
        "sums_of_suffixes",
        f"Carry the sum from step to step, do not add up {what} for each of them",
        "Every step adds up all the steps after (or before) it again, so the cost grows with the square of "
        "the length.",
        "Go through the steps once, backwards for returns: g = r + gamma * g; or use a cumulative sum.",
        (0.7, 0.96, 1.0),
        takes="all",
        safety="rounding",
    )


@idiom
def computing_in_comprehensions(spot: Spot) -> Match | None:
    if _is_loop(spot) or any(_is_compiled(spot, name) for name, _ in spot.calls()):
        return None
    for comprehension in _comprehensions(spot.node):
        if isinstance(comprehension.generators[0].iter, ast.Tuple | ast.List):
            continue  # a few things written down, not the elements of an array
        element = comprehension.value if isinstance(comprehension, ast.DictComp) else comprehension.elt
        computes = any(
            name.startswith(("math.", "np.", "numpy.", "torch."))
            and not any(_same(name, t) for t in ("torch.from_numpy", "numpy.asarray", *_TENSORS))
            for name in _called_names(element)
        )
        if computes or _has(element, ast.BinOp, ast.Compare):
            return Match(
                "computing_in_comprehensions",
                "Compute with whole arrays instead of a comprehension",
                "The arithmetic runs once for each element in Python.",
                "Put the values in an array once and use one numpy expression.",
                (0.6, 0.93, 0.99),
                safety="rounding",
                takes="all",
            )
    return None


@idiom
def numpy_vectorize(spot: Spot) -> Match | None:
    if not (
        _calls(spot, "numpy.vectorize", "numpy.apply_along_axis", "numpy.frompyfunc")
        or _called(spot, "apply_along_axis")
    ):
        return None
    return Match(
        "numpy_vectorize",
        "Replace np.vectorize or apply_along_axis by array expressions",
        "They call a Python function for each element.",
        "Write the function with array operations, or compile it with numba.",
        (0.7, 0.95, 0.99),
        effort="hours",
        safety="rounding",
    )


# -- reading scalars, logging, printing, files ----------------------------------------------------------


@idiom
def plotting(spot: Spot) -> Match | None:
    if _is_loop(spot) or not _calls(
        spot,
        "plt.plot",
        "plt.savefig",
        ".savefig",
        "plt.draw",
        "plt.pause",
        "plt.figure",
        "plt.imshow",
        ".imshow",
        "plt.show",
    ):
        return None
    return Match(
        "plotting",
        "Plot after training, or rarely",
        "Drawing a figure takes tens of milliseconds.",
        "Save the numbers and plot at the end, or every few thousand steps.",
        (0.9, 0.98, 1.0),
        library_calls=("tensorboard",),
    )


@idiom
def rendering(spot: Spot) -> Match | None:
    if _is_loop(spot) or not _calls(
        spot, ".render", "cv2.imshow", "cv2.imwrite", "imageio.imwrite", "Image.fromarray"
    ):
        return None
    return Match(
        "rendering",
        "Render only what is looked at",
        "A frame is drawn at every pass.",
        "Leave rendering out of training (render_mode=None), or render a few evaluation episodes.",
        (0.85, 0.97, 1.0),
        library_calls=("render",),
        takes="all",
    )


@idiom
def printing(spot: Spot) -> Match | None:
    call = _calls(
        spot,
        "print",
        "sys.stdout.write",
        "sys.stderr.write",
        "tqdm.write",
        ".set_postfix",
        ".set_description",
        "stdout.flush",
        "stderr.flush",
        "console.print",
    )
    if _is_loop(spot) or call is None:
        return None
    return Match(
        "printing",
        "Print less often",
        "Output is written at every pass.",
        "Print every few thousand steps, or once for each rollout.",
        (0.9, 0.985, 1.0),
        takes="own",  # in print(algorithm.train()), what trains is not output
    )


SAVED = re.compile(
    r"(^|[._])(save|dump|write|export|serialize|checkpoint|to_csv|to_parquet|to_hdf|to_pickle)(_|$|\w*$)"
)
READ = re.compile(
    r"(^|[._])(read_csv|read_json|read_parquet|read_pickle|read_text|read_bytes|loadtxt|genfromtxt|load_results)$"
)


@idiom
def compressing(spot: Spot) -> Match | None:
    names = (
        *("zlib.compress", "zlib.decompress", "gzip.compress", "gzip.decompress", "lzma.compress"),
        *("bz2.compress", "bz2.decompress", "blosc.pack_array", "blosc.compress", "lz4.frame.compress"),
        *("lzma.decompress", "cv2.imencode", "cv2.imdecode", "numpy.savez_compressed", "gzip.open"),
    )
    compressed = any(k.arg == "compression" for _, call in spot.calls() for k in call.keywords)
    if _is_loop(spot) or not (_calls(spot, *names) or compressed):
        return None
    return Match(
        "compressing",
        "Do not compress (gzip, zlib, PNG) while training waits",
        "Compression runs on the training thread, at tens of MB/s.",
        "Keep data as uint8 or float16 arrays in memory. Write replay buffers and other large files rarely, "
        "or once at the end, uncompressed, or compress them in another process.",
        (0.75, 0.97, 1.0),
        library_calls=("",),
        takes="all",
    )


@idiom
def reading_files(spot: Spot) -> Match | None:
    names = (
        *(
            "pandas.read_csv",
            "pandas.read_parquet",
            "numpy.load",
            "numpy.loadtxt",
            "numpy.genfromtxt",
            "torch.load",
        ),
        *(
            "pickle.load",
            "joblib.load",
            ".read_text",
            ".read_bytes",
            "csv.reader",
            "csv.DictReader",
            "load_results",
        ),
        *(
            "os.listdir",
            "glob.glob",
            ".glob",
            ".rglob",
            "os.walk",
            "os.scandir",
            "yaml.safe_load",
            "h5py.File",
        ),
    )
    reads = any(READ.search(name) for name in _called_by_name(spot))
    if _is_loop(spot) or not (_calls(spot, *names) or reads or _opens_to_read(spot)):
        return None
    return Match(
        "reading_files",
        "Read the file once and keep what it says",
        "Files are read and parsed again inside the loop.",
        "Read them before training (or in the constructor) and keep the arrays; read only what was added, or "
        "keep the numbers in memory as they come.",
        (0.8, 0.97, 1.0),
        library_calls=("load", "read", "pandas", "csv"),
        takes="all",
    )


def _called_by_name(spot: Spot) -> list[str]:
    """Library functions that were sampled there and that the source calls by the same name."""
    written = {name.rpartition(".")[2] for name, _ in spot.calls()}
    return [name for name in spot.called[:3] if name.rpartition(".")[2] in written]


def _opens_to_read(spot: Spot) -> bool:
    for name, call in spot.calls():
        if name == "open" or name.endswith("Path().open"):
            modes = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "mode")]
            text = modes[0].value if modes and isinstance(modes[0], ast.Constant) else "r"
            return isinstance(text, str) and not set(text) & set("wax+")
    return False


@idiom
def writing_files(spot: Spot) -> Match | None:
    names = (
        "torch.save",
        "numpy.save",
        "numpy.savez",
        "pickle.dump",
        ".to_csv",
        ".writerow",
        ".save",
        "joblib.dump",
        "open",
        "os.fsync",
        "h5py.File",
        ".commit",
        ".execute",
        ".to_parquet",
        ".save_hdf5",
        ".save_replay_buffer",
        ".save_checkpoint",
        ".write_text",
        ".write_bytes",
    )
    saves = any(
        SAVED.search(name) and not name.startswith(("asyncio.", "socket.", "multiprocessing."))
        for name in _called_by_name(spot)
    )
    if _is_loop(spot) or not (_calls(spot, *names) or saves or _writes_text(spot)):
        return None
    return Match(
        "writing_files",
        "Write files less often",
        "Files are opened, serialised or flushed inside the loop, and training waits for it.",
        "Save every few thousand steps, keep the file open, buffer rows in memory, and write only what "
        "changed: the small policy often, a replay buffer rarely or once at the end.",
        (0.8, 0.98, 1.0),
        library_calls=("serialization", "save", "dump", "write", "h5py"),
    )


def _writes_text(spot: Spot) -> bool:
    """`file.write(...)`: of an open file, or of text."""
    for name, call in spot.calls():
        owner, _, method = name.rpartition(".")
        text = any(
            isinstance(n, ast.JoinedStr) or (isinstance(n, ast.Constant) and isinstance(n.value, str))
            for argument in call.args
            for n in ast.walk(argument)
        )
        if method == "write" and owner and not _is_stream(spot, owner):
            return "open" in spot.names.of(owner) or text
    return False


def _is_stream(spot: Spot, owner: str) -> bool:
    """Whether it is an asyncio stream to another process: `await writer.drain()`."""
    return f"{owner}.drain" in set(_called_names(spot.scope))


@idiom
def metrics_each_step(spot: Spot) -> Match | None:
    names = (
        *(".add_scalar", ".add_scalars", ".add_histogram", ".add_image", ".add_figure", ".add_text"),
        *("wandb.log", ".log_metric", ".log_metrics", ".log_dict", "mlflow.log_metric", ".add_video"),
    )
    if _is_loop(spot) or not (_calls(spot, *names) or any(_logs(name, call) for name, call in spot.calls())):
        return None
    return Match(
        "metrics_each_step",
        "Log metrics less often",
        "A metric is converted and written at every pass.",
        "Log every 100 updates or once for each rollout; keep sums as tensors and read them once.",
        (0.85, 0.985, 1.0),
        walks_memory=True,
        library_calls=("tensorboard", "logger"),
    )


def _logs(name: str, call: ast.Call) -> bool:
    """`logger.info(...)`, `self.log("loss", ...)`; not `probs.log()`, `info.record(x)` or `math.log(x)`."""
    owner, _, method = name.rpartition(".")
    if method not in ("log", "info", "debug", "record", "warning", "record_mean") or not call.args:
        return False
    return "log" in owner.rpartition(".")[2].lower() or _is_text(call.args[0])


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


@idiom
def checks_in_the_loop(spot: Spot) -> Match | None:
    """Assertions and tests for NaN that cost more than what they check."""
    if _is_loop(spot):
        return None
    checks = (
        "torch.isnan",
        "torch.isfinite",
        "torch.isinf",
        "numpy.isnan",
        "numpy.isfinite",
        "numpy.allclose",
    )
    more = (
        "torch.allclose",
        "check_env",
        "check_env_specs",
        ".contains",
        "numpy.testing.assert_allclose",
        "numpy.array_equal",
    )
    if not isinstance(spot.node, ast.Assert) and not (
        _calls(spot, *checks, *more) and _only_tests(spot.node)
    ):
        return None
    return Match(
        "checks_in_the_loop",
        "Check values rarely, or only while debugging",
        "The check reads all values at every pass.",
        "Run it every few hundred passes or behind a debug flag; `python -O` leaves assertions out.",
        (0.8, 0.97, 1.0),
        takes="all",
        library_calls=("isnan", "isfinite", "contains", "allclose", "check"),
    )


def _only_tests(node: ast.AST) -> bool:
    """The head of an `if`, or a statement that keeps no value."""
    return isinstance(node, ast.Expr)


@idiom
def formatting_tensors(spot: Spot) -> Match | None:
    if _is_loop(spot) or not any(
        "torch._tensor_str" in name or name.endswith("arrayprint.array2string") for name in spot.called[:2]
    ):
        return None
    return Match(
        "formatting_tensors",
        "Do not format tensors as text in the loop",
        "Printing or formatting a tensor or array takes hundreds of microseconds, shown or not.",
        "Format plain numbers (`.item()`), and only when the line is printed: logger.debug('%s', x) formats "
        "only if the level is on.",
        (0.85, 0.98, 1.0),
        library_calls=("_tensor_str", "arrayprint"),
    )


@idiom
def reading_scalars(spot: Spot) -> Match | None:
    if _is_loop(spot):
        return None
    if not _calls(spot, ".item") or (spot.called and not spot.called[0].startswith(("torch", "numpy"))):
        return None
    if _is_used(spot):
        return None  # an action, or a value that decides something: it has to be read now
    return Match(
        "reading_scalars",
        "Read scalars from tensors less often",
        "`item()` waits for the tensor and leaves torch for one number at a time.",
        "Collect tensors and read them once for each rollout, or stack them and call tolist() once.",
        (0.6, 0.92, 1.0),
    )


def _is_used(spot: Spot) -> bool:
    """Whether a name that the statement assigns is given to a function or decides about the flow."""
    if not isinstance(spot.node, ast.Assign):
        return False
    stored = {n.id for target in spot.node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    for node in ast.walk(spot.scope):
        given: list[ast.AST] = []
        if isinstance(node, ast.Call) and not _logs(dotted(node.func), node):
            last = dotted(node.func).rpartition(".")[2]
            if last not in ("append", "print", "add_scalar", "write", "extend", "update", "format"):
                given = [*node.args, *(k.value for k in node.keywords)]
        elif isinstance(node, ast.If | ast.While):
            given = [node.test]
        elif isinstance(node, ast.Subscript):
            given = [node.slice]
        if any(isinstance(n, ast.Name) and n.id in stored for value in given for n in ast.walk(value)):
            return True
    return False


@idiom
def dataframes(spot: Spot) -> Match | None:
    if _is_loop(spot):
        return None
    if not _calls(
        spot, "pandas.DataFrame", "pandas.concat", "pandas.Series", ".iterrows", ".rolling", ".groupby"
    ) and not (
        any(
            isinstance(n, ast.Attribute) and n.attr in ("loc", "iloc", "at", "iat")
            for n in ast.walk(spot.node)
        )
    ):
        return None
    return Match(
        "dataframes",
        "Keep data frames out of the loop",
        "Indexing or building a DataFrame costs tens to hundreds of microseconds.",
        "Use numpy arrays or lists in the loop; make the DataFrame once at the end.",
        (0.8, 0.96, 1.0),
    )


# -- objects made again and again ------------------------------------------------------------------------


@idiom
def optimizer_each_time(spot: Spot) -> Match | None:
    if not spot.loops and spot.function == "<module>":
        return None
    if _is_loop(spot) or not any(
        re.search(r"(^|\.)optim\.[A-Z]\w*$|^(Adam|AdamW|SGD|RMSprop)$", name) for name, _ in spot.calls()
    ):
        return None
    return Match(
        "optimizer_each_time",
        "Create the optimizer once",
        "A new optimizer is built each time; it also forgets its moments.",
        "Create it before the loop and reuse it.",
        (0.8, 0.97, 1.0),
        safety="semantic",
        library_calls=("optim",),
    )


@idiom
def covariance_matrix(spot: Spot) -> Match | None:
    """`MultivariateNormal(mean, torch.diag(var))`: a product of independent normals, by matrices."""
    made = "MultivariateNormal" in {name.rpartition(".")[2] for name, _ in spot.calls()}
    uses = any("multivariate_normal" in name for name in spot.called)
    if _is_loop(spot) or not (made or uses):
        return None
    diagonal = any(
        name.rpartition(".")[2] in ("diag", "diag_embed", "eye") for name in _called_names(spot.scope)
    )
    if not diagonal and not {"diag", "diag_embed", "eye"} & spot.names.mentioned:
        return None
    return Match(
        "covariance_matrix",
        "Use Independent(Normal(mean, std), 1) instead of a MultivariateNormal with a diagonal matrix",
        "MultivariateNormal decomposes a matrix for every row (Cholesky) and solves triangular systems, "
        "which a diagonal covariance does not need.",
        "torch.distributions.Independent(Normal(mean, std), 1) has the same log_prob and entropy, up to "
        "rounding.",
        (0.4, 0.75, 0.9),
        library_calls=("torch.distributions", "torch.linalg"),
        safety="rounding",
        backward=False,
    )


@idiom
def distributions(spot: Spot) -> Match | None:
    names = (
        "Categorical",
        "Normal",
        "MultivariateNormal",
        "Bernoulli",
        "Beta",
        "Independent",
        "TransformedDistribution",
        "kl_divergence",
    )
    if _is_loop(spot) or not (
        _calls(spot, *names) or any("distributions" in name for name in spot.called[:2])
    ):
        return None
    return Match(
        "distributions",
        "Turn off argument validation of distributions",
        "Each torch distribution checks its arguments with several tensor operations.",
        "Pass validate_args=False, or call "
        "torch.distributions.Distribution.set_default_validate_args(False) once; for a sample and its "
        "log-probability, logits and torch.multinomial are enough.",
        (0.2, 0.36, 0.5),
        library_calls=("distributions",),
        patch="validation",
    )


@idiom
def made_each_time(spot: Spot) -> Match | None:
    """Things that are the same at every pass: generators, masks, compiled code, modes of networks."""
    if _is_loop(spot) or (not spot.loops and spot.function == "<module>"):
        return None
    generators = ("numpy.random.default_rng", "numpy.random.RandomState", "torch.Generator", "random.Random")
    seeds = ("numpy.random.seed", "random.seed", "torch.manual_seed", "torch.random.manual_seed")
    if _calls(spot, *generators) or (isinstance(spot.node, ast.Expr) and _calls(spot, *seeds)):
        what, why = "the random generator", "Seeding a generator takes longer than most draws."
    elif _calls(
        spot,
        "torch.compile",
        "torch.jit.script",
        "torch.jit.trace",
        "re.compile",
        "numba.njit",
        "jax.jit",
        "jax.vmap",
    ):
        what, why = "the compiled function", "It is compiled, or looked up again, at every pass."
    elif any(
        name.endswith((".eval", ".train")) and not call.args for name, call in spot.calls()
    ) and _is_all_of(spot, (".eval", ".train")):
        what, why = "the mode of the network", "train() and eval() walk through all modules in Python."
    elif _makes_constants_only(spot):
        what, why = "what never changes", "The same values are computed at every pass."
    else:
        return None
    return Match(
        "made_each_time",
        f"Make {what} once",
        why,
        "Do it before the loop (or in the constructor) and keep the result.",
        (0.7, 0.95, 1.0),
        safety="semantic" if "generator" in what else "safe",
        library_calls=(
            "torch.nn.modules.module.Module.train",
            "torch.nn.modules.module.Module.eval",
            "compile",
        ),
    )


def _is_all_of(spot: Spot, ends: tuple[str, ...]) -> bool:
    """Whether the statement is nothing but a call of such a method."""
    value = spot.node.value if isinstance(spot.node, ast.Expr) else None
    return isinstance(value, ast.Call) and dotted(value.func).endswith(ends)


CONVERSIONS = frozenset(
    {"to", "astype", "float", "long", "unsqueeze", "view", "reshape", "double", "int", "repeat", "expand"}
)


def _makes_constants_only(spot: Spot) -> bool:
    """Whether all that the statement computes is made of settings: what else it does would stay."""
    calls = list(spot.calls())
    made = [call for name, call in calls if _is_constant(name, call)]
    rest = [name for name, call in calls if call not in made]
    return bool(made) and all(name.rpartition(".")[2] in CONVERSIONS for name in rest)


def _is_constant(name: str, call: ast.Call) -> bool:
    """`torch.arange(0, self.n)`, `np.eye(N)`: made of settings alone."""
    made = ("arange", "linspace", "eye", "tril", "triu", "meshgrid", "logspace", "hanning", "indices")
    if not any(_same(name, f"{library}.{function}") for library in ("numpy", "torch") for function in made):
        return False
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return bool(given) and all(_is_setting(value) for value in given)


def _is_setting(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.BinOp):
        return _is_setting(node.left) and _is_setting(node.right)
    if isinstance(node, ast.Name):
        return node.id.isupper()
    name = dotted(node)
    return name.partition(".")[0] in ("self", "args", "cfg", "config", "torch", "np") and "?" not in name


@idiom
def environments_each_time(spot: Spot) -> Match | None:
    if not spot.loops and spot.function == "<module>":
        return None
    if _is_loop(spot) or not _calls(
        spot,
        "gym.make",
        "gymnasium.make",
        "make_vec_env",
        "gym.make_vec",
        "make_env",
        "SyncVectorEnv",
        "AsyncVectorEnv",
        "DummyVecEnv",
        "SubprocVecEnv",
    ):
        return None
    return Match(
        "environments_each_time",
        "Create the environment once and reset it",
        "A new environment is built each time.",
        "Build it before the loop and call reset().",
        (0.8, 0.97, 1.0),
        library_calls=("make", "__init__", "vec_env"),
    )


@idiom
def loader_workers_each_pass(spot: Spot) -> Match | None:
    """`for epoch in ...: for batch in loader`, whose worker processes end with every pass."""
    if _is_loop(spot) or not spot.loops or not isinstance(spot.node, ast.Expr):
        return None
    if not any("utils.data" in name for name in spot.called) or not _items_take_work(spot):
        return None
    iterated: ast.AST = spot.node.value
    while isinstance(iterated, ast.Call) and iterated.args:  # enumerate(loader), tqdm(loader)
        iterated = iterated.args[0]
    made = [
        {k.arg: k.value for k in node.value.keywords}
        for tree in spot.names.trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and dotted(node.value.func).rpartition(".")[2] == "DataLoader"
        and any(dotted(target) == dotted(iterated) for target in node.targets)
    ]
    if not made or not all(
        _has_workers(given) and not _is_true(given, "persistent_workers") for given in made
    ):
        return None
    return Match(
        "loader_workers_each_pass",
        "Keep the loader's workers between epochs (persistent_workers=True)",
        "The DataLoader starts its worker processes anew for every pass over the data, waits for their first "
        "batch, and ends them again.",
        "Pass persistent_workers=True and make the loader once. Workers then draw other random numbers. With "
        "little work for each item, num_workers=0 is faster still.",
        (0.15, 0.42, 0.85),
        library_calls=("utils.data",),
        safety="semantic",
        waits=True,
        chills=False,
    )


def _items_take_work(spot: Spot) -> bool:
    """Whether a dataset of the script computes its items; those that only index are better off as tensors."""
    cheap = ("tensor", "as_tensor", "from_numpy", "FloatTensor", "float", "int", "len", "float32", "copy")
    return any(
        isinstance(n, ast.Call) and dotted(n.func).rpartition(".")[2] not in cheap
        for function in spot.names.definitions.get("__getitem__", ())
        for n in ast.walk(function)
    )


def _has_workers(given: dict[str | None, ast.expr]) -> bool:
    number = given.get("num_workers")
    return number is not None and not (isinstance(number, ast.Constant) and not number.value)


def _is_true(given: dict[str | None, ast.expr], name: str) -> bool:
    """Whether an argument is True, or may be."""
    value = given.get(name)
    return value is not None and not (isinstance(value, ast.Constant) and not value.value)


@idiom
def data_loader(spot: Spot) -> Match | None:
    builds = _calls(spot, "DataLoader", "TensorDataset")
    fetches = any("utils.data" in name for name in spot.called)
    if _is_loop(spot) or not (builds or fetches):
        return None
    return Match(
        "data_loader",
        "Index tensors instead of a DataLoader",
        "For data that fits into memory a DataLoader fetches and stacks one sample at a time, and starts "
        "workers anew for each pass.",
        "Keep the data as tensors and take data[torch.randperm(n)[i:i + batch_size]]; if you need the "
        "loader, build it once, with num_workers=0 or persistent_workers=True.",
        (0.5, 0.85, 0.97),
        library_calls=("utils.data",),
        safety="semantic",
        waits=True,
    )


@idiom
def threads_and_pools_each_time(spot: Spot) -> Match | None:
    if any(name.startswith("psutil.") for name, _ in spot.calls()):
        return None
    if _is_loop(spot) or not _calls(
        spot,
        "Pool",
        "ThreadPoolExecutor",
        "ProcessPoolExecutor",
        "threading.Thread",
        "Process",
        "subprocess.run",
        "subprocess.check_output",
        "subprocess.Popen",
        "os.system",
    ):
        return None
    return Match(
        "pools_each_time",
        "Start processes and threads once",
        "Workers are started anew each time.",
        "Create the pool before the loop and reuse it.",
        (0.7, 0.95, 1.0),
        waits=True,
    )


@idiom
def jobs_one_by_one(spot: Spot) -> Match | None:
    """`pool.submit(f, x).result()` or `pool.apply(f)` in a loop: the workers take turns."""
    if _is_loop(spot) or not (spot.loops or list(_comprehensions(spot.node))):
        return None
    names = [name for name, _ in spot.calls()]
    at_once = any(
        name == "ray.get" and call.args and isinstance(call.args[0], ast.Call)
        for name, call in spot.calls()
        if "remote" in {inner.rpartition(".")[2] for inner in _called_names(call)}
    )
    if not (
        at_once
        or any(name.endswith((".submit().result", ".apply_async().get", ".remote().get")) for name in names)
    ) and not any(
        name.endswith(".apply") and spot.names.of(name.rpartition(".")[0]) & {"Pool", "ThreadPool"}
        for name in names
    ):
        return None
    return Match(
        "jobs_one_by_one",
        "Start all jobs before you wait for the first",
        "Each job is awaited before the next one is handed over, so one worker works and the others wait.",
        "Use pool.map, or submit all jobs first and then collect the results.",
        (0.3, 0.72, 0.95),
        takes="all",
        waits=True,
        helpers=True,
        chills=False,
    )


# -- waiting and talking to others -------------------------------------------------------------------


@idiom
def sleeping(spot: Spot) -> Match | None:
    if not _calls(spot, "time.sleep", "sleep", "asyncio.sleep") or _is_loop(spot):
        return None
    if not any(isinstance(loop, ast.For | ast.While) for loop in spot.loops):
        return None  # a device or a service that takes its time
    return Match(
        "sleeping",
        "Wait for the event instead of sleeping",
        "The loop sleeps for a fixed time and then looks again.",
        "Block on the queue, pipe, condition or future (get(timeout=...), poll, select) that tells when "
        "there is work.",
        (0.8, 0.97, 1.0),
        waits=True,
    )


@idiom
def busy_waiting(spot: Spot) -> Match | None:
    """`while queue.empty(): pass`: a loop that only looks whether something has happened."""
    node = spot.node
    if not isinstance(node, ast.While) or not all(_does_nothing(statement) for statement in node.body):
        return None
    if any(_reads_a_clock(inner) for inner in ast.walk(node.test)):
        return None  # a pause: nobody can tell when it is over
    return Match(
        "busy_waiting",
        "Block until it is ready instead of asking again and again",
        "The loop does nothing but ask whether there is work; it also takes the GIL, or a core, from whoever "
        "does the work.",
        "Block on the queue, pipe, event or future that tells when there is work: get(), wait(), recv(), "
        "result().",
        (0.5, 0.9, 1.0),
        takes="all",
        waits=True,
    )


def _reads_a_clock(node: ast.AST) -> bool:
    clocks = ("time", "monotonic", "perf_counter", "process_time")
    name = dotted(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
    return name.removesuffix("_ns") in clocks


def _does_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Pass | ast.Continue):
        return True
    value = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(value, ast.Await):
        value = value.value
    return isinstance(value, ast.Call) and dotted(value.func).endswith(("sleep", "sched_yield"))


@idiom
def waiting_for_a_lock(spot: Spot) -> Match | None:
    if _is_loop(spot) or spot.asleep < MOSTLY:
        return None
    locks = [
        dotted(inner)
        for inner in ast.walk(spot.node)
        if isinstance(inner, ast.Name | ast.Attribute) and spot.names.of(dotted(inner)) & LOCKS
    ]
    if not locks and not _calls(spot, ".acquire"):
        return None
    return Match(
        "waiting_for_a_lock",
        f"Hold the lock for a shorter time{f' ({locks[0]})' if locks else ''}",
        f"This thread slept {100 * spot.asleep:.0f} % of that time, waiting for whoever holds the lock.",
        "Do the work outside of the lock and take it only to exchange the result; or give each thread a "
        "queue of its own.",
        (0.4, 0.9, 1.0),
        waits=True,
    )


SENDS = frozenset(
    {"send", "send_bytes", "sendall", "put", "put_nowait", "write", "send_pyobj", "send_json", "send_string"}
)
RECEIVES = frozenset(
    {"recv", "recv_bytes", "get", "read", "readline", "recv_pyobj", "recv_json", "recv_string", "recvfrom"}
)


OF_FILES_TOO = frozenset({"write", "read", "readline"})
STREAMS = ("stdin", "stdout", "writer", "reader", "sock", "socket")


@idiom
def answers_one_by_one(spot: Spot) -> Match | None:
    """`for pipe in pipes: pipe.send(x); y = pipe.recv()`: the others wait while one works."""
    if _is_loop(spot):
        return None
    owners = _owners_of(spot.node, RECEIVES)
    if not owners or not (_asked_in_a_loop(spot, owners) or _asks_for_a_loop(spot, owners)):
        return None
    return Match(
        "answers_one_by_one",
        "Send to all workers first, then collect the answers",
        "Each worker gets its message only when the one before has answered: one works, the others wait.",
        "Use two loops: one that sends to every worker, and one that receives from every worker.",
        # Of n workers that take equally long, all but one part in n.
        (0.3, 0.6, 0.9),
        takes="all",
        waits=True,
        helpers=True,
        chills=False,
    )


def _owners_of(node: ast.AST, methods: frozenset[str]) -> list[ast.expr]:
    """Objects whose methods are called; `.get("name")` is that of a dict."""
    return [
        n.func.value
        for n in ast.walk(node)
        if isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr in methods
        and (n.func.attr != "get" or not n.args)
        and (n.func.attr not in OF_FILES_TOO or dotted(n.func.value).endswith(STREAMS))
    ]


def _asked_in_a_loop(spot: Spot, owners: Sequence[ast.expr]) -> bool:
    loop = next((one for one in spot.loops if isinstance(one, ast.For)), None)
    if loop is None or _carries_over(loop):
        return False
    items = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}

    def of_item(owner: ast.AST) -> bool:
        return bool(items & {n.id for n in ast.walk(owner) if isinstance(n, ast.Name)})

    sent = [owner for owner in _owners_of(loop, SENDS) if of_item(owner) and owner.lineno <= spot.line]
    return bool(sent) and any(of_item(owner) for owner in owners)


def _asks_for_a_loop(spot: Spot, owners: Sequence[ast.expr]) -> bool:
    """A function that sends and receives, called for each worker: `[ask(pipe, x) for pipe in pipes]`."""
    function = spot.scope
    if not isinstance(function, ast.FunctionDef) or spot.loops:
        return False
    asked = {dotted(owner) for owner in _owners_of(function, SENDS)} & {dotted(owner) for owner in owners}
    asked = {owner for owner in asked if "?" not in owner}
    words = [a.arg for a in function.args.args]
    is_method = bool(words) and words[0] == "self"
    for call in spot.names.calls_of(function.name):
        items = _items_around(spot, call)
        if is_method and isinstance(call.func, ast.Attribute):
            given = {"self": call.func.value} | dict(zip(words[1:], call.args, strict=False))
        else:
            given = dict(zip(words, call.args, strict=False))
        for owner in asked:
            value = given.get(owner.partition(".")[0])
            if value is not None and items & {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}:
                return True
    return False


def _items_around(spot: Spot, node: ast.AST) -> set[str]:
    """Names that loops and comprehensions around a node, in its function, give to their items."""
    found: set[str] = set()
    above = spot.names.parents.get(node)
    while above is not None and not isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef):
        if isinstance(above, ast.For) and not _carries_over(above):
            found |= {n.id for n in ast.walk(above.target) if isinstance(n, ast.Name)}
        if isinstance(above, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp):
            targets = [n for g in above.generators for n in ast.walk(g.target)]
            found |= {n.id for n in targets if isinstance(n, ast.Name)}
        above = spot.names.parents.get(above)
    return found


@idiom
def talking_to_processes(spot: Spot) -> Match | None:
    """Messages: waiting for an answer is another thing than making them."""
    if _is_loop(spot):
        return None
    call = _calls(
        spot, ".send", ".recv", ".put", ".get_nowait", ".put_nowait", ".send_bytes", ".recv_bytes", "ray.get"
    )
    if (
        call is None
        and not _calls(spot, ".sendall", ".drain", ".readexactly")
        and not any(
            (name.endswith(".get") and spot.names.of(name.rpartition(".")[0]) & QUEUES)
            or (name.endswith(".write") and _is_stream(spot, name.rpartition(".")[0]))
            for name, _ in spot.calls()
        )
    ):
        return None
    if spot.asleep >= MOSTLY:
        return Match(
            "waiting_for_others",
            "Let the other side work ahead, or make it faster",
            f"This thread slept {100 * spot.asleep:.0f} % of that time, waiting for a message.",
            "Look at what the other process or thread does meanwhile. Let it work ahead (a longer queue, the "
            "next request before the answer is used), give it less to do, or do cheap work here.",
            (0.2, 0.6, 0.95),
            effort="hours",
            library_calls=("ray",),
            waits=True,
        )
    return Match(
        "talking_to_processes",
        "Send fewer and smaller messages",
        "Each message is pickled, copied and needs the other process to wake up.",
        "Send several steps at once, send only what is used, put arrays in shared memory, or do cheap work "
        "in this process.",
        (0.15, 0.5, 0.95),
        effort="hours",
        library_calls=("ray",),
        waits=True,
    )


# -- numbers ---------------------------------------------------------------------------------------------


@idiom
def double_precision(spot: Spot) -> Match | None:
    if _is_loop(spot) or not (
        _calls(spot, ".double")
        or any(dotted(n) in ("torch.float64", "torch.double", "th.float64") for n in ast.walk(spot.node))
    ):
        return None
    return Match(
        "double_precision",
        "Compute in float32",
        "float64 takes twice the memory and time.",
        "Convert observations to float32 once and keep networks in float32.",
        (0.3, 0.45, 0.6),
        safety="semantic",
    )


@idiom
def back_and_forth(spot: Spot) -> Match | None:
    if _is_loop(spot):
        return None
    names = [name for name, _ in spot.calls()]
    to_numpy = sum(name.endswith(".numpy") for name in names)
    to_torch = sum(any(_same(name, t) for t in ("torch.from_numpy", *_TENSORS)) for name in names)
    if to_numpy + to_torch < 3:  # one on the way in and one on the way out are needed
        return None
    return Match(
        "back_and_forth",
        "Stay in torch, or stay in numpy",
        "Values are converted between numpy and torch several times.",
        "Convert once at the border (observation in, action out).",
        (0.3, 0.6, 0.8),
    )


@idiom
def state_as_text(spot: Spot) -> Match | None:
    if _is_loop(spot) or not (
        _has(spot.node, ast.JoinedStr)
        or any(
            name in ("str", "repr", "hash")
            or name.endswith((".tobytes", ".tostring", ".hexdigest", "?.join", "?.format"))
            for name, _ in spot.calls()
        )
    ):
        return None
    return Match(
        "state_as_text",
        "Use integers as keys, not text",
        "Values are turned into text or bytes at every pass.",
        "Number the states (ravel_multi_index) and index an array, or use tuples of ints; format text only "
        "when it is printed.",
        (0.5, 0.8, 0.95),
        effort="hours",
    )


@idiom
def introspection(spot: Spot) -> Match | None:
    """Asking the system or the interpreter about itself at every pass."""
    names = (
        *("gc.get_objects", "tracemalloc.take_snapshot", "tracemalloc.get_traced_memory", "inspect.stack"),
        *(
            "inspect.getsource",
            "psutil.virtual_memory",
            "psutil.cpu_percent",
            ".memory_info",
            ".memory_full_info",
        ),
        *("traceback.format_stack", "traceback.extract_stack", "torch.cuda.memory_summary"),
    )
    if _is_loop(spot) or not (
        _calls(spot, *names) or any(name.startswith("psutil.") for name in spot.called[:1])
    ):
        return None
    return Match(
        "introspection",
        "Look at memory, stacks or the system less often",
        "The program asks the system or the interpreter about itself at every pass.",
        "Do it every few seconds, or only while debugging.",
        (0.9, 0.98, 1.0),
    )


@idiom
def garbage(spot: Spot) -> Match | None:
    if _is_loop(spot) or not _calls(spot, "gc.collect", "torch.cuda.empty_cache", "torch.cuda.synchronize"):
        return None
    return Match(
        "garbage",
        "Leave garbage collection to Python",
        "A full collection walks all objects at every pass.",
        "Remove the call.",
        (0.95, 0.99, 1.0),
        walks_memory=True,
    )
