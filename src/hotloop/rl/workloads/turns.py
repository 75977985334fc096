"""Trainings that take turns inside one process: what slows the machine for seconds slows all of them alike.

Each training runs in its own thread, and only one of them at a time. A turn lasts from one report of work to
another, so it consists of whole steps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Report = Callable[..., None]  # takes the work done since the last report, in the terms of `hotloop.progress`
IDLE_S = 600.0  # a training that reports nothing for so long hangs


@dataclass
class Turn:
    """The work of one turn, and the time of the thread that did it."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    total_length: float = 0.0  # of the episodes


def any_turn(turn: Turn) -> bool:
    """A turn that is over once its time has passed."""
    return True


class _Closed(BaseException):
    """Ends a training that waits for its turn."""


class TakesTurns:
    """One training; `train` gets the function to which it reports its work, and need not end."""

    def __init__(self, train: Callable[[Report], None]) -> None:
        self._train = train
        self._turn = Turn()
        self._least_s = 0.0
        self._is_over: Callable[[Turn], bool] = any_turn
        self._began_s = (0.0, 0.0)  # wall and CPU time
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._is_closed = False

    def turn(self, least_s: float, is_over: Callable[[Turn], bool] = any_turn) -> Turn:
        """Train for `least_s` seconds and until `is_over`; raises what the training raised."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="training", daemon=True)
            self._thread.start()
        self._turn, self._least_s, self._is_over = Turn(), least_s, is_over
        self._go.release()
        if not self._stopped.acquire(timeout=IDLE_S):
            raise TimeoutError(f"the training reported nothing for {IDLE_S:.0f} s")
        if self._error is not None:
            raise self._error
        return self._turn

    def close(self) -> None:
        """End the training."""
        self._is_closed = True
        self._go.release()
        if self._thread is not None and self._error is None:
            self._thread.join(IDLE_S)

    def _run(self) -> None:
        try:
            self._wait()
            self._train(self._report)
            self._error = RuntimeError("the training ended before its last turn")
        except _Closed:
            return
        except BaseException as error:  # raised again in the thread that gives the turns
            self._error = error
        self._stopped.release()

    def _wait(self) -> None:
        self._go.acquire()
        if self._is_closed:
            raise _Closed
        self._began_s = time.perf_counter(), time.thread_time()

    def _report(
        self,
        env_steps: int = 0,
        updates: int = 0,
        episodes: int = 0,
        episode_length: float | None = None,
        **others: Any,
    ) -> None:
        turn = self._turn
        turn.env_steps += env_steps
        turn.updates += updates
        turn.episodes += episodes
        turn.total_length += (episode_length or 0.0) * episodes
        wall_s, cpu_s = time.perf_counter() - self._began_s[0], time.thread_time() - self._began_s[1]
        if wall_s >= self._least_s and turn.env_steps and self._is_over(turn):
            turn.wall_s, turn.cpu_s = wall_s, cpu_s
            self._stopped.release()
            self._wait()
