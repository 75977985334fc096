"""DataLoader without workers: decoding and learning take turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from parts import meter, native, parameters
from torch.utils.data import DataLoader, Dataset

import hotloop

WHAT_IFS = {
    "decode=2x": {"decode": 0.5},
    "learn=2x": {"learn": 0.5},
    "decode=1.25x": {"decode": 0.8},
}
LIMIT = "decode"


class Demonstrations(Dataset[Any]):
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Any:
        with hotloop.profile("decode"):
            native(1 * self.scale)
        return torch.zeros(16)


def main() -> None:
    torch.set_num_threads(1)
    p = parameters(decode=1, learn=1, workers=0)
    loader = DataLoader(Demonstrations(p["decode"]), batch_size=4, num_workers=int(p["workers"]))
    batches: Iterator[Any] = iter(loader)

    def cycle() -> float:
        next(batches)
        with hotloop.profile("learn"):
            native(3 * p["learn"])
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
