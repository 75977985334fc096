"""PPO's learner in torch, for any network: eager, or with the whole minibatch step compiled.

The eager learner is the plain twin of the fused one: `ppo_loss`, backward, clipping, Adam.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hotloop import profile
from hotloop.rl.buffers.rollout import RolloutBuffer
from hotloop.rl.train.fused.ppo import STATISTICS as NAMES

if TYPE_CHECKING:
    from hotloop.rl.train.ppo import PPOConfig

_sampling = profile("replay_sample")
_forward = profile("learner_forward")
_loss = profile("loss")
_backward = profile("backward")
_optimizer = profile("optimizer_step")
_whole_step = profile("learner_step", "model")

FORBIDDEN = -1e8  # a logit this low has probability 0 in float32, and harmless gradients
BETA1, BETA2 = 0.9, 0.999


class PPOLoss(NamedTuple):
    """The loss and its parts, each a scalar tensor."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor
    clipped: Tensor


class Samples(NamedTuple):
    """A minibatch, each [samples, ...]; `masks` is None when every action is allowed."""

    observations: Tensor
    actions: Tensor
    log_probabilities: Tensor
    advantages: Tensor
    returns: Tensor
    values: Tensor
    masks: Tensor | None

    def rows(self, chosen: Tensor) -> Samples:
        """Copies of these rows."""
        masks = None if self.masks is None else self.masks[chosen]
        observations, actions, log_probabilities, advantages, returns, values = (
            one[chosen] for one in self[:6]
        )
        return Samples(observations, actions, log_probabilities, advantages, returns, values, masks)


def masked_log_softmax(logits: Tensor, masks: Tensor | None) -> Tensor:
    """Log-probabilities [samples, actions] of what the masks allow."""
    if masks is not None:
        logits = torch.where(masks, logits, FORBIDDEN)
    return torch.log_softmax(logits, dim=-1)


def ppo_loss(
    logits: Tensor,
    values: Tensor,
    samples: Samples,
    *,
    clip: float,
    value_clip: float | None,
    value_weight: float,
    entropy_weight: float,
) -> PPOLoss:
    """The clipped surrogate of Schulman et al. (2017), equation 9, as a loss to be made small.

    total = policy + value_weight * value - entropy_weight * entropy; `value` is the mean squared error,
    with `value_clip` the larger one of it and that of the value clipped around the old value. `kl` is the
    estimate (r - 1) - log r; `clipped` the fraction of ratios r outside 1 +- clip.
    """
    log_p = masked_log_softmax(logits, samples.masks)
    chosen = log_p.gather(1, samples.actions[:, None]).squeeze(1)
    log_ratio = chosen - samples.log_probabilities
    ratio = log_ratio.exp()
    plain = -samples.advantages * ratio
    clipped = -samples.advantages * ratio.clamp(1.0 - clip, 1.0 + clip)
    policy = torch.maximum(plain, clipped).mean()
    errors = (values - samples.returns).square()
    if value_clip is not None:
        near = samples.values + (values - samples.values).clamp(-value_clip, value_clip)
        errors = torch.maximum(errors, (near - samples.returns).square())
    value = errors.mean()
    entropy = -(log_p.exp() * log_p).sum(dim=1).mean()
    total = policy + value_weight * value - entropy_weight * entropy
    with torch.no_grad():
        kl = (ratio - 1.0 - log_ratio).mean()
        outside = ((ratio - 1.0).abs() > clip).float().mean()
    return PPOLoss(total, policy, value, entropy, kl, outside)


def normalised(advantages: Tensor) -> Tensor:
    """Advantages of a minibatch with mean 0 and standard deviation 1."""
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


class TorchLearner:
    """Any network that maps observations to (logits, values), learnt with torch; owns Adam's moments.

    `compiled`: the whole minibatch step (loss, gradient, clipping, Adam) is one function of torch.compile.
    """

    def __init__(self, network: nn.Module, config: PPOConfig, *, compiled: bool = False):
        self.name = "compiled" if compiled else "torch"
        self.network = network
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

    # ---- acting

    def act(
        self,
        observations: NDArray[Any],
        masks: NDArray[np.bool_] | None,
        uniforms: NDArray[np.float32],
        actions: NDArray[np.int64],
        log_probabilities: NDArray[np.float32],
    ) -> None:
        """Draw an action for each row by its number in [0, 1), into the caller's arrays [rows]."""
        log_p = self._log_probabilities(observations, masks)
        summed = log_p.exp().cumsum(dim=1)
        drawn = (summed <= torch.from_numpy(uniforms)[:, None] * summed[:, -1:]).sum(dim=1)
        # Rounding can leave the last sum at the number drawn; then the last allowed action is meant.
        last = torch.tensor(log_p.shape[1] - 1)
        if masks is not None:
            last = last - torch.from_numpy(masks).flip(1).int().argmax(dim=1)
        drawn = torch.minimum(drawn, last)
        actions[:] = drawn.numpy()
        log_probabilities[:] = log_p.gather(1, drawn[:, None]).squeeze(1).numpy()

    def best(self, observations: NDArray[Any], masks: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """The likeliest action for each row, a new array."""
        found: NDArray[np.int64] = self._log_probabilities(observations, masks).argmax(dim=1).numpy()
        return found

    def values(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """The critic's value for each row, a new array."""
        with torch.inference_mode():
            values = getattr(self.network, "values", lambda given: self.network(given)[1])
            found: NDArray[np.float32] = values(torch.from_numpy(np.ascontiguousarray(observations))).numpy()
        return found

    def _log_probabilities(self, observations: NDArray[Any], masks: NDArray[np.bool_] | None) -> Tensor:
        with torch.inference_mode():
            logits = getattr(self.network, "logits", lambda given: self.network(given)[0])
            found = logits(torch.from_numpy(np.ascontiguousarray(observations)))
            return masked_log_softmax(found, None if masks is None else torch.from_numpy(masks))

    # ---- learning

    def update(
        self,
        buffer: RolloutBuffer,
        order: NDArray[np.int64],
        edges: NDArray[np.int64],
        learning_rate: float,
    ) -> dict[str, float]:
        """All epochs over a rollout; means over the minibatches done.

        Minibatch k of an epoch is order[epoch, edges[k] : edges[k + 1]], indices step * envs + env.
        """
        flat = _flattened(buffer)
        self._adam.param_groups[0]["lr"] = learning_rate
        shuffled = torch.from_numpy(order)
        totals = torch.zeros(len(NAMES), dtype=torch.float64)
        done = epochs = 0
        for rows in shuffled:
            kl_before = float(totals[3])
            for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
                with _sampling:
                    part = rows[start:stop]
                    samples = flat.rows(part)
                    if self._config.normalise_advantages:
                        samples = samples._replace(advantages=normalised(samples.advantages))
                totals += self._minibatch(samples, learning_rate)
                done += 1
            epochs += 1
            target = self._config.target_kl
            if target is not None and (float(totals[3]) - kl_before) / (len(edges) - 1) > target:
                break
        means = (totals / max(done, 1)).tolist()
        return {**dict(zip(NAMES, means, strict=True)), "epochs": float(epochs)}

    def _minibatch(self, samples: Samples, learning_rate: float) -> Tensor:
        if self._step is not None:
            with _whole_step:
                return self._step_compiled(samples, learning_rate)
        config = self._config
        with _forward:
            logits, values = self.network(samples.observations)
        with _loss:
            loss = ppo_loss(logits, values, samples, **loss_settings(config))
        with _backward:
            self._adam.zero_grad(set_to_none=True)
            loss.total.backward()  # type: ignore[no-untyped-call]
        with _optimizer:
            largest = config.max_grad_norm if config.max_grad_norm is not None else float("inf")
            norm = nn.utils.clip_grad_norm_(self._weights.values(), largest)
            self._adam.step()
        parts = (loss.policy, loss.value, loss.entropy, loss.kl, loss.clipped, norm)
        return torch.stack([part.detach() for part in parts]).double()

    def _step_compiled(self, samples: Samples, learning_rate: float) -> Tensor:
        assert self._step is not None
        states = [self._adam.state[weight] for weight in self._weights.values()]
        for state in states:
            state["step"] += 1
        found: Tensor = self._step(
            dict(self._weights),
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            states[0]["step"],
            torch.tensor(learning_rate),
            *samples,
        )
        return found.double()

    # ---- keeping

    def state(self) -> dict[str, NDArray[Any]]:
        """Weights and Adam's moments under the names of the network's parameters; copies."""
        first = self._adam.state[next(iter(self._weights.values()))]
        found: dict[str, NDArray[Any]] = {"steps": np.array([int(first["step"])], dtype=np.int64)}
        for name, weight in self._weights.items():
            moments = self._adam.state[weight]
            found[f"weights.{name}"] = weight.detach().numpy().copy()
            found[f"first.{name}"] = moments["exp_avg"].numpy().copy()
            found[f"second.{name}"] = moments["exp_avg_sq"].numpy().copy()
        return found

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `state` of a learner with the same network gave."""
        with torch.no_grad():
            for name, weight in self._weights.items():
                moments = self._adam.state[weight]
                weight.copy_(torch.from_numpy(state[f"weights.{name}"]))
                moments["exp_avg"].copy_(torch.from_numpy(state[f"first.{name}"]))
                moments["exp_avg_sq"].copy_(torch.from_numpy(state[f"second.{name}"]))
                moments["step"].fill_(float(state["steps"][0]))


def loss_settings(config: PPOConfig) -> dict[str, Any]:
    """The keyword arguments of `ppo_loss` that a config holds."""
    return {
        "clip": config.clip,
        "value_clip": config.value_clip,
        "value_weight": config.value_weight,
        "entropy_weight": config.entropy_weight,
    }


def _flattened(buffer: RolloutBuffer) -> Samples:
    """Views of the buffer as [samples, ...]."""
    count = buffer.steps * buffer.envs

    def flat(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array.reshape(count, *array.shape[2:]))

    return Samples(
        flat(buffer.observations[:-1]),
        flat(buffer.actions),
        flat(buffer.log_probabilities),
        flat(buffer.advantages),
        flat(buffer.returns),
        flat(buffer.values[:-1]),
        flat(buffer.masks) if buffer.masked else None,
    )


def compiled_step(network: nn.Module, config: PPOConfig) -> Any:
    """Loss, gradient, clipping and Adam as one function of torch.compile, changing its tensors in place."""
    settings = loss_settings(config)
    largest = config.max_grad_norm
    epsilon = config.adam_epsilon

    def loss_of(weights: dict[str, Tensor], samples: Samples) -> tuple[Tensor, tuple[Tensor, ...]]:
        logits, values = torch.func.functional_call(network, weights, (samples.observations,))
        loss = ppo_loss(logits, values, samples, **settings)
        return loss.total, loss[1:]

    def step(
        weights: dict[str, Tensor],
        first: list[Tensor],
        second: list[Tensor],
        count: Tensor,
        rate: Tensor,
        *samples: Any,
    ) -> Tensor:
        gradients, parts = torch.func.grad(loss_of, has_aux=True)(weights, Samples(*samples))
        norm = torch.sqrt(sum((g.square().sum() for g in gradients.values()), torch.zeros(())))
        scale = torch.ones(()) if largest is None else (largest / (norm + 1e-6)).clamp(max=1.0)
        step_size = rate / (1.0 - BETA1**count)
        root = torch.sqrt(1.0 - BETA2**count)
        for (name, weight), m, v in zip(weights.items(), first, second, strict=True):
            gradient = gradients[name] * scale
            m.lerp_(gradient, 1.0 - BETA1)
            v.mul_(BETA2).addcmul_(gradient, gradient, value=1.0 - BETA2)
            weight.sub_(step_size * m / (v.sqrt() / root + epsilon))
        return torch.stack([*parts, norm])

    return torch.no_grad()(torch.compile(step, fullgraph=True))
