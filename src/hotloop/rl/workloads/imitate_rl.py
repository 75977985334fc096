"""The stage `rl` of `hotloop train imitate`: soft actor-critic continues from the clone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hotloop import progress
from hotloop._util.errors import HotloopError
from hotloop._util.units import count, duration, size
from hotloop.machine.process_memory import process_memory
from hotloop.rl.train import bc, sac
from hotloop.rl.train.networks.squashed import SquashedActor
from hotloop.rl.train.runs import Stopwatch, shut_down, stop_signal
from hotloop.rl.workloads import imitate_sb3
from hotloop.rl.workloads.imitate_bc import LOG_STD_INIT
from hotloop.rl.workloads.imitate_config import BUFFER_SIZE, Imitate, RLResult, StageResult
from hotloop.rl.workloads.outcome import Note
from hotloop.rl.workloads.stage_report import StageBar, StageReport, nothing_done, split
from hotloop.rl.workloads.track_laps import Laps, actor_policy, final_laps, selection_return

# The same for both trainers.
ENT_COEF = "auto_0.02"
GAMMA = 0.98
LEARNING_RATE, ACTOR_LEARNING_RATE = 1e-3, 3e-4
# Without an anchor the actor follows the critics' first errors off the track, with every learning rate and
# gamma tried; with 10 to 30 it improves, with 100 hardly.
ANCHOR_WEIGHT = 20.0


def sac_settings(config: Imitate, **changes: Any) -> sac.SACConfig:
    """The settings of our SAC; those of Stable-Baselines3's are derived from them."""
    from_clone = config.start == "clone"
    learning_starts = min(1_000, config.total_timesteps // 10)
    critics_alone = min(4_000, config.total_timesteps // 3)
    settings = sac.SACConfig(
        env="Track",
        seed=config.seed,
        total_timesteps=config.total_timesteps,
        n_envs=config.n_envs,
        train_freq=config.train_freq,
        gradient_steps=config.gradient_steps,
        batch_size=config.batch_size,
        buffer_size=BUFFER_SIZE,
        learning_starts=learning_starts,
        actor_learning_starts=learning_starts + critics_alone if from_clone else 0,
        random_steps=0 if from_clone else learning_starts,
        learning_rate=LEARNING_RATE,
        actor_learning_rate=ACTOR_LEARNING_RATE,
        anchor_weight=ANCHOR_WEIGHT if from_clone else 0.0,
        gamma=GAMMA,
        ent_coef=ENT_COEF,
        log_std_init=LOG_STD_INIT if from_clone else 0.0,
        net_arch=config.net_arch,
        learner=config.learner,
        eval_every_steps=max(config.total_timesteps // 5, 1_000),
        checkpoint=config.agent,
        checkpoint_every_steps=max(config.total_timesteps // 10, 5_000),
        resume=config.resume and config.agent.is_file(),
        tensorboard_log=config.tensorboard_log,
        quiet=True,
    )
    return replace(settings, **changes)


def reinforce(config: Imitate, note: Note | None, quiet: bool) -> StageResult:
    """Train with SAC from the clone, by our trainer or by Stable-Baselines3's, then drive laps."""
    actor = first_actor(config)
    before = None if actor is None else final_laps(actor_policy(actor), config.seed)
    train = train_with_sb3 if config.trainer == "sb3" else train_with_hotloop
    done = train(config, actor, note, quiet)
    with shut_down:
        after = final_laps(done.policy, config.seed)
    if after is not None:
        progress(episode_return=after.mean_return)
    return StageResult(
        _report(config, done, before, after),
        env_steps=done.env_steps,
        updates=done.updates,
        episodes=done.episodes,
        mean_return=None if after is None else after.mean_return,
        stopped_by=done.stopped_by or stop_signal(),
        checkpoint=config.agent if config.trainer == "hotloop" else None,
        unsaved=done.unsaved,
        figures={} if after is None else after.figures("agent"),
    )


def first_actor(config: Imitate) -> SquashedActor | None:
    """The clone, or None for a new actor; raises HotloopError when the clone is missing or does not fit."""
    if config.start == "scratch":
        return None
    if not config.clone.is_file():
        raise HotloopError(
            f"There is no clone {config.clone} to start from; run --stage bc first, or use --start scratch."
        )
    actor = SquashedActor(8, 2, config.net_arch)
    bc.load_clone(config.clone, actor)
    return actor


def train_with_hotloop(
    config: Imitate, actor: SquashedActor | None, note: Note | None, quiet: bool
) -> RLResult:
    saved = sac.saved_run(sac_settings(config))
    taken = 0 if saved is None else int(saved.state.get("env_steps", 0))
    begun = min(taken, config.total_timesteps)
    bar = StageBar("rl", config.total_timesteps, "steps", done=begun, quiet=quiet, note=note)
    stopwatch = Stopwatch()

    def report(**done: Any) -> None:
        nonlocal taken
        taken += done["env_steps"]
        progress(**done)
        bar.update(min(taken, config.total_timesteps))

    try:
        done = sac.train(
            sac_settings(config),
            actor=actor,
            evaluate=lambda policy: selection_return(policy, config.seed),
            stopwatch=stopwatch,
            report=report,
        )
    finally:
        bar.close()
    return RLResult(
        policy=actor_policy(done.actor),
        how=f"our SAC, learner {done.learner}, {config.n_envs} envs in one process",
        env_steps=done.env_steps,
        steps_here=done.steps_here,
        updates=done.updates,
        episodes=done.episodes,
        seconds=done.seconds,
        parts_s=dict(stopwatch.seconds),
        evaluations=done.evaluations,
        best_at_step=done.best_at_step,
        stopped_by=done.stopped_by,
        unsaved=done.unsaved,
    )


def train_with_sb3(config: Imitate, actor: SquashedActor | None, note: Note | None, quiet: bool) -> RLResult:
    bar = StageBar("rl", config.total_timesteps, "steps", quiet=quiet, note=note)
    try:
        return imitate_sb3.train(
            sac_settings(config),
            actor,
            evaluate=lambda policy: selection_return(policy, config.seed),
            after_step=lambda steps: bar.update(min(steps, config.total_timesteps)),
        )
    finally:
        bar.close()


def _report(config: Imitate, done: RLResult, before: Laps | None, after: Laps | None) -> StageReport:
    rate = done.steps_here / done.seconds if done.seconds > 0 else 0.0
    starts = sac_settings(config).learning_starts
    remarks = [f"{update_words(config)}: {count(done.updates)} after the first {count(starts)} steps"]
    if before is not None and after is not None:
        remarks.append(f"before: {before.summary}")
    if after is not None:
        remarks.append(f"after: {after.summary}")
    if done.best_at_step is not None and done.stopped_by is None:
        last, best = done.evaluations[-1][1], max(found for _, found in done.evaluations)
        remarks.append(
            f"kept the actor after {count(done.best_at_step)} steps (evaluation {best:.1f}, the last one "
            f"{last:.1f})"
        )
    own = process_memory()
    if own is not None:
        remarks.append(f"memory of the training process: {size(own.resident_bytes)}")
    if done.steps_here:
        summary = (
            f"{count(done.steps_here)} env steps in {duration(1e9 * done.seconds)} ({count(rate)} steps/s), "
            f"{done.how}"
        )
    else:
        summary = nothing_done(done.stopped_by, "env step")
    return StageReport(
        "rl",
        summary,
        done.seconds,
        split(done.parts_s, done.seconds),
        done.seconds,
        "time",
        tuple(remarks),
        float(done.steps_here),
        done.worker_memory,
    )


def update_words(config: Imitate) -> str:
    """How often the networks are updated, in words."""
    if config.gradient_steps == -1:
        return "1 update per env step, for any number of envs"
    updates = f"{config.gradient_steps} update{'' if config.gradient_steps == 1 else 's'}"
    steps = "vector step" if config.train_freq == 1 else f"{config.train_freq} vector steps"
    return f"{updates} per {steps}"
