"""Decorators that compile kernels on first use, report it on stderr and cache the machine code on disk.

A kernel works on arrays that the caller owns, without Python objects or allocation, and releases the GIL. The
cache is next to the source, or in NUMBA_CACHE_DIR, which checkouts may share. It stays valid as long as the
compiled code stays the same (kernel_cache_key.py). A new batch size does not recompile.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba import carray  # type: ignore[attr-defined]
from numba.core import cgutils, event, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from hotloop import profile
from hotloop.rl.envs.compiler_shortcuts import CompilerShortcuts
from hotloop.rl.envs.kernel_cache import KernelCache
from hotloop.rl.envs.kernel_compiler import KernelCompiler, KernelDispatcher, ShortShapeErrors

Function = TypeVar("Function", bound=Callable[..., Any])

# With NUMBA_DISABLE_JIT=1 kernels run as plain Python, so intrinsics need a Python version.
INTERPRETED = bool(numba.config.DISABLE_JIT)  # type: ignore[attr-defined]

_compile = profile("compile", "compilation")

_announced: set[Callable[..., Any]] = set()  # functions passed to `compiled`, the user's included


def kernel(function: Function) -> Function:
    """Compile a function over arrays on its first call; it releases the GIL and is cached on disk."""
    return compiled(function)


def compiled(
    function: Function, fastmath: bool | set[str] = False, linked: bool = True, **options: Any
) -> Function:
    """`kernel` with further options of `numba.njit`.

    `linked` kernels are optimised together with the kernels that call them (kernel_compiler.py). That is a
    third less compile time for environments, which are many small functions. A large function with many
    callers, such as a product of matrices, is better optimised once.

    `fastmath` is always explicit: without it, numba would compile the kernel with its first caller's setting
    and cache that, so the last digits would depend on which caller came first.
    """
    _announced.add(function)
    made = _njit(function, fastmath, linked, options)
    if made is not function:  # the same with NUMBA_DISABLE_JIT=1
        made._cache = KernelCache(made, _announcer.is_compiling)
    return cast(Function, made)


def _njit(function: Any, fastmath: bool | set[str], linked: bool, options: dict[str, Any]) -> Any:
    if linked:
        options = options | {"pipeline_class": KernelCompiler}
    made: Any = numba.njit(nogil=True, error_model="numpy", fastmath=fastmath, **options)(function)
    if linked and made is not function:
        made.__class__ = KernelDispatcher
    return made


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
    return cast(Function, _njit(function, False, True, options))


def inlined_part(function: Function) -> Function:
    """Compile a function that is inlined into the allocation-free kernels that call it."""
    return compiled(function, _nrt=False, forceinline=True)


def addresses(*arrays: NDArray[Any]) -> NDArray[np.int64]:
    """Return the addresses of arrays, so that a kernel takes them as one argument; see `array_at`.

    Passing an array to a kernel costs about 75 ns (type check and unboxing), which matters only if the whole
    call takes two or three microseconds. The caller must keep the arrays alive and in place. They must be
    contiguous, because strides are not passed.
    """
    if not all(array.flags.c_contiguous for array in arrays):
        raise ValueError("cannot pass a non-contiguous array by address; use np.ascontiguousarray first")
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
    """Inside a kernel: return entry `index` of a table from `addresses` as an array."""
    return carray(_pointer(table[index]), shape, dtype)


class NotCompiledError(Exception):
    """A kernel is not in the cache on disk, and compiling is not wanted now."""


@contextmanager
def only_from_cache() -> Iterator[None]:
    """Kernels called for the first time in here come from the cache on disk, or raise NotCompiledError."""
    _announcer.is_refusing = True
    try:
        yield
    finally:
        _announcer.is_refusing = False


class _Announcer(event.Listener):
    """Reports and records each compilation; silent if the kernel comes from the cache."""

    def __init__(self) -> None:
        self._depth = 0
        self._started_s = 0.0
        self._in_place = ShortShapeErrors(), CompilerShortcuts()
        self.is_refusing = False

    def is_compiling(self) -> bool:
        """Whether the cache takes no lock: one is held already, or nothing will be compiled under it."""
        return self._depth > 0 or self.is_refusing

    def is_inside_kernel(self) -> bool:
        """Whether a kernel is being compiled that calls the one about to be compiled."""
        return self._depth > 1

    def on_start(self, occasion: Any) -> None:
        """Report a compilation; those of the functions it calls are part of it."""
        function = occasion.data["dispatcher"].py_func
        if self._depth == 0 and function not in _announced:
            return
        if self.is_refusing:
            raise NotCompiledError(f"{function.__module__}.{function.__name__} is not compiled")
        self._depth += 1
        if self._depth == 1:
            _compile.__enter__()
            for part in self._in_place:
                part.begin()
            self._started_s = time.perf_counter()
            where = function.__module__.removeprefix("hotloop.rl.").removesuffix(".kernels")
            print(
                f"hotloop: compiling {where}.{function.__name__} for its first use ...",
                end="",
                file=sys.stderr,
            )
            sys.stderr.flush()

    def on_end(self, occasion: Any) -> None:
        if self._depth == 0:
            return
        self._depth -= 1
        if self._depth == 0:
            for part in self._in_place:
                part.end()
            _compile.__exit__(None, None, None)
            print(f" {time.perf_counter() - self._started_s:.1f} s, kept for next time", file=sys.stderr)


_announcer = _Announcer()
KernelCompiler.is_inside_kernel = _announcer.is_inside_kernel
event.register("numba:compile", _announcer)  # type: ignore[no-untyped-call]
