"""`hotloop/CartPole-v0`: bit-identical to Gymnasium's CartPole-v1; single and vector environments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.batch import BatchedEnv
from hotloop.rl.envs.cartpole import kernels
from hotloop.rl.envs.cartpole.kernels import step_batch
from hotloop.rl.envs.cartpole.render import draw
from hotloop.rl.envs.cartpole.rules import ANGLE_LIMIT, POSITION_LIMIT, START_HIGH, START_LOW
from hotloop.rl.envs.compiled import addresses
from hotloop.rl.envs.single import SingleEnv


class CartPoleVectorEnv(BatchedEnv):
    """Many cart-poles; row i seeded with s equals `gymnasium.make("CartPole-v1")` seeded with s + i.

    Observation float32 [4]: position, velocity, angle in radians, angular velocity. Action 0 pushes left,
    1 right. Reward 1 per step; with `sutton_barto_reward` 0, and -1 for the step that terminates.
    Terminated when the cart is further than 2.4 from the centre or the pole leans more than 12 degrees,
    truncated after `max_episode_steps`. `reset(options={"low": a, "high": b})` draws this start from
    [a, b) instead of [-0.05, 0.05), as in Gymnasium.
    """

    metadata = {**BatchedEnv.metadata, "render_fps": 50}  # noqa: RUF012
    row_axes: ClassVar[dict[str, int]] = {"state": 1}

    reset_options = ("reset_mask", "low", "high")

    def __init__(
        self,
        num_envs: int = 1,
        *,
        max_episode_steps: int = 500,
        sutton_barto_reward: bool = False,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        num_threads: int = 1,
        copy: bool = True,
        render_mode: str | None = None,
    ):
        if max_episode_steps < 1:
            raise HotloopError(f"max_episode_steps={max_episode_steps} is too small; use at least 1.")
        high = np.array([POSITION_LIMIT * 2, np.inf, ANGLE_LIMIT * 2, np.inf], dtype=np.float32)
        super().__init__(
            num_envs,
            Box(-high, high, dtype=np.float32),
            Discrete(2),
            autoreset_mode=autoreset_mode,
            num_threads=num_threads,
            copy=copy,
            render_mode=render_mode,
        )
        self.max_episode_steps = max_episode_steps
        self.sutton_barto_reward = sutton_barto_reward
        self.state = np.zeros((kernels.COLUMNS, num_envs))
        self._start = (START_LOW, START_HIGH)
        self._table = self._packed()

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """See `BatchedEnv.reset`; options `low` and `high` bound the initial state."""
        self._start = _start_bounds(options or {})
        return super().reset(seed=seed, options=options)

    def _step_rows(self, start: int, stop: int) -> int:
        return step_batch(self._table, start, stop)

    def _reset_rows(self, rows: NDArray[np.bool_]) -> None:
        kernels.reset_rows(self.state, self.streams, self.observations, rows, *self._start)

    def _state_arrays(self) -> dict[str, NDArray[Any]]:
        return {**super()._state_arrays(), "state": self.state}

    def _render_row(self, row: int) -> NDArray[np.uint8]:
        return draw(float(self.state[0, row]), float(self.state[2, row]))

    def _packed(self) -> NDArray[np.int64]:
        """Return the table for `kernels.step_batch`."""
        settings = (self.num_envs, self.max_episode_steps, int(self.sutton_barto_reward), self.mode)
        arrays = addresses(
            self.state,
            self.streams,
            self.actions,
            self.observations,
            self.final_observations,
            self.rewards,
            self.terminated,
            self.truncated,
            self.over,
            self.elapsed,
        )
        return np.concatenate([np.array(settings, dtype=np.int64), arrays])

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuild the table: a copy has its own arrays."""
        self.__dict__.update(state)
        self._table = self._packed()


class CartPoleEnv(SingleEnv):
    """One cart-pole; takes the settings of `CartPoleVectorEnv`."""

    metadata = {**SingleEnv.metadata, "render_fps": 50}  # noqa: RUF012

    def __init__(
        self,
        *,
        max_episode_steps: int = 500,
        sutton_barto_reward: bool = False,
        render_mode: str | None = None,
    ):
        super().__init__(
            CartPoleVectorEnv(
                1,
                max_episode_steps=max_episode_steps,
                sutton_barto_reward=sutton_barto_reward,
                autoreset_mode=AutoresetMode.DISABLED,
                render_mode=render_mode,
            )
        )


def _start_bounds(options: dict[str, Any]) -> tuple[float, float]:
    """Return the bounds in a reset's options, or the defaults."""
    low, high = options.get("low", START_LOW), options.get("high", START_HIGH)
    numbers = all(
        isinstance(bound, (int, float, np.number)) and math.isfinite(bound) for bound in (low, high)
    )
    if not numbers or low > high:
        raise HotloopError(
            f"reset options low={low!r}, high={high!r} are invalid; pass two numbers with low <= high."
        )
    return float(low), float(high)
