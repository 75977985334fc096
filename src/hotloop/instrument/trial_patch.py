"""Base classes of the patches that `hotloop try` applies and undoes while a script runs.

A patch is safe: with it the script computes the same up to rounding, and `undo` restores exactly what `apply`
found. Each one knows the line of code that makes it permanent.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any, Literal

from hotloop.instrument.patch import Patch, Patches

# Where the line goes: after the imports, before training, into the call that creates the model or optimizer,
# or into `learn`.
Place = Literal["imports", "training", "model", "learn"]


class TrialPatch:
    """One patch. `apply` and `undo` are called in turn, from the thread that trains."""

    name = ""
    line = ""  # what a user would write
    why = ""  # what it does and what it costs
    needs: tuple[str, ...] = ()  # imports the line needs
    place: Place = "imports"
    between_phases = False  # takes effect only between collecting and learning
    in_workers = False  # may take effect in worker processes too
    conflicts: tuple[str, ...] = ()  # names of patches it cannot be combined with

    def skip_reason(self) -> str | None:
        """Why the patch would change nothing in this process; None if it would."""
        raise NotImplementedError

    def apply(self) -> None:
        raise NotImplementedError

    def undo(self) -> None:
        """Restore exactly what `apply` found."""
        raise NotImplementedError


class WrappingPatch(TrialPatch):
    """A patch that replaces functions of a library."""

    def __init__(self) -> None:
        self._applied = Patches()

    def wrapped(self) -> Iterable[Patch]:
        """The functions to replace."""
        raise NotImplementedError

    def apply(self) -> None:
        self._applied.apply(self.wrapped())

    def undo(self) -> None:
        self._applied.undo()


def live_objects(*kinds: type) -> list[Any]:
    """All live objects of some classes and their subclasses; takes some hundredths of a second.

    Every object refers to its class. A list of all objects would contain tuples that other threads are still
    filling, and these threads would then fail with a SystemError.
    """
    classes = frozenset().union(*map(_with_subclasses, kinds))
    return [thing for thing in gc.get_referrers(*classes) if type(thing) in classes]


def _with_subclasses(cls: Any) -> set[Any]:
    return {cls}.union(*map(_with_subclasses, type.__subclasses__(cls)))
