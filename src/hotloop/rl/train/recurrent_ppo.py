"""PPO for agents that see pictures and remember (ConvLSTM) or not (plain convolutions), all in this file.

    from hotloop.rl.train.recurrent_ppo import RecurrentPPOConfig, train
    result = train(RecurrentPPOConfig(total_timesteps=100_000), envs)

It differs from `ppo.py`, whose loss it uses, in what a batch is: whole sequences of `n_steps`, replayed from
the LSTM state that their environments had when the rollout began.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from gymnasium.spaces import Discrete
from numpy.typing import NDArray
from torch import Tensor, nn

from hotloop import profile, progress
from hotloop._util.errors import HotloopError
from hotloop.rl.buffers.rollout import RolloutBuffer
from hotloop.rl.nonfinite import NonFiniteCheck
from hotloop.rl.train import runs
from hotloop.rl.train.make_envs import RolloutState
from hotloop.rl.train.networks.conv import ConvEncoder
from hotloop.rl.train.networks.convlstm import ConvLSTMEncoder, RecurrentActorCritic
from hotloop.rl.train.ppo import STATISTICS, Batch, loss_settings, normalize, ppo_loss
from hotloop.rl.train.runs import MAY_DIFFER, RecentEpisodes, RunResult

_env_step = profile("env_step")
_policy_forward = profile("policy_forward")
_store = profile("replay_push")
_advantage = profile("advantage")
_transfer = profile("transfer")
_forward = profile("learner_forward")
_loss = profile("loss")
_backward = profile("backward")
_optimizer_step = profile("optimizer_step")
_log = profile("log")
_checkpoint = profile("checkpoint")

ADAM_EPS = 1e-5


@dataclass(frozen=True)
class RecurrentPPOConfig:
    """Settings of a run, named as in Stable-Baselines3."""

    total_timesteps: int = 100_000
    """Env steps to train for, rounded up to whole iterations."""
    seed: int = 0
    """Seed of weights, actions, batches and environments."""
    encoder: Literal["convlstm", "conv"] = "convlstm"
    """Encoder of the pictures: with memory, or plain convolutions."""
    channels: int = 32
    """Channels of the encoded picture and of each LSTM layer."""
    layers: int = 2
    """ConvLSTM layers."""
    repeats: int = 1
    """Ticks of the ConvLSTM per env step."""
    features: int = 128
    """Size of the vector that actor and critic see."""
    n_steps: int = 32
    """Length of a rollout in each environment, and of a training sequence."""
    n_epochs: int = 3
    """Passes over a rollout."""
    num_minibatches: int = 2
    """Gradient steps per pass: the environments are split into this many groups of whole sequences."""
    learning_rate: float = 3e-4
    """Adam's learning rate."""
    gamma: float = 0.99
    """Discount factor."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation."""
    clip_range: float = 0.2
    """How far the probability ratio may leave 1 before its gradient is cut."""
    clip_range_vf: float | None = None
    """How far a value may leave its old value before its gradient is cut; None for no clipping."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    ent_coef: float = 0.01
    """Weight of the entropy bonus."""
    max_grad_norm: float | None = 0.5
    """Maximum norm of the gradient; None for no clipping."""
    normalize_advantage: bool = True
    """Normalize the advantages of each batch to mean 0 and standard deviation 1."""
    compile: bool = False
    """Train with torch.compile; the regions inside the network are then not recorded."""
    threads: int = 1
    """Torch's intra-op threads."""
    allow_nonfinite: bool = False
    """Train on rewards and observations that are NaN or infinite, instead of stopping."""
    checkpoint: Path | None = None
    """File to save to during training, at its end, and on SIGTERM or Ctrl-C."""
    checkpoint_every_steps: int = 100_000
    """Env steps between two saves."""
    resume: bool = False
    """Continue from `checkpoint`."""
    quiet: bool = False
    """Print no progress line."""


@dataclass(frozen=True)
class RecurrentPPOResult(RunResult):
    """Result of a training run."""

    network: RecurrentActorCritic
    """The trained network."""
    statistics: dict[str, float]
    """Losses and other means of the last iteration, see `ppo.STATISTICS`."""


# ---- rollouts


class SequenceBuffer(RolloutBuffer):
    """A rollout with what it takes to replay it."""

    def __init__(self, n_steps: int, envs: Any, lstm_state: Tensor):
        space, n_actions = envs.single_observation_space, int(envs.single_action_space.n)
        super().__init__(n_steps, envs.num_envs, space.shape, n_actions, observation_dtype=space.dtype)
        self.episode_starts = np.ones((n_steps, envs.num_envs), dtype=np.bool_)
        """Where an observation is the first of its episode."""
        self.first_lstm_state = lstm_state
        """[envs, ...]: before the first step."""


class Memory:
    """What the agent carries from step to step."""

    def __init__(self, network: RecurrentActorCritic, n_envs: int):
        self.lstm_state = network.initial_state(n_envs)
        self.episode_starts = np.ones(n_envs, dtype=np.bool_)
        """Whether the next observation is the first of its episode."""


@torch.inference_mode()
def collect_rollout(
    network: RecurrentActorCritic,
    buffer: SequenceBuffer,
    rollout: RolloutState,
    memory: Memory,
    rng: np.random.Generator,
) -> int:
    """Fill the buffer with `n_steps` steps of all envs; returns the env steps taken."""
    envs, env_steps = rollout.envs, 0
    rollout.episodes.count[0] = 0
    with _store:
        buffer.observations[0] = rollout.observations
    buffer.first_lstm_state = memory.lstm_state
    buffer.final_values[:] = 0.0
    for step in range(buffer.n_steps):
        buffer.episode_starts[step] = memory.episode_starts
        with _policy_forward:
            observations = torch.from_numpy(buffer.observations[step])
            uniforms = torch.from_numpy(rng.random(buffer.n_envs, dtype=np.float32))
            episode_starts = torch.from_numpy(memory.episode_starts)
            output = network.act(observations, memory.lstm_state, episode_starts, uniforms)
        memory.lstm_state = output.state
        buffer.actions[step] = output.actions.numpy()
        buffer.log_probabilities[step] = output.log_probabilities.numpy()
        buffer.values[step] = output.values.numpy()
        with _env_step:
            rollout.observations, rewards, terminated, truncated, infos = envs.step(buffer.actions[step])
        with _store:
            buffer.observations[step + 1] = rollout.observations
            buffer.rewards[step], buffer.valid[step] = rewards, ~rollout.only_reset
            buffer.terminated[step], buffer.truncated[step] = terminated, truncated
        if truncated.any():
            rows = np.flatnonzero(truncated)
            finals = infos["final_obs"] if rollout.same_step else rollout.observations
            last = np.stack([finals[row] for row in rows])
            rollout.nonfinite.finals(rows, last, step * buffer.n_envs)
            lstm_state = memory.lstm_state[torch.from_numpy(rows)]
            buffer.final_values[step, rows] = _values(
                network, last, lstm_state, np.zeros_like(rows, np.bool_)
            )
        # With same-step autoreset the next observation is the new episode's first; otherwise it is so after
        # the step that only resets.
        ended = terminated | truncated
        memory.episode_starts = ended.copy() if rollout.same_step else rollout.only_reset.copy()
        new_steps = rollout.count_step(rewards, ended)
        env_steps += new_steps
        progress(env_steps=new_steps)
    buffer.values[-1] = _values(network, buffer.observations[-1], memory.lstm_state, memory.episode_starts)
    return env_steps


def _values(
    network: RecurrentActorCritic,
    observations: NDArray[Any],
    lstm_state: Tensor,
    episode_starts: NDArray[np.bool_],
) -> NDArray[np.float32]:
    """The critic's value of each of the observations [rows, ...]."""
    with _policy_forward:
        _, values, _ = network(
            torch.from_numpy(observations)[None], lstm_state, torch.from_numpy(episode_starts)[None]
        )
    found: NDArray[np.float32] = values[0].numpy()
    return found


# ---- learner


class RecurrentLearner:
    """Trains a recurrent network with PyTorch; owns Adam's moments."""

    def __init__(self, network: RecurrentActorCritic, config: RecurrentPPOConfig):
        self.name = "compiled" if config.compile else "torch"
        self.network = network
        self._config = config
        self._module: Any = torch.compile(network) if config.compile else network
        self._adam = runs.make_adam(network, config.learning_rate, ADAM_EPS)

    def update(self, buffer: SequenceBuffer, rng: np.random.Generator) -> dict[str, float]:
        """All epochs over a rollout; returns STATISTICS as means over gradient steps."""
        totals, gradient_steps = torch.zeros(len(STATISTICS), dtype=torch.float64), 0
        for _ in range(self._config.n_epochs):
            for rows in np.array_split(rng.permutation(buffer.n_envs), self._config.num_minibatches):
                totals += self._gradient_step(buffer, rows)
                gradient_steps += 1
        return dict(zip(STATISTICS, (totals / gradient_steps).tolist(), strict=True))

    def _gradient_step(self, buffer: SequenceBuffer, rows: NDArray[np.int64]) -> Tensor:
        """One step of Adam on the sequences of these envs; returns STATISTICS as float64."""
        config = self._config
        with _transfer:
            observations = torch.from_numpy(buffer.observations[:-1, rows])
            episode_starts = torch.from_numpy(buffer.episode_starts[:, rows])
            lstm_state = buffer.first_lstm_state[torch.from_numpy(rows)].clone()
            valid = torch.from_numpy(buffer.valid[:, rows])
            actions, log_probabilities, advantages, returns, old_values = (
                torch.from_numpy(array[:, rows])[valid]
                for array in (
                    buffer.actions,
                    buffer.log_probabilities,
                    buffer.advantages,
                    buffer.returns,
                    buffer.values[:-1],
                )
            )
            if config.normalize_advantage:
                advantages = normalize(advantages)
            batch = Batch(observations, actions, log_probabilities, advantages, returns, old_values, None)
        with _forward:
            logits, values, _ = self._module(observations, lstm_state, episode_starts)
        with _loss:
            loss = ppo_loss(logits[valid], values[valid], batch, **loss_settings(config))
        with _backward:
            self._adam.zero_grad(set_to_none=True)
            loss.total.backward()  # type: ignore[no-untyped-call]
        with _optimizer_step:
            max_norm = config.max_grad_norm if config.max_grad_norm is not None else float("inf")
            norm = nn.utils.clip_grad_norm_(self.network.parameters(), max_norm)
            self._adam.step()
            total = float(loss.total.detach())
            statistics = torch.stack([part.detach() for part in (*loss[1:], norm)]).double()
            # Here, because it takes milliseconds to return their memory, which would be in no region.
            del batch, logits, loss, observations, values
        progress(updates=1, loss=total)
        return statistics

    def state(self) -> dict[str, NDArray[Any]]:
        """Copies of weights and Adam's moments, for a checkpoint."""
        return runs.weights_and_moments(self.network, self._adam)

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from the `state()` of a learner with the same network."""
        runs.load_weights_and_moments(self.network, self._adam, state)


# ---- training


def train(
    config: RecurrentPPOConfig,
    envs: Any,
    *,
    network: RecurrentActorCritic | None = None,
    note: Callable[[], str] | None = None,
) -> RecurrentPPOResult:
    """Train on vector environments whose observations are pictures; they stay open.

    `network` is trained instead of a new one, whatever encoder it has; `dagger.py` makes such networks.
    `note()` returns a few words for the progress line, such as the current bottleneck.
    """
    check_config(config, envs)
    with ExitStack() as stack:
        starting = stack.enter_context(ExitStack())
        starting.enter_context(runs.start_up)
        stack.enter_context(runs.torch_threads(config.threads))
        saved = saved_run(config)
        if network is None:
            shape, n_actions = envs.single_observation_space.shape, int(envs.single_action_space.n)
            network = make_network(config, shape, n_actions)
        learner = RecurrentLearner(network, config)
        rng = np.random.default_rng(config.seed)
        nonfinite = NonFiniteCheck(config.allow_nonfinite, config.checkpoint)
        rollout = RolloutState(envs, config.seed, envs.num_envs * config.n_steps, nonfinite)
        memory = Memory(network, envs.num_envs)
        buffer = SequenceBuffer(config.n_steps, envs, memory.lstm_state)
        recent = RecentEpisodes()
        env_steps = updates = 0
        if saved is not None:
            with runs.restoring(config.checkpoint):
                saved = upgrade_arrays(saved, network)
                learner.load(saved.part("learner"))
                rollout.load(saved.part("rollout"), config.seed + saved.state["env_steps"])
                if rollout.can_restore:
                    memory.lstm_state = torch.from_numpy(saved.arrays["memory.lstm_state"])
                    memory.episode_starts = saved.arrays["memory.episode_starts"]
                rng.bit_generator.state = saved.state["rng"]
                env_steps, updates = saved.state["env_steps"], saved.state["updates"]
                recent.load(saved.state)
        resumed_at = saved_at = env_steps

        def save(path: Path) -> str | None:
            state = {"env_steps": env_steps, "updates": updates, **recent.state()}
            state |= {"rng": rng.bit_generator.state}
            kept = {"lstm_state": memory.lstm_state.numpy(), "episode_starts": memory.episode_starts}
            with _checkpoint:
                return runs.save_run(
                    path, config, env_steps=env_steps, learner=learner.state(), state=state,
                    rollout=rollout.arrays(), memory=kept,
                )  # fmt: skip

        stop = stack.enter_context(runs.StopRequests())
        line = runs.ProgressLine(config.total_timesteps, env_steps, quiet=config.quiet)
        stack.callback(line.close)
        statistics: dict[str, float] = {}
        starting.close()
        began_s = time.perf_counter()
        while env_steps < config.total_timesteps and stop.by is None:
            nonfinite.env_steps = env_steps
            env_steps += collect_rollout(network, buffer, rollout, memory, rng)
            nonfinite.rollout(buffer.observations[1:], buffer.rewards)
            with _log:
                returns, lengths = rollout.episodes.finished()
                recent.add(returns, lengths)
                if returns:
                    progress(
                        episodes=len(returns),
                        episode_return=sum(returns) / len(returns),
                        episode_length=sum(lengths) / len(lengths),
                    )
            with _advantage:
                buffer.compute_advantages(config.gamma, config.gae_lambda)
            statistics = learner.update(buffer, rng)
            runs.check_finite(statistics, env_steps, config.checkpoint)
            updates += config.n_epochs * config.num_minibatches
            with _log:
                line.update(env_steps, recent.mean_return, note() if note else "")
            if config.checkpoint is not None and env_steps - saved_at >= config.checkpoint_every_steps:
                save(config.checkpoint)
                saved_at = env_steps
        seconds = time.perf_counter() - began_s
        unsaved = None if config.checkpoint is None else save(config.checkpoint)
        return RecurrentPPOResult(
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
            statistics=statistics,
            unsaved=unsaved,
            nonfinite=nonfinite.found,
        )


def make_network(config: RecurrentPPOConfig, shape: tuple[int, ...], n_actions: int) -> RecurrentActorCritic:
    """The network of a config; its weights follow from the seed, and torch's global RNG is left as it was."""
    encoder: ConvLSTMEncoder | ConvEncoder
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if config.encoder == "convlstm":
            encoder = ConvLSTMEncoder(shape, config.channels, config.features, config.layers, config.repeats)
        else:
            encoder = ConvEncoder(shape, config.channels, config.features)
        return RecurrentActorCritic(encoder, n_actions)


# ---- validation, and checkpoints of hotloop 0.1


def check_config(config: RecurrentPPOConfig, envs: Any) -> None:
    """Raise HotloopError for the first invalid setting."""
    if not isinstance(envs.single_action_space, Discrete):
        raise HotloopError(f"This PPO needs discrete actions; these envs have {envs.single_action_space}.")
    check_settings(config, envs.num_envs)


def check_settings(config: RecurrentPPOConfig, n_envs: int) -> None:
    """Raise HotloopError for the first invalid setting for this number of envs."""
    if not 1 <= config.num_minibatches <= n_envs:
        raise HotloopError(
            f"num_minibatches={config.num_minibatches} must be between 1 and the number of environments, "
            f"{n_envs}."
        )
    runs.check_seed(config)
    runs.check_at_least(config, 1, "total_timesteps", "n_steps", "n_epochs", "checkpoint_every_steps")
    runs.check_at_least(config, 1, "channels", "layers", "repeats", "features", "threads")
    runs.check_fraction(config, "gamma", "gae_lambda")
    runs.check_at_least(config, 0, "ent_coef", "vf_coef")
    runs.check_positive(config, "learning_rate", "clip_range", "clip_range_vf", "max_grad_norm")
    runs.check_checkpoint(config)


def saved_run(config: RecurrentPPOConfig) -> runs.Checkpoint | None:
    """The checkpoint to resume from, or None; CheckpointError if it does not fit the settings."""
    return runs.load_run(config, MAY_DIFFER | {"compile"}, upgrade_settings)


def upgrade_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of 0.1 as those of today."""
    kept = {name: value for name, value in settings.items() if name not in ("groups", "checkpoint_every_s")}
    added = {"num_minibatches": settings["groups"], "clip_range_vf": None, "normalize_advantage": True}
    return kept | added


def upgrade_arrays(saved: runs.Checkpoint, network: nn.Module) -> runs.Checkpoint:
    """The checkpoint with the arrays of 0.1 under the names of today."""
    old = saved.arrays
    if "running" not in old:
        return saved
    arrays = {f"learner.{name}": array for name, array in old.items() if name.startswith("weights.")}
    arrays["learner.steps"] = old.get("adam.0.step", np.zeros(1)).astype(np.int64)
    for index, (name, weight) in enumerate(network.named_parameters()):
        zeros = np.zeros(weight.shape, dtype=np.float32)  # 0.1 had no moments before the first update
        arrays[f"learner.first.{name}"] = old.get(f"adam.{index}.exp_avg", zeros)
        arrays[f"learner.second.{name}"] = old.get(f"adam.{index}.exp_avg_sq", zeros)
    arrays |= {f"rollout.envs.{n.removeprefix('env.')}": a for n, a in old.items() if n.startswith("env.")}
    arrays |= {"rollout.over": old["over"], "rollout.running_returns": old["running"][0]}
    arrays |= {"rollout.running_lengths": old["running"][1].astype(np.int64)}
    arrays |= {"memory.lstm_state": old["state"], "memory.episode_starts": old["start"]}
    return runs.Checkpoint(arrays, saved.state | {"episodes": saved.state["finished"]}, saved.config)
