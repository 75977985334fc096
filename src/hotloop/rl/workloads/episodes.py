"""Training that is counted in episodes: a progress line, and whether the figures make sense."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

from hotloop._util.units import count, duration
from hotloop.rl.train.runs import progress_words
from hotloop.rl.workloads.outcome import Note

EXPECTED_STEPS = (50, 200)  # for each episode of an agent that plays


def sanity_figures(env_steps: int, episodes: int) -> str:
    """Env steps, episodes and steps per episode, beside what is expected of the last."""
    least, most = EXPECTED_STEPS
    said = f"{env_steps:,} env steps in {episodes:,} episodes"
    if not episodes:
        return f"{said}: no episode ended, so there is no number of steps per episode"
    each = env_steps / episodes
    word = "below" if each < least else "above" if each > most else "within"
    return f"{said}: {each:.0f} steps per episode, {word} the expected {least} to {most}"


class EpisodeLine:
    """Episodes, steps per second, time left and what takes longest, on stderr.

    One line redrawn on a terminal, a line now and then elsewhere. `total` None: unknown, no time left.
    """

    def __init__(
        self,
        total: int | None,
        *,
        quiet: bool = False,
        note: Note | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._total, self._quiet, self._note, self._clock = total, quiet, note, clock
        self._stream = sys.stderr if stream is None else stream
        self._redraw = self._stream.isatty()
        self._every_s = 0.2 if self._redraw else 10.0
        self._began_s = clock()
        self._due_s = self._began_s + self._every_s
        self._steps = self._episodes = 0
        self._drawn = False

    def add(self, env_steps: int, episodes: int, mean_return: float | None) -> None:
        """Count what was done since the last call; draw when it is time to."""
        self._steps += env_steps
        self._episodes += episodes
        now = self._clock()
        if self._quiet or now < self._due_s:
            return
        self._due_s = now + self._every_s
        passed_s = max(now - self._began_s, 1e-9)
        words = [count(self._episodes), "episodes ", f"{count(self._steps / passed_s)} steps/s"]
        if self._total is not None:
            words[0] += f" / {count(self._total)}"
            if self._episodes:
                left = max(self._total - self._episodes, 0) * passed_s / self._episodes
                words.append(f" {duration(1e9 * left)} left")
        note = self._note() if self._note is not None else ""
        columns = shutil.get_terminal_size().columns if self._redraw else None
        line = progress_words(" ".join(words), mean_return, note, columns)
        self._stream.write(f"\r\033[K{line}" if self._redraw else f"{line}\n")
        self._stream.flush()
        self._drawn = self._redraw

    def close(self) -> None:
        """End the line, so that what follows starts on its own."""
        if self._drawn:
            self._stream.write("\n")
            self._stream.flush()
