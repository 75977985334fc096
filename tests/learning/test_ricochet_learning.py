"""Learning Ricochet with fixed seeds: how many unseen boards the agent solves afterwards."""

from __future__ import annotations

import dataclasses

import pytest

from hotloop.rl.train import dagger, ppo, recurrent_ppo
from hotloop.rl.workloads.ricochet import ppo_config, recurrent_ppo_config
from hotloop.rl.workloads.ricochet_config import Ricochet, make_envs
from hotloop.rl.workloads.ricochet_dagger import dagger_config, solver_labels
from hotloop.rl.workloads.ricochet_evaluation import (
    Solved,
    play,
    play_equally,
    random_policy,
    recurrent_policy,
    sampled_policy,
)

# 8 x 8 cells, 4 robots, a new board for every episode, walls included.
SYMBOLIC = Ricochet(
    obs_mode="symbolic",
    lookahead=2,
    n_envs=64,
    n_steps=32,
    learning_rate=1e-3,
    gamma=0.95,
    ent_coef=0.02,
)
# The smallest boards, one robot, one move from the target: which of four moves, as a picture shows it.
PICTURES = Ricochet(
    n_envs=64,
    n_steps=8,
    board_size=7,
    robots=1,
    max_solution_moves=1,
    max_episode_steps=3,
    channels=8,
    learning_rate=2e-3,
    gamma=0.9,
)

# Those of `--preset pictures`: 8 x 8 cells, 2 robots, boards of one to three moves.
IMITATION = Ricochet(
    algo="dagger",
    encoder="scan",
    n_envs=64,
    robots=2,
    max_episode_steps=6,
    channels=48,
    learning_rate=2e-3,
)


def symbolic(config: Ricochet, boards: int) -> Solved:
    settings = dataclasses.replace(ppo_config(config, quiet=True), learner="fused")
    return play(sampled_policy(ppo.train(settings, envs=make_envs(config)).network), config, boards)


def from_pictures(config: Ricochet, boards: int, layers: int) -> Solved:
    settings = dataclasses.replace(recurrent_ppo_config(config, quiet=True), layers=layers)
    network = recurrent_ppo.train(settings, make_envs(config)).network
    return play(recurrent_policy(network), config, boards)


@pytest.mark.long
def test_boards_of_one_or_two_moves_are_solved_in_few_steps() -> None:
    config = dataclasses.replace(
        SYMBOLIC, total_timesteps=120_000, max_solution_moves=2, max_episode_steps=20
    )
    seen, chance = symbolic(config, 400), play(random_policy(config), config, 400)
    assert seen.fraction >= 0.9 and set(seen.boards) == {1, 2}, seen.summary
    assert chance.fraction < 0.4, chance.summary


@pytest.mark.long
def test_nine_in_ten_boards_of_one_to_three_moves_are_solved() -> None:
    config = dataclasses.replace(SYMBOLIC, total_timesteps=1_000_000)
    seen, chance = symbolic(config, 1000), play(random_policy(config), config, 1000)
    assert seen.fraction >= 0.9 and set(seen.boards) == {1, 2, 3}, seen.summary
    assert chance.fraction < 0.55, chance.summary


@pytest.mark.long  # that a recurrent network learns is shown on smaller tasks in test_recurrent_ppo.py
def test_the_convlstm_learns_from_pictures() -> None:
    config = dataclasses.replace(PICTURES, total_timesteps=8_000)
    seen, chance = from_pictures(config, 400, layers=1), play(random_policy(config), config, 400)
    assert seen.fraction >= 0.8, seen.summary
    assert chance.fraction < 0.5, chance.summary


@pytest.mark.long
def test_the_convlstm_learns_from_pictures_whose_robot_is_meant() -> None:
    """Two robots on boards of 8 x 8: the star's colour says which of them has to move."""
    config = dataclasses.replace(PICTURES, total_timesteps=30_000, board_size=8, robots=2, channels=16)
    seen, chance = from_pictures(config, 1000, layers=2), play(random_policy(config), config, 1000)
    assert seen.fraction >= 0.65, seen.summary
    assert chance.fraction < 0.35, chance.summary


@pytest.mark.long
def test_imitation_of_the_solver_learns_boards_of_one_to_three_moves_from_pictures() -> None:
    """A fifth of the steps of the preset, which solves 99 of 100 boards."""
    config = dataclasses.replace(IMITATION, total_timesteps=19_200)
    settings = dagger_config(config, quiet=True)
    network = dagger.train(settings, make_envs(config), solver_labels(config)).network
    seen = play_equally(recurrent_policy(network, greedy=True), config, 600)
    chance = play_equally(random_policy(config), config, 600)
    assert seen.fraction >= 0.6 and min(seen.fractions.values()) >= 0.25, seen
    assert chance.fraction < 0.2, chance
