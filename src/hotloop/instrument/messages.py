"""Logs which thread sent, received and waited when, so that what-ifs can replay the run.

Pipes, queues, semaphores, locks between processes, barriers, condition variables, executors, and collectives
of torch.distributed. Only outermost operations count: what a queue does inside is its own business. One costs
about two microseconds. Nothing is logged in processes without a capture folder.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time
from collections.abc import Callable
from struct import Struct
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hotloop._util.files import host_name, write_atomically
from hotloop._util.interrupts import is_users, suppress_own
from hotloop._util.read_files import json_text
from hotloop.capture.message_format import (
    FOLDER,
    HEADER_BYTES,
    MAGIC,
    MEET,
    MOST_EDGES,
    PEEK,
    RECEIVE,
    RECORD_BYTES,
    RECORDS,
    SEND,
    WAIT,
    WAKE,
)
from hotloop.capture.virtual import VirtualPlan
from hotloop.instrument.libraries import Instrumentation
from hotloop.instrument.patch import Patch, Patches
from hotloop.measure.core_shared import RECORD_TIMELINE
from hotloop.measure.profiler import default

if TYPE_CHECKING:
    from hotloop.measure.virtual_speedup import VirtualSpeedup

_now = time.monotonic_ns
_record = Struct("<qqIIII").pack_into
_count = Struct("<Q").pack_into
_EDGE = "_hotloop_edge"  # attribute of an object: its index in the log's edges
_NO_EDGE = -1
MOST_CONDITIONS = 64  # every thread has one
OWN_CONDITIONS = 48


class MessageLog:
    """The log of this process; opened at its first message, and again in a forked child."""

    def __init__(self) -> None:
        self.edges: list[dict[str, Any]] = []
        self._by_key: dict[str, int] = {}
        self._counts: dict[tuple[int, int], int] = {}
        self._total = 0
        self._pid = 0
        self._ring: mmap.mmap | None = None
        self._name = ""
        self._lock = threading.RLock()  # a signal handler may send something while we write
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()

    def edge(self, key: str, kind: str, **facts: Any) -> int:
        """The index of an edge, which is added if it is new; -1 if there are too many."""
        with self._lock:
            found = self._by_key.get(key)
            if found is not None:
                return found
            if len(self.edges) >= (MOST_EDGES if kind != "condition" else MOST_CONDITIONS):
                return _NO_EDGE
            number = self._by_key[key] = len(self.edges)
            self.edges.append({"key": key, "kind": kind, **facts})
            if self._pid == os.getpid():
                self._save_edges()
            return number

    def write(self, edge: int, kind: int, begin_ns: int, end_ns: int) -> None:
        """Log one operation of the calling thread; failures are swallowed, as the program must go on."""
        if edge < 0:
            return
        try:
            with self._lock:
                if self._pid != os.getpid():
                    self._open()
                if self._ring is None:
                    return
                count = self._counts[edge, kind] = self._counts.get((edge, kind), 0) + 1
                place = HEADER_BYTES + self._total % RECORDS * RECORD_BYTES
                thread = threading.get_native_id()
                _record(self._ring, place, begin_ns, end_ns, thread, edge, kind, count & 0xFFFFFFFF)
                self._total += 1
                _count(self._ring, 8, self._total)
        except Exception as error:
            if is_users(error):
                raise

    def _open(self) -> None:
        self._pid = os.getpid()
        self._counts, self._total, self._ring = {}, 0, None
        folder = default.folder
        if folder is None or not default.is_recording:
            return
        with suppress_own(OSError, ValueError):
            place = folder / FOLDER
            place.mkdir(parents=True, exist_ok=True)
            self._name = f"{host_name()}-{self._pid}-{time.time_ns()}"
            size = HEADER_BYTES + RECORDS * RECORD_BYTES
            with open(place / f"{self._name}.log", "w+b") as file:
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk fails here, not later
                self._ring = mmap.mmap(file.fileno(), size)
            self._ring[:8] = MAGIC
            self._ring[16:24] = RECORDS.to_bytes(8, "little")
            self._save_edges()
            default.recorder.flags |= RECORD_TIMELINE  # which regions lie between two messages

    def _save_edges(self) -> None:
        folder = default.folder
        if folder is None or not self._name:
            return
        with suppress_own(OSError):
            text = json_text({"pid": self._pid, "edges": self.edges}, indent=None)
            write_atomically(folder / FOLDER / f"{self._name}.json", text)


log = MessageLog()
virtual: VirtualSpeedup | None = None  # the experiment of `hotloop run --what-if`


def begin_virtual_speedup(plan: dict[str, Any]) -> None:
    """Make the regions of a plan virtually faster in turn, from now on and in forked children."""
    global virtual
    from hotloop.measure.virtual_speedup import (
        VirtualSpeedup,  # imports numpy, which scripts may want to set up
    )

    if default.folder is not None:
        made = VirtualPlan(**(plan | {"regions": tuple(plan["regions"])}))
        virtual = VirtualSpeedup(made, default.folder, default.recorder)


class _Local(threading.local):
    inside = False  # an operation that is being logged
    run_ended_ns = 0  # of an executor's worker
    owed = 0.0  # delay at that time


_local = _Local()
EdgeOf = Callable[[Any], int]


def _logged(kind: int, edge_of: EdgeOf, *, after: bool = False) -> Callable[[Any], Any]:
    """Wrap a method so that its outermost calls are logged; `after`: it counts as a moment at its end."""

    def make(f: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _local.inside:
                return f(self, *args, **kwargs)
            _local.inside = True
            try:
                owed = virtual.pay() if virtual is not None else 0.0
                begin = _now()
                found = f(
                    self, *args, **kwargs
                )  # an empty or full queue raises: then nothing was sent or taken
                end = _now()
            finally:
                _local.inside = False
            edge = getattr(self, _EDGE, None)
            if edge is None:
                edge = _find_edge(self, edge_of)
            log.write(edge, kind, end if after else begin, end)
            if virtual is not None:
                virtual.woken(owed, begin, end)
            return found

        return call

    return make


def _find_edge(thing: Any, edge_of: EdgeOf) -> int:
    edge = _NO_EDGE
    with suppress_own(Exception):
        edge = edge_of(thing)
        setattr(thing, _EDGE, edge)
    return edge


# -- pipes and queues between processes ------------------------------------------------------------


def _inode(descriptor: int) -> str:
    return f"inode {os.fstat(descriptor).st_ino}"


_ends: dict[str, str] = {}  # of duplex pipes: one end -> the other


def _connection_edge(connection: Any) -> int:
    key = _inode(connection.fileno())
    return log.edge(key, "pipe", peer=_ends.get(key))


def patch_connection(module: ModuleType, into: Patches) -> None:
    """`multiprocessing.connection`: pipes, one message at a time, and waiting for several of them."""
    into.apply(
        [
            Patch(module.Connection, "send", _logged(SEND, _connection_edge)),
            Patch(module.Connection, "recv", _logged(RECEIVE, _connection_edge)),
            Patch(module.Connection, "poll", _polling),
            Patch(module, "Pipe", _pairing),
            Patch(module, "Client", _unlogged_connection),
            Patch(module.SocketListener, "accept", _unlogged_connection),
            Patch(module, "wait", _waiting_for_any),
        ]
    )


def _unlogged_connection(f: Any) -> Any:
    """Connections to servers, such as those that pass file descriptors on: one for each, and soon closed."""

    def connect(*args: Any, **kwargs: Any) -> Any:
        made = f(*args, **kwargs)
        with suppress_own(Exception):
            setattr(made, _EDGE, _NO_EDGE)
        return made

    return connect


def _pairing(pipe: Any) -> Any:
    def make(duplex: bool = True) -> Any:
        ends = pipe(duplex)
        if duplex:
            with suppress_own(Exception):
                first, second = (_inode(end.fileno()) for end in ends)
                _ends[first], _ends[second] = second, first
        return ends

    return make


def _polling(poll: Any) -> Any:
    def call(self: Any, timeout: float | None = 0.0) -> Any:
        if timeout == 0.0 or _local.inside:
            return poll(self, timeout)
        return _logged(PEEK, _connection_edge)(poll)(self, timeout)

    return call


def _waiting_for_any(wait: Any) -> Any:
    def call(object_list: Any, timeout: float | None = None) -> Any:
        if timeout == 0.0 or _local.inside:
            return wait(object_list, timeout)
        owed = virtual.pay() if virtual is not None else 0.0
        begin = _now()
        ready = wait(object_list, timeout)
        if virtual is not None:
            virtual.woken(owed, begin, _now())
        for one in ready[:1]:
            if hasattr(one, "recv"):
                log.write(_find_edge(one, _connection_edge), PEEK, begin, _now())
        return ready

    return call


_READER = (
    "_hotloop_reader"  # attribute of a queue: its inode, as workers of a pool close the end they do not use
)


def _queue_edge(queue: Any) -> int:
    key = getattr(queue, _READER, None) or _inode(queue._reader.fileno())
    return log.edge(key, "queue", capacity=_bound(getattr(queue, "_maxsize", 0)))


def _knowing_reader(f: Any) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        f(self, *args, **kwargs)
        with suppress_own(Exception):
            setattr(self, _READER, _inode(self._reader.fileno()))

    return __init__


def _bound(maxsize: Any) -> int | None:
    # multiprocessing's queues without a limit have that of a semaphore
    return int(maxsize) if 0 < int(maxsize) < 1 << 20 else None


def patch_queues(module: ModuleType, into: Patches) -> None:
    """`multiprocessing.queues`."""
    for queue in (module.Queue, module.SimpleQueue):
        into.apply(
            [
                Patch(queue, "get", _logged(RECEIVE, _queue_edge)),
                Patch(queue, "put", _logged(SEND, _queue_edge)),
            ]
        )
    into.apply(
        [
            Patch(module.Queue, "_feed", _unlogged),
            Patch(module.SimpleQueue, "__init__", _knowing_reader),
        ]
    )


def _unlogged(f: Any) -> Any:
    """The thread behind a queue only passes on what was put."""

    def run(*args: Any, **kwargs: Any) -> Any:
        _local.inside = True
        return f(*args, **kwargs)

    return run


# -- semaphores, locks and barriers ----------------------------------------------------------------


def _semaphore_edge(lock: Any) -> int:
    inner = lock._semlock
    key = (
        f"semaphore {inner.name or hex(inner.handle)}"  # without a name it is inherited, at the same address
    )
    tokens = getattr(lock, _TOKENS, 1)
    return log.edge(key, "lock" if inner.maxvalue == 1 else "semaphore", tokens=tokens)


_TOKENS = "_hotloop_tokens"


def patch_synchronize(module: ModuleType, into: Patches) -> None:
    """`multiprocessing.synchronize`: semaphores and locks between processes; not those of an RLock."""

    def with_tokens(f: Any) -> Any:
        def __init__(self: Any, kind: int, value: int, maxvalue: int, **more: Any) -> None:
            setattr(self, _TOKENS, value)
            f(self, kind, value, maxvalue, **more)

        return __init__

    def logging(f: Any) -> Any:
        def _make_methods(self: Any) -> None:
            f(self)
            if self._semlock.kind == module.SEMAPHORE:
                take, give = self.acquire, self.release
                self.acquire = _tokens(self, take, RECEIVE)
                self.release = _tokens(self, give, SEND)

        return _make_methods

    def _enter(f: Any) -> Any:
        return lambda self: self.acquire()

    def _exit(f: Any) -> Any:
        return lambda self, *args: self.release()

    into.apply(
        [
            Patch(module.SemLock, "__init__", with_tokens),
            Patch(module.SemLock, "_make_methods", logging),
            Patch(module.SemLock, "__enter__", _enter),
            Patch(module.SemLock, "__exit__", _exit),
        ]
    )


def _tokens(lock: Any, f: Any, kind: int) -> Any:
    """`acquire` takes a token, if it succeeds, and `release` adds one."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if _local.inside:
            return f(*args, **kwargs)
        owed = virtual.pay() if virtual is not None else 0.0
        begin = _now()
        got = f(*args, **kwargs)
        end = _now()
        if got or kind == SEND:
            edge = getattr(lock, _EDGE, None)
            log.write(_find_edge(lock, _semaphore_edge) if edge is None else edge, kind, begin, end)
        if virtual is not None:
            virtual.woken(owed, begin, end)
        return got

    return call


def _local_key(thing: Any) -> str:
    return f"object {os.getpid()} {id(thing):x}"


def _thread_queue_edge(queue: Any) -> int:
    return log.edge(_local_key(queue), "thread_queue", capacity=_bound(queue.maxsize))


def patch_queue(module: ModuleType, into: Patches) -> None:
    """`queue`: between threads."""
    into.apply(
        [
            Patch(module.Queue, "get", _logged(RECEIVE, _thread_queue_edge)),
            Patch(module.Queue, "put", _logged(SEND, _thread_queue_edge)),
        ]
    )


def patch_threading(module: ModuleType, into: Patches) -> None:
    """`threading`: semaphores, barriers and condition variables; locks are out of reach, and too frequent."""
    waking = _logged(WAKE, _condition_edge, after=True)
    into.apply(
        [
            Patch(module.Semaphore, "acquire", _logged(RECEIVE, _thread_semaphore_edge)),
            Patch(module.Semaphore, "__enter__", lambda f: lambda self: self.acquire()),
            Patch(module.Semaphore, "release", _logged(SEND, _thread_semaphore_edge)),
            Patch(module.Barrier, "wait", _logged(MEET, _barrier_edge)),
            Patch(module.Condition, "wait", _logged(WAIT, _condition_edge)),
            Patch(module.Condition, "notify", waking),
            Patch(module.Condition, "notify_all", waking),
        ]
    )


def _thread_semaphore_edge(semaphore: Any) -> int:
    return log.edge(_local_key(semaphore), "semaphore", tokens=-1)  # its value is known by its counts


def _barrier_edge(barrier: Any) -> int:
    return log.edge(_local_key(barrier), "barrier", capacity=int(barrier.parties))


def _condition_edge(condition: Any) -> int:
    """An edge of its own for the first ones; programs that make one for each result share the last one."""
    if sum(edge["kind"] == "condition" for edge in log.edges) < OWN_CONDITIONS:
        return log.edge(_local_key(condition), "condition")
    return log.edge(f"conditions {os.getpid()}", "condition")


def patch_executor(module: ModuleType, into: Patches) -> None:
    """`concurrent.futures.thread`: work handed to a pool of threads, which waits inside of C."""

    def running(f: Any) -> Any:
        def run(self: Any) -> Any:
            now = _now()
            edge = getattr(self, _EDGE, _NO_EDGE)
            log.write(edge, RECEIVE, _local.run_ended_ns or now, now)
            if virtual is not None:
                virtual.woken(_local.owed, _local.run_ended_ns or now, now)
            try:
                return f(self)
            finally:
                _local.owed = virtual.pay() if virtual is not None else 0.0
                _local.run_ended_ns = _now()

        return run

    def submitting(f: Any) -> Any:
        def submit(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            begin = _now()
            inside, _local.inside = _local.inside, True
            try:
                edge = _find_edge(self, _executor_edge)
                _submitted.append((id(self), edge))
                return f(self, *args, **kwargs)
            finally:
                _local.inside = inside
                with suppress_own(ValueError):
                    _submitted.remove((id(self), edge))
                log.write(edge, SEND, begin, _now())

        return submit

    def remembering(f: Any) -> Any:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            f(self, *args, **kwargs)
            if _submitted:
                setattr(self, _EDGE, _submitted[-1][1])

        return __init__

    into.apply(
        [
            Patch(module._WorkItem, "__init__", remembering),
            Patch(module._WorkItem, "run", running),
            Patch(module.ThreadPoolExecutor, "submit", submitting),
        ]
    )


def patch_futures(module: ModuleType, into: Patches) -> None:
    """`concurrent.futures._base`: each future has a condition of its own, too many to tell apart."""

    def sharing(f: Any) -> Any:
        def __init__(self: Any) -> None:
            f(self)
            with suppress_own(Exception):
                setattr(self._condition, _EDGE, log.edge(f"futures {os.getpid()}", "condition"))

        return __init__

    into.apply([Patch(module.Future, "__init__", sharing)])


_submitted: list[tuple[int, int]] = []


def _executor_edge(executor: Any) -> int:
    return log.edge(_local_key(executor), "thread_queue")


def patch_pool(module: ModuleType, into: Patches) -> None:
    """`multiprocessing.pool`: a queue in C hands tasks to a thread, and a thread hands over results.

    A result is a message that is received once, when somebody asks for it first: the event inside of it would
    have to be set after the wait for it has begun.
    """

    def arriving(f: Any) -> Any:
        def _set(self: Any, *args: Any) -> None:
            inside, _local.inside = _local.inside, True
            try:
                f(self, *args)
            finally:
                _local.inside = inside
            if isinstance(self, module.IMapIterator) or self.ready():  # a map has many parts
                now = _now()
                log.write(_find_edge(self, _results_edge), SEND, now, now)

        return _set

    def asking(f: Any) -> Any:
        receive = _logged(RECEIVE, _results_edge)(f)

        def wait(self: Any, timeout: float | None = None) -> Any:
            if timeout is not None or getattr(self, _RECEIVED, False):
                return f(self, timeout)
            setattr(self, _RECEIVED, True)
            return receive(self)

        return wait

    next_result = _logged(RECEIVE, _results_edge)
    into.apply(
        [
            _Replacement(module, "queue", _with_logged_queue),
            Patch(module.ApplyResult, "wait", asking),
            Patch(module.ApplyResult, "_set", arriving),
            Patch(module.MapResult, "_set", arriving),
            Patch(module.IMapIterator, "_set", arriving),
            Patch(module.IMapIterator, "next", next_result),
            Patch(module.IMapIterator, "__next__", next_result),
        ]
    )


_RECEIVED = "_hotloop_received"


def _results_edge(result: Any) -> int:
    return log.edge(f"pool results {os.getpid()}", "thread_queue")


class _Replacement(Patch):
    """Replaces something that is no function."""

    def apply(self) -> None:
        self._was = self._get()
        self._ours = self._make(self._was)
        self._put(self._ours)


def _with_logged_queue(module: Any) -> Any:
    """The module `queue` for users of its queue in C, whose methods cannot be replaced."""

    class SimpleQueue(module.SimpleQueue):  # type: ignore[misc]
        maxsize = 0
        get = _logged(RECEIVE, _thread_queue_edge)(module.SimpleQueue.get)
        put = _logged(SEND, _thread_queue_edge)(module.SimpleQueue.put)

    made = ModuleType(module.__name__)
    vars(made).update(vars(module), SimpleQueue=SimpleQueue)
    return made


# -- ranks -----------------------------------------------------------------------------------------

_COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "broadcast",
    "barrier",
    "reduce_scatter_tensor",
)


def patch_distributed(module: ModuleType, into: Patches) -> None:
    """`torch.distributed.distributed_c10d`: collectives that the script calls itself."""

    def meeting(f: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if _local.inside or kwargs.get("async_op"):
                return f(*args, **kwargs)
            owed = virtual.pay() if virtual is not None else 0.0
            begin = _now()
            _local.inside = True
            try:
                return f(*args, **kwargs)
            finally:
                _local.inside = False
                end = _now()
                log.write(_ranks_edge(), MEET, begin, end)
                if virtual is not None:
                    virtual.woken(owed, begin, end)

        return call

    for name in _COLLECTIVES:
        patch = Patch(module, name, meeting)
        into.apply([patch])
        front = sys.modules.get("torch.distributed")
        if front is not None and hasattr(front, name):
            into.apply([Patch(front, name, meeting)])


def _ranks_edge() -> int:
    return log.edge("ranks", "collective", capacity=int(os.environ.get("WORLD_SIZE") or 0) or None)


def patch_data_parallel(module: ModuleType, into: Patches) -> None:
    """`torch.nn.parallel.distributed`: ranks meet in the backward pass that follows a forward pass."""
    pending = threading.local()

    def forward(f: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = f(self, *args, **kwargs)
            pending.meets = bool(getattr(self, "require_backward_grad_sync", True))
            return found

        return call

    def backward(f: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not getattr(pending, "meets", False):
                return f(*args, **kwargs)
            pending.meets = False
            owed = virtual.pay() if virtual is not None else 0.0
            begin = _now()
            try:
                return f(*args, **kwargs)
            finally:
                end = _now()
                log.write(_ranks_edge(), MEET, begin, end)
                if virtual is not None:
                    virtual.woken(owed, begin, end)

        return call

    into.apply(
        [
            Patch(module.DistributedDataParallel, "forward", forward),
            Patch(sys.modules["torch"].Tensor, "backward", backward),
        ]
    )


PATCHES: dict[str, Callable[[ModuleType, Patches], None]] = {
    "multiprocessing.connection": patch_connection,
    "multiprocessing.queues": patch_queues,
    "multiprocessing.synchronize": patch_synchronize,
    "queue": patch_queue,
    "threading": patch_threading,
    "multiprocessing.pool": patch_pool,
    "concurrent.futures._base": patch_futures,
    "concurrent.futures.thread": patch_executor,
    "torch.distributed.distributed_c10d": patch_distributed,
    "torch.nn.parallel.distributed": patch_data_parallel,
}


def log_messages(instrumentation: Instrumentation) -> None:
    """Log the messages of this process from now on; call it before the instrumentation is installed."""

    def patching(patch: Callable[[ModuleType, Patches], None]) -> Callable[[ModuleType], None]:
        def run(module: ModuleType) -> None:
            with suppress_own(Exception):  # the library has changed: it is not logged
                patch(module, instrumentation.patches)

        return run

    for name, patch in PATCHES.items():
        instrumentation.hook.also(name, patching(patch))
