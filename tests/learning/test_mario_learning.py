"""The platformer is learnt with a fixed seed: how far the agent comes after so many steps, beside chance."""

from __future__ import annotations

from functools import partial

from hotloop.rl.train.async_dqn import train
from hotloop.rl.workloads.mario import Mario, make_env, settings_of
from hotloop.rl.workloads.mario_play import play

# A small network on small frames, one level, learnt from often: what two cores do in a minute.
LEARNER = Mario(
    transport="serial",
    collectors=1,
    envs=16,
    level=1,
    size=44,
    channels=(16, 32, 32),
    hidden=128,
    batch_size=64,
    accumulate=1,
    learn_per_step=4.0,
    learning_starts=500,
    learning_rate=1e-3,
    target_every=100,
    epsilon_steps=6_000,
    weights_every=1,
    epoch_steps=250,
    epochs=48,
    max_episode_steps=300,
    seed=1,
)


def test_the_agent_comes_clearly_further_than_chance() -> None:
    chance = play(LEARNER, None)
    done = train(settings_of(LEARNER), partial(make_env, LEARNER), distance="x_pos")
    agent = play(LEARNER, done.network)
    assert agent.mean_distance > 1.5 * chance.mean_distance, f"agent: {agent.says}; chance: {chance.says}"
    assert agent.mean_return > chance.mean_return
