"""`hotloop train ricochet`: an agent learns to solve Ricochet Robots boards, from pictures or from symbols.

PPO learns from rewards. DAgger and behaviour cloning learn from the exact solver: ricochet_dagger.py.

torch and numba take seconds to load, and `hotloop train --help` only needs the settings. So the modules that
need them, ours included, are imported in functions.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hotloop import profile_function
from hotloop._util.extras import require_extra
from hotloop.rl.workloads.outcome import Note, Outcome
from hotloop.rl.workloads.ricochet_config import Ricochet as Ricochet
from hotloop.rl.workloads.ricochet_config import check as check_settings
from hotloop.rl.workloads.ricochet_config import env_settings, make_envs
from hotloop.rl.workloads.ricochet_evaluation import (
    Policy,
    make_table,
    play,
    random_policy,
    recurrent_policy,
    sampled_policy,
)

if TYPE_CHECKING:
    from hotloop.rl.train.ppo import PPOConfig
    from hotloop.rl.train.recurrent_ppo import RecurrentPPOConfig


def check(config: Ricochet) -> None:
    """Raise HotloopError for the first invalid setting, or a checkpoint that does not fit them."""
    from hotloop.rl.train import dagger, ppo, recurrent_ppo

    check_settings(config)
    if config.algo != "ppo":
        from hotloop.rl.workloads.ricochet_dagger import dagger_config

        dagger.check_settings(dagger_config(config))
        dagger.saved_run(dagger_config(config))
    elif config.obs_mode == "rgb_image":
        recurrent_ppo.check_settings(recurrent_ppo_config(config), config.n_envs)
        recurrent_ppo.saved_run(recurrent_ppo_config(config))
    else:
        ppo.check_config(ppo_config(config))
        ppo.saved_run(ppo_config(config))


def prepare(config: Ricochet) -> None:
    """Compile the kernels before anything is timed."""
    from hotloop.rl.train.make_envs import compile_kernels

    if config.trainer == "hotloop":
        envs = compile_kernels(make_envs(config))
        if config.algo != "ppo":
            from hotloop.rl.workloads.ricochet_dagger import solver_labels

            solver_labels(config)(envs)
        envs.close()


# ---- training


def run(config: Ricochet, note: Note | None = None, quiet: bool = False) -> Outcome:
    check(config)
    if config.trainer == "sb3":
        require_extra("stable_baselines3", "sb3")
        from hotloop.rl.workloads.ricochet_sb3 import train_sb3

        return train_sb3(config, env_settings(config), quiet)
    if config.algo != "ppo":
        from hotloop.rl.workloads.ricochet_dagger import train_by_imitation

        return train_by_imitation(config, note, quiet)
    if config.obs_mode == "rgb_image":
        return _train_on_pictures(config, note, quiet)
    return _train_on_symbols(config, note, quiet)


def recurrent_ppo_config(config: Ricochet, quiet: bool = False) -> RecurrentPPOConfig:
    """Settings for pictures."""
    from hotloop.rl.train.recurrent_ppo import RecurrentPPOConfig

    return RecurrentPPOConfig(
        total_timesteps=config.total_timesteps,
        seed=config.seed,
        encoder="convlstm" if config.convlstm else "conv",
        channels=config.channels,
        n_steps=config.n_steps,
        n_epochs=config.n_epochs,
        num_minibatches=config.num_minibatches,
        learning_rate=config.learning_rate,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        ent_coef=config.ent_coef,
        compile=config.compile,
        threads=config.threads,
        checkpoint=config.checkpoint,
        resume=config.resume,
        quiet=quiet,
    )


def ppo_config(config: Ricochet, quiet: bool = False) -> PPOConfig:
    """Settings for planes and symbols."""
    from hotloop.rl.train.ppo import PPOConfig

    return PPOConfig(
        env="Ricochet",
        total_timesteps=config.total_timesteps,
        seed=config.seed,
        n_envs=config.n_envs,
        n_steps=config.n_steps,
        n_epochs=config.n_epochs,
        batch_size=config.batch_size or config.n_envs * config.n_steps // config.num_minibatches,
        learning_rate=config.learning_rate,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        ent_coef=config.ent_coef,
        net_arch=config.net_arch,
        checkpoint=config.checkpoint,
        resume=config.resume,
        quiet=quiet,
    )


def _train_on_pictures(config: Ricochet, note: Note | None, quiet: bool) -> Outcome:
    from hotloop.rl.train.make_envs import compile_kernels
    from hotloop.rl.train.recurrent_ppo import train
    from hotloop.rl.train.runs import FinalEvaluation

    envs, network = compile_kernels(make_envs(config)), None
    if config.encoder == "scan":
        from hotloop.rl.workloads.ricochet_dagger import first_network

        network = first_network(config, envs)
    result = train(recurrent_ppo_config(config, quiet), envs, network=network, note=note)
    remarks: tuple[str, ...] = ()
    figures: dict[str, float | None] = {}
    stopped_by = result.stopped_by
    if config.n_eval_episodes and stopped_by is None:
        with FinalEvaluation() as evaluation:
            table = make_table(result.network, config)
            remarks = (*_evaluation(config, recurrent_policy(result.network)), *table.lines)
            figures = table.figures
        stopped_by = evaluation.by
    if config.compile:
        remarks += ("the network was compiled: only its outer regions were recorded",)
    if config.rendering == "compiled":
        remarks += ("pictures were drawn by a kernel: only their outer region was recorded",)
    outcome = Outcome.of_run(result, config.checkpoint, remarks)
    return dataclasses.replace(outcome, figures=figures, stopped_by=stopped_by)


def _train_on_symbols(config: Ricochet, note: Note | None, quiet: bool) -> Outcome:
    from hotloop.rl.train.make_envs import compile_kernels
    from hotloop.rl.train.ppo import train
    from hotloop.rl.train.runs import FinalEvaluation

    result = train(ppo_config(config, quiet), envs=compile_kernels(make_envs(config)), note=note)
    remarks: tuple[str, ...] = ()
    stopped_by = result.stopped_by
    if stopped_by is None:
        with FinalEvaluation() as evaluation:
            remarks = _evaluation(config, sampled_policy(result.network))
        stopped_by = evaluation.by
    outcome = Outcome.of_run(result, config.checkpoint, (*remarks, f"learner: {result.learner}"))
    return dataclasses.replace(outcome, stopped_by=stopped_by)


@profile_function("shut_down", category="other")
def _evaluation(config: Ricochet, policy: Policy) -> tuple[str, ...]:
    """Remarks on how many unseen boards the agent solves, and how many random actions solve."""
    if not config.n_eval_episodes:
        return ()
    agent = play(policy, config, config.n_eval_episodes)
    chance = play(random_policy(config), config, config.n_eval_episodes)
    return f"the agent {agent.summary}", f"random actions: {100 * chance.fraction:.1f} %"
