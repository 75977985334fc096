"""An expert that finishes laps from the policy's observations: steers to the line, holds the speed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.track.rules import LEAST_ACCELERATION, MOST_ACCELERATION, MOST_STEERING, TrackConfig

GAIN = 1.2  # 1/s, of the lateral error
SPEED_GAIN = 1.0  # 1/s


def expert_actions(observations: NDArray[Any], config: TrackConfig | None = None) -> NDArray[np.float32]:
    """Return actions [rows, 2] for observations [rows, 8]: Stanley steering, proportional speed control."""
    target_speed = (config or TrackConfig()).target_speed
    seen = np.asarray(observations, dtype=np.float64)
    lateral, turn, ahead = seen[:, 0], seen[:, 1], seen[:, 2]
    steering = -turn - np.arctan(GAIN * lateral / np.maximum(ahead, 1.0))
    acceleration = SPEED_GAIN * (target_speed - ahead)
    middle, half = (MOST_ACCELERATION + LEAST_ACCELERATION) / 2, (MOST_ACCELERATION - LEAST_ACCELERATION) / 2
    actions = np.stack([(acceleration - middle) / half, steering / MOST_STEERING], axis=1)
    return np.clip(actions, -1.0, 1.0).astype(np.float32)
