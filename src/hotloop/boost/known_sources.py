"""Whether a library's functions are those that the kernels copy: their source code is compared by hash.

The table `source_hashes.py` is written by `write_source_hashes.py`.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable
from functools import cache
from operator import getitem, is_
from pathlib import Path
from typing import Any

from hotloop.boost.source_hashes import HASHES, VERSIONS

OURS = str(Path(__file__).parents[1])


def unknown(names: Iterable[str]) -> str | None:
    """The reason why not, if one of these functions (dotted names) is not one we know; else None."""
    for name in names:
        function = _find(name)
        original = _original(function)
        label = ".".join(name.split(".")[-2:])
        if original is None:
            return f"{label} was replaced by {_where(function)}"
        if _hash_of(original) not in HASHES.get(name, ()):
            library = name.split(".")[0]
            version = getattr(sys.modules.get(library), "__version__", "?")
            return f"{label} of {library} {version} is not one that hotloop knows ({VERSIONS})"
    return None


def hash_of(name: str) -> str:
    """The hash of a library's function (dotted name); empty if someone else has replaced it."""
    original = _original(_find(name))
    return "" if original is None else _hash_of(original)


class Functions:
    """Functions of a library as they are now, to see whether someone replaces one."""

    def __init__(self, names: Iterable[str]):
        found = [(owner.__dict__, word) for owner, word in map(_owner, names) if word in owner.__dict__]
        self._owners, self._words = [owner for owner, _ in found], [word for _, word in found]
        self._functions = [owner[word] for owner, word in found]

    def changed(self) -> bool:
        """Takes two microseconds for forty functions."""
        try:
            return not all(map(is_, map(getitem, self._owners, self._words), self._functions))
        except KeyError:
            return True


def is_from(function: Any, package: str) -> bool:
    """Whether a function and those that it wraps are the package's, besides wrappers of ours."""
    folder = str(Path(str(sys.modules[package].__file__)).parent)
    while function is not None:
        file = getattr(getattr(function, "__code__", None), "co_filename", "")
        if not file.startswith((folder, OURS)) and not type(function).__module__.startswith("hotloop."):
            return False
        function = getattr(function, "__wrapped__", None)
    return True


def _find(name: str) -> Any:
    """A function by its dotted name, without the wrapper of a static or class method."""
    owner, word = _owner(name)
    found = inspect.getattr_static(owner, word, None)
    return found.__func__ if isinstance(found, (staticmethod, classmethod)) else found


def _owner(name: str) -> tuple[Any, str]:
    """The class or module that has the function, and its last name."""
    words = name.split(".")
    for split in range(len(words) - 1, 0, -1):
        module = sys.modules.get(".".join(words[:split]))
        if module is not None:
            break
    else:
        module, split = importlib.import_module(words[0]), 1
    owner: Any = module
    for word in words[split:-1]:
        owner = getattr(owner, word)
    return owner, words[-1]


def _original(function: Any) -> Callable[..., Any] | None:
    """The library's function below wrappers of ours; None when someone else has replaced it."""
    while True:
        code = getattr(function, "__code__", None)
        file = getattr(code, "co_filename", "")
        is_ours = file.startswith(OURS) or type(function).__module__.startswith("hotloop.")
        inner = getattr(function, "__wrapped__", None)
        if is_ours and inner is not None:
            function = inner
            continue
        return None if inner is not None or code is None else function


@cache
def _hash_of(function: Callable[..., Any]) -> str:
    try:
        return hash_of_source(inspect.getsource(function))
    except (OSError, TypeError):  # no source code, so nothing to compare
        return ""


def hash_of_source(source: str) -> str:
    return hashlib.sha256(textwrap.dedent(source).strip().encode()).hexdigest()[:16]


def _where(function: Any) -> str:
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)
