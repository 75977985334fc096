"""Timed place/transition nets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError

Kind = Literal["source", "process", "buffer", "transport", "resource", "sink"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# The compiled path stores times in 32 bits; the sum of four must fit.
LARGEST = 500_000_000

Arcs = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A place and the rules for its tokens; times in whole seconds."""

    name: str
    tokens: int = 0  # in the initial marking
    capacity: int | None = None  # most tokens at once; None: unbounded
    holding_s: int = 0  # a token is usable this long after its arrival
    residence_s: int | None = None  # longest stay of a usable token; None: unlimited
    kind: Kind = "buffer"
    goal: int = 0  # the net is finished when every place has at least its goal

    def __post_init__(self) -> None:
        where = f"place {self.name!r}"
        _check_whole(self.tokens, 0, f"tokens of {where}")
        _check_whole(self.holding_s, 0, f"holding_s of {where}")
        _check_whole(self.goal, 0, f"goal of {where}")
        if self.capacity is not None:
            _check_whole(self.capacity, 1, f"capacity of {where}")
            if max(self.tokens, self.goal) > self.capacity:
                raise HotloopError(
                    f"{where} starts with {self.tokens} tokens and has goal {self.goal}, "
                    f"but its capacity is {self.capacity}; raise the capacity or remove tokens."
                )
        if self.residence_s is not None:
            _check_whole(self.residence_s, 0, f"residence_s of {where}")
        if self.kind not in KINDS:
            raise HotloopError(f"unknown kind {self.kind!r} of {where}; use one of {', '.join(KINDS)}.")

    @property
    def is_tracked(self) -> bool:
        """Whether its tokens are workpieces (wafers, jobs), not robots or machines."""
        return self.kind != "resource"


@dataclass(frozen=True, slots=True)
class Transition:
    """A transition with its arcs as (place, weight); also accepts a mapping or a list of names."""

    name: str
    takes: Arcs
    puts: Arcs
    firing_s: int = 0  # firing advances the clock by this
    inhibited_by: Arcs = ()  # enabled only while each of these places holds fewer tokens than its weight
    resets: tuple[str, ...] = ()  # places that firing empties, after it has taken its tokens

    def __init__(
        self,
        name: str,
        takes: Mapping[str, int] | Arcs | list[str],
        puts: Mapping[str, int] | Arcs | list[str],
        firing_s: int = 0,
        inhibited_by: Mapping[str, int] | Arcs | list[str] = (),
        resets: Iterable[str] = (),
    ):
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "takes", _arcs(takes))
        object.__setattr__(self, "puts", _arcs(puts))
        object.__setattr__(self, "firing_s", firing_s)
        object.__setattr__(self, "inhibited_by", _arcs(inhibited_by))
        object.__setattr__(self, "resets", tuple(resets))
        _check_whole(firing_s, 0, f"firing_s of transition {name!r}")
        sides = (
            (self.takes, "takes"),
            (self.puts, "puts"),
            (self.inhibited_by, "is inhibited by"),
            (_arcs(list(self.resets)), "resets"),
        )
        for arcs, side in sides:
            for place, weight in arcs:
                _check_whole(weight, 1, f"weight of the arc between {place!r} and {name!r}")
            if len({place for place, _ in arcs}) < len(arcs):
                raise HotloopError(
                    f"transition {name!r} names one place twice in what it {side}: {arcs}; "
                    "use one arc with the sum of the weights."
                )


@dataclass(frozen=True)
class Net:
    """An immutable timed place/transition net, validated on creation.

    The action WAIT advances the clock by `wait_s`; with None, until the next token becomes usable or has
    stayed too long.
    """

    name: str
    places: tuple[Place, ...]
    transitions: tuple[Transition, ...]
    wait_s: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", tuple(self.places))
        object.__setattr__(self, "transitions", tuple(self.transitions))
        if not self.places or not self.transitions:
            raise HotloopError(
                f"net {self.name!r} has {len(self.places)} places and {len(self.transitions)} transitions; "
                "it needs at least one of each."
            )
        if self.wait_s is not None:
            _check_whole(self.wait_s, 1, f"wait_s of net {self.name!r}")
        for what, names in (("place", self.place_names), ("transition", self.transition_names)):
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise HotloopError(f"net {self.name!r} has two {what}s named {twice!r}; names must differ.")
        for transition in self.transitions:
            arcs = transition.takes + transition.puts + transition.inhibited_by
            for place in (*(place for place, _ in arcs), *transition.resets):
                if place not in self.place_index:
                    raise HotloopError(
                        f"transition {transition.name!r} has an arc to {place!r}, which is not a place of "
                        f"net {self.name!r}; its places are {_some(self.place_names)}."
                    )

    @cached_property
    def place_names(self) -> tuple[str, ...]:
        """Names in the order of matrix rows."""
        return tuple(place.name for place in self.places)

    @cached_property
    def transition_names(self) -> tuple[str, ...]:
        """Names in the order of matrix columns and actions."""
        return tuple(transition.name for transition in self.transitions)

    @cached_property
    def place_index(self) -> dict[str, int]:
        """Matrix row by place name."""
        return {name: index for index, name in enumerate(self.place_names)}

    @cached_property
    def transition_index(self) -> dict[str, int]:
        """Matrix column and action by transition name."""
        return {name: index for index, name in enumerate(self.transition_names)}

    @property
    def wait_action(self) -> int:
        """The action WAIT: the one after the last transition."""
        return len(self.transitions)

    @property
    def initial(self) -> tuple[int, ...]:
        """The initial marking."""
        return tuple(place.tokens for place in self.places)

    @property
    def has_goal(self) -> bool:
        """Whether any place has a goal."""
        return any(place.goal for place in self.places)

    @cached_property
    def takes(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Input arcs of each transition as (row, weight), sorted by row."""
        return tuple(self._rows(transition.takes) for transition in self.transitions)

    @cached_property
    def puts(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Output arcs of each transition as (row, weight), sorted by row."""
        return tuple(self._rows(transition.puts) for transition in self.transitions)

    @cached_property
    def inhibitors(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Inhibitor arcs of each transition as (row, weight), sorted by row."""
        return tuple(self._rows(transition.inhibited_by) for transition in self.transitions)

    @cached_property
    def resets(self) -> tuple[tuple[int, ...], ...]:
        """Rows of the places that each transition empties, sorted."""
        return tuple(
            tuple(sorted(self.place_index[place] for place in transition.resets))
            for transition in self.transitions
        )

    def matrices(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return new matrices Pre and Post, int32 [places, transitions]."""
        shape = (len(self.places), len(self.transitions))
        pre, post = np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.int32)
        for matrix, arcs in ((pre, self.takes), (post, self.puts)):
            for column, links in enumerate(arcs):
                for row, weight in links:
                    matrix[row, column] = weight
        return pre, post

    def _rows(self, arcs: Arcs) -> tuple[tuple[int, int], ...]:
        return tuple(sorted((self.place_index[place], weight) for place, weight in arcs))


def _arcs(given: Mapping[str, int] | Arcs | list[str]) -> Arcs:
    if isinstance(given, Mapping):
        return tuple(given.items())
    return tuple((arc, 1) if isinstance(arc, str) else (arc[0], arc[1]) for arc in given)


def _check_whole(value: object, least: int, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value <= LARGEST:
        raise HotloopError(f"{what} is {value!r}; use a whole number from {least} to {LARGEST:,}.")


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
