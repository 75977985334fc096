"""Ricochet is learnt with fixed seeds: how many boards that were never seen the agent solves afterwards."""

from __future__ import annotations

import dataclasses

import pytest

from hotloop.rl.train import ppo, recurrent_ppo
from hotloop.rl.workloads.ricochet import Ricochet, make_envs, ppo_settings, recurrent_settings
from hotloop.rl.workloads.ricochet_play import Solved, at_random, play, remembering, sampled

# 8 x 8 cells, 4 robots, a new board for every episode, walls included.
SYMBOLIC = Ricochet(
    obs_mode="symbolic",
    lookahead=2,
    envs=64,
    rollout_steps=32,
    learning_rate=1e-3,
    discount=0.95,
    entropy_weight=0.02,
)
# The smallest boards, one robot, one move from the target: which of four moves, as a picture shows it.
PICTURES = Ricochet(
    envs=64,
    rollout_steps=8,
    board_size=7,
    robots=1,
    max_solution_moves=1,
    episode_steps=3,
    channels=8,
    learning_rate=2e-3,
    discount=0.9,
)


def symbolic(config: Ricochet, boards: int) -> Solved:
    settings = dataclasses.replace(ppo_settings(config, quiet=True), learner="fused")
    return play(sampled(ppo.train(settings, envs=make_envs(config)).network), config, boards)


def from_pictures(config: Ricochet, boards: int, layers: int) -> Solved:
    settings = dataclasses.replace(recurrent_settings(config, quiet=True), layers=layers)
    network = recurrent_ppo.train(settings, make_envs(config)).network
    return play(remembering(network), config, boards)


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


def test_the_convlstm_learns_from_pictures() -> None:
    config = dataclasses.replace(PICTURES, timesteps=8_000)
    seen, chance = from_pictures(config, 400, layers=1), play(at_random(config), config, 400)
    assert seen.fraction >= 0.8, seen.says
    assert chance.fraction < 0.5, chance.says


@pytest.mark.long
def test_the_convlstm_learns_from_pictures_whose_robot_is_meant() -> None:
    """Two robots on boards of 8 x 8: the star's colour says which of them has to move."""
    config = dataclasses.replace(PICTURES, timesteps=30_000, board_size=8, robots=2, channels=16)
    seen, chance = from_pictures(config, 1000, layers=2), play(at_random(config), config, 1000)
    assert seen.fraction >= 0.65, seen.says
    assert chance.fraction < 0.35, chance.says
