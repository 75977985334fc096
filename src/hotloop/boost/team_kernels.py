"""Threads that run the same kernel on parts of its work, and wait for each other inside it.

Every thread calls the kernel with its own number (`part`). Which thread does what changes no number, because
nothing is added up across threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from hotloop.rl.train.fused.compiled import kernel

Counter = NDArray[np.int64]


def _data(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return context.make_array(signature.args[0])(context, builder, arguments[0]).data


@intrinsic
def _arrive(_typing: Any, counter: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _data(context, builder, signature, arguments)
        return builder.atomic_rmw("add", place, ir.IntType(64)(1), "seq_cst")

    return types.int64(counter), generate


@intrinsic
def _arrived(_typing: Any, counter: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_data(context, builder, signature, arguments), "seq_cst", 8)

    return types.int64(counter), generate


@intrinsic
def _give_way(_typing: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, ir.FunctionType(ir.IntType(32), []), "sched_yield"
        )
        builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), generate


arrive = cast("Callable[[Counter], int]", _arrive)
arrived = cast("Callable[[Counter], int]", _arrived)
give_way = cast("Callable[[], None]", _give_way)


@kernel
def wait_for_all(counter: Counter, parts: int) -> None:
    """Return when all `parts` threads have come here as often as this one; `counter` [1] begins at 0."""
    if parts > 1:
        last = (arrive(counter) // parts + 1) * parts
        while arrived(counter) < last:
            give_way()
