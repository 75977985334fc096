"""Epsilon-greedy actions of a Q-network on frames, inside a collector."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hotloop.rl.collect.protocol import Spaces
from hotloop.rl.train.devices import Precision, choose_precision
from hotloop.rl.train.networks.frame_q import FoldedNetwork, FrameQNetwork, load_flat
from hotloop.rl.train.networks.space_to_depth import has_whole_blocks


class FrameActor:
    """Epsilon-greedy actions inside a collector, with the latest weights; `control` is epsilon.

    `dtype` is that of the products if `fast` is on. The last layer is always in float32, so that values which
    are close to each other do not become equal.
    """

    def __init__(self, network: FrameQNetwork, *, fast: bool = True, dtype: torch.dtype = torch.float32):
        self._network = network.requires_grad_(False)
        fast = fast and has_whole_blocks(network.shape)
        self._folded = FoldedNetwork(network, dtype, values_dtype=torch.float32) if fast else None

    def load(self, weights: NDArray[np.float32]) -> None:
        """Copy the weights that the learner sent as one vector."""
        load_flat(self._network, weights)
        if self._folded is not None:
            self._folded.load(self._network)

    def act(self, observations: NDArray[Any], control: float, rng: np.random.Generator) -> NDArray[np.int64]:
        """Greedy actions [rows], or random ones with probability `control`.

        Every row draws two numbers whatever happens, so that equal generators stay equal; rows with a random
        action skip the network.
        """
        rows = len(observations)
        chances = rng.random(rows)
        actions: NDArray[np.int64] = rng.integers(0, self._network.actions, rows)
        greedy = np.flatnonzero(chances >= control)
        if len(greedy):
            seen = observations if len(greedy) == rows else observations[greedy]
            actions[greedy] = self.values(seen).argmax(axis=1)
        return actions

    def values(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Action values [rows, actions]."""
        with torch.inference_mode():
            given = torch.from_numpy(np.ascontiguousarray(observations))
            values = self._network(given) if self._folded is None else self._folded(given)
            found: NDArray[np.float32] = values.numpy()
        return found


def make_network(
    spaces: Spaces, channels: tuple[int, ...], features_dim: int, batch_norm: bool
) -> FrameQNetwork:
    return FrameQNetwork(
        spaces.observation.shape,
        int(spaces.action.n),
        channels=channels,
        features_dim=features_dim,
        batch_norm=batch_norm,
    )


def make_actor(
    spaces: Spaces,
    channels: tuple[int, ...],
    features_dim: int,
    batch_norm: bool,
    fast: bool,
    precision: Precision = "float32",
) -> FrameActor:
    """The actor of a collector; its weights come from the learner.

    Actors run on the CPU. The network as written (`fast` off) plays in float32: a stack at a time gains
    nothing from bfloat16 by autocast, which converts the weights at every call.
    """
    network = make_network(spaces, channels, features_dim, batch_norm)
    in_half = choose_precision(precision, torch.device("cpu")) == "bfloat16"
    return FrameActor(network, fast=fast, dtype=torch.bfloat16 if in_half else torch.float32)
