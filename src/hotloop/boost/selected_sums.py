"""Products with a matrix of zeros and ones, which only says which rows of the other matrix are added up.

C = S B needs no multiplications. For each four rows of B, all 16 sums of some of them are made once and kept
in a table; then four bits of S, a code, select one of these sums, so one addition stands for four
multiplications. That takes half of the time of a dense product (`benchmarks/sac_kernels.py`). Every number of
C is a sum in a fixed order, however threads share rows and columns. The idea is known as the method of the
four Russians.

The backward pass from a single output through ReLUs is such a product: `dense_kernels.backward`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from hotloop.rl.train.fused.compiled import kernel, not_inlined
from hotloop.rl.train.fused.tiles import LANES, Floats

Codes = NDArray[np.uint8]

BITS = 4  # of a code: rows of B that share a table
SUMS = 1 << BITS
TABLES = 16  # in use at the same time; together they fill 32 KB, a first-level cache, when LANES is 16
PAIR = 2  # rows of C computed together, so that no addition waits for the previous one
WIDE = 2  # vectors of a table's rows
TABLES_SIZE = TABLES * SUMS * WIDE * LANES  # floats

_ONE = np.float32(1.0)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_NUMBER = ir.IntType(64)


def _data(context: Any, builder: Any, signature: Any, arguments: Any, position: int) -> Any:
    return context.make_array(signature.args[position])(context, builder, arguments[position]).data


def _vector_at(builder: Any, base: Any, *offsets: Any) -> Any:
    total = offsets[0]
    for offset in offsets[1:]:
        total = builder.add(total, offset)
    return builder.bitcast(builder.gep(base, [total]), _FLOATS.as_pointer())


def _to_all_lanes(builder: Any, scalar: Any) -> Any:
    undefined = ir.Constant(_FLOATS, ir.Undefined)
    one = builder.insert_element(undefined, scalar, ir.IntType(32)(0))
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(one, undefined, lanes)


def _make_fill_table(vectors: int) -> Any:
    """An intrinsic that writes the sums of BITS rows of B, each row times its scale, to a table.

    Row number `code` of the table is the sum of those rows whose bit is set in `code`.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        b, scales, tables = (_data(context, builder, signature, arguments, at) for at in (0, 3, 5))
        b_at, b_row, scales_at, table_at = (arguments[position] for position in (1, 2, 4, 6))
        factors = [
            _to_all_lanes(builder, builder.load(builder.gep(scales, [builder.add(scales_at, _NUMBER(bit))])))
            for bit in range(BITS)
        ]
        for n in range(vectors):
            sums = [ir.Constant(_FLOATS, [0.0] * LANES)]
            for bit in range(BITS):
                place = _vector_at(builder, b, b_at, builder.mul(b_row, _NUMBER(bit)), _NUMBER(n * LANES))
                row = builder.fmul(builder.load(place, align=4), factors[bit])
                sums += [row, *(builder.fadd(one, row) for one in sums[1:])]
            for code, one in enumerate(sums):
                place = _vector_at(builder, tables, table_at, _NUMBER((code * vectors + n) * LANES))
                builder.store(one, place, align=4)
        return context.get_dummy_value()

    @intrinsic
    def fill_table(
        _typing: Any, b: Any, b_at: Any, b_row: Any, scales: Any, scales_at: Any, tables: Any, table_at: Any
    ) -> Any:
        n = types.intp
        return types.void(b, n, n, scales, n, tables, n), generate

    return fill_table


def _make_add_selected(vectors: int) -> Any:
    """An intrinsic for PAIR rows of C: each adds one row of every table, and is multiplied by its scale.

    The code for row m and table t is codes[codes_at + m * codes_row + t * codes_step].
    """
    size = vectors * LANES

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        codes, tables, c = (_data(context, builder, signature, arguments, at) for at in (0, 4, 6))
        codes_at, codes_row, codes_step, count, c_at, c_row, add = (
            arguments[position] for position in (1, 2, 3, 5, 7, 8, 9)
        )
        block = [(m, n) for m in range(PAIR) for n in range(vectors)]
        sums, places = {}, {}
        zeros = ir.Constant(_FLOATS, [0.0] * LANES)
        for m, n in block:
            sums[m, n] = cgutils.alloca_once(builder, _FLOATS)  # type: ignore[no-untyped-call]
            places[m, n] = _vector_at(builder, c, c_at, builder.mul(c_row, _NUMBER(m)), _NUMBER(n * LANES))
            before = builder.load(places[m, n], align=4)
            builder.store(builder.select(add, before, zeros), sums[m, n])
        with cgutils.for_range(builder, count) as loop:
            base = builder.mul(loop.index, _NUMBER(SUMS * size))
            for m in range(PAIR):
                at = builder.add(codes_at, builder.mul(codes_row, _NUMBER(m)))
                at = builder.add(at, builder.mul(codes_step, loop.index))
                code = builder.zext(builder.load(builder.gep(codes, [at])), _NUMBER)
                start = builder.add(base, builder.mul(code, _NUMBER(size)))
                for n in range(vectors):
                    row = builder.load(_vector_at(builder, tables, start, _NUMBER(n * LANES)), align=4)
                    builder.store(builder.fadd(builder.load(sums[m, n]), row), sums[m, n])
        for m, n in block:
            scale = _to_all_lanes(builder, arguments[10 + m])
            builder.store(builder.fmul(builder.load(sums[m, n]), scale), places[m, n], align=4)
        return context.get_dummy_value()

    @intrinsic
    def add_selected(
        _typing: Any,
        codes: Any,
        codes_at: Any,
        codes_row: Any,
        codes_step: Any,
        tables: Any,
        count: Any,
        c: Any,
        c_at: Any,
        c_row: Any,
        add: Any,
        first_scale: Any,
        second_scale: Any,
    ) -> Any:
        n, number = types.intp, types.float32
        return types.void(codes, n, n, n, tables, n, c, n, n, types.boolean, number, number), generate

    return add_selected


@intrinsic
def _are_positive(_typing: Any, values: Any, at: Any) -> Any:
    """One bit for each of LANES numbers, the first one lowest: whether it is above 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = _data(context, builder, signature, arguments, 0)
        numbers = builder.load(_vector_at(builder, data, arguments[1]), align=4)
        are = builder.fcmp_ordered(">", numbers, ir.Constant(_FLOATS, [0.0] * LANES))
        return builder.zext(builder.bitcast(are, ir.IntType(LANES)), _NUMBER)

    return types.int64(values, types.intp), generate


are_positive = cast("Callable[[Floats, int], int]", _are_positive)
_fill_table, _fill_narrow_table = _make_fill_table(WIDE), _make_fill_table(1)
_add_selected, _add_selected_narrow = _make_add_selected(WIDE), _make_add_selected(1)
_WIDTH = WIDE * LANES


@kernel
def codes_of_rows(values: Floats, at: int, rows: int, columns: int, codes: Codes) -> None:
    """Codes [rows, columns / BITS] of a matrix: bit j says whether the j-th of BITS columns is above 0.

    `columns` is a multiple of LANES.
    """
    not_inlined()
    written = 0
    for read in range(0, rows * columns, LANES):
        bits = are_positive(values, at + read)
        for _ in range(LANES // BITS):
            codes[written] = bits & (SUMS - 1)
            bits >>= BITS
            written += 1


@kernel
def codes_of_columns(values: Floats, at: int, rows: int, columns: int, codes: Codes) -> None:
    """Codes [rows / BITS, columns] of a matrix: bit i says whether the i-th of BITS rows is above 0.

    `rows` is a multiple of BITS.
    """
    not_inlined()
    zero = np.float32(0.0)
    for group in range(rows // BITS):
        start = at + group * BITS * columns
        first, second = values[start : start + columns], values[start + columns : start + 2 * columns]
        start += 2 * columns
        third, fourth = values[start : start + columns], values[start + columns : start + 2 * columns]
        written = codes[group * columns : (group + 1) * columns]
        for j in range(columns):
            low = np.uint8(first[j] > zero) | np.uint8(second[j] > zero) << np.uint8(1)
            high = np.uint8(third[j] > zero) | np.uint8(fourth[j] > zero) << np.uint8(1)
            written[j] = low | high << np.uint8(2)


@kernel
def multiply_selected(
    codes: Codes,
    codes_row: int,
    codes_step: int,
    b: Floats,
    b_at: int,
    b_row: int,
    b_scales: Floats,
    c: Floats,
    c_at: int,
    c_row: int,
    c_scales: Floats,
    rows: int,
    columns: int,
    depth: int,
    tables: Floats,
) -> None:
    """C(m, n) = c_scales[m] * the sum of b_scales[k] * B(k, n) over those k that the codes select for m.

    codes[m * codes_row + g * codes_step] has the bits of the k from BITS * g on,
    B(k, n) = b[b_at + k * b_row + n], C(m, n) = c[c_at + m * c_row + n]. `rows` is a multiple of PAIR,
    `columns` of LANES, `depth` of BITS; `tables` has TABLES_SIZE numbers. C must not overlap B.
    """
    not_inlined()
    groups = depth // BITS
    j = 0
    while j < columns:
        wide = columns - j >= _WIDTH
        for begin in range(0, groups, TABLES):
            count = min(groups - begin, TABLES)
            for t in range(count):
                k = (begin + t) * BITS
                if wide:
                    _fill_table(b, b_at + k * b_row + j, b_row, b_scales, k, tables, t * SUMS * _WIDTH)
                else:
                    _fill_narrow_table(b, b_at + k * b_row + j, b_row, b_scales, k, tables, t * SUMS * LANES)
            is_last = begin + count == groups
            for i in range(0, rows, PAIR):
                at, to = i * codes_row + begin * codes_step, c_at + i * c_row + j
                scale = c_scales[i] if is_last else _ONE
                next_scale = c_scales[i + 1] if is_last else _ONE
                if not wide:
                    _add_selected_narrow(
                        codes,
                        at,
                        codes_row,
                        codes_step,
                        tables,
                        count,
                        c,
                        to,
                        c_row,
                        begin > 0,
                        scale,
                        next_scale,
                    )
                else:
                    _add_selected(
                        codes,
                        at,
                        codes_row,
                        codes_step,
                        tables,
                        count,
                        c,
                        to,
                        c_row,
                        begin > 0,
                        scale,
                        next_scale,
                    )
        j += _WIDTH if wide else LANES
