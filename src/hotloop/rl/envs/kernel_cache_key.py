"""A hash of everything that a kernel's machine code depends on: the key of its entry in the disk cache.

Numba drops cached code when the bytes of the kernel's own file change. That is too often, because a comment
is enough, and not often enough, because a kernel is compiled into its callers and those may live in other
files. This key covers what numba actually compiles: the byte code of the kernel and of every kernel it calls,
and the values of the globals they use. Comments, docstrings, annotations, line numbers, paths and file times
do not matter. The key describes the code loaded in this process, so editing a file meanwhile is safe.
"""

from __future__ import annotations

import dis
import enum
import hashlib
import sys
from collections.abc import Iterator
from functools import cache
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
from numba.core import types
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic

# Their functions are identified by name: numba brings its own implementations of them.
_LIBRARIES = {"numba", "numpy", "llvmlite", *sys.stdlib_module_names} - {"__main__"}


def kernel_cache_key(dispatcher: Dispatcher) -> str:
    """Hash the kernel, all it calls and all constants it uses.

    Compute it when the kernel is called, not when it is decorated: what it uses may be defined further down.
    """
    return hashlib.sha256("\0".join(describe_kernel(dispatcher)).encode()).hexdigest()


def describe_kernel(dispatcher: Dispatcher) -> Iterator[str]:
    """What the key is made from."""
    yield f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__qualname__}"
    yield from _describe(dispatcher, (), {})


def describe_type(numba_type: Any) -> str:
    """Name a type together with the fields of its named tuples, which numba's own name leaves out."""
    parts = [str(numba_type)]
    if isinstance(numba_type, types.BaseNamedTuple):
        parts += numba_type.fields  # type: ignore[attr-defined]
    if isinstance(numba_type, types.BaseTuple):
        parts += [describe_type(member) for member in numba_type]  # type: ignore[attr-defined]
    return " ".join(parts)


class _Code(NamedTuple):
    """What a function does, and the names through which it reaches other objects."""

    instructions: list[str]
    outer_names: tuple[str, ...]  # globals and variables of enclosing functions
    attributes: tuple[str, ...]


def _describe(value: Any, attributes: tuple[str, ...], seen: dict[int, int]) -> Iterator[str]:
    """Describe a value that a kernel uses; of a module, only what is among the `attributes` the code reads.

    `seen` numbers the functions, for those that call themselves. What is not recognised is described by its
    `repr`. If that contains an address, the kernel is compiled in every process: slow, but never wrong.
    """
    if isinstance(value, Dispatcher):
        options = sorted(value.targetoptions.items())
        yield f"kernel {[(name, _stable_repr(option)) for name, option in options]}"
        yield from _describe_function(value.py_func, seen)
    elif isinstance(value, _Intrinsic):
        yield "intrinsic"
        yield from _describe_function(value._defn, seen)
    elif isinstance(value, ModuleType):
        yield f"module {value.__name__}"
        if not _is_library(value.__name__):
            for name in attributes:
                if name in vars(value):
                    yield name
                    yield from _describe(vars(value)[name], attributes, seen)
    elif isinstance(value, FunctionType) and not _is_library(value.__module__):
        yield "function"
        yield from _describe_function(value, seen)
    elif isinstance(value, type | FunctionType | BuiltinFunctionType | np.ufunc):
        yield f"name {getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
        if isinstance(value, enum.EnumMeta):
            yield repr(dict(value.__members__))
        yield repr(getattr(value, "_fields", ""))
    elif isinstance(value, tuple | list):
        yield f"{type(value).__qualname__} {len(value)} {getattr(value, '_fields', '')!r}"
        for item in value:
            yield from _describe(item, attributes, seen)
    elif isinstance(value, np.ndarray):
        yield f"array {value.dtype.descr!r} {value.shape} {value.flags.c_contiguous}"
        yield hashlib.sha256(value.tobytes()).hexdigest()
    else:
        yield f"{type(value).__qualname__} {_stable_repr(value)}"


def _describe_function(function: FunctionType, seen: dict[int, int]) -> Iterator[str]:
    if id(function) in seen:
        yield f"seen {seen[id(function)]}"
        return
    seen[id(function)] = len(seen)
    code = _read_code(function.__code__)
    yield from code.instructions
    yield from _describe((function.__defaults__, sorted((function.__kwdefaults__ or {}).items())), (), seen)
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for name in code.outer_names:
        yield name
        if name in cells:
            yield from _describe(cells[name].cell_contents, code.attributes, seen)
        elif name in function.__globals__:  # else it is a builtin
            yield from _describe(function.__globals__[name], code.attributes, seen)


@cache
def _read_code(code: CodeType) -> _Code:
    """Arguments of instructions are resolved: a constant's index changes when a docstring comes or goes."""
    words = [f"{code.co_flags} {code.co_argcount} {code.co_kwonlyargcount} {code.co_posonlyargcount}"]
    outer_names, attributes = set(code.co_freevars), set(code.co_names)
    for instruction in dis.get_instructions(code):
        argument = instruction.argval
        if isinstance(argument, CodeType):
            inner = _read_code(argument)
            words += inner.instructions
            outer_names.update(inner.outer_names)
            attributes.update(inner.attributes)
        elif instruction.opname != "EXTENDED_ARG":
            words.append(f"{instruction.opname} {_stable_repr(argument)}")
        if instruction.opname == "LOAD_GLOBAL":
            outer_names.add(argument)
    words.append(code.co_exceptiontable.hex())
    return _Code(words, tuple(sorted(outer_names)), tuple(sorted(attributes)))


def _stable_repr(value: Any) -> str:
    """`repr`, with the members of a set in an order that does not change between processes."""
    if isinstance(value, set | frozenset):
        return f"set {sorted(map(repr, value))}"
    return repr(value)


def _is_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _LIBRARIES
