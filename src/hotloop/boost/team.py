"""Threads for kernels that split their work (see `team_kernels`)."""

from __future__ import annotations

import os
import statistics
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hotloop.boost import team_kernels as kernels

# Multiplications of a gradient step from which a second thread pays: about 1 ms.
ENOUGH = 1e8

# The two numbers of threads are compared in blocks of rounds, in turn. The first round of a block does not
# count: a thread that joins again has to wake up and to read the weights into its cache.
BLOCK, BLOCKS = 6, 4
COMPARED, BETWEEN = BLOCK * BLOCKS, 1_000  # rounds of a comparison, and until the next one
# Rounds before the first one: a new thread may share the core of the thread that wakes it for some 20 rounds.
FIRST = 100


def threads_for(multiplications: float, most: int) -> int:
    """How many threads to split a gradient step over: no more than torch may use, and 1 if it is short."""
    if multiplications < ENOUGH or most < 2:
        return 1
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, min(most, 2, cores, torch.get_num_threads()))


class Team:
    """This thread and helpers, which run a kernel together, or this thread alone when that is faster.

    Helpers sleep inside the kernel between two rounds, without the GIL. The number of threads changes no
    result, so it may depend on the time that rounds take: when other programs use the cores, threads that
    wait for each other are slower than one.
    """

    def __init__(self, parts: int):
        self.parts = parts
        self.is_adaptive = True
        self._words = kernels.make_words()
        self._helpers: list[threading.Thread] = []
        self._arguments: tuple[Any, ...] = ()
        self._process = os.getpid()
        self._chosen, self._round = parts, BETWEEN - FIRST
        self._took: dict[int, list[int]] = {1: [], parts: []}

    def run(self, kernel: Callable[..., None], found: NDArray[np.float64], *arguments: Any) -> None:
        """Call `kernel(*arguments, found, words, part, parts)` for each part, at the same time.

        Returns when all parts are done. Only part 0 may write to `found`. The arguments must be the same
        objects every time.
        """
        parts = self._next_parts()
        if parts == 1:
            started_ns = time.perf_counter_ns()
            kernel(*arguments, found, self._words, 0, 1)
        else:
            self._start(kernel, found, arguments)
            started_ns = time.perf_counter_ns()
            kernel(*arguments, found, self._words, 0, parts)
        if self.parts > 1 and 1 < self._round <= COMPARED and self._round % BLOCK != 1:
            self._took[parts].append(time.perf_counter_ns() - started_ns)

    def _next_parts(self) -> int:
        if self.parts == 1 or not self.is_adaptive:
            return self.parts
        self._round += 1
        if self._round <= COMPARED:
            return self.parts if (self._round - 1) // BLOCK % 2 == 0 else 1
        if self._round == COMPARED + 1:
            self._chosen = min(self._took, key=lambda parts: statistics.median(self._took[parts]))
        elif self._round > BETWEEN:
            self._round = 0
            for took in self._took.values():
                took.clear()
        return self._chosen

    def _start(self, kernel: Callable[..., None], found: NDArray[np.float64], arguments: Any) -> None:
        """Start the helpers unless they wait for the next round already."""
        if self._process != os.getpid():  # threads do not survive a fork
            self._helpers, self._words, self._process = [], kernels.make_words(), os.getpid()
        if self._helpers and not all(a is b for a, b in zip(arguments, self._arguments, strict=True)):
            self.close()
        if not self._helpers:
            self._arguments = arguments
            for part in range(1, self.parts):
                words = (*arguments, np.zeros_like(found), self._words, part, self.parts)
                thread = threading.Thread(target=kernel, args=words, name="hotloop-boost", daemon=True)
                thread.start()
                self._helpers.append(thread)
            weakref.finalize(self, _stop, self._words, self._process).atexit = False

    def close(self) -> None:
        """End the helpers; the next `run` starts new ones."""
        if self._helpers:
            _stop(self._words, self._process)
            for thread in self._helpers if self._process == os.getpid() else ():
                thread.join()
        self._helpers, self._words = [], kernels.make_words()


def _stop(words: kernels.Words, process: int) -> None:
    """Let helpers return, unless this is a fork, where they do not exist."""
    if process == os.getpid():
        kernels.stop(words)
