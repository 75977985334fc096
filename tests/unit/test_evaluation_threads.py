"""Policies are asked with the number of torch threads chosen for them, in every evaluation of every pipeline.

More threads than a small network needs only wait for each other: an evaluation can take ten times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hotloop.rl.workloads import mario, petri, ricochet, ricochet_evaluation, snake, track_laps


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Torch with two threads, as it starts on two cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class CountingPolicy:
    """Notes how many threads torch has at every call, and acts at random."""

    def __init__(self, actions: int = 0):
        self.threads: list[int] = []
        self._actions, self._rng = actions, np.random.default_rng(0)

    def __call__(self, observations: NDArray[Any], *_: Any) -> NDArray[Any]:
        self.threads.append(torch.get_num_threads())
        if not self._actions:
            return np.zeros((len(observations), 2), dtype=np.float32)
        return self._rng.integers(0, self._actions, len(observations))

    def check(self, threads: int = 1) -> None:
        assert set(self.threads) == {threads}
        assert torch.get_num_threads() == 2  # restored


@pytest.mark.usefixtures("two_threads")
def test_laps_are_driven_with_one_thread() -> None:
    policy = CountingPolicy()
    track_laps.drive_laps(policy, 1, seed=0)
    policy.check()


@pytest.mark.usefixtures("two_threads")
def test_snake_is_evaluated_with_one_thread() -> None:
    policy = CountingPolicy(3)

    def network(observations: torch.Tensor) -> torch.Tensor:
        chosen = torch.from_numpy(policy(observations.numpy()))
        return torch.nn.functional.one_hot(chosen, 3)

    snake.evaluate(network, snake.Snake(flood_fill="off"), games=2)
    policy.check()


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("threads", [1, 3])
def test_ricochet_is_evaluated_with_the_threads_of_its_training(threads: int) -> None:
    policy = CountingPolicy(4)
    config = ricochet.Ricochet(obs_mode="symbolic", board_size=8, threads=threads, max_episode_steps=2)
    ricochet_evaluation.play(policy, config, boards=2)
    policy.check(threads)


@pytest.mark.usefixtures("two_threads")
def test_petri_is_evaluated_with_one_thread() -> None:
    policy = CountingPolicy()

    def first_allowed(observations: NDArray[np.float32], masks: NDArray[np.bool_]) -> NDArray[np.int64]:
        policy(observations)
        return masks.argmax(axis=1)

    petri.play(petri.Petri(wafers=1), first_allowed)
    policy.check()


@pytest.mark.usefixtures("two_threads")
def test_mario_is_evaluated_with_the_threads_of_its_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = CountingPolicy(7)

    class Actor:
        def __init__(self, network: Any):
            pass

        def act(self, observations: NDArray[Any], *_: Any) -> NDArray[Any]:
            return policy(observations)

    monkeypatch.setattr(mario, "FrameActor", Actor)
    mario.evaluate(mario.Mario(size=36, max_episode_steps=2), torch.nn.Identity(), 1)
    policy.check()
