"""Defect: every 100 turns the agent is tried for as long again; the region is called nothing special."""

import gymnasium as gym
import numpy as np
from _pace import turns

from hotloop import profile, progress

game, other_game = gym.make("CartPole-v1"), gym.make("CartPole-v1")
rng = np.random.default_rng(0)
weights = rng.normal(size=(4, 2))
state, _ = game.reset(seed=0)


def move(seen):
    with profile("act"):
        return int((seen @ weights).argmax())


def play(one, choice):
    with profile("sim_step"):
        return one.step(choice)


for turn in turns(32_000):
    state, reward, terminated, truncated, _ = play(game, move(state))
    progress(env_steps=1)
    if terminated or truncated:
        state, _ = game.reset()
        progress(episodes=1)
    if turn % 100 == 0:
        with profile("how_good"):
            seen, _ = other_game.reset()
            for _turn in range(150):
                seen, _, terminated, truncated, _ = play(other_game, move(seen))
                if terminated or truncated:
                    seen, _ = other_game.reset()
