"""A DataLoader over an offline buffer, two workers with a shard each, in order; the second is remote."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from parts import meter, nap, native, parameters, python
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import hotloop

WHAT_IFS = {
    "fetch=2x": {"fetch": 0.5},
    "learn=2x": {"learn": 0.5},
    "workers=4": {"workers": 4},
    "depth=8": {"depth": 8},
}
LIMIT = "fetch"
STRAGGLER = 1


class Replay(IterableDataset[Any]):
    def __init__(self, p: dict[str, float]) -> None:
        self.p = p

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        remote = worker is not None and worker.id == 1
        while True:
            with hotloop.profile("fetch"):
                nap((15 if remote else 5) * self.p["fetch"])
            with hotloop.profile("relabel"):
                python(0.8 * self.p["relabel"])
            yield torch.zeros(32, 16)


def main() -> None:
    p = parameters(fetch=1, relabel=1, learn=1, workers=2, depth=2)
    torch.set_num_threads(1)
    batches = iter(
        DataLoader(Replay(p), batch_size=None, num_workers=int(p["workers"]), prefetch_factor=int(p["depth"]))
    )

    def cycle() -> float:
        next(batches)
        with hotloop.profile("learn"):
            native(2.5 * p["learn"])
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
