"""Amdahl's law with an interval, for regions with all that is inside them and for assumed savings."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.findings import Estimate
from hotloop.analysis.whatif import LEAST_WINDOWS, block_counts

Floats = NDArray[np.float64]

_counts = lru_cache(maxsize=8)(block_counts)  # the draws depend on the number of windows only


def speed_up(
    time_ns: Floats, region_ns: Floats, share: float, saved: tuple[float, float], floor: float = 0.0
) -> Estimate | None:
    """Speed-up when a share between `saved[0]` and `saved[1]` of some regions is saved; 95 % interval.

    `time_ns` and `region_ns` are cumulative over windows [windows]; `share` is the regions' share of
    the whole wall time net of our own cost, the windows only say how steady it is. `floor` is the
    share of the wall time that others are busy beside: the whole cannot get shorter than that.
    None with fewer than 8 windows.
    """
    if len(time_ns) < LEAST_WINDOWS or share <= 0:
        return None
    wall = np.diff(time_ns, prepend=0.0)
    region = np.clip(np.diff(region_ns, prepend=0.0), 0.0, wall)
    if region.sum() <= 0:
        return None
    counts = _counts(len(wall))
    drawn = (counts @ region) / np.maximum(counts @ wall, 1.0)
    drawn *= share / (region.sum() / wall.sum())

    def factor(of_regions: float, shares: Floats) -> Floats:
        left = np.maximum(1.0 - of_regions * np.clip(shares, 0.0, 1.0), max(floor, 1e-3))
        result: Floats = np.maximum(1.0 / left, 1.0)
        return result

    value = float(factor((saved[0] + saved[1]) / 2, np.array([share]))[0])
    least = float(np.quantile(factor(saved[0], drawn), 0.025))
    most = float(np.quantile(factor(saved[1], drawn), 0.975))
    return Estimate(value, min(least, value), max(most, value))
