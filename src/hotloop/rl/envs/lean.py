"""Kernels out of many parts, compiled without reference counts and the parts without doors to Python.

Numba counts references to every array that one compiled function hands to another, with atomic
instructions, and gives every function a wrapper that unpacks its arguments from Python. Neither is needed
inside a kernel. Without counts a kernel cannot allocate: one that tries does not compile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

from hotloop.rl.envs.compiled import compiled

Function = TypeVar("Function", bound=Callable[..., Any])

_HOW: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": False, "_nrt": False}
_INSIDE: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def kernel(function: Function) -> Function:
    """A kernel to be called from Python; it releases the GIL and is cached on disk."""
    return compiled(function, _nrt=False)


def part(function: Function) -> Function:
    """A function to be called from kernels only, and compiled with them."""
    return cast(Function, numba.njit(**_INSIDE, **_HOW)(function))
