"""Boost as a patch of `hotloop try`, which switches it on and off while a script trains."""

from __future__ import annotations

import sys
from typing import Any

from hotloop.boost import active, install
from hotloop.instrument.trial_patch import Place, TrialPatch, live_objects


class BoostPatch(TrialPatch):
    """Models of Stable-Baselines3, or MLPs of plain torch, run on compiled kernels."""

    name = "boost"
    line = "hotloop.boost()"
    needs = ("import hotloop",)
    place: Place = "imports"
    why = (
        "Stable-Baselines3, or MLPs and Adam of plain torch, run on compiled kernels: the same random "
        "numbers and the same results up to rounding, checked while it trains. `hotloop boost` does the "
        "same without the line."
    )
    between_phases = True

    def skip_reason(self) -> str | None:
        """Why no model can be boosted; compiles the kernels of those that can."""
        module = sys.modules.get("stable_baselines3.common.base_class")
        models: list[Any] = live_objects(module.BaseAlgorithm) if module is not None else []
        if not models:
            parts = None if install.current is None else install.current.torch
            return "no model of Stable-Baselines3 is in use" if parts is None else parts.prepare()
        reasons = [install.prepare(model).record.reason for model in models]
        return None if None in reasons else reasons[0]

    def apply(self) -> None:
        active.is_paused = False

    def undo(self) -> None:
        active.is_paused = True
