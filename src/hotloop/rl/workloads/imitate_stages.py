"""The three stages of `hotloop train imitate`, each with its bar, its split and its checkpoint."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

from hotloop import profile, progress
from hotloop._util.errors import HotloopError
from hotloop._util.units import count, duration, size
from hotloop.machine.process_memory import ProcessMemory, process_memory
from hotloop.rl.buffers.demonstrations import Demonstrations, DemonstrationStore
from hotloop.rl.collect.experts import Collected, Driven, collect, track_schema
from hotloop.rl.train.runs import StopRequests, Stopwatch
from hotloop.rl.workloads.imitate import (
    ACTOR_LEARNING_RATE,
    ANCHOR_WEIGHT,
    CAPACITY,
    DISCOUNT,
    EVALUATION_CARS,
    FIRST_LOG_STD,
    FIRST_TEMPERATURE,
    HELD_OUT_FRACTION,
    LEARNING_RATE,
    Done,
    Imitate,
)
from hotloop.rl.workloads.outcome import Note
from hotloop.rl.workloads.stages import StageBar, StageReport, split
from hotloop.rl.workloads.track_laps import Best, Laps, drive_laps

# Seeds far from each other, so that no stage sees another's starts.
CHOOSING_SEED, JUDGING_SEED = 10_000_000, 20_000_000

_evaluate = profile("evaluate")
_compile = profile("compile_kernels", "other")


def prepare(config: Imitate) -> None:
    """Import and compile what the stages call, so that none of them is charged with it."""
    from hotloop.rl.envs.track.env import TrackVectorEnv

    if config.stages != ("demos",):
        importlib.import_module("hotloop.rl.train.bc")
        importlib.import_module("hotloop.rl.train.sac")
        env = TrackVectorEnv(1, autoreset_mode="SameStep")
        with _compile:
            env.reset(seed=0)
            env._step_rows(0, 1)  # `step` would be counted by whoever counts steps


def judged(best: Best, config: Imitate) -> Laps:
    """Laps from starts that only this judgement uses."""
    with _evaluate:
        return drive_laps(best, EVALUATION_CARS, config.seed + JUDGING_SEED)


# ---- demonstrations


def demonstrate(config: Imitate, note: Note | None, quiet: bool) -> Done:
    """The expert drives the episodes that are not there yet, in worker processes."""
    store = DemonstrationStore(config.demonstrations)
    kept = set(store.begin(track_schema(config.seed, {}), resume=config.resume))
    wanted = [number for number in range(config.episodes) if number not in kept]
    bar = StageBar(
        "demos", config.episodes, "episodes", done=config.episodes - len(wanted), quiet=quiet, note=note
    )
    driven: list[Driven] = []

    def done(one: Driven) -> None:
        driven.append(one)
        progress(
            env_steps=one.steps, episodes=1, episode_return=one.total_reward, episode_length=float(one.steps)
        )
        bar.update(config.episodes - len(wanted) + len(driven))

    with StopRequests() as stop:
        try:
            found = collect(
                store,
                wanted,
                workers=config.demonstration_workers,
                seed=config.seed,
                settings={},
                done=done,
                stop=lambda: stop.by is not None,
            )
        finally:
            bar.close()
    returns = [one.total_reward for one in found.driven]
    return Done(
        demonstration_report(
            found,
            min(config.demonstration_workers, max(len(wanted), 1)),
            (f"{count(len(kept))} episodes were there already",) if kept else (),
            store,
        ),
        env_steps=sum(one.steps for one in found.driven),
        episodes=len(found.driven),
        mean_return=sum(returns) / len(returns) if returns else None,
        stopped_by=stop.by if found.stopped else None,
        figures={"expert_laps": float(sum(one.lap_fraction >= 1.0 for one in found.driven))},
    )


def demonstration_report(
    found: Collected, workers: int, remarks: tuple[str, ...], store: DemonstrationStore
) -> StageReport:
    """What a collection did, its time split over all its workers."""
    steps, episodes = sum(one.steps for one in found.driven), len(found.driven)
    laps = sum(one.lap_fraction >= 1.0 for one in found.driven)
    parts = {
        "simulation": sum(one.simulation_s for one in found.driven),
        "aggregation": sum(one.aggregation_s for one in found.driven),
        "disk": sum(one.disk_s for one in found.driven),
    }
    whole_s = workers * found.seconds
    rate = steps / found.seconds if found.seconds > 0 else 0.0
    said = [f"{duration(1e9 * found.start_up_s)} more until the first worker was ready", *remarks]
    if found.deaths:
        said.append(f"{count(found.deaths)} workers died; their episodes were driven again")
    said.append(f"{count(len(store.numbers()))} episodes are in {store.folder}")
    plural = "worker" if workers == 1 else "workers"
    return StageReport(
        "demos",
        f"{count(episodes)} episodes ({count(laps)} laps), {count(steps)} env steps in "
        f"{duration(1e9 * found.seconds)} with {workers} {plural} ({count(rate)} steps/s)",
        found.seconds,
        split(parts, whole_s),
        whole_s,
        f"time of {workers} {plural}",
        tuple(said),
        float(steps),
        max((one.memory for one in found.driven if one.memory), key=lambda m: m.private_bytes, default=None),
    )


# ---- cloning


def load_demonstrations(config: Imitate) -> Demonstrations:
    """What the first stage left, once it is known to be of this task."""
    store = DemonstrationStore(config.demonstrations)
    known, wanted = store.schema(), track_schema(config.seed, {})
    if known["arrays"] != wanted["arrays"] or known["env"] != wanted["env"]:
        raise HotloopError(
            f"{config.demonstrations} holds demonstrations of {known['env']}, not of {wanted['env']}; "
            "give another folder."
        )
    return store.load()


def bc_settings(config: Imitate, **changes: Any) -> Any:
    """The settings of the cloning."""
    from hotloop.rl.train.bc import BCConfig

    settings: dict[str, Any] = {
        "seed": config.seed,
        "epochs": config.epochs,
        "batch_size": config.batch_size,
        "hidden": config.hidden,
        "first_log_std": FIRST_LOG_STD,
        "loading": "index" if config.loaders is None else "loader",
        "loading_workers": config.loaders or 0,
        "learner": config.learner,
        "checkpoint": config.clone,
        "resume": config.resume,
        "metrics": config.metrics,
    }
    return BCConfig(**(settings | changes))


def clone(config: Imitate, note: Note | None, quiet: bool) -> Done:
    """An actor learns what the expert did, and then drives laps."""
    from hotloop.rl.train.bc import train

    watch, began = Stopwatch(), time.perf_counter()
    learn, held_out = load_demonstrations(config).split(HELD_OUT_FRACTION, config.seed)
    samples, unseen = learn.samples(), held_out.samples()
    reading_s = time.perf_counter() - began
    bar = StageBar("bc", config.epochs, "epochs", quiet=quiet, note=note)

    def after_epoch(epochs: int, loss: float, held_out_loss: float) -> None:
        bar.update(epochs, f"loss {loss:.2e}, held out {held_out_loss:.2e}")

    try:
        done = train(bc_settings(config), samples, unseen, watch=watch, after_epoch=after_epoch)
    finally:
        bar.close()
    laps = judged(best_of(done.actor), config)
    progress(episode_return=laps.mean_return)
    rate = done.samples / done.seconds if done.seconds > 0 else 0.0
    how = "index batches" if config.loaders is None else f"DataLoader, {config.loaders} workers"
    parts = dict(watch.seconds)
    gathered = " (gathering included)" if done.learner == "fused" else ""
    if gathered:
        parts["forward/backward" + gathered] = parts.pop("forward/backward")
    report = StageReport(
        "bc",
        f"{count(done.samples)} samples in {duration(1e9 * done.seconds)} ({count(rate)} samples/s), {how}, "
        f"learner {done.learner}",
        done.seconds,
        split(parts, done.seconds),
        done.seconds,
        "time",
        (
            f"held-out loss {done.held_out_loss:.3g} on {len(held_out.episodes)} of "
            f"{len(held_out.episodes) + len(learn.episodes)} episodes",
            f"the clone: {laps.says}",
            f"{duration(1e9 * reading_s)} more to read the demonstrations",
        ),
        float(done.samples),
        done.worker_memory,
    )
    return Done(
        report,
        updates=done.updates,
        mean_return=laps.mean_return,
        stopped_by=done.stopped_by,
        checkpoint=config.clone,
        figures={
            "cloned_samples": float(done.samples),
            "held_out_loss": done.held_out_loss,
            **laps_figures("clone", laps),
        },
    )


def laps_figures(who: str, laps: Laps) -> dict[str, float | None]:
    """How somebody drove, for the record."""
    return {
        f"{who}_laps": float(laps.finished),
        f"{who}_return": laps.mean_return,
        f"{who}_early_return": laps.early_return,
    }


def best_of(actor: Any) -> Best:
    """What an actor does without noise, observations in and actions out as arrays."""
    import torch

    def best(observations: Any) -> Any:
        with torch.inference_mode():
            return actor.best(torch.from_numpy(observations)).numpy()

    return best


# ---- reinforcement learning


def sac_settings(config: Imitate, **changes: Any) -> Any:
    """The settings of our SAC; those of Stable-Baselines3's are made from them."""
    from hotloop.rl.train.sac import SACConfig

    from_clone = config.start == "clone"
    warm_up = min(1_000, config.timesteps // 10)
    settings: dict[str, Any] = {
        "env": "Track",
        "seed": config.seed,
        "total_steps": config.timesteps,
        "num_envs": config.envs,
        "updates": config.updates,
        "batch_size": config.batch_size,
        "capacity": CAPACITY,
        "learning_starts": warm_up,
        "actor_starts": warm_up + min(4_000, config.timesteps // 3) if from_clone else 0,
        "random_steps": 0 if from_clone else warm_up,
        "learning_rate": LEARNING_RATE,
        "actor_learning_rate": ACTOR_LEARNING_RATE,
        "anchor_weight": ANCHOR_WEIGHT if from_clone else 0.0,
        "discount": DISCOUNT,
        "first_temperature": FIRST_TEMPERATURE,
        "first_log_std": FIRST_LOG_STD if from_clone else 0.0,
        "hidden": config.hidden,
        "learner": config.learner,
        "evaluate_every": max(config.timesteps // 5, 1_000),
        "checkpoint": config.agent,
        "checkpoint_every": max(config.timesteps // 10, 5_000),
        "resume": config.resume and config.agent.is_file(),
        "metrics": config.metrics,
        "quiet": True,
    }
    return SACConfig(**(settings | changes))


def choosing(config: Imitate) -> Callable[[Best], float]:
    """How actors are compared during the training: by their return over equal time.

    The starts are not those of the final judgement.
    """
    return lambda best: drive_laps(best, EVALUATION_CARS, config.seed + CHOOSING_SEED).early_return


def first_actor(config: Imitate) -> Any:
    """The clone, or None for a new actor; a clone that is missing or does not fit is an error."""
    if config.start == "scratch":
        return None
    from hotloop.rl.train.bc import take_clone
    from hotloop.rl.train.networks.squashed import SquashedActor

    if not config.clone.is_file():
        raise HotloopError(
            f"there is no clone {config.clone} to begin with; run --stage bc first, or use --start scratch."
        )
    actor = SquashedActor(8, 2, config.hidden)
    take_clone(config.clone, actor)
    return actor


def reinforce(config: Imitate, note: Note | None, quiet: bool) -> Done:
    """SAC goes on from the clone, by our trainer or by Stable-Baselines3's."""
    actor = first_actor(config)
    before = None if actor is None else judged(best_of(actor), config)
    if config.trainer == "sb3":
        from hotloop.rl.workloads.imitate_sb3 import train_with_sb3

        done, worker_memory = train_with_sb3(config, actor, note, quiet)
    else:
        done, worker_memory = _with_sac(config, actor, note, quiet)
    after = judged(done["best"], config)
    progress(episode_return=after.mean_return)
    return Done(
        _rl_report(config, done, before, after, worker_memory),
        env_steps=done["env_steps"],
        updates=done["updates"],
        episodes=done["episodes"],
        mean_return=after.mean_return,
        stopped_by=done["stopped_by"],
        checkpoint=config.agent if config.trainer == "hotloop" else None,
        figures=laps_figures("agent", after),
    )


def _with_sac(
    config: Imitate, actor: Any, note: Note | None, quiet: bool
) -> tuple[dict[str, Any], ProcessMemory | None]:
    from hotloop.rl.train.sac import train

    settings = sac_settings(config)
    bar = StageBar("rl", config.timesteps, "steps", quiet=quiet, note=note)
    watch, taken = Stopwatch(), 0

    def report(**done: Any) -> None:
        nonlocal taken
        taken += done["env_steps"]
        progress(**done)
        bar.update(min(taken, config.timesteps))

    try:
        done = train(settings, actor=actor, judge=choosing(config), watch=watch, report=report)
    finally:
        bar.close()
    return {
        "best": best_of(done.actor),
        "env_steps": done.env_steps,
        "steps_here": done.steps_here,
        "updates": done.updates,
        "episodes": done.episodes,
        "seconds": done.seconds,
        "stopped_by": done.stopped_by,
        "parts_s": dict(watch.seconds),
        "evaluations": done.evaluations,
        "kept_from": done.kept_from,
        "who": f"our SAC, learner {done.learner}, {config.envs} envs in one process",
    }, None


def _rl_report(
    config: Imitate, done: dict[str, Any], before: Laps | None, after: Laps, memory: ProcessMemory | None
) -> StageReport:
    seconds, steps = done["seconds"], done["steps_here"]
    rate = steps / seconds if seconds > 0 else 0.0
    starts = sac_settings(config).learning_starts
    remarks = [
        f"{config.updates} updates for each env step, whatever the number of envs: "
        f"{count(done['updates'])} after the first {count(starts)} steps",
    ]
    if before is not None:
        remarks.append(f"before: {before.says}")
    remarks.append(f"after:  {after.says}")
    if done["kept_from"] is not None:
        last = done["evaluations"][-1][1]
        best = max(found for _, found in done["evaluations"])
        remarks.append(
            f"kept: the actor after {count(done['kept_from'])} steps ({best:.1f} when chosen; the last one "
            f"{last:.1f})"
        )
    own = process_memory()
    if own is not None:
        remarks.append(f"memory of the training process: {size(own.resident_bytes)}")
    return StageReport(
        "rl",
        f"{count(steps)} env steps in {duration(1e9 * seconds)} ({count(rate)} steps/s), {done['who']}",
        seconds,
        split(done["parts_s"], seconds),
        seconds,
        "time",
        tuple(remarks),
        float(steps),
        memory,
    )
