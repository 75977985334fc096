"""How fast does experience get from one process to another? hotloop's ring compared with Python's and others.

`frames` are batches of 64 pictures of 84 x 84 bytes, `small` are batches of 64 records of 64 bytes, `single`
are such records one at a time. A forked producer sends messages from its memory as fast as it can. The
consumer, this process, copies every message to its own memory and checks its number, so a ring is measured
with two copies, one on each side (`read in place`: without the second). `memcpy` is one process that copies
the same messages into as much memory as the ring has. Rounds are interleaved; the best counts.

Run: python benchmarks/transport.py [--rounds N] [--peers-python PYTHON] [--json FILE]
If faster-fifo is not installed here, it is measured in the interpreter given by --peers-python, in turn with
the others.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import subprocess
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np

FORK = multiprocessing.get_context("fork")
# kind -> shape of a message (bytes), messages a round
KINDS = {
    "frames": ((64, 84, 84), 200),
    "small": ((64, 64), 2000),
    "single": ((1, 64), 8000),
}
ROOM = {"frames": 8, "small": 128, "single": 4096}  # messages that can queue, in every transport
GOALS = {"frames": (30.0, 0.8), "small": (10.0, None), "single": (10.0, None)}


class Transport(Protocol):
    """One way to send messages from a producer to a consumer; created before the fork."""

    def send(self, message: np.ndarray[Any, Any]) -> None:
        """In the producer."""

    def receive(self, into: np.ndarray[Any, Any]) -> int:
        """In the consumer: copy the next messages to its own memory; returns their number, at least one.

        Takes all that are ready and fit, if the transport can do that.
        """


class HotloopRing:
    """Our ring: the producer writes to its memory, the consumer copies from it."""

    def __init__(self, kind: str):
        from hotloop.rl.collect.ring import RecordRing

        self.ring = RecordRing(np.dtype((np.uint8, KINDS[kind][0])), ROOM[kind])

    def send(self, message: np.ndarray[Any, Any]) -> None:
        self.ring.reserve(1, 10.0)[0] = message
        self.ring.commit(1)

    def receive(self, into: np.ndarray[Any, Any]) -> int:
        rows = self.ring.peek(len(into), 10.0)
        into[: len(rows)] = rows
        self.ring.give_back(len(rows))
        return len(rows)


class HotloopInPlace(HotloopRing):
    """The same for a consumer that works on the ring's memory: it reads every message and copies none."""

    def receive(self, into: np.ndarray[Any, Any]) -> int:
        rows = self.ring.peek(len(into), 10.0)
        count = len(rows)
        into.reshape(len(into), -1)[:count, :8] = rows.reshape(count, -1)[:, :8]
        self.ring.give_back(count)
        return count


class HotloopLocked:
    """Our locked baseline: the same memory behind one lock."""

    def __init__(self, kind: str):
        from hotloop.rl.collect.locked_queue import LockedQueue

        self.queue = LockedQueue(np.dtype([("bytes", np.uint8, KINDS[kind][0])]), ROOM[kind])

    def send(self, message: np.ndarray[Any, Any]) -> None:
        rows = message.reshape(-1).view(self.queue.dtype)
        while True:
            count, seen = self.queue.put(rows)
            if count:
                self.queue.data.ring()
                return
            self.queue.room.wait(seen, 1.0)

    def receive(self, into: np.ndarray[Any, Any]) -> int:
        rows = into.reshape(-1).view(self.queue.dtype)
        while True:
            seen = self.queue.data.count()
            if self.queue.pending():
                return self.queue.get(rows)
            self.queue.data.wait(seen, 1.0)


class Queue:
    """multiprocessing.Queue of arrays."""

    def __init__(self, kind: str):
        self.queue = FORK.Queue(ROOM[kind])

    def send(self, message: np.ndarray[Any, Any]) -> None:
        self.queue.put(message)

    def receive(self, into: np.ndarray[Any, Any]) -> int:
        into[0] = self.queue.get()
        return 1


class Pipe:
    """multiprocessing.Pipe at its best: bytes without pickling, received into the final memory."""

    def __init__(self, kind: str):
        self.end, self.begin = FORK.Pipe(duplex=False)

    def send(self, message: np.ndarray[Any, Any]) -> None:
        self.begin.send_bytes(message.reshape(-1).data)

    def receive(self, into: np.ndarray[Any, Any]) -> int:
        self.end.recv_bytes_into(into[0].reshape(-1))
        return 1


class TorchQueue:
    """torch.multiprocessing.Queue: tensors in shared memory, their handles through a queue.

    At most 64 messages queue: each is an open file, and a process may have 1024.
    """

    def __init__(self, kind: str):
        import torch
        import torch.multiprocessing

        torch.set_num_threads(1)
        self.torch = torch
        self.queue = torch.multiprocessing.get_context("fork").Queue(min(ROOM[kind], 64))

    def send(self, message: np.ndarray[Any, Any]) -> None:
        self.queue.put(self.torch.from_numpy(message).clone())

    def receive(self, into: np.ndarray[Any, Any]) -> int:
        into[0] = self.queue.get().numpy()
        return 1


class FasterFifo:
    """faster-fifo's queue: a lock in C++ around a ring of pickled messages."""

    def __init__(self, kind: str):
        import faster_fifo

        size = int(np.prod(KINDS[kind][0]))
        self.queue = faster_fifo.Queue(max_size_bytes=ROOM[kind] * (size + 256))

    def send(self, message: np.ndarray[Any, Any]) -> None:
        self.queue.put(message, timeout=60.0)

    def receive(self, into: np.ndarray[Any, Any]) -> int:
        found = self.queue.get_many(timeout=60.0, max_messages_to_get=len(into))
        for at, message in enumerate(found):
            into[at] = message
        return len(found)


WAYS: dict[str, Any] = {
    "hotloop": HotloopRing,
    "hotloop, read in place": HotloopInPlace,
    "hotloop, locked": HotloopLocked,
    "multiprocessing.Queue": Queue,
    "multiprocessing.Pipe": Pipe,
    "torch.multiprocessing": TorchQueue,
    "faster-fifo": FasterFifo,
}
SLOW = ("torch.multiprocessing",)  # sends a tenth of the messages
NEEDS = {"torch.multiprocessing": "torch", "faster-fifo": "faster_fifo"}


def made_messages(kind: str) -> np.ndarray[Any, Any]:
    """More messages than can queue, because a queue pickles a message some time after `put`."""
    shape = (2 * ROOM[kind], *KINDS[kind][0])
    return np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)


def produce(way: Transport, kind: str, messages: int, received: Any) -> None:
    sources = made_messages(kind)
    numbers = [source.reshape(-1)[:8].view(np.uint64) for source in sources]
    for number in range(messages):
        numbers[number % len(sources)][0] = number
        way.send(sources[number % len(sources)])
    received.wait()  # torch's tensors are freed when their sender ends


def seconds_of(name: str, kind: str) -> float:
    """Seconds per message, from the first received to the last."""
    shape, messages = KINDS[kind]
    if name == "memcpy":
        return memcpy_s(kind)
    messages = messages // 10 if name in SLOW else messages
    way: Transport = WAYS[name](kind)
    received = FORK.Event()
    producer = FORK.Process(target=produce, args=(way, kind, messages, received))
    producer.start()
    target = np.zeros((4 if kind == "frames" else 64, *shape), dtype=np.uint8)
    numbers = target.reshape(len(target), -1)[:, :8].view(np.uint64)[:, 0]
    first = got = way.receive(target[:1])
    began = time.perf_counter()
    while got < messages:
        count = way.receive(target)
        if numbers[0] != got or numbers[count - 1] != got + count - 1:
            raise RuntimeError(f"{name}: message {numbers[0]} came instead of {got}")
        got += count
    seconds = (time.perf_counter() - began) / (messages - first)
    received.set()
    producer.join()
    return seconds


def memcpy_s(kind: str) -> float:
    sources, room, messages = made_messages(kind), ROOM[kind], KINDS[kind][1]
    target = np.zeros((room, *KINDS[kind][0]), dtype=np.uint8)
    target[...] = sources[:room]
    began = time.perf_counter()
    for number in range(messages):
        target[number % room] = sources[number % len(sources)]
    return (time.perf_counter() - began) / messages


def seconds_elsewhere(python: str, name: str, kind: str) -> float:
    done = subprocess.run(
        [python, __file__, "--one", name, kind], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{name} does not run in {python}: {done.stderr[-500:]}")
    return float(done.stdout.split()[-1])


def measure(kind: str, rounds: int, python: str | None) -> tuple[dict[str, float], list[str]]:
    """Shortest seconds per message by transport, and which transports are missing."""
    best: dict[str, float] = {}
    missing = []
    for turn in range(rounds):
        for name in [*WAYS, "memcpy"]:
            there = name not in NEEDS or importlib.util.find_spec(NEEDS[name]) is not None
            if not there and python is None:
                missing += [name] if turn == 0 else []
                continue
            seconds = seconds_of(name, kind) if there else seconds_elsewhere(str(python), name, kind)
            best[name] = min(best.get(name, 1e9), seconds)
    return best, missing


def show(kind: str, best: dict[str, float], missing: list[str]) -> dict[str, Any]:
    size = int(np.prod(KINDS[kind][0]))
    records = KINDS[kind][0][0]
    print(f"\n{kind}: messages of {records} records, {size:,} bytes")
    print(f"{'':<24}{'MB/s':>10}{'records/s':>14}{'us/message':>14}{'hotloop is':>12}")
    for name, seconds in best.items():
        ratio = f"{seconds / best['hotloop']:.2f} x" if name != "hotloop" else ""
        rate = f"{size / seconds / 1e6:>10,.0f}{records / seconds:>14,.0f}{seconds * 1e6:>14.1f}"
        print(f"{name:<24}{rate}{ratio:>12}")
    if missing:
        print(f"not installed, so not measured: {', '.join(missing)}")
    least, share = GOALS[kind]
    queue, copy = (best[name] / best["hotloop"] for name in ("multiprocessing.Queue", "memcpy"))
    print(
        f"x multiprocessing.Queue: {queue:.1f}, at least {least:.0f}: {'ok' if queue >= least else 'MISSED'}"
    )
    if share is not None:
        print(f"share of memcpy: {copy:.2f}, at least {share}: {'ok' if copy >= share else 'MISSED'}")
    return {"seconds_a_message": best, "x_queue": queue, "share_of_memcpy": copy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--peers-python", default=None)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--one", nargs=2, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(seconds_of(*arguments.one))
        return
    from hotloop.machine.facts import cores_granted, cpu_name

    print(f"{cpu_name()}, {cores_granted():g} cores, load {os.getloadavg()[0]:.1f}; ", end="")
    print(f"best of {arguments.rounds} interleaved rounds")
    found = {}
    for kind in arguments.kinds:
        found[kind] = show(kind, *measure(kind, arguments.rounds, arguments.peers_python))
    print("\nlock wait of hotloop's ring: 0, it has no lock")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
