"""How long updates of small networks take with one compute thread and with several, on the machine as it is.

The fastest updates are those that nobody disturbed; the typical one shows what other programs do to it. With
several threads, an update waits for the slowest of them at every operation.

    python benchmarks/one_thread.py --seconds 6
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np

SHAPES = [  # width of two hidden layers, batch size
    *((64, 1), (64, 32), (64, 64), (64, 256), (64, 1024), (128, 128)),
    *((256, 64), (256, 256), (400, 256), (512, 256), (512, 1024)),
]


def updates_us(width: int, batch_size: int, seconds: float) -> list[float]:
    """Durations of forward, backward and Adam step on one batch."""
    import torch
    from torch import nn

    hidden = [nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
    net = nn.Sequential(*hidden, nn.Linear(width, 4))
    optimizer, batch = torch.optim.Adam(net.parameters()), torch.randn(batch_size, 8)
    took: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(took) < 5:
        begin = time.perf_counter()
        loss = (net(batch) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        took.append(1e6 * (time.perf_counter() - begin))
    return took[3:]


def with_threads(threads: int, seconds: float) -> list[list[float]]:
    """[fastest, median] of each shape, in a fresh process."""
    words = [sys.executable, __file__, "--threads", str(threads), "--seconds", str(seconds)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return [[float(x) for x in pair] for pair in json.loads(done.stdout)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="for each shape")
    parser.add_argument("--threads", type=int, default=0, help="measure with that many here, print JSON")
    given = parser.parse_args()
    if given.threads:
        import torch

        torch.set_num_threads(given.threads)
        took = [updates_us(*shape, given.seconds) for shape in SHAPES]
        print(json.dumps([[min(us), float(np.median(us))] for us in took]))
        return
    cores = os.cpu_count() or 2
    print(f"load {os.getloadavg()[0]:.1f} on {cores} cores; update in us, fastest and (typical)")
    one, several = with_threads(1, given.seconds), with_threads(cores, given.seconds)
    for (width, batch_size), a, b in zip(SHAPES, one, several, strict=True):
        name = f"{width}-{width}, batch {batch_size}"
        print(f"{name:22} 1 thread {a[0]:9,.0f} ({a[1]:9,.0f})   {cores} threads {b[0]:9,.0f} ({b[1]:9,.0f})")


if __name__ == "__main__":
    main()
