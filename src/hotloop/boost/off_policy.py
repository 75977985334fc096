"""What the compiled DQN, SAC, TD3 and DDPG share: acting, rounds of gradient steps and their audits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hotloop import profile, progress
from hotloop.boost import audit, eligible
from hotloop.boost import dense_kernels as dense
from hotloop.boost.active import Boosted, Record, boosted_policy
from hotloop.boost.audit import AuditError, Audits, Difference
from hotloop.boost.network_tables import Tensors, multiplications
from hotloop.boost.observations import Observations
from hotloop.boost.plain_modules import PlainModules
from hotloop.boost.replay_samples import Samples
from hotloop.boost.team import threads_for
from hotloop.instrument.patch import Patch
from hotloop.instrument.update_counting import not_counting
from hotloop.rl.train.fused.flat import aligned_zeros

_gradient_step, _acting = profile("boosted_update", "model"), profile("boosted_act", "policy")


# ---- acting


class Acting:
    """Runs one network on the observations of a few environments."""

    def __init__(self, model: Any, table: NDArray[np.int64], weights: Sequence[Any]):
        self.table = table
        self.addresses = np.zeros((len(weights), dense.ADDRESSES), dtype=np.int64)
        widest = max(int(table[:, [dense.INPUTS, dense.OUTPUTS]].max()), int(table[:, dense.OUTPUTS].sum()))
        self.scratch = aligned_zeros(3 * widest)
        self._weights = list(weights)
        self.observations = Observations(model.observation_space)
        self._in_use = threading.Lock()

    def begin(self) -> bool:
        """Whether this thread may use the arrays until `end`; if not, another one is using them."""
        return self._in_use.acquire(blocking=False)

    def end(self) -> None:
        """Let other threads use the arrays."""
        self._in_use.release()

    def rows(self, observation: Any) -> NDArray[np.float32] | None:
        """Observations of environments as float32 [rows, width], or None if they are something else."""
        if not self.observations.count_if_plain(observation):
            return None
        if observation.dtype.kind not in "fiu" or not self.observations.are_valid(observation):
            return None
        self.addresses[:, dense.WEIGHTS] = [*map(torch.Tensor.data_ptr, self._weights)]
        return self.observations.rows(observation)


# ---- learning


class OffPolicyLearner:
    """Makes the gradient steps of one model; the algorithms fill in what a gradient step is."""

    default_batch_size = 100
    logged: dict[str, int] = {}  # noqa: RUF012  (key -> column of the statistics)

    def __init__(self, model: Any, networks: Sequence[str], groups: Sequence[Tensors], acting: Acting):
        policy = model.policy
        # Replaced by the model's.
        self.audits, self.acting_audits, self.record = Audits(), Audits(), Record("")
        self.groups, self.acting, self.observations = tuple(groups), acting, acting.observations
        self.samples: Samples | None = None
        self._allocated = (0, 0)
        self._policy, self._names = policy, tuple(networks)
        self._networks = [getattr(policy, name) for name in networks]
        self._modules, self._own = PlainModules(*self._networks), policy.__dict__
        self._acting_modules = PlainModules(self._networks[0])
        self._trained = PlainModules(*(getattr(policy, name) for name in networks if "target" not in name))
        self._hooks = [
            hooks
            for part in policy.modules()
            for name in eligible.RUNNING_HOOKS
            if isinstance(hooks := part.__dict__.get(name), dict)
        ]
        self._options = [_options(group.optimizer) for group in self.groups]
        self._methods = [eligible.Methods(one) for one in (model, policy, model.replay_buffer)]
        self._buffer_class = type(model.replay_buffer)

    def changed(self, model: Any) -> bool:
        """Whether something was exchanged that the decision to boost depends on; takes a few microseconds."""
        policy, buffer = model.policy, model.replay_buffer
        if policy is not self._policy or self.is_exchanged() or type(buffer) is not self._buffer_class:
            return True
        if any(map(eligible.Methods.are_hidden, self._methods, (model, policy, buffer))):
            return True
        for name, network in zip(self._names, self._networks, strict=True):
            if getattr(model, name) is not network or policy._modules[name] is not network:
                return True
        for group, options in zip(self.groups, self._options, strict=True):
            if _options(group.optimizer) != options or eligible.is_hooked(group.optimizer):
                return True
            if group.state.changed():
                return True
        return self._modules.changed() or self.exchanged(model)

    def exchanged(self, model: Any) -> bool:
        """Whether an optimizer is another one now."""
        raise NotImplementedError

    def is_exchanged(self) -> bool:
        """Whether a module of the policy has hooks now, or the network that acts is another one."""
        acting = self._policy._modules[self._names[0]]
        return any(self._hooks) or acting is not self._networks[0] or self._acting_modules.is_exchanged()

    def act(self, policy: Any, rows: NDArray[np.float32], deterministic: bool) -> NDArray[Any] | None:
        """What the policy's `predict` returns for observations [environments, width].

        None if numbers are not finite: the library may raise an error then.
        """
        raise NotImplementedError

    def is_close(self, ours: NDArray[Any], theirs: NDArray[Any], rows: NDArray[np.float32]) -> bool:
        """Whether actions are the same up to rounding."""
        del rows
        return ours.shape == theirs.shape and np.allclose(ours, theirs, 1e-4, 1e-4, equal_nan=True)

    def set_training_mode(self, mode: bool) -> None:
        """What the policy's method does, for networks whose modules have nothing else to switch."""
        self._trained.set_training_mode(mode)
        self._own["training"] = mode

    def train(
        self, model: Any, original: Callable[..., None], gradient_steps: int, batch_size: int | None = None
    ) -> None:
        """What the library's `train` does."""
        batch_size = self.default_batch_size if batch_size is None else batch_size
        self.set_training_mode(True)
        model._update_learning_rate([group.optimizer for group in self.groups])
        moved = [group.refresh() for group in self.groups]
        if any(moved):
            self.audits.soon()
        rates = [group.optimizer.param_groups[0]["lr"] for group in self.groups]
        self.audits.follow(batch_size, model.gamma, model.tau, *rates)
        self.audits.follow_copies(self.copies_of_targets(model))
        wanted = batch_size, self.threads(batch_size)
        if self.samples is None or wanted != self._allocated:
            self.samples, self._allocated = self.allocate(*wanted), wanted
        due = self.audits.due(gradient_steps)
        begun = self._keep(model) if due is not None else None
        rows = np.zeros((gradient_steps, max(self.logged.values()) + 1))
        for step in range(gradient_steps):
            if step != due:
                with _gradient_step:
                    self.gradient_step(model, step, rows[step])
                continue
            try:
                self._audit(model, original, step, rows[step])
            except AuditError:
                self._restore(model, begun)
                raise
            due = self.audits.due(gradient_steps - step - 1)
            due = None if due is None else step + 1 + due
        self.record.gradient_steps += gradient_steps
        progress(updates=gradient_steps)
        if gradient_steps > 0:
            self.write_grads()
        self.finish(model, gradient_steps, rows)

    def write_grads(self) -> None:
        """Leave the last gradients in `.grad`, as the library does.

        After SAC's and TD3's last backward pass, the library's critics have the sum of their own gradient and
        the actor loss's, which no optimizer uses. Here they have their own.
        """
        for group in self.groups:
            group.write_grads()

    def copies_of_targets(self, model: Any) -> int:
        """How often weights were copied to target networks at once."""
        del model
        return 0

    def threads(self, batch_size: int) -> int:
        """How many threads a gradient step is split over."""
        del batch_size
        return 1

    def allocate(self, batch_size: int, threads: int) -> Samples:
        """Make the kernels' arrays for batches of this size and that many threads."""
        raise NotImplementedError

    def gradient_step(self, model: Any, step: int, found: NDArray[np.float64]) -> None:
        """Draw a batch and learn from it; `found` gets the statistics."""
        raise NotImplementedError

    def finish(self, model: Any, gradient_steps: int, rows: NDArray[np.float64]) -> None:
        """Count the gradient steps and log them."""
        model._n_updates += gradient_steps
        model.logger.record("train/n_updates", model._n_updates, exclude="tensorboard")
        means = rows[0] if gradient_steps == 1 else rows.mean(axis=0)
        for key, column in self.logged.items():
            model.logger.record(key, means[column])

    # ---- audits

    def _keep(self, model: Any) -> tuple[Any, ...]:
        """Copies of everything that training changes."""
        tensors = {name: tensor.detach().numpy().copy() for name, tensor in self._tensors().items()}
        return tensors, np.random.get_state(), torch.get_rng_state(), model._n_updates

    def _restore(self, model: Any, kept: Any) -> None:
        tensors, of_numpy, of_torch, model._n_updates = kept
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                tensor.detach().copy_(torch.from_numpy(tensors[name]).reshape(tensor.shape))
        np.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)

    def _tensors(self) -> dict[str, Any]:
        return {name: tensor for group in self.groups for name, tensor in group.all().items()}

    def _audit(
        self, model: Any, original: Callable[..., None], step: int, found: NDArray[np.float64]
    ) -> None:
        """Make a gradient step both ways from the same state, and keep the kernels' result if they agree."""
        from stable_baselines3.common.logger import Logger

        started_s = time.perf_counter()
        assert self.samples is not None
        before = self._keep(model)
        self.gradient_step(model, step, found)
        ours = self._keep(model)
        self._restore(model, before)
        logger, was = Logger(folder=None, output_formats=[]), model._logger
        model._logger = logger
        try:
            with not_counting(), audit.same_distribution(model.policy):
                original(model, gradient_steps=1, batch_size=self.samples.size)
        finally:
            model._logger = was
        theirs = self._keep(model)
        if not all(group.has_moments() for group in self.groups):
            raise AuditError(Difference(0.0, 0.0, np.inf, "the optimizer's state, which was replaced", 0.0))
        self._restore(model, ours)
        logged = {
            key: (float(found[column]), float(logger.name_to_value[key]))
            for key, column in self.logged.items()
            if key in logger.name_to_value
        }
        compared = [
            {name: array for name, array in kept[0].items() if self.is_audited(name, model, step)}
            for kept in (before, ours, theirs)
        ]
        difference = audit.compare(compared[0], compared[1], compared[2], self._rates(model), logged)
        if not _same_generators(ours, theirs):
            draws = "the random numbers drawn (another thread may have drawn some)"
            difference = Difference(0.0, 0.0, np.inf, draws, 0.0)
        self.audits.record(difference, started_s)

    def is_audited(self, name: str, model: Any, step: int) -> bool:
        """Whether this gradient step changes the tensor in the library, too, when it is made alone."""
        del name, model, step
        return True

    def _rates(self, model: Any) -> dict[str, float]:
        """Learning rates of weights, and of targets, which move by a part of it."""
        found: dict[str, float] = {}
        for group in self.groups:
            rate = audit.comparable_rate(group.settings[dense.LEARNING_RATE])
            found |= {f"weights.{name}": rate for name in group.names}
            found |= {f"targets.{name}": audit.comparable_rate(rate * model.tau) for name in group.names}
        return found


def threads_for_actor_and_critics(
    batch_size: int, actor: Sequence[nn.Linear], critics: Sequence[Sequence[nn.Linear]]
) -> int:
    """How many threads a gradient step of SAC, TD3 or DDPG is split over."""
    per_sample = 4.0 * multiplications(actor) + 5.0 * len(critics) * multiplications(critics[0])
    return threads_for(batch_size * per_sample, len(critics))


def _options(optimizer: Any) -> tuple[Any, ...]:
    """What `eligible.optimizer` looks at, as far as it can change."""
    groups = optimizer.param_groups
    group = groups[0]
    return len(groups), len(group["params"]), group["amsgrad"], group["maximize"], group["eps"]


def _same_generators(ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> bool:
    (_, _, of_torch, _), (_, _, other, _) = ours, theirs
    same_numpy = all(np.array_equal(a, b) for a, b in zip(ours[1], theirs[1], strict=True))
    return same_numpy and bool(torch.equal(of_torch, other))


# ---- patches


def acting_patches(policy_class: type) -> list[Patch]:
    """Patches of a policy's `predict` and `set_training_mode` for boosted models."""
    return [Patch(policy_class, "predict", _predicting), Patch(policy_class, "set_training_mode", _switching)]


def _predicting(original: Callable[..., Any]) -> Callable[..., Any]:
    def predict(
        policy: Any,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> Any:
        found = boosted_policy(policy)
        learner: Any = None if found is None else found.learner
        if found is None or learner is None or learner.is_exchanged() or not learner.acting.begin():
            return original(policy, observation, state, episode_start, deterministic)
        try:
            actions = _act(found, learner, policy, original, observation, deterministic)
        finally:
            learner.acting.end()
        if actions is None:
            return original(policy, observation, state, episode_start, deterministic)
        return actions, state

    return predict


def _act(
    found: Boosted,
    learner: Any,
    policy: Any,
    original: Callable[..., Any],
    observation: Any,
    deterministic: bool,
) -> NDArray[Any] | None:
    """The actions of the kernels, or None to leave them to the library."""
    rows = learner.acting.rows(observation)
    if rows is None:
        return None
    is_audited = learner.acting_audits.due(1) is not None
    started_s, generator = time.perf_counter(), torch.get_rng_state() if is_audited else None
    with _acting:
        actions: NDArray[Any] | None = learner.act(policy, rows, deterministic)
    if actions is None or generator is None:
        return actions
    torch.set_rng_state(generator)
    expected: NDArray[Any] = original(policy, observation, None, None, deterministic)[0]
    is_right = learner.is_close(actions, expected, rows)
    learner.acting_audits.note(is_right, started_s)
    if not is_right:
        found.switch_off(f"an audit failed: actions are {actions.ravel()[:4]}, not {expected.ravel()[:4]}")
        return expected
    return actions


def _switching(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_training_mode(policy: Any, mode: bool) -> None:
        found = boosted_policy(policy)
        if found is None or found.learner is None:
            original(policy, mode)
        else:
            found.learner.set_training_mode(mode)

    return set_training_mode
