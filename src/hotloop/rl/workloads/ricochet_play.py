"""How well an agent solves Ricochet boards it never saw, by the moves of their shortest solutions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop import profile
from hotloop.rl.workloads.ricochet import Ricochet, make_envs

_evaluate = profile("evaluate")

PLAY_SEED = 1_000_000  # away from the seeds of training
MOST_AT_ONCE = 256  # boards

Act = Callable[[NDArray[Any], NDArray[np.bool_]], NDArray[np.int64]]
"""Observations and which of them begin an episode -> actions."""


@dataclass(frozen=True, slots=True)
class Solved:
    """What an agent did with boards, one episode each."""

    limit: int
    """Steps after which a board counts as not solved."""
    boards: dict[int, int]
    """How many boards there were, by the moves of a shortest solution."""
    solved: dict[int, int]
    """How many of them were solved."""
    mean_steps: float | None
    """Of the boards that were solved; None when none was."""

    @property
    def fraction(self) -> float:
        """Of all boards."""
        return sum(self.solved.values()) / sum(self.boards.values())

    @property
    def says(self) -> str:
        """In one sentence."""
        each = ", ".join(f"{100 * self.solved[n] / self.boards[n]:.0f} % of {n}" for n in self.boards)
        return (
            f"solves {100 * self.fraction:.1f} % of {sum(self.boards.values())} boards it never saw within "
            f"{self.limit} steps ({each} moves)"
        )


def play(act: Act, config: Ricochet, boards: int, seed: int = PLAY_SEED) -> Solved:
    """One episode on each of `boards` boards; `act` is called for up to MOST_AT_ONCE of them at a time."""
    optimal, steps = np.zeros(boards, dtype=np.int64), np.zeros(boards, dtype=np.int64)
    with _evaluate:
        for first in range(0, boards, MOST_AT_ONCE):
            some = slice(first, min(first + MOST_AT_ONCE, boards))
            optimal[some], steps[some] = _play_some(act, config, some.stop - some.start, seed + first)
    moves = sorted(set(optimal.tolist()))
    return Solved(
        limit=config.episode_steps,
        boards={n: int((optimal == n).sum()) for n in moves},
        solved={n: int(((optimal == n) & (steps > 0)).sum()) for n in moves},
        mean_steps=float(steps[steps > 0].mean()) if steps.any() else None,
    )


def _play_some(act: Act, config: Ricochet, count: int, seed: int) -> tuple[Any, Any]:
    """Moves of a shortest solution and steps taken, 0 where a board was not solved, [count] each."""
    envs = make_envs(dataclasses.replace(config, envs=count))
    observations, infos = envs.reset(seed=seed)
    optimal, steps = infos["optimal_moves"].copy(), np.zeros(count, dtype=np.int64)
    starts, going = np.ones(count, dtype=np.bool_), np.ones(count, dtype=np.bool_)
    for number in range(1, config.episode_steps + 1):
        observations, _, terminated, truncated, _ = envs.step(act(observations, starts))
        steps[terminated & going] = number
        starts = terminated | truncated
        going &= ~starts
        if not going.any():
            break
    envs.close()
    return optimal, steps


def at_random(config: Ricochet, seed: int = 0) -> Act:
    """Any action, each as likely: what learning has to beat."""
    rng = np.random.default_rng(seed)
    return lambda observations, _: rng.integers(0, 4 * config.robots, len(observations))


def sampled(network: Any, seed: int = 0) -> Act:
    """Actions of an `ActorCritic`, drawn by its probabilities: the likeliest alone may go in circles."""
    import torch

    rng = np.random.default_rng(seed)

    def act(observations: NDArray[Any], _: NDArray[np.bool_]) -> NDArray[np.int64]:
        with torch.inference_mode():
            logits = network.logits(torch.from_numpy(observations)).numpy()
        chosen: NDArray[np.int64] = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        return chosen

    return act


def remembering(policy: Any, seed: int = 0) -> Act:
    """Actions of a `RecurrentActorCritic`, drawn by its probabilities; memory begins where boards begin."""
    import torch

    rng, state = np.random.default_rng(seed), [policy.initial_state(0)]

    def act(observations: NDArray[Any], starts: NDArray[np.bool_]) -> NDArray[np.int64]:
        if starts.all():
            state[0] = policy.initial_state(len(observations))
        uniforms = torch.from_numpy(rng.random(len(observations), dtype=np.float32))
        with torch.inference_mode():
            acted = policy.act(torch.from_numpy(observations), state[0], torch.from_numpy(starts), uniforms)
        state[0] = acted.state
        chosen: NDArray[np.int64] = acted.actions.numpy()
        return chosen

    return act
