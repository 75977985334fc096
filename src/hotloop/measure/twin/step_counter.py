"""Counts env steps and episodes from what calls return; the compiled core has the same, in C.

A `StepCounter` is given to `Region.wrap` as `after`: it looks at the items of a result that say
what was gained and whether an episode ended, for one env (numbers) or for the rows of many (arrays,
through the buffer protocol). It knows no library; what it does not understand goes to `odd`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotloop.measure.twin.recorder import Recorder
    from hotloop.measure.twin.region import Region

FORMATS = frozenset("?bBhHiIlLqQfd")  # of buffers whose items are read
Column = tuple[bool, list[float]]  # whether it is one number and no array; its values


class Rows:
    """Episodes under way in the rows of one env."""

    __slots__ = ("lengths", "resets_cost_a_step", "returns", "told", "waiting")

    def __init__(self, width: int, resets_cost_a_step: bool):
        self.returns = [0.0] * width
        self.lengths = [0] * width
        self.waiting = [False] * width  # rows whose next step is only a reset
        self.resets_cost_a_step = resets_cost_a_step
        self.told = False  # somebody has told a return: rewards need not be added up


class StepCounter:
    """Call it with an env and what its step returned, or give it to `wrap` as `after`.

    `reward` and `ends` are places in the result. `odd(env, result)` is called for a result that is
    not understood, and may count by calling `add`. Nothing is counted while `counting` is false or
    inside the region `unless`. `told(env, result, rows)` may know better about the episodes that
    ended in `rows`: it gives the sums of their returns and lengths, or None. Once it has done so for an
    env, rewards of that env are not read any more. `resets_cost_a_step(env)` is asked once for each
    env: then the step of a row after its end is only a reset and no step.
    Whenever the list `watch` is not empty after a step, `noticed()` is called. With `report` set, it
    is called with what `Recorder.progress` takes, and nothing is counted here. `called_out` says whether
    somebody was asked or told anything at the last step; else its time is too short to be recorded.
    """

    def __init__(
        self,
        recorder: Recorder,
        reward: int,
        ends: tuple[int, ...],
        *,
        odd: Callable[[Any, Any], object] | None = None,
        told: Callable[[Any, Any, list[int]], tuple[float, float] | None] | None = None,
        resets_cost_a_step: Callable[[Any], object] | None = None,
        unless: Region | None = None,
        watch: list[Any] | None = None,
        noticed: Callable[[], object] | None = None,
    ):
        if not 1 <= len(ends) <= 4 or min(reward, *ends) < 0:
            raise ValueError(f"ends={ends!r}, reward={reward!r}: one to four places in a result, from 0 on.")
        self.counting = True
        self.called_out = False
        self.report: Callable[..., object] | None = None
        self._recorder = recorder
        self._reward = reward
        self._ends = ends
        self._odd = odd
        self._told = told
        self._resets_cost_a_step = resets_cost_a_step
        self._unless = unless
        self._watch = watch
        self._noticed = noticed
        self._rows: dict[int, Rows] = {}

    def __call__(self, env: Any, result: Any) -> None:
        """One step of `env` gave `result`."""
        self.called_out = False
        if not self.counting or not self._recorder.epoch:
            return
        if self._watch and self._noticed is not None:
            self.called_out = True
            self._noticed()
        if self._unless is not None and self._unless.is_open():
            return
        known = self._rows.get(id(env))
        columns = self._columns(result, read_rewards=known is None or not known.told)
        if columns is None:
            if self._odd is not None:
                self.called_out = True
                self._odd(env, result)
            return
        rewards, *ends = columns
        self._add(env, result, rewards, [any(row) for row in zip(*ends, strict=True)])

    def add(self, env: Any, rewards: Sequence[float], ended: Sequence[object]) -> None:
        """One step of every row of `env`, in plain numbers."""
        if len(rewards) != len(ended):
            raise ValueError(f"add() needs as many rewards ({len(rewards)}) as ends ({len(ended)}).")
        gained, over = [float(reward) for reward in rewards], [bool(end) for end in ended]
        if self._recorder.epoch:
            self._add(env, None, gained, over)

    def forget(self, env: Any, result: Any = None) -> None:
        """The episodes under way in `env` were broken off; has the form of an `after`, for resets."""
        self._rows.pop(id(env), None)

    def _columns(self, result: Any, read_rewards: bool) -> list[list[float]] | None:
        """Rewards, then each of the ends, all of one width; None when the result is not understood."""
        if not isinstance(result, tuple) or len(result) <= max(self._reward, *self._ends):
            return None
        # What is not read is left out by reading the first of the ends in its place.
        first = self._reward if read_rewards else self._ends[0]
        columns = [read_column(result[at]) for at in (first, *self._ends)]
        read = [column for column in columns if column is not None]
        alike = len({(column[0], len(column[1])) for column in read}) == 1
        return [column[1] for column in read] if alike and len(read) == len(columns) else None

    def _add(self, env: Any, result: Any, rewards: list[float], ended: list[bool]) -> None:
        rows = self._rows.get(id(env))
        if rows is None or len(rows.returns) != len(rewards):
            rows = self._rows[id(env)] = Rows(len(rewards), self._ask_resets(env))
        steps, finished, sum_of_returns, sum_of_lengths = 0, [], 0.0, 0.0
        returns_known = not rows.told
        for row, (reward, end) in enumerate(zip(rewards, ended, strict=True)):
            if rows.waiting[row]:
                rows.waiting[row] = False
                continue
            steps += 1
            rows.returns[row] += reward
            rows.lengths[row] += 1
            if end:
                finished.append(row)
                sum_of_returns += rows.returns[row]
                sum_of_lengths += rows.lengths[row]
                rows.returns[row], rows.lengths[row] = 0.0, 0
                rows.waiting[row] = rows.resets_cost_a_step
        if finished and self._told is not None and result is not None:
            sums = self._ask_told(env, result, finished)
            if sums is not None:
                rows.told = True
                sum_of_returns, sum_of_lengths = sums
            returns_known = sums is not None or not rows.told
        count = len(finished)
        words: dict[str, Any] = {"env_steps": steps}
        if finished:
            words |= {"episodes": count, "episode_length": sum_of_lengths / count}
            if returns_known:
                words["episode_return"] = sum_of_returns / count
        self.called_out |= self.report is not None or self._recorder.steps_due > 0
        (self.report or self._recorder.progress)(**words)

    def _ask_resets(self, env: Any) -> bool:
        self.called_out |= self._resets_cost_a_step is not None
        try:
            return self._resets_cost_a_step is not None and bool(self._resets_cost_a_step(env))
        except Exception:  # a library's question failed: told, and the user's training goes on
            sys.excepthook(*sys.exc_info())
            return False

    def _ask_told(self, env: Any, result: Any, rows: list[int]) -> tuple[float, float] | None:
        self.called_out = True
        try:
            sums = self._told(env, result, rows) if self._told is not None else None
            return None if sums is None else (float(sums[0]), float(sums[1]))
        except Exception:  # as above
            sys.excepthook(*sys.exc_info())
            return None


def read_column(item: Any) -> Column | None:
    """The values of one item of a result, when it is a number or a flat buffer of numbers."""
    try:
        if isinstance(item, (int, float)):
            return True, [float(item)]
        view = memoryview(item)
    except (TypeError, ValueError, BufferError, OverflowError):
        return None
    if view.format not in FORMATS or view.ndim > 1:
        return None
    values: Any = view.tolist()
    return (True, [float(values)]) if view.ndim == 0 else (False, [float(value) for value in values])
