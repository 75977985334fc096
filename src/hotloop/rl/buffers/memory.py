"""Raw memory for buffers: large pages where Linux has them, and two machine instructions for kernels.

Kernels move whole observations as bytes, so one compiled kernel serves every shape and type. numba
turns a loop over bytes into a byte-by-byte copy (1.2 GB/s for 84 x 84 frames, seen on a Xeon at
2.80 GHz); the C library's memcpy on the same frames does 8 to 12. Random reads from a large ring wait
for memory: asking for the lines of a whole batch first made a gather of small transitions 1.7 times as
fast there (10.8 us for 256, with `prefetch` 6.3).
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

_HUGE = 2 << 20


def huge_bytes(count: int) -> NDArray[np.uint8]:
    """Zeroed memory of so many bytes, aligned to 2 MiB and on large pages where the system gives them."""
    mapped = mmap.mmap(-1, max(count, 1) + _HUGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            mapped.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # a kernel built without them: ordinary pages serve, only slower
    whole = np.frombuffer(mapped, dtype=np.uint8)
    skip = -whole.ctypes.data % _HUGE
    return whole[skip : skip + count]


def _address(context: Any, builder: Any, kind: Any, array: Any, offset: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(builder.bitcast(data, ir.IntType(8).as_pointer()), [offset])


def _copy_bytes(_: Any, to: Any, to_offset: Any, source: Any, source_offset: Any, count: Any) -> Any:
    """Copy `count` bytes between two arrays that do not overlap; offsets in bytes, nothing is checked."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        destination = _address(context, builder, signature.args[0], values[0], values[1])
        origin = _address(context, builder, signature.args[2], values[2], values[3])
        cgutils.raw_memcpy(builder, destination, origin, values[4], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(to, types.intp, source, types.intp, types.intp), generate


SHORT = 64  # bytes that `copy_short` may be asked for


def _copy_short(_: Any, to: Any, to_offset: Any, source: Any, source_offset: Any, count: Any) -> Any:
    """`copy_bytes` for at most SHORT bytes: two moves that may overlap; a call of memcpy takes longer."""

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
    """Ask for the cache line at a byte offset of an array, without waiting for it."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        where = _address(context, builder, signature.args[0], values[0], values[1])
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [where.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [where.type], kind)
        builder.call(function, [where, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


# numba adds the typing context as the first argument of the functions above; kernels call these without it
copy_bytes: Any = intrinsic(_copy_bytes)
copy_short: Any = intrinsic(_copy_short)
prefetch: Any = intrinsic(_prefetch)
