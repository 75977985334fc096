"""A patch replaces one attribute, remembers the original, and restores exactly that."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from hotloop._util.interrupts import is_users

_ABSENT = object()
Maker = Callable[[Callable[..., Any]], Callable[..., Any]]
Remaker = Callable[[Callable[..., Any], Callable[..., Any]], Callable[..., Any]]


class Patch:
    """Replaces one attribute of a class, module or object by `make(original)`."""

    def __init__(self, owner: Any, name: str, make: Maker):
        self.owner = owner
        self.name = name
        self._make = make
        self._then: Remaker | None = None
        self._was: Any = _ABSENT
        self._ours: Any = _ABSENT

    def __repr__(self) -> str:
        return f"Patch({getattr(self.owner, '__qualname__', self.owner)!r}, {self.name!r})"

    def _get(self) -> Any:
        return vars(self.owner).get(self.name, _ABSENT)

    def _put(self, value: Any) -> None:
        if value is _ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)

    def apply(self) -> None:
        """Replace the attribute; static and class methods remain such."""
        self._was = self._get()
        raw = getattr(self.owner, self.name) if self._was is _ABSENT else self._was
        function = raw.__func__ if isinstance(raw, (staticmethod, classmethod)) else raw
        made = self._make(function)
        if self._then is not None:
            made = self._then(made, function)
        wrapper: Any = functools.update_wrapper(made, function)
        self._ours = type(raw)(wrapper) if isinstance(raw, (staticmethod, classmethod)) else wrapper
        self._put(self._ours)
        _name_after_place(wrapper, self.owner, self.name)

    def then(self, remake: Remaker) -> None:
        """Replace our replacement by `remake(replacement, original)`, now or when the patch is applied.

        Does nothing if someone else has replaced the attribute since.
        """
        self._then = remake
        if self._ours is _ABSENT or self._get() is not self._ours:
            return
        ours = self._ours
        plain = isinstance(ours, (staticmethod, classmethod))
        made = ours.__func__ if plain else ours
        wrapper = functools.update_wrapper(remake(made, made.__wrapped__), made.__wrapped__)
        self._ours = type(ours)(wrapper) if plain else wrapper
        self._put(self._ours)
        _name_after_place(wrapper, self.owner, self.name)

    def undo(self) -> bool:
        """Restore the original; False, with nothing done, if someone else has replaced it since."""
        if self._ours is _ABSENT:
            return True
        if self._get() is not self._ours:
            return False
        self._put(self._was)
        self._ours = _ABSENT
        return True


def _name_after_place(wrapper: Any, owner: Any, name: str) -> None:
    """Let pickle find a wrapper, by the name of the attribute that it replaces.

    A function is pickled by its name. `torch.save` is called `torch.serialization.save`, which is still the
    original, so pickle would refuse to write ours. A process that is not recorded reads the original.
    """
    if not isinstance(owner, (ModuleType, type)):
        return
    found: Any = sys.modules.get(getattr(wrapper, "__module__", None) or "")
    for part in getattr(wrapper, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    if found is not wrapper:
        is_module = isinstance(owner, ModuleType)
        wrapper.__module__ = owner.__name__ if is_module else owner.__module__
        wrapper.__qualname__ = name if is_module else f"{owner.__qualname__}.{name}"


class Replacement(Patch):
    """Replaces something that is no function."""

    def apply(self) -> None:
        self._was = self._get()
        self._ours = self._make(self._was)
        self._put(self._ours)


class Patches:
    """Patches that are undone in reverse order."""

    def __init__(self) -> None:
        self._applied: list[Patch] = []

    def __len__(self) -> int:
        return len(self._applied)

    def apply(self, patches: Iterable[Patch]) -> None:
        """Apply each; skips those that cannot be applied because a name has moved."""
        for patch in patches:
            try:
                patch.apply()
            except (AttributeError, TypeError) as error:
                if is_users(error):
                    raise
                continue
            self._applied.append(patch)

    def undo(self) -> list[Patch]:
        """Restore everything; returns the patches that stay because someone else has patched over them."""
        stuck = [patch for patch in reversed(self._applied) if not patch.undo()]
        self._applied.clear()
        return stuck


def follow_subclasses(base: type, patches_of: Callable[[type], Iterable[Patch]], into: Patches) -> Patch:
    """Patch `base` and all its subclasses, existing and future.

    Returns the patch of `__init_subclass__` that waits for new ones; apply it last.
    """
    seen: set[type] = set()

    def visit(cls: type) -> None:
        if cls not in seen:
            seen.add(cls)
            into.apply(patches_of(cls))
            below: list[type] = cls.__subclasses__()
            for derived in below:
                visit(derived)

    visit(base)

    return _SubclassPatch(base, visit)


class _SubclassPatch(Patch):
    """Patches `__init_subclass__`, which is always a class method, declared or not."""

    def __init__(self, owner: type, visit: Callable[[type], None]):
        super().__init__(owner, "__init_subclass__", lambda function: function)
        self._visit = visit

    def apply(self) -> None:
        """Run the original, then visit the new class."""
        self._was = vars(self.owner).get(self.name, _ABSENT)
        before = self._was.__func__ if self._was is not _ABSENT else None

        def made(cls: Any, /, **words: Any) -> None:
            if before is not None:
                before(cls, **words)
            else:
                super(self.owner, cls).__init_subclass__(**words)
            self._visit(cls)

        self._ours = classmethod(made)
        setattr(self.owner, self.name, self._ours)
