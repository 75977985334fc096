"""The compiled SAC: stands in for `train` and the policy's `predict`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hotloop.boost import dense_kernels as dense
from hotloop.boost import eligible, off_policy, off_policy_eligible
from hotloop.boost import sac_kernels as kernels
from hotloop.boost.audit import NotFinite
from hotloop.boost.network_tables import Layout, Tensors, parameters_of, shape_of, tables_of_critics
from hotloop.boost.off_policy import Acting, OffPolicyLearner, threads_for_actor_and_critics
from hotloop.boost.off_policy_eligible import linear_chain
from hotloop.boost.replay_samples import Samples
from hotloop.boost.team import Team
from hotloop.instrument.patch import Patch

NETWORKS = {"actor": "Actor", "critic": "ContinuousCritic", "critic_target": "ContinuousCritic"}
DISTRIBUTIONS = "stable_baselines3.common.distributions"
SOURCES = (
    *off_policy_eligible.SOURCES,
    *off_policy_eligible.CRITIC_SOURCES,
    "stable_baselines3.sac.sac.SAC.train",
    *(
        f"stable_baselines3.sac.policies.Actor.{name}"
        for name in ("__init__", "get_action_dist_params", "forward", "action_log_prob", "_predict")
    ),
    *(
        f"stable_baselines3.sac.policies.SACPolicy.{name}"
        for name in ("_build", "_predict", "set_training_mode")
    ),
    *(
        f"{DISTRIBUTIONS}.SquashedDiagGaussianDistribution.{name}"
        for name in ("__init__", "proba_distribution", "log_prob", "sample", "mode", "log_prob_from_params")
    ),
    *(
        f"{DISTRIBUTIONS}.DiagGaussianDistribution.{name}"
        for name in ("proba_distribution", "log_prob", "sample", "mode", "actions_from_params")
    ),
    f"{DISTRIBUTIONS}.sum_independent_dims",
)


def why_not(model: Any) -> str | None:
    """None if this model can be boosted; else the reason."""
    reason = off_policy_eligible.why_not(model, "SACPolicy", NETWORKS)
    if reason is not None:
        return reason
    actor = model.actor
    reason = eligible.other_distribution(actor.action_dist, "SquashedDiagGaussianDistribution")
    reason = reason or eligible.other_sequence(actor.latent_pi, "actor.latent_pi")
    if reason is not None:
        return reason
    if actor.action_dist.epsilon != 1e-6:
        return f"action_dist has epsilon={actor.action_dist.epsilon:g}: not 1e-06"
    for head in ("mu", "log_std"):
        found = linear_chain([*actor.latent_pi, getattr(actor, head)], "actor")
        if isinstance(found, str):
            return found
    for name in ("critic", "critic_target"):
        for index, network in enumerate(getattr(model, name).q_networks):
            found = linear_chain(network, f"{name}.qf{index}")
            if isinstance(found, str):
                return found
    if model.ent_coef_optimizer is not None:
        reason = _learned_ent_coef_reason(model)
    elif not isinstance(getattr(model, "ent_coef_tensor", None), torch.Tensor):
        reason = "ent_coef_tensor is missing"
    return (
        reason
        or eligible.optimizer(actor.optimizer, list(actor.parameters()))
        or eligible.optimizer(model.critic.optimizer, list(model.critic.parameters()))
    )


def _learned_ent_coef_reason(model: Any) -> str | None:
    number = model.log_ent_coef
    if not isinstance(number, torch.Tensor) or number.shape != (1,) or number.dtype is not torch.float32:
        return "log_ent_coef is not one float32 number"
    if not number.requires_grad or number.device.type != "cpu":
        return "log_ent_coef does not require a gradient on the CPU"
    if model.ent_coef_optimizer.param_groups[0]["weight_decay"]:
        return "the entropy coefficient's optimizer has weight decay"
    return eligible.optimizer(model.ent_coef_optimizer, [number])


def acting_patches() -> list[Patch]:
    """Patches of the policy, once a model is boosted."""
    from stable_baselines3.sac.policies import SACPolicy

    return off_policy.acting_patches(SACPolicy)


class Learner(OffPolicyLearner):
    """Makes the gradient steps of one SAC."""

    default_batch_size = 64

    def __init__(self, model: Any):
        actor, critic = model.actor, model.critic
        body = linear_chain([*actor.latent_pi, actor.mu], "actor")
        assert not isinstance(body, str)
        self._actor, self._actor_kind = [*body[0], actor.log_std], body[1]
        chains = [linear_chain(network, "critic") for network in critic.q_networks]
        self._critics = [found for found in chains if not isinstance(found, str)]
        self.of_actor = Tensors(
            actor.optimizer,
            [f"actor.{name}" for name, _ in actor.named_parameters()],
            parameters_of(self._actor),
        )
        self.of_critic = Tensors(
            critic.optimizer, [f"critic.{name}" for name, _ in critic.named_parameters()],
            [tensor for linears, _ in self._critics for tensor in parameters_of(linears)],
            list(model.critic_target.parameters()),
        )  # fmt: skip
        groups = [self.of_actor, self.of_critic]
        self.of_ent_coef: Tensors | None = None
        self.logged = {
            "train/ent_coef": kernels.ENT_COEF_USED,
            "train/actor_loss": kernels.ACTOR_LOSS,
            "train/critic_loss": kernels.CRITIC_LOSS,
        }
        if model.ent_coef_optimizer is not None:
            self.of_ent_coef = Tensors(model.ent_coef_optimizer, ["log_ent_coef"], [model.log_ent_coef])
            groups.append(self.of_ent_coef)
            self.logged["train/ent_coef_loss"] = kernels.ENT_COEF_LOSS
        table = Layout(1).table(self._actor, self._actor_kind, 0, heads=2)
        acting = Acting(model, table, self.of_actor.weights)
        super().__init__(model, tuple(NETWORKS), groups, acting)
        self._count, self._distribution = actor.mu.out_features, actor.action_dist
        self._settings = np.zeros(kernels.SETTINGS)
        noise = torch.zeros(1, self._count)
        self._acting_noise = noise, noise.numpy()
        self._optimizers = np.full((3, dense.OPTIMIZER_SETTINGS), -1.0)  # no clipping
        for row, group in enumerate(groups):
            group.settings = self._optimizers[row]

    def compile(self, model: Any) -> None:
        """Load or compile the kernels, without changing anything."""
        samples = self.allocate(0, 1)
        samples.compile(model.replay_buffer)
        self._update(samples, np.zeros(kernels.STATISTICS))
        self.act(model.policy, np.zeros((0, self._actor[0].in_features), dtype=np.float32), True)

    def exchanged(self, model: Any) -> bool:
        """See `OffPolicyLearner.exchanged`; the distribution, too."""
        if model.actor.optimizer is not self.of_actor.optimizer:
            return True
        if model.critic.optimizer is not self.of_critic.optimizer:
            return True
        if model.actor.action_dist is not self._distribution:
            return True
        if self.of_ent_coef is None:
            return model.ent_coef_optimizer is not None
        return (
            model.ent_coef_optimizer is not self.of_ent_coef.optimizer
            or model.log_ent_coef is not self.of_ent_coef.weights[0]
        )

    def describe(self) -> str:
        """One line for the user."""
        actor, critic = shape_of(self._actor[:-1]), shape_of(self._critics[0][0])
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
        actor = layout.table(self._actor, self._actor_kind, blocks[kernels.ON_POLICY], heads=2)
        on_next = layout.table(self._actor, self._actor_kind, blocks[kernels.ON_NEXT], heads=2)
        critics, passes = tables_of_critics(layout, self._critics, blocks, after=count)
        ent_coef = (
            self.of_ent_coef.addresses if self.of_ent_coef else np.zeros((1, dense.ADDRESSES), dtype=np.int64)
        )
        self._tables = kernels.Networks(
            actor, on_next, passes, self.of_actor.addresses, self.of_critic.addresses, ent_coef
        )
        self.team = Team(threads)
        self._memory = layout.memory(threads)
        samples, n_critics = layout.samples, len(self._critics)
        self._scratch = kernels.Scratch(
            log_probs=np.zeros((2, samples), dtype=np.float32),
            targets=np.zeros((threads, samples), dtype=np.float32),
            next_values=np.zeros((n_critics, samples), dtype=np.float32),
            values=np.zeros((n_critics, samples), dtype=np.float32),
            losses=np.zeros(n_critics),
            action_grads=np.zeros(count * samples, dtype=np.float32),
            selected=np.zeros((n_critics, samples), dtype=np.uint64),
            chosen=np.zeros(n_critics, dtype=np.uint64),
            numbers=np.zeros(2, dtype=np.float32),
        )
        noise = torch.zeros(2, batch_size, count)
        self._noise, self._draws = noise.numpy(), (noise[0], noise[1])
        self.of_actor.show_gradients([actor], self._memory.grads)
        self.of_critic.show_gradients(critics, self._memory.grads)
        if self.of_ent_coef is not None:
            self.of_ent_coef.show_gradient(self._scratch.numbers[1:])
        return Samples(batch_size, self.observations, count)

    def gradient_step(self, model: Any, step: int, found: NDArray[np.float64]) -> None:
        """See `OffPolicyLearner.gradient_step`."""
        assert self.samples is not None
        settings = self._settings
        settings[kernels.TAU], settings[kernels.UPDATE_TARGETS] = (
            model.tau,
            step % model.target_update_interval == 0,
        )
        settings[kernels.LEARN_ENT_COEF] = self.of_ent_coef is not None
        settings[kernels.TARGET_ENTROPY] = model.target_entropy
        if self.of_ent_coef is None:
            settings[kernels.ENT_COEF] = model.ent_coef_tensor.item()
        self.samples.draw(model)
        for draw in self._draws:  # in two calls, as the library draws them
            draw.normal_()
        self._update(self.samples, found)
        if math.isnan(found[kernels.CRITIC_LOSS]):
            raise NotFinite

    def _update(self, samples: Samples, found: NDArray[np.float64]) -> None:
        self.team.run(
            kernels.update, found, self._tables, self._memory, self._scratch, samples.batch, self._noise,
            self._optimizers, self._settings,
        )  # fmt: skip

    def is_audited(self, name: str, model: Any, step: int) -> bool:
        """The library updates the targets on the first gradient step of each `train`."""
        return not name.startswith("targets.") or step % model.target_update_interval == 0

    def act(self, policy: Any, rows: NDArray[np.float32], deterministic: bool) -> NDArray[Any] | None:
        """See `OffPolicyLearner.act`: actions [environments, ...] within the space's bounds."""
        self.set_training_mode(False)
        acting, (noise, numbers) = self.acting, self._acting_noise
        if len(numbers) != len(rows):
            noise = torch.empty(len(rows), self._count, dtype=torch.float32)
            numbers = noise.numpy()
            self._acting_noise = noise, numbers
        if deterministic:
            noise.zero_()
        else:
            noise.normal_()
        actions = np.empty((len(rows), self._count), dtype=np.float32)
        if not kernels.act(acting.table, acting.addresses, rows, numbers, acting.scratch, actions):
            return None
        found: NDArray[Any] = policy.unscale_action(actions.reshape(-1, *policy.action_space.shape))
        return found
