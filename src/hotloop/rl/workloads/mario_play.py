"""How far an agent of `hotloop train mario` comes, played without learning, and how far chance comes.

    both = beside_chance(config, done.network, games=32)
    print(both.says)

One action in twenty is random, as in Mnih et al. (2015), and here it is needed: a jump begins when A goes
down, and whether A is down already cannot be seen. An agent that stands before a wall with A down sees the
same frames for ever, so its best action is the same for ever; any action without A frees it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hotloop import profile
from hotloop.rl.workloads.mario import Mario, make_env

_evaluate = profile("evaluate")

EPSILON = 0.05  # chance of a random action
PLAY_SEED = 1_000_000  # away from the seeds of training
ROWS = 16  # games at once


@dataclass(frozen=True, slots=True)
class Played:
    """What games played for the record came to."""

    episodes: int
    mean_distance: float
    """Pixels to the right, in the mean."""
    mean_return: float
    flags: int
    """Games that reached the flag."""

    @property
    def says(self) -> str:
        """For people."""
        return (
            f"{self.episodes} episodes, mean distance {self.mean_distance:.0f}, mean return "
            f"{self.mean_return:.0f}, {self.flags} flags"
        )


@dataclass(frozen=True, slots=True)
class BesideChance:
    """The agent, and actions drawn at random, on the same levels."""

    agent: Played
    chance: Played

    @property
    def times(self) -> float:
        """How many times as far as chance the agent comes."""
        return self.agent.mean_distance / self.chance.mean_distance

    @property
    def says(self) -> str:
        """In one sentence."""
        agent, chance = self.agent, self.chance
        return (
            f"played {agent.episodes} games: the agent's mean distance is {agent.mean_distance:.0f}, "
            f"{self.times:.2f} times that of chance ({chance.mean_distance:.0f}); it reached the flag in "
            f"{agent.flags}, chance in {chance.flags}"
        )

    @property
    def figures(self) -> dict[str, float | None]:
        """The same by name."""
        return {
            "played_games": self.agent.episodes,
            "agent_distance": self.agent.mean_distance,
            "chance_distance": self.chance.mean_distance,
            "agent_flags": self.agent.flags,
            "chance_flags": self.chance.flags,
        }


def beside_chance(config: Mario, network: Any, games: int = 32) -> BesideChance:
    """Play as many games by the network as by chance."""
    return BesideChance(play(config, network, games), play(config, None, games))


def play(config: Mario, network: Any | None, episodes: int = 32, *, epsilon: float = EPSILON) -> Played:
    """Play one game of the platformer after the other's end in `ROWS` rows; without a network by chance.

    The network is copied; it and the levels seen in training stay as they are.
    """
    import copy

    from hotloop.rl.train.async_actor import FrameActor

    rows = min(ROWS, episodes)
    envs = make_env(replace(config, env="platformer", envs=rows), config.seed)
    rng = np.random.default_rng([config.seed, PLAY_SEED])
    actor = None if network is None else FrameActor(copy.deepcopy(network).cpu())
    share = np.full(rows, episodes // rows)
    share[: episodes % rows] += 1
    distances: list[float] = []
    returns: list[float] = []
    flags = 0
    try:
        with _evaluate:
            observations, _ = envs.reset(seed=config.seed + PLAY_SEED)
            running = np.zeros(rows)
            while share.any():
                if actor is None:
                    actions = rng.integers(0, envs.single_action_space.n, rows)
                else:
                    actions = actor.act(observations, epsilon, rng)
                observations, rewards, terminated, truncated, infos = envs.step(actions)
                running += rewards
                for row in np.flatnonzero(terminated | truncated):
                    if share[row]:  # each row its share, so that short games do not count more often
                        share[row] -= 1
                        distances.append(float(infos["final_info"]["x_pos"][row]))
                        returns.append(float(running[row]))
                        flags += bool(infos["final_info"]["flag_get"][row])
                    running[row] = 0.0
    finally:
        envs.close()
    return Played(len(distances), float(np.mean(distances)), float(np.mean(returns)), flags)
