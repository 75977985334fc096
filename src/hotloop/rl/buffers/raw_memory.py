"""Raw memory for replay buffers: huge pages, and byte copies and prefetches for kernels.

Kernels move whole observations as bytes, so one compiled kernel serves every shape and dtype. Numba compiles
a loop over bytes to a byte-by-byte copy (1.2 GB/s for 84 x 84 frames on a 2.80 GHz Xeon); memcpy reaches 8 to
12 GB/s on the same frames. Random reads from a large ring are bound by memory latency: prefetching the cache
lines of a whole batch made gathering 256 small transitions 1.7x faster there (6.3 us instead of 10.8 us).

With NUMBA_DISABLE_JIT=1 plain Python takes the place of the machine instructions.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from hotloop.rl.envs.compiled import INTERPRETED

_HUGE_PAGE_BYTES = 2 << 20


def huge_bytes(count: int) -> NDArray[np.uint8]:
    """`count` zeroed bytes, aligned to 2 MiB and on huge pages where Linux offers them."""
    mapped = mmap.mmap(-1, max(count, 1) + _HUGE_PAGE_BYTES)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            mapped.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # a Linux kernel built without huge pages: ordinary ones work, just slower
    whole = np.frombuffer(mapped, dtype=np.uint8)
    skip = -whole.ctypes.data % _HUGE_PAGE_BYTES
    return whole[skip : skip + count]


def _address(context: Any, builder: Any, kind: Any, array: Any, offset: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(builder.bitcast(data, ir.IntType(8).as_pointer()), [offset])


def _copy_bytes(_: Any, to: Any, to_offset: Any, source: Any, source_offset: Any, count: Any) -> Any:
    """Copy `count` bytes between two arrays that do not overlap; offsets in bytes, no bounds checks."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        destination = _address(context, builder, signature.args[0], values[0], values[1])
        origin = _address(context, builder, signature.args[2], values[2], values[3])
        cgutils.raw_memcpy(builder, destination, origin, values[4], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(to, types.intp, source, types.intp, types.intp), generate


SHORT = 64  # most bytes that `copy_short` copies


def _copy_short(_: Any, to: Any, to_offset: Any, source: Any, source_offset: Any, count: Any) -> Any:
    """`copy_bytes` for at most SHORT bytes: two overlapping moves, which is cheaper than calling memcpy."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        destination = _address(context, builder, signature.args[0], values[0], values[1])
        origin = _address(context, builder, signature.args[2], values[2], values[3])
        count, number = values[4], ir.IntType(64)

        def two_moves(size: int) -> None:
            kind = ir.VectorType(ir.IntType(8), size).as_pointer()
            offsets = number(0), builder.sub(count, number(size))
            found = [
                builder.load(builder.bitcast(builder.gep(origin, [at]), kind), align=1) for at in offsets
            ]
            for at, moved in zip(offsets, found, strict=True):
                builder.store(moved, builder.bitcast(builder.gep(destination, [at]), kind), align=1)

        def shorter(sizes: tuple[int, ...]) -> None:
            if not sizes:
                with builder.if_then(builder.icmp_signed(">", count, number(0))):
                    two_moves(1)
                with builder.if_then(builder.icmp_signed("==", count, number(3))):
                    middle = builder.load(builder.gep(origin, [number(1)]))
                    builder.store(middle, builder.gep(destination, [number(1)]))
                return
            with builder.if_else(builder.icmp_signed(">=", count, number(sizes[0]))) as (enough, less):
                with enough:
                    two_moves(sizes[0])
                with less:
                    shorter(sizes[1:])

        shorter((32, 16, 8, 4))
        return context.get_dummy_value()

    return types.void(to, types.intp, source, types.intp, types.intp), generate


def _prefetch(_: Any, array: Any, offset: Any) -> Any:
    """Start loading the cache line at a byte offset of an array."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        where = _address(context, builder, signature.args[0], values[0], values[1])
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [where.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [where.type], kind)
        builder.call(function, [where, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


def _plain_copy(to: Any, to_offset: int, source: Any, source_offset: int, count: int) -> None:
    to[to_offset : to_offset + count] = source[source_offset : source_offset + count]


def _plain_prefetch(array: Any, offset: int) -> None:
    pass


# Kernels call these without the first argument of the functions above, which is numba's typing context.
copy_bytes: Any = _plain_copy if INTERPRETED else intrinsic(_copy_bytes)
copy_short: Any = _plain_copy if INTERPRETED else intrinsic(_copy_short)
prefetch: Any = _plain_prefetch if INTERPRETED else intrinsic(_prefetch)
