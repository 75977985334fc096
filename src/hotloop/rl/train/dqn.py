"""Deep Q-learning (Mnih et al., 2015), by default with double Q-learning, for discrete actions.

    from hotloop.rl.train.dqn import DQNConfig, train
    result = train(DQNConfig(env="CartPole", total_timesteps=50_000))

Read it from top to bottom: settings, loss, the plain torch learner, the choice of a learner, the loop. Each
vector step chooses actions (epsilon-greedy), steps the envs, pushes the transitions to the replay buffer, and
makes the gradient steps that are due.

Nothing here needs a compiled learner. For small dense networks `fused/dqn.py` replaces `TorchLearner`, with
the same numbers up to rounding, and on our own environments the whole loop runs in one kernel.

`push`, `transfers`, `log_every_steps`, `learner` and `loop` also have slow settings on purpose: they are the
variants of an investigation (docs/snake.md) and do not change what is learned.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from torch import Tensor, nn

from hotloop import profile, progress
from hotloop._util.errors import HotloopError
from hotloop.rl.buffers.replay import Prioritized, ReplayBuffer
from hotloop.rl.buffers.replay_batch import ReplayBatch
from hotloop.rl.envs.streams import copy_stream_to
from hotloop.rl.nonfinite import NonFiniteCheck
from hotloop.rl.train import runs
from hotloop.rl.train.compiled_step import compile_gradient_step
from hotloop.rl.train.make_envs import RolloutState, evaluate_policy, make_envs
from hotloop.rl.train.networks.q import QNetwork
from hotloop.rl.train.runs import CheckpointError, RecentEpisodes, RunResult

_policy_forward = profile("policy_forward")
_env_step = profile("env_step")
_replay_push = profile("replay_push")
_replay_sample = profile("replay_sample")
_transfer = profile("transfer")
_learner_forward = profile("learner_forward")
_loss = profile("loss")
_backward = profile("backward")
_optimizer_step = profile("optimizer_step")
_learner_step = profile("learner_step", "model")
_weights_sync = profile("weights_sync")
_fused_loop = profile("fused_loop", "model")
_learner_update = profile("learner_update", "framework")
_log = profile("log")
_checkpoint = profile("checkpoint")

RECORD_EVERY_S = 0.02  # unless log_every_steps says otherwise
CHUNK_STEPS = 4096  # env steps per call of the compiled loop: a few tenths of a second between two records
IN_ONE_KERNEL = "whole loop in one kernel; loop python shows its parts"  # on the progress line
STATISTICS = ("loss", "gradient_norm", "value")
FIELDS = ("observations", "actions", "rewards", "next_observations", "discounts", "weights")  # of a batch
MAY_DIFFER = runs.MAY_DIFFER | {"loop", "push", "transfers", "log_every_steps", "stop_at_episodes"}


@dataclass(frozen=True)
class DQNConfig:
    """Settings of a run, named as in Stable-Baselines3; the defaults solve CartPole."""

    env: str = "CartPole"
    """One of our environments (CartPole, Snake, ...) or a Gymnasium id such as CartPole-v1."""
    seed: int = 0
    """Seed of weights, exploration, samples and environments."""
    total_timesteps: int = 60_000
    """Env steps to train for, rounded up to whole vector steps."""
    n_envs: int = 1
    """Number of parallel environments; a vector step is one step of each."""
    learning_rate: float = 1e-3
    """Adam's learning rate."""
    adam_eps: float = 1e-8
    """Adam's epsilon."""
    buffer_size: int = 50_000
    """Transitions in the replay buffer."""
    learning_starts: int = 1_000
    """Env steps before the first gradient step."""
    batch_size: int = 64
    """Transitions of one gradient step."""
    train_freq: int = 2
    """Vector steps between two rounds of gradient steps."""
    gradient_steps: int = 1
    """Gradient steps per round; -1 for one per env step, 0 to collect without learning."""
    gamma: float = 0.99
    """Discount factor."""
    n_steps: int = 1
    """Rewards summed before bootstrapping (n-step returns)."""
    target_update_interval: int = 500
    """Env steps between two updates of the target network, rounded to whole vector steps."""
    tau: float = 1.0
    """How far each of these updates moves the target network; 1 copies the weights."""
    double: bool = True
    """Double Q-learning: the online network chooses the next action, the target network evaluates it."""
    dueling: bool = False
    """Separate state value and advantages in the last layer."""
    loss: Literal["huber", "mse"] = "huber"
    """Loss of the TD error; huber is torch's smooth L1."""
    max_grad_norm: float | None = 10.0
    """Maximum norm of the gradient; None for no clipping."""
    prioritized: bool = False
    """Prioritized replay: sample transitions with a large TD error more often."""
    priority_alpha: float = 0.6
    """How strongly priorities weigh; 0 is uniform."""
    priority_beta: float = 0.4
    """How far importance weights correct for the priorities; 1 is a full correction."""
    exploration_initial_eps: float = 1.0
    """Probability of a random action at the beginning."""
    exploration_final_eps: float = 0.05
    """Probability of a random action after exploration_fraction of the run."""
    exploration_fraction: float = 0.1
    """Fraction of total_timesteps over which this probability falls linearly."""
    frame_stack: int = 1
    """Observations are stacks of this many frames; the replay buffer stores each frame once."""
    net_arch: tuple[int, ...] = (64, 64)
    """Hidden layer widths."""
    activation: Literal["tanh", "relu"] = "relu"
    """Activation after each hidden layer."""
    push: Literal["batch", "items"] = "batch"
    """Push a vector step to the replay buffer in one call, or env by env in Python."""
    transfers: Literal["batch", "items"] = "batch"
    """Turn rows into tensors together, or one by one (torch learner only)."""
    learner: Literal["auto", "fused", "torch", "compiled"] = "auto"
    """Learner implementation; `auto` times the candidates and logs the choice."""
    loop: Literal["auto", "kernel", "python"] = "auto"
    """Run the loop in one kernel or in Python; `auto` uses the kernel where there is one."""
    log_every_steps: int | None = None
    """Env steps between two records of all metrics; None for about 50 a second."""
    threads: int = 1
    """Torch's intra-op threads."""
    allow_nonfinite: bool = False
    """Train on rewards and observations that are NaN or infinite, instead of stopping."""
    stop_at_return: float | None = None
    """Stop once the mean return of the last 100 episodes reaches this."""
    stop_at_episodes: int | None = None
    """Stop once this many episodes have finished, even before total_timesteps."""
    n_eval_episodes: int = 0
    """Episodes to evaluate the greedy policy on after training, in the training envs."""
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
class DQNResult(RunResult):
    """Result of a training run."""

    network: nn.Module
    """The trained network: observations -> action values."""
    fused_loop: bool
    """Whether the whole loop ran in one kernel."""
    mean_length: float | None
    """Mean length of the last 100 episodes."""
    statistics: dict[str, float]
    """Means of STATISTICS since the last record."""


def check_config(config: DQNConfig) -> None:
    """Raise HotloopError for the first invalid setting."""
    runs.check_at_least(config, 1, "total_timesteps", "n_envs", "batch_size", "buffer_size", "train_freq")
    runs.check_at_least(config, 1, "target_update_interval", "n_steps", "threads", "checkpoint_every_steps")
    runs.check_at_least(config, 1, "log_every_steps", "stop_at_episodes")
    runs.check_at_least(config, 0, "learning_starts", "n_eval_episodes")
    runs.check_at_least(config, -1, "gradient_steps")
    runs.check_seed(config)
    runs.check_fraction(config, "gamma", "tau", "exploration_initial_eps", "exploration_final_eps")
    runs.check_fraction(config, "exploration_fraction")
    runs.check_positive(config, "learning_rate", "adam_eps", "max_grad_norm")
    runs.check_net_arch(config)
    runs.check_checkpoint(config)
    if config.transfers == "items" and config.learner not in ("auto", "torch"):
        raise HotloopError(f"transfers='items' needs learner='torch', not {config.learner!r}.")


def saved_run(config: DQNConfig) -> runs.Checkpoint | None:
    """The checkpoint to resume from, or None; CheckpointError if it does not fit the settings."""
    exploring = config.exploration_initial_eps != config.exploration_final_eps
    # Exploration falls over a fraction of total_timesteps, which then decides the numbers, too.
    may_differ = MAY_DIFFER - {"total_timesteps"} if exploring else MAY_DIFFER
    return runs.load_run(config, may_differ, upgrade_settings)


# ---- loss


def td_targets(
    online_next: Tensor, target_next: Tensor, rewards: Tensor, discounts: Tensor, *, double: bool
) -> Tensor:
    """rewards + discounts * the target network's value of the best next action [batch].

    The best action is the online network's choice (double DQN, van Hasselt et al., 2016) or the target's own.
    `discounts` is 0 where the episode terminated, and only there: truncation does not stop bootstrapping.
    """
    chooser = online_next if double else target_next
    best = chooser.argmax(dim=1, keepdim=True)
    return rewards + discounts * target_next.gather(1, best).squeeze(1)


def dqn_loss(errors: Tensor, weights: Tensor, *, huber: bool) -> Tensor:
    """Weighted mean loss of the TD errors (value - target): smooth L1 with its knee at 1, or the square."""
    if not huber:
        return (weights * errors.square()).mean()
    sizes = errors.abs()
    return (weights * torch.where(sizes < 1.0, 0.5 * errors.square(), sizes - 0.5)).mean()


# ---- learners


class TorchLearner:
    """The plain learner, for any network observations -> action values [batch, actions].

    Owns the target network and the optimizer. `compiled`: one gradient step is one torch.compile function.
    """

    def __init__(self, network: nn.Module, config: DQNConfig, *, compiled: bool = False):
        self.name = "compiled" if compiled else "torch"
        self.network, self.target = network, copy.deepcopy(network).requires_grad_(False)
        self.statistics = np.zeros(len(STATISTICS) + 1)
        """Sums of STATISTICS over gradient steps, then their number; the loop reads and resets them."""
        self._config = config
        self._adam = runs.make_adam(network, config.learning_rate, config.adam_eps)
        self._compiled_step = None
        if compiled:
            self._compiled_step = compile_gradient_step(
                network, self._adam, self._compiled_loss, config.max_grad_norm
            )
        self._tensors: tuple[ReplayBatch, dict[str, Tensor]] | None = None

    def act(
        self,
        observations: NDArray[Any],
        epsilon: float,
        uniforms: NDArray[np.float64],
        actions: NDArray[np.int64],
    ) -> None:
        """Write epsilon-greedy `actions` [envs], from two `uniforms` [envs, 2] in 0 .. 1 for each."""
        values = self.values(observations)
        random_actions = (uniforms[:, 1] * values.shape[1]).astype(np.int64)
        actions[:] = np.where(uniforms[:, 0] < epsilon, random_actions, values.argmax(axis=1))

    def greedy_actions(
        self, observations: NDArray[Any], masks: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        """The action with the largest value in each row, among those that `masks` allows."""
        values = self.values(observations)
        if masks is not None:
            values = np.where(masks, values, -np.inf)
        found: NDArray[np.int64] = values.argmax(axis=1)
        return found

    def values(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Action values [rows, actions]."""
        with torch.inference_mode():
            found: NDArray[np.float32] = self.network(self._to_tensor(observations)).numpy()
        return found

    def _to_tensor(self, rows: NDArray[Any]) -> Tensor:
        if self._config.transfers == "items":
            with _transfer:
                return torch.stack([torch.tensor(row) for row in rows])
        return torch.from_numpy(np.ascontiguousarray(rows))

    def update(self, buffer: ReplayBuffer, batch: ReplayBatch, gradient_steps: int) -> None:
        """Make gradient steps, each on a fresh sample; `batch` is memory for it."""
        with _learner_update:  # its own time: Python between the parts, and freeing their tensors
            for _ in range(gradient_steps):
                with _replay_sample:
                    buffer.sample(batch, beta=self._config.priority_beta)
                loss, norm, value, errors = self._gradient_step(self._fields(batch))
                self.statistics += (loss, norm, value, 1.0)
                if self._config.prioritized:
                    buffer.update_priorities(batch.rows, errors.numpy())

    def _fields(self, batch: ReplayBatch) -> Mapping[str, Tensor]:
        if self._config.transfers == "items":
            return {name: self._to_tensor(getattr(batch, name)) for name in FIELDS}
        if self._tensors is None or self._tensors[0] is not batch:
            self._tensors = batch, batch.tensors()
        return self._tensors[1]

    def _gradient_step(self, fields: Mapping[str, Tensor]) -> tuple[float, float, float, Tensor]:
        """One step of Adam on a batch; returns loss, gradient norm, mean value and TD errors [batch]."""
        config = self._config
        if self._compiled_step is not None:
            with _learner_step:
                batch = (fields[name] for name in FIELDS)
                loss, norm, (value, errors) = self._compiled_step(config.learning_rate, *batch)
            return float(loss), float(norm), float(value), -errors
        with _learner_forward:
            with torch.no_grad():
                target_next = self.target(fields["next_observations"])
                online_next = self.network(fields["next_observations"]) if config.double else target_next
                rewards, discounts = fields["rewards"], fields["discounts"]
                targets = td_targets(online_next, target_next, rewards, discounts, double=config.double)
            values = self.network(fields["observations"]).gather(1, fields["actions"][:, None]).squeeze(1)
        with _loss:
            errors = values - targets
            loss = dqn_loss(errors, fields["weights"], huber=config.loss == "huber")
        with _backward:
            self._adam.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
        with _optimizer_step:
            largest = config.max_grad_norm if config.max_grad_norm is not None else math.inf
            norm = nn.utils.clip_grad_norm_(self.network.parameters(), largest)
            self._adam.step()
        return float(loss.detach()), float(norm), float(values.detach().mean()), -errors.detach()

    def _compiled_loss(
        self,
        forward: Callable[[Tensor], Tensor],
        observations: Tensor,
        actions: Tensor,
        rewards: Tensor,
        next_observations: Tensor,
        discounts: Tensor,
        weights: Tensor,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The loss of a batch as `compile_gradient_step` takes it, then the mean value and the TD errors."""
        double = self._config.double
        with torch.no_grad():
            target_next = self.target(next_observations)
            online_next = forward(next_observations) if double else target_next
            targets = td_targets(online_next, target_next, rewards, discounts, double=double)
        values = forward(observations).gather(1, actions[:, None]).squeeze(1)
        errors = values - targets
        return dqn_loss(errors, weights, huber=self._config.loss == "huber"), (values.mean(), errors)

    def update_target(self) -> None:
        """Move the target network towards the online network by `tau`."""
        with _weights_sync, torch.no_grad():
            for target, online in zip(self.target.parameters(), self.network.parameters(), strict=True):
                target.lerp_(online, self._config.tau)

    def state(self) -> dict[str, NDArray[Any]]:
        """Copies of weights, target weights and Adam's moments by parameter name, for a checkpoint."""
        targets = {f"target.{n}": p.detach().numpy().copy() for n, p in self.target.named_parameters()}
        return runs.weights_and_moments(self.network, self._adam) | targets

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from the `state()` of a learner with the same network."""
        runs.load_weights_and_moments(self.network, self._adam, state)
        runs.load_weights(self.target, state, "target.")


def make_learner(name: str, network: nn.Module, config: DQNConfig) -> Any:
    """The learner of this name; the only place that loads compiled learners."""
    if name == "fused":
        from hotloop.rl.train.fused.dqn import FusedDQN  # lazy: plain learners need no kernels

        if not isinstance(network, QNetwork):
            raise HotloopError(
                f"learner='fused' needs the dense {QNetwork.__name__}, not a {type(network).__name__}; "
                "use learner='torch' or 'compiled'."
            )
        return FusedDQN(network, config)
    if name in ("torch", "compiled"):
        return TorchLearner(network, config, compiled=name == "compiled")
    raise HotloopError(f"learner={name!r} is unknown; use auto, fused, torch or compiled.")


def choose_learner(config: DQNConfig, network: nn.Module, envs: Any, known: str | None) -> Any:
    """The learner that `config` asks for; `auto` is the one of a resumed run (`known`), or the fastest."""
    if config.learner != "auto":
        return make_learner(config.learner, network, config)
    if known is not None or config.transfers == "items":
        return make_learner(known or "torch", network, config)
    n_envs = int(envs.num_envs)
    updates = config.total_timesteps / n_envs / config.train_freq * gradient_steps_per_round(config, n_envs)
    names = ["torch", "fused"] if isinstance(network, QNetwork) else ["torch"]
    name = runs.fastest_learner(
        lambda name: time_gradient_step(name, network, config, envs), names, updates, config.quiet
    )
    return make_learner(name, network, config)


def time_gradient_step(name: str, network: nn.Module, config: DQNConfig, envs: Any) -> float:
    """Milliseconds of a gradient step, with sampling, on a copy of the network and made-up transitions."""
    learner = make_learner(name, copy.deepcopy(network), config)
    buffer = made_up_replay(config, envs)
    batch = buffer.make_batch(config.batch_size)
    return runs.best_of(7, lambda: learner.update(buffer, batch, 1))


def made_up_replay(config: DQNConfig, envs: Any) -> ReplayBuffer:
    rng = np.random.default_rng(0)
    space, n_actions = envs.single_observation_space, int(envs.single_action_space.n)
    prioritized = Prioritized() if config.prioritized else None
    buffer = ReplayBuffer(
        64, 1, space, Discrete(n_actions), frame_stack=config.frame_stack, prioritized=prioritized
    )
    buffer.start(np.zeros((1, *space.shape), dtype=space.dtype))
    no = np.zeros(1, dtype=np.bool_)
    for _ in range(64):
        observations = (rng.random((1, *space.shape)) * 2).astype(space.dtype)
        buffer.push(rng.integers(0, n_actions, 1), rng.random(1), no, no, observations)
    return buffer


def warm_up(name: str, network: nn.Module, config: DQNConfig, envs: Any) -> None:
    """Compile or load the kernels that the loop calls, on a copy of the network."""
    buffer = made_up_replay(config, envs)
    batch = buffer.sample(buffer.make_batch(config.batch_size))
    if name == "fused":
        twin = make_learner(name, copy.deepcopy(network), config)
        n_envs, space = int(envs.num_envs), envs.single_observation_space
        observations, actions = (
            np.zeros((n_envs, *space.shape), space.dtype),
            np.zeros(n_envs, dtype=np.int64),
        )
        twin.act(observations, 0.0, np.zeros((n_envs, 2)), actions)
        twin.update(buffer, batch, 1)
        twin.update_target()


# ---- training


@runs.frees_in_region
def train(
    config: DQNConfig,
    *,
    envs: Any = None,
    network: nn.Module | None = None,
    after_record: Callable[[int, dict[str, float]], None] | None = None,
    report: Callable[..., Any] = progress,
    note: Callable[[], str] | None = None,
) -> DQNResult:
    """Train a Q-network; see `DQNConfig`.

    `envs`: a Gymnasium vector env with discrete actions, which stays open (our own envs are fastest with
    `copy=False` and same-step autoreset); by default it is made from `config.env`.
    `network`: any module observations -> action values [batch, actions]; by default a `QNetwork`.
    `after_record(env_steps, statistics)` is called whenever metrics are recorded, and so is `report` with the
    work done since, in the terms of `hotloop.progress`. `note()` returns a few words for the progress line,
    such as the current bottleneck; by default it shows the learner.
    """
    check_config(config)
    with ExitStack() as stack:
        starting = stack.enter_context(ExitStack())
        starting.enter_context(runs.start_up)
        stack.enter_context(runs.torch_threads(config.threads))
        if envs is None:
            envs = make_envs(config.env, config.n_envs)
            stack.callback(envs.close)
        check_spaces(envs)
        n_envs, first_action = int(envs.num_envs), int(envs.single_action_space.start)
        saved = saved_run(config)
        network = network or make_network(config, envs)
        rng = np.random.default_rng(config.seed)
        chunk = max(1, min(1024, CHUNK_STEPS // n_envs))
        nonfinite = NonFiniteCheck(config.allow_nonfinite, config.checkpoint)
        rollout = RolloutState(envs, config.seed, chunk * n_envs, nonfinite)
        buffer = make_replay(config, envs, rollout.same_step)
        batch = buffer.make_batch(config.batch_size, shared=None if config.frame_stack > 1 else False)
        buffer.start(rollout.observations)
        learner = choose_learner(config, network, envs, saved.state.get("learner") if saved else None)
        recent = RecentEpisodes()
        steps = env_steps = updates = 0  # vector steps, steps of single envs, gradient steps
        if saved is not None:
            with runs.restoring(config.checkpoint):
                learner.load(saved.part("learner"))
                buffer.load_state(saved.part("replay"))
                if not rollout.load(saved.part("rollout"), config.seed + saved.state["env_steps"]):
                    buffer.start(rollout.observations)
                restore_rng(rng, saved.state)
                steps, env_steps, updates = (saved.state[name] for name in ("steps", "env_steps", "updates"))
                recent.load(saved.state)
        resumed_at = recorded_at = saved_at = env_steps
        compiled_loop = make_compiled_loop(config, learner, envs, buffer, batch, rollout, rng)
        if compiled_loop is None:
            warm_up(learner.name, learner.network, config, envs)

        def record() -> dict[str, float]:
            """Report the work since the last record; returns the mean statistics of its gradient steps."""
            nonlocal updates, recorded_at
            returns, lengths = rollout.episodes.finished()
            new_updates = int(learner.statistics[-1])
            means = dict(zip(STATISTICS, (learner.statistics / max(new_updates, 1)).tolist(), strict=False))
            means = means if new_updates else {}
            report(
                env_steps=env_steps - recorded_at,
                updates=new_updates,
                episodes=len(returns),
                episode_return=sum(returns) / len(returns) if returns else None,
                episode_length=sum(lengths) / len(lengths) if lengths else None,
                loss=means.get("loss"),
            )
            recent.add(returns, lengths)
            updates += new_updates
            recorded_at = env_steps
            rollout.episodes.count[0] = 0
            learner.statistics[:] = 0.0
            runs.check_finite(means, env_steps, config.checkpoint)
            return means

        def save(path: Path) -> str | None:
            state = {"steps": steps, "env_steps": env_steps, "updates": updates, **recent.state()}
            state |= {"learner": learner.name, "rng": rng.bit_generator.state}
            with _checkpoint:
                return runs.save_run(
                    path, config, env_steps=env_steps, learner=learner.state(), state=state,
                    rollout=rollout.arrays(), replay=buffer.save_state(),
                )  # fmt: skip

        def episodes_left() -> float:
            finished = recent.finished + int(rollout.episodes.count[0])
            return math.inf if config.stop_at_episodes is None else config.stop_at_episodes - finished

        tensorboard = runs.TensorboardLog(config.tensorboard_log)
        stack.callback(tensorboard.close)
        stop = stack.enter_context(runs.StopRequests())
        line = runs.ProgressLine(
            config.total_timesteps,
            env_steps,
            total_episodes=config.stop_at_episodes,
            quiet=config.quiet,
        )
        stack.callback(line.close)
        push = buffer.push if config.push == "batch" else buffer.push_each
        gradient_steps = gradient_steps_per_round(config, n_envs)
        target_interval = max(config.target_update_interval // n_envs, 1)
        actions = np.zeros(n_envs, dtype=np.int64)
        statistics: dict[str, float] = {}
        starting.close()
        stopped_by, began_s, record_at_s = None, time.perf_counter(), 0.0
        while env_steps < config.total_timesteps and episodes_left() > 0 and stopped_by is None:
            nonfinite.env_steps = env_steps
            if compiled_loop is not None:
                count = min(chunk, -(-(config.total_timesteps - env_steps) // n_envs))
                # at most one episode per env can end in a vector step
                count = max(1, int(min(count, episodes_left() // n_envs)))
                with _fused_loop:
                    steps, env_steps, odd_numbers = compiled_loop(steps, env_steps, count)
                if odd_numbers:
                    nonfinite.env_steps = env_steps
                    nonfinite.kernel(envs, odd_numbers)
            else:
                with _policy_forward:
                    epsilon = exploration_rate(config, env_steps)
                    learner.act(rollout.observations, epsilon, rng.random((n_envs, 2)), actions)
                with _env_step:
                    observations, rewards, terminated, truncated, infos = envs.step(
                        actions + first_action if first_action else actions
                    )
                with _replay_push:
                    ended = terminated | truncated
                    finals = final_observations(infos, observations, ended) if rollout.same_step else None
                    nonfinite.step(observations, rewards, finals, ended)
                    push(actions, rewards, terminated, truncated, observations, finals)
                    rollout.observations = observations
                    env_steps += rollout.count_step(rewards, ended)
                steps += 1
                if env_steps >= config.learning_starts and steps % config.train_freq == 0 and len(buffer):
                    learner.update(buffer, batch, gradient_steps)
                if steps % target_interval == 0:
                    learner.update_target()

            now_s = time.perf_counter()
            if config.log_every_steps:
                due = env_steps // config.log_every_steps > recorded_at // config.log_every_steps
            else:
                due = compiled_loop is not None or now_s >= record_at_s
            if due or int(rollout.episodes.count[0]) + n_envs > rollout.episodes.returns.size:
                record_at_s = now_s + RECORD_EVERY_S
                with _log:
                    statistics = record()
                    tensorboard.write(
                        env_steps,
                        {
                            **statistics,
                            "epsilon": exploration_rate(config, env_steps),
                            "replay": float(len(buffer)),
                            "updates": float(updates),
                            "episodes": float(recent.finished),
                            "mean_return": recent.mean_return,
                            "mean_length": recent.mean_length,
                        },
                    )
                    if after_record is not None:
                        after_record(env_steps, statistics)
                    words = IN_ONE_KERNEL if compiled_loop is not None else note() if note else learner.name
                    line.update(env_steps, recent.mean_return, words, episodes=recent.finished)
                stopped_by = stop.by or ("stop_at_return" if recent.reached(config.stop_at_return) else None)
                if config.checkpoint is not None and env_steps - saved_at >= config.checkpoint_every_steps:
                    save(config.checkpoint)
                    saved_at = env_steps
        seconds = time.perf_counter() - began_s
        with _log:
            statistics = record() or statistics
        unsaved = None if config.checkpoint is None else save(config.checkpoint)
        runs.begin_shut_down()
        evaluation_return = None
        if config.n_eval_episodes > 0 and stopped_by in (None, "stop_at_return"):
            seed = config.seed + 1_000_000  # away from the seeds of training
            found, _ = evaluate_policy(learner.greedy_actions, envs, config.n_eval_episodes, seed)
            evaluation_return = float(found.mean())
        return DQNResult(
            network=learner.network,
            learner=learner.name,
            fused_loop=compiled_loop is not None,
            env_steps=env_steps,
            resumed_at=resumed_at,
            updates=updates,
            episodes=recent.finished,
            seconds=seconds,
            mean_return=recent.mean_return,
            mean_length=recent.mean_length,
            evaluation_return=evaluation_return,
            stopped_by=stopped_by,
            statistics=statistics,
            unsaved=unsaved,
            nonfinite=nonfinite.found,
        )


def check_spaces(envs: Any) -> None:
    space, action_space = envs.single_observation_space, envs.single_action_space
    if not isinstance(space, Box) or not isinstance(action_space, Discrete):
        raise HotloopError(
            f"DQN takes one array of observations and discrete actions, not {space} and {action_space}; "
            "wrap the environment."
        )


def make_network(config: DQNConfig, envs: Any) -> QNetwork:
    """The default network; its weights follow from the seed, and torch's global RNG is left as it was."""
    inputs, n_actions = math.prod(envs.single_observation_space.shape), int(envs.single_action_space.n)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return QNetwork(inputs, n_actions, config.net_arch, config.activation, dueling=config.dueling)


def make_replay(config: DQNConfig, envs: Any, same_step: bool) -> ReplayBuffer:
    return ReplayBuffer(
        config.buffer_size,
        int(envs.num_envs),
        envs.single_observation_space,
        Discrete(int(envs.single_action_space.n)),
        frame_stack=config.frame_stack,
        n_steps=config.n_steps,
        gamma=config.gamma,
        prioritized=Prioritized(config.priority_alpha) if config.prioritized else None,
        autoreset="same_step" if same_step else "next_step",
        seed=config.seed + 1,
    )


def make_compiled_loop(
    config: DQNConfig,
    learner: Any,
    envs: Any,
    buffer: ReplayBuffer,
    batch: ReplayBatch,
    rollout: RolloutState,
    rng: np.random.Generator,
) -> Callable[[int, int, int], tuple[int, int, int]] | None:
    """The whole loop as one kernel, if `config` wants it and the learner has one for these envs.

    It makes `count` vector steps after `steps` vector steps and `env_steps` env steps, and returns both new
    numbers, and how many numbers of the envs were NaN or infinite. Unless these are allowed, it returns at
    the first of them, before it is stored.
    """
    found = None
    plain = config.push != "batch" or config.log_every_steps is not None or config.prioritized
    if config.loop != "python" and learner.name == "fused" and not plain:
        found = learner.compiled_loop(envs, buffer, batch, rollout.episodes, rng)
    if found is None and config.loop == "kernel":
        raise HotloopError(
            "loop='kernel' needs the fused learner, one of our envs with same-step autoreset, and defaults "
            "for prioritized, push and log_every_steps; use loop='auto'."
        )
    return found


def gradient_steps_per_round(config: DQNConfig, n_envs: int) -> int:
    return config.train_freq * n_envs if config.gradient_steps == -1 else config.gradient_steps


def exploration_rate(config: DQNConfig, env_steps: int) -> float:
    """Epsilon: the probability of a random action after `env_steps`."""
    exploring_steps = max(config.exploration_fraction * config.total_timesteps, 1.0)
    done = min(env_steps / exploring_steps, 1.0)
    initial, final = config.exploration_initial_eps, config.exploration_final_eps
    return initial + done * (final - initial)


def final_observations(
    infos: dict[str, Any], observations: NDArray[Any], ended: NDArray[np.bool_]
) -> NDArray[Any] | None:
    """The last observations of episodes that just ended, as one array; its other rows mean nothing."""
    if not ended.any():
        return None
    given: NDArray[Any] = infos["final_obs"]
    if given.dtype != object:
        return given
    finals = np.zeros_like(observations)
    for row in np.flatnonzero(ended):
        finals[row] = given[row]
    return finals


# ---- checkpoints of hotloop 0.1


def upgrade_settings(saved: dict[str, Any]) -> dict[str, Any]:
    """Settings of a checkpoint by hotloop 0.1, which had gradient steps per vector step as a fraction."""
    top, _, bottom = str(saved["updates"]).replace(" ", "").partition("/")
    rate = Fraction(saved["n_envs"] if top == "n" else top) / Fraction(bottom or 1)
    if rate.numerator > 1 and rate.denominator > 1:
        raise CheckpointError(
            f"This run of hotloop 0.1 made updates={saved['updates']!r} gradient steps per vector step, for "
            "which there are no train_freq and gradient_steps; start a new run."
        )
    learns = saved["learn"]
    kept = {name: value for name, value in saved.items() if name not in ("updates", "learn", "log_every")}
    return kept | {"train_freq": rate.denominator, "gradient_steps": rate.numerator if learns else 0}


def restore_rng(rng: np.random.Generator, state: dict[str, Any]) -> None:
    """Continue the random numbers of a checkpoint; hotloop 0.1 saved four words of PCG64 as `streams`."""
    if "streams" in state:
        copy_stream_to(np.array([[int(word) for word in state["streams"]]], dtype=np.uint64), 0, rng)
    else:
        rng.bit_generator.state = state["rng"]
