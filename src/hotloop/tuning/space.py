"""What may be set and to what: knobs, the settings they span, and which of these keep learning the same."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from hotloop._util.errors import HotloopError
from hotloop.capture.plan import Safety

Value = int | str | bool
# What a knob moves: environments stepped together, processes that step them, threads of torch, samples of a
# gradient step; or a switch, of which no formula knows what it does.
Role = Literal["envs", "workers", "threads", "batch", "switch"]
Settings = tuple[tuple[str, Value], ...]  # a value for each knob, in the order of the space

MOST_SETTINGS = 20_000


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing that can be set."""

    name: str
    values: tuple[Value, ...]
    """What may be tried: an amount rising, of a switch the likeliest best first."""
    current: Value
    """What is used now."""
    role: Role = "switch"
    safety: Safety = "safe"
    """safe: same results; semantic: may change what is learnt."""
    invariant: str = ""
    """What stays the same when it changes, in words; "" for nothing to be said."""

    def __post_init__(self) -> None:
        """Complain of a knob that has nothing to turn."""
        if not self.values:
            raise HotloopError(f"{self.name} has no values to try; give at least one.")
        if self.role != "switch" and not all(type(v) is int and v >= 0 for v in (*self.values, self.current)):
            raise HotloopError(
                f"{self.name} is an amount ({self.role}), but its values are "
                f"{', '.join(map(str, (self.current, *self.values)))}; give whole numbers from 0."
            )

    @property
    def is_switch(self) -> bool:
        """Whether its values are names, not amounts."""
        return self.role == "switch"

    @property
    def all_values(self) -> tuple[Value, ...]:
        """Every value that may be tried, the current one among them."""
        if self.current in self.values:
            return self.values
        both = (self.current, *self.values)
        return both if self.is_switch else tuple(sorted(both, key=int))


@dataclass(frozen=True)
class Space:
    """All knobs, and which of their settings are allowed."""

    knobs: tuple[Knob, ...]
    allowed: Callable[[Mapping[str, Value]], bool] = lambda settings: True

    def __post_init__(self) -> None:
        """Complain of a space that cannot be searched."""
        names = [knob.name for knob in self.knobs]
        if not names:
            raise HotloopError("There is nothing to tune; name at least one setting.")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise HotloopError(f"{twice!r} is there twice; name each setting once.")
        count = math.prod(len(knob.all_values) for knob in self.knobs)
        if count > MOST_SETTINGS:
            raise HotloopError(
                f"There are {count:,} settings, more than {MOST_SETTINGS:,}; try fewer values of each."
            )

    @property
    def current(self) -> Settings:
        """What is used now."""
        return tuple((knob.name, knob.current) for knob in self.knobs)

    def knob(self, name: str) -> Knob:
        """The knob of that name."""
        return next(knob for knob in self.knobs if knob.name == name)

    def all_settings(self) -> Iterator[Settings]:
        """Every allowed setting, the current one among them."""
        for values in itertools.product(*(knob.all_values for knob in self.knobs)):
            found = tuple((knob.name, value) for knob, value in zip(self.knobs, values, strict=True))
            if found == self.current or self.allowed(dict(found)):
                yield found

    def with_values(self, settings: Settings, **changes: Value) -> Settings:
        """The settings with some values changed."""
        return tuple((name, changes.get(name, value)) for name, value in settings)

    def is_safe(self, settings: Settings) -> bool:
        """Whether only safe knobs differ from what is used now."""
        now = dict(self.current)
        return all(value == now[name] or self.knob(name).safety == "safe" for name, value in settings)

    def switches(self, settings: Settings) -> Settings:
        """The part of the settings that no formula knows."""
        return tuple((name, value) for name, value in settings if self.knob(name).is_switch)

    def amount(self, settings: Settings, role: Role) -> int | None:
        """The value of the knob with that role; None without one."""
        return next((int(v) for name, v in settings if self.knob(name).role == role), None)

    def changed(self, settings: Settings) -> Settings:
        """What differs from what is used now."""
        now = dict(self.current)
        return tuple((name, value) for name, value in settings if value != now[name])


def words_of(settings: Settings) -> str:
    """`envs=8 threads=1`."""
    return " ".join(f"{name}={value}" for name, value in settings)


def doubling(low: int, high: int) -> tuple[int, ...]:
    """low, 2 low, 4 low ... up to high."""
    found, value = [], max(low, 1)
    while value <= high:
        found.append(value)
        value *= 2
    return tuple(found)
