"""How a replay record is laid out in memory, and checks that settings and pushed arrays fit it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hotloop._util.errors import HotloopError

NO_BYTES = np.zeros(0, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Layout:
    """Shapes and dtypes of what a replay buffer stores, and how it samples them."""

    n_envs: int
    observation_shape: tuple[int, ...]
    observation_dtype: np.dtype[Any]
    action_shape: tuple[int, ...]
    action_dtype: np.dtype[Any]
    frame_stack: int
    stack_padding: str
    n_steps: int
    gamma: float
    autoreset: str

    def __post_init__(self) -> None:
        if self.n_envs < 1:
            raise HotloopError(f"n_envs={self.n_envs} must be at least 1.")
        if self.n_steps < 1 or not 0.0 <= self.gamma <= 1.0:
            raise HotloopError(
                f"n_steps={self.n_steps} must be at least 1 and gamma={self.gamma} between 0 and 1."
            )
        if self.frame_stack < 1 or (
            self.frame_stack > 1 and self.observation_shape[:1] != (self.frame_stack,)
        ):
            raise HotloopError(
                f"frame_stack={self.frame_stack} does not fit observations of shape "
                f"{self.observation_shape}; the first axis must be the stack, or use frame_stack=1."
            )
        if self.stack_padding not in ("first", "zero") or self.autoreset not in ("same_step", "next_step"):
            raise HotloopError(
                f"stack_padding={self.stack_padding!r} must be 'first' or 'zero', "
                f"autoreset={self.autoreset!r} 'same_step' or 'next_step'."
            )

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Shape of what is stored of one observation: all of it, or the newest frame of its stack."""
        return self.observation_shape if self.frame_stack == 1 else self.observation_shape[1:]

    @property
    def frame_bytes(self) -> int:
        return int(np.prod(self.frame_shape, dtype=np.int64)) * self.observation_dtype.itemsize

    @property
    def action_bytes(self) -> int:
        return int(np.prod(self.action_shape, dtype=np.int64)) * self.action_dtype.itemsize

    def record(self) -> np.dtype[Any]:
        """One environment's step: frame, action, reward and marks, contiguous in memory."""
        action_at = _round_up(self.frame_bytes, self.action_dtype.itemsize)
        reward_at = _round_up(action_at + self.action_bytes, 4)
        return np.dtype(
            {
                "names": ["frame", "action", "reward", "marks"],
                "formats": [
                    (self.observation_dtype, self.frame_shape),
                    (self.action_dtype, self.action_shape),
                    np.float32,
                    np.int32,
                ],
                "offsets": [0, action_at, reward_at, reward_at + 4],
                "itemsize": _round_up(reward_at + 8, 64 if reward_at > 256 else 8),
            }
        )

    def newest(self, observation: NDArray[Any]) -> NDArray[Any]:
        """The newest frame of an observation, which may be a stack or already a frame."""
        found: NDArray[Any] = observation if observation.shape == self.frame_shape else observation[-1]
        return found

    def observation_bytes(self, observations: NDArray[Any], name: str) -> NDArray[np.uint8]:
        """One vector step's observations (stacks, or only their newest frames) as bytes."""
        shapes = {(self.n_envs, *self.observation_shape), (self.n_envs, *self.frame_shape)}
        if observations.shape not in shapes or observations.dtype != self.observation_dtype:
            raise HotloopError(
                f"{name} of shape {observations.shape} and type {observations.dtype} do not fit; pass an "
                f"array of shape {' or '.join(map(str, sorted(shapes)))} and type {self.observation_dtype}."
            )
        return np.ascontiguousarray(observations).reshape(-1).view(np.uint8)

    def checked_step(
        self,
        actions: NDArray[Any],
        rewards: ArrayLike,
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        observations: NDArray[Any],
        final_observations: NDArray[Any] | None,
    ) -> tuple[NDArray[Any], ...]:
        """Arguments of a push in the form that kernels take; raises before anything is changed."""
        if actions.shape != (self.n_envs, *self.action_shape) or actions.dtype != self.action_dtype:
            raise HotloopError(
                f"actions of shape {actions.shape} and type {actions.dtype} do not fit; pass an array of "
                f"shape {(self.n_envs, *self.action_shape)} and type {self.action_dtype}."
            )
        values = np.asarray(rewards, dtype=np.float64)
        for name, array in (("rewards", values), ("terminated", terminated), ("truncated", truncated)):
            if array.shape != (self.n_envs,):
                raise HotloopError(
                    f"{name} of shape {array.shape} do not fit; pass one for each of {self.n_envs} envs."
                )
        if terminated.dtype != np.bool_ or truncated.dtype != np.bool_:
            raise HotloopError(
                f"terminated and truncated must be bool arrays, not {terminated.dtype} and {truncated.dtype}."
            )
        given = self.observation_bytes(observations, "observations")
        finals = NO_BYTES
        if self.autoreset == "same_step" and (terminated.any() or truncated.any()):
            if final_observations is None:
                raise HotloopError(
                    "An episode ended and final_observations is missing; pass the environment's final "
                    "observations, or create the buffer with autoreset='next_step'."
                )
            finals = self.observation_bytes(final_observations, "final_observations")
        raw = np.ascontiguousarray(actions).reshape(-1).view(np.uint8)
        return raw, values, terminated, truncated, given, finals


def _round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
