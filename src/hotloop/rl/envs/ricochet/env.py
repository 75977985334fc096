"""`hotloop/Ricochet-v0`: single and vector environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from hotloop import profile
from hotloop._util.errors import HotloopError
from hotloop.rl.envs.batch import SAME_STEP, BatchedEnv
from hotloop.rl.envs.ricochet import kernels, kernels_draw, kernels_solve, render
from hotloop.rl.envs.ricochet.board import Position
from hotloop.rl.envs.ricochet.config import PICTURE, RicochetConfig
from hotloop.rl.envs.ricochet.given_position import GIVEN, playable
from hotloop.rl.envs.single import SingleEnv

_observing = profile("env_rgb_observation_generation")


def observation_space(config: RicochetConfig) -> Box:
    """Return the observation space for the configured mode."""
    if config.obs_mode == "rgb_image":
        return Box(0, 255, (3, PICTURE, PICTURE), np.uint8)
    cells = config.board_size**2
    if config.obs_mode == "image":
        return Box(0.0, 1.0, (config.robots + 6, config.board_size, config.board_size), np.float32)
    lengths = [3 * config.robots + 2 + 2 * cells, config.numbers_ahead]
    least = np.repeat(np.array([0.0, -1.0], dtype=np.float32), lengths)
    return Box(least, np.ones_like(least))


def _config(settings: dict[str, Any]) -> RicochetConfig:
    known = [field.name for field in fields(RicochetConfig)]
    for name in settings:
        if name not in known:
            raise HotloopError(f"Ricochet has no setting {name!r}; use {', '.join(known)}.")
    return RicochetConfig(**settings)


class RicochetVectorEnv(BatchedEnv):
    """Many boards of Ricochet Robots; the settings are those of `RicochetConfig`.

    `reset(options={"position": position})` starts from a given position, a `Position`, its text (see
    position_text.py) or the path of a file with it: one for all rows, or a list with one or None for each
    row. Where it is None, and in later episodes, boards are generated as usual.

    Infos: `optimal_moves`, the length of a shortest solution from the episode's first position; -1 if a given
    position has none, -2 if the search gave up.
    For your own kernels: `rows`, `options`, `values`, and `flat`, the observations as [rows, n].
    """

    reset_options = ("reset_mask", "position")

    def __init__(
        self,
        num_envs: int = 1,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        num_threads: int = 1,
        copy: bool = True,
        render_mode: str | None = None,
        **settings: Any,
    ):
        self.config = config = _config(settings)
        super().__init__(
            num_envs,
            observation_space(config),
            Discrete(config.actions),
            autoreset_mode=autoreset_mode,
            num_threads=num_threads,
            copy=copy,
            render_mode=render_mode,
        )
        self.walls = np.zeros((num_envs, config.board_size**2), dtype=np.uint8)
        self.pieces = np.zeros((num_envs, config.robots + kernels.COLUMNS), dtype=np.int32)
        limits = (config.max_episode_steps, config.max_solution_moves)
        planes = int(config.obs_mode == "image")
        self.options = np.array(
            [config.board_size, config.robots, config.actions, *limits, planes, self.mode, config.lookahead],
            dtype=np.int64,
        )
        self.values = np.array([config.step_reward, config.goal_reward])
        self._scratch: dict[int, tuple[kernels.Scratch, NDArray[np.uint64]]] = {}
        self._draws = config.obs_mode == "rgb_image"
        self._compiled = self._draws and config.rendering == "compiled"
        width = config.board_size * kernels_draw.CELL + 1
        self.boards = np.zeros((num_envs if self._compiled else 1, width, width), dtype=np.uint8)
        self._assets = kernels_draw.make_assets(config.board_size) if self._compiled else None
        self._always = np.ones(num_envs, dtype=np.bool_)
        self._given: list[tuple[Position, int] | None] = []
        self._bind()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._bind()

    def _bind(self) -> None:
        """Build the tuples and views passed to kernels; a copy of the environment builds its own."""
        self.rows = kernels.Rows(
            self.walls,
            self.pieces,
            self.streams,
            self.elapsed,
            self.over,
            self.rewards,
            self.terminated,
            self.truncated,
        )
        # Flat, so that planes and vectors have the same type in kernels.
        self.flat = self.observations.reshape(self.num_envs, -1)
        self._final_flat = self.final_observations.reshape(len(self.final_observations), -1)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """See `BatchedEnv.reset`; the option `position` sets the first positions."""
        self._given = self._positions(options or {})
        try:
            return super().reset(seed=seed, options=options)
        finally:
            self._given = []

    def _positions(self, options: dict[str, Any]) -> list[tuple[Position, int] | None]:
        """Return the given position of each row and the length of its shortest solution; [] if none is."""
        if "position" not in options:
            return []
        given = options["position"]
        alone = isinstance(given, GIVEN)
        several = [given] if alone else list(given) if isinstance(given, (list, tuple)) else None
        if several is None or (not alone and len(several) != self.num_envs):
            raise HotloopError(
                f"the option position={_shortened(given)} does not fit {self.num_envs} environments; pass a "
                "Position, its text or the Path of a file, or a list with one or None for each of them."
            )
        made: list[tuple[Position, int] | None] = [
            None if one is None else playable(one, self.config) for one in several
        ]
        return made * self.num_envs if alone else made

    # ---- methods that BatchedEnv calls

    def _step_rows(self, start: int, stop: int) -> int:
        if self._draws:
            answer = kernels.advance_rows(self.rows, self.actions, self.options, self.values, start, stop)
            if answer < 0:
                self._draw_rows(start, stop)
                if answer == kernels.RESETS_DUE and self.mode == SAME_STEP:
                    ended = start + np.flatnonzero((self.terminated | self.truncated)[start:stop])
                    self.final_observations[ended] = self.observations[ended]
        else:
            answer = kernels.step_rows(
                self.rows,
                self.actions,
                self.flat,
                self._final_flat,
                self.options,
                self.values,
                start,
                stop,
            )
        if answer == kernels.RESETS_DUE:
            self._reset_due(start, stop)
        return max(answer, -1)

    def _reset_rows(self, rows: NDArray[np.bool_]) -> None:
        self.pieces[rows, self.config.robots + kernels.FRESH] = kernels.DUE
        for row, given in enumerate(self._given):
            if given is not None and rows[row]:
                self._place(row, *given)
        self._reset_due(0, self.num_envs)

    def _place(self, row: int, position: Position, moves: int) -> None:
        """Put a given position into a row; no random numbers are drawn for it."""
        robots, pieces = self.config.robots, self.pieces[row]
        self.walls[row] = position.walls
        pieces[:robots] = position.robots
        whose = -1 if position.target_robot is None else position.target_robot
        pieces[robots + kernels.TARGET], pieces[robots + kernels.TARGET_ROBOT] = position.target, whose
        pieces[robots + kernels.FINAL_OPTIMAL_MOVES] = pieces[robots + kernels.OPTIMAL_MOVES]
        pieces[robots + kernels.OPTIMAL_MOVES] = moves
        pieces[robots + kernels.MOVED], pieces[robots + kernels.FRESH] = -1, kernels.NEW

    def _reset_due(self, start: int, stop: int) -> None:
        kernels.reset_rows(self.rows, self.options, self._scratch_for(start)[0], start, stop)
        if self._draws:
            self._draw_rows(start, stop, only_new=True)
        else:
            kernels.observe_new_rows(self.rows, self.flat, self.options, start, stop)

    def _step_infos(self) -> dict[str, Any]:
        moves = self.pieces[:, self.config.robots + kernels.OPTIMAL_MOVES]
        if self.copy:
            return {"optimal_moves": moves.copy(), "_optimal_moves": self._always.copy()}
        return {"optimal_moves": moves, "_optimal_moves": self._always}

    def _final_infos(self) -> dict[str, Any]:
        moves = self.pieces[:, self.config.robots + kernels.FINAL_OPTIMAL_MOVES]
        ended = self.terminated | self.truncated
        return {"optimal_moves": moves.copy() if self.copy else moves, "_optimal_moves": ended}

    def _state_arrays(self) -> dict[str, NDArray[Any]]:
        own: dict[str, NDArray[Any]] = {"walls": self.walls, "pieces": self.pieces, "boards": self.boards}
        return {**super()._state_arrays(), **own}

    def _render_row(self, row: int) -> NDArray[np.uint8]:
        return render.rgb_array(self.position(row))

    # ---- more than Gymnasium's API

    def position(self, row: int) -> Position:
        """Return the current board of one row."""
        robots = self.config.robots
        *places, target, target_robot = self.pieces[row, : robots + 2].tolist()
        whose = None if target_robot < 0 else target_robot
        return Position(self.config.board_size, tuple(self.walls[row].tolist()), tuple(places), target, whose)

    def expert_actions(
        self, max_moves: int = 20, max_states: int = 1 << 22
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first action of a shortest solution for each row, and its number of moves.

        The action is -1 where no solution of at most `max_moves` moves was found. The number of moves is then
        -1 if there is none, or -2 if the search would have needed more than `max_states` positions.
        """
        moves = np.zeros(self.num_envs, dtype=np.int64)
        actions = np.zeros((self.num_envs, 1), dtype=np.int64)
        limits = self._limits(max_moves, max_states)
        kernels.solve_rows(self.walls, self.pieces, limits, self._scratch_for(0)[0], moves, actions)
        return actions[:, 0], moves

    def moves_by_action(self, max_moves: int = 20, max_states: int = 1 << 22) -> NDArray[np.int64]:
        """Return the length of a shortest solution that begins with each action, [rows, 4 * robots].

        It is -1 if the action moves nothing, or if no solution of at most `max_moves` moves was found.
        """
        moves = np.zeros((self.num_envs, 4 * self.config.robots), dtype=np.int64)
        kernels.moves_by_action_rows(
            self.rows, self._limits(max_moves, max_states), self._scratch_for(0)[0], moves
        )
        return moves

    def move_ends(self) -> NDArray[np.int64]:
        """Return the cell where the robot of each action would stop, [rows, 4 * robots]."""
        ends = np.zeros((self.num_envs, 4 * self.config.robots), dtype=np.int64)
        kernels.move_ends_rows(self.rows, self.options, ends)
        return ends

    def set_max_solution_moves(self, moves: int) -> None:
        """Change the longest shortest solution of the boards generated from now on, as a curriculum does."""
        self.config = replace(self.config, max_solution_moves=moves)
        self.options[kernels.MAX_MOVES] = moves

    def _limits(self, max_moves: int, max_states: int) -> NDArray[np.int64]:
        """Return the limits of a search, see `kernels.solve_rows`."""
        longest, most = min(max_moves, kernels_solve.LONGEST), min(max_states, kernels_solve.MOST_STATES)
        return np.array([self.config.board_size, self.config.robots, longest, most, 0], dtype=np.int64)

    def _draw_rows(self, start: int, stop: int, only_new: bool = False) -> None:
        """Update the pictures of some rows; PIL draws each from scratch."""
        if self._assets is not None:
            with _observing:
                kernels_draw.draw_rows(
                    self.rows,
                    self.boards,
                    self.observations,
                    self._scratch_for(start)[1],
                    self._assets,
                    self.config.board_size,
                    self.config.robots,
                    only_new,
                    start,
                    stop,
                )
            return
        fresh = self.pieces[:, self.config.robots + kernels.FRESH]
        for row in range(start, stop):
            if not only_new or fresh[row] == kernels.NEW:
                self.observations[row] = render.rgb_image(self.position(row))
                fresh[row] = fresh[row] if fresh[row] == kernels.DUE else kernels.SHOWN

    def _scratch_for(self, start: int) -> tuple[kernels.Scratch, NDArray[np.uint64]]:
        """Return the scratch memory of the thread whose rows start at `start`; allocated once."""
        if start not in self._scratch:
            memory = kernels.Scratch(*kernels_solve.make_scratch())
            self._scratch[start] = memory, np.zeros((64, 64, 2), dtype=np.uint64)
        return self._scratch[start]


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class RicochetEnv(SingleEnv):
    """One board of Ricochet Robots; the settings are those of `RicochetConfig`.

    `reset(options={"position": position})` starts from a given position, see `RicochetVectorEnv`.
    """

    batch: RicochetVectorEnv

    def __init__(self, *, render_mode: str | None = None, **settings: Any):
        super().__init__(
            RicochetVectorEnv(1, autoreset_mode=AutoresetMode.DISABLED, render_mode=render_mode, **settings)
        )

    @property
    def position(self) -> Position:
        """Return the current board."""
        return self.batch.position(0)

    def expert_action(self) -> int | None:
        """Return the first action of a shortest solution, or None if none was found."""
        action = int(self.batch.expert_actions()[0][0])
        return action if action >= 0 else None
