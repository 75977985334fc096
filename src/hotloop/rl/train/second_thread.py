"""A second thread for a learner: it takes parts of the work that the first thread needs later.

    with SecondThread() as second:
        parts = second.start(calls)    # functions without arguments; none needs another one's result
        values = training_pass()       # meanwhile
        parts.finish()                 # the first thread takes what is left, and waits for the last part

Torch releases the GIL in its operations, so both threads compute. Where the second thread gets no core, the
first does nearly all parts itself and loses nothing: a fixed division of the work would make it wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import torch

Part = Callable[[], None]


class SecondThread:
    """One thread that lives until `close`, with as many of torch's intra-op threads as its creator has."""

    def __init__(self) -> None:
        # OpenMP's number of threads is each thread's own.
        self._pool = ThreadPoolExecutor(
            1, "second_thread", initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),)
        )

    def start(self, parts: Iterable[Part]) -> SharedParts:
        """Begin with the parts, in order; call `finish` on what this returns."""
        return SharedParts(parts, self._pool)

    def close(self) -> None:
        self._pool.shutdown()

    def __enter__(self) -> SecondThread:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SharedParts:
    """Parts that two threads take in turn, each part once."""

    def __init__(self, parts: Iterable[Part], pool: ThreadPoolExecutor):
        self._waiting = deque(parts)
        self._other: Future[None] = pool.submit(self._run)

    def finish(self) -> None:
        """Do the parts that are left, and return when all are done; raises what a part has raised."""
        self._run()
        if not self._other.cancel():  # it has begun, so it may be busy with the last part
            self._other.result()

    def _run(self) -> None:
        with torch.no_grad():  # which is each thread's own, too
            while True:
                try:
                    part = self._waiting.popleft()
                except IndexError:
                    return
                part()
