"""What plays inside a collector: the newest weights, one thread, now and then a random action.

Measured on two cores of a Xeon at 2.8 GHz, for stacks of 4 frames of 84 x 84: see docs/mario.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hotloop.rl.train.networks.frames import Folded, FrameQNetwork, load_flat
from hotloop.rl.train.networks.prepare import is_preparable


class FrameActor:
    """Epsilon-greedy over a `FrameQNetwork`; `control` is epsilon."""

    def __init__(self, network: FrameQNetwork, *, fast: bool = True):
        self._network = network.requires_grad_(False)
        self._folded = Folded(network) if fast and is_preparable(network.shape) else None

    def load(self, weights: NDArray[np.float32]) -> None:
        """Take over the learner's flat vector; it is copied."""
        load_flat(self._network, weights)
        if self._folded is not None:
            self._folded.load(self._network)

    def act(self, observations: NDArray[Any], control: float, rng: np.random.Generator) -> NDArray[np.int64]:
        """The best action of each row, or with chance `control` any; a new array.

        Every row draws two numbers whatever happens, so that equal generators stay equal; nobody is asked
        about rows whose action is random anyway.
        """
        rows = len(observations)
        chances = rng.random(rows)
        actions: NDArray[np.int64] = rng.integers(0, self._network.actions, rows)
        greedy = np.flatnonzero(chances >= control)
        if len(greedy):
            asked = observations if len(greedy) == rows else observations[greedy]
            actions[greedy] = self.values(asked).argmax(axis=1)
        return actions

    def values(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Values [rows, actions], a new array."""
        with torch.inference_mode():
            given = torch.from_numpy(np.ascontiguousarray(observations))
            values = self._network(given) if self._folded is None else self._folded(given)
            found: NDArray[np.float32] = values.numpy()
        return found
