"""What a conformance check has visited: observations, ends of episodes, lengths, actions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from hotloop._util.errors import HotloopError
from hotloop.testing.trajectories import Moment, leaves, row_of

_MOST_SHOWN = 12


@dataclass(frozen=True, slots=True)
class End:
    """An episode that ended."""

    length: int  # steps
    terminated: bool
    truncated: bool


def ends_of(moments: list[Moment], mode: Any) -> list[End]:
    """Return the episodes that ended in a recording."""
    found: list[End] = []
    for lengths, moment, _ in _steps(moments, mode):
        for row in np.flatnonzero(moment.ended).tolist():
            found.append(End(lengths[row], bool(moment.terminated[row]), bool(moment.truncated[row])))  # type: ignore[index]
    return found


def longest_of(moments: list[Moment], mode: Any) -> int:
    """Return the most steps that any episode has lasted, ended or not."""
    return max((max(lengths) for lengths, _, _ in _steps(moments, mode)), default=0)


def _steps(moments: list[Moment], mode: Any) -> Iterator[tuple[list[int], Moment, list[bool]]]:
    """Yield for each step the steps of each row's episode so far, and which rows really stepped."""
    rows = len(moments[1].ended) if len(moments) > 1 else 0
    lengths, over = [0] * rows, [False] * rows
    for moment in moments[1:]:
        stepped = [not one for one in over]
        for row in range(rows):
            lengths[row] = lengths[row] + 1 if stepped[row] else 0
        yield lengths, moment, stepped
        for row in np.flatnonzero(moment.ended).tolist():
            if mode == AutoresetMode.NEXT_STEP:
                over[row] = True
            else:
                lengths[row] = 0
        for row in range(rows):
            if not stepped[row]:
                over[row] = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a check must visit at least; it takes more steps until it has, up to `most_steps`."""

    observations: int = 0
    """Different observations."""
    terminated: int = 0
    """Episodes that the rules end."""
    truncated: int = 0
    """Episodes that a limit ends."""
    actions_fraction: float = 0.0
    """Fraction of the actions of a Discrete space, 0 to 1."""
    most_steps: int = 20_000
    """Vector steps after which it gives up."""

    def __post_init__(self) -> None:
        """Raise HotloopError for what no run can visit."""
        counts = (self.observations, self.terminated, self.truncated, self.most_steps)
        if min(counts) < 0 or not 0 <= self.actions_fraction <= 1:
            raise HotloopError(
                f"{self} cannot be visited; use counts of at least 0 and a fraction of 0 to 1."
            )


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the recordings of a check have visited, all modes and seeds together."""

    observations: int  # different ones
    terminated: int  # ends by the rules
    truncated: int  # ends by a limit
    both: int  # of these, with both flags
    lengths: tuple[int, ...]  # of ended episodes, sorted
    actions: dict[int, int] = field(default_factory=dict)  # how often; only of Discrete spaces
    all_actions: int = 0  # size of the Discrete space, otherwise 0

    @property
    def actions_fraction(self) -> float:
        """Fraction of the actions that were taken; 1 for spaces that are not Discrete."""
        return len(self.actions) / self.all_actions if self.all_actions else 1.0

    def lines(self) -> list[str]:
        """Describe what was visited, and what was not."""
        seen = [
            f"{self.observations:,} different observations",
            f"{self.terminated:,} ends by the rules, {self.truncated:,} by a limit",
        ]
        if self.lengths:
            middle = self.lengths[len(self.lengths) // 2]
            seen.append(f"episodes of {self.lengths[0]:,} to {self.lengths[-1]:,} steps, median {middle:,}")
        if self.all_actions:
            seen.append(f"{len(self.actions)} of {self.all_actions} actions")
        lines = [f"  visited      {'; '.join(seen)}"]
        missing = [
            name
            for name, count in (("terminated ends", self.terminated), ("truncated ends", self.truncated))
            if not count
        ]
        never = [action for action in range(self.all_actions) if action not in self.actions]
        if never:
            more = " ..." if len(never) > _MOST_SHOWN else ""
            missing.append(f"actions {', '.join(map(str, never[:_MOST_SHOWN]))}{more}")
        return [*lines, f"  not visited  {'; '.join(missing)}"] if missing else lines

    def lacks(self, wanted: Wanted) -> str:
        """Return what is missing; "" if nothing is."""
        lacking = [
            f"{getattr(self, name):,} of {getattr(wanted, name):,} {what}"
            for name, what in (
                ("observations", "different observations"),
                ("terminated", "terminated ends"),
                ("truncated", "truncated ends"),
            )
            if getattr(self, name) < getattr(wanted, name)
        ]
        if self.actions_fraction < wanted.actions_fraction:
            lacking.append(f"{len(self.actions)} of {self.all_actions} actions")
        return ", ".join(lacking)


def coverage_of(recordings: list[tuple[Any, list[Moment]]], action_space: Any) -> Coverage:
    """Return what these recordings, each with its autoreset mode, have visited."""
    observations: set[int] = set()
    actions: dict[int, int] = {}
    ends: list[End] = []
    number, first = 0, 0
    if isinstance(action_space, gymnasium.spaces.Discrete):
        number, first = int(action_space.n), int(action_space.start)
    for mode, moments in recordings:
        ends += ends_of(moments, mode)
        for moment in moments:
            rows = len(next(leaves(moment.observations))[1])
            observations |= {_digest(row_of(moment.observations, row)) for row in range(rows)}
        for _, moment, stepped in _steps(moments, mode) if number else ():
            for row, one in enumerate(stepped):
                if one:
                    action = int(moment.actions[row]) - first
                    actions[action] = actions.get(action, 0) + 1
    return Coverage(
        len(observations),
        sum(end.terminated for end in ends),
        sum(end.truncated for end in ends),
        sum(end.terminated and end.truncated for end in ends),
        tuple(sorted(end.length for end in ends)),
        actions,
        number,
    )


def _digest(observation: Any) -> int:
    return hash(tuple(np.asarray(leaf).tobytes() for _, leaf in leaves(observation)))
