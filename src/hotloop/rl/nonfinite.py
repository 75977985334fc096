"""Rewards and observations that are NaN or infinite: counted, named, and kept away from learners.

Collectors and trainers look at what environments return before anything is learned from it.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError


class NonFiniteData(HotloopError):
    """An environment returned a reward or an observation that is NaN or infinite."""


def is_finite(array: NDArray[Any]) -> bool:
    """Whether all numbers of an array are finite; integers always are."""
    if array.dtype.kind != "f":
        return array.dtype.kind != "c" or bool(np.isfinite(array).all())
    # One pass and no new array: 0.7 us instead of 1.5 for [8, 4]. The sum of squares is finite unless a
    # number is not, or it overflows; unlike `dot` and `sum`, `vdot` does not warn of that.
    return math.isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())


def count_nonfinite(array: NDArray[Any]) -> int:
    """How many numbers of an array are NaN or infinite."""
    return 0 if array.dtype.kind not in "fc" else array.size - int(np.count_nonzero(np.isfinite(array)))


def first_nonfinite(array: NDArray[Any]) -> tuple[tuple[int, ...], float]:
    """Index and value of the first number that is NaN or infinite; there must be one."""
    at = tuple(int(number) for number in np.argwhere(~np.isfinite(array))[0])
    return at, float(array[at])


class NonFiniteCheck:
    """Looks at what environments return; raises NonFiniteData, or counts if `allow` is set.

    `checkpoint` is where the training saves, for the message.
    """

    def __init__(self, allow: bool = False, checkpoint: Path | None = None):
        self.allow, self.checkpoint = allow, checkpoint
        self.env_steps = 0
        """Env steps before the next check; the trainer sets it."""
        self.found = 0
        """Numbers that were NaN or infinite so far."""

    def step(
        self,
        observations: NDArray[Any],
        rewards: NDArray[Any] | None = None,
        finals: NDArray[Any] | None = None,
        ended: NDArray[np.bool_] | None = None,
    ) -> None:
        """Check one vector step [envs, ...].

        `finals` are the last observations of the episodes that `ended`; its other rows mean nothing.
        """
        if rewards is not None and not is_finite(rewards):
            self._report("reward", rewards[None])
        if not is_finite(observations):
            self._report("observation", observations[None])
        if finals is not None and ended is not None and not is_finite(finals):
            self.finals(np.flatnonzero(ended), finals[ended], 0)

    def finals(self, envs: NDArray[np.intp], observations: NDArray[Any], later: int) -> None:
        """Check the last observations of episodes of these envs, taken `later` env steps than `env_steps`."""
        if not is_finite(observations):
            (row, *_), value = first_nonfinite(observations)
            count = count_nonfinite(observations)
            self.report(f"environment {envs[row]}", "observation", value, self.env_steps + later, count)

    def rollout(self, observations: NDArray[Any], rewards: NDArray[Any]) -> None:
        """Check a whole rollout [steps, envs, ...]."""
        if not is_finite(rewards):
            self._report("reward", rewards)
        if not is_finite(observations):
            self._report("observation", observations)

    def kernel(self, envs: Any, found: int) -> None:
        """Count what a kernel has found in the arrays of `envs`; unless allowed, they still hold it."""
        if not self.allow:
            ended = envs.terminated | envs.truncated
            self.step(envs.observations, envs.rewards, envs.final_observations, ended)
        self.report("an environment", "rewards or observations", math.nan, self.env_steps, found)

    def _report(self, what: str, values: NDArray[Any]) -> None:
        """`values` are [steps, envs, ...]."""
        (step, env, *_), value = first_nonfinite(values)
        env_steps = self.env_steps + step * values.shape[1]
        self.report(f"environment {env}", what, value, env_steps, count_nonfinite(values))

    def report(self, who: str, what: str, value: float, env_steps: int, count: int) -> None:
        """Count numbers that are not finite; raise for them, or, where allowed, say so the first time."""
        first, self.found = not self.found, self.found + count
        seen = f"{who} returned {value} in its {what} after {env_steps:,} env steps"
        if not self.allow:
            kept = self.checkpoint is not None and self.checkpoint.is_file()
            raise NonFiniteData(
                f"{seen[0].upper()}{seen[1:]} ({count:,} of the {what}s since the last check are NaN or "
                "infinite); nothing was learned from it"
                + (f", and the last good checkpoint is {self.checkpoint}" if kept else "")
                + ". Fix the environment, or set allow_nonfinite to train on it."
            )
        if first:
            print(
                f"hotloop: {seen}; training goes on, as allow_nonfinite is set", file=sys.stderr, flush=True
            )
