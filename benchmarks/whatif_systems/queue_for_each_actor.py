"""Three actors read weights from shared tensors; the learner takes a rollout from the queue of each."""

from __future__ import annotations

from typing import Any

import torch
from parts import meter, nap, native, parameters, python
from torch import multiprocessing

import hotloop

WHAT_IFS = {
    "rollout=1.25x": {"rollout": 0.8},
    "rollout=4x": {"rollout": 0.25},  # then the learner is the limit
    "learn=2x": {"learn": 0.5},
    "depth=4": {"depth": 4},
}
LIMIT = "rollout"
STRAGGLER = 1
ROLLOUT_MS = (6, 13, 8)  # by actor: the second one plays on a busy server


def act(number: int, weights: torch.Tensor, rollouts: Any, p: dict[str, float]) -> None:
    torch.set_num_threads(1)
    while True:
        with hotloop.profile("weights_sync"):
            mine = weights.clone()
        with hotloop.profile("rollout"):
            nap(ROLLOUT_MS[number % len(ROLLOUT_MS)] * p["rollout"])
            python(0.8 * p["rollout"])
        rollouts.put((number, float(mine[0]), bytes(4000)))


def main() -> None:
    p = parameters(rollout=1, learn=1, publish=1, workers=3, depth=1)
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    weights = torch.zeros(20_000).share_memory_()
    queues = [context.Queue(int(p["depth"])) for _ in range(int(p["workers"]))]
    for number, rollouts in enumerate(queues):
        context.Process(target=act, args=(number, weights, rollouts, p), daemon=True).start()

    def cycle() -> float:
        for rollouts in queues:
            rollouts.get()
        with hotloop.profile("learn"):
            native(5 * p["learn"])
        with hotloop.profile("publish"):
            python(0.5 * p["publish"])
            weights.add_(0.001)
        hotloop.progress(updates=1)
        return 1

    meter(p["seconds"], cycle)


if __name__ == "__main__":
    main()
