"""Actors leave rollouts as files in a folder for the learner; who finds nothing to do sleeps a little."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time

import numpy as np
from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "rollout=2x": {"rollout": 0.5},
    "learn=1.25x": {"learn": 0.8},
    "learn=4x": {"learn": 0.25},  # then the actors are the limit
    "workers=4": {"workers": 4},
}
LIMIT = "learn"


def ready(folder: str) -> list[str]:
    """Finished files, oldest first."""
    return sorted(name for name in os.listdir(folder) if name.endswith(".npy"))


def act(number: int, folder: str, p: dict[str, float]) -> None:
    count = 0
    while True:
        with hotloop.profile("rollout"):
            nap(8 * p["rollout"])
            python(0.8 * p["rollout"])
        while len(ready(folder)) >= p["depth"]:
            time.sleep(0.002)
        count += 1
        name = os.path.join(folder, f"{count:08d}-{number}")
        with open(name + ".part", "wb") as file:
            np.save(file, np.zeros((64, 32), np.float32))
        os.rename(name + ".part", name + ".npy")


def main() -> None:
    p = parameters(rollout=1, learn=1, workers=2, depth=6)
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        actors = []
        for number in range(int(p["workers"])):
            actors.append(context.Process(target=act, args=(number, folder, p), daemon=True))
            actors[-1].start()

        def cycle() -> float:
            names = ready(folder)
            while not names:
                time.sleep(0.001)
                names = ready(folder)
            path = os.path.join(folder, names[0])
            np.load(path)
            os.unlink(path)
            with hotloop.profile("learn"):
                native(6.5 * p["learn"])
            hotloop.progress(updates=1)
            return 1

        meter(p["seconds"], cycle)
        for actor in actors:
            actor.terminate()
            actor.join()


if __name__ == "__main__":
    main()
