"""A training loop hands its metrics to a logger thread; the queue of 64 is full because the disk is slow."""

from __future__ import annotations

import json
import queue
import tempfile
import threading

from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "write_log=1.25x": {"write_log": 0.8},
    "write_log=4x": {"write_log": 0.25},
    "learn=2x": {"learn": 0.5},
    "policy=2x": {"policy": 0.5},
}
LIMIT = "write_log"


def main() -> None:
    p = parameters(policy=1, learn=1, write_log=1, depth=64)
    records: queue.Queue[dict[str, float]] = queue.Queue(int(p["depth"]))

    def log() -> None:
        with tempfile.TemporaryFile("w") as file:
            while True:
                record = records.get()
                with hotloop.profile("write_log"):
                    file.write(json.dumps(record) + "\n")
                    nap(2.5 * p["write_log"])

    threading.Thread(target=log, daemon=True).start()
    step = 0

    def cycle() -> float:
        nonlocal step
        with hotloop.profile("policy"):
            python(0.6 * p["policy"])
        with hotloop.profile("learn"):
            native(1.6 * p["learn"])
        step += 1
        records.put({"step": step, "loss": 1 / step})
        records.put({"step": step, "entropy": 2 / step})
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
