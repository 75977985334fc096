"""Environments and actors for the tests of collection: rows in which any loss, mix-up or repetition shows."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from hotloop.rl.collect.protocol import Rows, Spaces

ACTIONS = 1000


class Counting(gymnasium.Env[Any, Any]):
    """Observes its seed, the number of its episode, of the step in it, and of the step since it was made."""

    def __init__(self, seed: int = 0):
        self.observation_space = Box(0, np.iinfo(np.int64).max, (4,), np.int64)
        self.action_space = Discrete(ACTIONS)
        self._seed, self._episode, self._step, self._total = seed, -1, 0, 0

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[NDArray[np.int64], dict[str, Any]]:
        super().reset(seed=seed)
        self._episode, self._step = self._episode + 1, 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[NDArray[np.int64], float, bool, bool, dict[str, Any]]:
        self._step, self._total = self._step + 1, self._total + 1
        ended = self._step >= 1 + (self._seed + 7 * self._episode) % 13
        terminated = ended and self._episode % 2 == 0
        return (
            self._observe(),
            float(action) + self._step / 16,
            terminated,
            ended and not terminated,
            {"total": self._total},
        )

    def _observe(self) -> NDArray[np.int64]:
        return np.array([self._seed, self._episode, self._step, self._total])


class Stacked(Counting):
    """The same as uint8 pictures, the last three of them in one observation."""

    def __init__(self, seed: int = 0):
        super().__init__(seed)
        self.observation_space = Box(0, 255, (3, 5, 4), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._stack: NDArray[np.uint8] | None = None
        return super().reset(seed=seed)

    def _observe(self) -> Any:
        rng = np.random.default_rng([self._seed, self._episode, self._step])
        frame = rng.integers(0, 256, (1, 5, 4), dtype=np.uint8)
        frames = [frame] * 3 if self._stack is None else [self._stack[1:], frame]
        self._stack = np.concatenate(frames)
        return self._stack.copy()


class Faulty(Counting):
    """Breaks after some steps if its seed is one of those given."""

    def __init__(self, seed: int, bad_seeds: tuple[int, ...], after: int, how: str):
        super().__init__(seed)
        self._bad, self._after, self._how = not bad_seeds or seed in bad_seeds, after, how

    def step(self, action: Any) -> Any:
        if self._bad and self._total >= self._after:
            if self._how == "raise":
                raise ValueError("planted in the environment")
            while True:
                sleep_for_ever()
        return super().step(action)


def sleep_for_ever() -> None:
    """Where a hung collector is found."""
    time.sleep(1000)


class Steered:
    """Actions follow from weights, control and random numbers, so that rows show what the actor had."""

    def __init__(self, spaces: Spaces):
        self._envs, self._weights = spaces.n_envs, np.zeros(2, dtype=np.float32)

    def load(self, weights: NDArray[np.float32]) -> None:
        """Keep the vector."""
        self._weights = weights.copy()

    def act(self, observations: NDArray[Any], control: float, rng: np.random.Generator) -> NDArray[np.int64]:
        """10 x the version that was published as weights + 100 x control + a random digit."""
        assert len(observations) == self._envs and (self._weights == self._weights[0]).all()
        base = int(10 * self._weights[0] + 100 * control)
        return base + rng.integers(0, 10, self._envs)


def check_streams(rows: Rows, envs: int = 1) -> None:
    """Rows of one run of `Counting`, in the order taken: nothing is missing, nothing twice, all in order."""
    for collector in np.unique(rows["collector"]):
        own = rows[rows["collector"] == collector]
        np.testing.assert_array_equal(own["sequence"], np.arange(len(own)))
        assert (np.diff(own["life"].astype(np.int64)) >= 0).all()
        assert (own["stream"] == collector * envs + own["env"]).all()
        for life in np.unique(own["life"]):
            for env in range(envs):
                check_one(own[(own["life"] == life) & (own["env"] == env)])


def check_one(rows: Rows) -> None:
    """One environment's life: every step follows from the one before."""
    if not len(rows):
        return
    seed, episode, step, total = rows["frame"].T
    first = rows["first"]
    ended = rows["terminated"] | rows["truncated"]
    assert first[0] and (seed == seed[0]).all()
    np.testing.assert_array_equal(episode, np.cumsum(first) - 1)
    np.testing.assert_array_equal(total, np.cumsum(~first))
    np.testing.assert_array_equal(step[first], 0)
    np.testing.assert_array_equal(step[1:][~first[1:]], step[:-1][~first[1:]] + 1)
    np.testing.assert_array_equal(first[1:], ended[:-1])
    np.testing.assert_array_equal(ended, ~first & (step >= 1 + (seed + 7 * episode) % 13))
    np.testing.assert_array_equal(rows["truncated"], ended & (episode % 2 == 1))
    np.testing.assert_array_equal(rows["reward"][~first], (rows["action"] + step / 16)[~first])
    np.testing.assert_array_equal(rows["episode_length"], np.where(ended, step, 0))
