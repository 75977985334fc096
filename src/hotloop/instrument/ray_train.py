"""Ray Train: reports and checkpoints of its workers. Ranks and gradients are those of torch.distributed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from hotloop.instrument.patch import Patch, Patches
from hotloop.instrument.torch import checkpoint
from hotloop.measure.profiler import default

train_report = default.profile("train_report", "framework")
train_fit = default.profile("train_fit", "wait")


def patch_report(module: ModuleType, into: Patches) -> None:
    """A module with `report`, which waits for all workers; saving a checkpoint is a region below it."""
    package = sys.modules.get("ray.train")
    original = module.report
    into.apply([Patch(module, "report", _reporting)])
    if package is not None and vars(package).get("report") is original:
        into.apply([Patch(package, "report", lambda before: module.report)])


def _reporting(report: Callable[..., Any]) -> Callable[..., Any]:
    saving = checkpoint.wrap(report, outer=train_report)
    plain = train_report.wrap(report, skip_inside=(train_report,))

    def call(metrics: Any, checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        return (plain if checkpoint is None else saving)(metrics, checkpoint, *args, **kwargs)

    return call


def patch_trainer(module: ModuleType, into: Patches) -> None:
    """`ray.train.v2.api.data_parallel_trainer`: `fit` waits in the driver until all workers have ended."""
    cls = module.DataParallelTrainer
    into.apply([Patch(cls, "fit", lambda fit: train_fit.wrap(fit, skip_inside=(train_fit,)))])
