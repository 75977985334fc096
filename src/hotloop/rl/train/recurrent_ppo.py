"""PPO for agents that see pictures and remember: ConvLSTM or plain convolutions, read from top to bottom.

A rollout of `steps` in all environments; advantages; then `epochs` passes over groups of whole sequences,
each replayed from the memory its environment had when the rollout began. `train(config, envs)` is all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from torch import Tensor, nn

from hotloop import profile, progress
from hotloop._util.errors import HotloopError
from hotloop.rl.buffers.rollout import RolloutBuffer
from hotloop.rl.train.networks.conv import ConvEncoder
from hotloop.rl.train.networks.convlstm import ConvLSTMEncoder
from hotloop.rl.train.networks.recurrent import RecurrentActorCritic
from hotloop.rl.train.runs import (
    ProgressLine,
    RecentEpisodes,
    StopRequests,
    check_finite,
    check_same_settings,
    load_checkpoint,
    save_checkpoint,
)

_env_step = profile("env_step")
_policy_forward = profile("policy_forward")
_advantage = profile("advantage")
_learner_forward = profile("learner_forward")
_loss = profile("loss")
_backward = profile("backward")
_optimizer_step = profile("optimizer_step")
_transfer = profile("transfer")
_checkpoint = profile("checkpoint")
_evaluate = profile("evaluate")

MAY_DIFFER = frozenset({"total_steps", "checkpoint", "checkpoint_every_s", "resume", "threads", "compile"})


@dataclass(frozen=True)
class RecurrentPPOConfig:
    """Settings of the agent and of the training."""

    total_steps: int = 100_000
    """Env steps of the whole training."""
    seed: int = 0
    """Of weights, sampling, minibatches and environments."""
    encoder: Literal["convlstm", "conv"] = "convlstm"
    """With memory, or plain convolutions."""
    channels: int = 32
    """Of the encoded picture and of each memory."""
    layers: int = 2
    """ConvLSTM layers."""
    repeats: int = 1
    """Ticks of the ConvLSTM for each env step."""
    features: int = 128
    """Numbers the heads see."""
    steps: int = 32
    """Env steps of each environment in one rollout; also the length of a training sequence."""
    epochs: int = 3
    """Passes over a rollout."""
    groups: int = 2
    """Minibatches of a pass: the environments are split into so many groups of whole sequences."""
    learning_rate: float = 3e-4
    """Of Adam."""
    discount: float = 0.99
    """Gamma."""
    trace: float = 0.95
    """Lambda of the advantages."""
    clip: float = 0.2
    """How far the policy's ratio may move before its gradient stops."""
    entropy_weight: float = 0.01
    """Reward for undecided policies."""
    value_weight: float = 0.5
    """Weight of the critic's error."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this norm."""
    compile: bool = False
    """Compile the network; its inner regions are then not recorded."""
    threads: int = 1
    """Torch threads."""
    checkpoint: Path | None = None
    """Where to keep the state; also written on Ctrl-C and SIGTERM."""
    checkpoint_every_s: float = 300.0
    """Seconds between checkpoints."""
    resume: bool = False
    """Go on from the checkpoint."""


@dataclass(frozen=True, slots=True)
class RecurrentPPOResult:
    """What a training gave."""

    policy: RecurrentActorCritic
    """The trained network."""
    env_steps: int
    """Env steps taken in all, those before a resume included."""
    updates: int
    """Minibatch updates."""
    episodes: int
    """Episodes that ended."""
    mean_return: float | None
    """Of the last 100 episodes; None before the first ended."""
    seconds: float
    """Wall time of this run."""
    stopped_by: str | None
    """The signal that ended it early, if one did."""


class Losses(NamedTuple):
    """Means over the samples of a minibatch."""

    policy: Tensor
    value: Tensor
    entropy: Tensor


def clipped_losses(
    logits: Tensor,
    values: Tensor,
    actions: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    returns: Tensor,
    clip: float,
) -> Losses:
    """PPO's three losses for samples [n], logits [n, actions]; advantages are normalised already."""
    log_probs = torch.log_softmax(logits, dim=-1)
    chosen = log_probs.gather(1, actions[:, None]).squeeze(1)
    ratio = (chosen - old_log_probs).exp()
    policy = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - clip, 1 + clip)).mean()
    entropy = -(log_probs.exp() * log_probs).sum(dim=-1).mean()
    return Losses(policy, 0.5 * (values - returns).square().mean(), entropy)


def make_policy(config: RecurrentPPOConfig, shape: tuple[int, ...], actions: int) -> RecurrentActorCritic:
    """The network the config describes, with weights from its seed."""
    torch.manual_seed(config.seed)
    encoder: ConvLSTMEncoder | ConvEncoder
    if config.encoder == "convlstm":
        encoder = ConvLSTMEncoder(shape, config.channels, config.features, config.layers, config.repeats)
    else:
        encoder = ConvEncoder(shape, config.channels, config.features)
    return RecurrentActorCritic(encoder, actions)


def train(
    config: RecurrentPPOConfig,
    envs: VectorEnv[Any, Any, Any],
    *,
    quiet: bool = False,
    note: Callable[[], str] | None = None,
) -> RecurrentPPOResult:
    """Train on vector environments that show pictures; they stay the caller's.

    `note` is asked for a few words to put on the progress line.
    """
    _check(config, envs)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    run = _Run(config, envs)
    line = ProgressLine(config.total_steps, run.env_steps, quiet=quiet)
    began = saved = time.perf_counter()
    try:
        with StopRequests() as stop:
            while run.env_steps < config.total_steps and stop.by is None:
                run.collect()
                run.learn()
                line.update(run.env_steps, run.recent.mean_return, note() if note else "")
                if time.perf_counter() - saved > config.checkpoint_every_s:
                    run.save()
                    saved = time.perf_counter()
        run.save()
    finally:
        line.close()
        torch.set_num_threads(threads_before)
    return RecurrentPPOResult(
        policy=run.policy,
        env_steps=run.env_steps,
        updates=run.updates,
        episodes=run.recent.finished,
        mean_return=run.recent.mean_return,
        seconds=time.perf_counter() - began,
        stopped_by=stop.by,
    )


class _Run:
    """The state of one training: what a checkpoint holds, and the two halves of an iteration."""

    def __init__(self, config: RecurrentPPOConfig, envs: VectorEnv[Any, Any, Any]):
        self.config, self.envs = config, envs
        shape, actions = envs.single_observation_space.shape or (), int(envs.single_action_space.n)  # type: ignore[attr-defined]
        self.policy = make_policy(config, shape, actions)
        self.network: nn.Module = torch.compile(self.policy) if config.compile else self.policy  # type: ignore[assignment]
        self.optimizer = torch.optim.Adam(
            self.policy.parameters(), lr=config.learning_rate, eps=1e-5, fused=True
        )
        self.rng = np.random.default_rng(config.seed)
        self.buffer = RolloutBuffer(
            config.steps, envs.num_envs, shape, actions, observation_dtype=envs.single_observation_space.dtype
        )
        self.starts = np.ones((config.steps, envs.num_envs), dtype=np.bool_)
        self.same_step = envs.metadata.get("autoreset_mode") == AutoresetMode.SAME_STEP
        self.recent = RecentEpisodes()
        self.env_steps = self.updates = 0
        self.state = self.policy.initial_state(envs.num_envs)
        self.first_state = self.state
        self.running = np.zeros((2, envs.num_envs))  # return and length of the episodes under way
        self.start = np.ones(envs.num_envs, dtype=np.bool_)  # the next observation begins an episode
        self.over = np.zeros(envs.num_envs, dtype=np.bool_)  # the next step is only a reset
        if config.resume:
            self._load()
        else:
            self.buffer.observations[-1] = envs.reset(seed=config.seed)[0]

    # ---- collecting

    @torch.inference_mode()
    def collect(self) -> None:
        """One rollout into the buffer, then its advantages."""
        buffer = self.buffer
        buffer.observations[0] = buffer.observations[-1]
        self.first_state = self.state
        buffer.final_values[:] = 0.0
        for step in range(self.config.steps):
            self.starts[step] = self.start
            with _policy_forward:
                seen = torch.from_numpy(buffer.observations[step])
                uniforms = torch.from_numpy(self.rng.random(self.envs.num_envs, dtype=np.float32))
                acted = self.policy.act(seen, self.state, torch.from_numpy(self.start), uniforms)
                self.state = acted.state
            buffer.actions[step] = acted.actions.numpy()
            buffer.log_probabilities[step] = acted.log_probs.numpy()
            buffer.values[step] = acted.values.numpy()
            with _env_step:
                observations, rewards, terminated, truncated, infos = self.envs.step(buffer.actions[step])
            buffer.observations[step + 1] = observations
            buffer.rewards[step], buffer.valid[step] = rewards, ~self.over
            buffer.terminated[step], buffer.truncated[step] = terminated, truncated
            if truncated.any():
                self._value_of_cut_episodes(step, truncated, infos)
            self._count(rewards, terminated, truncated)
        with _policy_forward:
            seen = torch.from_numpy(buffer.observations[-1])[None]
            buffer.values[-1] = self.policy(seen, self.state, torch.from_numpy(self.start)[None])[1][
                0
            ].numpy()
        with _advantage:
            buffer.compute_advantages(self.config.discount, self.config.trace)

    def _value_of_cut_episodes(self, step: int, truncated: NDArray[np.bool_], infos: dict[str, Any]) -> None:
        """What the critic expects after a truncated episode's last observation."""
        rows = np.flatnonzero(truncated)
        last = infos["final_obs"] if self.same_step else self.buffer.observations[step + 1]
        with _policy_forward:
            seen = torch.from_numpy(np.stack([last[row] for row in rows]))[None]
            goes_on = torch.zeros(1, len(rows), dtype=torch.bool)
            values = self.policy(seen, self.state[torch.from_numpy(rows)], goes_on)[1][0]
        self.buffer.final_values[step, rows] = values.numpy()

    def _count(self, rewards: Any, terminated: Any, truncated: Any) -> None:
        stepped = ~self.over
        self.running[0] += rewards * stepped
        self.running[1] += stepped
        ended = terminated | truncated
        taken = int(stepped.sum())
        self.env_steps += taken
        # After a reset the next observation begins an episode: at once, or one step later.
        self.start = ended.copy() if self.same_step else self.over.copy()
        self.over = np.zeros_like(ended) if self.same_step else ended.copy()
        if not ended.any():
            progress(env_steps=taken)
            return
        returns, lengths = self.running[:, ended]
        self.recent.add(returns.tolist(), lengths.astype(int).tolist())
        self.running[:, ended] = 0.0
        mean_return, mean_length = float(returns.mean()), float(lengths.mean())
        progress(
            env_steps=taken, episodes=len(returns), episode_return=mean_return, episode_length=mean_length
        )

    # ---- learning

    def learn(self) -> None:
        """`epochs` passes over the rollout, each in `groups` of whole sequences."""
        config, buffer = self.config, self.buffer
        samples = buffer.advantages[buffer.valid]
        shift, scale = float(samples.mean()), float(samples.std()) + 1e-8
        for _ in range(config.epochs):
            for rows in np.array_split(self.rng.permutation(self.envs.num_envs), config.groups):
                with _transfer:
                    seen = torch.from_numpy(buffer.observations[:-1, rows])
                    starts = torch.from_numpy(self.starts[:, rows])
                    valid = torch.from_numpy(buffer.valid[:, rows])
                    of_samples = (buffer.actions, buffer.log_probabilities, buffer.advantages, buffer.returns)
                    actions, log_probs, advantages, returns = (
                        torch.from_numpy(array[:, rows])[valid] for array in of_samples
                    )
                with _learner_forward:
                    logits, values, _ = self.network(
                        seen, self.first_state[torch.from_numpy(rows)].clone(), starts
                    )
                with _loss:
                    losses = clipped_losses(
                        logits[valid],
                        values[valid],
                        actions,
                        log_probs,
                        (advantages - shift) / scale,
                        returns,
                        config.clip,
                    )
                    loss = (
                        losses.policy
                        + config.value_weight * losses.value
                        - config.entropy_weight * losses.entropy
                    )
                self._update(loss)

    def _update(self, loss: Tensor) -> None:
        with _backward:
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
        with _optimizer_step:
            norm = nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.max_grad_norm)
            figures = {"the loss": float(loss.detach()), "the gradient's norm": float(norm)}
            check_finite(figures, self.env_steps, self.config.checkpoint)
            self.optimizer.step()
        self.updates += 1
        progress(updates=1, loss=figures["the loss"])

    # ---- checkpoints

    def save(self) -> None:
        """Write everything that decides what happens next; nothing without a path."""
        if self.config.checkpoint is None:
            return
        with _checkpoint:
            arrays: dict[str, NDArray[Any]] = {
                f"weights.{name}": value.numpy() for name, value in self.policy.state_dict().items()
            }
            for index, moments in self.optimizer.state_dict()["state"].items():
                arrays |= {f"adam.{index}.{name}": value.numpy() for name, value in moments.items()}
            if hasattr(self.envs, "save_state"):
                arrays |= {f"env.{name}": value for name, value in self.envs.save_state().items()}
            arrays |= {
                "state": self.state.numpy(),
                "observations": self.buffer.observations[-1],
                "running": self.running,
                "start": self.start,
                "over": self.over,
            }
            state = {
                "rng": self.rng.bit_generator.state,
                "env_steps": self.env_steps,
                "updates": self.updates,
                "finished": self.recent.finished,
                "returns": list(self.recent.returns),
                "lengths": list(self.recent.lengths),
            }
            save_checkpoint(self.config.checkpoint, arrays, state, _plain(self.config))

    def _load(self) -> None:
        if self.config.checkpoint is None:
            raise HotloopError("resume needs a checkpoint; give its path.")
        saved = load_checkpoint(self.config.checkpoint)
        check_same_settings(self.config.checkpoint, saved.config, _plain(self.config), MAY_DIFFER)
        arrays = saved.arrays
        weights = {name: torch.from_numpy(arrays[f"weights.{name}"]) for name in self.policy.state_dict()}
        self.policy.load_state_dict(weights)
        packed = self.optimizer.state_dict()
        for index in packed["param_groups"][0]["params"]:
            names = [name for name in arrays if name.startswith(f"adam.{index}.")]
            moments = {name.split(".")[2]: torch.from_numpy(arrays[name]) for name in names}
            if moments:
                moments["step"] = moments["step"].reshape(())
                packed["state"][index] = moments
        self.optimizer.load_state_dict(packed)
        state = saved.state
        self.rng.bit_generator.state = state["rng"]
        self.env_steps, self.updates = state["env_steps"], state["updates"]
        self.recent.add(state["returns"], state["lengths"])
        self.recent.finished = state["finished"]
        if hasattr(self.envs, "load_state"):
            self.envs.reset(seed=self.config.seed)
            self.envs.load_state(
                {n.removeprefix("env."): a for n, a in arrays.items() if n.startswith("env.")}
            )
            self.state = torch.from_numpy(arrays["state"])
            self.buffer.observations[-1] = arrays["observations"]
            self.running, self.start, self.over = arrays["running"], arrays["start"], arrays["over"]
        else:  # an environment that cannot be saved begins new episodes
            self.buffer.observations[-1] = self.envs.reset(seed=self.config.seed + self.env_steps)[0]


@torch.inference_mode()
def evaluate(
    policy: RecurrentActorCritic, envs: VectorEnv[Any, Any, Any], episodes: int, seed: int
) -> NDArray[np.float64]:
    """Returns of `episodes` whole episodes, sampled from the policy; the environments stay the caller's."""
    rows, returns = envs.num_envs, []
    share = np.full(rows, episodes // rows)
    share[: episodes % rows] += 1
    rng, state = np.random.default_rng(seed), policy.initial_state(rows)
    same_step = envs.metadata.get("autoreset_mode") == AutoresetMode.SAME_STEP
    with _evaluate:
        observations, _ = envs.reset(seed=seed)
        running, start, over = np.zeros(rows), np.ones(rows, dtype=np.bool_), np.zeros(rows, dtype=np.bool_)
        while share.any():
            uniforms = torch.from_numpy(rng.random(rows, dtype=np.float32))
            acted = policy.act(torch.from_numpy(observations), state, torch.from_numpy(start), uniforms)
            state = acted.state
            observations, rewards, terminated, truncated, _ = envs.step(acted.actions.numpy())
            running += rewards * ~over
            ended = (terminated | truncated) & ~over
            for row in np.flatnonzero(ended & (share > 0)):
                share[row] -= 1
                returns.append(float(running[row]))
            running[ended] = 0.0
            start, over = (ended, np.zeros_like(ended)) if same_step else (over, ended)
    return np.array(returns)


def _check(config: RecurrentPPOConfig, envs: VectorEnv[Any, Any, Any]) -> None:
    if not hasattr(envs.single_action_space, "n"):
        raise HotloopError(
            f"actions {envs.single_action_space} are not discrete; this trainer takes Discrete."
        )
    if not 1 <= config.groups <= envs.num_envs:
        raise HotloopError(
            f"groups={config.groups} cannot split {envs.num_envs} environments; use 1 to {envs.num_envs}."
        )
    for name in ("total_steps", "steps", "epochs", "channels", "layers", "repeats", "features", "threads"):
        if getattr(config, name) < 1:
            raise HotloopError(f"{name}={getattr(config, name)} must be at least 1.")


def _plain(config: RecurrentPPOConfig) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(asdict(config), default=str))
    return plain
