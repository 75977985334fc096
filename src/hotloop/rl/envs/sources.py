"""Which source files a kernel was made from, so that code kept on disk is never older than its sources.

numba throws kept code away when the kernel's own file changes. But kernels are compiled into those that
call them: after an edit of a file that it imports, a kernel would go on with the old code.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import linecache
import os
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

_HOME = Path(__file__).parents[3]  # the folder that hotloop lies in
_BEGAN_S = time.time()  # this file is read before any that holds kernels
_OF_OTHERS = ("site-packages", "dist-packages")


def watch(dispatcher: Any, function: Callable[..., Any]) -> None:
    """Let a change in any file that the kernel was made from throw its kept code away."""
    kept = dispatcher._cache._cache_file
    stamp = fingerprint(Path(function.__code__.co_filename).absolute(), function.__module__)
    kept._source_stamp = (kept._source_stamp, stamp)


@cache
def fingerprint(file: Path, module: str) -> str:
    """A hash of the file, which holds this module, and of every file it imports, directly or not.

    Of packages installed by others only the module's own is looked at, of hotloop only `hotloop.rl`.
    """
    found: dict[Path, bytes] = {}
    left = [(file, module)]
    while left:
        one, name = left.pop()
        if one not in found:
            found[one] = _source(one)
            left += imported(one, name)
    digest = hashlib.sha256()
    for one in sorted(found):
        digest.update(found[one])
        if one.is_file() and one.stat().st_mtime > _BEGAN_S:
            # Edited while this process runs: what it has loaded may be older than what was read here, so
            # nobody else may take up what it compiles.
            digest.update(os.urandom(16))
    return digest.hexdigest()


@cache
def imported(file: Path, module: str) -> tuple[tuple[Path, str], ...]:
    """The files that this one imports, each with the name of its module."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    names = []
    for node in ast.walk(ast.parse(_source(file))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (package or not node.level):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package or None)
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    depth = module.count(".") + (file.name == "__init__.py")
    root = file.parents[min(depth, len(file.parents) - 1)]
    places = ((_place(name, module, root), name) for name in dict.fromkeys(names))
    return tuple((place, name) for place, name in places if place is not None)


def _place(name: str, importer: str, root: Path) -> Path | None:
    """The file of a module that may hold kernels; None for all others."""
    if name.partition(".")[0] == "hotloop":
        if not name.startswith("hotloop.rl."):
            return None
        root = _HOME
    elif root.name in _OF_OTHERS and name.partition(".")[0] != importer.partition(".")[0]:
        return None
    place = root.joinpath(*name.split("."))
    for file in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
        if file.is_file():
            return file
    return None


def _source(file: Path) -> bytes:
    """What a file holds; a cell of a notebook is no file, but Python knows its lines."""
    if file.is_file():
        return file.read_bytes()
    return "".join(linecache.getlines(str(file))).encode()
