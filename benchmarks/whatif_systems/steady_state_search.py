"""Evolution without generations: when one of three processes has a result, it gets a new candidate."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

import numpy as np
from parts import meter, native, parameters, python

import hotloop

WHAT_IFS = {
    "evaluate=2x": {"evaluate": 0.5},
    "evaluate=1.25x": {"evaluate": 0.8},
    "breed=2x": {"breed": 0.5},
    "workers=6": {"workers": 6},
}
LIMIT = "cpu"


def evaluate(candidate: np.ndarray, scale: float) -> tuple[np.ndarray, float]:
    with hotloop.profile("evaluate"):
        native(8 * scale)
        python(1 * scale)
    return candidate, float(candidate.sum())


def main() -> None:
    p = parameters(evaluate=1, breed=1, workers=3)
    source = np.random.default_rng(int(p["seed"]))
    population: list[tuple[np.ndarray, float]] = [(np.zeros(128), 0.0)]
    running: set[Future[tuple[np.ndarray, float]]] = set()
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(int(p["workers"]), mp_context=context) as pool:

        def breed() -> np.ndarray:
            with hotloop.profile("breed"):
                python(1.2 * p["breed"])
                parent = max(population, key=lambda one: one[1])[0]
                return parent + 0.01 * source.standard_normal(len(parent))

        for _ in range(2 * int(p["workers"])):
            running.add(pool.submit(evaluate, breed(), p["evaluate"]))

        def cycle() -> float:
            nonlocal running, population
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for one in done:
                population = [*population[-15:], one.result()]
                running.add(pool.submit(evaluate, breed(), p["evaluate"]))
                hotloop.progress(updates=1)
            return len(done)

        meter(p["seconds"], cycle)
        for one in running:
            one.cancel()


if __name__ == "__main__":
    main()
