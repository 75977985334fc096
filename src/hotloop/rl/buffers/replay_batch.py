"""The memory that a replay buffer writes samples to: one block with named views."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop._util.extras import require_extra
from hotloop.rl.buffers import replay_kernels as kernels
from hotloop.rl.buffers.raw_memory import huge_bytes
from hotloop.rl.buffers.replay_layout import Layout

_ALIGNED = 64


class ReplayBatch:
    """`size` transitions (first axis), overwritten by the next sample.

    `observations`, `actions`, `rewards` (float32, n-step sums), `next_observations`, `discounts` (float32:
    gamma to the power of the steps summed, 0 where the last of them terminated), `terminated` and `truncated`
    (of the last step summed), `rows` (int64, the places drawn), `weights` (float32, 1 when drawn uniformly).
    The TD target is rewards + discounts * value(next_observations).
    """

    def __init__(self, size: int, stored: Layout, *, shared: bool, pinned: bool):
        stack, frame_shape, kind = stored.frame_stack, stored.frame_shape, stored.observation_dtype
        frame, action = stored.frame_bytes, stored.action_bytes
        observation = (stack + shared) * frame
        self.layout = np.zeros(kernels.LAYOUT_FIELDS, dtype=np.int64)
        end = 0
        for field, width in (
            (kernels.OBSERVATIONS, observation),
            (kernels.NEXT_OBSERVATIONS, 0 if shared else observation),
            (kernels.ACTIONS, action),
            (kernels.REWARDS, 4),
            (kernels.DISCOUNTS, 4),
            (kernels.TERMINATED_AT, 1),
            (kernels.TRUNCATED_AT, 1),
        ):
            self.layout[field] = end
            end += -(-size * width // _ALIGNED) * _ALIGNED
        self.layout[kernels.SHARED] = shared
        self._block: Any = _pinned(end) if pinned else None
        self.memory: NDArray[np.uint8] = huge_bytes(end) if self._block is None else self._block.numpy()
        self.numbers: NDArray[np.float32] = self.memory.view(np.float32)

        def array(field: int, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
            count = size * int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            begin = int(self.layout[field])
            found: NDArray[Any] = self.memory[begin : begin + count].view(dtype).reshape(size, *shape)
            return found

        if shared:
            self.layout[kernels.NEXT_OBSERVATIONS] = self.layout[kernels.OBSERVATIONS] + frame
            both = array(kernels.OBSERVATIONS, kind, (stack + 1, *frame_shape))
            self.observations, self.next_observations = both[:, :stack], both[:, 1:]
            if stack == 1:
                self.observations, self.next_observations = both[:, 0], both[:, 1]
        else:
            self.observations = array(kernels.OBSERVATIONS, kind, stored.observation_shape)
            self.next_observations = array(kernels.NEXT_OBSERVATIONS, kind, stored.observation_shape)
        self.actions = array(kernels.ACTIONS, stored.action_dtype, stored.action_shape)
        self.rewards = array(kernels.REWARDS, np.float32, ())
        self.discounts = array(kernels.DISCOUNTS, np.float32, ())
        self.terminated = array(kernels.TERMINATED_AT, np.bool_, ())
        self.truncated = array(kernels.TRUNCATED_AT, np.bool_, ())
        self.rows = np.zeros(size, dtype=np.int64)
        self.weights = np.ones(size, dtype=np.float32)
        self.scratch = np.zeros(size, dtype=np.float64)
        self.stored = stored
        self.bound_to: NDArray[np.uint8] | None = None  # the buffer's arrays that `table` points to
        self.table = np.zeros(0, dtype=np.int64)
        self.arguments = (self.rows, self.memory, self.numbers, self.layout)  # for kernels

    def tensors(self) -> dict[str, Any]:
        """The same memory as torch tensors by name; create them once, each sample refills them."""
        torch = require_extra("torch", "rl")
        names = ("observations", "actions", "rewards", "next_observations", "discounts", "terminated")
        if self._block is None:
            return {name: torch.from_numpy(getattr(self, name)) for name in (*names, "truncated", "weights")}
        return {name: _view(self._block, getattr(self, name)) for name in (*names, "truncated")} | {
            "weights": torch.from_numpy(self.weights)
        }


def _pinned(count: int) -> Any:
    torch = require_extra("torch", "rl")
    if not torch.cuda.is_available():
        raise HotloopError("pinned=True needs a CUDA device and none was found; leave it out.")
    return torch.empty(count, dtype=torch.uint8, pin_memory=True)


def _view(block: Any, array: NDArray[Any]) -> Any:
    """An array of the pinned block as a tensor; torch knows that a view of a pinned block is pinned."""
    torch = require_extra("torch", "rl")
    kind = torch.from_numpy(np.zeros(1, dtype=array.dtype)).dtype
    begin = array.__array_interface__["data"][0] - block.data_ptr()
    count = sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)) + array.itemsize
    flat = block[begin : begin + count].view(kind)
    return flat.as_strided(array.shape, tuple(step // array.itemsize for step in array.strides))
