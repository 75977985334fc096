"""Audits: updates computed both ways from the same state, by the library and by the kernels.

The first updates of a model are audited, later ones at random, in the end about one gradient step in a
thousand, and the next one after something changed that kernels could miss. Later audits stop when they take
more than 1 % of the time. The kernels' result is kept when an audit passes, so audits change nothing. When to
audit comes from a separate generator: the user's random numbers are not touched.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

FIRST = 3  # gradient steps that are always audited
EVERY = 1000  # gradient steps between two later audits, on average
SHARE = 0.01  # of the time, at most, for later audits
CHANGE = 0.5  # relative change of a setting that calls for an audit

# Tolerances, 15 times and more the largest difference seen (8,000 audited steps of PPO and A2C on CartPole
# and Pendulum). Adam divides a gradient by its own size, so a gradient close to zero, whose sign is rounding,
# can move a single weight by the whole learning rate: means over many weights are steady. The gradient of one
# tensor can be the small difference of large numbers, such as the errors of a critic that fits well.
MEAN_STEP = 0.01  # mean |difference| of weights, in learning rates for each gradient step; seen: 6e-4
MOMENTS = 0.01  # difference of all moments of a kind, relative to their change; seen: 5e-4
TENSOR = 0.1  # the same for each tensor; seen: 6e-3
LOGGED = 0.01  # relative difference of logged values; seen: 3e-4
ROUNDING = 0.01  # of the size of moments counts as change: they are rounded, too
LEAST_RATE = 1e-6
FLOOR = 0.01  # of the change of all moments of a kind counts as change of each tensor


@contextmanager
def same_distribution(policy: Any) -> Iterator[None]:
    """Leave the policy's distribution as it was.

    The library's `train` leaves one with a graph of autograd in it, which cannot be copied; its next action
    replaces that, but kernels act without it.
    """
    found = [
        distribution.__dict__
        for part in (policy, getattr(policy, "actor", None))
        if (distribution := getattr(part, "action_dist", None)) is not None
    ]
    kept = [dict(own) for own in found]
    try:
        yield
    finally:
        for own, before in zip(found, kept, strict=True):
            own.clear()
            own.update(before)


@dataclass(frozen=True, slots=True)
class Difference:
    """How far the kernels' result was from the library's."""

    mean_step: float
    """Mean |difference| of all weights, in learning rates."""
    max_step: float
    """Largest |difference| of a weight, in learning rates."""
    moments: float
    """Difference of the moments, relative to their change; of the worst kind."""
    worst: str
    """The tensor or logged value that is farthest off."""
    logged: float
    """Largest relative difference of a logged value."""
    tensor: float = 0.0
    """Like `moments`, for the worst tensor."""
    gradient_steps: int = 1

    @property
    def passes(self) -> bool:
        """False, too, when something is not a number on one side only."""
        return (
            self.mean_step <= MEAN_STEP * self.gradient_steps
            and self.moments <= MOMENTS * self.gradient_steps
            and self.tensor <= TENSOR * self.gradient_steps
            and self.logged <= LOGGED * self.gradient_steps
        )

    def __str__(self) -> str:
        return (
            f"weights differ by {self.mean_step:.2g} learning rates on average (allowed {MEAN_STEP:g}) and "
            f"{self.max_step:.2g} at most, moments by {self.moments:.2g} (allowed {MOMENTS:g}) and "
            f"{self.tensor:.2g} in one tensor (allowed {TENSOR:g}), logged values by {self.logged:.2g} "
            f"(allowed {LOGGED:g}); most in {self.worst}"
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
    part: float = 1.0
    """Of the share of the time that audits may take."""
    _started_s: float = field(default_factory=time.perf_counter)
    _made: int = 0
    """Gradient steps so far."""
    _next: int = 0
    """Gradient steps until the next audit."""
    _random: random.Random = field(default_factory=random.Random)
    _settings: tuple[float, ...] = ()
    _copies: int = 0

    def soon(self) -> None:
        """Audit the next gradient step: something changed that the kernels might have missed."""
        self._next = 0

    def follow(self, *settings: float) -> None:
        """Audit the next gradient step if a setting has changed by half since it was last audited for that.

        A schedule changes a setting a little at every step; that alone is no reason.
        """
        if settings == self._settings:
            return
        if len(settings) != len(self._settings) or any(
            abs(now - then) > CHANGE * max(abs(now), abs(then))
            for now, then in zip(settings, self._settings, strict=True)
        ):
            self._settings = settings
            self.soon()

    def follow_copies(self, copies: int) -> None:
        """Audit the next gradient step if target networks were replaced at once."""
        if copies != self._copies:
            self._copies = copies
            self.soon()

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
        if self.passed >= FIRST and self.spent_s > self.part * SHARE * (
            time.perf_counter() - self._started_s
        ):
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


def comparable_rate(learning_rate: float) -> float:
    """The learning rate that differences of weights are measured in.

    Not less than `LEAST_RATE`: below, rounding of the weights themselves would count as a difference.
    Schedules that go to zero end below zero when the last rollout is longer than what was left.
    """
    return max(abs(float(learning_rate)), LEAST_RATE)


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
    total = largest = count = 0.0
    off: dict[str, float] = {}  # how far each tensor and logged value is from its limit
    squares: dict[str, list[tuple[float, float, float]]] = {}  # of a kind: difference, change, size
    apart: dict[str, tuple[float, float, float]] = {}
    for name, expected in theirs.items():
        difference = _distances(ours[name], expected)
        if name in rates:
            rate = max(rates[name], 1e-30)
            total += float(difference.sum()) / rate
            largest = max(largest, float(difference.max(initial=0.0)) / rate)
            count += difference.size
            continue
        apart[name] = (_norm(difference), _norm(expected - before[name]), _norm(expected))
        squares.setdefault(_kind(name), []).append(apart[name])
    kinds = {
        kind: [math.hypot(*column) for column in zip(*rows, strict=True)] for kind, rows in squares.items()
    }
    moments = max((_relative(*found) for found in kinds.values()), default=0.0)
    tensor = 0.0
    for name, (difference_of_it, change, size) in apart.items():
        relative = _relative(difference_of_it, change + FLOOR * kinds[_kind(name)][1], size)
        off[name], tensor = relative / TENSOR, max(tensor, relative)
    values = 0.0
    for key, (mine, other) in logged.items():
        relative = (
            abs(mine - other) / (abs(other) + 1e-2) if math.isfinite(mine) and math.isfinite(other) else 0.0
        )
        relative = math.inf if math.isfinite(mine) != math.isfinite(other) else relative
        off[key], values = relative / LOGGED, max(values, relative)
    worst = max(off, key=lambda name: off[name], default="")
    return Difference(total / max(count, 1.0), largest, moments, worst, values, tensor)


def _distances(ours: NDArray[Any], theirs: NDArray[Any]) -> NDArray[np.float64]:
    """|difference|; infinite when only one side is finite, 0 where neither is."""
    if not np.array_equal(np.isfinite(ours), np.isfinite(theirs)):
        return np.full(ours.shape, np.inf)
    apart: NDArray[np.float64] = np.abs(ours.astype(np.float64) - theirs)
    return np.where(np.isfinite(apart), apart, 0.0)


def _relative(difference: float, change: float, size: float) -> float:
    return difference / (change + ROUNDING * size + 1e-30)


def _norm(values: NDArray[Any]) -> float:
    finite = values[np.isfinite(values)].astype(np.float64)
    return math.inf if np.isinf(values).any() else float(np.linalg.norm(finite))


def _kind(name: str) -> str:
    """`exp_avg` of `exp_avg.critic.0.weight`: moments of one kind have one scale."""
    return name.split(".", 1)[0]
