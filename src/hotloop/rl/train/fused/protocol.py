"""The contract between a training loop and the compiled learner that can replace its torch learner.

Each algorithm file (`ppo.py`, `dqn.py`, `sac.py`, `bc.py`) holds a plain `TorchLearner` and runs without
anything from this folder. Its fused counterpart is the class `FusedPPO`, `FusedDQN`, ... in
`fused/<algorithm>.py`, with the kernels next to it in `fused/<algorithm>_kernels.py`. It is imported in one
place only, the trainer's `make_learner`, and is a drop-in replacement:

- it has every method of the plain learner, with the same arguments, and the same numbers up to rounding;
- `state()` uses the plain learner's names, so a checkpoint of one continues with the other;
- it may compile more than the update. Where our own envs and the learner can run in one kernel call, a method
  such as `compiled_rollout(envs, buffer, episodes)` returns a function that does so, or None where it cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray


class FusedLearner(Protocol):
    """What every fused learner offers, whatever the algorithm."""

    name: str
    """`fused`, for logs and results."""

    def weights_changed(self) -> None:
        """Repack the weights; call it after torch code or a checkpoint wrote to the network's parameters."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Copies of weights and optimizer moments, under the names that the plain learner uses."""

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from the `state()` of a fused or plain learner with the same network."""
