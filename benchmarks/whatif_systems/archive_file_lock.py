"""Actors append their episodes to one archive on a slow disk, one at a time, under an flock; the
learner follows."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import random
import tempfile
from typing import Any

from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "archive=1.25x": {"archive": 0.8},
    "archive=4x": {"archive": 0.25},
    "simulate=2x": {"simulate": 0.5},
    "train=2x": {"train": 0.5},
}
LIMIT = "archive"


def actor(number: int, path: str, indices: Any, p: dict[str, float]) -> None:
    source = random.Random(100 * p["seed"] + number)
    with open(path, "ab", buffering=0) as archive:
        while True:
            with hotloop.profile("simulate"):
                nap(source.uniform(8, 14) * p["simulate"])
                python(0.5 * p["simulate"])
            fcntl.flock(archive, fcntl.LOCK_EX)
            with hotloop.profile("archive"):
                nap(source.uniform(3, 4.5) * p["archive"])
                archive.write(bytes(1000))
                offset = archive.tell()
            fcntl.flock(archive, fcntl.LOCK_UN)
            indices.put(offset)


def main() -> None:
    p = parameters(archive=1, simulate=1, train=1, workers=6)
    context = multiprocessing.get_context("fork")
    indices = context.Queue(8)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "archive")
        actors = [
            context.Process(target=actor, args=(i, path, indices, p), daemon=True)
            for i in range(int(p["workers"]))
        ]
        for process in actors:
            process.start()

        def cycle() -> float:
            indices.get()
            with hotloop.profile("train"):
                native(1.2 * p["train"])
            hotloop.progress(updates=1)
            return 1

        meter(p["seconds"], cycle)
        for process in actors:
            process.terminate()
        for process in actors:
            process.join()


if __name__ == "__main__":
    main()
