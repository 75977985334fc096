"""Rank 0 learns from two ranks in turn, by send and recv, and broadcasts the weights before it trains;
rank 2 is slow."""

from __future__ import annotations

import multiprocessing
import os
import random
import socket

import torch
import torch.distributed
from parts import meter, nap, native, parameters

import hotloop

WHAT_IFS = {
    "collect=1.25x": {"collect": 0.8},
    "collect=8x": {"collect": 0.125},
    "train=2x": {"train": 0.5},
    "augment=2x": {"augment": 0.5},
}
LIMIT = "collect"
STRAGGLER = 2
COLLECT_MS = (0, 4, 14)  # by rank


def run(rank: int, port: int, p: dict[str, float]) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="3")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    source = random.Random(100 * p["seed"] + rank)
    rollouts, weights = torch.zeros(2000), torch.zeros(5000)

    def collect() -> None:
        with hotloop.profile("collect"):
            ms = COLLECT_MS[rank] * source.uniform(0.9, 1.1) * p["collect"]
            nap(0.6 * ms)
            native(0.4 * ms)
        torch.distributed.send(rollouts, 0)
        torch.distributed.broadcast(weights, 0)

    def learn() -> float:
        for other in (1, 2):
            torch.distributed.recv(rollouts, other)
        torch.distributed.broadcast(weights, 0)
        with hotloop.profile("augment"):
            native(1 * p["augment"])
        with hotloop.profile("train"):
            native(5 * p["train"])
        hotloop.progress(updates=1)
        return 1

    if rank == 0:
        meter(p["seconds"], learn)
    while rank:
        collect()


def main() -> None:
    p = parameters(collect=1, train=1, augment=1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=run, args=(rank, port, p), daemon=True) for rank in (1, 2)]
    for process in ranks:
        process.start()
    run(0, port, p)
    for process in ranks:
        process.terminate()


if __name__ == "__main__":
    main()
