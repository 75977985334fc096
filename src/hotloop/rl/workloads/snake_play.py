"""How well a Snake agent plays, and what settings learn: the check behind every change of the work."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotloop import profile
from hotloop.rl.workloads.snake import FloodFill, Snake, compile_kernels, dqn_settings, make_envs

_evaluate = profile("evaluate")
_learn = profile("learning_check", "evaluation")

GAMES = 128  # of an evaluation
FAST_FLOODS: dict[str, FloodFill] = {
    "off": "off",
    "every_k": "every_k_compiled",
    "every_k_compiled": "every_k_compiled",
}
PLAY_SEED = 1_000_000  # away from the seeds of training


@dataclass(frozen=True, slots=True)
class Played:
    """What an agent did with its best actions."""

    games: int
    mean_length: float
    """Of the snakes when their games ended."""
    mean_return: float
    trained_steps: int
    """Env steps it was trained for."""
    updates: int
    """And updates."""

    @property
    def says(self) -> str:
        """In one sentence."""
        return (
            f"after {self.trained_steps:,} env steps and {self.updates:,} updates the snakes get "
            f"{self.mean_length:.1f} cells long, return {self.mean_return:.1f} ({self.games} games)"
        )


def play(network: Any, config: Snake, games: int = GAMES, seed: int = PLAY_SEED) -> tuple[float, float]:
    """Mean final length and mean return of `games` games played at once with the best actions."""
    import torch

    envs = make_envs(config, games)
    returns, lengths = np.zeros(games), np.zeros(games)
    going = np.ones(games, dtype=np.bool_)
    with _evaluate, torch.inference_mode():
        observations, _ = envs.reset(seed=seed)
        while going.any():
            actions = network(torch.from_numpy(observations)).numpy().argmax(axis=1)
            observations, rewards, terminated, truncated, infos = envs.step(actions)
            returns += rewards * going
            ended = (terminated | truncated) & going
            if ended.any():
                lengths[ended] = infos["final_info"]["length"][ended]
            going &= ~ended
    envs.close()
    return float(lengths.mean()), float(returns.mean())


def fast_twin(config: Snake, steps: int) -> Snake:
    """The config that learns the same from `steps` env steps, as fast as can be.

    What learning hangs on stays: updates, games, hyper-parameters, what the agent sees, the seed.
    """
    flood = FAST_FLOODS.get(config.switches.flood_fill, "compiled")
    return dataclasses.replace(
        config,
        steps=steps,
        episodes=steps,
        variant="fast",
        push=None,
        updates=config.switches.updates,
        flood_fill=flood,
        transfers=None,
        logging=None,
        learner=None,
        loop=None,
        split=None,
        learning_check=0,
        log=None,
        metrics=None,
        checkpoint=None,
        resume=False,
    )


def learn_and_play(config: Snake, steps: int) -> Played:
    """Train the fast twin and let it play; nothing of it is counted as work of the run."""
    with _learn:
        from hotloop.rl.train.dqn import train

        twin = fast_twin(config, steps)
        settings, envs = dqn_settings(twin), make_envs(twin)
        compile_kernels(settings, envs)
        done = train(settings, envs=envs, report=lambda **work: None)
        envs.close()
        length, mean_return = play(done.network, twin)
    return Played(GAMES, length, mean_return, done.env_steps, done.updates)
