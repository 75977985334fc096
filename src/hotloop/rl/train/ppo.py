"""Proximal policy optimization (Schulman et al., 2017) for discrete actions, all in this file.

    from hotloop.rl.train.ppo import PPOConfig, train
    result = train(PPOConfig(env="CartPole", total_timesteps=200_000))

An iteration collects a rollout of `n_steps` steps in each of `n_envs` envs, estimates advantages, and makes
`n_epochs` passes over the rollout in shuffled batches. The loss is that of Stable-Baselines3.

Read on for the plain PyTorch version, which trains any network on any Gymnasium vector env. Two faster
learners make the same updates up to rounding: `compiled` puts one gradient step through torch.compile, and
`fused` (`fused/ppo.py`) runs the whole update, and rollouts of some of our own envs, in compiled kernels.
The plain one can also learn in several processes at once, on batches spread over them (`ranks.py`).
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from torch import Tensor, nn

from hotloop import profile, progress
from hotloop._util.errors import HotloopError
from hotloop.rl.buffers.rollout import RolloutBuffer
from hotloop.rl.nonfinite import NonFiniteCheck
from hotloop.rl.train import runs
from hotloop.rl.train.compiled_step import compile_gradient_step
from hotloop.rl.train.make_envs import EpisodeLog, RolloutState, action_masks, evaluate_policy, make_envs
from hotloop.rl.train.networks.mlp import ActorCritic
from hotloop.rl.train.ranks import ALONE, Ranks
from hotloop.rl.train.runs import MAY_DIFFER, RecentEpisodes, RunResult

if TYPE_CHECKING:
    from hotloop.rl.train.fused.ppo import FusedPPO

    Learner: TypeAlias = "TorchLearner | FusedPPO"

_fused_rollout = profile("fused_rollout", "environment")
_collect_rollouts = profile("collect_rollouts", "framework")
_env_step = profile("env_step")
_policy_forward = profile("policy_forward")
_store = profile("replay_push")
_advantage = profile("advantage")
_sample = profile("replay_sample")
_forward = profile("learner_forward")
_loss = profile("loss")
_backward = profile("backward")
_optimizer_step = profile("optimizer_step")
_compiled_step = profile("learner_step", "model")
_log = profile("log")
_checkpoint = profile("checkpoint")


@dataclass(frozen=True)
class PPOConfig:
    """Settings of a run, named as in Stable-Baselines3; the defaults solve CartPole."""

    env: str = "CartPole"
    """One of our environments (CartPole, Snake, ...) or a Gymnasium id such as CartPole-v1."""
    seed: int = 0
    """Seed of weights, actions, batches and environments."""
    total_timesteps: int = 200_000
    """Env steps to train for, rounded up to whole iterations."""
    n_envs: int = 8
    """Number of parallel environments."""
    n_steps: int = 128
    """Length of a rollout in each environment."""
    n_epochs: int = 4
    """Passes over a rollout."""
    batch_size: int = 256
    """Samples of one gradient step; must divide n_envs * n_steps."""
    learning_rate: float = 2.5e-4
    """Adam's learning rate."""
    anneal_lr: bool = False
    """Decrease the learning rate linearly to 0 over total_timesteps."""
    gamma: float = 0.99
    """Discount factor."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation: 0 is the one-step error, 1 the Monte Carlo return."""
    clip_range: float = 0.2
    """How far the probability ratio may leave 1 before its gradient is cut."""
    clip_range_vf: float | None = None
    """How far a value may leave its old value before its gradient is cut; None for no clipping."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus."""
    anneal_ent_coef: bool = False
    """Decrease ent_coef linearly to 0 over total_timesteps; not with learner="compiled"."""
    max_grad_norm: float | None = 0.5
    """Maximum norm of the gradient; None for no clipping."""
    target_kl: float | None = None
    """Make no further epoch once the mean KL divergence of one exceeds this; None for all epochs."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    normalize_advantage: bool = True
    """Normalize the advantages of each batch to mean 0 and standard deviation 1."""
    net_arch: tuple[int, ...] = (64, 64)
    """Hidden layer widths of the actor and of the critic, which share no weights."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation after each hidden layer."""
    learner: Literal["auto", "fused", "torch", "compiled"] = "auto"
    """Learner implementation; `auto` times the candidates and logs the choice."""
    threads: int = 0
    """Torch's intra-op threads; 0 uses one, or all cores where that is measurably faster."""
    allow_nonfinite: bool = False
    """Train on rewards and observations that are NaN or infinite, instead of stopping."""
    stop_at_return: float | None = None
    """Stop once the mean return of the last 100 episodes reaches this."""
    n_eval_episodes: int = 0
    """Episodes to evaluate the most likely actions on after training, in the training envs."""
    checkpoint: Path | None = None
    """File to save to during training, at its end, and on SIGTERM or Ctrl-C."""
    checkpoint_every_steps: int = 100_000
    """Env steps between two saves."""
    resume: bool = False
    """Continue from `checkpoint`."""
    tensorboard_log: Path | None = None
    """Folder for TensorBoard."""
    quiet: bool = False
    """Print no progress line."""


@dataclass(frozen=True)
class PPOResult(RunResult):
    """Result of a training run."""

    network: nn.Module
    """The trained network: observations -> (logits, values)."""
    fused_rollout: bool
    """Whether each rollout was one kernel call."""
    statistics: dict[str, float]
    """Losses and other means of the last iteration, see STATISTICS."""


# ---- rollouts


def collect_rollout(
    learner: Learner, envs: Any, buffer: RolloutBuffer, state: RolloutState, uniforms: NDArray[np.float32]
) -> None:
    """Fill the buffer with steps of any Gymnasium vector env, one uniform number [steps, envs] per action.

    With next-step autoreset, steps that are only a reset are marked as not valid.
    """
    state.episodes.count[0] = 0
    first_action = int(envs.single_action_space.start)
    buffer.observations[0] = state.observations
    for step in range(buffer.n_steps):
        masks = None
        if state.masks is not None:
            buffer.masks[step] = state.masks
            masks = buffer.masks[step]
        actions = buffer.actions[step]
        with _policy_forward:
            learner.act(
                buffer.observations[step], masks, uniforms[step], actions, buffer.log_probabilities[step]
            )
        with _env_step:
            observations, rewards, terminated, truncated, infos = envs.step(
                actions + first_action if first_action else actions
            )
        with _store:
            buffer.observations[step + 1] = observations
            buffer.rewards[step] = rewards
            buffer.terminated[step] = terminated
            buffer.truncated[step] = truncated
            buffer.final_values[step] = 0.0
            np.logical_not(state.only_reset, out=buffer.valid[step])
            state.count_step(rewards, terminated | truncated)
        if state.masks is not None:
            state.masks = action_masks(infos)
        cut = truncated & ~terminated
        if state.same_step and cut.any():
            rows = np.flatnonzero(cut)
            finals = np.stack([infos["final_obs"][row] for row in rows])
            state.nonfinite.finals(rows, finals, step * buffer.n_envs)
            with _policy_forward:
                buffer.final_values[step, rows] = learner.values(
                    finals.astype(buffer.observations.dtype, copy=False)
                )
    state.observations = observations
    with _policy_forward:
        whole = buffer.observations.reshape(-1, *buffer.observations.shape[2:])
        buffer.values[:] = learner.values(whole).reshape(buffer.values.shape)
    if not state.same_step:
        # The observation after a truncated step still belongs to the old episode.
        np.copyto(buffer.final_values, buffer.values[1:], where=buffer.truncated)


# ---- loss


class Batch(NamedTuple):
    """Samples of a rollout, each [samples, ...]; `masks` is None when every action is always allowed."""

    observations: Tensor
    actions: Tensor
    log_probabilities: Tensor
    """Of the actions, under the policy that took them."""
    advantages: Tensor
    returns: Tensor
    values: Tensor
    """The critic's values during the rollout."""
    masks: Tensor | None

    def rows(self, chosen: Tensor) -> Batch:
        """Copies of these rows."""
        return Batch(*(None if part is None else part[chosen] for part in self))  # type: ignore[arg-type]


class PPOLoss(NamedTuple):
    """The loss and its parts, each a scalar tensor."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def ppo_loss(
    logits: Tensor,
    values: Tensor,
    batch: Batch,
    *,
    clip_range: float,
    clip_range_vf: float | None,
    vf_coef: float,
    ent_coef: float,
) -> PPOLoss:
    """The clipped loss of Schulman et al. (2017), equation 9, computed as in Stable-Baselines3.

    total = policy + vf_coef * value - ent_coef * entropy, where `value` is the mean squared error of the
    values, with `clip_range_vf` of the values clipped around the old ones. `approx_kl` is the mean of
    (r - 1) - log r over the probability ratios r, `clip_fraction` the share of them outside the clip range.
    """
    log_p = masked_log_softmax(logits, batch.masks)
    chosen = log_p.gather(1, batch.actions[:, None]).squeeze(1)
    log_ratio = chosen - batch.log_probabilities
    ratio = log_ratio.exp()
    unclipped = -batch.advantages * ratio
    clipped = -batch.advantages * ratio.clamp(1.0 - clip_range, 1.0 + clip_range)
    policy = torch.maximum(unclipped, clipped).mean()
    if clip_range_vf is not None:
        values = batch.values + (values - batch.values).clamp(-clip_range_vf, clip_range_vf)
    value = (values - batch.returns).square().mean()
    entropy = -(log_p.exp() * log_p).sum(dim=1).mean()
    total = policy + vf_coef * value - ent_coef * entropy
    with torch.no_grad():
        approx_kl = (ratio - 1.0 - log_ratio).mean()
        clip_fraction = ((ratio - 1.0).abs() > clip_range).float().mean()
    return PPOLoss(total, policy, value, entropy, approx_kl, clip_fraction)


MASKED = -1e8  # a logit this low has probability 0 in float32, and harmless gradients


def masked_log_softmax(logits: Tensor, masks: Tensor | None) -> Tensor:
    """Log-probabilities [samples, actions] with the masked actions ruled out."""
    if masks is not None:
        logits = torch.where(masks, logits, MASKED)
    return torch.log_softmax(logits, dim=-1)


def normalize(advantages: Tensor) -> Tensor:
    """Advantages of a batch with mean 0 and standard deviation 1."""
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


def loss_settings(config: Any) -> dict[str, Any]:
    """The keyword arguments of `ppo_loss` in a config of PPO or recurrent PPO."""
    return {name: getattr(config, name) for name in ("clip_range", "clip_range_vf", "vf_coef", "ent_coef")}


# ---- learner

STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")


class TorchLearner:
    """Trains any network observations -> (logits, values) with PyTorch; owns Adam's moments.

    With `compiled`, one gradient step (loss, gradient, clipping, Adam) is one function of torch.compile.
    With several `ranks`, each holds the rollout of its envs, and all make the same gradient steps.
    """

    def __init__(
        self, network: nn.Module, config: PPOConfig, *, compiled: bool = False, ranks: Ranks = ALONE
    ):
        self.name = "compiled" if compiled else "torch"
        self._ranks = ranks
        self.network = network
        self._config = config
        self._ent_coef = config.ent_coef
        self._adam = runs.make_adam(network, config.learning_rate, config.adam_eps)
        self._compiled_step = self._compile_step() if compiled else None

    def act(
        self,
        observations: NDArray[Any],
        masks: NDArray[np.bool_] | None,
        uniforms: NDArray[np.float32],
        actions: NDArray[np.int64],
        log_probabilities: NDArray[np.float32],
    ) -> None:
        """Sample an action for each row with its uniform number in [0, 1), into the caller's arrays."""
        log_p = self._log_probabilities(observations, masks)
        cumulated = log_p.exp().cumsum(dim=1)
        sampled = (cumulated <= torch.from_numpy(uniforms)[:, None] * cumulated[:, -1:]).sum(dim=1)
        # Rounding can push the number past the last sum; then the last allowed action is taken.
        last = torch.tensor(log_p.shape[1] - 1)
        if masks is not None:
            last = last - torch.from_numpy(masks).flip(1).int().argmax(dim=1)
        sampled = torch.minimum(sampled, last)
        actions[:] = sampled.numpy()
        log_probabilities[:] = log_p.gather(1, sampled[:, None]).squeeze(1).numpy()

    def greedy_actions(
        self, observations: NDArray[Any], masks: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        """The most likely action for each row, a new array."""
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

    def compiled_rollout(self, envs: Any, buffer: RolloutBuffer, episodes: EpisodeLog) -> None:
        """None: `collect_rollout` steps the envs from Python."""

    def update(
        self,
        buffer: RolloutBuffer,
        order: NDArray[np.int64],
        edges: NDArray[np.int64],
        learning_rate: float,
        ent_coef: float | None = None,
    ) -> dict[str, float]:
        """All epochs over a rollout; returns STATISTICS as means over gradient steps, and the epochs made.

        Batch k of an epoch is order[epoch, edges[k] : edges[k + 1]], indices step * n_envs + env, where
        n_envs counts the envs of all ranks. `ent_coef` replaces that of the config.
        """
        self._ent_coef = self._config.ent_coef if ent_coef is None else ent_coef
        samples = _flattened(buffer)
        config, ranks = self._config, self._ranks
        advantages = torch.from_numpy(ranks.join(buffer.advantages, axis=1)).reshape(-1)
        has_here, here = _where(ranks, buffer, advantages.numel())
        self._adam.param_groups[0]["lr"] = learning_rate
        totals = torch.zeros(len(STATISTICS), dtype=torch.float64)
        kl = STATISTICS.index("approx_kl")
        gradient_steps = epochs = 0
        for rows in torch.from_numpy(order):
            kl_before = float(totals[kl])
            for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
                with _sample:
                    chosen = rows[start:stop]
                    own = has_here[chosen] if ranks.size > 1 else slice(None)
                    batch = samples.rows(here[chosen[own]] if ranks.size > 1 else chosen)
                    if config.normalize_advantage:  # over the whole batch, on whichever rank its samples are
                        batch = batch._replace(advantages=normalize(advantages[chosen])[own])
                totals += self._gradient_step(batch, learning_rate, stop - start)
                gradient_steps += 1
            epochs += 1
            mean_kl = (float(totals[kl]) - kl_before) / (len(edges) - 1)
            if config.target_kl is not None and mean_kl > config.target_kl:
                break
        means = (totals / max(gradient_steps, 1)).tolist()
        return {**dict(zip(STATISTICS, means, strict=True)), "n_epochs": float(epochs)}

    def _gradient_step(self, batch: Batch, learning_rate: float, batch_size: int) -> Tensor:
        """One step of Adam; returns STATISTICS as float64. `batch` is this rank's part of `batch_size`."""
        config = self._config
        if self._compiled_step is not None:
            with _compiled_step:
                _, norm, parts = self._compiled_step(learning_rate, *batch)
            return torch.stack([*parts, norm]).double()
        with _forward:
            logits, values = self.network(batch.observations)
        with _loss:
            settings = loss_settings(config) | {"ent_coef": self._ent_coef}
            loss = ppo_loss(logits, values, batch, **settings)
        with _backward:
            self._adam.zero_grad(set_to_none=True)
            loss.total.backward()  # type: ignore[no-untyped-call]
        parts = torch.stack([part.detach() for part in loss[1:]])
        if self._ranks.size > 1:
            parts = self._add_up(parts, len(batch.actions) / batch_size)
        with _optimizer_step:
            max_norm = config.max_grad_norm if config.max_grad_norm is not None else math.inf
            norm = nn.utils.clip_grad_norm_(self.network.parameters(), max_norm)
            self._adam.step()
        return torch.cat([parts, norm[None]]).double()

    def _add_up(self, parts: Tensor, share: float) -> Tensor:
        """Make every gradient that of the whole batch, and return the parts of its loss.

        Each is a mean over samples, so that of the whole batch is the sum over ranks, weighted with their
        share of its samples. A rank without any adds nothing: its means are not numbers.
        """
        gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
        flat = torch.cat([g.reshape(-1) for g in gradients] + [parts])
        flat = self._ranks.add_up(flat * share if share else torch.zeros_like(flat))
        at = 0
        for gradient in gradients:
            gradient.copy_(flat[at : at + gradient.numel()].reshape(gradient.shape))
            at += gradient.numel()
        return flat[at:]

    def _compile_step(self) -> Callable[..., tuple[Tensor, Tensor, Any]]:
        def loss_of(forward: Callable[[Tensor], Any], *parts: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
            batch = Batch(*parts)
            logits, values = forward(batch.observations)
            loss = ppo_loss(logits, values, batch, **loss_settings(self._config))
            return loss.total, loss[1:]

        return compile_gradient_step(self.network, self._adam, loss_of, self._config.max_grad_norm)

    def state(self) -> dict[str, NDArray[Any]]:
        """Copies of weights and Adam's moments, for a checkpoint."""
        return runs.weights_and_moments(self.network, self._adam)

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from the `state()` of any learner with the same network."""
        runs.load_weights_and_moments(self.network, self._adam, state)


def _flattened(buffer: RolloutBuffer) -> Batch:
    """Views of the buffer as [samples, ...]."""
    parts = (
        buffer.observations[:-1],
        buffer.actions,
        buffer.log_probabilities,
        buffer.advantages,
        buffer.returns,
        buffer.values[:-1],
    )
    flat = [torch.from_numpy(part.reshape(-1, *part.shape[2:])) for part in parts]
    masks = torch.from_numpy(buffer.masks.reshape(-1, buffer.n_actions)) if buffer.masked else None
    return Batch._make([*flat, masks])


def _where(ranks: Ranks, buffer: RolloutBuffer, samples: int) -> tuple[Tensor, Tensor]:
    """For each sample of all ranks: whether it is in the buffer of this one, and its row there."""
    n_envs = samples // buffer.n_steps
    own = ranks.envs(n_envs)
    step, env = np.divmod(np.arange(samples), n_envs)
    here = (env >= own.start) & (env < own.stop)
    return torch.from_numpy(here), torch.from_numpy(step * buffer.n_envs + env - own.start)


# ---- choice of a learner


def make_learner(name: str, network: nn.Module, config: PPOConfig, ranks: Ranks = ALONE) -> Learner:
    """The learner of this name."""
    if ranks.size > 1:
        if name not in ("auto", "torch"):
            raise HotloopError(f"learner={name!r} learns in one process; use learner='torch' with several.")
        return TorchLearner(network, config, ranks=ranks)
    if name in ("torch", "compiled"):
        return TorchLearner(network, config, compiled=name == "compiled")
    if name != "fused":
        raise HotloopError(f"learner={name!r} is unknown; use auto, fused, torch or compiled.")
    if not isinstance(network, ActorCritic):
        raise HotloopError(
            f"learner='fused' needs the dense network {ActorCritic.__name__}, not a "
            f"{type(network).__name__}; use learner='torch' or 'compiled'."
        )
    # The only import of compiled kernels: everything else here runs without them.
    from hotloop.rl.train.fused.ppo import FusedPPO

    return FusedPPO(network, config)


def choose_learner(
    config: PPOConfig,
    network: nn.Module,
    buffer: RolloutBuffer,
    resumed: str | None,
    ranks: Ranks = ALONE,
) -> Learner:
    """The learner of the config; `auto` is that of the resumed run, or the fastest on a made-up rollout."""
    if ranks.size > 1:
        return make_learner(config.learner, network, config, ranks)
    name = config.learner if config.learner != "auto" or resumed is None else resumed

    def time_ms(name: str) -> float:
        if name == "torch" and config.threads == 0:
            return runs.choose_threads(lambda: gradient_step_ms(name, config, network, buffer), config.quiet)
        return gradient_step_ms(name, config, network, buffer)

    if name == "auto":
        names = ["torch", "fused"] if isinstance(network, ActorCritic) else ["torch"]
        gradient_steps = config.total_timesteps * config.n_epochs / config.batch_size
        name = runs.fastest_learner(time_ms, names, gradient_steps, config.quiet)
    elif resumed is None and name in ("torch", "compiled") and config.threads == 0:
        time_ms("torch")  # chooses the number of threads
    return make_learner(name, network, config)


def gradient_step_ms(name: str, config: PPOConfig, network: nn.Module, buffer: RolloutBuffer) -> float:
    """Best time of a gradient step in three epochs over a made-up rollout, on a copy of the network."""
    rng = np.random.default_rng(0)
    made_up = buffer.empty_copy()
    shape = (made_up.n_steps, made_up.n_envs)
    made_up.actions[:] = rng.integers(0, made_up.n_actions, shape)
    made_up.log_probabilities[:] = -np.log(made_up.n_actions)
    made_up.advantages[:] = rng.standard_normal(shape)
    made_up.returns[:] = rng.standard_normal(shape)
    learner = make_learner(name, copy.deepcopy(network), config)
    order = rng.permutation(made_up.n_steps * made_up.n_envs)[None]
    edges = np.arange(0, order.size + 1, config.batch_size)
    epoch_ms = runs.best_of(3, lambda: learner.update(made_up, order, edges, config.learning_rate))
    return epoch_ms / (edges.size - 1)


# ---- training


@runs.frees_in_region
def train(
    config: PPOConfig,
    *,
    envs: Any = None,
    network: nn.Module | None = None,
    after_update: Callable[[int, dict[str, float]], None] | None = None,
    note: Callable[[], str] | None = None,
    ranks: Ranks = ALONE,
) -> PPOResult:
    """Train a policy; see `PPOConfig`.

    `envs`: a Gymnasium vector env with discrete actions, which stays open (our own envs are fastest with
    `copy=False` and same-step autoreset); by default it is made from `config.env`.
    `network`: any module observations -> (logits, values); by default an `ActorCritic`.
    `after_update(env_steps, statistics)` is called after each iteration. `note()` returns a few words for
    the progress line, such as the current bottleneck; by default it shows the learner.
    `ranks`: the processes of the run, see `ranks.py`. `config` is that of the whole run, and `envs` are those
    of this rank (`ranks.envs(config.n_envs)`). The first rank writes checkpoints, which fit any number.
    """
    check_config(config)
    own = ranks.envs(config.n_envs)
    with ExitStack() as stack:
        starting = stack.enter_context(ExitStack())
        starting.enter_context(runs.start_up)
        stack.enter_context(runs.torch_threads(config.threads or 1))
        if envs is None:
            envs = make_envs(config.env, own.stop - own.start)
            stack.callback(envs.close)
        check_envs(config, envs, own.stop - own.start)
        saved = saved_run(config)
        if saved is not None and config.threads == 0:
            torch.set_num_threads(saved.state.get("threads", 1))
        network = network or make_network(config, envs)
        rng = np.random.default_rng(config.seed)
        nonfinite = NonFiniteCheck(config.allow_nonfinite, config.checkpoint)
        n_envs = own.stop - own.start
        rollout = RolloutState(envs, config.seed + own.start, n_envs * config.n_steps, nonfinite)
        buffer = RolloutBuffer(
            config.n_steps,
            n_envs,
            envs.single_observation_space.shape,
            int(envs.single_action_space.n),
            observation_dtype=(
                np.float32 if isinstance(network, ActorCritic) else envs.single_observation_space.dtype
            ),
            masked=rollout.masks is not None,
        )
        resumed = saved.state.get("learner") if saved else None
        learner = choose_learner(config, network, buffer, resumed, ranks)
        recent = RecentEpisodes()
        env_steps = updates = iterations = 0
        if saved is not None:
            with runs.restoring(config.checkpoint):
                learner.load(saved.part("learner"))
                seed = config.seed + saved.state["env_steps"] + own.start
                found = ranks.own_state(saved.part("rollout"), rollout.env_axes(), config.n_envs)
                rollout.load(found, seed)
                rng.bit_generator.state = saved.state["rng"]
                env_steps, updates, iterations = (
                    saved.state[name] for name in ("env_steps", "updates", "iterations")
                )
                recent.load(saved.state)
        ranks.check_equal(learner.state(), "the weights at the start")
        resumed_at = saved_at = env_steps
        buffer.observations[-1] = rollout.observations
        compiled_rollout = learner.compiled_rollout(envs, buffer, rollout.episodes)
        warm_up(config, learner, buffer, compiled_rollout)

        def save(path: Path) -> str | None:
            state = {"env_steps": env_steps, "updates": updates, "iterations": iterations, **recent.state()}
            state |= {"learner": learner.name, "threads": torch.get_num_threads()}
            state |= {"rng": rng.bit_generator.state}
            with _checkpoint:
                weights, envs_state = learner.state(), ranks.join_state(rollout.arrays(), rollout.env_axes())
                ranks.check_equal(weights, "the weights")
                if ranks.rank != 0:
                    return None
                return runs.save_run(
                    path, config, env_steps=env_steps, learner=weights, state=state, rollout=envs_state
                )

        tensorboard = runs.TensorboardLog(config.tensorboard_log)
        stack.callback(tensorboard.close)
        stop = stack.enter_context(runs.StopRequests())
        line = runs.ProgressLine(config.total_timesteps, env_steps, quiet=config.quiet)
        stack.callback(line.close)
        statistics: dict[str, float] = {}
        starting.close()
        stopped_by, began_s = None, time.perf_counter()
        while env_steps < config.total_timesteps and stopped_by is None:
            nonfinite.env_steps = env_steps
            if compiled_rollout is not None:
                with _fused_rollout:
                    compiled_rollout(rng.random((config.n_steps, config.n_envs), dtype=np.float32))
            else:
                with _collect_rollouts:
                    uniforms = rng.random((config.n_steps, config.n_envs), dtype=np.float32)
                    collect_rollout(learner, envs, buffer, rollout, uniforms[:, own])
            with _store:
                nonfinite.rollout(buffer.observations[1:], buffer.rewards)
            with _advantage:
                buffer.compute_advantages(config.gamma, config.gae_lambda)
            left_fraction = max(
                0.0, 1.0 - iterations * config.n_envs * config.n_steps / config.total_timesteps
            )
            learning_rate = config.learning_rate * (left_fraction if config.anneal_lr else 1.0)
            ent_coef = config.ent_coef * (left_fraction if config.anneal_ent_coef else 1.0)
            with _sample:
                valid = ranks.join(buffer.valid, axis=1)
                order, edges = shuffled_batches(config, valid, rng)
            statistics = learner.update(buffer, order, edges, learning_rate, ent_coef)
            runs.check_finite(statistics, env_steps, config.checkpoint)

            with _log:
                new_updates = int(statistics["n_epochs"]) * (edges.size - 1)
                returns, lengths = rollout.episodes.finished()
                for finished in ranks.gather((returns, lengths)):
                    recent.add(*finished)
                env_steps += int(valid.sum())
                updates += new_updates
                iterations += 1
                progress(  # what this rank did; the updates of all are the same
                    env_steps=int(buffer.valid.sum()),
                    updates=new_updates if ranks.rank == 0 else 0,
                    episodes=len(returns),
                    episode_return=sum(returns) / len(returns) if returns else None,
                    episode_length=sum(lengths) / len(lengths) if lengths else None,
                    loss=statistics["policy_loss"] if ranks.rank == 0 else None,
                )
                line.update(env_steps, recent.mean_return, note() if note else learner.name)
                tensorboard.write(env_steps, {**statistics, "return": recent.mean_return})
            if after_update is not None:
                after_update(env_steps, statistics)
            asked = ranks.gather(stop.by or ranks.stop_by)
            stopped_by = next((by for by in asked if by is not None), None)
            if stopped_by is None and recent.reached(config.stop_at_return):
                stopped_by = "stop_at_return"
            if config.checkpoint is not None and env_steps - saved_at >= config.checkpoint_every_steps:
                save(config.checkpoint)
                saved_at = env_steps
        seconds = time.perf_counter() - began_s
        unsaved = None if config.checkpoint is None else save(config.checkpoint)
        runs.begin_shut_down()
        evaluation_return = None
        if config.n_eval_episodes > 0 and stopped_by in (None, "stop_at_return"):
            seed = config.seed + 1_000_000  # away from the seeds of training
            evaluated, _ = evaluate_policy(learner.greedy_actions, envs, config.n_eval_episodes, seed)
            evaluation_return = float(evaluated.mean())
        return PPOResult(
            network=learner.network,
            learner=learner.name,
            fused_rollout=compiled_rollout is not None,
            env_steps=env_steps,
            resumed_at=resumed_at,
            updates=updates,
            episodes=recent.finished,
            seconds=seconds,
            mean_return=recent.mean_return,
            evaluation_return=evaluation_return,
            stopped_by=stopped_by,
            statistics=statistics,
            unsaved=unsaved,
            nonfinite=nonfinite.found,
        )


def make_network(config: PPOConfig, envs: Any) -> ActorCritic:
    """The default network; its weights follow from the seed, and torch's global RNG is left as it was."""
    inputs = math.prod(envs.single_observation_space.shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return ActorCritic(inputs, int(envs.single_action_space.n), config.net_arch, config.activation)


def warm_up(
    config: PPOConfig,
    learner: Learner,
    buffer: RolloutBuffer,
    compiled_rollout: Callable[[NDArray[np.float32]], None] | None,
) -> None:
    """Compile or load what the loop calls, so that the time of the loop is that of training."""
    n_envs = buffer.n_envs
    if compiled_rollout is not None:
        compiled_rollout(np.zeros((0, n_envs), dtype=np.float32))
    else:
        masks = buffer.masks[0] if buffer.masked else None
        uniforms, observations = np.zeros(n_envs, dtype=np.float32), buffer.observations[-1]
        learner.act(observations, masks, uniforms, buffer.actions[0], buffer.log_probabilities[0])
        learner.values(observations)
    buffer.compute_advantages(config.gamma, config.gae_lambda)
    no_samples, no_edges = np.zeros((0, 1), dtype=np.int64), np.zeros(1, dtype=np.int64)
    learner.update(buffer, no_samples, no_edges, config.learning_rate)


def shuffled_batches(
    config: PPOConfig, valid: NDArray[np.bool_], rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The samples of a rollout in random order [n_epochs, samples], and where its batches begin and end.

    Rows that are only a reset (not `valid`) are no samples, so batches may be smaller than batch_size.
    """
    samples = np.flatnonzero(valid)
    order = np.tile(samples, (config.n_epochs, 1))
    rng.permuted(order, axis=1, out=order)
    batches = config.n_envs * config.n_steps // config.batch_size
    return order, np.linspace(0, samples.size, batches + 1).astype(np.int64)


# ---- validation


def check_config(config: PPOConfig) -> None:
    """Raise HotloopError for the first invalid setting."""
    runs.check_at_least(
        config, 1, "total_timesteps", "n_envs", "n_steps", "n_epochs", "checkpoint_every_steps"
    )
    if config.threads < 0:
        raise HotloopError(f"threads={config.threads} must be at least 1, or 0 to choose by measuring.")
    runs.check_batch_size(config.batch_size, config.n_envs * config.n_steps)
    runs.check_seed(config)
    runs.check_fraction(config, "gamma", "gae_lambda")
    runs.check_at_least(config, 0, "ent_coef", "vf_coef")
    runs.check_positive(
        config, "learning_rate", "clip_range", "clip_range_vf", "max_grad_norm", "target_kl", "adam_eps"
    )
    runs.check_net_arch(config)
    runs.check_checkpoint(config)
    if config.anneal_ent_coef and config.learner == "compiled":
        raise HotloopError(
            "learner='compiled' has ent_coef in its graph; use learner='fused' or 'torch' to anneal it."
        )


def saved_run(config: PPOConfig) -> runs.Checkpoint | None:
    """The checkpoint to resume from, or None; CheckpointError if it does not fit the settings."""
    # What is annealed follows total_timesteps, which then decides the numbers too.
    anneals = config.anneal_lr or config.anneal_ent_coef
    return runs.load_run(config, MAY_DIFFER - {"total_timesteps"} if anneals else MAY_DIFFER)


def check_envs(config: PPOConfig, envs: Any, n_envs: int) -> None:
    """Raise HotloopError for envs that this PPO cannot train on."""
    space, actions = envs.single_observation_space, envs.single_action_space
    if not isinstance(actions, Discrete) or not isinstance(space, Box):
        raise HotloopError(
            f"This PPO needs one array of observations (Box) and discrete actions; {config.env} has {space} "
            f"and {actions}."
        )
    if envs.num_envs != n_envs:
        raise HotloopError(f"n_envs={n_envs} does not match the {envs.num_envs} envs that were given.")
