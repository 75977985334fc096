"""Evaluation on the track: laps without noise, from starts that the actor was not trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hotloop import profile
from hotloop.rl.envs.track.env import TrackVectorEnv
from hotloop.rl.train.networks.squashed import SquashedActor
from hotloop.rl.train.runs import stop_requested, torch_threads
from hotloop.rl.train.sac import Policy

_evaluate = profile("evaluate")
_compile = profile("compile_kernels", "other")

EVALUATION_CARS = 8
# Far apart, so that no seed of training, of choosing the best actor, and of the final evaluation coincide.
SELECTION_SEED, FINAL_SEED = 10_000_000, 20_000_000
EARLY_STEPS = 1_000  # at most 0.3 m each, so that no car can finish a lap of 300 m


@dataclass(frozen=True, slots=True)
class Laps:
    """Results of a number of cars, one episode each."""

    cars: int
    finished: int
    """Cars that completed the lap."""
    mean_return: float
    """Of whole episodes. A slow lap has more steps, and every step is rewarded."""
    early_return: float
    """Of the first 1,000 steps, in which no car can finish a lap: compares drivers over equal time."""
    mean_steps: float

    @property
    def summary(self) -> str:
        return (
            f"{self.finished} of {self.cars} laps finished, return {self.mean_return:.1f}; "
            f"{self.early_return:.1f} in the first {EARLY_STEPS:,} steps"
        )

    def figures(self, who: str) -> dict[str, float | None]:
        """The results by name, for the recording."""
        return {
            f"{who}_laps": float(self.finished),
            f"{who}_return": self.mean_return,
            f"{who}_early_return": self.early_return,
        }


def drive_laps(policy: Policy, cars: int, seed: int) -> Laps:
    """Drive every car for one episode; after a stop request, only as far as they have come."""
    env = TrackVectorEnv(cars, autoreset_mode="SameStep", copy=False)
    observations, _ = env.reset(seed=seed)
    driving = np.ones(cars, dtype=np.bool_)
    returns, early, steps, finished = np.zeros(cars), np.zeros(cars), np.zeros(cars), 0
    with torch_threads(1):  # more threads only wait for each other with networks this small
        while driving.any() and not stop_requested():
            env.actions[...] = policy(observations)
            env._step_rows(0, cars)  # `step` would be counted as training
            returns += env.rewards * driving
            steps += driving
            if steps.max() == EARLY_STEPS:
                early[:] = returns
            ended = (env.terminated | env.truncated) & driving
            if ended.any():
                finished += int((env._final_infos()["lap_fraction"][ended] >= 1.0).sum())
                driving &= ~ended
    env.close()
    if steps.max() < EARLY_STEPS:  # all crashed before
        early[:] = returns
    return Laps(cars, finished, float(returns.mean()), float(early.mean()), float(steps.mean()))


def final_laps(policy: Policy, seed: int) -> Laps | None:
    """Laps from starts that only the final evaluation of a stage uses; None if a stop request ended them."""
    if stop_requested():
        return None
    with _evaluate:
        laps = drive_laps(policy, EVALUATION_CARS, seed + FINAL_SEED)
    return None if stop_requested() else laps


def selection_return(policy: Policy, seed: int) -> float:
    """The return over equal time that chooses the best actor during training."""
    return drive_laps(policy, EVALUATION_CARS, seed + SELECTION_SEED).early_return


def actor_policy(actor: SquashedActor) -> Policy:
    """The actor without noise, arrays in and out."""

    def policy(observations: NDArray[Any]) -> NDArray[np.float32]:
        with torch.inference_mode():
            actions: NDArray[np.float32] = actor.greedy_actions(torch.from_numpy(observations)).numpy()
        return actions

    return policy


def compile_track() -> None:
    """Compile the environment, or load it from the cache, before anything is timed."""
    env = TrackVectorEnv(1, autoreset_mode="SameStep")
    with _compile:
        env.reset(seed=0)
        env._step_rows(0, 1)
