"""How far an agent of `hotloop train mario` comes, played without learning, and how far chance comes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hotloop.rl.workloads.mario import Mario, make_env


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


def play(config: Mario, network: Any | None, episodes: int = 32, *, epsilon: float = 0.05) -> Played:
    """Play one game after the other's end in 16 rows; without a network every action is random."""
    from hotloop.rl.train.async_actor import FrameActor

    rows = min(16, episodes)
    envs = make_env(replace(config, env="platformer", envs=rows), config.seed)
    actor, rng = None if network is None else FrameActor(network), np.random.default_rng(config.seed)
    share = np.full(rows, episodes // rows)
    share[: episodes % rows] += 1
    distances: list[float] = []
    returns: list[float] = []
    flags = 0
    try:
        observations, _ = envs.reset(seed=config.seed + 1_000_000)
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
