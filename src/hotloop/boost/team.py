"""Threads for kernels that split their work (see `team_kernels`)."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

# Multiplications of a gradient step from which a second thread pays: about 1 ms.
ENOUGH = 1e8


def threads_for(multiplications: float, most: int) -> int:
    """How many threads to split a gradient step over: no more than torch may use, and 1 if it is short."""
    if multiplications < ENOUGH or most < 2:
        return 1
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, min(most, 2, cores, torch.get_num_threads()))


class Team:
    """This thread and helpers, which run a kernel together."""

    def __init__(self, parts: int):
        self.parts = parts
        self._counter = np.zeros(1, dtype=np.int64)
        self._helpers: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def run(self, kernel: Callable[..., None], *arguments: Any) -> None:
        """Call the kernel once for each part, at the same time, and wait for all of them."""
        if self.parts == 1:
            kernel(*arguments, self._counter, 0, 1)
            return
        if self._helpers is None or self._process != os.getpid():  # threads do not survive a fork
            self._helpers, self._process = ThreadPoolExecutor(self.parts - 1, "hotloop-boost"), os.getpid()
            self._counter[0] = 0
            weakref.finalize(self, self._helpers.shutdown, wait=False)
        others = [
            self._helpers.submit(kernel, *arguments, self._counter, part, self.parts)
            for part in range(1, self.parts)
        ]
        kernel(*arguments, self._counter, 0, self.parts)
        for other in others:
            other.result()

    def close(self) -> None:
        """End the helpers; the next `run` starts new ones."""
        if self._helpers is not None:
            self._helpers.shutdown()
            self._helpers = None
