"""`kernel` compiles a function on first use, reports that on stderr and caches the result on disk.

A kernel is a function over arrays that the caller owns: no objects, no allocation, the GIL released.
The cache is beside the source (or in NUMBA_CACHE_DIR, which checkouts may share) and survives any edit that
does not change what is compiled. Batch sizes are not part of a type: another one never compiles again.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba import carray  # type: ignore[attr-defined]
from numba.core import cgutils, event, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from hotloop.rl.envs.kernel_cache import KernelCache

Function = TypeVar("Function", bound=Callable[..., Any])

# NUMBA_DISABLE_JIT=1: kernels run as plain Python, so machine instructions need a plain version, too.
INTERPRETED = bool(numba.config.DISABLE_JIT)  # type: ignore[attr-defined]

_announced: set[Callable[..., Any]] = set()  # what `kernel` compiles, ours and the user's


def kernel(function: Function) -> Function:
    """Compile a function over arrays when it is first called; it releases the GIL and is cached on disk."""
    return compiled(function)


def compiled(function: Function, fastmath: bool | set[str] = False, **options: Any) -> Function:
    """`kernel` with further options of numba's.

    `fastmath` is always set: numba compiles a kernel that does not say with the caller's, and keeps that on
    disk, so its last digits would hang on who happened to call it first.
    """
    _announced.add(function)
    made: Any = numba.njit(nogil=True, error_model="numpy", fastmath=fastmath, **options)(function)
    if made is not function:  # which it is with NUMBA_DISABLE_JIT=1
        made._cache = KernelCache(made, _announcer.is_compiling)
    return cast(Function, made)


def allocation_free_kernel(function: Function) -> Function:
    """`kernel` without reference counting; it cannot allocate arrays (one that tries does not compile).

    Numba counts references to every array that one compiled function passes to another, with atomic
    instructions. For a step of Snake, which passes a dozen arrays down three levels, that was most of the
    time: 450 ns a row with counting, 105 ns without, 44 ns with `inlined_part` as well (features, 4096 rows,
    Xeon at 2.8 GHz, busy).
    """
    return compiled(function, _nrt=False)


def kernel_part(function: Function) -> Function:
    """Compile a function that only allocation-free kernels call; it has no entry point for Python."""
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False}
    return cast(Function, numba.njit(nogil=True, error_model="numpy", fastmath=False, **options)(function))


def inlined_part(function: Function) -> Function:
    """Compile a function that is inlined into the allocation-free kernels that call it."""
    return compiled(function, _nrt=False, forceinline=True)


def addresses(*arrays: NDArray[Any]) -> NDArray[np.int64]:
    """Where the arrays lie, for a kernel that takes them as one argument and opens them with `array_at`.

    Handing an array to a kernel costs about 75 ns (type check and unboxing), which shows only where a
    whole batch takes two or three microseconds. The caller keeps the arrays alive and never replaces
    them; they must be contiguous, because only the address is handed over.
    """
    if not all(array.flags.c_contiguous for array in arrays):
        raise ValueError("only contiguous arrays can be handed over by address")
    return np.array([array.ctypes.data for array in arrays], dtype=np.int64)


@intrinsic
def _compiled_pointer(_typing: Any, address: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


def _plain_pointer(address: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(int(address))


_pointer: Any = _plain_pointer if INTERPRETED else _compiled_pointer


@numba.njit(error_model="numpy", fastmath=False, inline="always")
def array_at(table: NDArray[np.int64], index: int, shape: Any, dtype: Any) -> NDArray[Any]:
    """Inside a kernel: the array whose address `addresses` put at `index`, its shape and dtype known."""
    return carray(_pointer(table[index]), shape, dtype)


class _Announcer(event.Listener):
    """Says on stderr which kernel is being compiled and how long it took; silent when the cache had it."""

    def __init__(self) -> None:
        self._depth = 0
        self._started_s = 0.0

    def is_compiling(self) -> bool:
        """Whether a kernel is being compiled in this process."""
        return self._depth > 0

    def on_start(self, occasion: Any) -> None:
        """A compilation begins; those of the functions it calls are part of it."""
        function = occasion.data["dispatcher"].py_func
        if self._depth == 0 and function not in _announced:
            return
        self._depth += 1
        if self._depth == 1:
            self._started_s = time.perf_counter()
            where = function.__module__.removeprefix("hotloop.rl.").removesuffix(".kernels")
            print(
                f"hotloop: compiling {where}.{function.__name__} for its first use ...",
                end="",
                file=sys.stderr,
            )
            sys.stderr.flush()

    def on_end(self, occasion: Any) -> None:
        """A compilation is over."""
        if self._depth == 0:
            return
        self._depth -= 1
        if self._depth == 0:
            print(f" {time.perf_counter() - self._started_s:.1f} s, kept for next time", file=sys.stderr)


_announcer = _Announcer()
event.register("numba:compile", _announcer)  # type: ignore[no-untyped-call]
