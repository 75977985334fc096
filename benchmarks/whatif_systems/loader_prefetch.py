"""A thread takes batches from a DataLoader with three workers, uploads them, and keeps two ready."""

from __future__ import annotations

import queue
import threading
from typing import Any

import torch
from parts import meter, nap, native, parameters, python
from torch.utils.data import DataLoader, Dataset

import hotloop

WHAT_IFS = {
    "upload=1.25x": {"upload": 0.8},
    "upload=4x": {"upload": 0.25},
    "learn=2x": {"learn": 0.5},
    "load=2x": {"load": 0.5},
}
LIMIT = "upload"


class Trajectories(Dataset[Any]):
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        with hotloop.profile("load"):
            nap(1.4 * self.scale)
            python(0.1 * self.scale)
        return torch.zeros(64)


def main() -> None:
    p = parameters(load=1, augment=1, upload=1, learn=1, workers=3)
    torch.set_num_threads(1)
    loader = DataLoader(Trajectories(p["load"]), batch_size=4, num_workers=int(p["workers"]))
    ready: queue.Queue[Any] = queue.Queue(2)
    end = threading.Event()

    def prefetch() -> None:
        for batch in loader:
            with hotloop.profile("augment"):
                native(1.2 * p["augment"])
            with hotloop.profile("upload"):
                nap(4 * p["upload"])
            while not end.is_set():
                try:
                    ready.put(batch, timeout=0.2)
                    break
                except queue.Full:
                    continue
            if end.is_set():
                return

    thread = threading.Thread(target=prefetch)
    thread.start()

    def cycle() -> float:
        ready.get()
        with hotloop.profile("learn"):
            native(3.2 * p["learn"])
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)
    end.set()
    thread.join()


if __name__ == "__main__":
    main()
