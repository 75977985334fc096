"""A simulator behind a TCP socket, one step per message; a thread of it encodes the frames as a video."""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import socket
import struct
import threading

from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "physics=2x": {"physics": 0.5},
    "render=2x": {"render": 0.5},
    "learn=2x": {"learn": 0.5},
    "encode=2x": {"encode": 0.5},
}
LIMIT = "physics"
FRAME = bytes(12_000)


def receive(peer: socket.socket) -> bytes:
    """One message: its length and its content."""
    size = struct.unpack("!I", peer.recv(4, socket.MSG_WAITALL))[0]
    return peer.recv(size, socket.MSG_WAITALL)


def send(peer: socket.socket, message: bytes) -> None:
    peer.sendall(struct.pack("!I", len(message)) + message)


def simulate(address: tuple[str, int], p: dict[str, float]) -> None:
    frames: queue.Queue[bytes] = queue.Queue(16)

    def encode() -> None:
        while True:
            frames.get()
            with hotloop.profile("encode"):
                native(1.5 * p["encode"])

    threading.Thread(target=encode, daemon=True).start()
    trainer = socket.create_connection(address)
    trainer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while receive(trainer) != b"close":
        with hotloop.profile("physics"):
            python(3 * p["physics"])
        with hotloop.profile("render"):
            nap(2 * p["render"])
        send(trainer, FRAME)
        with contextlib.suppress(queue.Full):
            frames.put_nowait(FRAME)


def main() -> None:
    p = parameters(physics=1, render=1, policy=1, learn=1, encode=1)
    listener = socket.create_server(("127.0.0.1", 0))
    context = multiprocessing.get_context("fork")
    process = context.Process(target=simulate, args=(listener.getsockname(), p), daemon=True)
    process.start()
    simulator, _ = listener.accept()
    simulator.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    steps = 0

    def cycle() -> float:
        nonlocal steps
        with hotloop.profile("policy"):
            python(1 * p["policy"])
        send(simulator, b"action")
        receive(simulator)
        steps += 1
        hotloop.progress(env_steps=1)
        if steps % 4 == 0:
            with hotloop.profile("learn"):
                native(6 * p["learn"])
        return 1

    meter(p["seconds"], cycle)
    send(simulator, b"close")
    process.join()


if __name__ == "__main__":
    main()
