"""Compiled learners and actors put into other people's libraries, checked against them while they run.

Python makes a subpackage an attribute of its package, so `hotloop.boost` is this module once it is imported.
It can be called, and `hotloop.boost()` works at any time.
"""

from __future__ import annotations

import sys
from types import ModuleType


def boost(background: bool = False) -> None:
    """Boost Stable-Baselines3 in this process; call it before training, best in the script's first line.

    With `background`, models train unboosted until their kernels are compiled, instead of waiting for them.
    Then two runs with the same seed differ.
    """
    from hotloop.boost.install import compile_in_background, install

    compile_in_background(background)
    install()


class _CallableModule(ModuleType):
    def __call__(self, background: bool = False) -> None:
        boost(background)


sys.modules[__name__].__class__ = _CallableModule
