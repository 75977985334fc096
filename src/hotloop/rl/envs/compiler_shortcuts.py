"""Quicker versions of two parts of numba's compiler, which return the same.

Most of the time of a compilation is spent in numba's Python code. It looks up every operator and function by
the flags of the compiler, and builds a dictionary of all flags at each comparison; and it lists the variables
of each instruction several times, with a call for each name and line number in it. Without that, Petri's
kernels compile in 8.6 instead of 10.2 s of CPU time, Track's in 4.7 instead of 5.3 s (first reset and step,
Xeon at 2.5 GHz, busy). They are in place only while kernels are compiled.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from numba.core import ir
from numba.core.targetconfig import TargetConfig

_WITHOUT_VARIABLES = frozenset((str, int, float, bool, type(None), ir.Loc))


def list_variables(instruction: Any, value: Any) -> list[Any]:
    """`Inst._rec_list_vars`: the variables in a field of an instruction, in order."""
    if isinstance(value, ir.Var):
        return [value]
    if isinstance(value, ir.Inst):
        return value.list_vars()  # type: ignore[no-untyped-call, no-any-return]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    found: list[Any] = []
    for one in value:
        kind = type(one)
        if kind is ir.Var:
            found.append(one)
        elif kind not in _WITHOUT_VARIABLES:
            found.extend(list_variables(instruction, one))
    return found


@cache
def _defaults(kind: type) -> dict[str, Any]:
    options: dict[str, Any] = vars(kind)["options"]
    return {name: option.default for name, option in options.items()}


@cache
def _hash(kind: type) -> int:
    return hash(tuple(sorted(_defaults(kind))))


def flags_values(flags: Any) -> dict[str, Any]:
    """`TargetConfig.values`: all flags by name."""
    set_ones: dict[str, Any] = flags._values
    kind: type = type(flags)
    return _defaults(kind) | set_ones


def flags_hash(flags: Any) -> int:
    """`TargetConfig.__hash__`, which depends on the names only."""
    kind: type = type(flags)
    return _hash(kind)


def flags_are_equal(flags: Any, other: Any) -> Any:
    """`TargetConfig.__eq__`."""
    if flags is other:
        return True
    if not isinstance(other, TargetConfig):
        return NotImplemented
    return flags._values == other._values or flags_values(flags) == flags_values(other)


SHORTCUTS = (
    (ir.Inst, "_rec_list_vars", list_variables),
    (TargetConfig, "values", flags_values),
    (TargetConfig, "__hash__", flags_hash),
    (TargetConfig, "__eq__", flags_are_equal),
)


class CompilerShortcuts:
    """Puts the quicker versions in place, and numba's own back."""

    def __init__(self) -> None:
        self._numbas: list[Any] = []

    def begin(self) -> None:
        """Replace numba's functions."""
        self._numbas = [getattr(owner, name) for owner, name, _ in SHORTCUTS]
        for owner, name, ours in SHORTCUTS:
            setattr(owner, name, ours)

    def end(self) -> None:
        for (owner, name, _), numbas in zip(SHORTCUTS, self._numbas, strict=True):
            setattr(owner, name, numbas)
