"""Function-level times of two cProfile runs, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Function = tuple[str, int, str]  # file, line, name
Times = tuple[int, int, float, float, object]  # first calls, calls, own, cumulative, callers


@dataclass(frozen=True, slots=True)
class FunctionTime:
    """One function in one profile."""

    name: str  # `file.py:name`; line numbers differ between revisions and are left out
    calls: int
    own_s: float
    cumulative_s: float  # including what it called


@dataclass(frozen=True, slots=True)
class FunctionChange:
    """One function in both profiles; 0 where it was not called."""

    name: str
    calls_a: int
    calls_b: int
    cumulative_a_s: float
    cumulative_b_s: float

    @property
    def change_s(self) -> float:
        """Extra time in B."""
        return self.cumulative_b_s - self.cumulative_a_s


def function_times(stats: Mapping[Function, Times]) -> list[FunctionTime]:
    """The table of a `pstats.Stats`, merged by file and name, most cumulative time first."""
    found: dict[str, FunctionTime] = {}
    for (file, _, function), (_, calls, own_s, cumulative_s, _) in stats.items():
        name = function if file == "~" else f"{file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{function}"
        old = found.get(name, FunctionTime(name, 0, 0.0, 0.0))
        found[name] = FunctionTime(
            name, old.calls + calls, old.own_s + own_s, max(old.cumulative_s, cumulative_s)
        )
    return sorted(found.values(), key=lambda f: -f.cumulative_s)


def function_changes(a: list[FunctionTime], b: list[FunctionTime]) -> list[FunctionChange]:
    """Functions of both profiles, largest change of cumulative time first."""
    left, right = {f.name: f for f in a}, {f.name: f for f in b}
    rows = []
    for name in dict.fromkeys([*left, *right]):
        nothing = FunctionTime(name, 0, 0.0, 0.0)
        one, two = left.get(name, nothing), right.get(name, nothing)
        rows.append(FunctionChange(name, one.calls, two.calls, one.cumulative_s, two.cumulative_s))
    return sorted(rows, key=lambda row: (-abs(row.change_s), row.name))
