"""The platformer is learnt: how far the agent comes after a set number of steps, beside chance."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from hotloop._util.errors import HotloopError
from hotloop.rl.train.async_dqn import train
from hotloop.rl.workloads.mario import Mario, check, make_env, run, settings_of
from hotloop.rl.workloads.mario_play import BesideChance, beside_chance, play

GAMES = 64
# Small frames and a small network on one level, without processes: half a minute of one core. Chance falls
# into the level's first pit as a rule; an agent that has learnt to jump comes to the second or the flag.
LEARNER = Mario(
    transport="serial",
    collectors=1,
    envs=16,
    level=3,
    max_episode_steps=300,
    size=36,
    channels=(16, 32, 32),
    hidden=128,
    norm_momentum=0.02,
    batch_size=32,
    accumulate=1,
    learn_per_step=4.0,
    learning_starts=1_000,
    learning_rate=5e-4,
    learning_rate_end=1e-5,
    discount=0.9,
    n_step=5,
    target_every=100,
    epsilon_steps=8_000,
    weights_every=1,
    epoch_steps=128,
    epochs=160,
    device="cpu",
    precision="float32",
)


def learn_and_play(config: Mario) -> BesideChance:
    done = train(settings_of(config), partial(make_env, config), distance="x_pos")
    return beside_chance(config, done.network, GAMES)


def assert_clearly_further(both: BesideChance) -> None:
    assert both.agent.episodes == both.chance.episodes == GAMES
    assert both.agent.mean_distance >= 1.5 * both.chance.mean_distance, both.says
    assert both.agent.mean_return > both.chance.mean_return, both.says


def test_the_agent_comes_clearly_further_than_chance() -> None:
    assert_clearly_further(learn_and_play(LEARNER))


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_with_other_seeds_it_does(seed: int) -> None:  # not with every seed: see docs/mario.md
    assert_clearly_further(learn_and_play(replace(LEARNER, seed=seed)))


@pytest.mark.parametrize("games", [1, 20])
def test_as_many_games_are_played_as_were_asked_for(games: int) -> None:
    config = replace(LEARNER, max_episode_steps=10)
    both = BesideChance(play(config, None, games), play(config, None, games))
    assert both.agent == both.chance and both.agent.episodes == games  # the same seed, the same games
    assert both.times == 1.0 and both.figures["agent_distance"] == both.chance.mean_distance
    assert both.says.startswith(f"played {games} games: the agent's mean distance is ")


def test_a_run_tells_how_far_the_agent_comes_when_asked_to() -> None:
    outcome = run(replace(LEARNER, epochs=2, max_episode_steps=10, play=3), quiet=True)
    assert outcome.remarks[-1].startswith("played 3 games: the agent's mean distance is ")
    assert outcome.figures["played_games"] == 3 and outcome.figures["chance_distance"] is not None
    with pytest.raises(HotloopError, match="play=-1 must be at least 0"):
        check(replace(LEARNER, play=-1))
    with pytest.raises(HotloopError, match="plays the platformer only"):
        check(replace(LEARNER, play=3, env="mario"))
