"""Base class of the vector environments: buffers, seeding, autoreset, threads, copies, input checks.

An environment supplies its spaces, its own state arrays and two methods that call its kernels, `_step_rows`
and `_reset_rows`. The rest of Gymnasium's vector API is implemented here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.streams import make_streams, seed_streams

Step = tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]

# Autoreset modes, as passed to kernels.
NEXT_STEP, SAME_STEP, DISABLED = 0, 1, 2
_MODES = {
    AutoresetMode.NEXT_STEP: NEXT_STEP,
    AutoresetMode.SAME_STEP: SAME_STEP,
    AutoresetMode.DISABLED: DISABLED,
}


class BatchedEnv(VectorEnv[Any, Any, Any]):
    """Many copies of one environment, stepped by one kernel call. A row is one of these copies.

    The environment owns its arrays, which are allocated once; the first index is the row:
    `observations`, `rewards`, `terminated`, `truncated`, `actions`, `over` (the episode has ended: the next
    step resets the row, or with autoreset disabled raises), `elapsed` (steps in this episode), `streams`
    (random number generators), and with SAME_STEP `final_observations`, valid where
    `terminated | truncated`.

    With `copy=True`, `reset` and `step` return copies. With `copy=False` they return the arrays themselves,
    which the next step overwrites.
    """

    metadata = {"render_modes": ["rgb_array"], "autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    row_axes: ClassVar[dict[str, int]] = {}
    """State arrays in which the row is not the first index but this one."""
    reset_options: ClassVar[tuple[str, ...]] = ("reset_mask",)
    """Options that `reset` knows; others raise HotloopError."""

    def __init__(
        self,
        num_envs: int,
        observation_space: gymnasium.spaces.Box,
        action_space: gymnasium.spaces.Discrete | gymnasium.spaces.Box,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        num_threads: int = 1,
        copy: bool = True,
        render_mode: str | None = None,
    ):
        if num_envs < 1 or num_threads < 1:
            raise HotloopError(f"num_envs={num_envs} and num_threads={num_threads} must both be at least 1.")
        if render_mode not in (None, "rgb_array"):
            raise HotloopError(f"unknown render_mode={render_mode!r}; use None or 'rgb_array'.")
        self.num_envs = num_envs
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(action_space, num_envs)
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.mode = _MODES[self.autoreset_mode]
        self.copy = copy
        self.render_mode = render_mode

        shape = (num_envs, *observation_space.shape)
        self.observations: NDArray[Any] = np.zeros(shape, dtype=observation_space.dtype)
        final_shape = shape if self.mode == SAME_STEP else (1, *observation_space.shape)
        self.final_observations: NDArray[Any] = np.zeros(final_shape, dtype=observation_space.dtype)
        self.rewards = np.zeros(num_envs, dtype=np.float64)
        self.terminated = np.zeros(num_envs, dtype=np.bool_)
        self.truncated = np.zeros(num_envs, dtype=np.bool_)
        self.over = np.zeros(num_envs, dtype=np.bool_)
        self.elapsed = np.zeros(num_envs, dtype=np.int32)
        self.actions: NDArray[Any] = np.zeros(self.action_space.shape or (), dtype=action_space.dtype)
        self.streams = make_streams(num_envs)
        self.num_threads = min(num_threads, num_envs)
        edges = [num_envs * slice_ // self.num_threads for slice_ in range(self.num_threads + 1)]
        self._slices = list(pairwise(edges))
        self._pool: ThreadPoolExecutor | None = None  # created by the first step that needs it
        self._pool_pid = 0
        self._begun = np.zeros(num_envs, dtype=np.bool_)  # rows that were reset at least once
        self._ready = False  # whether all were
        # Cached for `step`: reading these attributes from the array takes longer.
        self._actions_shape, self._actions_dtype = self.actions.shape, self.actions.dtype
        self._has_infos = type(self)._step_infos is not BatchedEnv._step_infos

    # ---- supplied by the environment

    def _step_rows(self, start: int, stop: int) -> int:
        """Step rows `start` to `stop - 1` with `self.actions`, and reset them as `self.mode` says.

        Checks all actions of the batch first. Returns the row of the first invalid action, with nothing
        changed, or -1.
        """
        raise NotImplementedError

    def _reset_rows(self, rows: NDArray[np.bool_]) -> None:
        """Start an episode in the marked rows, with random numbers from their streams."""
        raise NotImplementedError

    def _step_infos(self) -> dict[str, Any]:
        """Return the vector infos of the last reset or step; copies if `self.copy`."""
        return {}

    def _final_infos(self) -> dict[str, Any]:
        """With SAME_STEP: return the vector infos of the final steps of episodes that just ended."""
        return {}

    def _state_arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays that later steps depend on, by name; environments add their own."""
        return {
            "streams": self.streams,
            "over": self.over,
            "elapsed": self.elapsed,
            "observations": self.observations,
        }

    def _render_row(self, row: int) -> NDArray[np.uint8]:
        """Draw one row, uint8 [height, width, 3]."""
        raise NotImplementedError

    # ---- Gymnasium's vector API

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Start new episodes. Row i is seeded with `seed + i`; without a seed, its random stream continues.

        `options={"reset_mask": rows}` resets only the marked rows.
        """
        unknown = sorted(set(options or {}) - set(self.reset_options))
        if unknown:
            raise HotloopError(
                f"unknown reset option {unknown[0]!r}; {type(self).__name__} knows "
                f"{', '.join(map(repr, self.reset_options))}."
            )
        rows = self._rows_to_reset(options)
        seeds = self._seeds(seed)
        for row in np.flatnonzero(rows):
            if seeds[row] is not None or not self._begun[row]:
                seed_streams(self.streams[row : row + 1], [seeds[row]])
        self._reset_rows(rows)
        self.over[rows] = False
        self.elapsed[rows] = 0
        self.rewards[rows] = 0.0
        self.terminated[rows] = False
        self.truncated[rows] = False
        self._begun |= rows
        self._ready = bool(self._begun.all())
        return (self.observations.copy() if self.copy else self.observations), self._step_infos()

    def step(self, actions: Any) -> Step:
        """Step every row; see Gymnasium's `VectorEnv.step`."""
        if not self._ready:
            raise HotloopError(
                f"step() was called before row {int(self._begun.argmin())} was reset; "
                "call reset(seed=...) first."
            )
        if self.mode == DISABLED and 1 in self.over.tobytes():
            raise HotloopError(
                f"the episode of row {int(self.over.argmax())} has ended and autoreset is disabled; "
                "reset it with reset(options={'reset_mask': rows}) before the next step."
            )
        if (
            type(actions) is np.ndarray
            and actions.dtype is self._actions_dtype
            and actions.shape == self._actions_shape
        ):
            self.actions[...] = actions
        else:
            self._take_actions(actions)
        wrong = self._step_rows(0, self.num_envs) if self.num_threads == 1 else self._step_threads()
        if wrong >= 0:
            raise HotloopError(
                f"action {self.actions[wrong]} of row {wrong} is not in {self.single_action_space}; "
                "nothing was stepped."
            )
        infos = self._step_infos() if self._has_infos else {}
        if self.mode == SAME_STEP:
            ended = self.terminated | self.truncated
            if 1 in ended.tobytes():  # 0.15 us; ended.any() takes 1 us
                self._add_finals(infos, ended)
        if not self.copy:
            return self.observations, self.rewards, self.terminated, self.truncated, infos
        return (
            self.observations.copy(),
            self.rewards.copy(),
            self.terminated.copy(),
            self.truncated.copy(),
            infos,
        )

    def render(self) -> tuple[NDArray[np.uint8], ...] | None:
        """Return an RGB image of each row, or None if `render_mode` is None."""
        if self.render_mode is None:
            return None
        return tuple(self._render_row(row) for row in range(self.num_envs))

    def close_extras(self, **_: Any) -> None:
        """Shut down the thread pool."""
        if self._pool is not None and self._pool_pid == os.getpid():
            self._pool.shutdown()
        self._pool = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the thread pool; copies create their own."""
        return {**self.__dict__, "_pool": None}

    # ---- state, for checkpoints

    def save_state(self) -> dict[str, NDArray[Any]]:
        """Return copies of all arrays that later steps depend on."""
        return {name: array.copy() for name, array in self._state_arrays().items()}

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Continue exactly where `save_state` was called; needs the same settings."""
        own = self._state_arrays()
        if own.keys() != state.keys() or any(own[name].shape != state[name].shape for name in own):
            raise HotloopError(
                f"this state was saved by an environment with other settings than {self!r}; "
                "create the environment with the num_envs and settings of the saved one."
            )
        for name, array in own.items():
            array[...] = state[name]
        self._begun[...] = True
        self._ready = True

    # ---- helpers

    def _take_actions(self, actions: Any) -> None:
        given = actions if isinstance(actions, np.ndarray) else np.asarray(actions)
        if given.shape != self.actions.shape or not np.can_cast(given.dtype, self.actions.dtype, "same_kind"):
            raise HotloopError(
                f"actions of shape {given.shape} and type {given.dtype} do not fit "
                f"{self.num_envs} environments; "
                f"pass an array of shape {self.actions.shape} and type {self.actions.dtype}."
            )
        self.actions[...] = given

    def _step_threads(self) -> int:
        """Step one slice of the rows per thread, the first in the calling thread."""
        if self._pool is None or self._pool_pid != os.getpid():  # threads do not survive a fork
            self._pool, self._pool_pid = ThreadPoolExecutor(self.num_threads - 1), os.getpid()
        others = [self._pool.submit(self._step_rows, *slice_) for slice_ in self._slices[1:]]
        wrong = self._step_rows(*self._slices[0])
        return max(wrong, *(other.result() for other in others))

    def _add_finals(self, infos: dict[str, Any], ended: NDArray[np.bool_]) -> None:
        if self.copy:
            finals: NDArray[Any] = np.full(self.num_envs, None, dtype=object)
            for row in np.flatnonzero(ended):
                finals[row] = self.final_observations[row].copy()
        else:
            finals = self.final_observations
        infos["final_obs"], infos["_final_obs"] = finals, ended
        infos["final_info"], infos["_final_info"] = self._final_infos(), ended

    def _rows_to_reset(self, options: dict[str, Any] | None) -> NDArray[np.bool_]:
        if not options or "reset_mask" not in options:
            return np.ones(self.num_envs, dtype=np.bool_)
        given = np.asarray(options["reset_mask"])
        if given.shape != (self.num_envs,) or given.dtype != np.bool_ or not given.any():
            raise HotloopError(
                f"invalid reset_mask of shape {given.shape} and type {given.dtype}; "
                f"pass a bool array of shape ({self.num_envs},) with at least one True."
            )
        return given

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        given: list[Any] = []
        if seed is None:
            given = [None] * self.num_envs
        elif isinstance(seed, (int, np.integer)):
            given = [int(seed) + row for row in range(self.num_envs)]
        elif isinstance(seed, (Sequence, np.ndarray)):
            given = list(seed)
        if len(given) == self.num_envs and all(
            one is None or (isinstance(one, (int, np.integer)) and one >= 0) for one in given
        ):
            return given
        raise HotloopError(
            f"seed={seed!r} cannot seed {self.num_envs} environments; "
            f"pass one whole number of at least 0, or a list of {self.num_envs}."
        )


def _autoreset_mode(given: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(given)
    except ValueError:
        allowed = ", ".join(repr(mode.value) for mode in AutoresetMode)
        raise HotloopError(
            f"unknown autoreset_mode={given!r}; use gymnasium.vector.AutoresetMode or one of {allowed}."
        ) from None
