"""How the learner's kernels are compiled: like every kernel, with leave to reorder and contract sums.

Reordering changes the last digits only; not-a-number and infinity keep their meaning, so that a run that
goes wrong is seen.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

import numba
from numba.core import types
from numba.extending import intrinsic

from hotloop.rl.envs import compiled
from hotloop.rl.envs.compiled import Function

_PACKAGE = Path(__file__).parents[3]  # the folder of hotloop


def fast_kernel(function: Function) -> Function:
    """Compile a function over float32 arrays; sums may be reordered and contracted, NaN stays NaN.

    The compiled code is kept on disk until the function's file, or one that it imports, changes.
    """
    compiled._announced.add(function)
    allowed = {"contract", "reassoc", "nsz"}
    made = numba.njit(nogil=True, cache=True, error_model="numpy", fastmath=allowed)(function)
    _watch_imports(made, function)
    return cast(Function, made)


def _watch_imports(dispatcher: Any, function: Callable[..., Any]) -> None:
    """Let changes of imported files invalidate the kept code; numba itself looks at the own file only.

    Kernels are compiled into their callers: without this, a caller would go on with the old code.
    """
    kept = dispatcher._cache._cache_file
    kept._source_stamp = (kept._source_stamp, fingerprint(Path(function.__code__.co_filename)))


@cache
def fingerprint(file: Path) -> str:
    """A hash of the file and of every file of `hotloop.rl` that it imports, directly or not."""
    found: dict[Path, bytes] = {}
    left = [file]
    while left:
        one = left.pop()
        if one not in found:
            found[one] = one.read_bytes()
            left += _imported(found[one])
    digest = hashlib.sha256()
    for one in sorted(found):
        digest.update(found[one])
    return digest.hexdigest()


def _imported(source: bytes) -> list[Path]:
    """The files of `hotloop.rl` that this source names in its imports."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    places = [_PACKAGE.joinpath(*name.split(".")[1:]) for name in names if name.startswith("hotloop.rl.")]
    return [place.with_suffix(".py") for place in places if place.with_suffix(".py").is_file()]


@intrinsic
def _not_inlined(_typing: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate


# Called inside a kernel: the compiler keeps the kernel a function of its own instead of copying it into
# callers. The product of matrices is called at many places; copies made compilation slower, not the code
# faster.
not_inlined = cast("Callable[[], None]", _not_inlined)
