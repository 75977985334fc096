"""Ricochet is learnt with fixed seeds: how many boards that were never seen the agent solves afterwards."""

from __future__ import annotations

import dataclasses

import pytest

from hotloop.rl.train import ppo
from hotloop.rl.workloads.ricochet import Ricochet, make_envs, ppo_settings
from hotloop.rl.workloads.ricochet_play import Solved, at_random, play, sampled

# 8 x 8 cells, 4 robots, a new board for every episode, walls included.
SYMBOLIC = Ricochet(
    obs_mode="symbolic", lookahead=2, envs=64, learning_rate=1e-3, discount=0.95, entropy_weight=0.02
)


def symbolic(config: Ricochet, boards: int) -> Solved:
    settings = dataclasses.replace(ppo_settings(config, quiet=True), learner="fused")
    return play(sampled(ppo.train(settings, envs=make_envs(config)).network), config, boards)


def test_boards_of_one_or_two_moves_are_solved_in_few_steps() -> None:
    config = dataclasses.replace(SYMBOLIC, timesteps=120_000, max_solution_moves=2, episode_steps=20)
    seen, chance = symbolic(config, 400), play(at_random(config), config, 400)
    assert seen.fraction >= 0.9 and set(seen.boards) == {1, 2}, seen.says
    assert chance.fraction < 0.4, chance.says


@pytest.mark.long
def test_nine_in_ten_boards_of_one_to_three_moves_are_solved() -> None:
    config = dataclasses.replace(SYMBOLIC, timesteps=1_000_000)
    seen, chance = symbolic(config, 1000), play(at_random(config), config, 1000)
    assert seen.fraction >= 0.9 and set(seen.boards) == {1, 2, 3}, seen.says
    assert chance.fraction < 0.55, chance.says
