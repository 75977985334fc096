"""Lightning: validation and testing are evaluation."""

from __future__ import annotations

from types import ModuleType

from hotloop.instrument.method_patches import patch_outermost
from hotloop.instrument.patch import Patches
from hotloop.measure.profiler import default


def patch_evaluation_loop(module: ModuleType, into: Patches) -> None:
    """`lightning.pytorch.loops.evaluation_loop`, under either name of the package."""
    into.apply([patch_outermost(module._EvaluationLoop, "run", default.profile("evaluate"))])
