"""What the compiled PPO, A2C and MaskablePPO share: eligibility, passes over a rollout, acting, audits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from hotloop import profile, progress
from hotloop.boost import audit, eligible
from hotloop.boost import on_policy_kernels as kernels
from hotloop.boost.actor_critic import Networks, chains, is_rmsprop, make_state
from hotloop.boost.audit import AuditError, Audits, NotFinite
from hotloop.boost.observations import Observations, unsupported_observations
from hotloop.boost.optimizer_state import KnownState
from hotloop.boost.plain_modules import PlainModules
from hotloop.boost.rollouts import Actor, collect_rollouts, compare_actions
from hotloop.instrument.update_counting import not_counting

_gradient_steps = profile("boosted_update", "model")
ROLLOUT_ARRAYS = ("observations", "actions", "values", "log_probs", "advantages", "returns")
POLICY = "stable_baselines3.common.policies"
BUFFERS = "stable_baselines3.common.buffers"
DISTRIBUTIONS = "stable_baselines3.common.distributions"
SOURCES = (
    "stable_baselines3.common.on_policy_algorithm.OnPolicyAlgorithm.collect_rollouts",
    *(f"{BUFFERS}.BaseBuffer.{name}" for name in ("swap_and_flatten", "to_torch")),
    *(f"{BUFFERS}.RolloutBuffer.{name}" for name in ("reset", "add", "get", "_get_samples")),
    f"{BUFFERS}.RolloutBuffer.compute_returns_and_advantage",
    f"{POLICY}.BaseModel.extract_features",
    *(
        f"{POLICY}.BaseModel.{name}"
        for name in ("set_training_mode", "obs_to_tensor", "is_vectorized_observation")
    ),
    "stable_baselines3.common.preprocessing.preprocess_obs",
    "stable_baselines3.common.torch_layers.FlattenExtractor.forward",
    *(
        f"stable_baselines3.common.torch_layers.MlpExtractor.forward{part}"
        for part in ("", "_actor", "_critic")
    ),
    "stable_baselines3.common.utils.obs_as_tensor",
    "stable_baselines3.common.utils.explained_variance",
)
PLAIN_POLICY_SOURCES = (
    *(
        f"{POLICY}.ActorCriticPolicy.{name}"
        for name in ("forward", "extract_features", "_get_action_dist_from_latent", "evaluate_actions")
    ),
    *(f"{POLICY}.ActorCriticPolicy.{name}" for name in ("get_distribution", "predict_values", "_predict")),
    f"{POLICY}.BasePolicy.predict",
    *(
        f"{DISTRIBUTIONS}.{cls}.{name}"
        for cls in ("CategoricalDistribution", "MultiCategoricalDistribution", "DiagGaussianDistribution")
        for name in ("proba_distribution", "log_prob", "entropy", "sample", "mode")
    ),
    f"{DISTRIBUTIONS}.sum_independent_dims",
)


def why_not(model: Any, policy_class: str, buffer_class: str, optimizers: tuple[str, ...]) -> str | None:
    """None if the kernels can stand in for this model's networks, buffer and optimizer; else the reason."""
    policy, buffer = model.policy, model.rollout_buffer
    reason = eligible.other_class(policy, policy_class, "policy") or eligible.other_class(
        buffer, buffer_class, "rollout_buffer"
    )
    if reason is not None:
        return reason
    for name in ("features_extractor", "pi_features_extractor", "vf_features_extractor"):
        reason = eligible.own_extractor(getattr(policy, name), name)
        if reason is not None:
            return reason
    if getattr(model, "use_sde", False):
        return "use_sde=True: state dependent exploration is not compiled"
    own = eligible.overridden(model) or eligible.overridden(buffer)
    if own is not None:
        return f"{own} is replaced on the instance"
    if model.device.type != "cpu":
        return f"it is on {model.device}, not on the CPU"
    if buffer.n_envs != model.n_envs or buffer.buffer_size != model.n_steps:
        return "the rollout buffer does not have the model's n_steps and n_envs"
    return (
        unsupported_observations(model.observation_space, policy)
        or _unsupported_actions(model.action_space)
        or _unsupported_parts(policy, model.action_space)
        or eligible.plain_module(policy, "policy")
        or next((part for part in chains(policy) if isinstance(part, str)), None)
        or eligible.optimizer(policy.optimizer, list(policy.parameters()), optimizers)
        or _unsupported_coefficients(model)
    )


def _unsupported_actions(space: Any) -> str | None:
    if isinstance(space, spaces.Box):
        return None if space.dtype == np.float32 else f"actions are {space.dtype}, not float32"
    if isinstance(space, spaces.Discrete):
        return None if space.start == 0 else f"actions start at {space.start}, not at 0"
    if isinstance(space, spaces.MultiDiscrete):
        return None if space.nvec.ndim == 1 else "actions are a MultiDiscrete with more than one dimension"
    return f"actions are a {type(space).__name__} space"


def _unsupported_parts(policy: Any, actions: Any) -> str | None:
    """None if distribution and networks are the library's own for these actions: users exchange them, too."""
    kinds = ((spaces.Box, "DiagGaussian"), (spaces.Discrete, "Categorical"))
    kind = next((name for space, name in kinds if isinstance(actions, space)), "MultiCategorical")
    maskable = "Maskable" if type(policy).__name__.startswith("Maskable") else ""
    networks = policy.mlp_extractor
    return (
        eligible.other_distribution(policy.action_dist, f"{maskable}{kind}Distribution")
        or eligible.other_class(networks, "MlpExtractor", "mlp_extractor")
        or eligible.other_sequence(networks.policy_net, "mlp_extractor.policy_net")
        or eligible.other_sequence(networks.value_net, "mlp_extractor.value_net")
    )


def _unsupported_coefficients(model: Any) -> str | None:
    for name in ("ent_coef", "vf_coef", "max_grad_norm", "gamma", "gae_lambda"):
        if not isinstance(getattr(model, name), (int, float)):
            return f"{name} is a {type(getattr(model, name)).__name__}, not a number"
    return None


class OnPolicyLearner:
    """Makes the gradient steps of one model."""

    normalize = kernels.NEVER
    surrogate = kernels.CLIPPED
    more_arrays: tuple[str, ...] = ()  # of the buffer, besides ROLLOUT_ARRAYS
    has_epochs = True  # `n_epochs` and `target_kl`, as PPO; A2C makes one gradient step

    def __init__(self, model: Any):
        policy = model.policy
        self.audits = Audits()  # replaced by the model's
        self.acting_audits = Audits()
        self.wrong_acting: str | None = None
        """What an audit of acting found wrong; from then on the library's policy acts."""
        self.record: Any = None  # the model's `active.Record`
        self._actor: Actor | None = None
        self._predicting_actor: Actor | None = None
        self.networks = Networks(policy, model.action_space)
        self.observations = Observations(model.observation_space)
        self._policy = policy
        self._optimizer = policy.optimizer
        self._state = KnownState(policy.optimizer)
        self._buffer_class = type(model.rollout_buffer)
        self._methods = [eligible.Methods(one) for one in (model, policy, model.rollout_buffer)]
        self._modules, self._distribution = PlainModules(policy), policy.action_dist
        self._settings = np.zeros(kernels.SETTINGS)
        self._statistics = np.zeros((1, kernels.STATISTICS))
        self._made = 0  # gradient steps in the current call of `train`
        self._no_masks = np.zeros((0, self.networks.outputs), dtype=np.bool_)
        self._group = {
            key: value
            for key, value in policy.optimizer.param_groups[0].items()
            if key not in ("params", "lr")
        }

    def changed(self, model: Any) -> bool:
        """Whether something was exchanged that the decision to boost depends on; takes ten microseconds."""
        policy = model.policy
        if policy is not self._policy or policy.optimizer is not self._optimizer:
            return True
        buffer = model.rollout_buffer
        if type(buffer) is not self._buffer_class or eligible.is_hooked(self._optimizer):
            return True
        if any(map(eligible.Methods.are_hidden, self._methods, (model, policy, buffer))):
            return True
        groups = self._optimizer.param_groups
        if len(groups) != 1 or any(groups[0][key] != value for key, value in self._group.items()):
            return True
        if policy.action_dist is not self._distribution:
            return True
        return self._state.changed() or self._modules.changed()

    def set_training_mode(self, mode: bool) -> None:
        """`policy.set_training_mode`: these modules have nothing that depends on it but the flag."""
        self._modules.set_training_mode(mode)

    def compile(self, model: Any) -> None:
        """Compile every kernel before training begins, on a network of one unit."""
        del model
        compile_kernels()

    def describe(self) -> str:
        return self.networks.description

    def flatten(self, buffer: Any) -> None:
        """Flatten the buffer's arrays to [samples, ...], as its `get` does."""
        if not buffer.generator_ready:
            for name in (*ROLLOUT_ARRAYS, *self.more_arrays):
                buffer.__dict__[name] = buffer.swap_and_flatten(buffer.__dict__[name])
            buffer.generator_ready = True

    def batch(self, buffer: Any) -> kernels.Batch:
        """The rollout as arrays for the kernels."""
        samples = buffer.buffer_size * buffer.n_envs
        return kernels.Batch(
            self.observations.rows(buffer.observations),
            np.ascontiguousarray(buffer.actions.reshape(samples, -1), dtype=np.float32),
            buffer.log_probs.reshape(-1),
            buffer.advantages.reshape(-1),
            buffer.returns.reshape(-1),
            buffer.values.reshape(-1),
            self.masks(buffer),
        )

    def masks(self, buffer: Any) -> NDArray[np.bool_]:
        """Which actions were allowed: [samples, logits], or no rows."""
        del buffer
        return self._no_masks

    def set_up(self, model: Any, clip_range: float, clip_range_vf: float | None) -> None:
        """Read the settings of this call; anything may have changed them."""
        settings, group = self._settings, self._optimizer.param_groups[0]
        settings[kernels.CLIP_RANGE] = clip_range
        settings[kernels.CLIP_RANGE_VF] = kernels.OFF if clip_range_vf is None else clip_range_vf
        settings[kernels.VF_COEF] = model.vf_coef
        settings[kernels.ENT_COEF] = model.ent_coef
        settings[kernels.MAX_GRAD_NORM] = model.max_grad_norm
        target_kl = model.target_kl if self.has_epochs else None
        settings[kernels.STOP_KL] = kernels.OFF if target_kl is None else 1.5 * target_kl
        settings[kernels.LEARNING_RATE] = group["lr"]
        settings[kernels.EPSILON] = group["eps"]
        settings[kernels.WEIGHT_DECAY] = group["weight_decay"]
        settings[kernels.NORMALIZE] = self.normalize if model.normalize_advantage else kernels.NEVER
        settings[kernels.SURROGATE] = self.surrogate
        if is_rmsprop(self._optimizer):
            settings[kernels.OPTIMIZER] = kernels.RMSPROP
            settings[kernels.BETA2] = group["alpha"]
        else:
            settings[kernels.OPTIMIZER] = kernels.ADAM
            settings[kernels.BETA1], settings[kernels.BETA2] = group["betas"]
        self.audits.follow(*settings.tolist())

    def read_networks(self) -> None:
        """Take over weights and optimizer state; makes the state if there is none yet."""
        self.networks.read()
        self._state.note()

    def one_pass(
        self, model: Any, original: Callable[[Any], None], batch: kernels.Batch, batch_size: int
    ) -> tuple[NDArray[np.float64], bool]:
        """One pass over the rollout in an order that numpy draws, as the library's.

        Returns the statistics of its minibatches and whether the KL estimate ended it.
        """
        order = np.random.permutation(batch.returns.size)
        total = -(-order.size // batch_size)
        if self._statistics.shape[0] < total:
            self._statistics = np.zeros((total, kernels.STATISTICS))
        own, at = self.networks.state, 0
        while at < total:
            due = self.audits.due(total - at)
            stop = total if due is None else at + due
            for last in (stop,) if due is None else (stop, stop + 1):
                is_audited = last == stop + 1
                kept = (self.networks.keep(), self.networks.arrays()) if is_audited else None
                with _gradient_steps:
                    made = kernels.run_minibatches(
                        own, batch, order, batch_size, at, last, self._settings, self._statistics
                    )
                if not np.isfinite(self._statistics[at : at + made]).all():
                    raise NotFinite
                stopped = made > 0 and self._over_kl(at + made - 1)
                self._made += made - stopped
                if stopped:
                    return self._statistics[: at + made], True
                at = last
                if kept is not None:
                    rows = order[(last - 1) * batch_size : last * batch_size]
                    self._audit(model, original, rows, kept, self._statistics[last - 1])
        return self._statistics[:total], False

    @contextmanager
    def undone_by_failure(self, model: Any, gradient_steps: int) -> Iterator[None]:
        """Bring weights, optimizer and numpy's generator back if an audit fails or numbers are not finite.

        Otherwise the gradient steps made inside count as updates.
        """
        self._made = 0
        generator, n_updates = np.random.get_state(), model._n_updates
        # Without an audit the library's tensors are not touched before the end.
        kept = self.networks.keep() if self.audits.comes_within(gradient_steps) else None
        try:
            yield
        except (AuditError, NotFinite):
            if kept is not None:
                self.networks.restore(kept)
                self.networks.write()
            np.random.set_state(generator)
            model._n_updates = n_updates
            raise
        progress(updates=self._made)
        if self.record is not None:
            self.record.gradient_steps += self._made

    def _over_kl(self, row: int) -> bool:
        stop = self._settings[kernels.STOP_KL]
        return bool(stop != kernels.OFF and self._statistics[row, kernels.APPROX_KL] > stop)

    # ---- acting

    def actor(self, model: Any, rows: int) -> Actor:
        """What acts for `rows` environments; made once for each number of them."""
        if self._actor is None or self._actor.rows != rows:
            self._actor = Actor(self.networks, self.observations, model.action_space, rows)
        return self._actor

    def act(self, model: Any, actor: Actor, observations: Any, masks: Any = None) -> tuple[Any, Any, Any]:
        """Actions, values and log probabilities as the policy's `forward` gives them."""
        if self._is_exchanged(model):
            return actor.library_act(model.policy, observations, masks)
        self.networks.follow_weights()
        if self.wrong_acting is None and self.acting_audits.due(1) is None:
            found = actor.act(observations, masks)
            if not math.isfinite(float(found[1].sum()) + float(found[2].sum())):
                actor.library_act(model.policy, observations, masks)  # raises its own error, if it is one
            return found
        started_s = time.perf_counter()
        if self.wrong_acting is None:
            found, self.wrong_acting = actor.audited(model.policy, observations, masks)
            self.acting_audits.note(self.wrong_acting is None, started_s)
            return found
        return actor.library_act(model.policy, observations, masks)

    def values(self, model: Any, actor: Actor, observations: Any) -> NDArray[np.float32]:
        """Values [rows, 1] as the policy's `predict_values` gives them."""
        if self.wrong_acting is None and not self._is_exchanged(model):
            return actor.values(observations)
        with torch.no_grad():
            found: NDArray[np.float32] = model.policy.predict_values(torch.as_tensor(observations)).numpy()
        return found

    def _is_exchanged(self, model: Any) -> bool:
        """Whether a callback gave the model another policy, distribution or layer, or hooks, in this rollout.

        The next `changed` sees it, too.
        """
        policy = model.policy
        if policy is not self._policy or policy.action_dist is not self._distribution:
            return True
        return self._modules.is_exchanged()

    def predict(
        self,
        policy: Any,
        original: Callable[..., Any],
        observation: Any,
        deterministic: bool,
        action_masks: Any = None,
    ) -> NDArray[Any] | None:
        """The actions of `policy.predict`, or None to leave them to the library."""
        rows = self.observations.count_if_plain(observation)
        if rows is None or self.wrong_acting is not None or self._modules.changed():
            return None
        masks: Any = None
        more: tuple[Any, ...] = ()
        if action_masks is not None:
            if (
                type(action_masks) is not np.ndarray
                or action_masks.size != (rows or 1) * self.networks.outputs
            ):
                return None
            masks = np.ascontiguousarray(action_masks.reshape(rows or 1, -1), dtype=np.bool_)
            more = (action_masks,)
        if self._predicting_actor is None or self._predicting_actor.rows != (rows or 1):
            self._predicting_actor = Actor(self.networks, self.observations, policy.action_space, rows or 1)
        self.set_training_mode(False)
        self.networks.follow_weights()
        is_audited = self.acting_audits.due(1) is not None
        started_s, before = time.perf_counter(), torch.get_rng_state()
        actions, _, log_probs = self._predicting_actor.act(observation, masks, deterministic)
        if not math.isfinite(float(log_probs.sum())):
            torch.set_rng_state(before)
            return None  # the library raises its own error, if it is one
        if isinstance(policy.action_space, spaces.Box):
            actions = np.clip(actions, policy.action_space.low, policy.action_space.high)
        found = actions if rows else actions.squeeze(axis=0)
        if is_audited:
            after = torch.get_rng_state()
            torch.set_rng_state(before)
            theirs = original(policy, observation, None, None, deterministic, *more)[0]
            self.wrong_acting = compare_actions(found, theirs, isinstance(policy.action_space, spaces.Box))
            if self.wrong_acting is None and not torch.equal(after, torch.get_rng_state()):
                self.wrong_acting = "the library's predict draws other random numbers"
            self.acting_audits.note(self.wrong_acting is None, started_s)
            return theirs if self.wrong_acting else found
        return found

    def collect_rollouts(self, model: Any, original: Callable[..., bool], *args: Any, **kwargs: Any) -> bool:
        """The library's loop with compiled acting."""
        del original
        return collect_rollouts(model, *args, **kwargs, _learner=self)

    # ---- audits

    def _audit(
        self,
        model: Any,
        original: Callable[[Any], None],
        rows: NDArray[np.int64],
        kept: tuple[Any, dict[str, NDArray[Any]]],
        statistics: NDArray[np.float64],
    ) -> None:
        """Have the library make the gradient step that the kernels have just made, and compare."""
        started_s = time.perf_counter()
        networks = self.networks
        after, ours = networks.keep(), networks.arrays()
        networks.restore(kept[0])
        networks.write()
        with one_minibatch(model, rows) as logged, not_counting(), audit.same_distribution(model.policy):
            original(model)
        networks.read()
        theirs = networks.arrays()
        networks.restore(after)
        rate = audit.comparable_rate(self._settings[kernels.LEARNING_RATE])
        rates = {name: rate for name in theirs if name.startswith("weights.")}
        values = {
            key: (float(statistics[column]), float(logged[key]))
            for key, column in self.logged_columns.items()
            if key in logged
        }
        self.audits.record(audit.compare(kept[1], ours, theirs, rates, values), started_s)

    logged_columns: dict[str, int] = {}  # noqa: RUF012


def compile_kernels() -> None:
    """Run every kernel once on scratch data; from disk in a fraction of a second after the first time."""
    state, places = make_state(((1, 1), "tanh"), ((1, 1), "tanh"), heads=[1])
    rows, column = np.zeros((1, 1), dtype=np.float32), np.zeros(1, dtype=np.float32)
    no_masks = np.zeros((0, 1), dtype=np.bool_)
    batch = kernels.Batch(rows, rows.copy(), column, column.copy(), column.copy(), column.copy(), no_masks)
    kernels.run_minibatches(
        state, batch, np.zeros(1, dtype=np.int64), 1, 0, 1,
        np.ones(kernels.SETTINGS), np.zeros((1, kernels.STATISTICS)),
    )  # fmt: skip
    choices = np.zeros((1, 1), dtype=np.int64)
    kernels.pack(state)
    kernels.act(
        state, rows, column.copy(), no_masks, False, choices, rows.copy(), column.copy(), column.copy()
    )
    kernels.predict_values(state, rows, column.copy())
    one = np.float32(1.0)
    kernels.advantages(rows, rows.copy(), rows.copy(), column, column.copy(), one, one, rows.copy())
    tensors = [torch.zeros(1, 1), torch.zeros(1)] * 2
    places.read(tensors, state.parameters)
    places.write(tensors, state.parameters)
    places.is_current(tensors, np.zeros(state.parameters.size, dtype=np.uint32))


class _OneMinibatch:
    """Stands in for a rollout buffer whose `get` gives one known minibatch."""

    def __init__(self, buffer: Any, rows: NDArray[np.int64]):
        self._buffer, self._rows = buffer, rows
        self.values, self.returns = buffer.values, buffer.returns

    def get(self, batch_size: int | None = None) -> Iterator[Any]:
        del batch_size
        yield self._buffer._get_samples(self._rows)


@contextmanager
def one_minibatch(model: Any, rows: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
    """The library's `train` on one minibatch, with nothing else changed; gives what it logs."""
    from stable_baselines3.common.logger import Logger

    logger = Logger(folder=None, output_formats=[])
    instead: dict[str, Any] = {"rollout_buffer": _OneMinibatch(model.rollout_buffer, rows), "_logger": logger}
    instead |= {
        name: value for name, value in (("n_epochs", 1), ("target_kl", None)) if name in model.__dict__
    }
    was = {name: model.__dict__[name] for name in (*instead, "_n_updates")}
    model.__dict__.update(instead)
    try:
        yield logger.name_to_value
    finally:
        model.__dict__.update(was)
