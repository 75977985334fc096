"""Two ranks of DistributedDataParallel with the same work."""

from __future__ import annotations

import multiprocessing
import os
import socket

import torch
import torch.distributed
from parts import meter, nap, native, parameters
from torch.nn.parallel import DistributedDataParallel

import hotloop

WHAT_IFS = {
    "simulate=2x": {"simulate": 0.5},
    "augment=2x": {"augment": 0.5},
    "augment=1.25x": {"augment": 0.8},
}
LIMIT = "simulate"
SIMULATE_MS = (6, 6)  # by rank


def train(rank: int, port: int, p: dict[str, float]) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    layers = [torch.nn.Linear(256, 512), torch.nn.Tanh(), torch.nn.Linear(512, 1)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randn(64, 256)

    def cycle() -> float:
        with hotloop.profile("simulate"):
            nap(SIMULATE_MS[rank] * p["simulate"])
        with hotloop.profile("augment"):
            native(3 * p["augment"])
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return 1

    if rank == 0:
        meter(p["seconds"], cycle)
    while rank:
        cycle()


def main() -> None:
    p = parameters(simulate=1, augment=1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    context.Process(target=train, args=(1, port, p), daemon=True).start()
    train(0, port, p)


if __name__ == "__main__":
    main()
