"""Cloning from a remote disk: a DataLoader with workers that persist, short epochs, its own collate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from parts import meter, nap, native, parameters
from torch.utils.data import DataLoader, Dataset

import hotloop

WHAT_IFS = {
    "read=2x": {"read": 0.5},
    "collate=2x": {"collate": 0.5},
    "learn=2x": {"learn": 0.5},
    "workers=4": {"workers": 4},
}
LIMIT = "read"
BATCH = 4
BATCHES_IN_EPOCH = 30


class Episodes(Dataset[Any]):
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __len__(self) -> int:
        return BATCH * BATCHES_IN_EPOCH

    def __getitem__(self, index: int) -> Any:
        with hotloop.profile("read"):
            nap(2.5 * self.scale)
        return torch.zeros(20 + index % 13, 8)


class Padded:
    """Makes one tensor of episodes of different lengths."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, episodes: list[torch.Tensor]) -> torch.Tensor:
        with hotloop.profile("collate"):
            native(1.8 * self.scale)
            return torch.nn.utils.rnn.pad_sequence(episodes, batch_first=True)


def main() -> None:
    p = parameters(read=1, collate=1, learn=1, workers=2, depth=2)
    torch.set_num_threads(1)
    loader = DataLoader(
        Episodes(p["read"]),
        batch_size=BATCH,
        shuffle=True,
        num_workers=int(p["workers"]),
        prefetch_factor=int(p["depth"]),
        persistent_workers=True,
        collate_fn=Padded(p["collate"]),
    )

    def epochs() -> Iterator[Any]:
        while True:
            yield from loader

    batches = epochs()

    def cycle() -> float:
        next(batches)
        with hotloop.profile("learn"):
            native(2.2 * p["learn"])
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
