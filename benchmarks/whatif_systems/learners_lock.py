"""Three learner processes compute gradients on their own and apply them to shared weights under one lock."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "apply=1.25x": {"apply": 0.8},
    "apply=4x": {"apply": 0.25},
    "gradient=2x": {"gradient": 0.5},
    "workers=6": {"workers": 6},
}
LIMIT = "apply"


def learn(shared: Any, lock: Any, losses: Any, p: dict[str, float]) -> None:
    weights = np.frombuffer(shared, np.float32)
    while True:
        with hotloop.profile("sample"):
            nap(4 * p["sample"])
        with hotloop.profile("gradient"):
            native(1.5 * p["gradient"])
            gradient = weights * 0.01
        with lock, hotloop.profile("apply"):
            native(1.5 * p["apply"])
            nap(3.5 * p["apply"])  # the copy to the inference servers
            weights -= gradient
        losses.put(float(gradient.mean()))


def main() -> None:
    p = parameters(sample=1, gradient=1, apply=1, log=1, workers=3)
    context = multiprocessing.get_context("fork")
    shared = context.RawArray("f", 1_000)
    lock, losses = context.Lock(), context.SimpleQueue()
    for _ in range(int(p["workers"])):
        context.Process(target=learn, args=(shared, lock, losses, p), daemon=True).start()

    def cycle() -> float:
        losses.get()
        with hotloop.profile("log"):
            python(0.3 * p["log"])
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
