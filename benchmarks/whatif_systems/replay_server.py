"""A process holds the replay buffer; actors add to it and the learner samples from it, each over a pipe."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection, wait

import numpy as np
from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "learn=2x": {"learn": 0.5},
    "sample=2x": {"sample": 0.5},
    "rollout=2x": {"rollout": 0.5},
}
LIMIT = "learn"
SIZE = 4096


def act(server: Connection, scale: float) -> None:
    while True:
        with hotloop.profile("rollout"):
            nap(11 * scale)
            python(0.5 * scale)
        server.send(("add", np.zeros((8, 16), np.float32)))


def hold(clients: list[Connection], scale: float) -> None:
    buffer = np.zeros((SIZE, 16), np.float32)
    priorities = np.ones(SIZE)
    source = np.random.default_rng(0)
    place = 0
    while True:
        for client in wait(clients):
            assert isinstance(client, Connection)
            what, value = client.recv()
            if what == "add":
                rows = np.arange(place, place + len(value)) % SIZE
                buffer[rows] = value
                priorities[rows] = priorities.max()
                place += len(value)
            elif what == "sample":
                with hotloop.profile("sample"):
                    python(2.2 * scale)
                    chosen = source.integers(0, SIZE, value)
                client.send((chosen, buffer[chosen]))
            else:
                chosen, errors = value
                priorities[chosen] = errors


def main() -> None:
    p = parameters(rollout=1, sample=1, learn=1, workers=2)
    context = multiprocessing.get_context("fork")
    server, theirs = context.Pipe()
    clients = [theirs]
    for _ in range(int(p["workers"])):
        actor, end = context.Pipe()
        clients.append(end)
        context.Process(target=act, args=(actor, p["rollout"]), daemon=True).start()
    context.Process(target=hold, args=(clients, p["sample"]), daemon=True).start()

    def cycle() -> float:
        server.send(("sample", 128))
        chosen, _ = server.recv()
        with hotloop.profile("learn"):
            native(4 * p["learn"])
        server.send(("priorities", (chosen, np.ones(len(chosen)))))
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
