"""What the compiled DQN, SAC, TD3 and DDPG share: addresses of tensors, samples, gradient steps, audits.

Kernels work on Stable-Baselines3's own tensors. Before each `train` their addresses are read anew, because
`load`, `set_parameters` or anyone may have replaced them; then there is nothing that could be out of date.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from hotloop import profile, progress
from hotloop.boost import audit, eligible
from hotloop.boost import dense_kernels as dense
from hotloop.boost import off_policy_kernels as kernels
from hotloop.boost.active import Record, boosted_policy
from hotloop.boost.audit import AuditError, Audits, Difference, NotFinite
from hotloop.boost.observations import Observations, unsupported_observations
from hotloop.boost.plain_modules import PlainModules
from hotloop.instrument.patch import Patch
from hotloop.instrument.update_counting import not_counting
from hotloop.rl.train.fused.flat import aligned_zeros
from hotloop.rl.train.fused.tiles import padded

KINDS = {"tanh": dense.TANH, "relu": dense.RELU, "elu": dense.ELU, "silu": dense.SILU}

BUFFERS = "stable_baselines3.common.buffers"
POLICIES = "stable_baselines3.common.policies"
OFF_POLICY = "stable_baselines3.common.off_policy_algorithm.OffPolicyAlgorithm"
SOURCES = (
    f"{BUFFERS}.BaseBuffer.sample",
    *(f"{BUFFERS}.ReplayBuffer.{name}" for name in ("__init__", "add", "sample", "_get_samples")),
    *(f"{BUFFERS}.BaseBuffer.{name}" for name in ("to_torch", "_normalize_obs", "_normalize_reward")),
    f"{OFF_POLICY}._sample_action",
    *(f"{POLICIES}.BaseModel.{name}" for name in ("extract_features", "obs_to_tensor", "set_training_mode")),
    *(f"{POLICIES}.BasePolicy.{name}" for name in ("predict", "scale_action", "unscale_action")),
    "stable_baselines3.common.preprocessing.preprocess_obs",
    "stable_baselines3.common.torch_layers.FlattenExtractor.forward",
    "stable_baselines3.common.utils.polyak_update",
    "stable_baselines3.common.base_class.BaseAlgorithm._update_learning_rate",
)
CRITIC_SOURCES = tuple(
    f"{POLICIES}.ContinuousCritic.{name}" for name in ("__init__", "forward", "q1_forward")
)

_gradient_step, _acting = profile("boosted_update", "model"), profile("boosted_act", "policy")

_data_ptr = torch.Tensor.data_ptr
LEAST_RATE = 1e-6  # for audits: below, rounding of the weights themselves would count as a difference


# ---- what can be boosted


def why_not(model: Any, policy_class: str, networks: Sequence[str]) -> str | None:
    """None if kernels can stand in for the model's policy, spaces and buffer; else the reason.

    `networks` are the names of the policy's networks.
    """
    policy, buffer = model.policy, model.replay_buffer
    if type(policy).__name__ != policy_class or not type(policy).__module__.startswith("stable_baselines3."):
        return f"policy is {type(policy).__name__}: not {policy_class}"
    if (
        type(buffer).__name__ not in ("ReplayBuffer", "NStepReplayBuffer")
        or type(buffer).__module__ != BUFFERS
    ):
        return f"replay_buffer is {type(buffer).__name__}: not ReplayBuffer or NStepReplayBuffer"
    if getattr(model, "use_sde", False):
        return "use_sde=True: state dependent exploration is not compiled"
    own = eligible.overridden(model) or eligible.overridden(buffer)
    if own is not None:
        return f"{own} is replaced on the instance"
    for name in networks:
        network = getattr(policy, name)
        if getattr(model, name) is not network:
            return f"{name} is not the policy's"
        extractor = type(network.features_extractor)
        if extractor.__name__ != "FlattenExtractor" or not extractor.__module__.startswith(
            "stable_baselines3."
        ):
            return f"features_extractor is {extractor.__name__}: not an MLP"
    for name in ("gamma", "tau"):
        if not isinstance(getattr(model, name), (int, float)):
            return f"{name} is a {type(getattr(model, name)).__name__}, not a number"
    return unsupported_spaces(model) or eligible.plain_module(policy, "policy")


def unsupported_spaces(model: Any) -> str | None:
    """Observations in a Box that are no images, or numbered from 0; actions likewise."""
    reason, actions = unsupported_observations(model.observation_space, model.policy), model.action_space
    if reason is not None:
        return reason
    if isinstance(actions, spaces.Discrete):
        return None if actions.start == 0 else f"actions start at {actions.start}, not at 0"
    if actions.dtype not in (np.float32, np.float64):
        return f"actions are {actions.dtype}: not float32 or float64"
    return None


def optimizer_reason(optimizer: Any, parameters: Sequence[Any]) -> str | None:
    """Adam as `eligible.optimizer` wants it, with an epsilon that hides moments which kernels take for 0."""
    reason = eligible.optimizer(optimizer, parameters)
    if reason is None and optimizer.param_groups[0]["eps"] < 1e-12:
        return f"the optimizer's eps is {optimizer.param_groups[0]['eps']:g}: less than 1e-12"
    return reason


def linear_chain(parts: Iterable[Any], name: str) -> tuple[list[nn.Linear], int] | str:
    """The Linear layers of a chain that ends with one, and its activation; or the reason why not."""
    parts = list(parts)
    found = eligible.mlp(parts, name)
    if isinstance(found, str):
        return found
    return [part for part in parts if type(part) is nn.Linear], KINDS[found[1]]


def parameters_of(linears: Iterable[nn.Linear]) -> list[torch.Tensor]:
    """Weight and bias of each layer."""
    return [tensor for linear in linears for tensor in (linear.weight, linear.bias)]


def multiplications(linears: Iterable[nn.Linear]) -> int:
    """For one sample, forward."""
    return sum(linear.in_features * linear.out_features for linear in linears)


def shape_of(linears: Sequence[nn.Linear]) -> str:
    """For messages: 3-64-64-1."""
    return "-".join(map(str, (linears[0].in_features, *(linear.out_features for linear in linears))))


# ---- memory


class Layout:
    """Places in the kernels' arrays for batches of one size."""

    def __init__(self, batch_size: int):
        self.samples = padded(batch_size)
        self.rows = self.grads = 0
        self.widest = 1

    def region(self, rows: int) -> int:
        """A place for activations [rows, samples]."""
        self.rows += rows
        return (self.rows - rows) * self.samples

    def table(
        self,
        linears: Sequence[nn.Linear],
        kind: int,
        input_at: int,
        tensor: int = 0,
        heads: int = 1,
        after: int = 0,
    ) -> NDArray[np.int64]:
        """A network's table with places of its own; `after` more rows follow the output."""
        found = np.zeros((len(linears), dense.TABLE_WIDTH), dtype=np.int64)
        below, source = -1, input_at
        for layer, linear in enumerate(linears):
            inputs, outputs = linear.in_features, linear.out_features
            is_head = layer >= len(linears) - heads
            out = self.region(outputs)
            activation = dense.NONE if is_head else kind
            found[layer] = (inputs, outputs, tensor + 2 * layer, source, out, activation, self.grads, below)
            self.grads += outputs * (padded(inputs) + 1)
            self.widest = max(self.widest, inputs)
            if not is_head:
                below, source = layer, out
        self.region(after)
        return found

    def memory(self, threads: int = 1) -> kernels.Memory:
        """The arrays, for kernels that run on that many threads."""
        size = self.rows * self.samples
        across = self.samples * padded(self.widest)
        return kernels.Memory(
            work=aligned_zeros(size),
            deltas=aligned_zeros(size),
            slopes=aligned_zeros(size),
            grads=aligned_zeros(self.grads),
            across=aligned_zeros(threads * across).reshape(threads, across),
        )


def reading(table: NDArray[np.int64], input_at: int) -> NDArray[np.int64]:
    """The same network in the same places, but with another input."""
    found = table.copy()
    found[found[:, dense.BELOW] < 0, dense.INPUT_AT] = input_at
    return found


class Tensors:
    """The tensors of one optimizer: weights, Adam's state, target weights."""

    def __init__(
        self,
        optimizer: Any,
        names: Sequence[str],
        weights: Sequence[Any],
        targets: Sequence[Any] | None = None,
    ):
        self.optimizer, self.names = optimizer, names
        self.weights, self.targets = list(weights), list(targets or weights)
        self.has_targets = targets is not None
        self.addresses = np.zeros((len(self.weights), dense.ADDRESSES), dtype=np.int64)
        self.settings = np.zeros(dense.OPTIMIZER_SETTINGS)
        self.settings[dense.MAX_GRAD_NORM] = -1.0
        self._state: Any = None
        self._moments: list[list[Any]] = []
        self._all: list[Any] = []
        self._known: list[int] = []
        self._grads: list[Any] = []

    def show_gradients(self, tables: Iterable[NDArray[np.int64]], grads: NDArray[np.float32]) -> None:
        """Let `.grad` be the kernels' own gradients from now on: views, one for each weight and bias."""
        memory = torch.from_numpy(grads)
        self._grads = []
        for inputs, outputs, *_, at, _ in chain(*tables):
            end = int(at + inputs * outputs)
            self._grads.append(memory[int(at) : end].view(int(outputs), int(inputs)))
            self._grads.append(memory[end : end + int(outputs)])

    def show_gradient(self, gradient: NDArray[np.float32]) -> None:
        """The same for a single tensor of one number."""
        self._grads = [torch.from_numpy(gradient)]

    def write_grads(self) -> None:
        """Leave the last gradients in `.grad`, where callbacks look for them.

        The library and users replace them all at once (`zero_grad`, `backward`), so a look at one will do.
        """
        if self.weights[0].grad is not self._grads[0]:
            for weight, gradient in zip(self.weights, self._grads, strict=True):
                weight.grad = gradient

    def refresh(self) -> bool:
        """Find out where the tensors are now and read the optimizer's settings; True if tensors moved."""
        optimizer = self.optimizer
        if optimizer.state is not self._state:
            self._find_moments()
        now = [*map(_data_ptr, self._all)]
        moved = now != self._known
        if moved:
            self._known = now
            self.addresses[:] = np.array(now, dtype=np.int64).reshape(dense.ADDRESSES, -1).T
        group, settings = optimizer.param_groups[0], self.settings
        settings[:5] = group["lr"], *group["betas"], group["eps"], group["weight_decay"]
        return moved

    def _find_moments(self) -> None:
        state = self.optimizer.state
        for weight in self.weights:
            if not state[weight]:  # as torch makes it at the first step
                state[weight]["step"] = torch.tensor(0.0, dtype=torch.float32)
                for name in ("exp_avg", "exp_avg_sq"):
                    state[weight][name] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        self._state = state
        self._moments = [
            [state[weight][name] for weight in self.weights] for name in ("exp_avg", "exp_avg_sq", "step")
        ]
        self._all = [*self.weights, *chain(*self._moments), *self.targets]

    def forget_unused_moments(self) -> None:
        """Remove Adam's state if it has made no step yet: torch would not have made it."""
        if self._moments and float(self._moments[-1][0]) == 0.0:
            self.optimizer.state.clear()
            self._state = None

    def has_moments(self) -> bool:
        """Whether Adam's state is that of the last `refresh`, tensor by tensor."""
        state = self.optimizer.state
        return state is self._state and all(
            state[weight][name] is tensor
            for name, tensors in zip(("exp_avg", "exp_avg_sq", "step"), self._moments, strict=True)
            for weight, tensor in zip(self.weights, tensors, strict=True)
        )

    def all(self) -> dict[str, Any]:
        """Every tensor that a gradient step changes, by kind and name."""
        kinds = [
            ("weights", self.weights),
            *zip(("exp_avg", "exp_avg_sq", "step"), self._moments, strict=True),
        ]
        if self.has_targets:
            kinds.append(("targets", self.targets))
        return {
            f"{kind}.{name}": tensor
            for kind, tensors in kinds
            for name, tensor in zip(self.names, tensors, strict=True)
        }


# ---- samples


class Samples:
    """Draws batches from a replay buffer as the library does: same random numbers, same transitions."""

    def __init__(self, batch_size: int, observations: Observations, actions: int):
        self.size, self._observations = batch_size, observations
        width = observations.width
        shapes = (
            (batch_size, width),
            (batch_size, width),
            (batch_size, actions),
            (batch_size,),
            (batch_size,),
        )
        self.batch = kernels.Batch(*(np.zeros(shape, dtype=np.float32) for shape in shapes))
        self._sources: tuple[Any, ...] = ()
        self._views: tuple[Any, ...] = ()

    def draw(self, model: Any) -> None:
        """Fill `batch`."""
        buffer = model.replay_buffer
        if not self._is_plain(buffer) or model._vec_normalize_env is not None:
            self._copy(buffer.sample(self.size, env=model._vec_normalize_env), model.gamma)
            return
        steps = np.random.randint(0, buffer.buffer_size if buffer.full else buffer.pos, size=self.size)
        envs = np.random.randint(0, high=buffer.n_envs, size=(self.size,))
        self._gather(steps, envs, buffer.n_envs, model.gamma)

    def _gather(self, steps: NDArray[np.int64], envs: NDArray[np.int64], n_envs: int, gamma: float) -> None:
        observations, following, actions, rewards, dones, timeouts = self._views
        are_valid = kernels.gather(
            observations, following, actions, rewards, dones, timeouts, steps, envs, n_envs, gamma, self.batch
        )
        if not are_valid:
            raise NotFinite

    def compile(self, buffer: Any) -> None:
        """Load or compile what `draw` needs; the batch size must be 0."""
        if self._is_plain(buffer):
            none = np.zeros(0, dtype=np.int64)
            self._gather(none, none, buffer.n_envs, 0.0)

    def _is_plain(self, buffer: Any) -> bool:
        """Whether the kernel can gather; makes views of the buffer's arrays when they are new."""
        arrays: tuple[Any, ...] = (
            buffer.observations, getattr(buffer, "next_observations", None), buffer.actions, buffer.rewards,
            buffer.dones, buffer.timeouts,
        )  # fmt: skip
        if len(self._sources) == len(arrays) and all(map(_same, arrays, self._sources)):
            return bool(self._views)
        self._sources, self._views = arrays, ()
        if type(buffer).__name__ == "ReplayBuffer" and not buffer.optimize_memory_usage:
            observations, following, actions, *numbers = arrays
            is_gatherable = observations.dtype in (np.float32, np.float64, np.int64) and actions.dtype in (
                np.float32,
                np.int64,
            )
            # The kernel takes a number for a one-hot row if the row has another width.
            is_gatherable = is_gatherable and self._observations.choices != 1
            if is_gatherable and all(array.flags.c_contiguous for array in arrays):
                rows = observations.shape[0] * observations.shape[1]
                self._views = (
                    *(array.reshape(rows, -1) for array in (observations, following, actions)),
                    *(array.reshape(-1) for array in numbers),
                )
        return bool(self._views)

    def _copy(self, data: Any, gamma: float) -> None:
        """Take over what the library's own `sample` returned."""
        batch, size = self.batch, self.size
        batch.observations[:] = self._observations.rows(data.observations.numpy())
        batch.next_observations[:] = self._observations.rows(data.next_observations.numpy())
        batch.actions[:] = data.actions.numpy().reshape(size, -1)
        batch.rewards[:] = data.rewards.numpy().reshape(-1)
        discounts = getattr(data, "discounts", None)
        discount = np.float32(gamma) if discounts is None else discounts.numpy().reshape(-1)
        batch.discounts[:] = (1.0 - data.dones.numpy().reshape(-1)) * discount


def _same(a: Any, b: Any) -> bool:
    return a is b


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

    def rows(self, observation: Any) -> NDArray[np.float32] | None:
        """Observations of environments as float32 [rows, width], or None if they are something else."""
        if not self.observations.count_if_plain(observation):
            return None
        if observation.dtype.kind not in "fiu" or not self.observations.are_valid(observation):
            return None
        self.addresses[:, dense.WEIGHTS] = [*map(_data_ptr, self._weights)]
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
        if policy is not self._policy or self.is_hooked() or type(buffer) is not self._buffer_class:
            return True
        if any(map(eligible.Methods.are_hidden, self._methods, (model, policy, buffer))):
            return True
        for name, network in zip(self._names, self._networks, strict=True):
            if getattr(model, name) is not network or policy._modules[name] is not network:
                return True
        for group, options in zip(self.groups, self._options, strict=True):
            if _options(group.optimizer) != options or eligible.is_hooked(group.optimizer):
                return True
        return self._modules.changed() or self.exchanged(model)

    def exchanged(self, model: Any) -> bool:
        """Whether an optimizer is another one now."""
        raise NotImplementedError

    def is_hooked(self) -> bool:
        """Whether a module of the policy has hooks now."""
        return any(self._hooks)

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
            difference = Difference(0.0, 0.0, np.inf, "the random numbers drawn", 0.0)
        self.audits.record(difference, started_s)

    def is_audited(self, name: str, model: Any, step: int) -> bool:
        """Whether this gradient step changes the tensor in the library, too, when it is made alone."""
        del name, model, step
        return True

    def _rates(self, model: Any) -> dict[str, float]:
        """Learning rates of weights, and of targets, which move by a part of it."""
        found: dict[str, float] = {}
        for group in self.groups:
            rate = max(float(group.settings[dense.LEARNING_RATE]), LEAST_RATE)
            found |= {f"weights.{name}": rate for name in group.names}
            found |= {f"targets.{name}": max(rate * model.tau, LEAST_RATE) for name in group.names}
        return found


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
        rows = None if learner is None or learner.is_hooked() else learner.acting.rows(observation)
        if found is None or rows is None:
            return original(policy, observation, state, episode_start, deterministic)
        is_audited = learner.acting_audits.due(1) is not None
        started_s, generator = time.perf_counter(), torch.get_rng_state() if is_audited else None
        with _acting:
            actions = learner.act(policy, rows, deterministic)
        if actions is None:
            return original(policy, observation, state, episode_start, deterministic)
        if generator is None:
            return actions, state
        torch.set_rng_state(generator)
        expected, _ = original(policy, observation, None, None, deterministic)
        is_right = learner.is_close(actions, expected, rows)
        learner.acting_audits.note(is_right, started_s)
        if not is_right:
            found.switch_off(
                f"an audit failed: actions are {actions.ravel()[:4]}, not {expected.ravel()[:4]}"
            )
            return expected, state
        return actions, state

    return predict


def _switching(original: Callable[..., Any]) -> Callable[..., Any]:
    def set_training_mode(policy: Any, mode: bool) -> None:
        found = boosted_policy(policy)
        if found is None or found.learner is None:
            original(policy, mode)
        else:
            found.learner.set_training_mode(mode)

    return set_training_mode
