"""DAgger and behaviour cloning in one file: imitation of an expert that can be asked about any state.

    from hotloop.rl.train.dagger import DaggerConfig, train
    result = train(DaggerConfig(total_timesteps=80_000), envs, ask_expert)

The expert says for every action how many steps it takes to the goal if it begins with this action. The agent
learns the actions with the fewest; where there are several, it may take any of them. Each gradient step uses
the states that all environments are in, and then they take one step: with `acting="agent"` an action of the
agent (DAgger, Ross et al. 2011), so that it also learns how to go on after its own mistakes; with
`acting="expert"` one of the expert (behaviour cloning). No state is used twice: a new one costs less than a
gradient step.

Two auxiliary targets help a network to learn to see. If it has attention maps (`GatedScanEncoder`), the
expert says which cell each of them should choose (`place_coef`). The critic learns the return of the expert
(`vf_coef`); `recurrent_ppo.py` can continue with both actor and critic.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from gymnasium.spaces import Discrete
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from hotloop import profile, progress
from hotloop._util.errors import HotloopError
from hotloop.rl.train import runs
from hotloop.rl.train.make_envs import RolloutState
from hotloop.rl.train.networks.conv import ConvEncoder
from hotloop.rl.train.networks.convlstm import RecurrentActorCritic
from hotloop.rl.train.networks.gated_scan import GatedScanEncoder
from hotloop.rl.train.runs import RecentEpisodes, RunResult

_ask = profile("expert_labels", "data")
_env_step = profile("env_step")
_forward = profile("learner_forward")
_loss = profile("loss")
_backward = profile("backward")
_optimizer_step = profile("optimizer_step")
_log = profile("log")
_checkpoint = profile("checkpoint")

WARM_UP_UPDATES = 50  # over which the learning rate rises
FINAL_RATE_FRACTION = 0.02  # of the learning rate, at the end of its cosine
STATISTICS = ("imitation_loss", "place_loss", "value_loss", "optimal_fraction")


# ---- settings and result


@dataclass(frozen=True)
class DaggerConfig:
    """Settings of a run."""

    total_timesteps: int = 80_000
    """Env steps to train for; the learning rate falls over them."""
    seed: int = 0
    """Seed of weights, actions and environments."""
    acting: Literal["agent", "expert"] = "agent"
    """Who plays while the agent learns: agent is DAgger, expert is behaviour cloning."""
    encoder: Literal["scan", "conv"] = "scan"
    """Encoder of the pictures: gated scans along rows and columns, or plain convolutions."""
    board_size: int = 8
    """Cells along a side of the board, for scan."""
    places: int = 11
    """Attention maps, for scan."""
    channels: int = 48
    """Channels of the encoder."""
    layers: int = 4
    """Blocks of the encoder, for scan."""
    features: int = 256
    """Size of the vector that actor and critic see."""
    learning_rate: float = 2e-3
    """Adam's learning rate after the warm-up; it falls along a cosine."""
    place_coef: float = 0.5
    """Weight of the loss of the attention maps, for scan; 0 leaves them to themselves."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 1.0
    """Maximum norm of the gradient."""
    threads: int = 1
    """Torch's intra-op threads."""
    checkpoint: Path | None = None
    """File to save to during training, at its end, and on SIGTERM or Ctrl-C."""
    checkpoint_every_steps: int = 20_000
    """Env steps between two saves."""
    eval_every_steps: int = 0
    """Env steps between two calls of `evaluate`; 0 for none."""
    resume: bool = False
    """Continue from `checkpoint`."""
    quiet: bool = False
    """Print no progress line."""


# The learning rate follows from total_timesteps, so a resumed run has the same.
MAY_DIFFER = runs.MAY_DIFFER - {"total_timesteps"} | {"eval_every_steps"}


@dataclass(frozen=True)
class DaggerResult(RunResult):
    """Result of a training run."""

    network: RecurrentActorCritic
    """The trained network."""
    statistics: dict[str, float]
    """STATISTICS as means over this run's last gradient steps, at most 100."""
    evaluations: tuple[tuple[int, float], ...]
    """Env steps and what `evaluate` returned after them."""


class Labels(NamedTuple):
    """What an expert says about the states of all environments."""

    action_costs: NDArray[np.int64]
    """[envs, actions]: steps to the goal if it begins with this action; -1 if it does not lead there."""
    places: NDArray[np.int64]
    """[envs, places]: the cell that each attention map should choose."""
    returns: NDArray[np.float32]
    """[envs]: return of the best actions."""

    @property
    def optimal(self) -> NDArray[np.bool_]:
        """[envs, actions]: the actions of least cost; none where no action leads to the goal."""
        costs = np.where(self.action_costs < 0, np.iinfo(np.int64).max, self.action_costs)
        best: NDArray[np.bool_] = (costs == costs.min(axis=1, keepdims=True)) & (self.action_costs >= 0)
        return best


Expert = Callable[[Any], Labels]
"""Vector environments -> labels of the states they are in."""


# ---- learner


def imitation_loss(logits: Tensor, optimal: Tensor) -> Tensor:
    """Mean cross-entropy with the uniform distribution over the optimal actions [batch, actions].

    Rows without an optimal action do not count.
    """
    choices = optimal.sum(dim=1)
    log_p = torch.log_softmax(logits, dim=1)
    losses = -(log_p * optimal).sum(dim=1) / choices.clamp(min=1)
    return losses.sum() / (choices > 0).sum().clamp(min=1)


class DaggerLearner:
    """Trains a network with PyTorch; owns Adam's moments."""

    name = "torch"

    def __init__(self, network: RecurrentActorCritic, config: DaggerConfig):
        self.network = network
        self._config = config
        self._adam = runs.make_adam(network, config.learning_rate)

    def update(self, observations: NDArray[Any], labels: Labels, learning_rate: float) -> tuple[Any, Any]:
        """One gradient step; returns the logits before it, [batch, actions], and STATISTICS."""
        config, network = self._config, self.network
        optimal = torch.from_numpy(labels.optimal)
        with _forward:
            features, place_logits = _read(network, torch.from_numpy(observations))
            logits, values = network.actor(features), network.critic(features).squeeze(-1)
        with _loss:
            imitation = imitation_loss(logits, optimal)
            place = torch.zeros(())
            if place_logits is not None and config.place_coef:
                wanted = torch.from_numpy(labels.places).flatten()
                place = functional.cross_entropy(place_logits.flatten(0, 1), wanted)
            value = functional.mse_loss(values, torch.from_numpy(labels.returns))
            total = imitation + config.place_coef * place + config.vf_coef * value
        with _backward:
            self._adam.zero_grad(set_to_none=True)
            total.backward()  # type: ignore[no-untyped-call]
        with _optimizer_step:
            nn.utils.clip_grad_norm_(network.parameters(), config.max_grad_norm)
            for group in self._adam.param_groups:
                group["lr"] = learning_rate
            self._adam.step()
        right = optimal.gather(1, logits.argmax(dim=1, keepdim=True)).float().mean()
        found = torch.stack([part.detach() for part in (imitation, place, value, right)]).tolist()
        progress(updates=1, loss=float(total.detach()))
        return logits.detach().numpy(), found

    def state(self) -> dict[str, NDArray[Any]]:
        """Copies of weights and Adam's moments, for a checkpoint."""
        return runs.weights_and_moments(self.network, self._adam)

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from the `state()` of a learner with the same network."""
        runs.load_weights_and_moments(self.network, self._adam, state)


def _read(network: RecurrentActorCritic, pictures: Tensor) -> tuple[Tensor, Tensor | None]:
    """Features and, of an encoder that has them, place logits."""
    encoder = network.encoder
    if isinstance(encoder, GatedScanEncoder):
        return encoder.read(pictures)
    features, _ = encoder(pictures[None], network.initial_state(len(pictures)), None)
    return features[0], None


def learning_rate(config: DaggerConfig, updates: int, env_steps: int) -> float:
    """Adam's learning rate for the next gradient step: a short warm-up, then a cosine."""
    warm_up = min(1.0, (updates + 1) / WARM_UP_UPDATES)
    cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, env_steps / config.total_timesteps)))
    return config.learning_rate * warm_up * (FINAL_RATE_FRACTION + (1.0 - FINAL_RATE_FRACTION) * cosine)


# ---- training


def train(
    config: DaggerConfig,
    envs: Any,
    expert: Expert,
    *,
    evaluate: Callable[[RecurrentActorCritic], float] | None = None,
    before_step: Callable[[float], None] | None = None,
    note: Callable[[], str] | None = None,
) -> DaggerResult:
    """Train on vector environments whose observations are pictures; they stay open.

    `evaluate(network)` is called every `eval_every_steps` and its value kept. `before_step(fraction of the
    training done)` may change the environments, as a curriculum does. `note()` returns a few words for the
    progress line.
    """
    check_config(config, envs)
    with ExitStack() as stack:
        starting = stack.enter_context(ExitStack())
        starting.enter_context(runs.start_up)
        stack.enter_context(runs.torch_threads(config.threads))
        saved = saved_run(config)
        network = make_network(config, envs.single_observation_space.shape, int(envs.single_action_space.n))
        learner = DaggerLearner(network, config)
        rng = np.random.default_rng(config.seed)
        if before_step is not None:
            before_step(0.0)
        rollout = RolloutState(envs, config.seed, int(envs.num_envs))
        recent = RecentEpisodes()
        env_steps = updates = 0
        evaluations: list[tuple[int, float]] = []
        if saved is not None:
            with runs.restoring(config.checkpoint):
                learner.load(saved.part("learner"))
                rollout.load(saved.part("rollout"), config.seed + saved.state["env_steps"])
                rng.bit_generator.state = saved.state["rng"]
                env_steps, updates = saved.state["env_steps"], saved.state["updates"]
                evaluations = [(steps, value) for steps, value in saved.state["evaluations"]]
                recent.load(saved.state)
        resumed_at = saved_at = env_steps

        def save(path: Path) -> str | None:
            state = {"env_steps": env_steps, "updates": updates, "evaluations": evaluations}
            state |= {"rng": rng.bit_generator.state, **recent.state()}
            with _checkpoint:
                return runs.save_run(
                    path, config, env_steps=env_steps, learner=learner.state(), state=state,
                    rollout=rollout.arrays(),
                )  # fmt: skip

        stop = stack.enter_context(runs.StopRequests())
        line = runs.ProgressLine(config.total_timesteps, env_steps, quiet=config.quiet)
        stack.callback(line.close)
        latest: list[list[float]] = []
        starting.close()
        began_s = time.perf_counter()
        while env_steps < config.total_timesteps and stop.by is None:
            if before_step is not None:
                before_step(env_steps / config.total_timesteps)
            with _ask:
                labels = expert(envs)
            rate = learning_rate(config, updates, env_steps)
            logits, statistics = learner.update(rollout.observations, labels, rate)
            updates += 1
            latest = [*latest[-99:], statistics]
            if config.acting == "expert":
                logits = np.where(labels.optimal, 0.0, -1e9)
            with _env_step:  # adding Gumbel noise samples from the softmax
                rollout.observations, rewards, terminated, truncated, _ = envs.step(
                    (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
                )
            before = env_steps
            env_steps += rollout.count_step(rewards, terminated | truncated)
            progress(env_steps=env_steps - before)
            with _log:
                returns, lengths = rollout.episodes.finished()
                rollout.episodes.count[0] = 0
                recent.add(returns, lengths)
                if returns:
                    progress(
                        episodes=len(returns),
                        episode_return=sum(returns) / len(returns),
                        episode_length=sum(lengths) / len(lengths),
                    )
                runs.check_finite(
                    dict(zip(STATISTICS, statistics, strict=True)), env_steps, config.checkpoint
                )
                line.update(env_steps, recent.mean_return, note() if note else "")
            every = config.eval_every_steps
            if evaluate is not None and every and env_steps // every > before // every:
                evaluations.append((env_steps, evaluate(network)))
            if config.checkpoint is not None and env_steps - saved_at >= config.checkpoint_every_steps:
                save(config.checkpoint)
                saved_at = env_steps
        seconds = time.perf_counter() - began_s
        unsaved = None if config.checkpoint is None else save(config.checkpoint)
        means = np.mean(latest, axis=0).tolist() if latest else []
        return DaggerResult(
            network=network,
            learner=learner.name,
            env_steps=env_steps,
            resumed_at=resumed_at,
            updates=updates,
            episodes=recent.finished,
            seconds=seconds,
            mean_return=recent.mean_return,
            evaluation_return=None,
            stopped_by=stop.by,
            statistics=dict(zip(STATISTICS, means, strict=False)),
            evaluations=tuple(evaluations),
            unsaved=unsaved,
        )


def make_network(config: DaggerConfig, shape: tuple[int, ...], n_actions: int) -> RecurrentActorCritic:
    """The network of a config; its weights follow from the seed, and torch's global RNG is left as it was."""
    encoder: GatedScanEncoder | ConvEncoder
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if config.encoder == "scan":
            encoder = GatedScanEncoder(
                shape, config.board_size, config.channels, config.layers, config.places, config.features
            )
        else:
            encoder = ConvEncoder(shape, config.channels, config.features)
        return RecurrentActorCritic(encoder, n_actions)


def check_config(config: DaggerConfig, envs: Any) -> None:
    """Raise HotloopError for the first invalid setting."""
    if not isinstance(envs.single_action_space, Discrete):
        raise HotloopError(f"DAgger needs discrete actions; these envs have {envs.single_action_space}.")
    check_settings(config)


def check_settings(config: DaggerConfig) -> None:
    """Raise HotloopError for the first invalid setting."""
    runs.check_seed(config)
    runs.check_at_least(config, 1, "total_timesteps", "layers", "places", "features", "threads")
    runs.check_at_least(config, 2, "channels")
    runs.check_at_least(config, 1, "board_size", "checkpoint_every_steps")
    runs.check_at_least(config, 0, "place_coef", "vf_coef", "eval_every_steps")
    runs.check_positive(config, "learning_rate", "max_grad_norm")
    runs.check_checkpoint(config)


def saved_run(config: DaggerConfig) -> runs.Checkpoint | None:
    """The checkpoint to resume from, or None; CheckpointError if it does not fit the settings."""
    return runs.load_run(config, MAY_DIFFER)


def load_network(path: Path, network: RecurrentActorCritic) -> None:
    """Copy the weights of a checkpoint of `train` into a network of the same shape.

    Raises CheckpointError.
    """
    saved = runs.load_checkpoint(path)
    with runs.restoring(path):
        runs.load_weights(network, saved.part("learner"), "weights.")
