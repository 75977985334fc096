"""SEED RL over ZeroMQ: thin actors send observations to a router, which answers whatever waits in one
batch."""

from __future__ import annotations

import multiprocessing
import os
import queue
import random
import tempfile
import threading

import zmq
from parts import meter, nap, native, parameters

import hotloop

WHAT_IFS = {
    "simulate=1.25x": {"simulate": 0.8},
    "simulate=8x": {"simulate": 0.125},
    "infer=2x": {"infer": 0.5},
    "train=2x": {"train": 0.5},
}
LIMIT = "simulate"


def actor(number: int, address: str, p: dict[str, float]) -> None:
    source = random.Random(100 * p["seed"] + number)
    server = zmq.Context().socket(zmq.DEALER)
    server.connect(address)
    observation = bytes(3000)
    while True:
        server.send(observation)
        server.recv()
        with hotloop.profile("simulate"):
            nap(source.uniform(14, 22) * p["simulate"])


def main() -> None:
    p = parameters(simulate=1, infer=1, train=1, workers=6)
    context = multiprocessing.get_context("fork")
    unrolls: queue.Queue[int] = queue.Queue(4)
    with tempfile.TemporaryDirectory() as folder:
        address = "ipc://" + os.path.join(folder, "inference")
        actors = [
            context.Process(target=actor, args=(i, address, p), daemon=True) for i in range(int(p["workers"]))
        ]
        for process in actors:
            process.start()
        router = zmq.Context().socket(zmq.ROUTER)
        router.bind(address)

        def learn() -> None:
            while True:
                unrolls.get()
                with hotloop.profile("train"):
                    native(5 * p["train"])

        threading.Thread(target=learn, daemon=True).start()
        steps = 0

        def cycle() -> float:
            nonlocal steps
            names = [router.recv_multipart()[0]]
            while router.poll(0):
                names.append(router.recv_multipart()[0])
            with hotloop.profile("infer"):
                native((0.3 + 0.6 * len(names)) * p["infer"])
            for name in names:
                router.send_multipart([name, b"action"])
            before, steps = steps, steps + len(names)
            if before // 20 < steps // 20 and not unrolls.full():
                unrolls.put(20)
            hotloop.progress(updates=len(names))
            return len(names)

        meter(p["seconds"], cycle)
        for process in actors:
            process.terminate()
        for process in actors:
            process.join()
        router.close(0)


if __name__ == "__main__":
    main()
