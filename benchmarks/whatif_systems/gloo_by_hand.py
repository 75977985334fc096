"""Two ranks average gradients with all_reduce by hand; rank 1 has five micro-batches to two of rank 0."""

from __future__ import annotations

import multiprocessing
import tempfile
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from parts import meter, nap, native, parameters, python

import hotloop

WHAT_IFS = {
    "backward=1.25x": {"backward": 0.8},
    "backward=4x": {"backward": 0.25},
    "apply=2x": {"apply": 0.5},
    "publish=2x": {"publish": 0.5},
}
LIMIT = "backward"
STRAGGLER = 1


def train(rank: int, folder: str, losses: Connection, end: Any, p: dict[str, float]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    weights = torch.zeros(2_000)
    update = 0
    while True:
        with hotloop.profile("sample"):
            nap(2 * p["sample"])
        gradient = torch.zeros(2_001)
        for _ in range(5 if rank == 1 else 2):
            with hotloop.profile("backward"):
                native(1.5 * p["backward"])
                gradient[:-1] += 0.01
        if rank == 0 and update % 2 == 0:
            with hotloop.profile("publish"):
                python(0.8 * p["publish"])
                nap(1 * p["publish"])
        if rank == 0 and end.is_set():
            gradient[-1] = 1  # the last number asks both to end
        dist.all_reduce(gradient)
        if gradient[-1]:
            break
        with hotloop.profile("apply"):
            native(0.8 * p["apply"])
            weights -= gradient[:-1] / 7
        update += 1
        if rank == 0:
            losses.send(float(weights[0]))
    dist.destroy_process_group()


def main() -> None:
    p = parameters(sample=1, backward=1, apply=1, publish=1)
    context = multiprocessing.get_context("fork")
    end = context.Event()
    losses, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=train, args=(i, folder, theirs, end, p), daemon=True) for i in range(2)
        ]
        for rank in ranks:
            rank.start()

        def cycle() -> float:
            losses.recv()
            hotloop.progress(updates=1)
            return 1

        meter(p["seconds"], cycle)
        end.set()
        for rank in ranks:
            rank.join()


if __name__ == "__main__":
    main()
