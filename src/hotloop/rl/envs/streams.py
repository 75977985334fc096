"""Random numbers inside kernels: each row has its own stream, identical to numpy's default generator.

Row i of a batch seeded with s draws the numbers of `numpy.random.default_rng(s + i).random()`. So a reference
written with a numpy generator and kernels written with `next_double` see the same numbers, for any batch size
and number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from hotloop.rl.envs.compiled import INTERPRETED, kernel

Streams = NDArray[np.uint64]  # [rows, 4]: state high, state low, increment high, increment low

_WORD = (1 << 64) - 1
_MULTIPLIER = (2549297995355413924 << 64) + 4865540595714422341
_TO_UNIT = 1.0 / 9007199254740992.0  # 2^-53


def make_streams(rows: int) -> Streams:
    """Allocate streams for `rows` rows; seed them before use."""
    return np.zeros((rows, 4), dtype=np.uint64)


def seed_streams(streams: Streams, seeds: Iterable[int | None]) -> None:
    """Seed each row's stream like numpy's `default_rng(seed)`; None takes entropy from the system."""
    for row, seed in enumerate(seeds):
        copy_stream_from(np.random.default_rng(seed), streams, row)


def copy_stream_from(rng: np.random.Generator, streams: Streams, row: int) -> None:
    """Copy the state of a numpy generator (PCG64, as in `default_rng`) to a row."""
    state: Any = rng.bit_generator.state
    value, increment = state["state"]["state"], state["state"]["inc"]
    streams[row] = (value >> 64, value & _WORD, increment >> 64, increment & _WORD)


def copy_stream_to(streams: Streams, row: int, rng: np.random.Generator) -> None:
    """Copy the state of a row to a numpy generator."""
    high, low, add_high, add_low = (int(word) for word in streams[row])
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": add_high << 64 | add_low},
        "has_uint32": 0,
        "uinteger": 0,
    }


@intrinsic
def _step(_typing: Any, high: Any, low: Any, add_high: Any, add_low: Any) -> Any:
    """Compute state * multiplier + increment in 128 bits; numbers are passed as two words."""
    word, whole = ir.IntType(64), ir.IntType(128)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def joined(high: Any, low: Any) -> Any:
            return builder.or_(builder.shl(builder.zext(high, whole), whole(64)), builder.zext(low, whole))

        product = builder.mul(joined(arguments[0], arguments[1]), whole(_MULTIPLIER))
        state = builder.add(product, joined(arguments[2], arguments[3]))
        parts = [builder.trunc(builder.lshr(state, whole(64)), word), builder.trunc(state, word)]
        return context.make_tuple(builder, signature.return_type, parts)

    two_words = types.UniTuple(types.uint64, 2)  # type: ignore[no-untyped-call]
    return two_words(*[types.uint64] * 4), generate


def _plain_step(high: Any, low: Any, add_high: Any, add_low: Any) -> tuple[np.uint64, np.uint64]:
    """`_step` in Python, for NUMBA_DISABLE_JIT=1."""
    state = (int(high) << 64 | int(low)) * _MULTIPLIER + (int(add_high) << 64 | int(add_low))
    return np.uint64(state >> 64 & _WORD), np.uint64(state & _WORD)


step_words = cast(
    "Callable[[np.uint64, np.uint64, np.uint64, np.uint64], tuple[np.uint64, np.uint64]]",
    _plain_step if INTERPRETED else _step,
)


@kernel
def to_unit(high: np.uint64, low: np.uint64) -> float:
    """Return the number in [0, 1) for a state: the upper 53 bits of the generator's XSL-RR output."""
    mixed, turn = high ^ low, high >> np.uint64(58)
    turned = (mixed >> turn) | (mixed << ((np.uint64(64) - turn) & np.uint64(63)))
    return np.int64(turned >> np.uint64(11)) * _TO_UNIT


@kernel
def next_double(streams: Streams, row: int) -> float:
    """Return the row's next number in [0, 1).

    A kernel that draws many numbers from one row is faster with `step_words` and `to_unit`: it keeps the four
    words in registers and writes the first two back at the end, instead of loading what was just stored.
    """
    high, low = step_words(streams[row, 0], streams[row, 1], streams[row, 2], streams[row, 3])
    streams[row, 0], streams[row, 1] = high, low
    return to_unit(high, low)


@kernel
def next_below(streams: Streams, row: int, bound: int) -> int:
    """Return the row's next integer from 0 to bound - 1, equal to `int(rng.random() * bound)`."""
    return int(next_double(streams, row) * bound)
