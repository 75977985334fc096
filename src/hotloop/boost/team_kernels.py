"""Threads that run the same kernel on parts of its work, and wait for each other inside it.

Every thread calls the kernel with its own number (`part`). Which thread does what changes no number, because
nothing is added up across threads.

A thread that waits spins for some microseconds first: on free cores the others are about to arrive. Then it
sleeps, so on a busy machine it leaves its core to them.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from hotloop.rl.train.fused.compiled import inlined_kernel, kernel, not_inlined
from hotloop.rl.train.fused.tiles import LANES

Words = NDArray[np.int64]

# Where in a team's words; each has its own cache line.
ARRIVED = 0  # how often threads have arrived at a barrier, all together
STARTED = 8  # how many rounds have begun
STOPPED = 16  # 1 when helpers are to return
SLEEPING = 24  # threads that sleep, or are about to
MUTEX, CONDITION = 32, 64  # of POSIX threads; both have less than 256 bytes on all systems
WORDS = 96

SPINS = 2_000  # looks before a thread goes to sleep: 20 to 50 microseconds


def make_words() -> Words:
    """A team's words, before anyone waits."""
    words = np.zeros(WORDS, dtype=np.int64)
    library, mutex, condition = _posix_objects(words)
    library.pthread_mutex_init(mutex, None)
    library.pthread_cond_init(condition, None)
    return words


def stop(words: Words) -> None:
    """Let the helpers return from their kernel."""
    library, mutex, condition = _posix_objects(words)
    library.pthread_mutex_lock(mutex)
    words[STOPPED] = 1
    words[STARTED] += 1  # only the thread that begins rounds writes it
    library.pthread_cond_broadcast(condition)
    library.pthread_mutex_unlock(mutex)


def _posix_objects(words: Words) -> tuple[Any, ctypes.c_void_p, ctypes.c_void_p]:
    start = words.ctypes.data
    return ctypes.CDLL(None), ctypes.c_void_p(start + 8 * MUTEX), ctypes.c_void_p(start + 8 * CONDITION)


def _place(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """The address of the word whose number is the second argument."""
    data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    return builder.gep(data, [arguments[1]])


@intrinsic
def _add(_typing: Any, words: Any, at: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.atomic_rmw(
            "add", _place(context, builder, signature, arguments), arguments[2], "seq_cst"
        )

    return types.int64(words, types.intp, types.int64), generate


@intrinsic
def _look(_typing: Any, words: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_place(context, builder, signature, arguments), "seq_cst", 8)

    return types.int64(words, types.intp), generate


@intrinsic
def _pause(_typing: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        if platform.machine() in ("x86_64", "AMD64"):
            function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
                builder.module, ir.FunctionType(ir.VoidType(), []), "llvm.x86.sse2.pause"
            )
            builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), generate


def _posix(name: str, *offsets: int) -> Any:
    """An intrinsic that calls a function of POSIX threads with addresses of a team's words."""

    @intrinsic
    def call(_typing: Any, words: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            pointer = ir.IntType(8).as_pointer()
            function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
                builder.module, ir.FunctionType(ir.IntType(32), [pointer] * len(offsets)), name
            )
            places = [builder.gep(data, [ir.IntType(64)(offset)]) for offset in offsets]
            builder.call(function, [builder.bitcast(place, pointer) for place in places])
            return context.get_dummy_value()

        return types.void(words), generate

    return call


add = cast("Callable[[Words, int, int], int]", _add)
look = cast("Callable[[Words, int], int]", _look)
pause = cast("Callable[[], None]", _pause)
lock = cast("Callable[[Words], None]", _posix("pthread_mutex_lock", MUTEX))
unlock = cast("Callable[[Words], None]", _posix("pthread_mutex_unlock", MUTEX))
sleep = cast("Callable[[Words], None]", _posix("pthread_cond_wait", CONDITION, MUTEX))
wake = cast("Callable[[Words], None]", _posix("pthread_cond_broadcast", CONDITION))


@kernel
def wait_until(words: Words, at: int, least: int) -> None:
    """Return when the word has reached `least`."""
    not_inlined()
    for _ in range(SPINS):
        if look(words, at) >= least:
            return
        pause()
    lock(words)
    add(words, SLEEPING, 1)
    while look(words, at) < least:
        sleep(words)
    add(words, SLEEPING, -1)
    unlock(words)


@kernel
def raise_word(words: Words, at: int) -> int:
    """Add 1 to a word and wake who waits for it; returns what it was.

    Either this thread sees the sleeper, or the sleeper, who looks after it has said so, sees the new value.
    """
    not_inlined()
    before = add(words, at, 1)
    if look(words, SLEEPING) > 0:
        lock(words)
        wake(words)
        unlock(words)
    return before


@inlined_kernel
def wait_for_all(words: Words, parts: int) -> None:
    """Return when all `parts` threads have come here as often as this one."""
    if parts > 1:
        before = raise_word(words, ARRIVED)
        wait_until(words, ARRIVED, (before // parts + 1) * parts)


@inlined_kernel
def begins(words: Words, part: int, parts: int, rounds: int) -> bool:
    """Begin a round as part 0 of several, or wait as a helper for the round after the first `rounds`.

    Returns False when helpers are to return.
    """
    if part > 0:
        wait_until(words, STARTED, rounds + 1)
    elif parts > 1:
        raise_word(words, STARTED)
    return look(words, STOPPED) == 0


@inlined_kernel
def begin_of_share(count: int, part: int, parts: int) -> int:
    """The first of `count` rows that a thread works on; its last is before the first of the next thread.

    Whole vectors, so that transposed blocks are whole.
    """
    return count if part == parts else count * part // parts // LANES * LANES
