"""The learner of soft actor-critic in torch: losses as functions, one update after the other, eager.

It is the plain twin of the fused one: same samples and same noise, the same numbers up to rounding.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hotloop import profile
from hotloop.rl.buffers.replay import ReplayBuffer
from hotloop.rl.buffers.replay_batch import ReplayBatch
from hotloop.rl.train.networks.squashed import SquashedActor, TwinCritics, squashed_log_probability
from hotloop.rl.train.runs import Stopwatch

if TYPE_CHECKING:
    from hotloop.rl.train.sac_config import SACConfig

_sample = profile("replay_sample")
_forward = profile("learner_forward")
_loss = profile("loss")
_backward = profile("backward")
_optimizer = profile("optimizer_step")
_sync = profile("weights_sync")

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
NAMES = ("critic_loss", "value", "actor_loss", "log_probability")  # the last two of the actor's updates
STATISTICS = len(NAMES) + 2  # sums of these, then updates of critics and of the actor


def soft_targets(
    next_values: Tensor,
    next_log_probabilities: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    temperature: float,
) -> Tensor:
    """rewards + discounts * (the lesser next value - temperature * log p of the next action) [batch].

    `next_values` [2, batch] are those of the target critics. `discounts` is 0 where the episode
    terminated, and only there: truncation does not end the value.
    """
    return rewards + discounts * (next_values.min(dim=0).values - temperature * next_log_probabilities)


def critic_loss(values: Tensor, targets: Tensor) -> Tensor:
    """Half the mean squared error of each critic [2, batch], added up."""
    return 0.5 * (values - targets).square().mean(dim=1).sum()


def actor_loss(log_probabilities: Tensor, values: Tensor, temperature: float) -> Tensor:
    """Mean of temperature * log p - the lesser value: what the actor makes small."""
    return (temperature * log_probabilities - values.min(dim=0).values).mean()


def anchor_loss(actions: Tensor, anchors: Tensor) -> Tensor:
    """Mean squared distance of actions without noise [batch, actions] from the anchor's."""
    return (actions - anchors).square().sum(dim=1).mean()


def temperature_gradient(mean_log_probability: float, target_entropy: float) -> float:
    """Of -log(temperature) * (log p + target entropy) by the logarithm: below 0 when entropy is too low."""
    return -(mean_log_probability + target_entropy)


class Temperature:
    """The weight of entropy, moved by Adam on its logarithm so that entropy nears its target."""

    def __init__(self, first: float, learning_rate: float, learned: bool):
        self.state = np.array([math.log(first), 0.0, 0.0, 0.0])  # logarithm, both moments, steps
        self._rate, self._learned = learning_rate, learned

    @property
    def value(self) -> float:
        """The temperature now."""
        return math.exp(self.state[0])

    def move(self, gradient: float) -> None:
        """One step of Adam."""
        if not self._learned:
            return
        own = self.state
        own[3] += 1
        own[1] = BETA1 * own[1] + (1 - BETA1) * gradient
        own[2] = BETA2 * own[2] + (1 - BETA2) * gradient * gradient
        scaled = own[1] / (1 - BETA1 ** own[3])
        own[0] -= self._rate * scaled / (math.sqrt(own[2] / (1 - BETA2 ** own[3])) + EPSILON)


class TorchLearner:
    """Actor, critics, their slow targets, temperature and three Adams."""

    name = "torch"

    def __init__(
        self, actor: SquashedActor, critics: TwinCritics, config: SACConfig, watch: Stopwatch | None = None
    ):
        self.actor, self.critics, self.targets = actor, critics, copy.deepcopy(critics)
        self.targets.requires_grad_(False)
        self.anchor = copy.deepcopy(actor).requires_grad_(False)
        self.temperature = Temperature(
            config.first_temperature, config.learning_rate, config.learn_temperature
        )
        self.statistics = np.zeros(STATISTICS)
        self._config = config
        self._target_entropy = config.target_entropy_for(actor.actions)
        self._adams = [_adam(actor, config.actor_rate), _adam(critics, config.learning_rate)]
        self._tensors: tuple[ReplayBatch, dict[str, Tensor]] | None = None
        watch = watch or Stopwatch()
        self._sampling = watch.part("replay", _sample)
        self._parts = [
            watch.part("learning", region) for region in (_forward, _loss, _backward, _optimizer, _sync)
        ]

    def warm_up(self, buffer: ReplayBuffer, batch: ReplayBatch) -> None:
        """Nothing to compile."""

    def act(
        self, observations: NDArray[Any], noise: NDArray[np.float32], actions: NDArray[np.float32]
    ) -> None:
        """Actions for standard normal `noise` [rows, actions], into `actions`."""
        with torch.inference_mode():
            means, log_stds = self.actor(_tensor(observations))
            torch.tanh(means + log_stds.exp() * torch.from_numpy(noise), out=torch.from_numpy(actions))

    def best(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Actions without noise [rows, actions], a new array."""
        with torch.inference_mode():
            found: NDArray[np.float32] = self.actor.best(_tensor(observations)).numpy()
        return found

    def learn(
        self, buffer: ReplayBuffer, batch: ReplayBatch, noise: NDArray[np.float32], learn_actor: bool
    ) -> None:
        """An update for each of `noise` [updates, 2, batch, actions], each on a fresh sample."""
        for one in noise:
            with self._sampling:
                buffer.sample(batch)
            if self._tensors is None or self._tensors[0] is not batch:
                self._tensors = batch, batch.tensors()
            self._update(self._tensors[1], torch.from_numpy(one), learn_actor)

    def _update(self, fields: Mapping[str, Tensor], noise: Tensor, learn_actor: bool) -> None:
        """Critics, then actor and temperature, then targets."""
        forward, losses, backward, optimizer, sync = self._parts
        actor_adam, critic_adam = self._adams
        temperature = self.temperature.value
        observations = fields["observations"]
        with forward:
            with torch.no_grad():
                later = fields["next_observations"]
                next_actions, next_logs = self.actor.sample(later, noise[0])
                targets = soft_targets(
                    self.targets(later, next_actions),
                    next_logs,
                    fields["rewards"],
                    fields["discounts"],
                    temperature,
                )
            values = self.critics(observations, fields["actions"])
        with losses:
            loss = critic_loss(values, targets)
        with backward:
            critic_adam.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
        with optimizer:
            critic_adam.step()
        self.statistics += (float(loss.detach()), float(values.detach().mean()), 0.0, 0.0, 1.0, 0.0)
        if learn_actor:
            with forward:
                self.critics.requires_grad_(False)
                means, log_stds = self.actor(observations)
                raw = means + log_stds.exp() * noise[1]
                logs = squashed_log_probability(raw, log_stds, noise[1])
                values = self.critics(observations, torch.tanh(raw))
            with losses:
                loss = actor_loss(logs, values, temperature)
                if self._config.anchor_weight:
                    anchors = self.anchor.best(observations)
                    loss = loss + self._config.anchor_weight * anchor_loss(torch.tanh(means), anchors)
            with backward:
                actor_adam.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                self.critics.requires_grad_(True)
            with optimizer:
                actor_adam.step()
                mean_log = float(logs.detach().mean())
                self.temperature.move(temperature_gradient(mean_log, self._target_entropy))
            self.statistics += (0.0, 0.0, float(loss.detach()), mean_log, 0.0, 1.0)
        with sync, torch.no_grad():
            for mine, theirs in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                mine.lerp_(theirs, self._config.target_rate)

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything learnt, under the names of the parameters; copies."""
        found: dict[str, NDArray[Any]] = {"temperature": self.temperature.state.copy()}
        for part, module, adam in self._modules():
            for name, weight in module.named_parameters():
                found[f"{part}.weights.{name}"] = weight.detach().numpy().copy()
                if adam is not None:
                    moments = adam.state[weight]
                    found[f"{part}.steps"] = np.array([int(moments["step"])], dtype=np.int64)
                    found[f"{part}.first.{name}"] = moments["exp_avg"].numpy().copy()
                    found[f"{part}.second.{name}"] = moments["exp_avg_sq"].numpy().copy()
        return found

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `state` of a learner with the same networks gave."""
        self.temperature.state[:] = state["temperature"]
        with torch.no_grad():
            for part, module, adam in self._modules():
                for name, weight in module.named_parameters():
                    weight.copy_(torch.from_numpy(state[f"{part}.weights.{name}"]))
                    if adam is not None:
                        moments = adam.state[weight]
                        moments["exp_avg"].copy_(torch.from_numpy(state[f"{part}.first.{name}"]))
                        moments["exp_avg_sq"].copy_(torch.from_numpy(state[f"{part}.second.{name}"]))
                        moments["step"].fill_(float(state[f"{part}.steps"][0]))

    def _modules(self) -> list[tuple[str, torch.nn.Module, torch.optim.Adam | None]]:
        return [
            ("actor", self.actor, self._adams[0]),
            ("critics", self.critics, self._adams[1]),
            ("targets", self.targets, None),
            ("anchor", self.anchor, None),
        ]


def _adam(module: torch.nn.Module, learning_rate: float) -> torch.optim.Adam:
    adam = torch.optim.Adam(
        module.parameters(), lr=learning_rate, betas=(BETA1, BETA2), eps=EPSILON, fused=True
    )
    for weight in module.parameters():
        adam.state[weight] = {
            "step": torch.zeros(()),
            "exp_avg": torch.zeros_like(weight),
            "exp_avg_sq": torch.zeros_like(weight),
        }
    return adam


def _tensor(rows: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(rows))
