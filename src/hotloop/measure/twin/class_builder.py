"""Looks at each new class; `_core.c` does the same without a frame between a class body and its caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def class_builder(
    build: Callable[..., Any], names: tuple[str, ...], made: Callable[[type], object]
) -> Callable[..., Any]:
    """`build` for class statements, which calls `made(cls)` for each class with these attributes."""

    def build_class(*args: Any, **words: Any) -> Any:
        built = build(*args, **words)
        if isinstance(built, type) and all(any(n in vars(c) for c in built.__mro__) for n in names):
            made(built)
        return built

    return build_class
