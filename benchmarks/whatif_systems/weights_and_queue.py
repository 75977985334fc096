"""Actors fetch new weights over a pipe every fourth batch, and send their batches through a queue."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from multiprocessing.connection import Connection
from typing import Any

from parts import meter, nap, native, parameters

import hotloop

WHAT_IFS = {
    "rollout=2x": {"rollout": 0.5},
    "learn=2x": {"learn": 0.5},
    "rollout=1.25x": {"rollout": 0.8},
}
LIMIT = "rollout"


def act(batches: Any, weights: Connection, scale: float) -> None:
    while True:
        weights.send(1)
        weights.recv()
        for _ in range(4):
            with hotloop.profile("rollout"):
                nap(8 * scale)
            batches.put(bytes(8000))


def main() -> None:
    p = parameters(rollout=1, learn=1)
    context = multiprocessing.get_context("fork")
    batches = context.Queue(4)
    servers = []
    for _ in range(2):
        mine, theirs = context.Pipe()
        context.Process(target=act, args=(batches, theirs, p["rollout"]), daemon=True).start()
        servers.append(mine)

    def serve(actor: Any) -> None:
        with contextlib.suppress(EOFError, ConnectionError):  # at the end
            while True:
                actor.recv()
                with hotloop.profile("weights_sync"):
                    nap(1)
                actor.send(bytes(20_000))

    for actor in servers:
        threading.Thread(target=serve, args=(actor,), daemon=True).start()

    def cycle() -> float:
        batches.get()
        with hotloop.profile("learn"):
            native(2.5 * p["learn"])
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
