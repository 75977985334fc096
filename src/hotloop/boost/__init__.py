"""Compiled learners and actors put into other people's libraries, checked against them while they run.

Python makes a subpackage an attribute of its package, so `hotloop.boost` is this module once it is imported.
It can be called, and `hotloop.boost()` works at any time.
"""

from __future__ import annotations

import sys
from types import ModuleType


def boost() -> None:
    """Boost Stable-Baselines3 in this process; call it before training, best in the script's first line."""
    from hotloop.boost.install import install

    install()


class _CallableModule(ModuleType):
    def __call__(self) -> None:
        boost()


sys.modules[__name__].__class__ = _CallableModule
