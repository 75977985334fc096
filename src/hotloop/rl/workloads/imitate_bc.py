"""The stage `bc` of `hotloop train imitate`: an actor is cloned from the demonstrations."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from hotloop import progress
from hotloop._util.errors import HotloopError
from hotloop._util.units import count, counted, duration
from hotloop.rl.buffers.demonstrations import Demonstrations, DemonstrationStore
from hotloop.rl.collect.experts import track_schema
from hotloop.rl.train import bc
from hotloop.rl.train.runs import Stopwatch, shut_down, stop_signal
from hotloop.rl.workloads.imitate_config import Imitate, StageResult
from hotloop.rl.workloads.outcome import Note
from hotloop.rl.workloads.stage_report import StageBar, StageReport, nothing_done, split
from hotloop.rl.workloads.track_laps import actor_policy, final_laps

HELD_OUT_FRACTION = 0.1
# The noise with the entropy that SAC aims at (-1 per action), so SAC continues where the clone starts.
LOG_STD_INIT = -2.4


def load_demonstrations(config: Imitate) -> Demonstrations:
    """The demonstrations in the folder; raises HotloopError when they are of another task."""
    store = DemonstrationStore(config.demonstrations)
    known, wanted = store.schema(), track_schema(config.seed, {})
    if known["arrays"] != wanted["arrays"] or known["env"] != wanted["env"]:
        raise HotloopError(
            f"{config.demonstrations} holds demonstrations of {known['env']}, not of {wanted['env']}; "
            "use another --folder."
        )
    return store.load()


def bc_settings(config: Imitate, **changes: Any) -> bc.BCConfig:
    """The settings of behaviour cloning."""
    settings = bc.BCConfig(
        seed=config.seed,
        n_epochs=config.n_epochs,
        batch_size=config.batch_size,
        net_arch=config.net_arch,
        log_std_init=LOG_STD_INIT,
        loading="index" if config.dataloader_workers is None else "loader",
        loading_workers=config.dataloader_workers or 0,
        learner=config.learner,
        checkpoint=config.clone,
        resume=config.resume and config.clone.is_file(),
        tensorboard_log=config.tensorboard_log,
    )
    return replace(settings, **changes)


def epochs_done(config: Imitate) -> int:
    """Epochs of the clone that a run continues."""
    saved = bc.saved_run(bc_settings(config))
    return 0 if saved is None else min(int(saved.state.get("epochs", 0)), config.n_epochs)


def clone(config: Imitate, note: Note | None, quiet: bool) -> StageResult:
    """Clone the expert, then drive laps with the clone."""
    stopwatch, began = Stopwatch(), time.perf_counter()
    learn, held_out = load_demonstrations(config).split(HELD_OUT_FRACTION, config.seed)
    samples, held_out_samples = learn.samples(), held_out.samples()
    reading_s = time.perf_counter() - began
    bar = StageBar("bc", config.n_epochs, "epochs", done=epochs_done(config), quiet=quiet, note=note)

    def after_epoch(epochs: int, loss: float, held_out_loss: float) -> None:
        bar.update(epochs, f"loss {loss:.2e}, held out {held_out_loss:.2e}")

    try:
        done = bc.train(
            bc_settings(config), samples, held_out_samples, stopwatch=stopwatch, after_epoch=after_epoch
        )
    finally:
        bar.close()
    with shut_down:
        laps = final_laps(actor_policy(done.actor), config.seed)
    if laps is not None:
        progress(episode_return=laps.mean_return)
    rate = done.samples / done.seconds if done.seconds > 0 else 0.0
    loaders = config.dataloader_workers
    how = "index batches" if loaders is None else f"DataLoader, {counted(loaders, 'worker')}"
    parts = dict(stopwatch.seconds)
    if done.learner == "fused":
        parts["forward/backward (gathering included)"] = parts.pop("forward/backward")
    if done.samples:
        summary = (
            f"{count(done.samples)} samples in {duration(1e9 * done.seconds)} ({count(rate)} samples/s), "
            f"{how}, learner {done.learner}"
        )
    else:
        summary = nothing_done(done.stopped_by, "epoch")
    report = StageReport(
        "bc",
        summary,
        done.seconds,
        split(parts, done.seconds),
        done.seconds,
        "time",
        (
            f"held-out loss {done.held_out_loss:.3g} on {len(held_out.episodes)} of "
            f"{len(held_out.episodes) + len(learn.episodes)} episodes",
            *([] if laps is None else [f"the clone: {laps.summary}"]),
            f"reading the demonstrations: {duration(1e9 * reading_s)}",
        ),
        float(done.samples),
        done.worker_memory,
    )
    return StageResult(
        report,
        updates=done.updates,
        mean_return=None if laps is None else laps.mean_return,
        stopped_by=done.stopped_by or stop_signal(),
        checkpoint=config.clone,
        unsaved=done.unsaved,
        figures={
            "cloned_samples": float(done.samples),
            "held_out_loss": done.held_out_loss,
            **({} if laps is None else laps.figures("clone")),
        },
    )
