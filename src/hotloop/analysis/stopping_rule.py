"""When a comparison may be judged and at which level, so that stopping early does not inflate false verdicts.

Each judgement is a "look" in the sense of sequential testing; planning of pairs and the noise floor follow
from the level of one look.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.rank_intervals import normal_quantile

LEAST_PAIRS = 5  # no verdict with fewer
EFFICIENCY = 0.955  # of the signed-rank test relative to the t test, for normal noise
POWER = 0.80
MAD_TO_SD = 1.4826

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The numbers of pairs at which to judge, and the level of the interval at each of them."""

    looks: tuple[int, ...]
    level: float

    @property
    def most(self) -> int:
        """Number of pairs at the last look."""
        return self.looks[-1]

    def next_look(self, pairs: int) -> int | None:
        """The first look after `pairs` pairs; None after the last one."""
        return next((look for look in self.looks if look > pairs), None)


# One fresh process per run. At this level for each look, all looks together err in 5 % of comparisons.
RUNS = Schedule((5, 8, 12, 16, 20, 24, 30, 40), 0.0122)
# Short segments inside a process. 1/128 rather than 0.0078: the smallest p value 8 pairs can reach.
SEGMENTS = Schedule((5, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256), 1 / 128)
# Several patches at once, Holm over all of them. Many looks cost more at small levels: twelve looks err 6.9
# times as often as one at 1/128, and 8.3 times as often at an eighth of that, the level of eight patches
# (simulated).
PATCHES = Schedule(SEGMENTS.looks, 1 / 192)


def one_look(pairs: int) -> Schedule:
    """For runs that exist already: judged once, at 5 %."""
    return Schedule((max(pairs, 1),), 0.05)


def robust_sd(values: Floats) -> float | None:
    """1.48 times the median absolute deviation; None with fewer than two values."""
    if len(values) < 2:
        return None
    return MAD_TO_SD * float(np.median(np.abs(values - np.median(values))))


def planning_factor(level: float) -> float:
    """Pairs needed = this x (sd / difference)^2 + `extra_pairs`: 11.7 at the level of `RUNS`."""
    return (normal_quantile(1 - level / 2) + normal_quantile(POWER)) ** 2 / EFFICIENCY


def extra_pairs(level: float) -> float:
    """z^2 / 2, what a small sample costs on top: 3.1 at the level of `RUNS`.

    In simulations with the early looks, a difference planned for 80 % power was found in 62 % (12 pairs) and
    76 % (24 pairs) of comparisons without these pairs, and in 79 % and 82 % with them.
    """
    return normal_quantile(1 - level / 2) ** 2 / 2


def pairs_needed(sd: float, log_difference: float, level: float = RUNS.level) -> int:
    """Pairs that detect this difference (of log times) with 80 % power."""
    needed = planning_factor(level) * (sd / log_difference) ** 2 + extra_pairs(level)
    return max(math.ceil(needed), LEAST_PAIRS)


def noise_floor(sd: float, pairs: int, level: float = RUNS.level) -> float:
    """The smallest difference this many pairs detect with 80 % power, as a fraction: 0.02 for 2 %."""
    useful = max(pairs - extra_pairs(level), 1.0)
    return math.expm1(sd * math.sqrt(planning_factor(level) / useful))
