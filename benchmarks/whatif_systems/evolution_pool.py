"""Evolution strategies: a ProcessPoolExecutor of four evaluates eight candidates on two cores."""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import threading
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "evaluate=2x": {"evaluate": 0.5},
    "archive=2x": {"archive": 0.5},
    "update=2x": {"update": 0.5},
    "workers=8": {"workers": 8},
}
LIMIT = "cpu"
POPULATION = 8


def evaluate(candidate: np.ndarray, scale: float) -> float:
    with hotloop.profile("evaluate"):
        native(3.5 * scale)
        python(0.5 * scale)
    return float(candidate.sum())


def main() -> None:
    p = parameters(evaluate=1, update=1, archive=1, workers=4)
    generations: queue.Queue[np.ndarray] = queue.Queue(2)

    def archive() -> None:
        while True:
            generations.get()
            with hotloop.profile("archive"):
                nap(8 * p["archive"])

    mean = np.zeros(128)
    source = np.random.default_rng(int(p["seed"]))
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(int(p["workers"]), mp_context=context) as pool:
        list(
            pool.map(evaluate, [mean] * POPULATION, [0.1] * POPULATION)
        )  # all processes start before the thread
        threading.Thread(target=archive, daemon=True).start()

        def cycle() -> float:
            nonlocal mean
            noise = source.standard_normal((POPULATION, len(mean)))
            fitness = np.array(list(pool.map(evaluate, mean + noise, [p["evaluate"]] * POPULATION)))
            with hotloop.profile("update"):
                python(0.8 * p["update"])
                mean = mean + 0.01 * (fitness - fitness.mean()) @ noise / (
                    POPULATION * (fitness.std() + 1e-8)
                )
            with contextlib.suppress(queue.Full):
                generations.put_nowait(mean)
            hotloop.progress(updates=1)
            return 1

        meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
