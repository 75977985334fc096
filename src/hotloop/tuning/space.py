"""The settings to search: knobs, their values, and which changes leave learning unaffected."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from hotloop._util.errors import HotloopError
from hotloop.capture.plan import Safety

Value = int | str | bool
# What a knob controls: number of environments, of worker processes, of torch threads, samples of a gradient
# step; or a choice, whose effect the time model does not cover.
Role = Literal["envs", "workers", "threads", "batch", "choice"]
Settings = tuple[tuple[str, Value], ...]  # (name, value) of each knob, in the order of the space

MOST_SETTINGS = 20_000


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting and the values to try."""

    name: str
    values: tuple[Value, ...]
    """Values to try: numbers in ascending order; for a choice, the most promising first."""
    current: Value
    """Value in use."""
    role: Role = "choice"
    safety: Safety = "safe"
    """safe: same results; semantic: may change learning."""
    invariant: str = ""
    """What a change keeps the same, in words; "" if there is nothing to say."""

    def __post_init__(self) -> None:
        """Raise HotloopError for invalid values."""
        if not self.values:
            raise HotloopError(f"{self.name} has no values to try; list at least one.")
        if self.role != "choice" and not all(type(v) is int and v >= 0 for v in (*self.values, self.current)):
            raise HotloopError(
                f"{self.name} is a number of {self.role}, but its values are "
                f"{', '.join(map(str, (self.current, *self.values)))}; use whole numbers, 0 or more."
            )

    @property
    def is_choice(self) -> bool:
        """Whether its values are choices instead of numbers."""
        return self.role == "choice"

    @property
    def all_values(self) -> tuple[Value, ...]:
        """Values to try, including the current one."""
        if self.current in self.values:
            return self.values
        both = (self.current, *self.values)
        return both if self.is_choice else tuple(sorted(both, key=int))


@dataclass(frozen=True)
class Space:
    """All knobs, and which combinations are allowed."""

    knobs: tuple[Knob, ...]
    allowed: Callable[[Mapping[str, Value]], bool] = lambda settings: True

    def __post_init__(self) -> None:
        """Raise HotloopError for a space that cannot be searched."""
        names = [knob.name for knob in self.knobs]
        if not names:
            raise HotloopError("there is nothing to tune; name at least one setting.")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise HotloopError(f"{twice!r} appears twice; name each setting once.")
        count = math.prod(len(knob.all_values) for knob in self.knobs)
        if count > MOST_SETTINGS:
            raise HotloopError(
                f"there are {count:,} combinations, more than {MOST_SETTINGS:,}; try fewer values of each."
            )

    @property
    def current(self) -> Settings:
        """Settings in use."""
        return tuple((knob.name, knob.current) for knob in self.knobs)

    def knob(self, name: str) -> Knob:
        """The knob with that name."""
        return next(knob for knob in self.knobs if knob.name == name)

    def all_settings(self) -> Iterator[Settings]:
        """All allowed combinations, including the current one."""
        for values in itertools.product(*(knob.all_values for knob in self.knobs)):
            found = tuple((knob.name, value) for knob, value in zip(self.knobs, values, strict=True))
            if found == self.current or self.allowed(dict(found)):
                yield found

    def with_values(self, settings: Settings, **changes: Value) -> Settings:
        """The settings with some values changed."""
        return tuple((name, changes.get(name, value)) for name, value in settings)

    def is_safe(self, settings: Settings) -> bool:
        """Whether only safe knobs differ from the current settings."""
        now = dict(self.current)
        return all(value == now[name] or self.knob(name).safety == "safe" for name, value in settings)

    def choices(self, settings: Settings) -> Settings:
        """The choices among the settings."""
        return tuple((name, value) for name, value in settings if self.knob(name).is_choice)

    def amount(self, settings: Settings, role: Role) -> int | None:
        """Value of the knob with that role; None if there is none."""
        return next((int(v) for name, v in settings if self.knob(name).role == role), None)

    def changed(self, settings: Settings) -> Settings:
        """Settings that differ from the current ones."""
        now = dict(self.current)
        return tuple((name, value) for name, value in settings if value != now[name])


def words_of(settings: Settings) -> str:
    """`n_envs=8 threads=1`."""
    return " ".join(f"{name}={value}" for name, value in settings)


def doubling(low: int, high: int) -> tuple[int, ...]:
    """low, 2 low, 4 low ... up to high."""
    found, value = [], max(low, 1)
    while value <= high:
        found.append(value)
        value *= 2
    return tuple(found)
