"""Agents with tools: each thread asks a remote model, parses the answer, runs a native check and files
the episode."""

from __future__ import annotations

import random
import threading

from parts import meter, nap, one_call, parameters, python

import hotloop

WHAT_IFS = {
    "parse=2x": {"parse": 0.5},
    "parse=8x": {"parse": 0.125},
    "generate=2x": {"generate": 0.5},
    "verify=2x": {"verify": 0.5},
}
LIMIT = "parse"
GROUP = 4


def main() -> None:
    p = parameters(parse=1, generate=1, verify=1, train=1, workers=16)
    changed = threading.Condition()
    episodes: list[float] = []

    def agent(number: int) -> None:
        source = random.Random(100 * p["seed"] + number)
        while True:
            with hotloop.profile("generate"):
                nap(source.uniform(12, 20) * p["generate"])
            with hotloop.profile("parse"):
                python(3.5 * p["parse"])
            with hotloop.profile("verify"):
                one_call(0.5 * p["verify"])
            with changed:
                while len(episodes) >= 4 * GROUP:
                    changed.wait()
                episodes.append(source.random())
                changed.notify_all()

    for i in range(int(p["workers"])):
        threading.Thread(target=agent, args=(i,), daemon=True).start()

    def cycle() -> float:
        with changed:
            while len(episodes) < GROUP:
                changed.wait()
            del episodes[:GROUP]
            changed.notify_all()
        with hotloop.profile("train"):
            one_call(3 * p["train"])
        hotloop.progress(updates=GROUP)
        return GROUP

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
