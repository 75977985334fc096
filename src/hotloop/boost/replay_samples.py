"""Batches from a replay buffer of Stable-Baselines3: same random numbers, same transitions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.boost import off_policy_kernels as kernels
from hotloop.boost.audit import NotFinite
from hotloop.boost.observations import Observations


class Samples:
    """Draws batches from a replay buffer as the library does: same random numbers, same transitions."""

    def __init__(self, batch_size: int, observations: Observations, actions: int):
        self.size, self._observations = batch_size, observations
        width = observations.width
        shapes = (
            (batch_size, width),
            (batch_size, width),
            (batch_size, actions),
            (batch_size,),
            (batch_size,),
        )
        self.batch = kernels.Batch(*(np.zeros(shape, dtype=np.float32) for shape in shapes))
        self._sources: tuple[Any, ...] = ()
        self._views: tuple[Any, ...] = ()

    def draw(self, model: Any) -> None:
        """Fill `batch`."""
        buffer = model.replay_buffer
        if not self._is_plain(buffer) or model._vec_normalize_env is not None:
            self._copy(buffer.sample(self.size, env=model._vec_normalize_env), model.gamma)
            return
        steps = np.random.randint(0, buffer.buffer_size if buffer.full else buffer.pos, size=self.size)
        envs = np.random.randint(0, high=buffer.n_envs, size=(self.size,))
        self._gather(steps, envs, buffer.n_envs, model.gamma)

    def _gather(self, steps: NDArray[np.int64], envs: NDArray[np.int64], n_envs: int, gamma: float) -> None:
        observations, following, actions, rewards, dones, timeouts = self._views
        are_valid = kernels.gather(
            observations, following, actions, rewards, dones, timeouts, steps, envs, n_envs, gamma, self.batch
        )
        if not are_valid:
            raise NotFinite

    def compile(self, buffer: Any) -> None:
        """Load or compile what `draw` needs; the batch size must be 0."""
        if self._is_plain(buffer):
            none = np.zeros(0, dtype=np.int64)
            self._gather(none, none, buffer.n_envs, 0.0)

    def _is_plain(self, buffer: Any) -> bool:
        """Whether the kernel can gather; makes views of the buffer's arrays when they are new."""
        arrays: tuple[Any, ...] = (
            buffer.observations, getattr(buffer, "next_observations", None), buffer.actions, buffer.rewards,
            buffer.dones, buffer.timeouts,
        )  # fmt: skip
        if len(self._sources) == len(arrays) and all(map(_same, arrays, self._sources)):
            return bool(self._views)
        self._sources, self._views = arrays, ()
        if type(buffer).__name__ == "ReplayBuffer" and not buffer.optimize_memory_usage:
            observations, following, actions, *numbers = arrays
            is_gatherable = observations.dtype in (np.float32, np.float64, np.int64) and actions.dtype in (
                np.float32,
                np.int64,
            )
            # The kernel takes a number for a one-hot row if the row has another width.
            is_gatherable = is_gatherable and self._observations.choices != 1
            if is_gatherable and all(array.flags.c_contiguous for array in arrays):
                rows = observations.shape[0] * observations.shape[1]
                self._views = (
                    *(array.reshape(rows, -1) for array in (observations, following, actions)),
                    *(array.reshape(-1) for array in numbers),
                )
        return bool(self._views)

    def _copy(self, data: Any, gamma: float) -> None:
        """Take over what the library's own `sample` returned."""
        batch, size = self.batch, self.size
        batch.observations[:] = self._observations.rows(data.observations.numpy())
        batch.next_observations[:] = self._observations.rows(data.next_observations.numpy())
        batch.actions[:] = data.actions.numpy().reshape(size, -1)
        batch.rewards[:] = data.rewards.numpy().reshape(-1)
        discounts = getattr(data, "discounts", None)
        discount = np.float32(gamma) if discounts is None else discounts.numpy().reshape(-1)
        batch.discounts[:] = (1.0 - data.dones.numpy().reshape(-1)) * discount


def _same(a: Any, b: Any) -> bool:
    return a is b
