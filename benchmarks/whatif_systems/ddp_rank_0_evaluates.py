"""DDP, two ranks with the same batches; before every second update rank 0 evaluates, and rank 1 waits."""

from __future__ import annotations

import os
import tempfile

import torch
from parts import meter, nap, native, parameters, python
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

import hotloop

WHAT_IFS = {
    "evaluate=1.25x": {"evaluate": 0.8},
    "evaluate=4x": {"evaluate": 0.25},
    "load=2x": {"load": 0.5},
    "augment=2x": {"augment": 0.5},
}
LIMIT = "evaluate"
STRAGGLER = 0


def train(rank: int, store: str, p: dict[str, float]) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 4)))
    optimizer = torch.optim.Adam(model.parameters())
    update = 0

    def cycle() -> float:
        nonlocal update
        if rank == 0 and update % 2 == 0:
            with hotloop.profile("evaluate"):
                nap(16 * p["evaluate"])
                python(2 * p["evaluate"])
        with hotloop.profile("load"):
            nap(2.5 * p["load"])
        with hotloop.profile("augment"):
            native(2 * p["augment"])
        optimizer.zero_grad()
        model(torch.ones(32, 64)).square().mean().backward()
        optimizer.step()
        update += 1
        hotloop.progress(updates=1)
        return 1

    if rank == 0:
        meter(p["seconds"], cycle)
    while rank:
        cycle()


def main() -> None:
    p = parameters(evaluate=1, load=1, augment=1)
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        other = multiprocessing.get_context("fork").Process(target=train, args=(1, store, p), daemon=True)
        other.start()
        train(0, store, p)
        other.terminate()
        other.join()


if __name__ == "__main__":
    main()
