"""Whether tensors still have the types, shapes and strides with which kernels accepted them.

Torch's own function for this, made for torch.compile, looks at a tensor in 0.06 us; Python needs 0.04 us for
each attribute. Where torch does not have it, or it misses what it has to find, Python looks every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

data_ptr = Tensor.data_ptr


def _others(like: Tensor) -> list[Tensor]:
    """Tensors that differ from a plain one [4, 4] in one respect each."""
    return [
        like.double(), like.t(), like[:, :3], like[:3], like[0], like.detach().requires_grad_(),
        nn.Parameter(like, requires_grad=False), like.to("meta"), like.to_sparse(), like._neg_view(),
    ]  # fmt: skip


def guards_of_torch() -> Any:
    """Torch's function that notes how tensors are laid out, or None if it is not as we know it."""
    try:
        kind: Any = torch._C._dynamo.guards.TensorGuards
        plain = torch.zeros(4, 4)
        guards = kind(plain, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        if guards.check(torch.ones(4, 4)) is not True or any(guards.check(one) for one in _others(plain)):
            return None
    except (AttributeError, TypeError, RuntimeError, NotImplementedError):
        return None
    return kind


_guards_kind: Any = guards_of_torch()


class Layouts:
    """The types, devices, shapes and strides of a list of tensors when they were looked at last."""

    __slots__ = ("_noted",)

    def __init__(self) -> None:
        self._noted: tuple[int, Any] = (-1, None)

    def learn(self, tensors: Sequence[Tensor]) -> None:
        """Note the tensors as they are; the caller has found them right."""
        self._noted = (-1, None)
        if _guards_kind is not None and tensors:
            guards = _guards_kind(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
            self._noted = (len(tensors), guards.check)

    def are_same(self, tensors: Sequence[Tensor]) -> bool:
        """Whether tensors are as those noted; False, too, when that is not known."""
        count, check = self._noted
        return len(tensors) == count and check(*tensors)
