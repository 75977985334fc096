"""Soft actor-critic (Haarnoja et al., 2018) in one file: settings, losses, torch learner, training loop.

    from hotloop.rl.train.sac import SACConfig, train
    result = train(SACConfig(env="Track", total_timesteps=50_000))

Every vector step: act (tanh of a Gaussian sample), step the environments, store the transitions, then do the
updates that are due. An update is one gradient step of the critics, the actor and the entropy coefficient on
one batch, and a small step of the target critics. `TorchLearner` below does it in plain torch; `fused/sac.py`
does the same in compiled kernels, equal up to rounding.

A run can start from a trained actor, such as a clone (`bc.py`). Four settings keep the agent from
forgetting it: its distance from that actor is part of the loss (`anchor_weight`), noise and entropy
coefficient start small (`log_std_init`, `ent_coef`), the critics learn first while the actor only collects
(`actor_learning_starts`), and with `keep_best` the best actor evaluated is the result.
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
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray
from torch import Tensor

from hotloop import profile, progress
from hotloop._util.errors import HotloopError
from hotloop.rl.buffers.replay import ReplayBuffer
from hotloop.rl.buffers.replay_batch import ReplayBatch
from hotloop.rl.nonfinite import NonFiniteCheck
from hotloop.rl.train import runs
from hotloop.rl.train.make_envs import RolloutState, evaluate_policy, make_envs
from hotloop.rl.train.networks.squashed import SquashedActor, TwinCritics, squashed_log_prob
from hotloop.rl.train.runs import Arrays, Checkpoint, Stopwatch

if TYPE_CHECKING:
    from hotloop.rl.train.fused.sac import FusedSAC

_policy = profile("policy_forward")
_step = profile("env_step")
_push = profile("replay_push")
_sample = profile("replay_sample")
_forward = profile("learner_forward")
_loss = profile("loss")
_backward = profile("backward")
_optimizer = profile("optimizer_step")
_sync = profile("weights_sync")
_log = profile("log")
_evaluate = profile("evaluate")
_checkpoint = profile("checkpoint")
_compile = profile("compile_kernels", "other")

RECORD_EVERY_S = 0.05
MAY_DIFFER = runs.MAY_DIFFER - {"n_eval_episodes"}  # they decide which actor is the best
Policy = Callable[[NDArray[Any]], NDArray[np.float32]]  # observations [rows, ...] -> actions in -1 .. 1


# ---- settings and result


@dataclass(frozen=True)
class SACConfig:
    """Settings of a run; Stable-Baselines3's names where it has one."""

    env: str = "Track"
    """One of our environments with continuous actions (Track), or a Gymnasium id such as Pendulum-v1."""
    seed: int = 0
    """Determines weights, noise, samples and environments."""
    total_timesteps: int = 50_000
    """Env steps to train for, rounded up to whole vector steps."""
    n_envs: int = 4
    """Number of parallel environments."""
    train_freq: int = 1
    """Vector steps (one step of every environment) between two rounds of updates."""
    gradient_steps: int = -1
    """Updates per round; -1 for one per env step since the last round, whatever the number of envs."""
    batch_size: int = 256
    """Transitions of an update."""
    buffer_size: int = 200_000
    """Transitions that the replay buffer keeps."""
    learning_starts: int = 1_000
    """Env steps before the first update."""
    actor_learning_starts: int = 0
    """Env steps before the actor's first gradient step; the critics learn from `learning_starts` on."""
    anchor_weight: float = 0.0
    """Weight of the mean squared distance between the actor's greedy actions and those of the first actor."""
    random_steps: int = 0
    """Env steps at the beginning with uniformly random actions."""
    learning_rate: float = 3e-4
    """Adam's learning rate for the critics and the entropy coefficient."""
    actor_learning_rate: float | None = None
    """Adam's learning rate for the actor; None for `learning_rate`."""
    gamma: float = 0.99
    """Discount factor."""
    tau: float = 0.005
    """Fraction by which the target critics move towards the critics in each update."""
    ent_coef: str | float = "auto"
    """Entropy coefficient: a fixed number, or learned: "auto" starts at 1, "auto_0.1" at 0.1."""
    target_entropy: Literal["auto"] | float = "auto"
    """Entropy that a learned coefficient aims at; "auto" for minus the number of actions."""
    log_std_init: float = 0.0
    """Log standard deviation of a new actor's noise."""
    net_arch: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of actor and critics."""
    activation: Literal["tanh", "relu"] = "relu"
    """Activation after each hidden layer."""
    learner: Literal["auto", "fused", "torch"] = "auto"
    """Learner implementation; auto is fused."""
    threads: int = 1
    """Intra-op threads of torch."""
    eval_every_steps: int = 0
    """Env steps between two evaluations without noise, the first before training; 0 for none."""
    n_eval_episodes: int = 8
    """Episodes per evaluation."""
    keep_best: bool = True
    """With evaluations: return the actor with the best one instead of the last."""
    allow_nonfinite: bool = False
    """Train on rewards and observations that are NaN or infinite, instead of stopping."""
    checkpoint: Path | None = None
    """File to save to, regularly, at the end and when asked to stop."""
    checkpoint_every_steps: int = 50_000
    """Env steps between two checkpoints."""
    resume: bool = False
    """Continue from `checkpoint`."""
    tensorboard_log: Path | None = None
    """Folder for TensorBoard."""
    quiet: bool = False
    """Print no progress."""

    @property
    def actor_rate(self) -> float:
        return self.learning_rate if self.actor_learning_rate is None else self.actor_learning_rate


@dataclass(frozen=True)
class SACResult:
    """Result of a training run."""

    actor: SquashedActor
    """The trained actor: with evaluations and `keep_best` the best one, else the last one."""
    learner: str
    """fused or torch."""
    env_steps: int
    """Env steps, those before a resume included; resets are not steps."""
    updates: int
    actor_updates: int
    """Updates that trained the actor too."""
    episodes: int
    seconds: float
    """Wall time of this run's loop, evaluations and checkpoints included, start-up excluded."""
    steps_here: int
    """Env steps of this run only."""
    mean_return: float | None
    """Mean return of the last 100 training episodes; None when none finished."""
    evaluations: tuple[tuple[int, float], ...]
    """(env steps, mean return) of each evaluation."""
    best_at_step: int | None
    """Env steps after which `actor` was kept as the best; None when it is the last one."""
    stopped_by: str | None
    """SIGTERM or SIGINT; None when the run completed."""
    statistics: dict[str, float]
    """Means of the losses and the entropy coefficient at the last record."""
    unsaved: str | None = None
    """Why the last checkpoint could not be written; None if it was, or if none was wanted."""
    nonfinite: int = 0
    """Rewards and observations that were NaN or infinite, with allow_nonfinite."""

    @property
    def steps_per_s(self) -> float:
        return self.steps_here / self.seconds if self.seconds > 0 else math.nan


def check(config: SACConfig) -> None:
    """Raise HotloopError for the first invalid setting."""
    runs.check_at_least(config, 1, "total_timesteps", "n_envs", "batch_size", "buffer_size", "train_freq")
    runs.check_at_least(config, 1, "threads", "n_eval_episodes", "checkpoint_every_steps")
    runs.check_at_least(
        config, 0, "learning_starts", "actor_learning_starts", "random_steps", "eval_every_steps"
    )
    runs.check_at_least(config, 0, "anchor_weight")
    runs.check_seed(config)
    runs.check_fraction(config, "gamma", "tau")
    runs.check_positive(config, "learning_rate", "actor_learning_rate")
    runs.check_net_arch(config)
    runs.check_checkpoint(config)
    if config.gradient_steps < 1 and config.gradient_steps != -1:
        raise HotloopError(
            f"gradient_steps={config.gradient_steps} must be at least 1, or -1 for one per env step."
        )
    parse_ent_coef(config.ent_coef)


def parse_ent_coef(ent_coef: str | float) -> tuple[float, bool]:
    """The initial value, and whether it is learned."""
    text = str(ent_coef)
    learned = text == "auto" or text.startswith("auto_")
    try:
        first = float(text.removeprefix("auto").removeprefix("_") or 1.0) if learned else float(text)
    except ValueError:
        first = math.nan
    if not (first > 0 and math.isfinite(first)):
        raise HotloopError(
            f"ent_coef={ent_coef!r} is invalid; use a number above 0, 'auto' to learn it from 1 on, or "
            "'auto_0.1' to learn it from 0.1 on."
        )
    return first, learned


def saved_run(config: SACConfig) -> runs.Checkpoint | None:
    """The checkpoint to resume from, or None; CheckpointError if it does not fit the settings."""
    return runs.load_run(config, MAY_DIFFER, upgrade_settings)


def upgrade_settings(saved: dict[str, Any]) -> dict[str, Any]:
    """Settings of a checkpoint by hotloop 0.1, which counted updates per env step as a fraction."""
    per_vector_step = Fraction(saved["updates"]) * saved["n_envs"]
    one_per_env_step = Fraction(saved["updates"]) == 1
    first, learned = saved["first_temperature"], saved["learn_temperature"]
    upgraded = saved | {
        "train_freq": per_vector_step.denominator,
        "gradient_steps": -1 if one_per_env_step else per_vector_step.numerator,
        "ent_coef": first if not learned else "auto" if first == 1.0 else f"auto_{first}",
        "target_entropy": "auto" if saved["target_entropy"] is None else saved["target_entropy"],
        "actor_learning_starts": saved["actor_starts"],
    }
    gone = ("updates", "first_temperature", "learn_temperature", "actor_starts")
    return {name: value for name, value in upgraded.items() if name not in gone}


# ---- losses, the same as in Stable-Baselines3


def critic_targets(
    next_values: Tensor, next_log_probs: Tensor, rewards: Tensor, discounts: Tensor, ent_coef: float
) -> Tensor:
    """rewards + discounts * (lesser next value - ent_coef * log prob of the next action) [batch].

    `next_values` [2, batch] come from the target critics. `discounts` is gamma, and 0 where the episode
    terminated; truncation does not end the value.
    """
    return rewards + discounts * (next_values.min(dim=0).values - ent_coef * next_log_probs)


def critic_loss(values: Tensor, targets: Tensor) -> Tensor:
    """Sum over both critics [2, batch] of half the mean squared error."""
    return 0.5 * (values - targets).square().mean(dim=1).sum()


def actor_loss(log_probs: Tensor, values: Tensor, ent_coef: float) -> Tensor:
    """Mean of ent_coef * log prob - lesser value of the actor's own actions."""
    return (ent_coef * log_probs - values.min(dim=0).values).mean()


def anchor_loss(actions: Tensor, anchors: Tensor) -> Tensor:
    """Mean squared distance of greedy actions [batch, actions] from those of the first actor."""
    return (actions - anchors).square().sum(dim=1).mean()


def ent_coef_gradient(mean_log_prob: float, target_entropy: float) -> float:
    """Derivative of -log(ent_coef) * (log prob + target_entropy) by log(ent_coef).

    It is negative, and so raises the coefficient, while the entropy is below its target.
    """
    return -(mean_log_prob + target_entropy)


class EntropyCoefficient:
    """The weight of the entropy in both losses, fixed or learned by Adam on its logarithm."""

    def __init__(self, config: SACConfig, n_actions: int):
        first, self.learned = parse_ent_coef(config.ent_coef)
        wanted = config.target_entropy
        self.target_entropy = -float(n_actions) if wanted == "auto" else float(wanted)
        self.learning_rate = config.learning_rate
        self.state = np.array([math.log(first), 0.0, 0.0, 0.0])  # logarithm, Adam's moments and steps

    @property
    def value(self) -> float:
        return math.exp(self.state[0])

    def update(self, mean_log_prob: float) -> None:
        """One step of Adam, if it is learned."""
        if not self.learned:
            return
        (beta1, beta2), state = runs.ADAM_BETAS, self.state
        gradient = ent_coef_gradient(mean_log_prob, self.target_entropy)
        state[3] += 1
        state[1] = beta1 * state[1] + (1 - beta1) * gradient
        state[2] = beta2 * state[2] + (1 - beta2) * gradient * gradient
        scaled = state[1] / (1 - beta1 ** state[3])
        state[0] -= (
            self.learning_rate * scaled / (math.sqrt(state[2] / (1 - beta2 ** state[3])) + runs.ADAM_EPS)
        )


# ---- learners


class TorchLearner:
    """SAC in eager torch: the reference that the fused learner is compared with."""

    name = "torch"

    def __init__(
        self,
        actor: SquashedActor,
        critics: TwinCritics,
        ent_coef: EntropyCoefficient,
        config: SACConfig,
        stopwatch: Stopwatch | None = None,
    ):
        self.actor, self.critics, self.targets = actor, critics, copy.deepcopy(critics)
        self.targets.requires_grad_(False)
        self.anchor = copy.deepcopy(actor).requires_grad_(False)
        self.ent_coef = ent_coef
        self.statistics = np.zeros(6)
        """Sums over updates of critic loss and value, over actor updates of actor loss and log prob; then the
        numbers of updates and of actor updates. The loop reads and resets them."""
        self._config = config
        self._actor_adam = runs.make_adam(actor, config.actor_rate)
        self._critic_adam = runs.make_adam(critics, config.learning_rate)
        self._tensors: tuple[ReplayBatch, dict[str, Tensor]] | None = None
        stopwatch = stopwatch or Stopwatch()
        self._sampling = stopwatch.part("replay", _sample)
        self._parts = [
            stopwatch.part("learning", region) for region in (_forward, _loss, _backward, _optimizer, _sync)
        ]

    def warm_up(self, buffer: ReplayBuffer, batch: ReplayBatch) -> None:
        """Compile what the loop calls; nothing here."""

    def act(
        self, observations: NDArray[np.float32], noise: NDArray[np.float32], actions: NDArray[np.float32]
    ) -> None:
        """Write the actions for standard normal `noise` [rows, actions] into `actions`."""
        with torch.inference_mode():
            means, log_stds = self.actor(_as_tensor(observations))
            torch.tanh(means + log_stds.exp() * torch.from_numpy(noise), out=torch.from_numpy(actions))

    def greedy_actions(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Actions without noise [rows, actions], a new array."""
        with torch.inference_mode():
            actions: NDArray[np.float32] = self.actor.greedy_actions(_as_tensor(observations)).numpy()
        return actions

    def update(
        self, buffer: ReplayBuffer, batch: ReplayBatch, noise: NDArray[np.float32], train_actor: bool
    ) -> None:
        """One update per entry of `noise` [updates, 2, batch, actions], each on a fresh sample."""
        for noise_of_update in noise:
            with self._sampling:
                buffer.sample(batch)
            if self._tensors is None or self._tensors[0] is not batch:
                self._tensors = batch, batch.tensors()
            self._update_once(self._tensors[1], torch.from_numpy(noise_of_update), train_actor)

    def _update_once(self, fields: Mapping[str, Tensor], noise: Tensor, train_actor: bool) -> None:
        forward, losses, backward, optimizer, sync = self._parts
        ent_coef = self.ent_coef.value
        observations = fields["observations"]

        # critics
        with forward:
            with torch.no_grad():
                next_observations = fields["next_observations"]
                next_actions, next_log_probs = self.actor.sample(next_observations, noise[0])
                next_values = self.targets(next_observations, next_actions)
                targets = critic_targets(
                    next_values, next_log_probs, fields["rewards"], fields["discounts"], ent_coef
                )
            values = self.critics(observations, fields["actions"])
        with losses:
            loss = critic_loss(values, targets)
        with backward:
            self._critic_adam.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
        with optimizer:
            self._critic_adam.step()
        self.statistics += (float(loss.detach()), float(values.detach().mean()), 0.0, 0.0, 1.0, 0.0)

        # actor and entropy coefficient
        if train_actor:
            with forward:
                self.critics.requires_grad_(False)
                means, log_stds = self.actor(observations)
                raw = means + log_stds.exp() * noise[1]
                log_probs = squashed_log_prob(raw, log_stds, noise[1])
                values = self.critics(observations, torch.tanh(raw))
            with losses:
                loss = actor_loss(log_probs, values, ent_coef)
                if self._config.anchor_weight:
                    anchors = self.anchor.greedy_actions(observations)
                    loss = loss + self._config.anchor_weight * anchor_loss(torch.tanh(means), anchors)
            with backward:
                self._actor_adam.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                self.critics.requires_grad_(True)
            with optimizer:
                self._actor_adam.step()
                mean_log_prob = float(log_probs.detach().mean())
                self.ent_coef.update(mean_log_prob)
            self.statistics += (0.0, 0.0, float(loss.detach()), mean_log_prob, 0.0, 1.0)

        # target critics
        with sync, torch.no_grad():
            for target, weight in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                target.lerp_(weight, self._config.tau)

    def state(self) -> Arrays:
        """Weights, Adam's moments and the entropy coefficient, as copies under the parameters' names."""
        parts = {
            "actor": runs.weights_and_moments(self.actor, self._actor_adam),
            "critics": runs.weights_and_moments(self.critics, self._critic_adam),
            "targets": _weights(self.targets, "weights."),
            "anchor": _weights(self.anchor, "weights."),
        }
        found: Arrays = {"ent_coef": self.ent_coef.state.copy()}
        return found | {f"{part}.{name}": a for part, arrays in parts.items() for name, a in arrays.items()}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from the `state()` of a torch or fused learner with the same networks."""

        def part(name: str) -> Arrays:
            return {n.removeprefix(f"{name}."): a for n, a in state.items() if n.startswith(f"{name}.")}

        self.ent_coef.state[:] = state["ent_coef"]
        runs.load_weights_and_moments(self.actor, self._actor_adam, part("actor"))
        runs.load_weights_and_moments(self.critics, self._critic_adam, part("critics"))
        runs.load_weights(self.targets, part("targets"), "weights.")
        runs.load_weights(self.anchor, part("anchor"), "weights.")


def _weights(module: torch.nn.Module, prefix: str = "") -> Arrays:
    return {prefix + name: weight.detach().numpy().copy() for name, weight in module.named_parameters()}


def _as_tensor(rows: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(rows))


def make_networks(
    config: SACConfig, observation_size: int, n_actions: int, actor: SquashedActor | None = None
) -> tuple[SquashedActor, TwinCritics]:
    """The networks that a run starts with; a given actor must have the config's architecture."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        made = SquashedActor(
            observation_size, n_actions, config.net_arch, config.activation, log_std_init=config.log_std_init
        )
        critics = TwinCritics(observation_size, n_actions, config.net_arch, config.activation)
    if actor is None:
        return made, critics
    if actor.sizes != made.sizes or actor.activation != made.activation:
        raise HotloopError(
            f"The given actor has layers {actor.sizes} and {actor.activation}, this run needs {made.sizes} "
            f"and {made.activation}; set net_arch and activation to the actor's."
        )
    return actor, critics


def make_learner(
    config: SACConfig, actor: SquashedActor, critics: TwinCritics, stopwatch: Stopwatch
) -> TorchLearner | FusedSAC:
    ent_coef = EntropyCoefficient(config, actor.n_actions)
    if config.learner == "torch":
        return TorchLearner(actor, critics, ent_coef, config, stopwatch)
    # Imported on demand: the kernels need numba, the torch learner does not.
    from hotloop.rl.train.fused.sac import FusedSAC

    return FusedSAC(actor, critics, ent_coef, config, stopwatch)


# ---- the training loop


def train(
    config: SACConfig,
    *,
    envs: Any = None,
    actor: SquashedActor | None = None,
    evaluate: Callable[[Policy], float] | None = None,
    stopwatch: Stopwatch | None = None,
    report: Callable[..., Any] = progress,
) -> SACResult:
    """Train an actor.

    `envs`: a Gymnasium vector env with one array of observations and bounded continuous actions, closed by
    the caller; made from `config.env` by default. `actor`: the actor to start from, changed in place.
    `evaluate(policy)` returns the mean return of an evaluation; by default, episodes are played in envs made
    from `config.env`. `stopwatch` gets the seconds of stepping, replay, learning and evaluation.
    """
    check(config)
    if envs is not None and config.eval_every_steps and evaluate is None:
        raise HotloopError(
            f"eval_every_steps={config.eval_every_steps} needs evaluate=... when envs are given; "
            "pass it, or set eval_every_steps to 0."
        )
    stopwatch = stopwatch or Stopwatch()
    with ExitStack() as stack:
        starting = stack.enter_context(ExitStack())
        starting.enter_context(runs.start_up)
        stack.enter_context(runs.torch_threads(config.threads))
        if envs is None:
            envs = make_envs(config.env, config.n_envs)
            stack.callback(envs.close)
        run = _Run(config, envs, actor, evaluate, stopwatch, report)
        tensorboard = runs.TensorboardLog(config.tensorboard_log)
        stack.callback(tensorboard.close)
        stop = stack.enter_context(runs.StopRequests())
        line = runs.ProgressLine(config.total_timesteps, run.env_steps, quiet=config.quiet)
        stack.callback(line.close)
        logging = stopwatch.part("logging", _log)

        statistics: dict[str, float] = {}
        first_step = saved_at = run.env_steps
        starting.close()
        began = time.perf_counter()
        if run.evaluated_at < 0 or run.evaluation_due():  # due: a stop request ended it before
            run.evaluate()
        while run.env_steps < config.total_timesteps and stop.by is None:
            run.collect_step()
            run.update()
            if run.evaluation_due():
                run.evaluate()
            if run.record_due():
                with logging:
                    statistics = run.record() or statistics
                    runs.check_finite(statistics, run.env_steps, config.checkpoint)
                    tensorboard.write(run.env_steps, {**statistics, "return": run.recent.mean_return})
                    line.update(run.env_steps, run.recent.mean_return)
                if config.checkpoint and run.env_steps - saved_at >= config.checkpoint_every_steps:
                    run.save(config.checkpoint)
                    saved_at = run.env_steps
        statistics = run.record() or statistics
        runs.check_finite(statistics, run.env_steps, config.checkpoint)
        unsaved = None if config.checkpoint is None else run.save(config.checkpoint)
        if stop.by is None and config.eval_every_steps and run.evaluated_at != run.env_steps:
            run.evaluate()
        return SACResult(
            actor=run.learner.actor,
            learner=run.learner.name,
            env_steps=run.env_steps,
            updates=run.updates,
            actor_updates=run.actor_updates,
            episodes=run.recent.finished,
            seconds=time.perf_counter() - began,
            steps_here=run.env_steps - first_step,
            mean_return=run.recent.mean_return,
            evaluations=tuple(run.evaluations),
            best_at_step=run.restore_best() if config.keep_best else None,
            stopped_by=stop.by,
            statistics=statistics,
            unsaved=unsaved,
            nonfinite=run.nonfinite.found,
        )


class _Run:
    """Everything that a checkpoint holds, and the parts of one pass through the loop."""

    def __init__(
        self,
        config: SACConfig,
        envs: Any,
        actor: SquashedActor | None,
        evaluate: Callable[[Policy], float] | None,
        stopwatch: Stopwatch,
        report: Callable[..., Any],
    ):
        space, action_space = envs.single_observation_space, envs.single_action_space
        bounded = isinstance(action_space, Box) and bool(action_space.is_bounded())
        if not isinstance(space, Box) or not bounded or len(action_space.shape) != 1:
            raise HotloopError(
                f"SAC needs one array of observations and a bounded vector of continuous actions, not "
                f"{space} and {action_space}; wrap the environment."
            )
        self.config, self.envs, self._report = config, envs, report
        self._evaluate_policy = evaluate or self._play_episodes
        self._low, self._high = action_space.low, action_space.high
        self._unscaled = bool((self._low == -1.0).all() and (self._high == 1.0).all())
        n_envs, n_actions = int(envs.num_envs), action_space.shape[0]
        observation_size = math.prod(space.shape)
        actor, critics = make_networks(config, observation_size, n_actions, actor)
        self.learner = make_learner(config, actor, critics, stopwatch)
        self.nonfinite = NonFiniteCheck(config.allow_nonfinite, config.checkpoint)
        self.rollout = RolloutState(envs, config.seed, 1024 * n_envs, self.nonfinite)
        self.buffer = ReplayBuffer(
            config.buffer_size,
            n_envs,
            Box(-np.inf, np.inf, (observation_size,), np.float32),
            Box(-1.0, 1.0, (n_actions,), np.float32),
            gamma=config.gamma,
            autoreset="same_step" if self.rollout.same_step else "next_step",
            seed=config.seed + 1,
        )
        self.batch = self.buffer.make_batch(config.batch_size)
        self.rng = np.random.default_rng(config.seed)
        self._actions = np.zeros((n_envs, n_actions), dtype=np.float32)
        self.recent = runs.RecentEpisodes()
        self.env_steps = self.updates = self.actor_updates = self._recorded = 0
        self.vector_steps = self.collected = 0  # in all, and env steps since the last round of updates
        self._record_at = 0.0
        self.evaluations: list[tuple[int, float]] = []
        self.best: tuple[float, int, Arrays] | None = None
        """Mean return, env steps and weights of the best actor evaluated."""
        self.evaluated_at = -1
        with _compile:
            self.learner.warm_up(self.buffer, self.batch)
            self._warm_up_replay()
        self._acting, self._stepping = stopwatch.part("stepping", _policy), stopwatch.part("stepping", _step)
        self._pushing = stopwatch.part("replay", _push)
        self._evaluating = stopwatch.part("evaluation", _evaluate)
        self._saving = stopwatch.part("logging", _checkpoint)
        self.buffer.start(_rows(self.rollout.observations))
        saved = saved_run(config)
        if saved is not None:
            with runs.restoring(config.checkpoint):
                self._load(saved)

    def _warm_up_replay(self) -> None:
        """Call the replay kernels once, on a small buffer, so that they are compiled before training."""
        layout, n_envs = self.buffer.layout, self.buffer.n_envs
        space = Box(-np.inf, np.inf, layout.observation_shape, np.float32)
        small = ReplayBuffer(2 * n_envs, n_envs, space, Box(-1.0, 1.0, layout.action_shape, np.float32))
        observations = np.zeros((n_envs, *layout.observation_shape), dtype=np.float32)
        no = np.zeros(n_envs, dtype=np.bool_)
        small.start(observations)
        small.push(self._actions, np.zeros(n_envs), no, no, observations)
        small.sample(small.make_batch(1))

    # ---- collecting and updating

    def collect_step(self) -> None:
        """Act, step the environments, store the transitions."""
        actions, rollout = self._actions, self.rollout
        with self._acting:
            if self.env_steps < self.config.random_steps:
                actions[:] = self.rng.uniform(-1.0, 1.0, actions.shape)
            else:
                self.learner.act(_rows(rollout.observations), self._noise(*actions.shape), actions)
        with self._stepping:
            observations, rewards, terminated, truncated, infos = self.envs.step(self._scaled(actions))
        with self._pushing:
            ended = terminated | truncated
            finals = rollout.final_observations(infos, ended)
            self.nonfinite.env_steps = self.env_steps
            self.nonfinite.step(observations, rewards, finals, ended)
            finals = None if finals is None else _rows(finals)
            self.buffer.push(actions, rewards, terminated, truncated, _rows(observations), finals)
            taken = rollout.count_step(rewards, ended)
            rollout.observations = observations
        self.env_steps += taken
        self.collected += taken
        self.vector_steps += 1

    def update(self) -> None:
        """Do the updates that are due: a round every `train_freq` vector steps, after `learning_starts`."""
        config = self.config
        if self.vector_steps % config.train_freq:
            return
        updates = self.collected if config.gradient_steps == -1 else config.gradient_steps
        self.collected = 0
        if updates and self.env_steps > config.learning_starts:
            noise = self._noise(updates, 2, config.batch_size, self._actions.shape[1])
            train_actor = self.env_steps > config.actor_learning_starts
            self.learner.update(self.buffer, self.batch, noise, train_actor)

    def _noise(self, *shape: int) -> NDArray[np.float32]:
        drawn: NDArray[np.float32] = self.rng.standard_normal(shape, dtype=np.float32)
        return drawn

    def _scaled(self, actions: NDArray[np.float32]) -> NDArray[Any]:
        """Actions in -1 .. 1 scaled to the bounds of the action space."""
        if self._unscaled:
            return actions
        scaled: NDArray[Any] = self._low + 0.5 * (actions + 1.0) * (self._high - self._low)
        return scaled

    # ---- evaluation

    def evaluation_due(self) -> bool:
        every = self.config.eval_every_steps
        return every > 0 and self.env_steps // every > max(self.evaluated_at, 0) // every

    def evaluate(self) -> None:
        """Evaluate the actor without noise, if asked to, and keep its weights if it is the best so far."""
        if not self.config.eval_every_steps:
            return
        with self._evaluating:
            mean_return = self._evaluate_policy(self.learner.greedy_actions)
        if runs.stop_requested():  # it may have ended early; a resumed run evaluates again
            return
        self.evaluated_at = self.env_steps
        self.evaluations.append((self.env_steps, mean_return))
        if self.best is None or mean_return > self.best[0]:
            self.best = mean_return, self.env_steps, _weights(self.learner.actor)

    def restore_best(self) -> int | None:
        """Load the best weights into the actor; returns their env steps, None when they are the last ones."""
        if self.best is None or self.best[1] == self.env_steps:
            return None
        runs.load_weights(self.learner.actor, self.best[2])
        return self.best[1]

    def _play_episodes(self, policy: Policy) -> float:
        config = self.config
        envs = make_envs(config.env, min(config.n_envs, config.n_eval_episodes))
        try:
            returns, _ = evaluate_policy(
                lambda observations, _: self._scaled(policy(observations)),
                envs,
                config.n_eval_episodes,
                config.seed + 1_000_000,
            )
        finally:
            envs.close()
        return float(returns.mean())

    # ---- records

    def record_due(self) -> bool:
        """Whether the last record is some time ago, or the log of finished episodes is almost full."""
        episodes, now = self.rollout.episodes, time.perf_counter()
        full = int(episodes.count[0]) + int(self.envs.num_envs) > episodes.returns.size
        if not full and now < self._record_at:
            return False
        self._record_at = now + RECORD_EVERY_S
        return True

    def record(self) -> dict[str, float]:
        """Report the work since the last record; returns the mean statistics of its updates."""
        sums, (returns, lengths) = self.learner.statistics, self.rollout.episodes.finished()
        updates, actor_updates = int(sums[4]), int(sums[5])
        found: dict[str, float] = {}
        if updates:
            found = {"critic_loss": float(sums[0] / updates), "value": float(sums[1] / updates)}
        if actor_updates:
            found["actor_loss"] = float(sums[2] / actor_updates)
            found["log_prob"] = float(sums[3] / actor_updates)
        if updates:
            found["ent_coef"] = self.learner.ent_coef.value
        self.recent.add(returns, lengths)
        self.updates += updates
        self.actor_updates += actor_updates
        self._report(
            env_steps=self.env_steps - self._recorded,
            updates=updates,
            episodes=len(returns),
            episode_return=sum(returns) / len(returns) if returns else None,
            episode_length=sum(lengths) / len(lengths) if lengths else None,
            loss=found.get("critic_loss"),
        )
        self._recorded = self.env_steps
        self.rollout.episodes.count[0] = 0
        sums[:] = 0.0
        return found

    # ---- checkpoints

    def save(self, path: Path) -> str | None:
        with self._saving:
            self.record()
            state = {
                "rng": self.rng.bit_generator.state,
                "env_steps": self.env_steps,
                "vector_steps": self.vector_steps,
                "collected": self.collected,
                "updates": self.updates,
                "actor_updates": self.actor_updates,
                "evaluations": self.evaluations,
                "evaluated_at": self.evaluated_at,
                **self.recent.state(),
            }
            if self.best is not None:
                state["best"] = self.best[:2]
            return runs.save_run(
                path,
                self.config,
                env_steps=self.env_steps,
                learner=self.learner.state(),
                state=state,
                rollout=self.rollout.arrays(),
                replay=self.buffer.save_state(),
                best={} if self.best is None else self.best[2],
            )

    def _load(self, saved: Checkpoint) -> None:
        state = saved.state
        self.learner.load(saved.part("learner"))
        self.buffer.load_state(saved.part("replay"))
        before = self.rollout.observations
        self.rollout.load(saved.part("rollout"), self.config.seed + state["env_steps"])
        if self.rollout.observations is not before:  # these envs cannot be restored: episodes start anew
            self.buffer.start(_rows(self.rollout.observations))
        self.rng.bit_generator.state = state["rng"]
        self.env_steps = self._recorded = state["env_steps"]
        self.vector_steps, self.collected = state.get("vector_steps", 0), state.get("collected", 0)
        self.updates, self.actor_updates = state["updates"], state["actor_updates"]
        self.recent.load(state)
        self.evaluations = [(int(steps), float(found)) for steps, found in state["evaluations"]]
        self.evaluated_at = state["evaluated_at"]
        if "best" in state:
            self.best = float(state["best"][0]), int(state["best"][1]), saved.part("best")


def _rows(observations: NDArray[Any]) -> NDArray[np.float32]:
    """Observations as contiguous float32 [rows, size]; no copy when they already are."""
    return np.ascontiguousarray(observations.reshape(len(observations), -1), dtype=np.float32)
