"""Refuses settings of imitate before anything is predicted, compiled or written."""

from __future__ import annotations

from hotloop._util.errors import HotloopError
from hotloop.rl.buffers.demonstrations import DemonstrationStore
from hotloop.rl.workloads.imitate_config import Imitate


def check(config: Imitate) -> None:
    """Raise HotloopError for the first invalid setting."""
    from hotloop.rl.train import bc, runs, sac  # they load torch, which `hotloop train --help` does not need
    from hotloop.rl.workloads.imitate_bc import bc_settings
    from hotloop.rl.workloads.imitate_rl import first_actor, sac_settings

    runs.check_at_least(config, 1, "n_episodes", "total_timesteps")
    runs.check_folder("folder", config.folder)
    sac.check(sac_settings(config))
    if "bc" in config.stages and "demos" in config.stages and config.n_episodes < 2:
        raise HotloopError(
            f"n_episodes={config.n_episodes} leaves none to hold out from cloning; use at least 2."
        )
    least = 0 if config.stage == "bc" else 1
    if config.workers is not None and config.workers < least:
        raise HotloopError(f"workers={config.workers} must be at least {least}.")
    if config.loading_workers is not None and config.loading_workers < 0:
        raise HotloopError(f"loading_workers={config.loading_workers} must be at least 0.")
    if config.loading == "index" and config.loading_workers:
        raise HotloopError(
            f"loading_workers={config.loading_workers} needs --loading loader; --loading index takes rows of "
            "arrays in memory and has no workers."
        )
    if config.dataloader_workers is not None and config.learner == "fused":
        raise HotloopError(
            "--learner fused gathers its batches inside the kernel and cannot use a DataLoader; remove one "
            "of the two."
        )
    bc.check_settings(bc_settings(config))
    if config.data is not None and "demos" in config.stages:
        raise HotloopError(
            f"data={config.data} is for cloning demonstrations that exist; leave it out, or use --stage bc."
        )
    if "bc" in config.stages and "demos" not in config.stages:
        DemonstrationStore(config.demonstrations).schema()  # raises if there are none, before compiling
    if config.fastest and not config.speedup:
        raise HotloopError("--fastest uses what --speedup measures; give both.")
    if config.trainer == "sb3" and "rl" in config.stages:
        if config.speedup:
            raise HotloopError("--speedup measures our own trainers; remove it, or use --trainer hotloop.")
        if config.resume:
            raise HotloopError(
                "--trainer sb3 saves no checkpoint to resume from; remove --resume, or use --trainer hotloop."
            )
        if config.stage == "rl" and config.tensorboard_log is not None:
            raise HotloopError(
                f"tensorboard_log={config.tensorboard_log} needs trainer='hotloop'; leave it out with sb3."
            )
    if config.stage == "rl":
        first_actor(config)
    if "bc" in config.stages:
        bc.saved_run(bc_settings(config))
    if "rl" in config.stages:
        sac.saved_run(sac_settings(config))
