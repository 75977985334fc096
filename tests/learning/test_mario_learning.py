"""Learning the platformer: how far the agent gets after training, compared with random actions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from hotloop._util.errors import HotloopError
from hotloop.rl.train.async_dqn import train
from hotloop.rl.workloads.mario import (
    AgentAndRandom,
    Mario,
    async_dqn_config,
    check,
    compare_with_random,
    evaluate,
    make_env,
    run,
)

GAMES = 64
# Small frames and a small network on one level, without processes: half a minute of one core. Random actions
# usually end in the level's first pit; an agent that has learned to jump reaches the second or the flag.
LEARNER = Mario(
    transport="serial",
    n_collectors=1,
    envs_per_collector=16,
    level=3,
    max_episode_steps=300,
    size=36,
    channels=(16, 32, 32),
    features_dim=128,
    batch_norm_momentum=0.02,
    batch_size=32,
    accumulate_grad_batches=1,
    replay_ratio=4.0,
    learning_starts=1_000,
    learning_rate=5e-4,
    final_learning_rate=1e-5,
    gamma=0.9,
    n_steps=5,
    target_every_updates=100,
    exploration_steps=8_000,
    weights_every_epochs=1,
    epoch_steps=128,
    total_timesteps=160 * 128,
    device="cpu",
    precision="float32",
)


def learn_and_evaluate(config: Mario) -> AgentAndRandom:
    done = train(async_dqn_config(config), partial(make_env, config), distance="x_pos")
    return compare_with_random(config, done.network, GAMES)


def assert_clearly_further(both: AgentAndRandom) -> None:
    assert both.agent.episodes == both.random.episodes == GAMES
    assert both.agent.mean_distance >= 1.5 * both.random.mean_distance, str(both)
    assert both.agent.mean_return > both.random.mean_return, str(both)


@pytest.mark.long  # every update is checked against plain torch in oracle/test_async_dqn.py
def test_the_agent_comes_clearly_further_than_random_actions() -> None:
    assert_clearly_further(learn_and_evaluate(LEARNER))


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_also_learns_with_other_seeds(seed: int) -> None:  # not with every seed: see docs/mario.md
    assert_clearly_further(learn_and_evaluate(replace(LEARNER, seed=seed)))


@pytest.mark.parametrize("episodes", [1, 20])
def test_as_many_episodes_are_played_as_asked_for(episodes: int) -> None:
    config = replace(LEARNER, max_episode_steps=10)
    both = AgentAndRandom(*(evaluate(config, None, episodes) for _ in range(3)))
    assert both.agent == both.random and both.agent.episodes == episodes  # the same seed, the same games
    assert (
        both.ratio == both.greedy_ratio == 1.0 and both.figures["agent_distance"] == both.random.mean_distance
    )
    assert str(both).startswith(f"evaluated on {episodes} episodes: the agent's distance is ")


def test_a_run_evaluates_the_agent_when_asked_to() -> None:
    config = replace(LEARNER, total_timesteps=256, max_episode_steps=10, n_eval_episodes=3)
    outcome = run(config, quiet=True)
    assert outcome.remarks[-1].startswith("evaluated on 3 episodes: the agent's distance is ")
    assert outcome.figures["eval_episodes"] == 3 and outcome.figures["random_distance"] is not None
    with pytest.raises(HotloopError, match="n_eval_episodes=-1 must be at least 0"):
        check(replace(LEARNER, n_eval_episodes=-1))
    with pytest.raises(HotloopError, match="for the platformer only"):
        check(replace(LEARNER, n_eval_episodes=3, env="mario"))
