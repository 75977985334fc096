"""Collectors on the nodes of a Ray cluster and a small learner, for `make demo-cluster`.

Run: hotloop run examples/collect_on_ray.py [--env-steps N], with a Ray cluster on this computer
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import hotloop
from hotloop.rl.buffers.replay import ReplayBuffer

COLLECTORS, ENVS = 3, 4


def make_network() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))


class Actor:
    """Epsilon-greedy, with the learner's latest weights."""

    def __init__(self, spaces: Any):
        self.network = make_network()

    def load(self, weights: NDArray[np.float32]) -> None:
        vector_to_parameters(torch.from_numpy(weights.copy()), self.network.parameters())

    @torch.no_grad()
    def act(self, observations: NDArray[Any], control: float, rng: np.random.Generator) -> NDArray[Any]:
        best = self.network(torch.from_numpy(observations)).argmax(1).numpy()
        return np.where(rng.random(len(best)) < control, rng.integers(0, 2, len(best)), best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env-steps", type=int, default=20_000)
    wanted = parser.parse_args().env_steps
    network = make_network()
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    flat = parameters_to_vector(network.parameters()).detach().numpy()
    settings = {"collectors": COLLECTORS, "n_envs": ENVS, "ring_rows": 256, "n_weights": flat.size}
    with hotloop.collect("CartPole-v1", Actor, on="ray", **settings) as collector:
        replay = ReplayBuffer(
            50_000, COLLECTORS * ENVS, collector.spaces.observation, collector.spaces.action
        )
        batch = replay.make_batch(256)
        tensors = batch.tensors()
        collector.publish(flat, control=1.0)
        while collector.state().env_steps < wanted:
            for rows in collector.take(2000, timeout_s=60.0, min_rows=200):
                replay.push_rows(rows)
            collector.release()
            for _ in range(4):
                replay.sample(batch)
                values = network(tensors["observations"]).gather(1, tensors["actions"][:, None])[:, 0]
                with torch.no_grad():
                    best = network(tensors["next_observations"]).amax(1)
                loss = torch.nn.functional.smooth_l1_loss(
                    values, tensors["rewards"] + tensors["discounts"] * best
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            flat = parameters_to_vector(network.parameters()).detach().numpy()
            collector.publish(flat, control=0.1)
        state = collector.state()
        nodes = len(set(collector.nodes().values()))
    print(
        f"{state.env_steps:,} env steps from {COLLECTORS} collectors on {nodes} nodes, "
        f"{state.episodes:,} episodes, {state.dropped} rows dropped, {state.lost} lost"
    )


if __name__ == "__main__":
    main()
