"""One thread that simulates elsewhere, learns, and writes a log: everything takes turns."""

from __future__ import annotations

from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "simulate=2x": {"simulate": 0.5},
    "learn=2x": {"learn": 0.5},
    "write_log=4x": {"write_log": 0.25},
}
LIMIT = "simulate"


def main() -> None:
    p = parameters(simulate=1, learn=1, write_log=1)

    def cycle() -> float:
        with hotloop.profile("simulate"):
            nap(5 * p["simulate"])
        with hotloop.profile("learn"):
            native(3 * p["learn"])
        with hotloop.profile("write_log"):
            python(1 * p["write_log"])
        hotloop.progress(env_steps=1, updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
