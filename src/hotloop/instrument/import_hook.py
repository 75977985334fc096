"""Runs a function right after a module is imported, without importing it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

AfterImport = Callable[[ModuleType], None]


class ImportHook(importlib.abc.MetaPathFinder):
    """A finder that finds nothing itself: it asks the other finders and wraps the loader they return."""

    def __init__(self, after: dict[str, AfterImport], around: Callable[[str], Any] | None = None):
        """`after` by module name; `around(name)` returns a context manager for the execution of a module."""
        self._after = dict(after)
        self._around = around
        self._searching: set[str] = set()

    def also(self, name: str, action: AfterImport) -> None:
        """Add an action for after the import of that module."""
        before = self._after.get(name)

        def both(module: ModuleType) -> None:
            if before is not None:
                before(module)
            action(module)

        self._after[name] = both

    def install(self) -> None:
        """Make it the first finder, and handle the modules that are already imported."""
        sys.meta_path.insert(0, self)
        for name in [name for name in self._after if name in sys.modules]:
            self.imported(sys.modules[name])

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def imported(self, module: ModuleType) -> None:
        """Run the action of a module that is now complete, once."""
        action = self._after.pop(module.__name__, None)
        if action is not None:
            action(module)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Called for every import; costs one dict lookup for modules that have no action."""
        if fullname not in self._after or fullname in self._searching:
            return None
        self._searching.add(fullname)
        try:
            for finder in sys.meta_path:
                if finder is self:
                    continue
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader, self)
                    return spec
        finally:
            self._searching.discard(fullname)
        return None


class _Loader(importlib.abc.Loader):
    """Runs the real loader, then the hook; everything else is delegated to the real loader."""

    def __init__(self, real: Any, hook: ImportHook):
        self._real = real
        self._hook = hook

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._real.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the real loader, execute the module with it, then run the action."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        module.__loader__ = self._real
        around = self._hook._around
        if around is None:
            self._real.exec_module(module)
        else:
            with around(module.__name__):
                self._real.exec_module(module)
        self._hook.imported(module)
