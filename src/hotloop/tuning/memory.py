"""How much memory a run will take, part by part, and what to set when it does not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from hotloop._util.memory_estimate import MemoryEstimate
from hotloop._util.units import size
from hotloop.tuning.model import Probe
from hotloop.tuning.space import Settings, Space

TUNED_SHARE = 0.5  # of what is available: the most that a setting found by tuning may take
RUN_SHARE = 0.95  # the most that any run may take: the rest of the system needs something, too


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a run is predicted to hold at its peak."""

    needs: tuple[MemoryEstimate, ...]
    available_bytes: int | None
    """What can still be taken, and what this process holds already; None when the system does not tell."""

    @property
    def total_bytes(self) -> int:
        """All parts together."""
        return sum(need.bytes for need in self.needs)

    def fits(self, share: float = RUN_SHARE) -> bool:
        """Whether it stays below that share of what is available; what cannot be known is taken to fit."""
        return self.available_bytes is None or self.total_bytes <= share * self.available_bytes

    def refusal(self, predicted: Callable[[str, int], int]) -> str:
        """One sentence for a plan that does not fit, with the setting that would; "" for one that does.

        `predicted(setting, value)` is the total with that setting changed.
        """
        if self.fits() or self.available_bytes is None:
            return ""
        limit = RUN_SHARE * self.available_bytes
        free = size(self.available_bytes)
        said = f"this run would take {size(self.total_bytes)} of memory, and {free} can be had"
        decided = sorted((n for n in self.needs if n.setting), key=lambda n: -n.bytes)
        for need in decided:
            value = largest_that_fits(need.value, lambda v, name=need.setting: predicted(name, v) <= limit)  # type: ignore[misc]
            if value is not None:
                flag = need.setting.replace("_", "-")
                return f"{said}; {need.what} take {size(need.bytes)} of it: --{flag} {value} would fit."
        if not decided:
            return f"{said}; nothing in its settings would make it small enough: free some memory."
        most = decided[0]
        return (
            f"{said}; {most.what} take {size(most.bytes)} of it, but no smaller {most.setting} would do: "
            "make several settings smaller, or free some memory."
        )


def largest_that_fits(now: int, fits: Callable[[int], bool]) -> int | None:
    """The largest whole number up to `now` that fits, to two digits; None when not even 1 does."""
    if not fits(1):
        return None
    low, high = 1, max(now, 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    digits: int = 10 ** max(len(str(low)) - 2, 0)
    return low // digits * digits


def measured_fit(space: Space, probes: Sequence[Probe]) -> Callable[[Settings], float] | None:
    """Peak memory in bytes as m0 + m1 envs + m2 workers + m3 batch, from what probes held.

    None with fewer than three probes that say what they held.
    """
    known = [p for p in probes if p.peak_bytes]
    if len({p.settings for p in known}) < 3:
        return None

    def row(settings: Settings) -> list[float]:
        roles = ("envs", "workers", "batch")
        return [1.0, *(float(space.amount(settings, role) or 0) for role in roles)]  # type: ignore[arg-type]

    table = np.array([row(p.settings) for p in known])
    peaks = np.array([float(p.peak_bytes or 0) for p in known])
    weights, _ = nnls(table / peaks[:, None], np.ones(len(peaks)))
    return lambda settings: float(np.dot(row(settings), weights))
