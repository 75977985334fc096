"""Loggers: TensorBoard's SummaryWriter, Weights & Biases, csv and json files, all recorded as `log`."""

from __future__ import annotations

from types import ModuleType

from hotloop.instrument.method_patches import patch_outermost
from hotloop.instrument.patch import Patches
from hotloop.measure.profiler import default

log = default.profile("log")


def patch_tensorboard(module: ModuleType, into: Patches) -> None:
    """`torch.utils.tensorboard.writer` or `tensorboardX.writer`: every `add_...`, flush and close."""
    writer = module.SummaryWriter
    names = [name for name in vars(writer) if name.startswith("add_")]
    into.apply(patch_outermost(writer, name, log) for name in (*names, "flush", "close"))


def patch_wandb_run(module: ModuleType, into: Patches) -> None:
    """`wandb.sdk.wandb_run`: `wandb.log` is the `log` of the run that `wandb.init` created."""
    into.apply(patch_outermost(module.Run, name, log) for name in ("log", "log_artifact", "finish"))


def patch_csv(module: ModuleType, into: Patches) -> None:
    """`csv`: the writers written in Python; `csv.writer` itself is compiled and cannot be wrapped."""
    into.apply(
        patch_outermost(module.DictWriter, name, log) for name in ("writeheader", "writerow", "writerows")
    )


def patch_json(module: ModuleType, into: Patches) -> None:
    """`json`: writing to a file; `dumps` returns a string and could be anything."""
    into.apply([patch_outermost(module, "dump", log)])
