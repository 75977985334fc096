"""What does the size of an env worker's answer cost?

A child process answers with an observation and an `info` that holds an array; median and least wall time of a
round trip, and CPU time of both processes, for each size of that array.
Run: python benchmarks/message_size.py
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection

import numpy as np

SIZES = (8, 16 << 10, 64 << 10, 200 << 10, 1 << 20)
ROUNDS, WARM_UP = 400, 20


def answer(pipe: Connection, size: int) -> None:
    info = {"array": np.zeros(size // 8)}
    while pipe.recv():
        pipe.send((np.zeros(7, np.float32), 1.0, False, info))
    pipe.send(time.process_time())


def main() -> None:
    print("| array | round trip, median | least | CPU time, asking | answering |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for size in SIZES:
        pipe, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=answer, args=(theirs, size))
        child.start()
        theirs.close()
        times = []
        for number in range(WARM_UP + ROUNDS):
            if number == WARM_UP:
                cpu = time.process_time()
            begin = time.perf_counter()
            pipe.send(True)
            pipe.recv()
            times.append(1e6 * (time.perf_counter() - begin))
        asking = 1e6 * (time.process_time() - cpu) / ROUNDS
        pipe.send(False)
        answering = 1e6 * pipe.recv() / (WARM_UP + ROUNDS)
        child.join()
        times = times[WARM_UP:]
        print(
            f"| {size:,} bytes | {statistics.median(times):.0f} us | {min(times):.0f} us "
            f"| {asking:.0f} us | {answering:.0f} us |"
        )


if __name__ == "__main__":
    main()
