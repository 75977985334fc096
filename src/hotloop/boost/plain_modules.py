"""Torch modules that kernels stand in for: whether they are still the same, and their training mode."""

from __future__ import annotations

from operator import is_
from typing import Any

import torch


class PlainModules:
    """A module and those below it, as they were when `eligible.plain_module` accepted them."""

    def __init__(self, module: Any):
        self._own = [part.__dict__ for part in module.modules()]
        self._children = [list(own["_modules"].values()) for own in self._own]
        self._parameters = [list(own["_parameters"].values()) for own in self._own]

    def changed(self) -> bool:
        """Whether a module or parameter was exchanged, or hooks, a method or another kind of tensor added."""
        for own, children, parameters in zip(self._own, self._children, self._parameters, strict=True):
            if (
                own["_forward_hooks"]
                or own["_forward_pre_hooks"]
                or own["_backward_hooks"]
                or own["_backward_pre_hooks"]
                or "forward" in own
                or len(own["_modules"]) != len(children)
                or len(own["_parameters"]) != len(parameters)
                or not all(map(is_, own["_modules"].values(), children))
                or not all(map(is_, own["_parameters"].values(), parameters))
            ):
                return True
            for parameter in parameters:
                if (
                    parameter.dtype is not torch.float32
                    or not parameter.requires_grad
                    or not parameter.is_cpu
                    or not parameter.is_contiguous()
                    or parameter._backward_hooks
                ):
                    return True
        return False

    def set_training_mode(self, mode: bool) -> None:
        """What `Module.train(mode)` does, without `Module.__setattr__`."""
        for own in self._own:
            own["training"] = mode
