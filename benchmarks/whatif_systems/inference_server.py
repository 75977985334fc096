"""Three actors ask one server for actions, each over a pipe; the server answers one at a time."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection, wait
from typing import Any

from parts import meter, nap, parameters, python

import hotloop

WHAT_IFS = {
    "infer=2x": {"infer": 0.5},
    "simulate=2x": {"simulate": 0.5},
    "infer=1.25x": {"infer": 0.8},
}
LIMIT = "infer"


def act(server: Connection, scale: float) -> None:
    while True:
        with hotloop.profile("simulate"):
            nap(5 * scale)
        server.send(bytes(400))
        server.recv()


def main() -> None:
    p = parameters(infer=1, simulate=1)
    context = multiprocessing.get_context("fork")
    actors: list[Any] = []
    for _ in range(3):
        mine, theirs = context.Pipe()
        context.Process(target=act, args=(theirs, p["simulate"]), daemon=True).start()
        actors.append(mine)

    def cycle() -> float:
        ready: list[Any] = wait(actors)
        for actor in ready:
            actor.recv()
            with hotloop.profile("infer"):
                python(3.5 * p["infer"])
            actor.send(1)
        hotloop.progress(env_steps=len(ready))
        return len(ready)

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
