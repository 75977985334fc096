"""What is paid again for every request or job: a new connection, data that never change."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotloop.analysis.advice.idioms import IDIOMS, Match
from hotloop.analysis.advice.side_effects import names_mutated, purity_of, with_views
from hotloop.analysis.advice.statements import loop_targets, names_stored, simple_statements
from hotloop.analysis.hot_statements import LOOPS, Spot
from hotloop.analysis.source_names import dotted

OPENS = frozenset(
    {"open_connection", "open_unix_connection", "create_connection", "urlopen", "HTTPConnection"}
    | {"ClientSession", "ServerProxy", "insecure_channel", "zmq.Context"}
)
HANDED_OUT = frozenset(
    {"map", "imap", "imap_unordered", "starmap", "map_async", "starmap_async", "apply_async", "apply"}
    | {"submit"}
)
POOLS = frozenset({"Pool", "ProcessPoolExecutor", "Parallel"})
THREADS = frozenset({"ThreadPoolExecutor", "ThreadPool"})  # they share memory: nothing is sent
SMALL = frozenset({"int", "float", "str", "bool", "NoneType"})


def connection_each_time(spot: Spot) -> Match | None:
    """A request that opens a connection, asks, and closes it again."""
    if isinstance(spot.node, LOOPS) or not isinstance(spot.node, ast.stmt):
        return None
    opening = {dotted(n.func) for n in ast.walk(spot.scope) if isinstance(n, ast.Call)}
    opened = next((name for name in sorted(opening) if _opens(spot, name)), None)
    if opened is None:
        return None
    names = [name for name, _ in spot.calls()]
    ends = (".wait_closed", ".close", ".connect", ".shutdown")
    if not any(_opens(spot, name) or name.endswith(ends) for name in names):
        return None
    return Match(
        "connection_each_time",
        "Keep one connection open, do not open a new one for every request",
        f"{opened} is called for every request: both sides make a socket, register it, and take it down "
        "again, which costs more than the message.",
        "Open the connection once (in the constructor, or at the first request), keep it, and close it at "
        "the end.",
        (0.4, 0.93, 1.0),
        also_called=(
            *("asyncio.runners.", "asyncio.base_events.", "socketserver."),
            *("asyncio.streams.StreamWriter.close", "asyncio.streams.StreamWriter.wait_closed"),
        ),
        helpers=True,
    )


def _opens(spot: Spot, name: str) -> bool:
    owner, _, last = name.rpartition(".")
    if last in OPENS or name in OPENS:
        return True
    if owner in ("requests", "httpx") and last in ("get", "post", "put", "request"):
        return True
    if owner in ("sqlite3", "psycopg2") and last == "connect":
        return True
    return last == "connect" and bool(spot.names.of(owner) & {"socket", "create_connection"})


def constants_in_every_job(spot: Spot) -> Match | None:
    """`pool.map(f, [(x, table) for x in xs])`: the table is pickled into every job."""
    if isinstance(spot.node, LOOPS) or not isinstance(spot.node, ast.stmt):
        return None
    for name, call in spot.calls():
        owner, _, last = name.rpartition(".")
        kinds = spot.names.of(owner)
        if last not in HANDED_OUT or kinds & THREADS or not (kinds & POOLS or _is_pool(owner)):
            continue
        carried = [
            ast.unparse(one)
            for one in _carried(spot, call)
            if _is_large(spot, one) and _never_changes(spot, one)
        ]
        if not carried:
            continue
        return Match(
            "constants_in_every_job",
            f"Send {', '.join(dict.fromkeys(carried))} to the workers once, not with every job",
            "It never changes, but it is pickled, sent through a pipe and unpickled again for every job, "
            "while the workers wait.",
            "Hand it over once: Pool(initializer=..., initargs=(...,)) that sets a global, a global set "
            "before the fork, or shared memory (multiprocessing.shared_memory, np.memmap).",
            (0.3, 0.85, 1.0),
            takes="own",
            waits=True,
            chills=False,
        )
    return None


MOST_ASLEEP = 0.6  # part of that time in which neither this thread nor a worker was awake
LEAST_WAITED = 0.25  # share of training at which handing jobs over takes more than their work
LEAST_PLACE = 0.05  # of one statement that hands them over or collects them
IN_THREADS = ("run_in_executor", "to_thread")  # of asyncio


def jobs_too_small(spot: Spot) -> Match | None:
    """`pool.map(f, xs)` with jobs that take less time than it takes to send them."""
    if isinstance(spot.node, LOOPS) or not isinstance(spot.node, ast.stmt) or spot.share < LEAST_PLACE:
        return None
    if spot.asleep > MOST_ASLEEP:
        return None  # nobody was seen passing messages: what the workers do is not known
    calls = list(spot.calls())
    if any(name.endswith((".result", ".get")) for name, _ in calls) and _is_result(spot):
        calls += [
            (dotted(n.func), n)
            for n in ast.walk(spot.scope)
            if isinstance(n, ast.Call) and dotted(n.func).endswith((".submit", ".apply_async"))
        ]
    for name, call in calls:
        owner, _, last = name.rpartition(".")
        kinds = spot.names.of(owner)
        in_loop_threads = last in IN_THREADS and _is_quick(spot, call)
        if in_loop_threads:
            kinds, last = THREADS, "map"
        if last not in HANDED_OUT or not (kinds & (POOLS | THREADS) or _is_pool(owner)):
            continue
        if last in ("apply", "submit", "apply_async") and not spot.loops:
            continue
        small = (
            "chunksize=..., "
            if not kinds & THREADS and last in ("map", "imap", "imap_unordered", "starmap")
            else ""
        )
        threads = bool(kinds & THREADS)
        return Match(
            "jobs_too_small",
            f"Hand out fewer and larger jobs, or do them here ({ast.unparse(call.func)})",
            "Most of that time nobody works on a job: "
            + (
                "threads take turns at running Python code, and waking them up costs more than the work."
                if threads
                else "jobs and results are pickled, sent and waited for one by one."
            ),
            f"Give each worker one large job ({small}a slice of the population), send only what is needed, "
            "or call the function in this process if a job takes less than a millisecond.",
            (0.3, 0.75, 0.95),
            takes="own",
            waits=True,
            waits_for_own=threads,
            chills=False,
            least=LEAST_WAITED,
            # The event loop wakes up for each answer, and waits for the thread
            also_called=("asyncio.",) if in_loop_threads else (),
        )
    return None


def _is_result(spot: Spot) -> bool:
    """Whether it waits for jobs of a pool: `future.result()`, `job.get()`."""
    return any(name.startswith(("concurrent.futures.", "multiprocessing.pool.")) for name in spot.called)


BLOCKS = ("sleep", "recv", "read", "get", "post", "wait", "run", "urlopen", "request", "open", "acquire")


def _is_quick(spot: Spot, call: ast.Call) -> bool:
    """Whether a job for a thread of asyncio is a function of the script that only computes in Python."""
    given = [dotted(one).rpartition(".")[2] for one in call.args[:2]]
    function = next((spot.names.functions[name] for name in given if name in spot.names.functions), None)
    if function is None:
        return False
    called = {dotted(n.func).rpartition(".")[2] for n in ast.walk(function) if isinstance(n, ast.Call)}
    return not called & {*BLOCKS}


def _never_changes(spot: Spot, value: ast.expr) -> bool:
    """Whether no statement of the loop around, but the one that hands jobs out, may change it."""
    if isinstance(value, ast.Attribute):
        return dotted(value).startswith("self.") and spot.names.is_set_once(dotted(value))
    loop = next((one for one in spot.loops if isinstance(one, LOOPS)), None)
    if loop is None:
        return False
    others = [s for s in simple_statements(loop) if s is not spot.node]
    changed = {n for s in others for n in (*names_stored(s), *names_mutated(s, purity_of(spot)))}
    return dotted(value) not in with_views(spot.scope, changed | loop_targets(loop))


def _is_pool(owner: str) -> bool:
    return owner.rpartition(".")[2] in ("pool", "executor", "workers", "ex", "exe")


def _carried(spot: Spot, call: ast.Call) -> Iterator[ast.expr]:
    """Names that every job carries: those that do not depend on the item."""
    local = _assigned_in(spot)
    for given in call.args[1:]:
        value = local.get(given.id, given) if isinstance(given, ast.Name) else given
        comprehensions = [n for n in ast.walk(value) if isinstance(n, ast.ListComp | ast.GeneratorExp)]
        if isinstance(value, ast.ListComp | ast.GeneratorExp):
            bound = {n.id for g in value.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
            parts = value.elt.elts if isinstance(value.elt, ast.Tuple | ast.List) else []
            yield from (p for p in parts if isinstance(p, ast.Name | ast.Attribute) and _root(p) not in bound)
        elif not comprehensions:
            for inner in ast.walk(value):
                if isinstance(inner, ast.Call) and dotted(inner.func).endswith("repeat"):
                    yield from (e for e in inner.args[:1] if isinstance(e, ast.Name | ast.Attribute))
                if isinstance(inner, ast.BinOp) and isinstance(inner.left, ast.List):  # [table] * n
                    yield from (e for e in inner.left.elts if isinstance(e, ast.Name | ast.Attribute))
    last = dotted(call.func).rpartition(".")[2]
    if last in ("submit", "apply_async", "apply"):
        parts = list(call.args[1:])
        if last != "submit" and parts and isinstance(parts[0], ast.Tuple):
            parts = list(parts[0].elts)
        yield from (p for p in parts if isinstance(p, ast.Name | ast.Attribute))
    if call.args and isinstance(call.args[0], ast.Call) and dotted(call.args[0].func).endswith("partial"):
        words = [k.value for k in call.args[0].keywords]
        filled = [*call.args[0].args[1:], *words]
        yield from (p for p in filled if isinstance(p, ast.Name | ast.Attribute))


def _assigned_in(spot: Spot) -> dict[str, ast.expr]:
    """Values of local names that are assigned once in the function: `jobs = [(x, table) for x in xs]`."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(spot.scope):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def _root(node: ast.AST) -> str:
    return dotted(node).partition(".")[0]


def _is_large(spot: Spot, node: ast.expr) -> bool:
    """Not a number, a name or a function: an array, a container, or what some call made."""
    name = dotted(node)
    kinds = spot.names.of(name)
    if name in spot.names.functions or kinds & SMALL:
        return False
    return bool(kinds)


IDIOMS.append(jobs_too_small)
IDIOMS[:0] = [connection_each_time, constants_in_every_job]  # before json, which such requests often carry
