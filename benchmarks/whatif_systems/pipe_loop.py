"""Three processes in a loop of pipes: simulate, encode, learn, and back go the weights."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

import numpy as np
from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "encode=1.25x": {"encode": 0.8},
    "encode=4x": {"encode": 0.25},
    "simulate=2x": {"simulate": 0.5},
    "learn=2x": {"learn": 0.5},
}
LIMIT = "encode"
UNDER_WAY = 2


def simulate(weights: Connection, frames: Connection, scale: float) -> None:
    while True:
        weights.recv()
        with hotloop.profile("simulate"):
            nap(2.6 * scale)
            python(0.4 * scale)
        frames.send(np.zeros((4, 84, 84), np.uint8))


def encode(frames: Connection, codes: Connection, scale: float) -> None:
    while True:
        batch = frames.recv()
        with hotloop.profile("encode"):
            native(8 * scale)
        codes.send(batch[:, ::4, ::4].astype(np.float32))


def main() -> None:
    p = parameters(simulate=1, encode=1, learn=1)
    context = multiprocessing.get_context("fork")
    weights_in, weights_out = context.Pipe(duplex=False)
    frames_in, frames_out = context.Pipe(duplex=False)
    codes_in, codes_out = context.Pipe(duplex=False)
    processes = [
        context.Process(target=simulate, args=(weights_in, frames_out, p["simulate"]), daemon=True),
        context.Process(target=encode, args=(frames_in, codes_out, p["encode"]), daemon=True),
    ]
    for process in processes:
        process.start()
    weights = np.zeros(1_000, np.float32)
    for _ in range(UNDER_WAY):
        weights_out.send(weights)

    def cycle() -> float:
        codes_in.recv()
        with hotloop.profile("learn"):
            native(2 * p["learn"])
        weights_out.send(weights)
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)
    for process in processes:
        process.terminate()
    for process in processes:
        process.join()


if __name__ == "__main__":
    main()
