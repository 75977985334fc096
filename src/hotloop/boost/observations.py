"""Observations as Stable-Baselines3's policies see them: float32 rows, one-hot for discrete ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


def unsupported_observations(space: Any, policy: Any) -> str | None:
    """None if `Observations` treats this space as the library's preprocessing does; else the reason."""
    from stable_baselines3.common.preprocessing import is_image_space

    if isinstance(space, spaces.Discrete):
        return None if space.start == 0 else f"observations start at {space.start}, not at 0"
    if not isinstance(space, spaces.Box):
        return f"observations are a {type(space).__name__} space"
    if policy.normalize_images and is_image_space(space):
        return "observations are images"
    return None


class Observations:
    """Turns what environments return into the rows that a network reads."""

    def __init__(self, space: Any):
        self._shape = tuple(space.shape)
        self.choices = int(space.n) if isinstance(space, spaces.Discrete) else 0
        self.width = self.choices or int(np.prod(space.shape))

    def rows(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Contiguous float32 [rows, width]; no copy when they are that already."""
        if self.choices:
            indices = observations.reshape(-1).astype(np.int64)
            found = np.zeros((indices.size, self.choices), dtype=np.float32)
            found[np.arange(indices.size), indices] = 1.0
            return found
        return np.ascontiguousarray(observations.reshape(-1, self.width), dtype=np.float32)

    def are_valid(self, observations: NDArray[Any]) -> bool:
        """Whether discrete observations are within their space; the library raises its own error if not."""
        if not self.choices or observations.size == 0:
            return True
        return bool(observations.min() >= 0 and observations.max() < self.choices)

    def count(self, observations: NDArray[Any]) -> int:
        """Number of rows."""
        return observations.size if self.choices else observations.size // self.width

    def count_if_plain(self, observations: Any) -> int | None:
        """Number of rows of a batch, 0 for a single observation, None for what is left to the library."""
        if type(observations) is not np.ndarray:
            return None
        if observations.shape == self._shape:
            return 0
        is_batch = observations.ndim == len(self._shape) + 1 and observations.shape[1:] == self._shape
        return observations.shape[0] or None if is_batch else None
