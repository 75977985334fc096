"""Memory that a run will need, part by part, and the setting to change if that is too much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from hotloop._util.memory_estimate import MemoryEstimate
from hotloop._util.units import size
from hotloop.tuning.space import Settings, Space
from hotloop.tuning.time_model import Probe

TUNED_SHARE = 0.5  # of the available memory: limit for settings that tuning tries
RUN_SHARE = 0.95  # limit for any run: the rest of the system needs some memory, too


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Predicted memory of a run at its peak."""

    parts: tuple[MemoryEstimate, ...]
    available_bytes: int | None
    """Memory that can still be allocated plus what this process holds already; None if unknown."""

    @property
    def total_bytes(self) -> int:
        """Sum of all parts."""
        return sum(part.bytes for part in self.parts)

    def fits(self, share: float = RUN_SHARE) -> bool:
        """Whether the total is within that share of the available memory; True if that is unknown."""
        return self.available_bytes is None or self.total_bytes <= share * self.available_bytes

    def refusal(self, predicted: Callable[[str, int], int]) -> str:
        """One sentence for a run that does not fit, with a setting that would make it fit; "" if it fits.

        `predicted(setting, value)` returns the total in bytes with that setting changed.
        """
        if self.fits() or self.available_bytes is None:
            return ""
        limit = RUN_SHARE * self.available_bytes
        free = size(self.available_bytes)
        problem = f"this run needs {size(self.total_bytes)} of memory, but only {free} is available"
        decided = sorted((n for n in self.parts if n.setting), key=lambda n: -n.bytes)
        for part in decided:
            value = largest_that_fits(part.value, lambda v, name=part.setting: predicted(name, v) <= limit)  # type: ignore[misc]
            if value is not None:
                flag = part.setting.replace("_", "-")
                return (
                    f"{problem}; {size(part.bytes)} of that is for {part.what}: --{flag} {value} would fit."
                )
        if not decided:
            return f"{problem}; no setting would make it small enough: free some memory."
        most = decided[0]
        return (
            f"{problem}; {size(most.bytes)} of that is for {most.what}, but reducing {most.setting} alone is "
            "not enough: reduce several settings, or free some memory."
        )


def largest_that_fits(now: int, fits: Callable[[int], bool]) -> int | None:
    """The largest whole number up to `now` that fits, rounded down to two digits; None if 1 does not fit."""
    if not fits(1):
        return None
    low, high = 1, max(now, 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    digits: int = 10 ** max(len(str(low)) - 2, 0)
    return low // digits * digits


def fit_peak_memory(space: Space, probes: Sequence[Probe]) -> Callable[[Settings], float] | None:
    """Function settings -> peak memory in bytes, fitted to probes as m0 + m1 envs + m2 workers + m3 batch.

    None with fewer than three different settings whose memory was measured.
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
