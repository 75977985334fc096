"""`hotloop/Snake-v0`: single and vector environments."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from hotloop import profile
from hotloop.rl.envs.batch import SAME_STEP, BatchedEnv
from hotloop.rl.envs.compiled import addresses
from hotloop.rl.envs.single import SingleEnv
from hotloop.rl.envs.snake.config import FOOD, ROW_BY_ROW, SnakeConfig
from hotloop.rl.envs.snake.flood import RowFlood, flood_rows
from hotloop.rl.envs.snake.kernels import advance_rows, observe_rows, reset_rows, restart_rows, step_batch
from hotloop.rl.envs.snake.layout import (
    COLUMN_MASK,
    FINAL_LENGTH,
    FLOOD,
    FOOD_AT,
    HEADING,
    LENGTH,
    NOWHERE,
    ROW_SHIFT,
    body_of,
    make_boards,
    make_options,
    make_payoffs,
    make_snakes,
)
from hotloop.rl.envs.snake.render import draw_board

_collision = profile("env_collision")
_features = profile("env_features")
_flood_fill = profile("env_flood_fill")


class SnakeVectorEnv(BatchedEnv):
    """`num_envs` games of Snake stepped by one kernel call.

    `settings` are the fields of `SnakeConfig`. Infos hold `length`, the length of each snake; with SAME_STEP
    `final_info` holds the lengths at the end of the episodes that ended.

    With `split_regions`, and always when the flood fill runs in Python, a step runs in parts with their own
    regions (`env_collision`, `env_features`, `env_flood_fill`), with the same results.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        num_threads: int = 1,
        copy: bool = True,
        render_mode: str | None = None,
        split_regions: bool = False,
        **settings: Any,
    ):
        self.config = config = SnakeConfig.from_settings(settings)
        grid = config.observation == "grid"
        super().__init__(
            num_envs,
            spaces.Box(
                0, FOOD if grid else 1, config.observation_shape, dtype=np.uint8 if grid else np.float32
            ),
            spaces.Discrete(config.action_count),
            autoreset_mode=autoreset_mode,
            num_threads=num_threads,
            copy=copy,
            render_mode=render_mode,
        )
        self.snakes = make_snakes(num_envs, config.size)
        self.boards = make_boards(num_envs, config.size)
        self._options = make_options(config)
        self._payoffs = make_payoffs(config)
        self._all_rows = np.ones(num_envs, dtype=np.bool_)
        self._split = split_regions or config.flood_fill in ROW_BY_ROW
        # If the step runs in parts, the compiled flood fill is one of them.
        self._feature_options = self._options.copy()
        if self._split:
            self._feature_options[FLOOD] = 0
        self._bind()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._bind()

    def _bind(self) -> None:
        """Build the tuples and views passed to kernels; a copy of the environment builds its own."""
        self._flat = self.observations.reshape(self.num_envs, -1)
        self._final_flat = self.final_observations.reshape(len(self.final_observations), -1)
        self._length = self.snakes[:, LENGTH]
        self._game = (self.snakes, self.boards, self.streams, self.elapsed)
        moving = (
            self.actions, *self._game, self.over, self.rewards, self.terminated, self.truncated
        )  # fmt: skip
        self._moving = (*moving, self._options, self._payoffs)
        self._table = addresses(*moving, self._final_flat)
        self._row_flood = (
            RowFlood(self.config, self.snakes, self.boards, self._options, self._flat)
            if self.config.flood_fill in ROW_BY_ROW
            else None
        )

    # ---- methods that BatchedEnv calls

    def _step_rows(self, start: int, stop: int) -> int:
        if self._split:
            return self._step_in_parts(start, stop)
        return step_batch(self._table, self._flat, self._options, self._payoffs, start, stop, self.mode)

    def _reset_rows(self, rows: NDArray[np.bool_]) -> None:
        reset_rows(rows, *self._game, self._options, self._flat)
        if self._row_flood is not None:
            with _flood_fill:
                self._row_flood.fill_rows(np.flatnonzero(rows).tolist())

    def _step_infos(self) -> dict[str, Any]:
        if not self.copy:
            return {"length": self._length, "_length": self._all_rows}
        return {"length": self._length.copy(), "_length": self._all_rows.copy()}

    def _final_infos(self) -> dict[str, Any]:
        return {"length": self.snakes[:, FINAL_LENGTH].copy(), "_length": self.terminated | self.truncated}

    def _state_arrays(self) -> dict[str, NDArray[Any]]:
        return {**super()._state_arrays(), "snakes": self.snakes, "boards": self.boards}

    def _render_row(self, row: int) -> NDArray[np.uint8]:
        food = int(self.snakes[row, FOOD_AT])
        return draw_board(
            self.config.size,
            body_of(self.snakes, row),
            int(self.snakes[row, HEADING]),
            None if food == NOWHERE else (food >> ROW_SHIFT, food & COLUMN_MASK),
        )

    # ---- helpers

    def _step_in_parts(self, start: int, stop: int) -> int:
        """Do the work of `step_rows` in parts with their own regions."""
        with _collision:
            wrong: int = advance_rows(*self._moving, start, stop, self.mode)
        if wrong >= 0:
            return wrong
        with _features:
            observe_rows(self.snakes, self.boards, self._feature_options, self._flat, start, stop)
        if self.config.flood_fill != "off":
            with _flood_fill:
                if self._row_flood is not None:
                    self._row_flood.fill_due(self.elapsed, start, stop)
                else:
                    flood_rows(self.snakes, self.boards, self._options, self._flat, start, stop)
        if self.mode == SAME_STEP:
            ended = start + np.flatnonzero(self.terminated[start:stop] | self.truncated[start:stop])
            if len(ended):
                with _features:
                    restart_rows(ended, *self._game, self._options, self._flat, self._final_flat)
                if self._row_flood is not None:
                    with _flood_fill:
                        self._row_flood.fill_rows(ended.tolist())
        return -1


class SnakeEnv(SingleEnv):
    """One game of Snake; `settings` are the fields of `SnakeConfig`."""

    def __init__(self, *, render_mode: str | None = None, split_regions: bool = False, **settings: Any):
        super().__init__(
            SnakeVectorEnv(
                1,
                autoreset_mode=AutoresetMode.DISABLED,
                render_mode=render_mode,
                split_regions=split_regions,
                **settings,
            )
        )
