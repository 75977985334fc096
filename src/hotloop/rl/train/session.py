"""What every trainer needs around its loop: stop requests, a progress line, metrics, a guard against NaN.

These are leaves that a trainer calls; none of them owns the loop.
"""

from __future__ import annotations

import math
import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self, TextIO

import numpy as np
from numpy.typing import NDArray

from hotloop import profile
from hotloop._util.errors import HotloopError
from hotloop._util.units import count, duration

_log = profile("log")
_evaluate = profile("evaluate")


class TrainingDiverged(HotloopError):
    """A loss or weight is not a number any more."""


class StopRequests:
    """While entered, SIGTERM and Ctrl-C ask the trainer to stop at its next safe point.

    A second Ctrl-C interrupts at once. Only the main thread can listen; elsewhere nothing is installed.
    """

    def __init__(self) -> None:
        self.by: str | None = None
        """The signal's name once one came."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._asked)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _asked(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.by is not None:
            raise KeyboardInterrupt
        self.by = signal.Signals(number).name


def progress_words(head: str, mean_return: float | None, note: str, columns: int | None) -> str:
    """A progress line; where it does not fit into so many columns, the return is left out first."""
    said = [head, "" if mean_return is None else f"return {mean_return:.1f}", note]
    line = "  ".join(part for part in said if part)
    if columns is not None and len(line) >= columns:
        line = "  ".join(part for part in (head, note) if part)[: columns - 1]
    return line


class ProgressLine:
    """Steps per second, time left and a note on stderr: redrawn on a terminal, else a line now and then."""

    def __init__(
        self,
        total_steps: int,
        done_steps: int = 0,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.perf_counter,
        quiet: bool = False,
    ):
        self._stream = sys.stderr if stream is None else stream
        self._redraw = self._stream.isatty()
        self._every_s = 0.2 if self._redraw else 10.0
        self._clock = clock
        self._quiet = quiet
        self._total, self._began_steps = total_steps, done_steps
        self._began_s = self._due_s = clock()
        self._due_s += self._every_s
        self._drawn = False

    def update(self, steps: int, mean_return: float | None, note: str = "") -> None:
        """Say where the run is, if it is time to."""
        now = self._clock()
        if self._quiet or now < self._due_s:
            return
        self._due_s = now + self._every_s
        rate = (steps - self._began_steps) / max(now - self._began_s, 1e-9)
        left = duration(max(self._total - steps, 0) / rate * 1e9) if rate > 0 else "-"
        head = f"{count(steps)} / {count(self._total)} steps  {count(rate)} steps/s  {left} left"
        columns = shutil.get_terminal_size().columns if self._redraw else None
        words = progress_words(head, mean_return, note, columns)
        self._stream.write(f"\r\033[K{words}" if self._redraw else f"{words}\n")
        self._stream.flush()
        self._drawn = self._redraw

    def close(self) -> None:
        """End the line, so that what follows starts on its own."""
        if self._drawn:
            self._stream.write("\n")
            self._stream.flush()


class Metrics:
    """Scalars for TensorBoard, on request; without a folder nothing is written."""

    def __init__(self, folder: Path | None):
        self._writer: Any = None
        if folder is not None:
            try:
                from torch.utils.tensorboard.writer import SummaryWriter
            except ImportError as missing:
                raise HotloopError(
                    f"writing metrics to {folder} needs the package 'tensorboard' ({missing}); "
                    "install it with: pip install tensorboard, or leave the metrics folder out."
                ) from missing
            self._writer = SummaryWriter(str(folder))

    def write(self, steps: int, values: Mapping[str, float | None]) -> None:
        """Write what is known at this number of env steps; None is left out."""
        if self._writer is not None:
            with _log:
                for name, value in values.items():
                    if value is not None:
                        self._writer.add_scalar(name, value, steps)

    def close(self) -> None:
        """Flush and close the files."""
        if self._writer is not None:
            self._writer.close()


class RecentEpisodes:
    """Returns and lengths of the last episodes, and how many there were."""

    def __init__(self, keep: int = 100):
        self.returns: deque[float] = deque(maxlen=keep)
        self.lengths: deque[int] = deque(maxlen=keep)
        self.finished = 0

    def add(self, returns: Iterable[float], lengths: Iterable[int]) -> None:
        """Episodes that have ended, in order."""
        before = list(returns)
        self.returns.extend(before)
        self.lengths.extend(lengths)
        self.finished += len(before)

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last episodes; None before the first has ended."""
        return sum(self.returns) / len(self.returns) if self.returns else None


def check_finite(values: Mapping[str, float], steps: int, checkpoint: Path | None) -> None:
    """Raise TrainingDiverged when one of these is NaN or infinite; says what is kept."""
    wrong = [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
    if wrong:
        kept = (
            f"the last good checkpoint is {checkpoint}"
            if checkpoint is not None and checkpoint.is_file()
            else "no checkpoint was kept, because none had been written"
        )
        raise TrainingDiverged(
            f"training stopped at {steps:,} env steps: {', '.join(wrong)}; {kept}. "
            "Try a smaller learning rate or larger max_grad_norm clipping, or look at the rewards."
        )


def evaluate(
    act: Callable[[NDArray[Any], NDArray[np.bool_] | None], NDArray[Any]],
    envs: Any,
    episodes: int,
    seed: int | None,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns and lengths of `episodes` whole episodes of vector envs, actions by `act(observations, masks)`.

    Each env plays its share from a fresh reset, so that short episodes are not counted more often than
    long ones. Works with every autoreset mode but DISABLED; the envs stay the caller's.
    """
    rows = int(envs.num_envs)
    share = np.full(rows, episodes // rows)
    share[: episodes % rows] += 1
    returns: list[float] = []
    lengths: list[int] = []
    with _evaluate:
        observations, infos = envs.reset(seed=seed)
        running, length = np.zeros(rows), np.zeros(rows, dtype=np.int64)
        over = np.zeros(rows, dtype=np.bool_)
        next_step = getattr(envs.metadata.get("autoreset_mode"), "value", "NextStep") == "NextStep"
        while share.any():
            observations, rewards, terminated, truncated, infos = envs.step(
                act(observations, infos.get("action_mask"))
            )
            counted = ~over
            running += rewards * counted
            length += counted
            ended = (terminated | truncated) & counted
            for row in np.flatnonzero(ended):
                if share[row] > 0:
                    share[row] -= 1
                    returns.append(float(running[row]))
                    lengths.append(int(length[row]))
                running[row], length[row] = 0.0, 0
            over = ended.copy() if next_step else over
    return np.array(returns), np.array(lengths, dtype=np.int64)
