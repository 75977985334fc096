"""Whether an actor can drive: laps of the track without noise, from starts it was not trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

EARLY_STEPS = 1_000  # at most 0.3 m each: a lap of 300 m is not over
Best = Callable[[NDArray[Any]], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Laps:
    """What a number of cars did, one episode each."""

    cars: int
    finished: int
    """Cars that came round."""
    mean_return: float
    """Of whole episodes: a slow lap has more steps, each of which earns."""
    early_return: float
    """Of the first 1,000 steps, in which no car can finish a lap: drivers compared over equal time."""
    mean_steps: float

    @property
    def says(self) -> str:
        """The figures in words."""
        return (
            f"{self.finished} of {self.cars} laps driven, return {self.mean_return:.1f}; "
            f"{self.early_return:.1f} in the first {EARLY_STEPS:,} steps"
        )


def drive_laps(best: Best, cars: int, seed: int, settings: dict[str, Any] | None = None) -> Laps:
    """Let `best(observations [cars, 8]) -> actions [cars, 2]` drive every car for one episode."""
    from hotloop.rl.envs.track.env import TrackVectorEnv

    env = TrackVectorEnv(cars, autoreset_mode="SameStep", copy=False, **(settings or {}))
    observations, _ = env.reset(seed=seed)
    driving = np.ones(cars, dtype=np.bool_)
    returns, early, steps, finished = np.zeros(cars), np.zeros(cars), np.zeros(cars), 0
    while driving.any():
        env.actions[...] = best(observations)
        env._step_rows(0, cars)  # `step` would be counted by whoever counts the training's steps
        returns += env.rewards * driving
        steps += driving
        if steps.max() == EARLY_STEPS:
            early[:] = returns
        ended = (env.terminated | env.truncated) & driving
        if ended.any():
            finished += int((env._final_infos()["lap_fraction"][ended] >= 1.0).sum())
            driving &= ~ended
    env.close()
    if steps.max() < EARLY_STEPS:  # all have crashed before
        early[:] = returns
    return Laps(cars, finished, float(returns.mean()), float(early.mean()), float(steps.mean()))
