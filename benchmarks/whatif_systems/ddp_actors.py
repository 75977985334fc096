"""DDP, two ranks, each fed by its own actor thread; the simulator of the second rank is slower."""

from __future__ import annotations

import multiprocessing
import os
import queue
import tempfile
import threading

import torch
from parts import meter, nap, native, parameters
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import hotloop

WHAT_IFS = {
    "rollout=1.25x": {"rollout": 0.8},
    "rollout=4x": {"rollout": 0.25},
    "learn=2x": {"learn": 0.5},
}
LIMIT = "rollout"
STRAGGLER = 1


def train(rank: int, store: str, p: dict[str, float]) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    rollouts: queue.Queue[torch.Tensor] = queue.Queue(1)

    def act() -> None:
        while True:
            with hotloop.profile("rollout"):
                nap((10 if rank == 1 else 7) * p["rollout"])
            rollouts.put(torch.ones(8, 16))

    threading.Thread(target=act, daemon=True).start()

    def cycle() -> float:
        batch = rollouts.get()
        with hotloop.profile("learn"):
            native(3.5 * p["learn"])
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        hotloop.progress(updates=1)
        return 1

    if rank == 0:
        meter(p["seconds"], cycle)
    else:
        while True:
            cycle()


def main() -> None:
    p = parameters(rollout=1, learn=1)
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        context = multiprocessing.get_context("fork")
        other = context.Process(target=train, args=(1, store, p), daemon=True)
        other.start()
        train(0, store, p)
        other.terminate()
        other.join()


if __name__ == "__main__":
    main()
