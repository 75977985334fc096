"""Counts env steps and episodes from what calls return; `compiled/step_counter.h` is the same in C.

A `StepCounter` is passed to `Region.wrap` as `after`: it reads the rewards and the flags that end an episode
from a result, for one env (numbers) or for the rows of a vector env (arrays, through the buffer protocol). It
knows no library; results it cannot read go to `on_unknown`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hotloop._util.interrupts import is_users, report_own
from hotloop.measure.twin import call_path

if TYPE_CHECKING:
    from hotloop.measure.twin.recorder import Recorder
    from hotloop.measure.twin.region import Region

MAX_RECENT = 16  # envs whose last observation is kept
FORMATS = frozenset("?bBhHiIlLqQfd")  # of buffers that can be read
Column = tuple[bool, list[float]]  # whether it is a number, not an array; its values


class Rows:
    """The current episodes in the rows of one env."""

    __slots__ = ("ignored", "lengths", "resets_cost_a_step", "returns", "sums_given", "waiting")

    def __init__(self, width: int, resets_cost_a_step: bool | None):
        self.returns = [0.0] * width
        self.lengths = [0] * width
        self.waiting = [False] * width  # rows whose next step is only a reset
        self.resets_cost_a_step = bool(resets_cost_a_step)
        self.ignored = resets_cost_a_step is None  # steps until the next reset do not count: an evaluation
        self.sums_given = False  # `episode_sums` has given a return, so rewards need not be added up


class StepCounter:
    """Call it with an env and the result of its step, or pass it to `wrap` as `after`.

    `reward` and `ends` are positions in the result. Results that cannot be read go to
    `on_unknown(env, result)`, which may count them with `add`. Nothing is counted while `counting` is false
    or inside the region `skip_inside`.

    `episode_sums(env, result, rows)` returns the sums of the returns and lengths of the episodes that ended
    in `rows`, or None if it does not know them. Once it has done so for an env, the rewards of that env are
    no longer read. `resets_cost_a_step(env)` is asked once per env and after each reset: if true, the step of
    a row after the end of an episode is only a reset and does not count; if None, no step counts until
    the next reset.

    With `report` set, counts are passed to it, as keyword arguments of `Recorder.progress`, and not counted
    here. `called_out` tells whether the last step called any other code; if not, it was too short to be
    worth recording.

    `on_step(env, action)` is called once, at the end of the next step, and then forgotten; the action is the
    second positional argument of the step, None for a step that has none or that was not wrapped.

    `calls` counts steps, each of all rows of an env. `path` is the path of the last call picked by
    `Region.wrap` before the last step, 0 for none.
    """

    def __init__(
        self,
        recorder: Recorder,
        reward: int,
        ends: tuple[int, ...],
        *,
        on_unknown: Callable[[Any, Any], object] | None = None,
        episode_sums: Callable[[Any, Any, list[int]], tuple[float, float] | None] | None = None,
        resets_cost_a_step: Callable[[Any], object] | None = None,
        skip_inside: Region | None = None,
    ):
        if not 1 <= len(ends) <= 4 or min(reward, *ends) < 0:
            raise ValueError(
                f"ends={ends!r}, reward={reward!r} must be one to four places in a result, counted from 0."
            )
        self.counting = True
        self.called_out = False
        self.report: Callable[..., object] | None = None
        self.on_step: Callable[[Any, Any], object] | None = None
        self._recorder = recorder
        self._reward = reward
        self._ends = ends
        self._on_unknown = on_unknown
        self._episode_sums = episode_sums
        self._resets_cost_a_step = resets_cost_a_step
        self._skip_inside = skip_inside
        self._rows: dict[int, Rows] = {}
        self.calls = 0
        self.path = 0
        self._recent: dict[int, tuple[Any, int]] = {}  # id of an env -> observation, version; newest last
        self._versions = 0

    def _keep(self, env: Any, result: Any) -> None:
        self._versions += 1
        observation = result[0] if isinstance(result, tuple) and result else result
        self._recent.pop(id(env), None)
        self._recent[id(env)] = (observation, self._versions)
        if len(self._recent) > MAX_RECENT:
            del self._recent[next(iter(self._recent))]
        call_path.last_path = 0

    def recent(self) -> list[tuple[int, Any, int]]:
        """The last observation of each env stepped lately, newest first: (id of the env, it, version)."""
        return [(env, *kept) for env, kept in reversed(self._recent.items())]

    def drop(self) -> None:
        """Release the observations kept for `recent`."""
        self._recent.clear()

    def __call__(self, env: Any, result: Any) -> None:
        """Count one step of `env` that returned `result`."""
        self.count(env, None, result)

    def count(self, env: Any, action: Any, result: Any) -> None:
        """As above, of a step whose action is known."""
        self.called_out = False
        if not self.counting or not self._recorder.epoch:
            return
        if self.on_step is not None:
            told, self.on_step, self.called_out = self.on_step, None, True
            self._recorder.safely(told, env, action)
        self.calls += 1
        self.path = call_path.last_path or self.path  # one call may choose actions for several steps
        self._keep(env, result)
        if self._skip_inside is not None and self._skip_inside.is_open():
            return
        known = self._rows.get(id(env))
        columns = self._columns(result, read_rewards=known is None or not known.sums_given)
        if columns is None:
            if self._on_unknown is not None:
                self.called_out = True
                self._on_unknown(env, result)
            return
        rewards, *ends = columns
        self._add(env, result, rewards, [any(row) for row in zip(*ends, strict=True)])

    def add(self, env: Any, rewards: Sequence[float], ended: Sequence[object]) -> None:
        """Count one step of every row of `env`."""
        if len(rewards) != len(ended):
            raise ValueError(f"add() needs as many rewards ({len(rewards)}) as ends ({len(ended)}).")
        gained, over = [float(reward) for reward in rewards], [bool(end) for end in ended]
        if self._recorder.epoch:
            self._add(env, None, gained, over)

    def see(self, env: Any, observation: Any) -> None:
        """Keep what an env whose steps return no observation was asked for."""
        if self.counting and self._recorder.epoch:
            self._keep(env, observation)

    def forget(self, env: Any, result: Any = None) -> None:
        """Abandon the current episodes of `env`; can be the `after` of a reset."""
        if result is not None and self.counting and self._recorder.epoch:
            self._keep(env, result)
        self._rows.pop(id(env), None)

    def _columns(self, result: Any, read_rewards: bool) -> list[list[float]] | None:
        """Rewards, then each of the flags, all of one width; None when the result cannot be read."""
        if not isinstance(result, tuple) or len(result) <= max(self._reward, *self._ends):
            return None
        # Where rewards are not read, the first of the flags takes their place.
        first = self._reward if read_rewards else self._ends[0]
        columns = [read_column(result[at]) for at in (first, *self._ends)]
        read = [column for column in columns if column is not None]
        alike = len({(column[0], len(column[1])) for column in read}) == 1
        return [column[1] for column in read] if alike and len(read) == len(columns) else None

    def _add(self, env: Any, result: Any, rewards: list[float], ended: list[bool]) -> None:
        rows = self._rows.get(id(env))
        if rows is None or len(rows.returns) != len(rewards):
            rows = self._rows[id(env)] = Rows(len(rewards), self._ask_resets(env))
        if rows.ignored:
            return
        steps, finished, sum_of_returns, sum_of_lengths = 0, [], 0.0, 0.0
        returns_known = not rows.sums_given
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
        if finished and self._episode_sums is not None and result is not None:
            sums = self._ask_episode_sums(env, result, finished)
            if sums is not None:
                rows.sums_given = True
                sum_of_returns, sum_of_lengths = sums
            returns_known = sums is not None or not rows.sums_given
        count = len(finished)
        words: dict[str, Any] = {"env_steps": steps}
        if finished:
            words |= {"episodes": count, "episode_length": sum_of_lengths / count}
            if returns_known:
                words["episode_return"] = sum_of_returns / count
        self.called_out |= self.report is not None or self._recorder.steps_due > 0
        (self.report or self._recorder.progress)(**words)

    def _ask_resets(self, env: Any) -> bool | None:
        self.called_out |= self._resets_cost_a_step is not None
        try:
            answer = False if self._resets_cost_a_step is None else self._resets_cost_a_step(env)
            return None if answer is None else bool(answer)
        except Exception as error:
            if is_users(error):
                raise
            report_own(error)
            return False

    def _ask_episode_sums(self, env: Any, result: Any, rows: list[int]) -> tuple[float, float] | None:
        self.called_out = True
        try:
            sums = self._episode_sums(env, result, rows) if self._episode_sums is not None else None
            return None if sums is None else (float(sums[0]), float(sums[1]))
        except Exception as error:
            if is_users(error):
                raise
            report_own(error)
            return None


def read_column(item: Any) -> Column | None:
    """The values of a number or a 1-D buffer of numbers; None for anything else."""
    try:
        if isinstance(item, (int, float)):
            return True, [float(item)]
        view = memoryview(item)
    except (TypeError, ValueError, BufferError, OverflowError) as error:
        if is_users(error):
            raise
        return None
    if view.format not in FORMATS or view.ndim > 1:
        return None
    values: Any = view.tolist()
    return (True, [float(values)]) if view.ndim == 0 else (False, [float(value) for value in values])
