"""How Snake's kernels are compiled: without reference counts, the parts of a step inlined into its loop.

Numba counts references to every array that one compiled function hands to another, with atomic
instructions. For a step that hands a dozen arrays down three levels that was most of the time: 450 ns a row
with counting, 105 without, 44 with the parts inlined too (features, 4096 rows, Xeon at 2.8 GHz, busy).
Without counts a kernel cannot allocate: one that tries does not compile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hotloop.rl.envs.compiled import compiled

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """A kernel to be called from Python; it releases the GIL and is cached on disk."""
    return compiled(function, _nrt=False)


def part(function: Function) -> Function:
    """A kernel to be called from kernels, which take its code in."""
    return compiled(function, _nrt=False, forceinline=True)
