"""Audits: updates computed both ways from the same state, by the library and by the kernels.

The first updates of a model are audited, later ones at random, in the end about one gradient step in a
thousand, and the next one after something changed that kernels could miss. Later audits stop when they take
more than 1 % of the time. The kernels' result is kept when an audit passes, so audits change nothing. When to
audit comes from a generator of its own: the user's random numbers are not touched.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

FIRST = 3  # gradient steps that are always audited
EVERY = 1000  # gradient steps between two later audits, on average
SHARE = 0.01  # of the time, at most, for later audits

# Tolerances. Adam divides a gradient by its own size, so a gradient close to zero, whose sign is rounding,
# can move a single weight by the whole learning rate. Means over many weights are steady.
MEAN_STEP = 0.01  # mean |difference| of weights, in learning rates for each gradient step
GRADIENT = 1e-3  # |difference| of the moments of a tensor, relative to their change
LOGGED = 1e-3  # relative difference of logged values


@dataclass(frozen=True, slots=True)
class Difference:
    """How far the kernels' result was from the library's."""

    mean_step: float
    """Mean |difference| of all weights, in learning rates."""
    max_step: float
    """Largest |difference| of a weight, in learning rates."""
    moments: float
    """Largest relative difference of a tensor's moments."""
    worst: str
    """The tensor or logged value that is farthest off."""
    logged: float
    """Largest relative difference of a logged value."""
    gradient_steps: int = 1

    @property
    def passes(self) -> bool:
        """False, too, when anything is not a number on one side only."""
        return (
            self.mean_step <= MEAN_STEP * self.gradient_steps
            and self.moments <= GRADIENT * self.gradient_steps
            and self.logged <= LOGGED * self.gradient_steps
        )

    def __str__(self) -> str:
        return (
            f"weights differ by {self.mean_step:.2g} learning rates on average (allowed {MEAN_STEP:g}) and "
            f"{self.max_step:.2g} at most, moments by {self.moments:.2g} (allowed {GRADIENT:g}), "
            f"logged values by {self.logged:.2g} (allowed {LOGGED:g}); most in {self.worst}"
        )


class AuditError(Exception):
    """An audit found a difference that rounding does not explain."""

    def __init__(self, difference: Difference):
        super().__init__(str(difference))
        self.difference = difference


class NotFinite(Exception):
    """The numbers are no longer finite: the library makes this call again and says so in its own words."""


@dataclass(slots=True)
class Audits:
    """The schedule of one model's audits, and their results."""

    passed: int = 0
    failed: int = 0
    largest_mean_step: float = 0.0
    spent_s: float = 0.0
    _started_s: float = field(default_factory=time.perf_counter)
    _made: int = 0
    """Gradient steps so far."""
    _next: int = 0
    """Gradient steps until the next audit."""
    _random: random.Random = field(default_factory=random.Random)

    def soon(self) -> None:
        """Audit the next gradient step: something changed that the kernels might have missed."""
        self._next = 0

    def comes_within(self, gradient_steps: int) -> bool:
        """Whether `due` may ask for an audit within the next `gradient_steps`."""
        return self._next < gradient_steps

    def due(self, gradient_steps: int) -> int | None:
        """Which of the next `gradient_steps` to audit first, from 0, or None for none of them.

        The steps up to that one count as made; ask again for those after it.
        """
        if self._next >= gradient_steps:
            self._next -= gradient_steps
            self._made += gradient_steps
            return None
        at = self._next
        self._made += at + 1
        self._next = 0
        if self.passed >= FIRST - 1:
            # Denser in the beginning, when weights change most: at first one in ten.
            self._next = int(self._random.expovariate(1.0 / min(max(self._made, 10), EVERY)))
        if self.passed >= FIRST and self.spent_s > SHARE * (time.perf_counter() - self._started_s):
            return None
        return at

    def note(self, is_right: bool, started_s: float) -> None:
        """Count an audit that began at `started_s` (`time.perf_counter`)."""
        self.spent_s += time.perf_counter() - started_s
        self.passed += is_right
        self.failed += not is_right

    def record(self, difference: Difference, started_s: float) -> None:
        """Count an audit of a gradient step; raises `AuditError` when the difference is too large."""
        self.note(difference.passes, started_s)
        self.largest_mean_step = max(self.largest_mean_step, difference.mean_step)
        if not difference.passes:
            raise AuditError(difference)


Arrays = Mapping[str, NDArray[Any]]


def compare(
    before: Arrays,
    ours: Arrays,
    theirs: Arrays,
    rates: Mapping[str, float],
    logged: Mapping[str, tuple[float, float]],
) -> Difference:
    """Compare tensors by name; those in `rates` are weights with their learning rate, the others moments.

    `logged` has the values (ours, theirs) of each key.
    """
    total = largest = count = moments = values = 0.0
    worst, how_bad = "", -1.0
    changes = {
        name: float(np.linalg.norm((theirs[name] - before[name]).astype(np.float64)))
        for name in theirs
        if name not in rates
    }
    for name, expected in theirs.items():
        difference = np.abs(ours[name].astype(np.float64) - expected)
        if not np.array_equal(np.isfinite(ours[name]), np.isfinite(expected)):
            difference = np.full_like(difference, np.inf)
        difference = np.nan_to_num(difference, nan=0.0, posinf=np.inf)
        if name in rates:
            rate = max(rates[name], 1e-30)
            total += float(difference.sum()) / rate
            largest = max(largest, float(difference.max()) / rate)
            count += difference.size
            continue
        # The floor is for tensors whose gradient is all but zero beside those of the others.
        floor = 1e-3 * math.hypot(*(changes[other] for other in changes if _kind(other) == _kind(name)))
        relative = float(np.linalg.norm(difference)) / (changes[name] + floor + 1e-30)
        moments = max(moments, relative)
        if relative / GRADIENT > how_bad:
            worst, how_bad = name, relative / GRADIENT
    for key, (mine, other) in logged.items():
        relative = abs(mine - other) / (abs(other) + 1e-2) if np.isfinite([mine, other]).all() else 0.0
        if np.isfinite(mine) != np.isfinite(other):
            relative = np.inf
        values = max(values, relative)
        if relative / LOGGED > how_bad:
            worst, how_bad = key, relative / LOGGED
    return Difference(total / max(count, 1.0), largest, moments, worst, values)


def _kind(name: str) -> str:
    """`exp_avg` of `exp_avg.critic.0.weight`: moments of one kind have one scale."""
    return name.split(".", 1)[0]
