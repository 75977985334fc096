"""Products of small matrices inside kernels, in blocks that stay in the CPU's vector registers.

A product of 64 x 64 matrices takes four microseconds, so the packing and dispatch of a BLAS call would cost
too much. Here a block of C = A B (ROWS rows, WIDE vectors of columns) stays in registers while one loop runs
over the depth. `benchmarks/snake.py --only products` compares it with torch and numpy.

Matrices are given as (flat float32 array, offset of the first element, distance between rows). The number
of columns must be a multiple of LANES: `padded(columns)`; the owner of the memory provides the padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from hotloop.rl.train.fused.compiled import kernel, not_inlined

Floats = NDArray[np.float32]


def _best_block() -> tuple[int, int, int]:
    """Floats in a vector, rows and vectors of a block, for this CPU's instruction set."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 16, 6, 4  # 24 sums + 4 of B + 1 of A in 32 registers
    if features.get("avx"):
        return 8, 6, 2  # 12 sums + 2 of B + 1 of A in 16 registers
    return 4, 6, 2


LANES, ROWS, WIDE = _best_block()
FEW = 4  # rows of a smaller block, for the rows that remain after blocks of ROWS
IN_FLIGHT = 4  # independent vectors of sums, so that no addition waits for the previous one
TALL = 8  # rows of a block one vector wide: one sum for each multiplication in flight on two FMA units


def padded(columns: int) -> int:
    """`columns` rounded up to a multiple of LANES."""
    return -(-columns // LANES) * LANES


def _make_block(rows: int, vectors: int) -> Any:
    """An intrinsic for a block of `rows` x `vectors * LANES`: C = A B, or C += A B.

    A(m, k) = a[a_at + m * a_row + k * a_column], B(k, n) = b[b_at + k * b_row + n],
    C(m, n) = c[c_at + m * c_row + n]; k runs over `depth`. A may be a transposed matrix.
    """
    number = ir.IntType(64)
    vector = ir.VectorType(ir.FloatType(), LANES)
    zeros = ir.Constant(vector, [0.0] * LANES)
    to_all_lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def data(position: int) -> Any:
            return context.make_array(signature.args[position])(context, builder, arguments[position]).data

        def at(base: Any, *offsets: Any) -> Any:
            total = offsets[0]
            for offset in offsets[1:]:
                total = builder.add(total, offset)
            return builder.gep(base, [total])

        def vector_at(base: Any, *offsets: Any) -> Any:
            return builder.bitcast(at(base, *offsets), vector.as_pointer())

        a, b, c = data(0), data(4), data(7)
        a_at, a_row, a_column, b_at, b_row, c_at, c_row, depth, add = (
            arguments[position] for position in (1, 2, 3, 5, 6, 8, 9, 10, 11)
        )
        fma = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{LANES}f32"
        )
        block = [(m, n) for m in range(rows) for n in range(vectors)]
        sums, places = {}, {}
        for m, n in block:
            sums[m, n] = cgutils.alloca_once(builder, vector)  # type: ignore[no-untyped-call]
            places[m, n] = vector_at(c, c_at, builder.mul(c_row, number(m)), number(n * LANES))
            before = builder.load(places[m, n], align=4)
            builder.store(builder.select(add, before, zeros), sums[m, n])
        with cgutils.for_range(builder, depth) as loop:
            k = loop.index
            of_b = [
                builder.load(vector_at(b, b_at, builder.mul(b_row, k), number(n * LANES)), align=4)
                for n in range(vectors)
            ]
            for m in range(rows):
                scalar = builder.load(at(a, a_at, builder.mul(a_row, number(m)), builder.mul(a_column, k)))
                one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.IntType(32)(0))
                of_a = builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), to_all_lanes)
                for n in range(vectors):
                    total = builder.call(fma, [of_a, of_b[n], builder.load(sums[m, n])])
                    builder.store(total, sums[m, n])
        for m, n in block:
            builder.store(builder.load(sums[m, n]), places[m, n], align=4)
        return context.get_dummy_value()

    @intrinsic
    def multiply_block(
        _typing: Any,
        a: Any,
        a_at: Any,
        a_row: Any,
        a_column: Any,
        b: Any,
        b_at: Any,
        b_row: Any,
        c: Any,
        c_at: Any,
        c_row: Any,
        depth: Any,
        add: Any,
    ) -> Any:
        n = types.intp
        return types.void(a, n, n, n, b, n, n, c, n, n, n, types.boolean), generate

    return multiply_block


@intrinsic
def _squares(_typing: Any, values: Any, count: Any) -> Any:
    """The sum of the first `count` squares, in IN_FLIGHT vectors of sums."""
    vector, number = ir.VectorType(ir.FloatType(), LANES), ir.IntType(64)
    step = IN_FLIGHT * LANES

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        whole, single = (
            cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
                builder.module, ir.FunctionType(kind, [kind] * 3), f"llvm.fma.{name}"
            )
            for kind, name in ((vector, f"v{LANES}f32"), (ir.FloatType(), "f32"))
        )
        sums = [cgutils.alloca_once(builder, vector) for _ in range(IN_FLIGHT)]  # type: ignore[no-untyped-call]
        for one in sums:
            builder.store(ir.Constant(vector, [0.0] * LANES), one)
        steps = builder.sdiv(arguments[1], number(step))
        with cgutils.for_range(builder, steps) as loop:
            for place, one in enumerate(sums):
                at = builder.add(builder.mul(loop.index, number(step)), number(place * LANES))
                read = builder.load(builder.bitcast(builder.gep(data, [at]), vector.as_pointer()), align=4)
                builder.store(builder.call(whole, [read, read, builder.load(one)]), one)
        lanes = [builder.load(one) for one in sums]
        while len(lanes) > 1:
            lanes = [builder.fadd(a, b) for a, b in zip(lanes[::2], lanes[1::2], strict=True)]
        numbers = [builder.extract_element(lanes[0], ir.IntType(32)(lane)) for lane in range(LANES)]
        while len(numbers) > 1:
            numbers = [builder.fadd(a, b) for a, b in zip(numbers[::2], numbers[1::2], strict=True)]
        total = cgutils.alloca_once_value(builder, numbers[0])  # type: ignore[no-untyped-call]
        done = builder.mul(steps, number(step))
        with cgutils.for_range(builder, builder.sub(arguments[1], done)) as loop:
            read = builder.load(builder.gep(data, [builder.add(done, loop.index)]))
            builder.store(builder.call(single, [read, read, builder.load(total)]), total)
        return builder.load(total)

    return types.float32(values, types.intp), generate


@intrinsic
def _transpose_block(_typing: Any, a: Any, a_at: Any, a_row: Any, b: Any, b_at: Any, b_row: Any) -> Any:
    """B(n, m) = A(m, n) for a square of LANES x LANES; rows as in `_make_block`.

    A square of 2^k rows is transposed in k rounds, each of which interleaves row i with row i + half.
    """
    vector, number = ir.VectorType(ir.FloatType(), LANES), ir.IntType(64)
    half = LANES // 2
    masks = [
        ir.Constant(
            ir.VectorType(ir.IntType(32), LANES),
            [first + lane // 2 + LANES * (lane % 2) for lane in range(LANES)],
        )
        for first in (0, half)
    ]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def place(array: int, at: int, row: int, index: int) -> Any:
            data = context.make_array(signature.args[array])(context, builder, arguments[array]).data
            offset = builder.add(arguments[at], builder.mul(arguments[row], number(index)))
            return builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())

        lines = [builder.load(place(0, 1, 2, index), align=4) for index in range(LANES)]
        for _ in range(LANES.bit_length() - 1):
            lines = [
                builder.shuffle_vector(lines[index // 2], lines[index // 2 + half], masks[index % 2])
                for index in range(LANES)
            ]
        for index, line in enumerate(lines):
            builder.store(line, place(3, 4, 5, index), align=4)
        return context.get_dummy_value()

    return types.void(a, types.intp, types.intp, b, types.intp, types.intp), generate


transpose_block = cast("Callable[[Floats, int, int, Floats, int, int], None]", _transpose_block)


@kernel
def transpose(a: Floats, a_at: int, rows: int, columns: int, b: Floats, b_at: int, b_row: int) -> None:
    """B(n, m) = A(m, n), A [rows, columns] dense, rows of B `b_row` apart; A and B must not overlap."""
    whole_rows, whole_columns = rows - rows % LANES, columns - columns % LANES
    for j in range(0, whole_columns, LANES):
        for i in range(0, whole_rows, LANES):
            transpose_block(a, a_at + i * columns + j, columns, b, b_at + j * b_row + i, b_row)
    for j in range(columns):
        line = b[b_at + j * b_row : b_at + j * b_row + rows]
        column = a[a_at + j : a_at + rows * columns]
        for i in range(whole_rows if j < whole_columns else 0, rows):
            line[i] = column[i * columns]


# Called inside a kernel with a float32 array and a number of its elements: the sum of their squares.
squares = cast("Callable[[Floats, int], np.float32]", _squares)

_block = _make_block(ROWS, WIDE)
_block_few_rows = _make_block(FEW, WIDE)
_block_one_row = _make_block(1, WIDE)
_block_one_vector = _make_block(TALL, 1)
_block_one_by_one = _make_block(1, 1)
_WIDTH = WIDE * LANES


@kernel
def multiply(
    a: Floats,
    a_at: int,
    a_row: int,
    a_column: int,
    b: Floats,
    b_at: int,
    b_row: int,
    c: Floats,
    c_at: int,
    c_row: int,
    rows: int,
    columns: int,
    depth: int,
    add: bool,
) -> None:
    """C[rows, columns] = A B, or += with `add`; A(m, k) is a[a_at + m * a_row + k * a_column].

    `columns` is a multiple of LANES. C must not overlap A or B.
    """
    not_inlined()
    high = rows // ROWS * ROWS  # rows in blocks of ROWS, if possible so that blocks of FEW do the rest
    while high > 0 and (rows - high) % FEW:
        high -= ROWS
    j = 0
    while j < columns:
        wide = columns - j >= _WIDTH
        i = 0
        if wide:
            while i < high:
                _block(
                    a, a_at + i * a_row, a_row, a_column, b, b_at + j, b_row,
                    c, c_at + i * c_row + j, c_row, depth, add,
                )  # fmt: skip
                i += ROWS
            while i + FEW <= rows:
                _block_few_rows(
                    a, a_at + i * a_row, a_row, a_column, b, b_at + j, b_row,
                    c, c_at + i * c_row + j, c_row, depth, add,
                )  # fmt: skip
                i += FEW
            while i < rows:
                _block_one_row(
                    a, a_at + i * a_row, a_row, a_column, b, b_at + j, b_row,
                    c, c_at + i * c_row + j, c_row, depth, add,
                )  # fmt: skip
                i += 1
        else:
            while i + TALL <= rows:
                _block_one_vector(
                    a, a_at + i * a_row, a_row, a_column, b, b_at + j, b_row,
                    c, c_at + i * c_row + j, c_row, depth, add,
                )  # fmt: skip
                i += TALL
            while i < rows:
                _block_one_by_one(
                    a, a_at + i * a_row, a_row, a_column, b, b_at + j, b_row,
                    c, c_at + i * c_row + j, c_row, depth, add,
                )  # fmt: skip
                i += 1
        j += _WIDTH if wide else LANES
