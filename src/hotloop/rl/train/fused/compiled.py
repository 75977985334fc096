"""Compiler options and instructions for the learners' kernels.

A sum of products has other last digits when the compiler reorders it or contracts a product and a sum, and
whether it does so depends on the kernel that the code is inlined into. The layers and DQN leave it no choice:
their kernels are strict, products and sums are contracted explicitly with `fma`, and long sums have a fixed
order. So every caller gets the same numbers to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from hotloop.rl.envs.compiled import Function, compiled


def kernel(function: Function) -> Function:
    """A strict kernel, optimised once for all its callers."""
    return compiled(function, linked=False)


def fast_kernel(function: Function) -> Function:
    """A kernel whose sums may be reordered and contracted; NaN and infinity keep their meaning.

    Its last digits may differ between two kernels that it is inlined into.
    """
    return compiled(function, fastmath={"contract", "reassoc", "nsz"}, linked=False)


def inlined_kernel(function: Function) -> Function:
    """A part of a `fast_kernel` that is copied into its callers and never compiled by itself.

    A kernel optimises the code of all kernels it calls again, so every level of calls costs compile time:
    SAC's kernels took 31 s of CPU time to compile with every part a kernel, 19 s with some of them inlined.
    """
    return compiled(function, fastmath={"contract", "reassoc", "nsz"}, linked=False, inline="always")


@intrinsic
def _fma(_typing: Any, a: Any, b: Any, c: Any) -> Any:
    single = types.float32
    if (a, b, c) != (single, single, single):
        return None

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        number = ir.FloatType()
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, ir.FunctionType(number, [number] * 3), "llvm.fma.f32"
        )
        return builder.call(function, arguments)

    return single(single, single, single), generate


# Called inside a kernel with float32 numbers: a * b + c, rounded once.
fma = cast("Callable[[np.float32, np.float32, np.float32], np.float32]", _fma)


@intrinsic
def _not_inlined(_typing: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate


# Called inside a kernel: the compiler keeps the kernel a separate function instead of copying it into
# callers. The product of matrices is called at many places; copies made compilation slower, not the code
# faster.
not_inlined = cast("Callable[[], None]", _not_inlined)
