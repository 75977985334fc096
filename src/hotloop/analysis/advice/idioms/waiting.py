"""Waiting, and talking to other threads, processes and machines."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from hotloop.analysis.advice.idioms.callbacks import is_hook
from hotloop.analysis.advice.idioms.questions import call_of, carries_over, is_loop, is_stream
from hotloop.analysis.advice.idioms.registry import Match, idiom
from hotloop.analysis.hot_statements import Spot
from hotloop.analysis.source_names import dotted

MOSTLY = 0.6  # share of a statement's time asleep from which on it is a wait
QUEUES = frozenset({"Queue", "SimpleQueue", "LifoQueue", "PriorityQueue", "JoinableQueue"})
LOCKS = frozenset({"Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition"})
SENDS = frozenset(
    {"send", "send_bytes", "sendall", "put", "put_nowait", "write", "send_pyobj", "send_json", "send_string"}
)
RECEIVES = frozenset(
    {"recv", "recv_bytes", "get", "read", "readline", "recv_pyobj", "recv_json", "recv_string", "recvfrom"}
)
OF_FILES_TOO = frozenset({"write", "read", "readline"})
STREAMS = ("stdin", "stdout", "writer", "reader", "sock", "socket")


BLOCKING_CALLS = (
    *("time.sleep", "requests.get", "requests.post", "requests.put", "subprocess.run", "urlopen"),
    *("subprocess.check_output", ".recv", ".recv_bytes", ".recv_pyobj", ".recv_json", ".recv_string"),
)


@idiom
def blocking_in_a_coroutine(spot: Spot) -> Match | None:
    """`time.sleep(0.01)` or `requests.post(...)` in an `async def`: no other task runs meanwhile."""
    if is_loop(spot) or not isinstance(spot.scope, ast.AsyncFunctionDef) or spot.asleep < MOSTLY:
        return None
    call = call_of(spot, *BLOCKING_CALLS)
    if call is None or any(
        isinstance(spot.names.parents.get(call), kind) for kind in (ast.Await, ast.Lambda)
    ):
        return None
    return Match(
        "blocking_in_a_coroutine",
        f"Await it: {ast.unparse(call.func)} blocks every other task",
        "A call that blocks stops the whole event loop: the other tasks, which could work or wait meanwhile, "
        "stand still.",
        "Use what can be awaited (asyncio.sleep, aiohttp, asyncio streams, zmq.asyncio), or hand it to a "
        "thread: await asyncio.to_thread(...).",
        # Of n tasks that wait equally long, all but one part in n
        (0.3, 0.75, 0.97),
        part=call,
        waits=True,
        chills=False,
    )


@idiom
def sleeping(spot: Spot) -> Match | None:
    if not call_of(spot, "time.sleep", "sleep", "asyncio.sleep") or is_loop(spot):
        return None
    loop = next((loop for loop in spot.loops if isinstance(loop, ast.For | ast.While)), None)
    if loop is None and not is_hook(spot):
        return None  # a device or a service that takes its time
    if loop is None or (isinstance(loop, ast.For) and any(spot.node is one for one in loop.body)):
        return Match(
            "sleeping",
            "Leave out the sleep",
            "Every pass of the loop sleeps, whatever has happened: nothing that it waits for is looked at.",
            "Remove it, or keep it for runs that people watch. If a device or another program needs the "
            "time, wait for its answer instead.",
            (0.8, 0.97, 1.0),
            waits=True,
        )
    return Match(
        "sleeping",
        "Wait for the event instead of sleeping",
        "The loop sleeps for a fixed time and then looks again.",
        "Block on the queue, pipe, condition or future (get(timeout=...), poll, select) that tells when "
        "there is work.",
        (0.8, 0.97, 1.0),
        waits=True,
    )


SERVICES = frozenset(
    {"requests", "socket", "serial", "urlopen", "httpx", "aiohttp", "zmq", "grpc", "paramiko"}
)


@idiom
def held_to_a_clock(spot: Spot) -> Match | None:
    """`time.sleep(self.due - now)` in the step of an env: training goes at the pace of a clock."""
    call = None if is_loop(spot) else call_of(spot, "time.sleep", "sleep")
    if call is None or not call.args or spot.names.mentioned & SERVICES:
        return None  # a device or a service that takes its time
    if not _reads_clocks(spot.scope, call.args[0]) and not _is_time_step(spot, call.args[0]):
        return None
    return Match(
        "held_to_a_clock",
        "Train as fast as it goes: do not hold the loop to a clock",
        "The call sleeps until the next step is due by the clock, or for the time that a step of the "
        "simulation stands for. Training waits along, though nothing happens meanwhile.",
        "Leave the wrapper or the sleep out while training, and keep it for the real device or for people "
        "who watch: a flag that is off by default.",
        (0.85, 0.98, 1.0),
        waits=True,
    )


def _reads_clocks(scope: ast.AST, value: ast.expr) -> bool:
    """Whether a value depends on what a clock said: `self.period - (time.time() - self.last)`."""
    known: set[str] = set()
    while True:
        more = {
            dotted(target)
            for node in ast.walk(scope)
            if isinstance(node, ast.Assign) and _depends(node.value, known)
            for target in node.targets
        } - known
        if not more:
            return _depends(value, known)
        known |= more


def _depends(value: ast.AST, known: set[str]) -> bool:
    return any(_reads_a_clock(n) or dotted(n) in known for n in ast.walk(value))


def _is_time_step(spot: Spot, value: ast.expr) -> bool:
    """`1 / self.fps`, or a number that the arithmetic of a simulation multiplies with: `v * self.dt`."""
    name = dotted(value)
    if isinstance(value, ast.BinOp):
        return isinstance(value.op, ast.Div) and isinstance(value.left, ast.Constant)
    if "." not in name or "?" in name:
        return False
    return any(
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Mult)
        and name in (dotted(node.left), dotted(node.right))
        for tree in spot.names.trees
        for node in ast.walk(tree)
    )


@idiom
def frame_rate_limit(spot: Spot) -> Match | None:
    """`clock.tick(60)` in the step of a game: it sleeps so that people can watch."""
    if is_loop(spot) or not _limits_frames(spot):
        return None
    return Match(
        "frame_rate_limit",
        "Train without a limit on frames per second",
        "The call waits so that the game runs at a speed that people can follow; training waits along.",
        "Leave it out while training: pass a flag, or clock.tick() without a rate, which only measures.",
        (0.85, 0.97, 1.0),
        waits=True,
        chills=False,
    )


def _limits_frames(spot: Spot) -> bool:
    for name, call in spot.calls():
        owner, _, method = name.rpartition(".")
        rate = next(iter([*call.args, *(k.value for k in call.keywords)]), None)
        if rate is None or (isinstance(rate, ast.Constant) and not rate.value):
            continue
        if method in ("tick", "tick_busy_loop"):
            # Pygame's; the world of a simulator ticks, too
            clock = owner.rpartition(".")[2].lower().endswith("clock")
            if "Clock" in spot.names.of(owner) or (clock and spot.asleep >= MOSTLY):
                return True
        if name in ("pygame.time.wait", "pygame.time.delay", "pg.time.wait", "pg.time.delay", "cv2.waitKey"):
            return True
    return False


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
    if is_loop(spot) or spot.asleep < MOSTLY:
        return None
    locks = [
        dotted(inner)
        for inner in ast.walk(spot.node)
        if isinstance(inner, ast.Name | ast.Attribute) and spot.names.of(dotted(inner)) & LOCKS
    ]
    if not locks and not call_of(spot, ".acquire"):
        return None
    return Match(
        "waiting_for_a_lock",
        f"Hold the lock for a shorter time{f' ({locks[0]})' if locks else ''}",
        f"This thread slept {100 * spot.asleep:.0f} % of that time, waiting for whoever holds the lock.",
        "Do the work outside of the lock and take it only to exchange the result; or give each thread "
        "its own queue.",
        (0.4, 0.9, 1.0),
        waits=True,
    )


@idiom
def answers_one_by_one(spot: Spot) -> Match | None:
    """`for pipe in pipes: pipe.send(x); y = pipe.recv()`: the others wait while one works."""
    if is_loop(spot):
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
    if loop is None or carries_over(loop):
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
        if isinstance(above, ast.For) and not carries_over(above):
            found |= {n.id for n in ast.walk(above.target) if isinstance(n, ast.Name)}
        if isinstance(above, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp):
            targets = [n for g in above.generators for n in ast.walk(g.target)]
            found |= {n.id for n in targets if isinstance(n, ast.Name)}
        above = spot.names.parents.get(above)
    return found


@idiom
def talking_to_processes(spot: Spot) -> Match | None:
    """Messages: waiting for an answer is another thing than making them."""
    if is_loop(spot) or bytes_one_by_one(spot) is not None:
        return None
    call = call_of(
        spot, ".send", ".recv", ".put", ".get_nowait", ".put_nowait", ".send_bytes", ".recv_bytes", "ray.get"
    )
    if (
        call is None
        and not call_of(spot, ".sendall", ".drain", ".readexactly")
        and not any(
            (name.endswith(".get") and spot.names.of(name.rpartition(".")[0]) & QUEUES)
            or (name.endswith(".write") and is_stream(spot, name.rpartition(".")[0]))
            for name, _ in spot.calls()
        )
    ):
        return None
    if spot.asleep >= MOSTLY and call_of(spot, "ray.get"):
        return Match(
            "waiting_for_others",
            "Let Ray's workers work ahead, or make them faster",
            f"This thread slept {100 * spot.asleep:.0f} % of that time, waiting for results of Ray.",
            "The picture of the whole system says for whom, and what that one does meanwhile: make it "
            "faster, or give it less. Results can be used as they come (ray.wait), and the next tasks be "
            "submitted before these results are used; what is learned then is from older weights. Tasks "
            "that mostly wait to start need workers that run already: keep actors, submit fewer and longer "
            "tasks.",
            (0.2, 0.6, 0.95),
            safety="semantic",
            effort="hours",
            library_calls=("ray",),
            waits=True,
            chills=False,
        )
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


@idiom
def loop_for_each_call(spot: Spot) -> Match | None:
    """`asyncio.run(client.step(action))` in a step: an event loop for a single request."""
    call = call_of(spot, "asyncio.run")
    if is_loop(spot) or call is None or spot.function.rpartition(".")[2] in ("main", "run", "cli"):
        return None
    if spot.function == "<module>" and not spot.loops:
        return None
    return Match(
        "loop_for_each_call",
        "Keep one event loop, do not make a new one for every call",
        "asyncio.run makes an event loop with its selector and sockets, cancels what is left and takes it "
        "down again.",
        "Run the whole program in one asyncio.run(main()), or keep a loop (asyncio.Runner, "
        "loop.run_until_complete); for one request at a time plain blocking sockets are faster still.",
        (0.4, 0.8, 0.97),
        part=call,
        takes="own",
        library_calls=("asyncio",),
        chills=False,
    )


@idiom
def shared_by_elements(spot: Spot) -> Match | None:
    """`weights[i] = shared[i]` of a multiprocessing.Array: a lock and a conversion for each number."""
    if not any(name.startswith("multiprocessing.sharedctypes") for name in spot.called[:2]):
        return None
    if not any(isinstance(n, ast.Subscript) for n in ast.walk(spot.node)):
        return None
    return Match(
        "shared_by_elements",
        "Look at the shared array through NumPy, not element by element",
        "Each access takes a lock and turns one C number into a Python object, or back.",
        "Make a view once: np.frombuffer(shared.get_obj(), dtype=...), and copy whole arrays under one lock.",
        (0.7, 0.97, 1.0),
    )


@idiom
def bytes_one_by_one(spot: Spot) -> Match | None:
    """`data += sock.recv(1)` until the line ends: a system call for each byte."""
    if is_loop(spot) or not spot.loops:
        return None
    for name, call in spot.calls():
        size = call.args[0] if call.args else None
        if (
            name.endswith((".recv", ".read"))
            and isinstance(size, ast.Constant)
            and isinstance(size.value, int)
            and 0 < size.value <= 4
        ):
            return Match(
                "bytes_one_by_one",
                "Read messages in large pieces",
                "Each call asks the system for a few bytes only.",
                "Use sock.makefile('rb').readline(), or recv(65536) into a buffer, and cut messages there.",
                (0.5, 0.9, 0.99),
                waits=True,
            )
    return None
