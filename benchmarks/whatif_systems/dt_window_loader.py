"""Offline RL on windows of trajectories: a DataLoader decodes in two processes while the trainer also
needs a core."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from parts import meter, native, one_call, parameters, python
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import hotloop

WHAT_IFS = {
    "decode=2x": {"decode": 0.5},
    "decode=16x": {"decode": 0.0625},
    "train=2x": {"train": 0.5},
    "prefetch=8": {"prefetch": 8},
}
LIMIT = "decode"


class Windows(IterableDataset[Any]):
    def __init__(self, p: dict[str, float]) -> None:
        self.p = p

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker: Any = get_worker_info()
        source = random.Random(100 * self.p["seed"] + worker.id)
        while True:
            with hotloop.profile("decode"):
                python(source.uniform(5, 7) * self.p["decode"])
                native(2.5 * self.p["decode"])
            yield torch.zeros(20, 64)


def main() -> None:
    p = parameters(decode=1, train=1, workers=2, prefetch=2)
    torch.set_num_threads(1)
    loader = DataLoader(
        Windows(p), batch_size=None, num_workers=int(p["workers"]), prefetch_factor=int(p["prefetch"])
    )
    batches = iter(loader)

    def cycle() -> float:
        next(batches)
        with hotloop.profile("train"):
            one_call(3.5 * p["train"])
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
