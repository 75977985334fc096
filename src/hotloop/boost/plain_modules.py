"""Torch modules that kernels stand in for: whether they are still the same, and their training mode."""

from __future__ import annotations

from operator import attrgetter, getitem, is_, methodcaller
from typing import Any

import torch

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_facts = attrgetter("dtype", "requires_grad", "is_cpu", "_backward_hooks")
_PLAIN = (torch.float32, True, True, None)
_is_contiguous = methodcaller("is_contiguous")


class PlainModules:
    """Modules and those below them, as they were when `eligible.plain_module` accepted them."""

    def __init__(self, *modules: Any):
        self._own = [part.__dict__ for module in modules for part in module.modules()]
        self._hooks = [own[name] for own in self._own for name in _HOOKS]
        self._kept = [own[name] for own in self._own for name in ("_modules", "_parameters")]
        self._sizes = [len(kept) for kept in (*self._kept, *self._own)]
        self._parts = [value for kept in self._kept for value in kept.values()]
        self._owners = [kept for kept in self._kept for _ in kept]
        self._names = [name for kept in self._kept for name in kept]
        self._parameters = [value for own in self._own for value in own["_parameters"].values()]
        self._facts = [_PLAIN] * len(self._parameters)

    def changed(self) -> bool:
        """Whether a module or parameter was exchanged, or hooks, a method or another kind of tensor added.

        Called before every gradient step, so the loops are C's.
        """
        parameters = self._parameters
        try:
            parts = [*map(getitem, self._owners, self._names)]
        except KeyError:
            return True
        return (
            any(self._hooks)
            or [*map(len, self._kept), *map(len, self._own)] != self._sizes
            or not all(map(is_, parts, self._parts))
            or [*map(_facts, parameters)] != self._facts
            or not all(map(_is_contiguous, parameters))
        )

    def is_exchanged(self) -> bool:
        """The part of `changed` that is cheap enough for every action.

        Whether a module or parameter was exchanged, a module has hooks now, or an attribute that hides one of
        its methods.
        """
        try:
            is_same = all(map(is_, map(getitem, self._owners, self._names), self._parts))
        except KeyError:
            return True
        return not is_same or any(self._hooks) or [*map(len, self._own)] != self._sizes[len(self._kept) :]

    def set_training_mode(self, mode: bool) -> None:
        """What `Module.train(mode)` does, without `Module.__setattr__`."""
        for own in self._own:
            own["training"] = mode
