"""Regions inside networks: recorded when a network runs eager, absent from a compiled graph."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from hotloop import profile


class ModelRegion:
    """A named part of a forward pass; a compiled module records its outer region only.

    >>> _layers = ModelRegion("convlstm_layers")
    >>> with _layers():
    ...     pass
    """

    def __init__(self, name: str):
        self._region: AbstractContextManager[Any] = profile(name)

    def __call__(self) -> AbstractContextManager[Any]:
        """The region, or nothing while torch traces the module."""
        return nullcontext() if torch.compiler.is_compiling() else self._region
