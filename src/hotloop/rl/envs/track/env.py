"""`hotloop/Track-v0`: single and vector environments of a car that follows a closed line."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.batch import SAME_STEP, BatchedEnv
from hotloop.rl.envs.single import SingleEnv
from hotloop.rl.envs.track import kernels
from hotloop.rl.envs.track.line import CLEARANCE_M, Line, draw_line
from hotloop.rl.envs.track.render import draw_track
from hotloop.rl.envs.track.rules import DT_S, MOST_SPEED, OBSERVATION_SIZE, TrackConfig

Projection = Literal["all", "near"]
SEARCHED_M = 4.0  # on each side of the last segment; a car moves at most 0.3 m per step


class TrackVectorEnv(BatchedEnv):
    """Many cars on one track.

    Observation, float32 [8]: lateral error (m, left of the line is positive), heading error (rad), speed
    ahead and to the left (m/s), the line's direction (2), cosine and sine of the heading. Action, float32
    [2] in -1 .. 1: acceleration (-6 .. 4 m/s^2) and steering (-25 .. 25 degrees). `lap_fraction` in the
    infos is the progress. `projection` selects how to search for the nearest point on the line: among "all"
    segments, or "near" the last one; the results are the same.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        projection: Projection = "near",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        num_threads: int = 1,
        copy: bool = True,
        render_mode: str | None = None,
        **settings: Any,
    ):
        if projection not in ("all", "near"):
            raise HotloopError(f"unknown projection={projection!r}; use 'near' or 'all'.")
        self.config = checked_config(settings)
        self.line = draw_line(self.config.track_seed, self.config.track_points, self.config.lap_m)
        high = np.array(
            [self.config.crash_m + 1.0, math.pi, MOST_SPEED, MOST_SPEED, 1, 1, 1, 1], dtype=np.float32
        )

        super().__init__(
            num_envs,
            Box(-high, high, (OBSERVATION_SIZE,), np.float32),
            Box(-1.0, 1.0, (2,), np.float32),
            autoreset_mode=autoreset_mode,
            num_threads=num_threads,
            copy=copy,
            render_mode=render_mode,
        )
        self.cars = np.zeros((num_envs, 8))
        self.segments = np.zeros(num_envs, dtype=np.int32)
        self._line = packed(self.line)
        near = math.ceil(SEARCHED_M / float(self.line.lengths.min())) if projection == "near" else -1
        config = self.config
        self._settings = np.array(
            [
                self.line.lap_m,
                config.half_width_m,
                config.crash_m,
                config.target_speed,
                config.max_episode_steps,
                config.off_track_penalty,
                config.crash_penalty,
                near,
            ]
        )
        self._final_travelled = np.zeros(num_envs if self.mode == SAME_STEP else 1)

    def _step_rows(self, start: int, stop: int) -> int:
        return kernels.step_rows(
            start,
            stop,
            self.mode,
            self.actions,
            self.cars,
            self.segments,
            self._line,
            self._settings,
            self.streams,
            self.elapsed,
            self.over,
            self.observations,
            self.rewards,
            self.terminated,
            self.truncated,
            self.final_observations,
            self._final_travelled,
        )

    def _reset_rows(self, rows: NDArray[np.bool_]) -> None:
        kernels.reset_rows(rows, self.cars, self.segments, self._line, self.streams, self.observations)

    def _step_infos(self) -> dict[str, Any]:
        fraction = self.cars[:, kernels.TRAVELLED] / self.line.lap_m
        return {"lap_fraction": fraction, "_lap_fraction": np.ones(self.num_envs, dtype=np.bool_)}

    def _final_infos(self) -> dict[str, Any]:
        ended = self.terminated | self.truncated
        fraction = np.where(ended, self._final_travelled / self.line.lap_m, 0.0)
        return {"lap_fraction": fraction, "_lap_fraction": ended}

    def _state_arrays(self) -> dict[str, NDArray[Any]]:
        return {**super()._state_arrays(), "cars": self.cars, "segments": self.segments}

    def _render_row(self, row: int) -> NDArray[np.uint8]:
        return draw_track(self.line, self.config, self.cars[row])


class TrackEnv(SingleEnv):
    """One car on a track; takes the settings of `TrackVectorEnv`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": round(1 / DT_S)}  # noqa: RUF012

    def __init__(self, **settings: Any):
        super().__init__(TrackVectorEnv(1, autoreset_mode=AutoresetMode.DISABLED, **settings))


def checked_config(settings: dict[str, Any]) -> TrackConfig:
    """Create a config; raises HotloopError on invalid settings."""
    known = TrackConfig.__dataclass_fields__
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise HotloopError(f"the track has no setting {unknown[0]!r}; it has {', '.join(known)}.")
    config = TrackConfig(**settings)
    if not 0 < config.half_width_m < config.crash_m <= (CLEARANCE_M - 4.0) / 2:
        raise HotloopError(
            f"half_width_m={config.half_width_m} and crash_m={config.crash_m} do not fit a track; "
            f"they must rise from above 0 to at most {(CLEARANCE_M - 4.0) / 2}."
        )
    if config.target_speed <= 0 or config.max_episode_steps < 1 or config.lap_m <= 0:
        raise HotloopError(
            f"target_speed={config.target_speed}, max_episode_steps={config.max_episode_steps} and "
            f"lap_m={config.lap_m} must be above 0."
        )
    return config


def packed(line: Line) -> NDArray[np.float64]:
    """Return the line as kernels read it: x, y, tangent x and y, length, position of the segment's start."""
    starts = np.concatenate([[0.0], np.cumsum(line.lengths)[:-1]])
    columns = [line.points, line.tangents, line.lengths[:, None], starts[:, None]]
    return np.ascontiguousarray(np.concatenate(columns, axis=1))
