"""A3C with threads: each plays in Python, computes a gradient in native code and applies it under a lock."""

from __future__ import annotations

import queue
import threading

import numpy as np
from parts import meter, one_call, parameters, python

import hotloop

WHAT_IFS = {
    "rollout=2x": {"rollout": 0.5},
    "gradient=2x": {"gradient": 0.5},
    "apply=2x": {"apply": 0.5},
    "workers=6": {"workers": 6},
}
LIMIT = "gil"


def main() -> None:
    p = parameters(rollout=1, gradient=1, apply=1, workers=3)
    weights = np.zeros(2_000)
    lock = threading.Lock()
    losses: queue.Queue[float] = queue.Queue()

    def work() -> None:
        while True:
            local = weights.copy()
            with hotloop.profile("rollout"):
                python(2.6 * p["rollout"])
            with hotloop.profile("gradient"):
                one_call(1.2 * p["gradient"])
            with lock, hotloop.profile("apply"):
                python(0.4 * p["apply"])
                weights[:] += 0.001
            hotloop.progress(updates=1)
            losses.put(float(local[0]))

    for _ in range(int(p["workers"])):
        threading.Thread(target=work, daemon=True).start()

    def cycle() -> float:
        losses.get()
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
