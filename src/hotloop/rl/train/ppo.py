"""Proximal policy optimisation (Schulman et al., 2017) for discrete actions, from top to bottom.

    from hotloop.rl.train.ppo import PPOConfig, train
    result = train(PPOConfig(env="CartPole", total_steps=200_000))

Each iteration: a rollout of `steps` steps of `num_envs` envs, advantages, `epochs` passes over it in
minibatches. Three learners do the last part with the same numbers up to rounding: `fused` (kernels, small
dense networks), `torch` and `compiled` (any network). On our own environments a small dense policy's whole
rollout is one kernel call; any other Gymnasium vector env is stepped from Python.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from torch import nn

from hotloop import profile, progress
from hotloop._util.errors import HotloopError
from hotloop.rl.buffers.rollout import RolloutBuffer
from hotloop.rl.buffers.rollout import compute_gae as compute_gae
from hotloop.rl.train.collecting import collect
from hotloop.rl.train.learners import Learner, choose_learner
from hotloop.rl.train.make_envs import RolloutState, evaluate_policy, make_envs
from hotloop.rl.train.networks.mlp import ActorCritic
from hotloop.rl.train.runs import (
    ProgressLine,
    RecentEpisodes,
    StopRequests,
    TensorboardLog,
    check_finite,
    check_same_settings,
    load_checkpoint,
    save_checkpoint,
)
from hotloop.rl.train.torch_learner import ppo_loss as ppo_loss

_rollout = profile("fused_rollout", "environment")
_collect = profile("collect_rollouts", "framework")
_advantage = profile("advantage")
_checkpoint = profile("checkpoint")


@dataclass(frozen=True)
class PPOConfig:
    """Settings of a run; the defaults solve CartPole."""

    env: str = "CartPole"
    """One of our environments (CartPole, Snake, ...) or a Gymnasium id such as CartPole-v1."""
    seed: int = 0
    """Decides weights, actions, minibatches and the envs' streams."""
    total_steps: int = 200_000
    """Env steps to train for, rounded up to whole iterations."""
    num_envs: int = 8
    """Environments stepped together."""
    steps: int = 128
    """Steps of each env in a rollout."""
    epochs: int = 4
    """Passes over a rollout."""
    minibatch: int = 256
    """Samples of a gradient step; divides num_envs * steps."""
    learning_rate: float = 2.5e-4
    """Adam's step size."""
    anneal: bool = False
    """Let the learning rate fall to 0 in a straight line over total_steps."""
    discount: float = 0.99
    """What a reward one step later is worth (gamma)."""
    trace: float = 0.95
    """How far advantages look ahead (lambda of generalised advantage estimation)."""
    clip: float = 0.2
    """How far a probability ratio may leave 1 before its gradient is cut."""
    value_clip: float | None = None
    """The same for values, around the old value; None for no clipping."""
    value_weight: float = 0.5
    """Weight of the mean squared error of values."""
    entropy_weight: float = 0.0
    """Weight of the entropy bonus."""
    max_grad_norm: float | None = 0.5
    """The whole gradient is scaled down to this norm; None for no clipping."""
    target_kl: float | None = None
    """No further epoch once one's mean KL divergence exceeds this; None for all epochs."""
    adam_epsilon: float = 1e-5
    """Adam's epsilon."""
    normalise_advantages: bool = True
    """Give the advantages of each minibatch mean 0 and deviation 1."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of actor and critic."""
    activation: Literal["tanh", "relu"] = "tanh"
    """After each hidden layer."""
    learner: Literal["auto", "fused", "torch", "compiled"] = "auto"
    """Who learns; auto measures and says what it took."""
    threads: int = 0
    """Threads of torch's own operations; 0 measures, one thread first."""
    stop_at_return: float | None = None
    """Stop once the last 100 episodes reach this mean return."""
    evaluation_episodes: int = 0
    """Episodes played with the likeliest actions after training, in the same envs, begun anew."""
    checkpoint: Path | None = None
    """File to save to, now and then, at the end and when asked to stop."""
    checkpoint_every: int = 100
    """Iterations between two saves."""
    resume: bool = False
    """Go on from `checkpoint`."""
    metrics: Path | None = None
    """Folder for TensorBoard."""
    quiet: bool = False
    """No progress line."""


# What may differ between a run and the checkpoint it goes on from: none of it changes the numbers.
MAY_DIFFER = frozenset(
    {"total_steps", "learner", "threads", "stop_at_return", "evaluation_episodes", "checkpoint"}
    | {"checkpoint_every", "resume", "metrics", "quiet"}
)


@dataclass(frozen=True)
class TrainResult:
    """What a run did."""

    network: nn.Module
    """The trained network: observations -> (logits, values)."""
    learner: str
    """Who learnt: fused, torch or compiled."""
    fused_rollout: bool
    """Whether rollouts ran in one kernel call."""
    env_steps: int
    """Steps taken, those of the resumed run included; resets are not steps."""
    resumed_at: int
    """Steps of the run that this one went on from; 0 for a new one."""
    updates: int
    """Minibatches learnt from."""
    episodes: int
    """Episodes that ended."""
    seconds: float
    """Wall time of the loop, this run only; start-up and compilation apart."""
    mean_return: float | None
    """Mean return of the last 100 episodes; None when none ended."""
    evaluation_return: float | None
    """Mean return of the evaluation; None without one."""
    stopped_by: str | None
    """SIGTERM, SIGINT or stop_at_return; None when all steps were taken."""
    statistics: dict[str, float]
    """Losses and the like of the last iteration."""

    @property
    def steps_per_s(self) -> float:
        """Env steps per second of the loop."""
        return (self.env_steps - self.resumed_at) / self.seconds if self.seconds > 0 else math.nan


def train(
    config: PPOConfig,
    *,
    envs: Any = None,
    network: nn.Module | None = None,
    after_update: Callable[[int, dict[str, float]], None] | None = None,
    note: Callable[[], str] | None = None,
) -> TrainResult:
    """Train a policy; see `PPOConfig`.

    `envs`: a Gymnasium vector env with discrete actions to train on, which stays the caller's (for our own
    envs, `copy=False` and same-step autoreset are fastest); by default it is made from `config.env`.
    `network`: any module observations -> (logits, values); by default an `ActorCritic`.
    `after_update(env_steps, statistics)` is called after each iteration. `note` is asked for a few words to
    put on the progress line, such as what takes longest; by default it shows who learns.
    """
    check(config)
    with ExitStack() as leave:
        threads_before = torch.get_num_threads()
        leave.callback(torch.set_num_threads, threads_before)
        torch.set_num_threads(config.threads or 1)
        if envs is None:
            envs = make_envs(config.env, config.num_envs)
            leave.callback(envs.close)
        run = _Run(config, envs, network)
        metrics = TensorboardLog(config.metrics)
        leave.callback(metrics.close)
        stop = leave.enter_context(StopRequests())
        line = ProgressLine(config.total_steps, run.env_steps, quiet=config.quiet)
        leave.callback(line.close)

        iteration_steps = config.num_envs * config.steps
        statistics: dict[str, float] = {}
        stopped_by, began_s = None, time.perf_counter()
        while run.env_steps < config.total_steps and stopped_by is None:
            run.collect()
            with _advantage:
                run.buffer.compute_advantages(config.discount, config.trace)
            rate = config.learning_rate
            if config.anneal:
                rate *= max(0.0, 1.0 - run.iterations * iteration_steps / config.total_steps)
            statistics = run.learner.update(run.buffer, *run.minibatches(), rate)
            check_finite(statistics, run.env_steps, config.checkpoint)
            run.count(statistics)
            line.update(run.env_steps, run.recent.mean_return, note() if note else run.learner.name)
            metrics.write(run.env_steps, {**statistics, "return": run.recent.mean_return})
            if after_update is not None:
                after_update(run.env_steps, statistics)
            stopped_by = stop.by or run.solved()
            if config.checkpoint is not None and run.iterations % config.checkpoint_every == 0:
                run.save(config.checkpoint)
        seconds = time.perf_counter() - began_s
        if config.checkpoint is not None:
            run.save(config.checkpoint)
        return run.result(seconds, stopped_by, statistics)


class _Run:
    """The state of a run: envs, learner, buffer, counters, random numbers."""

    def __init__(self, config: PPOConfig, envs: Any, network: nn.Module | None):
        self.config, self.envs = config, envs
        space, actions = envs.single_observation_space, envs.single_action_space
        if not isinstance(actions, Discrete) or not isinstance(space, Box):
            raise HotloopError(
                f"this PPO needs one array of observations (Box) and discrete actions; {config.env} has "
                f"{space} and {actions}."
            )
        if envs.num_envs != config.num_envs:
            raise HotloopError(f"num_envs={config.num_envs}, but the envs given are {envs.num_envs}.")
        count = int(actions.n)
        if network is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(config.seed)
                network = ActorCritic(math.prod(space.shape), count, config.hidden, config.activation)
        self.rng = np.random.default_rng(config.seed)
        self.position = RolloutState(envs, config.seed, config.num_envs * config.steps)
        saved = load_checkpoint(config.checkpoint) if config.resume and config.checkpoint else None
        dense = isinstance(network, ActorCritic)
        self.buffer = RolloutBuffer(
            config.steps,
            config.num_envs,
            space.shape,
            count,
            observation_dtype=np.float32 if dense else space.dtype,
            masked=self.position.masks is not None,
        )
        self.recent = RecentEpisodes()
        self.env_steps = self.updates = self.iterations = 0
        if saved is not None and config.threads == 0:
            torch.set_num_threads(saved.state["threads"])
        known = str(saved.state["learner"]) if saved else None
        self.learner: Learner = choose_learner(config, network, self.buffer, known)
        if saved is not None:
            self._load(saved)
        self.resumed_at = self.env_steps
        self.buffer.observations[-1] = self.position.observations
        compiled_rollout = getattr(self.learner, "compiled_rollout", lambda *_: None)
        self._fused = compiled_rollout(envs, self.buffer, self.position.episodes)
        self._warm_up()

    def _warm_up(self) -> None:
        """Compile, or load, what the loop calls, so that its time is not counted as training."""
        buffer = self.buffer
        if self._fused is not None:
            self._fused(np.zeros((0, buffer.envs), dtype=np.float32))
        else:
            masks = buffer.masks[0] if buffer.masked else None
            self.learner.act(
                buffer.observations[-1],
                masks,
                np.zeros(buffer.envs, dtype=np.float32),
                buffer.actions[0],
                buffer.log_probabilities[0],
            )
            self.learner.values(buffer.observations[-1])
        buffer.compute_advantages(self.config.discount, self.config.trace)
        nothing, no_edges = np.zeros((0, 1), dtype=np.int64), np.zeros(1, dtype=np.int64)
        self.learner.update(buffer, nothing, no_edges, self.config.learning_rate)

    def collect(self) -> None:
        """Fill the buffer with the next rollout."""
        uniforms = self.rng.random((self.config.steps, self.config.num_envs), dtype=np.float32)
        if self._fused is not None:
            with _rollout:
                self._fused(uniforms)
        else:
            with _collect:
                collect(self.learner, self.envs, self.buffer, self.position, uniforms)

    def minibatches(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which samples are in which minibatch: order [epochs, samples] and edges [minibatches + 1]."""
        samples = self.buffer.samples()
        order = np.tile(samples, (self.config.epochs, 1))
        self.rng.permuted(order, axis=1, out=order)
        parts = self.config.num_envs * self.config.steps // self.config.minibatch
        edges = np.linspace(0, samples.size, parts + 1).astype(np.int64)
        return order, edges

    def count(self, statistics: dict[str, float]) -> None:
        """Add an iteration to the counters and to the capture."""
        episodes = self.position.episodes
        ended = int(episodes.count[0])
        returns, lengths = episodes.returns[:ended].tolist(), episodes.lengths[:ended].tolist()
        self.recent.add(returns, lengths)
        steps = int(self.buffer.valid.sum())
        updates = int(statistics["epochs"]) * (
            self.config.num_envs * self.config.steps // self.config.minibatch
        )
        self.env_steps += steps
        self.updates += updates
        self.iterations += 1
        progress(
            env_steps=steps,
            updates=updates,
            episodes=ended,
            episode_return=sum(returns) / ended if ended else None,
            episode_length=sum(lengths) / ended if ended else None,
            loss=statistics["policy_loss"],
        )

    def solved(self) -> str | None:
        """Whether the wanted return is reached."""
        wanted, mean = self.config.stop_at_return, self.recent.mean_return
        enough = wanted is not None and len(self.recent.returns) == self.recent.returns.maxlen
        return "stop_at_return" if enough and mean is not None and mean >= float(wanted or 0) else None

    def save(self, path: Path) -> None:
        """Write a checkpoint, unless the weights are not finite."""
        with _checkpoint:
            arrays = {f"learner.{name}": array for name, array in self.learner.state().items()}
            finite = {name: float(np.abs(array).max()) for name, array in arrays.items() if array.size}
            check_finite(finite, self.env_steps, path)
            arrays |= {f"rollout.{name}": array for name, array in self.position.arrays().items()}
            state = {
                "learner": self.learner.name,
                "threads": torch.get_num_threads(),
                "rng": self.rng.bit_generator.state,
                "env_steps": self.env_steps,
                "updates": self.updates,
                "iterations": self.iterations,
                "episodes": self.recent.finished,
                "returns": list(self.recent.returns),
                "lengths": list(self.recent.lengths),
            }
            save_checkpoint(path, arrays, state, as_json(self.config))

    def _load(self, saved: Any) -> None:
        path = self.config.checkpoint or Path()
        may_differ = MAY_DIFFER - {"total_steps"} if self.config.anneal else MAY_DIFFER
        check_same_settings(path, saved.config, as_json(self.config), may_differ)

        def part(prefix: str) -> dict[str, NDArray[Any]]:
            return {n.removeprefix(prefix): a for n, a in saved.arrays.items() if n.startswith(prefix)}

        self.learner.load(part("learner."))
        self.position.load(part("rollout."), self.config.seed + saved.state["env_steps"])
        self.rng.bit_generator.state = saved.state["rng"]
        self.env_steps, self.updates = saved.state["env_steps"], saved.state["updates"]
        self.iterations = saved.state["iterations"]
        self.recent.add(saved.state["returns"], saved.state["lengths"])
        self.recent.finished = saved.state["episodes"]

    def result(self, seconds: float, stopped_by: str | None, statistics: dict[str, float]) -> TrainResult:
        """What the run did, after an evaluation if one was wanted."""
        evaluated = None
        if self.config.evaluation_episodes > 0 and stopped_by in (None, "stop_at_return"):
            returns, _ = evaluate_policy(
                self.learner.best, self.envs, self.config.evaluation_episodes, self.config.seed + 1_000_000
            )
            evaluated = float(returns.mean())
        return TrainResult(
            self.learner.network,
            self.learner.name,
            self._fused is not None,
            self.env_steps,
            self.resumed_at,
            self.updates,
            self.recent.finished,
            seconds,
            self.recent.mean_return,
            evaluated,
            stopped_by,
            statistics,
        )


def as_json(config: PPOConfig) -> dict[str, Any]:
    """The settings as JSON holds them."""
    found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    return found


def check(config: PPOConfig) -> None:
    """Raise HotloopError with one sentence for the first setting that cannot be."""
    for name in ("total_steps", "num_envs", "steps", "epochs", "checkpoint_every"):
        if getattr(config, name) < 1:
            raise HotloopError(f"{name}={getattr(config, name)} must be at least 1.")
    if config.threads < 0:
        raise HotloopError(f"threads={config.threads} must be at least 1, or 0 to measure.")
    batch = config.num_envs * config.steps
    if config.minibatch < 2 or batch % config.minibatch:
        allowed = [size for size in range(2, batch + 1) if batch % size == 0]
        near = sorted(sorted(allowed, key=lambda size: abs(math.log(size / max(config.minibatch, 1))))[:3])
        raise HotloopError(
            f"minibatch={config.minibatch} does not divide num_envs * steps = {batch} into parts of at least "
            f"2; use one of {', '.join(map(str, near)) or 'a larger rollout'} or change num_envs or steps."
        )
    for name, low, high in (("discount", 0.0, 1.0), ("trace", 0.0, 1.0)):
        if not low <= getattr(config, name) <= high:
            raise HotloopError(f"{name}={getattr(config, name)} must lie in {low:g} .. {high:g}.")
    for name in ("learning_rate", "clip", "value_clip", "max_grad_norm", "target_kl", "adam_epsilon"):
        value = getattr(config, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise HotloopError(f"{name}={value} must be above 0.")
    if not config.hidden or min(config.hidden) < 1:
        raise HotloopError(f"hidden={config.hidden} must be widths of at least 1, such as (64, 64).")
    if config.resume and config.checkpoint is None:
        raise HotloopError("resume needs to know from what; give checkpoint as well.")
