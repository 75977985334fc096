"""The compiled TD3 and DDPG: stand in for `train` and the policy's `predict`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hotloop.boost import dense_kernels as dense
from hotloop.boost import eligible, off_policy, off_policy_eligible
from hotloop.boost import td3_kernels as kernels
from hotloop.boost.network_tables import Layout, Tensors, parameters_of, shape_of, tables_of_critics
from hotloop.boost.off_policy import Acting, OffPolicyLearner, threads_for_actor_and_critics
from hotloop.boost.off_policy_eligible import linear_chain
from hotloop.boost.replay_samples import Samples
from hotloop.boost.team import Team
from hotloop.instrument.patch import Patch

NETWORKS = {
    "actor": "Actor", "actor_target": "Actor",
    "critic": "ContinuousCritic", "critic_target": "ContinuousCritic",
}  # fmt: skip
SOURCES = (
    *off_policy_eligible.SOURCES,
    *off_policy_eligible.CRITIC_SOURCES,
    "stable_baselines3.td3.td3.TD3.train",
    *(f"stable_baselines3.td3.policies.Actor.{name}" for name in ("__init__", "forward", "_predict")),
    *(
        f"stable_baselines3.td3.policies.TD3Policy.{name}"
        for name in ("_build", "_predict", "set_training_mode")
    ),
)


def why_not(model: Any) -> str | None:
    """None if this model can be boosted; else the reason."""
    reason = off_policy_eligible.why_not(model, "TD3Policy", NETWORKS)
    if reason is not None:
        return reason
    for name in ("actor", "actor_target"):
        reason = eligible.other_sequence(getattr(model, name).mu, f"{name}.mu")
        if reason is not None:
            return reason
        *body, last = getattr(model, name).mu
        if type(last) is not nn.Tanh:
            return f"{name} ends with {type(last).__name__}: not Tanh"
        found = linear_chain(body, name)
        if isinstance(found, str):
            return found
    for name in ("critic", "critic_target"):
        for index, network in enumerate(getattr(model, name).q_networks):
            found = linear_chain(network, f"{name}.qf{index}")
            if isinstance(found, str):
                return found
    for name in ("target_policy_noise", "target_noise_clip"):
        if not isinstance(getattr(model, name), (int, float)):
            return f"{name} is a {type(getattr(model, name)).__name__}, not a number"
    return eligible.optimizer(model.actor.optimizer, list(model.actor.parameters())) or eligible.optimizer(
        model.critic.optimizer, list(model.critic.parameters())
    )


def acting_patches() -> list[Patch]:
    """Patches of the policy, once a model is boosted."""
    from stable_baselines3.td3.policies import TD3Policy

    return off_policy.acting_patches(TD3Policy)


class Learner(OffPolicyLearner):
    """Makes the gradient steps of one TD3 or DDPG."""

    logged = {"train/actor_loss": kernels.ACTOR_LOSS, "train/critic_loss": kernels.CRITIC_LOSS}  # noqa: RUF012

    def __init__(self, model: Any):
        actor, critic = model.actor, model.critic
        body = linear_chain([*actor.mu][:-1], "actor")
        assert not isinstance(body, str)
        self._actor, self._actor_kind = body
        chains = [linear_chain(network, "critic") for network in critic.q_networks]
        self._critics = [found for found in chains if not isinstance(found, str)]
        self.of_actor = Tensors(
            actor.optimizer, [f"actor.{name}" for name, _ in actor.named_parameters()],
            parameters_of(self._actor), list(model.actor_target.parameters()),
        )  # fmt: skip
        self.of_critic = Tensors(
            critic.optimizer, [f"critic.{name}" for name, _ in critic.named_parameters()],
            [tensor for linears, _ in self._critics for tensor in parameters_of(linears)],
            list(model.critic_target.parameters()),
        )  # fmt: skip
        table = Layout(1).table(self._actor, self._actor_kind, 0)
        acting = Acting(model, table, self.of_actor.weights)
        super().__init__(model, tuple(NETWORKS), [self.of_actor, self.of_critic], acting)
        self._count = self._actor[-1].out_features
        self._settings = np.zeros(kernels.SETTINGS)
        self._optimizers = np.full((2, dense.OPTIMIZER_SETTINGS), -1.0)  # no clipping
        for row, group in enumerate(self.groups):
            group.settings = self._optimizers[row]

    def compile(self, model: Any) -> None:
        """Load or compile the kernels, without changing anything."""
        samples = self.allocate(0, 1)
        samples.compile(model.replay_buffer)
        self._update(samples, np.zeros(kernels.STATISTICS))
        self.act(model.policy, np.zeros((0, self._actor[0].in_features), dtype=np.float32), True)

    def exchanged(self, model: Any) -> bool:
        """See `OffPolicyLearner.exchanged`."""
        return (
            model.actor.optimizer is not self.of_actor.optimizer
            or model.critic.optimizer is not self.of_critic.optimizer
        )

    def describe(self) -> str:
        """One line for the user."""
        actor, critic = shape_of(self._actor), shape_of(self._critics[0][0])
        return f"actor {actor}, {len(self._critics)} critics {critic}"

    def threads(self, batch_size: int) -> int:
        """See `OffPolicyLearner.threads`."""
        critics = [linears for linears, _ in self._critics]
        return threads_for_actor_and_critics(batch_size, self._actor, critics)

    def allocate(self, batch_size: int, threads: int) -> Samples:
        """See `OffPolicyLearner.allocate`."""
        layout, count = Layout(batch_size), self._count
        width = self._actor[0].in_features
        blocks = [layout.region(width + count) for _ in range(3)]
        actor = layout.table(self._actor, self._actor_kind, blocks[kernels.ON_POLICY])
        on_next = layout.table(self._actor, self._actor_kind, blocks[kernels.ON_NEXT])
        critics, passes = tables_of_critics(layout, self._critics, blocks, after=count)
        self._tables = kernels.Networks(
            actor, on_next, passes, self.of_actor.addresses, self.of_critic.addresses
        )
        self.team = Team(threads)
        self._memory = layout.memory(threads)
        self._scratch = kernels.Scratch(
            targets=np.zeros((threads, layout.samples), dtype=np.float32),
            next_values=np.zeros((len(self._critics), layout.samples), dtype=np.float32),
            losses=np.zeros(len(self._critics)),
            action_grads=np.zeros(count * layout.samples, dtype=np.float32),
            everyone=np.arange(layout.samples, dtype=np.uint64),
        )
        self._draw = torch.zeros(batch_size, count)
        self._noise = self._draw.numpy()
        self._has_actor_gradient = False
        self.of_actor.show_gradients([actor], self._memory.grads)
        self.of_critic.show_gradients(critics, self._memory.grads)
        return Samples(batch_size, self.observations, count)

    def gradient_step(self, model: Any, step: int, found: NDArray[np.float64]) -> None:
        """See `OffPolicyLearner.gradient_step`."""
        del step
        assert self.samples is not None
        model._n_updates += 1
        settings = self._settings
        settings[kernels.NOISE_CLIP], settings[kernels.TAU] = model.target_noise_clip, model.tau
        settings[kernels.UPDATE_ACTOR] = model._n_updates % model.policy_delay == 0
        self._has_actor_gradient |= bool(settings[kernels.UPDATE_ACTOR])
        found[kernels.ACTOR_LOSS] = np.nan  # unless the actor is updated
        self.samples.draw(model)
        self._draw.normal_(0, model.target_policy_noise)
        self._update(self.samples, found)

    def _update(self, samples: Samples, found: NDArray[np.float64]) -> None:
        self.team.run(
            kernels.update, found, self._tables, self._memory, self._scratch, samples.batch, self._noise,
            self._optimizers, self._settings,
        )  # fmt: skip

    def write_grads(self) -> None:
        """See `OffPolicyLearner.write_grads`; the actor has none before its first update."""
        self.of_critic.write_grads()
        if self._has_actor_gradient:
            self.of_actor.write_grads()

    def finish(self, model: Any, gradient_steps: int, rows: NDArray[np.float64]) -> None:
        """See `OffPolicyLearner.finish`; each gradient step has counted itself."""
        del gradient_steps
        self.of_actor.forget_unused_moments()
        model.logger.record("train/n_updates", model._n_updates, exclude="tensorboard")
        of_actor = rows[:, kernels.ACTOR_LOSS]
        if not np.isnan(of_actor).all():
            model.logger.record("train/actor_loss", np.nanmean(of_actor))
        model.logger.record("train/critic_loss", np.mean(rows[:, kernels.CRITIC_LOSS]))

    def act(self, policy: Any, rows: NDArray[np.float32], deterministic: bool) -> NDArray[Any]:
        """See `OffPolicyLearner.act`: actions [environments, ...] within the space's bounds."""
        del deterministic
        self.set_training_mode(False)
        actions = np.empty((len(rows), self._count), dtype=np.float32)
        kernels.act(self.acting.table, self.acting.addresses, rows, self.acting.scratch, actions)
        found: NDArray[Any] = policy.unscale_action(actions.reshape(-1, *policy.action_space.shape))
        return found
