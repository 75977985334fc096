"""Checks data from a file against the type that it should have, and builds that type.

A type is written as an annotation: `int`, `float`, `str`, `bool`, `None`, `Any`, `Literal`, `Path`, unions,
`list`, `tuple`, `dict`, a dataclass or a TypedDict of these. Unknown keys of a dataclass are left out, those
of a TypedDict are kept: a newer hotloop may have added them.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from hotloop._util.visible import visible

Check = Callable[[Any, str], Any]
LEAST_INT, MOST_INT = -(2**63), 2**64 - 1  # what any of our files can hold


class Misfit(ValueError):
    """A value of the wrong type; the message names its place."""


def conform(value: Any, kind: Any, where: str) -> Any:
    """`value` as `kind`; raises Misfit, in which `where` is the name of the value."""
    return check_of(kind)(value, where)


@cache
def check_of(kind: Any) -> Check:
    """The function that checks and builds values of this type."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value, where: value
    if kind in _SCALARS:
        return _SCALARS[kind]
    if origin is typing.Literal:
        return _choice(inner)
    if origin in (typing.Union, types.UnionType):
        return _union(tuple(check_of(option) for option in inner))
    if origin is list:
        return _items(check_of(inner[0]), list)
    if origin is tuple and inner[1:] == (...,):
        return _items(check_of(inner[0]), tuple)
    if origin is tuple:
        return _record(tuple(check_of(one) for one in inner))
    if origin is dict:
        return _mapping(inner[0] is int, check_of(inner[1]))
    if origin in (typing.Required, typing.NotRequired):
        return check_of(inner[0])
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind)
    if typing.is_typeddict(kind):
        return _typed_dict(kind)
    raise TypeError(f"conform does not know {kind!r}")


def _wrong(value: Any, where: str, wanted: str) -> Misfit:
    shown = repr(value)
    where = visible(where)  # names of keys come from the file
    return Misfit(f"{where} is {shown if len(shown) <= 60 else shown[:57] + '...'}, not {wanted}")


# -- scalars -------------------------------------------------------------------------------------


def _whole(value: Any, where: str) -> int:
    if type(value) is int and LEAST_INT <= value <= MOST_INT:
        return value
    raise _wrong(value, where, "a whole number of 64 bits")


def _number(value: Any, where: str) -> float:
    if type(value) is float or (type(value) is int and LEAST_INT <= value <= MOST_INT):
        return value
    raise _wrong(value, where, "a number")


def _text(value: Any, where: str) -> str:
    if type(value) is str:
        return value
    raise _wrong(value, where, "text")


def _yes_or_no(value: Any, where: str) -> bool:
    if type(value) is bool:
        return value
    raise _wrong(value, where, "true or false")


def _nothing(value: Any, where: str) -> None:
    if value is not None:
        raise _wrong(value, where, "null")


def _path(value: Any, where: str) -> Path:
    return Path(_text(value, where))


_SCALARS: dict[Any, Check] = {
    int: _whole,
    float: _number,
    str: _text,
    bool: _yes_or_no,
    None: _nothing,
    type(None): _nothing,
    Path: _path,
}


# -- compounds -----------------------------------------------------------------------------------


def _choice(allowed: tuple[Any, ...]) -> Check:
    def check(value: Any, where: str) -> Any:
        for one in allowed:
            if type(value) is type(one) and value == one:
                return one
        raise _wrong(value, where, f"one of {', '.join(map(str, allowed))}")

    return check


def _union(options: tuple[Check, ...]) -> Check:
    def check(value: Any, where: str) -> Any:
        reason: Misfit | None = None
        for option in options:
            try:
                return option(value, where)
            except Misfit as misfit:
                reason = reason or misfit  # the first option is the one that is usually there
        assert reason is not None
        raise reason

    return check


def _items(item: Check, build: Callable[[Any], Any]) -> Check:
    def check(value: Any, where: str) -> Any:
        if not isinstance(value, (list, tuple)):
            raise _wrong(value, where, "a list")
        return build(item(one, f"{where}[{place}]") for place, one in enumerate(value))

    return check


def _record(items: tuple[Check, ...]) -> Check:
    def check(value: Any, where: str) -> Any:
        if not isinstance(value, (list, tuple)) or len(value) != len(items):
            raise _wrong(value, where, f"a list of {len(items)}")
        return tuple(
            item(one, f"{where}[{at}]") for at, (item, one) in enumerate(zip(items, value, strict=True))
        )

    return check


def _mapping(by_number: bool, item: Check) -> Check:
    def check(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, where, "an object")
        made = {}
        for key, one in value.items():
            if by_number:
                if not (str(key).isascii() and str(key).isdigit() and len(str(key)) < 20):
                    raise _wrong(key, f"a key of {where}", "a number")
                key = int(key)
            made[key] = item(one, f"{where}.{key}")
        return made

    return check


def _dataclass(kind: Any) -> Check:
    hints = typing.get_type_hints(kind)
    checks = {field.name: check_of(hints[field.name]) for field in dataclasses.fields(kind)}
    required = [
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]

    def check(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, where, "an object")
        _need(value, required, where)
        return kind(**{n: checks[n](one, f"{where}.{n}") for n, one in value.items() if n in checks})

    return check


def _typed_dict(kind: Any) -> Check:
    hints = typing.get_type_hints(kind, include_extras=True)
    checks = {name: check_of(hint) for name, hint in hints.items()}
    # Python 3.11 does not see NotRequired in `__required_keys__` where annotations are strings.
    origins = {name: typing.get_origin(hint) for name, hint in hints.items()}
    optional = typing.NotRequired
    required = [name for name in sorted(kind.__required_keys__) if origins[name] is not optional]

    def check(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, where, "an object")
        _need(value, required, where)
        return {n: checks[n](one, f"{where}.{n}") if n in checks else one for n, one in value.items()}

    return check


def _need(value: dict[str, Any], required: list[str], where: str) -> None:
    for name in required:
        if name not in value:
            raise Misfit(f"{visible(where)} has no {name!r}")
