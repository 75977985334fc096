"""Objects made again and again: networks, optimizers, distributions, environments, processes."""

from __future__ import annotations

import ast
import re

from hotloop.analysis.advice.idioms.loops import is_compiled
from hotloop.analysis.advice.idioms.questions import call_of, called_names, comprehensions, is_loop, is_same
from hotloop.analysis.advice.idioms.registry import Match, idiom
from hotloop.analysis.hot_statements import Spot
from hotloop.analysis.source_names import dotted

CONVERSIONS = frozenset(
    {"to", "astype", "float", "long", "unsqueeze", "view", "reshape", "double", "int", "repeat", "expand"}
)


@idiom
def optimizer_each_time(spot: Spot) -> Match | None:
    if not spot.loops and spot.function == "<module>":
        return None
    if is_loop(spot) or not any(
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
    if is_loop(spot) or not (made or uses):
        return None
    diagonal = any(
        name.rpartition(".")[2] in ("diag", "diag_embed", "eye") for name in called_names(spot.scope)
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
    if is_loop(spot) or not (
        call_of(spot, *names) or any("distributions" in name for name in spot.called[:2])
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
    if is_loop(spot) or (not spot.loops and spot.function == "<module>"):
        return None
    generators = ("numpy.random.default_rng", "numpy.random.RandomState", "torch.Generator", "random.Random")
    seeds = ("numpy.random.seed", "random.seed", "torch.manual_seed", "torch.random.manual_seed")
    if call_of(spot, *generators) or (isinstance(spot.node, ast.Expr) and call_of(spot, *seeds)):
        what, why = "the random generator", "Seeding a generator takes longer than most draws."
    elif call_of(
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
    elif (
        any(name.endswith((".eval", ".train")) and not call.args for name, call in spot.calls())
        and _is_all_of(spot, (".eval", ".train"))
        and (not spot.called or spot.called[0].startswith("torch.nn."))  # a trainer has a `train`, too
    ):
        what, why = "the mode of the network", "train() and eval() walk through all modules in Python."
    elif _makes_a_space(spot):
        what, why = "the space", "A space fills arrays with its bounds and checks them each time it is made."
    elif call_of(spot, "SharedMemory") and not spot.function.endswith("__init__"):
        what, why = "the handle of the shared memory", "Opening it maps the memory anew at every pass."
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
            ".spaces.",
        ),
    )


SPACES = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple")


def _makes_a_space(spot: Spot) -> bool:
    """`return spaces.Box(...)`, as a property that every step asks for."""
    made = any(name.rpartition(".")[2] in SPACES for name, _ in spot.calls())
    method = spot.function.rpartition(".")[2]
    return made and method != "__init__" and any(".spaces." in name for name in spot.called)


def _is_all_of(spot: Spot, ends: tuple[str, ...]) -> bool:
    """Whether the statement is nothing but a call of such a method."""
    value = spot.node.value if isinstance(spot.node, ast.Expr) else None
    return isinstance(value, ast.Call) and dotted(value.func).endswith(ends)


def _makes_constants_only(spot: Spot) -> bool:
    """Whether all that the statement computes is made of settings: what else it does would stay."""
    calls = list(spot.calls())
    made = [call for name, call in calls if _is_constant(name, call)]
    rest = [name for name, call in calls if call not in made]
    return bool(made) and all(name.rpartition(".")[2] in CONVERSIONS for name in rest)


def _is_constant(name: str, call: ast.Call) -> bool:
    """`torch.arange(0, self.n)`, `np.eye(N)`: made of settings alone."""
    made = ("arange", "linspace", "eye", "tril", "triu", "meshgrid", "logspace", "hanning", "indices")
    if not any(is_same(name, f"{library}.{function}") for library in ("numpy", "torch") for function in made):
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
    if is_loop(spot) or not call_of(
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
    if is_loop(spot) or not spot.loops or not isinstance(spot.node, ast.Expr):
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
    builds = call_of(spot, "DataLoader", "TensorDataset")
    fetches = any("utils.data" in name for name in spot.called)
    if is_loop(spot) or not (builds or fetches):
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
    if is_loop(spot) or not (
        _starts_or_joins(spot)
        or call_of(
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
        )
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


def _asks_for_the_job_just_started(spot: Spot) -> bool:
    """`job = pool.apply_async(f, x)` and then `job.get()` in the same pass of a loop."""
    loop = spot.loops[0] if spot.loops else None
    if not isinstance(loop, ast.For | ast.While):
        return False
    jobs = {
        dotted(target)
        for s in loop.body
        if isinstance(s, ast.Assign) and isinstance(s.value, ast.Call)
        for target in s.targets
        if dotted(s.value.func).rpartition(".")[2] in ("apply_async", "submit", "remote")
    }
    return any(
        name.rpartition(".")[0] in jobs and name.endswith((".get", ".result")) for name, _ in spot.calls()
    )


STARTED = ("Process", "Thread", "Popen")


def _starts_or_joins(spot: Spot) -> bool:
    """`worker.start()` in a loop that makes the worker: started again at every pass."""
    if not any(name.endswith((".start", ".join")) and not call.args for name, call in spot.calls()):
        return False
    if not any("threading." in name or "multiprocessing." in name for name in spot.called):
        return False
    makes = [
        loop for loop in spot.loops if any(name.rpartition(".")[2] in STARTED for name in called_names(loop))
    ]
    # The loop that makes the workers of one round, and one around it that repeats the round
    return len(makes) > len([loop for loop in makes[:1] if _only_starts(loop)])


def _only_starts(loop: ast.AST) -> bool:
    """`for i in range(n): w = Process(...); w.start(); workers.append(w)`"""
    ends = {name.rpartition(".")[2] for name in called_names(loop)}
    return not ends & {"join", "get", "recv", "wait"}


@idiom
def jobs_one_by_one(spot: Spot) -> Match | None:
    """`pool.submit(f, x).result()` or `pool.apply(f)` in a loop: the workers take turns."""
    if is_loop(spot) or not (spot.loops or list(comprehensions(spot.node))):
        return None
    names = [name for name, _ in spot.calls()]
    at_once = any(
        name == "ray.get" and call.args and isinstance(call.args[0], ast.Call)
        for name, call in spot.calls()
        if "remote" in {inner.rpartition(".")[2] for inner in called_names(call)}
    )
    if not (
        at_once
        or _asks_for_the_job_just_started(spot)
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


@idiom
def list_for_compiled_code(spot: Spot) -> Match | None:
    """`hits = cast(x, y, numba.typed.List(self.trees))`: each item is unboxed, and again at every call."""
    if is_loop(spot) or spot.function.rpartition(".")[2] in ("__init__", "reset"):
        return None
    if spot.function == "<module>" and not spot.loops:
        return None
    made = {
        dotted(target)
        for node in ast.walk(spot.scope)
        if isinstance(node, ast.Assign) and _makes_a_typed_list(spot, node.value)
        for target in node.targets
    }
    makes = any(_makes_a_typed_list(spot, call) for _, call in spot.calls())
    calls = [call for name, call in spot.calls() if is_compiled(spot, name)]
    given = {dotted(argument) for call in calls for argument in call.args}
    lists = {name for name in given if spot.names.of(name) == {"list"} and not _holds_arrays(spot, name)}
    if not makes and not given & (made | lists):
        return None
    return Match(
        "list_for_compiled_code",
        "Give compiled functions an array, not a list that is converted at each call",
        "Numba takes every item of a Python list out of its box and copies it, whenever "
        "the list is handed over "
        "or a typed List is made of it; reading a typed List costs a call for each item, too.",
        "Keep the values in one NumPy array (np.stack([xs, ys], 1)), made where they "
        "change, such as in reset(), "
        "and pass that.",
        (0.5, 0.9, 0.98),
        library_calls=("numba",),
    )


def _makes_a_typed_list(spot: Spot, value: ast.AST) -> bool:
    """`List(items)` of numba.typed; one without arguments is filled later."""
    if not isinstance(value, ast.Call) or not value.args:
        return False
    name = dotted(value.func)
    if name.endswith("typed.List"):
        return True
    return name == "List" and any(
        isinstance(node, ast.ImportFrom) and (node.module or "").startswith("numba")
        for tree in spot.names.trees
        for node in ast.walk(tree)
    )


def _holds_arrays(spot: Spot, name: str) -> bool:
    """Whether a list may be one of a few arrays, which are handed over as they are."""
    values = [
        node.value
        for tree in spot.names.trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and any(dotted(target) == name for target in node.targets)
    ]
    return any(isinstance(value, ast.List) and value.elts for value in values)
