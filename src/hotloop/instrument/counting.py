"""Progress counted from what environments return: env steps, episodes, their length and return.

Only the outermost call counts: a vector env counts its rows, the envs inside it count nothing, nor do
the worker processes that step them. A row that is only a reset is not a step.
"""

from __future__ import annotations

from typing import Any

from hotloop.instrument.acting import env_stepped
from hotloop.measure.profiler import default

_progress = default.progress
_evaluate = default.profile("evaluate")
_running: dict[int, list[Any]] = {}  # id of an env -> return and length of its episode so far
_rows: dict[int, _Rows] = {}
counting = True


def stop_counting() -> None:
    """In a worker process: its steps are counted by whoever drives it."""
    global counting
    counting = False


def single_step(env: Any, result: Any) -> None:
    """After the outermost `step` of one env."""
    env_stepped()
    if not counting or _evaluate.is_open():
        return
    _, reward, terminated, truncated, _ = result
    episode = _running.get(id(env))
    if episode is None:
        episode = _running[id(env)] = [0.0, 0]
    episode[0] += reward
    episode[1] += 1
    if terminated or truncated:
        _progress(env_steps=1, episodes=1, episode_return=float(episode[0]), episode_length=float(episode[1]))
        episode[0], episode[1] = 0.0, 0
    else:
        _progress(env_steps=1)


def single_reset(env: Any, result: Any) -> None:
    """After the outermost `reset` of one env: an episode that was broken off is forgotten."""
    _running.pop(id(env), None)


class _Rows:
    """Episodes under way in the rows of a vector env."""

    def __init__(self, count: int, resets_cost_a_step: bool):
        import numpy as np

        self.returns = np.zeros(count)
        self.lengths = np.zeros(count)
        self.only_reset = np.zeros(count, dtype=bool)  # rows whose next step is a reset
        self.resets_cost_a_step = resets_cost_a_step

    def add(self, rewards: Any, ended: Any) -> None:
        """One step of all rows."""
        env_stepped()
        steps = len(self.returns)
        if self.resets_cost_a_step:
            waiting = int(self.only_reset.sum())
            if waiting:
                steps -= waiting
                self.returns[self.only_reset] = 0
                self.lengths[self.only_reset] = -1
                rewards = rewards * ~self.only_reset
            self.only_reset[:] = ended
        self.returns += rewards
        self.lengths += 1
        if not ended.any():
            _progress(env_steps=steps)
            return
        finished = int(ended.sum())
        _progress(
            env_steps=steps,
            episodes=finished,
            episode_return=float(self.returns[ended].mean()),
            episode_length=float(self.lengths[ended].mean()),
        )
        self.returns[ended] = 0
        self.lengths[ended] = 0


def rows_of(env: Any, resets_cost_a_step: bool) -> _Rows:
    """The rows of a vector env, made at its first step."""
    rows = _rows.get(id(env))
    if rows is None or len(rows.returns) != env.num_envs:
        rows = _rows[id(env)] = _Rows(env.num_envs, resets_cost_a_step)
    return rows


def forget_rows(env: Any, result: Any) -> None:
    """After a reset of all rows."""
    _rows.pop(id(env), None)
