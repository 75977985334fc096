"""The compiled DQN: stands in for `train` and the policy's `predict`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hotloop.boost import dense_kernels as dense
from hotloop.boost import dqn_kernels as kernels
from hotloop.boost import eligible, off_policy, off_policy_eligible
from hotloop.boost.network_tables import Layout, Tensors, parameters_of, shape_of
from hotloop.boost.off_policy import Acting, OffPolicyLearner
from hotloop.boost.off_policy_eligible import linear_chain
from hotloop.boost.replay_samples import Samples
from hotloop.instrument.patch import Patch

NETWORKS = {"q_net": "QNetwork", "q_net_target": "QNetwork"}
SOURCES = (
    *off_policy_eligible.SOURCES,
    "stable_baselines3.dqn.dqn.DQN.train",
    *(f"stable_baselines3.dqn.policies.QNetwork.{name}" for name in ("__init__", "forward", "_predict")),
    *(
        f"stable_baselines3.dqn.policies.DQNPolicy.{name}"
        for name in ("_build", "_predict", "set_training_mode")
    ),
)


def why_not(model: Any) -> str | None:
    """None if this model can be boosted; else the reason."""
    reason = off_policy_eligible.why_not(model, "DQNPolicy", NETWORKS)
    if reason is not None:
        return reason
    for name in NETWORKS:
        found = linear_chain(getattr(model, name).q_net, name)
        if isinstance(found, str):
            return found
    if not isinstance(model.max_grad_norm, (int, float)):
        return f"max_grad_norm is a {type(model.max_grad_norm).__name__}, not a number"
    return eligible.optimizer(model.policy.optimizer, list(model.q_net.parameters()))


def acting_patches() -> list[Patch]:
    """Patches of the policy, once a model is boosted."""
    from stable_baselines3.dqn.policies import DQNPolicy

    return off_policy.acting_patches(DQNPolicy)


class Learner(OffPolicyLearner):
    """Makes the gradient steps of one DQN."""

    logged = {"train/loss": kernels.LOSS}  # noqa: RUF012

    def __init__(self, model: Any):
        found = linear_chain(model.q_net.q_net, "q_net")
        assert not isinstance(found, str)
        self._linears, self._kind = found
        self._q_net = model.q_net.q_net
        names = [name for name, _ in model.q_net.named_parameters()]
        targets = list(model.q_net_target.parameters())
        self._tensors_of_q = Tensors(model.policy.optimizer, names, parameters_of(self._linears), targets)
        table = Layout(1).table(self._linears, self._kind, 0)
        acting = Acting(model, table, self._tensors_of_q.weights)
        super().__init__(model, tuple(NETWORKS), [self._tensors_of_q], acting)
        self._tensors_of_q.has_targets = False  # `train` does not change them

    def compile(self, model: Any) -> None:
        """Load or compile the kernels, without changing anything."""
        samples = self.allocate(0, 1)
        samples.compile(model.replay_buffer)
        self._update(samples, np.zeros(kernels.STATISTICS))
        self.act(model.policy, np.zeros((0, self._linears[0].in_features), dtype=np.float32), True)

    def exchanged(self, model: Any) -> bool:
        """See `OffPolicyLearner.exchanged`."""
        return model.policy.optimizer is not self._tensors_of_q.optimizer

    def describe(self) -> str:
        """One line for the user."""
        return f"q_net {shape_of(self._linears)}"

    def allocate(self, batch_size: int, threads: int) -> Samples:
        """See `OffPolicyLearner.allocate`."""
        del threads
        width, layout = self._linears[0].in_features, Layout(batch_size)
        later, now = layout.region(width), layout.region(width)
        q_net = layout.table(self._linears, self._kind, now)
        on_next = layout.table(self._linears, self._kind, later)
        self._tables = kernels.Networks(q_net, on_next, self._tensors_of_q.addresses)
        self._memory = layout.memory()
        self._tensors_of_q.show_gradients([q_net], self._memory.grads)
        return Samples(batch_size, self.observations, 1)

    def copies_of_targets(self, model: Any) -> int:
        """See `OffPolicyLearner.copies_of_targets`."""
        return int(model._n_calls // max(model.target_update_interval // model.n_envs, 1))

    def gradient_step(self, model: Any, step: int, found: NDArray[np.float64]) -> None:
        """See `OffPolicyLearner.gradient_step`."""
        del step
        assert self.samples is not None
        self._tensors_of_q.settings[dense.MAX_GRAD_NORM] = model.max_grad_norm
        self.samples.draw(model)
        self._update(self.samples, found)

    def _update(self, samples: Samples, found: NDArray[np.float64]) -> None:
        kernels.update(self._tables, self._memory, samples.batch, self._tensors_of_q.settings, found)

    def act(self, policy: Any, rows: NDArray[np.float32], deterministic: bool) -> NDArray[Any] | None:
        """See `OffPolicyLearner.act`: greedy actions [environments]."""
        del policy, deterministic
        self.set_training_mode(False)
        actions = np.empty(len(rows), dtype=np.int64)
        acting = self.acting
        if not kernels.act(acting.table, acting.addresses, rows, acting.scratch, actions):
            return None
        return actions

    def is_close(self, ours: NDArray[Any], theirs: NDArray[Any], rows: NDArray[np.float32]) -> bool:
        """Whether the actions are the same, or their values up to rounding."""
        if ours.shape != theirs.shape:
            return False
        with torch.no_grad():
            values = self._q_net(torch.from_numpy(rows)).numpy()
        lines = np.arange(len(rows))
        return np.allclose(values[lines, ours], values[lines, theirs], 1e-4, 1e-4, equal_nan=True)
