"""DQN's learner in torch, for any network: eager (the plain twin of the fused one) or compiled whole."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hotloop import profile
from hotloop.rl.buffers.replay import ReplayBuffer
from hotloop.rl.buffers.replay_batch import ReplayBatch
from hotloop.rl.envs.compiled import kernel
from hotloop.rl.envs.streams import Streams, next_double
from hotloop.rl.train.fused import dqn as kernels

if TYPE_CHECKING:
    from hotloop.rl.train.dqn_config import DQNConfig

_sample = profile("replay_sample")
_transfer = profile("transfer")
_forward = profile("learner_forward")
_loss = profile("loss")
_backward = profile("backward")
_optimizer = profile("optimizer_step")
_whole_step = profile("learner_step", "model")
_sync = profile("weights_sync")

BETA1, BETA2 = 0.9, 0.999
NAMES = ("loss", "gradient_norm", "value")


def td_targets(
    online_next: Tensor, target_next: Tensor, rewards: Tensor, discounts: Tensor, *, double: bool
) -> Tensor:
    """rewards + discounts * the target's value of the next observation's best action [batch].

    The best action is the online network's choice (double DQN, van Hasselt et al., 2016) or the target's.
    `discounts` is 0 where the episode terminated, and only there: truncation does not end the value.
    """
    chooser = online_next if double else target_next
    best = chooser.argmax(dim=1, keepdim=True)
    return rewards + discounts * target_next.gather(1, best).squeeze(1)


def dqn_loss(errors: Tensor, weights: Tensor, *, huber: bool) -> Tensor:
    """Mean weighted loss of value - target: Huber's with its knee at 1, or the square."""
    if not huber:
        return (weights * errors.square()).mean()
    sizes = errors.abs()
    return (weights * torch.where(sizes < 1.0, 0.5 * errors.square(), sizes - 0.5)).mean()


@kernel
def draw_uniforms(streams: Streams, out: NDArray[np.float64]) -> None:
    """Fill `out` with the stream's next numbers in [0, 1)."""
    for place in range(out.size):
        out[place] = next_double(streams, 0)


class TorchLearner:
    """Any network observations -> values [batch, actions]; owns the target network and Adam's moments.

    `compiled`: the whole update (targets, loss, gradient, clipping, Adam) is one function of torch.compile.
    """

    def __init__(self, network: nn.Module, config: DQNConfig, *, compiled: bool = False):
        self.name = "compiled" if compiled else "torch"
        self.network, self.target = network, copy.deepcopy(network)
        self.target.requires_grad_(False)
        self.statistics = np.zeros(kernels.STATISTICS)
        self._config = config
        self._weights = dict(network.named_parameters())
        self._adam = torch.optim.Adam(
            self._weights.values(),
            lr=config.learning_rate,
            betas=(BETA1, BETA2),
            eps=config.adam_epsilon,
            fused=True,
        )
        for weight in self._weights.values():
            self._adam.state[weight] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(weight),
                "exp_avg_sq": torch.zeros_like(weight),
            }
        self._step = compiled_step(network, config) if compiled else None
        self._tensors: tuple[ReplayBatch, dict[str, Tensor]] | None = None

    def act(
        self, observations: NDArray[Any], epsilon: float, streams: Streams, actions: NDArray[np.int64]
    ) -> None:
        """The best action of each row, or with chance `epsilon` any, into `actions` [rows]."""
        uniforms = np.zeros((len(actions), 2))
        draw_uniforms(streams, uniforms.reshape(-1))
        values = self.values(observations)
        anything = (uniforms[:, 1] * values.shape[1]).astype(np.int64)
        actions[:] = np.where(uniforms[:, 0] < epsilon, anything, values.argmax(axis=1))

    def best(self, observations: NDArray[Any], masks: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """The action of the largest value for each row, among those allowed; a new array."""
        values = self.values(observations)
        if masks is not None:
            values = np.where(masks, values, -np.inf)
        found: NDArray[np.int64] = values.argmax(axis=1)
        return found

    def values(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Values [rows, actions], a new array."""
        with torch.inference_mode():
            found: NDArray[np.float32] = self.network(self._moved(observations)).numpy()
        return found

    def _moved(self, rows: NDArray[Any]) -> Tensor:
        """The rows as one tensor for the network; with transfers="items" each is moved by itself."""
        if self._config.transfers == "items":
            with _transfer:
                return torch.stack([torch.tensor(row) for row in rows])
        return torch.from_numpy(np.ascontiguousarray(rows))

    def learn(self, buffer: ReplayBuffer, batch: ReplayBatch, count: int) -> None:
        """`count` updates, each on a fresh sample."""
        config = self._config
        for _ in range(count):
            with _sample:
                buffer.sample(batch, beta=config.priority_beta)
            if config.transfers == "items":
                names = ("observations", "actions", "rewards", "next_observations", "discounts", "weights")
                fields = {name: self._moved(getattr(batch, name)) for name in names}
            else:
                if self._tensors is None or self._tensors[0] is not batch:
                    self._tensors = batch, batch.tensors()
                fields = self._tensors[1]
            loss, norm, value, errors = self._update(fields)
            self.statistics += (loss, norm, value, 1.0)
            if config.prioritised:
                buffer.update_priorities(batch.rows, errors.numpy())

    def _update(self, fields: Mapping[str, Tensor]) -> tuple[float, float, float, Tensor]:
        """One gradient step on a sample: loss, gradient norm, mean value, errors."""
        config = self._config
        if self._step is not None:
            with _whole_step:
                return self._update_compiled(fields)
        with _forward:
            with torch.no_grad():
                later = fields["next_observations"]
                target_next = self.target(later)
                online_next = self.network(later) if config.double else target_next
                rewards, discounts = fields["rewards"], fields["discounts"]
                targets = td_targets(online_next, target_next, rewards, discounts, double=config.double)
            values = self.network(fields["observations"]).gather(1, fields["actions"][:, None]).squeeze(1)
        with _loss:
            errors = values - targets
            loss = dqn_loss(errors, fields["weights"], huber=config.loss == "huber")
        with _backward:
            self._adam.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
        with _optimizer:
            largest = config.max_grad_norm if config.max_grad_norm is not None else float("inf")
            norm = nn.utils.clip_grad_norm_(self._weights.values(), largest)
            self._adam.step()
        return float(loss.detach()), float(norm), float(values.detach().mean()), -errors.detach()

    def _update_compiled(self, fields: Mapping[str, Tensor]) -> tuple[float, float, float, Tensor]:
        assert self._step is not None
        states = [self._adam.state[weight] for weight in self._weights.values()]
        for state in states:
            state["step"] += 1
        names = ("observations", "actions", "rewards", "next_observations", "discounts", "weights")
        loss, norm, value, errors = self._step(
            dict(self._weights),
            dict(self.target.named_parameters()),
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            states[0]["step"],
            *(fields[name] for name in names),
        )
        return float(loss), float(norm), float(value), errors

    def follow(self) -> None:
        """Move the target towards the network by `target_rate`."""
        with _sync, torch.no_grad():
            for mine, theirs in zip(self.target.parameters(), self.network.parameters(), strict=True):
                mine.lerp_(theirs, self._config.target_rate)

    def state(self) -> dict[str, NDArray[Any]]:
        """Weights, target and Adam's moments under the names of the network's parameters; copies."""
        first = self._adam.state[next(iter(self._weights.values()))]
        found: dict[str, NDArray[Any]] = {"steps": np.array([int(first["step"])], dtype=np.int64)}
        targets = dict(self.target.named_parameters())
        for name, weight in self._weights.items():
            moments = self._adam.state[weight]
            found[f"weights.{name}"] = weight.detach().numpy().copy()
            found[f"target.{name}"] = targets[name].detach().numpy().copy()
            found[f"first.{name}"] = moments["exp_avg"].numpy().copy()
            found[f"second.{name}"] = moments["exp_avg_sq"].numpy().copy()
        return found

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `state` of a learner with the same network gave."""
        targets = dict(self.target.named_parameters())
        with torch.no_grad():
            for name, weight in self._weights.items():
                moments = self._adam.state[weight]
                weight.copy_(torch.from_numpy(state[f"weights.{name}"]))
                targets[name].copy_(torch.from_numpy(state[f"target.{name}"]))
                moments["exp_avg"].copy_(torch.from_numpy(state[f"first.{name}"]))
                moments["exp_avg_sq"].copy_(torch.from_numpy(state[f"second.{name}"]))
                moments["step"].fill_(float(state["steps"][0]))


def compiled_step(network: nn.Module, config: DQNConfig) -> Any:
    """Targets, loss, gradient, clipping and Adam as one function of torch.compile, changing its tensors."""
    largest, double, huber = config.max_grad_norm, config.double, config.loss == "huber"
    rate, epsilon = config.learning_rate, config.adam_epsilon

    def loss_of(
        weights: dict[str, Tensor], observations: Tensor, actions: Tensor, targets: Tensor, importance: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        values = torch.func.functional_call(network, weights, (observations,))
        values = values.gather(1, actions[:, None]).squeeze(1)
        errors = values - targets
        return dqn_loss(errors, importance, huber=huber), (values.mean(), errors)

    def step(
        weights: dict[str, Tensor],
        target: dict[str, Tensor],
        first: list[Tensor],
        second: list[Tensor],
        count: Tensor,
        observations: Tensor,
        actions: Tensor,
        rewards: Tensor,
        next_observations: Tensor,
        discounts: Tensor,
        importance: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        target_next = torch.func.functional_call(network, target, (next_observations,))
        online_next = target_next
        if double:
            online_next = torch.func.functional_call(network, weights, (next_observations,))
        targets = td_targets(online_next, target_next, rewards, discounts, double=double)
        gradients, (loss, (value, errors)) = torch.func.grad_and_value(loss_of, has_aux=True)(
            weights, observations, actions, targets, importance
        )
        norm = torch.sqrt(sum((g.square().sum() for g in gradients.values()), torch.zeros(())))
        scale = torch.ones(()) if largest is None else (largest / (norm + 1e-6)).clamp(max=1.0)
        step_size, root = rate / (1.0 - BETA1**count), torch.sqrt(1.0 - BETA2**count)
        for (name, weight), m, v in zip(weights.items(), first, second, strict=True):
            gradient = gradients[name] * scale
            m.lerp_(gradient, 1.0 - BETA1)
            v.mul_(BETA2).addcmul_(gradient, gradient, value=1.0 - BETA2)
            weight.sub_(step_size * m / (v.sqrt() / root + epsilon))
        return loss, norm, value, -errors

    return torch.no_grad()(torch.compile(step, fullgraph=True))
