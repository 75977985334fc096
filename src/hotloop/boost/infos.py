"""Copies of observations and infos, which `DummyVecEnv` makes at every step, cheaper than by `deepcopy`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

# Copying one of these gives an equal object that cannot be changed.
IMMUTABLE = frozenset(
    {bool, int, float, complex, str, bytes, type(None), np.bool_, np.float32, np.float64, np.int64}
)


class _NotPlain(Exception):
    pass


def fast_deepcopy(deepcopy: Callable[..., Any]) -> Callable[..., Any]:
    """A function that copies lists and dicts of plain values itself and leaves the rest to `deepcopy`."""

    def copy(value: Any, memo: Any = None) -> Any:
        if memo is None:
            try:
                return _copy(value, set())
            except _NotPlain:
                pass
        return deepcopy(value) if memo is None else deepcopy(value, memo)

    return copy


def _copy(value: Any, seen: set[int]) -> Any:
    kind = type(value)
    if kind in IMMUTABLE:
        return value
    if kind not in (dict, OrderedDict, list, np.ndarray) or id(value) in seen:
        raise _NotPlain  # the same object twice stays one object in a deep copy
    seen.add(id(value))
    if kind is dict or kind is OrderedDict:
        copies = {
            key if type(key) is str else _copy(key, seen): _copy(item, seen) for key, item in value.items()
        }
        return copies if kind is dict else OrderedDict(copies)
    if kind is list:
        return [_copy(item, seen) for item in value]
    if value.dtype.hasobject:
        raise _NotPlain
    return value.copy(order="K")
