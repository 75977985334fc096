"""The quicker versions of parts of numba's compiler, next to numba's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba.core import ir
from numba.core.compiler import Flags, run_frontend

from hotloop.rl.envs import compiled as module
from hotloop.rl.envs.compiled import compiled
from hotloop.rl.envs.compiler_shortcuts import (
    SHORTCUTS,
    CompilerShortcuts,
    flags_are_equal,
    flags_hash,
    flags_values,
)


def everything(values: Any, table: Any, name: str = "x", *more: Any) -> Any:
    """Instructions of many kinds."""
    total, pairs = 0.0, {"a": values[0], name: 2}
    for i in range(1, values.size, 2):
        a, (b, c) = values[i], table[i:, ::2]
        if a > b and not c:
            values[i] = max(a, b, *more)
        elif a is None:
            raise ValueError("none", a)
        else:
            del a
            total += np.add(values[i], 1.0, dtype=np.float32)
    both = [one * total for one in (b, c)]
    print(total, name)
    return both, f"{total}:{pairs}", lambda: None


def variables(listing: Callable[..., Any]) -> list[list[str]]:
    blocks: Any = run_frontend(everything).blocks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ir.Inst, "_rec_list_vars", listing)
        return [
            [variable.name for variable in one.list_vars()]
            for block in blocks.values()
            for statement in block.body
            for one in (statement, getattr(statement, "value", statement))
            if isinstance(one, ir.Inst)
        ]


def test_the_variables_of_instructions_are_those_that_numba_lists() -> None:
    ours = variables(SHORTCUTS[0][2])
    assert ours == variables(ir.Inst._rec_list_vars)
    assert len(ours) > 150 and max(map(len, ours)) > 4


def test_flags_are_compared_as_numba_compares_them() -> None:
    flags: Any = Flags
    plain, same, other, by_default = flags(), flags(), flags(), flags()
    other.nrt = other.boundscheck = True
    by_default.nrt = plain.nrt  # set, to what it is anyway
    for one in (plain, same, other, by_default):
        assert flags_values(one) == one.values() and flags_hash(one) == hash(one)
        for another in (plain, same, other, by_default):
            assert flags_are_equal(one, another) is one.__eq__(another)
        assert flags_are_equal(one, "flags") is NotImplemented is one.__eq__("flags")
    assert not flags_are_equal(plain, other) and flags_are_equal(plain, by_default)


def test_they_are_in_place_only_while_a_kernel_is_compiled() -> None:
    def in_place() -> list[bool]:
        return [getattr(owner, name) is ours for owner, name, ours in SHORTCUTS]

    seen: list[list[bool]] = []

    def add(number: float) -> float:
        return number + 1.0

    kernel: Any = compiled(add)
    kernel._cache.disable()
    begin = CompilerShortcuts.begin
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompilerShortcuts, "begin", lambda self: (begin(self), seen.append(in_place())))
        assert kernel(1.0) == 2.0
    assert seen == [[True] * len(SHORTCUTS)] and not any(in_place())
    failing: Any = compiled(lambda number: number.no_such_thing)
    with pytest.raises(Exception, match="no_such_thing"):
        failing(1.0)
    assert not any(in_place()) and module._announcer._depth == 0
