"""Ricochet Robots from pictures by imitation of the exact solver: labels, training, outcome.

The solver is asked in training only. An agent that plays sees nothing but the picture.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from hotloop.rl.envs.ricochet.env import RicochetVectorEnv
from hotloop.rl.train import dagger
from hotloop.rl.train.dagger import DaggerConfig, Labels
from hotloop.rl.train.make_envs import compile_kernels
from hotloop.rl.train.networks.convlstm import RecurrentActorCritic
from hotloop.rl.train.runs import FinalEvaluation
from hotloop.rl.workloads.outcome import Note, Outcome
from hotloop.rl.workloads.ricochet_config import Ricochet, make_envs
from hotloop.rl.workloads.ricochet_evaluation import make_table, play_equally, recurrent_policy

MORE_MOVES = 6  # how much longer solutions get by the agent's mistakes; beyond, no move is called optimal
CURVE_SEED, CURVE_BOARDS = 3_000_000, 200  # of evaluations during training


def solver_labels(config: Ricochet) -> dagger.Expert:
    """A function that asks the solver about the positions of all boards."""
    step_reward, goal_reward = make_envs(dataclasses.replace(config, n_envs=1)).values
    longest = config.max_solution_moves + MORE_MOVES
    numbers = np.arange(longest + 1)
    discounts = config.gamma**numbers
    # The return of a solution of n moves; that of no solution is a step reward for ever, or nearly.
    returns = np.append(0.0, np.cumsum(discounts)[:-1]) * step_reward
    returns[1:] += discounts[:-1] * goal_reward
    returns[0] = step_reward / (1.0 - min(config.gamma, 0.999))

    def ask(envs: RicochetVectorEnv) -> Labels:
        costs = envs.moves_by_action(longest)
        robots_and_target = envs.pieces[:, : config.robots + 1].astype(np.int64)
        least = np.where(costs < 0, longest + 1, costs).min(axis=1)
        found = returns[np.where(least > longest, 0, least)].astype(np.float32)
        return Labels(costs, np.concatenate([envs.move_ends(), robots_and_target], axis=1), found)

    return ask


def dagger_config(config: Ricochet, quiet: bool = False) -> DaggerConfig:
    """Settings of the trainer."""
    return DaggerConfig(
        total_timesteps=config.total_timesteps,
        seed=config.seed,
        acting="agent" if config.algo == "dagger" else "expert",
        encoder="scan" if config.encoder == "scan" else "conv",
        board_size=config.board_size,
        places=5 * config.robots + 1,  # an end for each of four moves, the robots, the target
        channels=config.channels,
        learning_rate=config.learning_rate,
        place_coef=config.place_coef,
        threads=config.threads,
        checkpoint=config.checkpoint,
        eval_every_steps=config.eval_every_steps,
        resume=config.resume,
        quiet=quiet,
    )


def first_network(config: Ricochet, envs: Any) -> RecurrentActorCritic:
    """The network that PPO starts from with the encoder scan: a new one, or that of `start_from`."""
    shape, actions = envs.single_observation_space.shape, int(envs.single_action_space.n)
    network = dagger.make_network(dagger_config(config), shape, actions)
    if config.start_from is not None:
        dagger.load_network(config.start_from, network)
    return network


def make_curriculum(envs: RicochetVectorEnv, longest: int) -> Callable[[float], None]:
    """A function that allows longer solutions as training goes on, all of them from its middle on."""

    def admit(fraction: float) -> None:
        moves = min(1 + int(2 * longest * fraction), longest)
        if moves != envs.config.max_solution_moves:
            envs.set_max_solution_moves(moves)

    return admit


def train_by_imitation(config: Ricochet, note: Note | None, quiet: bool) -> Outcome:
    """Train with DAgger or behaviour cloning, then evaluate as `n_eval_episodes` says."""
    envs = compile_kernels(make_envs(config))

    def solved_fraction(network: RecurrentActorCritic) -> float:
        policy = recurrent_policy(network, greedy=True)
        return play_equally(policy, config, CURVE_BOARDS, CURVE_SEED).fraction

    result = dagger.train(
        dagger_config(config, quiet),
        envs,
        solver_labels(config),
        evaluate=solved_fraction,
        before_step=make_curriculum(envs, config.max_solution_moves) if config.curriculum else None,
        note=note,
    )
    remarks: tuple[str, ...] = ()
    figures: dict[str, float | None] = dict(result.statistics)
    stopped_by = result.stopped_by
    if config.n_eval_episodes and stopped_by is None:
        with FinalEvaluation() as evaluation:
            table = make_table(result.network, config)
            remarks, figures = table.lines, figures | table.figures
        stopped_by = evaluation.by
    if config.rendering == "compiled":
        remarks += ("pictures were drawn by a kernel: only their outer region was recorded",)
    return dataclasses.replace(
        Outcome.of_run(result, config.checkpoint, remarks),
        figures=figures,
        evaluations=result.evaluations,
        stopped_by=stopped_by,
    )
