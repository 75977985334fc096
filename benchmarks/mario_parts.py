"""CPU and wall time of mario's learner and actor at full size, with and without what makes them fast.

    python benchmarks/mario_parts.py --rounds 15

Variants take turns inside one process, one batch each; medians, and the least in parentheses, in microseconds
per row. `own thread` is the CPU time of the thread that learns: with `target_thread` it is less than that of
the process. Wall time of two threads needs a core for each; with others at work read the least.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from hotloop.rl.train.async_dqn import AsyncDQNConfig, FrameLearner
from hotloop.rl.train.frame_actor import FrameActor
from hotloop.rl.train.learner_limit import noise
from hotloop.rl.train.networks.frame_q import FrameQNetwork
from hotloop.rl.train.networks.space_to_depth import space_to_depth
from hotloop.rl.train.runs import freed_memory_kept, torch_threads
from hotloop.rl.train.second_thread import SecondThread

SHAPE, ACTIONS, GAMES = (4, 84, 84), 7, 58  # of 64 games, those that do not explore with epsilon 0.1
CLOCKS = {"CPU": time.process_time, "own thread": time.thread_time, "wall": time.perf_counter}


def measure(rounds: int, rows: int, variants: Mapping[str, Callable[[], Any]]) -> None:
    times: dict[str, list[list[float]]] = {name: [] for name in variants}
    for turn in range(rounds + 2):
        for name, call in variants.items():
            began = [clock() for clock in CLOCKS.values()]
            call()
            if turn > 1:  # the first two are warm-up
                times[name].append(
                    [clock() - begin for clock, begin in zip(CLOCKS.values(), began, strict=True)]
                )
    for name, found in times.items():
        columns = [[1e6 * value / rows for value in column] for column in zip(*found, strict=True)]
        words = [
            f"{clock} {statistics.median(column):.0f} us ({min(column):.0f})"
            for clock, column in zip(CLOCKS, columns, strict=True)
        ]
        print(f"{name}: {', '.join(words)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--precision", default="bfloat16")
    args = parser.parse_args()
    config = AsyncDQNConfig(device="cpu", precision=args.precision)
    torch.manual_seed(0)
    network = FrameQNetwork(SHAPE, ACTIONS)
    dtype = torch.bfloat16 if args.precision == "bfloat16" else torch.float32
    actors = {
        "acting in float32": FrameActor(network),
        f"acting in {args.precision}": FrameActor(network, dtype=dtype),
    }
    with torch_threads(1), freed_memory_kept(), SecondThread() as second:
        batch = noise(config, SHAPE, ACTIONS)
        alone, shared = (FrameLearner(FrameQNetwork(SHAPE, ACTIONS), config) for _ in range(2))
        shared.share_with(second)
        measure(
            args.rounds,
            config.batch_size,
            {
                "learning": lambda: alone.add_gradient(batch),
                "learning with a second thread": lambda: shared.add_gradient(batch),
                "preparing pixels": lambda: space_to_depth(batch["observations"], dtype=dtype),
            },
        )
        stacks = np.ascontiguousarray(batch["observations"][:GAMES].numpy())
        measure(args.rounds * 4, GAMES, {name: _acting(actor, stacks) for name, actor in actors.items()})


def _acting(actor: FrameActor, stacks: Any) -> Callable[[], Any]:
    return lambda: actor.values(stacks)


if __name__ == "__main__":
    main()
