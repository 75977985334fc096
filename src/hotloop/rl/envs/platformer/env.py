"""`hotloop/Platformer-v0`: single and vector environments."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from hotloop.rl.envs.batch import SAME_STEP, BatchedEnv
from hotloop.rl.envs.frame_preprocessing import HEIGHT, WIDTH, FramePreprocessing
from hotloop.rl.envs.platformer import kernels, kernels_draw, kernels_step
from hotloop.rl.envs.platformer.atlas import make_art, make_atlas
from hotloop.rl.envs.platformer.config import (
    ACTIONS,
    ENEMY_SPEED,
    FRAMES_PER_S,
    MOST_COLUMNS,
    MOST_ENEMIES,
    ROWS,
    STATUS_NAMES,
    Difficulty,
    LevelPlan,
    PlatformerConfig,
)
from hotloop.rl.envs.platformer.levels import build_level
from hotloop.rl.envs.single import SingleEnv

_NUMBERS = ("x_pos", "y_pos", "coins", "score", "time", "life")
_STATUS = np.array(STATUS_NAMES, dtype=object)


class PlatformerVectorEnv(BatchedEnv):
    """Many side-scrolling games; `PlatformerConfig` describes the settings.

    Observation: uint8 [stack, size, size] as `preprocessing` says, by default [4, 84, 84]; with
    `preprocessing=None`, raw RGB frames uint8 [240, 256, 3].
    Actions: nothing, right, right + A, right + B, right + A + B, A, left.
    Infos: `x_pos`, `y_pos`, `coins`, `score`, `time`, `life`, `flag_get`, `status`. `newest_frame` is a view
    of the newest frame of every row, overwritten by the next step.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        level: int | None = None,
        difficulty: Difficulty = "easy",
        preprocessing: FramePreprocessing | None = FramePreprocessing(),  # noqa: B008 - frozen
        max_episode_steps: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        num_threads: int = 1,
        copy: bool = True,
        render_mode: str | None = None,
    ):
        self.config = config = PlatformerConfig(level, difficulty, preprocessing, max_episode_steps)
        super().__init__(
            num_envs,
            Box(0, 255, config.observation_shape, np.uint8),
            Discrete(ACTIONS),
            autoreset_mode=autoreset_mode,
            num_threads=num_threads,
            copy=copy,
            render_mode=render_mode,
        )
        self.games = np.zeros((num_envs, kernels.COLUMNS), dtype=np.int32)
        self.tiles = np.zeros((num_envs, MOST_COLUMNS, ROWS), dtype=np.uint8)
        self.enemies = np.zeros((num_envs, MOST_ENEMIES, 7), dtype=np.int32)
        finals = num_envs if self.mode == SAME_STEP else 1
        self._final_games = np.zeros((finals, kernels.INFOS), dtype=np.int32)
        self._always = np.ones(num_envs, dtype=np.bool_)
        self._nobody = np.zeros(0, dtype=np.bool_)
        seen = kernels_draw.RAW
        if preprocessing is not None:
            seen = kernels_draw.GRAYS if preprocessing.gray else kernels_draw.COLOURS
        skip, most_steps = 1 if preprocessing is None else preprocessing.skip, max_episode_steps or 0
        bar_bytes = 0 if preprocessing is None else preprocessing.bar_bytes
        self._shared = kernels_step.SharedInputs(
            np.array([seen, skip, most_steps, self.mode, bar_bytes], dtype=np.int64),
            packed_plan(config.plan),
            fixed_level(config),
            make_atlas(seen == kernels_draw.GRAYS),
            make_art().palette,
        )
        self._bind()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._bind()

    def _bind(self) -> None:
        """Build the tuples and views passed to kernels; a copy of the environment builds its own."""
        self.rows = kernels.Rows(self.games, self.tiles, self.enemies, self.streams)
        preprocessing = self.config.preprocessing
        stack = 1 if preprocessing is None else preprocessing.stack
        self._results = kernels_step.Results(
            self.observations.reshape(self.num_envs, stack, -1),
            self.final_observations.reshape(len(self.final_observations), stack, -1),
            self._final_games,
            self.rewards,
            self.terminated,
            self.truncated,
            self.over,
            self.elapsed,
        )
        self._scratch: dict[int, kernels_draw.Scratch] = {}

    @property
    def newest_frame(self) -> NDArray[np.uint8]:
        """A view of the newest frames, [num_envs, size, size]; without preprocessing, of the observations."""
        newest: NDArray[np.uint8] = (
            self.observations if self.config.preprocessing is None else self.observations[:, -1]
        )
        return newest

    # ---- methods that BatchedEnv calls

    def _step_rows(self, start: int, stop: int) -> int:
        return self._run_rows(self._nobody, start, stop)

    def _reset_rows(self, rows: NDArray[np.bool_]) -> None:
        self._run_rows(rows, 0, self.num_envs)

    def _run_rows(self, chosen: NDArray[np.bool_], start: int, stop: int) -> int:
        return kernels_step.run_rows(
            chosen,
            self.actions,
            self.rows,
            self._results,
            self._shared,
            self._scratch_for(start),
            start,
            stop,
        )

    def _step_infos(self) -> dict[str, Any]:
        return self._infos(self.games, self._always.copy() if self.copy else self._always)

    def _final_infos(self) -> dict[str, Any]:
        return self._infos(self._final_games, self.terminated | self.truncated)

    def _infos(self, games: NDArray[np.int32], valid: NDArray[np.bool_]) -> dict[str, Any]:
        numbers = games[:, : kernels.INFOS].copy() if self.copy else games
        infos: dict[str, Any] = {name: numbers[:, column] for column, name in enumerate(_NUMBERS)}
        infos["flag_get"] = games[:, kernels.FLAG_GET] != 0
        infos["status"] = _STATUS[games[:, kernels.STATUS]]
        return {**infos, **{f"_{name}": valid for name in infos}}

    def _state_arrays(self) -> dict[str, NDArray[Any]]:
        own: dict[str, NDArray[Any]] = {"games": self.games, "tiles": self.tiles, "enemies": self.enemies}
        return {**super()._state_arrays(), **own}

    def _render_row(self, row: int) -> NDArray[np.uint8]:
        picture = np.zeros((HEIGHT, WIDTH, 3), dtype=np.uint8)
        kernels_draw.observe_row(
            self.rows,
            row,
            kernels_draw.RAW,
            make_atlas(False),
            make_art().palette,
            self._scratch_for(0),
            picture.reshape(-1),
        )
        return picture

    def _scratch_for(self, start: int) -> kernels_draw.Scratch:
        """Return the scratch memory of the thread whose rows start at `start`; allocated once."""
        if start not in self._scratch:
            preprocessing = self.config.preprocessing
            self._scratch[start] = kernels_draw.make_scratch(
                84 if preprocessing is None else preprocessing.size
            )
        return self._scratch[start]


class PlatformerEnv(SingleEnv):
    """One side-scrolling game; takes the settings of `PlatformerVectorEnv`."""

    batch: PlatformerVectorEnv
    metadata = {"render_modes": ["rgb_array"], "render_fps": FRAMES_PER_S}  # noqa: RUF012

    def __init__(
        self,
        *,
        level: int | None = None,
        difficulty: Difficulty = "easy",
        preprocessing: FramePreprocessing | None = FramePreprocessing(),  # noqa: B008 - frozen
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
    ):
        super().__init__(
            PlatformerVectorEnv(
                1,
                level=level,
                difficulty=difficulty,
                preprocessing=preprocessing,
                max_episode_steps=max_episode_steps,
                autoreset_mode=AutoresetMode.DISABLED,
                render_mode=render_mode,
            )
        )
        self.metadata = {
            **self.metadata,
            "render_fps": FRAMES_PER_S // (1 if preprocessing is None else preprocessing.skip),
        }

    @property
    def newest_frame(self) -> NDArray[np.uint8]:
        """A view of the newest frame, [size, size]."""
        newest: NDArray[np.uint8] = self.batch.newest_frame[0]
        return newest


def packed_plan(plan: LevelPlan) -> NDArray[np.int64]:
    """Return the plan as the array that the level kernel reads."""
    return np.array(
        [
            plan.width,
            plan.pit,
            plan.pipe,
            plan.stairs,
            plan.enemies,
            plan.beetles,
            plan.steps,
            plan.bridges,
        ],
        dtype=np.int64,
    )


def fixed_level(config: PlatformerConfig) -> kernels.FixedLevel:
    """Build the configured level; without one, return the marker for a new level per episode."""
    enemies = np.zeros((MOST_ENEMIES, 7), dtype=np.int32)
    if config.level is None:
        none = np.array([-1, 0], dtype=np.int64)
        return kernels.FixedLevel(np.zeros((MOST_COLUMNS, ROWS), dtype=np.uint8), enemies, none)
    level = build_level(np.random.default_rng(config.level), config.plan)
    for number, (kind, x, y) in enumerate(level.enemies):
        enemies[number, :4] = kind, x, y, -ENEMY_SPEED
    return kernels.FixedLevel(
        level.tiles, enemies, np.array([level.flag, len(level.enemies)], dtype=np.int64)
    )
