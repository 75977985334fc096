"""Deep Q-learning (Mnih et al., 2015) with double targets, for discrete actions, from top to bottom.

    from hotloop.rl.train.dqn import DQNConfig, train
    result = train(DQNConfig(env="CartPole", total_steps=50_000))

Each vector step: act (epsilon-greedy), step the envs, push to the replay, then the updates that are due.
Two learners do the last part with the same numbers up to rounding: `fused` (kernels, small dense networks)
and `torch` (any network; `compiled` is the same through torch.compile). On our own environments with the
fused learner the whole loop runs in one kernel; any other Gymnasium vector env is stepped from Python.

What makes such a run slow can be switched on here by name: `push`, `transfers`, `updates`, `log_every`,
`learner`, `loop`, `learn`, `num_envs`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from torch import nn

from hotloop import profile, progress
from hotloop._util.errors import HotloopError
from hotloop.rl.buffers.replay import Prioritized, ReplayBuffer
from hotloop.rl.envs.streams import make_streams, seed_streams
from hotloop.rl.train.dqn_config import MAY_DIFFER, DQNConfig, DQNResult, as_json, check
from hotloop.rl.train.dqn_learners import choose_learner
from hotloop.rl.train.dqn_torch import NAMES
from hotloop.rl.train.dqn_torch import dqn_loss as dqn_loss
from hotloop.rl.train.dqn_torch import td_targets as td_targets
from hotloop.rl.train.fused.dqn_loop import FusedLoop, has_loop
from hotloop.rl.train.make_envs import RolloutState, evaluate_policy, make_envs
from hotloop.rl.train.networks.q import QNetwork
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

_policy = profile("policy_forward")
_step = profile("env_step")
_push = profile("replay_push")
_log = profile("log")
_checkpoint = profile("checkpoint")
_fused_loop = profile("fused_loop", "model")

CHUNK_STEPS = 4096  # env steps that a kernel makes at once: some tenths of a second between two reports
IN_ONE_KERNEL = "all in one kernel"  # on the progress line: nobody can see what takes longest in there


class Learner(Protocol):
    """What the loop needs of a learner; see `dqn_torch.TorchLearner` for the meaning of each."""

    name: str
    network: nn.Module
    statistics: NDArray[np.float64]

    def act(self, observations: Any, epsilon: float, streams: Any, actions: Any) -> None:
        """Choose actions, exploring with chance epsilon."""

    def best(self, observations: Any, masks: Any) -> NDArray[np.int64]:
        """The best actions."""

    def learn(self, buffer: ReplayBuffer, batch: Any, count: int) -> None:
        """So many updates."""

    def follow(self) -> None:
        """Move the target."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Weights, target and moments."""

    def load(self, state: Any) -> None:
        """Take up weights, target and moments."""


def train(
    config: DQNConfig,
    *,
    envs: Any = None,
    evaluation_envs: Any = None,
    network: nn.Module | None = None,
    after_record: Callable[[int, dict[str, float]], None] | None = None,
    report: Callable[..., Any] = progress,
    note: Callable[[], str] | None = None,
) -> DQNResult:
    """Train a network of action values; see `DQNConfig`.

    `envs`: a Gymnasium vector env with discrete actions to train on, which stays the caller's (for our own
    envs, `copy=False` and same-step autoreset are fastest); by default it is made from `config.env`.
    `evaluation_envs`: the same for the evaluation; needed when `envs` are given and an evaluation is wanted.
    `network`: any module observations -> values [batch, actions]; by default a `QNetwork`.
    `after_record(env_steps, statistics)` is called whenever metrics are recorded. `report` is told of the
    work done since it was last called, in the words of `hotloop.progress`. `note` is asked for a few words to
    put on the progress line, such as what takes longest; a loop in one kernel has no parts to name.
    """
    check(config)
    if envs is not None and config.evaluation_episodes > 0 and evaluation_envs is None:
        raise HotloopError(
            f"evaluation_episodes={config.evaluation_episodes} of which environment? Give evaluation_envs, "
            "made as `envs` were, or leave the evaluation out."
        )
    with ExitStack() as leave:
        leave.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(config.threads)
        if envs is None:
            envs = make_envs(config.env, config.num_envs)
            leave.callback(envs.close)
        run = _Run(config, envs, network, report)
        metrics = TensorboardLog(config.metrics)
        leave.callback(metrics.close)
        stop = leave.enter_context(StopRequests())
        line = ProgressLine(config.total_steps, run.env_steps, quiet=config.quiet)
        leave.callback(line.close)

        statistics: dict[str, float] = {}
        first_step, saved_at = run.env_steps, run.env_steps
        stopped_by: str | None = None
        began = time.perf_counter()
        while run.env_steps < config.total_steps and stopped_by is None and not run.enough_episodes():
            run.advance()
            if run.record_due():
                with _log:
                    statistics = run.record()
                check_finite(statistics, run.env_steps, config.checkpoint)
                metrics.write(run.env_steps, run.metrics(statistics))
                if after_record is not None:
                    after_record(run.env_steps, statistics)
                words = IN_ONE_KERNEL if run.in_kernel else note() if note else run.learner.name
                line.update(run.env_steps, run.recent.mean_return, words)
                stopped_by = stop.by or run.solved()
                if config.checkpoint and run.env_steps - saved_at >= config.checkpoint_every:
                    run.save(config.checkpoint)
                    saved_at = run.env_steps
        seconds = time.perf_counter() - began
        statistics = run.record() or statistics
        check_finite(statistics, run.env_steps, config.checkpoint)
        if config.checkpoint is not None:
            run.save(config.checkpoint)
        evaluated = None
        if config.evaluation_episodes > 0 and stopped_by in (None, "stop_at_return"):
            if evaluation_envs is None:
                evaluation_envs = make_envs(config.env, min(config.num_envs, config.evaluation_episodes))
                leave.callback(evaluation_envs.close)
            returns, _ = evaluate_policy(
                run.learner.best, evaluation_envs, config.evaluation_episodes, config.seed + 1_000_000
            )
            evaluated = float(returns.mean())
        return run.result(evaluated, seconds, run.env_steps - first_step, stopped_by, statistics)


def fits_one_kernel(config: DQNConfig, learner: str, envs: Any) -> bool:
    """Whether all that a run does can be done in one kernel; it is then, unless loop is "python"."""
    return (
        learner == "fused"
        and has_loop(envs)
        and config.push == "batch"
        and config.log_every == 0
        and config.learn
        and not config.prioritised
    )


class _Run:
    """The state of a run: what a checkpoint holds, and what belongs to it."""

    def __init__(
        self, config: DQNConfig, envs: Any, network: nn.Module | None, report: Callable[..., Any] = progress
    ):
        space, action_space = envs.single_observation_space, envs.single_action_space
        if not isinstance(space, Box) or not isinstance(action_space, Discrete):
            raise HotloopError(
                f"DQN takes one array of observations and discrete actions, not {space} and {action_space}; "
                "wrap the environment."
            )
        self.config, self.envs, self._report = config, envs, report
        torch.manual_seed(config.seed)
        self._first_action, count = int(action_space.start), int(action_space.n)
        if network is None:
            width = int(np.prod(space.shape))
            network = QNetwork(width, count, config.hidden, config.activation, dueling=config.dueling)
        self.streams = make_streams(1)
        seed_streams(self.streams, [config.seed])
        mode = envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._same_step = mode == AutoresetMode.SAME_STEP
        rows = int(envs.num_envs)
        self._rate = config.updates_per_step
        self._target_every = max(config.target_every // rows, 1)
        self.chunk = max(1, min(1024, CHUNK_STEPS // rows))
        self.position = RolloutState(envs, config.seed, self.chunk * rows)
        self.buffer = ReplayBuffer(
            config.capacity,
            rows,
            space,
            Discrete(count),
            frame_stack=config.frame_stack,
            n_steps=config.n_step,
            gamma=config.discount,
            prioritized=Prioritized(config.priority_alpha) if config.prioritised else None,
            autoreset="same_step" if self._same_step else "next_step",
            seed=config.seed + 1,
        )
        self.batch = self.buffer.make_batch(
            config.batch_size, shared=None if config.frame_stack > 1 else False
        )
        self.recent = RecentEpisodes()
        self.steps = self.env_steps = self.updates = self._recorded_steps = self._recorded_env_steps = 0
        self._record_every_s, self._record_at_s = 0.02, 0.0
        self._actions = np.zeros(rows, dtype=np.int64)
        self._finals: NDArray[Any] | None = None
        saved = load_checkpoint(config.checkpoint) if config.resume and config.checkpoint else None
        known = str(saved.state["learner"]) if saved else None
        wanted = float(self._rate) * config.total_steps / rows
        self.learner: Learner = choose_learner(config, network, space, wanted, known)
        self.buffer.start(self.position.observations)
        if saved is not None:
            self._load(saved)
        self._loop = self._kernel_loop()

    @property
    def in_kernel(self) -> bool:
        """Whether the whole loop runs in one kernel."""
        return self._loop is not None

    def _kernel_loop(self) -> FusedLoop | None:
        config = self.config
        possible = fits_one_kernel(config, self.learner.name, self.envs)
        if config.loop == "kernel" and not possible:
            raise HotloopError(
                "loop='kernel' needs the fused learner, one of our envs with same-step autoreset, uniform "
                "sampling and the switches push, log_every and learn as they are; use loop='auto'."
            )
        if not possible or config.loop == "python":
            return None
        return FusedLoop(
            self.learner, self.envs, self.buffer, self.batch, self.position.episodes, self.streams
        )

    # ---- one piece of the loop

    def advance(self) -> None:
        """One vector step, or a chunk of them in the kernel."""
        if self._loop is None:
            self._step()
            return
        left = -(-(self.config.total_steps - self.env_steps) // int(self.envs.num_envs))
        count = min(self.chunk, left)
        if self.config.stop_at_episodes is not None:  # at most one for each row can end in a vector step
            wanted = self.config.stop_at_episodes - self.recent.finished
            count = max(1, min(count, wanted // int(self.envs.num_envs)))
        clock = (self.config.learning_starts, self._rate, self._target_every)
        with _fused_loop:
            self.steps, self.env_steps = self._loop.run(self.steps, self.env_steps, count, *clock)

    def _step(self) -> None:
        """One vector step of any environment, from Python."""
        config, position, actions = self.config, self.position, self._actions
        with _policy:
            self.learner.act(position.observations, self.epsilon(), self.streams, actions)
        with _step:
            given = actions + self._first_action if self._first_action else actions
            observations, rewards, terminated, truncated, infos = self.envs.step(given)
        with _push:
            finals = self._final_observations(infos, terminated | truncated) if self._same_step else None
            push = self.buffer.push if config.push == "batch" else self.buffer.push_each
            push(actions, rewards, terminated, truncated, observations, finals)
        self._note_episodes(rewards, terminated | truncated)
        position.observations = observations
        self.steps += 1
        if config.learn and self.env_steps >= config.learning_starts:
            due = self.steps * self._rate // 1 - (self.steps - 1) * self._rate // 1
            if due and len(self.buffer):
                self.learner.learn(self.buffer, self.batch, int(due))
        if self.steps % self._target_every == 0:
            self.learner.follow()

    def _note_episodes(self, rewards: NDArray[Any], ended: NDArray[np.bool_]) -> None:
        """Returns and lengths; a row that was only a reset is no step."""
        position = self.position
        returns, lengths = position.episodes.running_returns, position.episodes.running_lengths
        if self._same_step:
            returns += rewards
            lengths += 1
            self.env_steps += len(rewards)
        else:
            counted = ~position.only_reset
            returns += rewards * counted
            lengths += counted
            self.env_steps += int(counted.sum())
            ended = ended & counted
            position.only_reset[:] = ended
        if ended.any():
            position.episodes.finish(ended)

    def _final_observations(self, infos: dict[str, Any], ended: NDArray[np.bool_]) -> NDArray[Any] | None:
        """The last observations of episodes that ended now as one array; other rows hold anything."""
        if not ended.any():
            return None
        given = infos["final_obs"]
        if given.dtype != object:
            return given  # type: ignore[no-any-return]
        if self._finals is None:
            self._finals = np.zeros_like(self.position.observations)
        for row in np.flatnonzero(ended):
            self._finals[row] = given[row]
        return self._finals

    def epsilon(self) -> float:
        """Chance of a random action now."""
        config = self.config
        done = min(self.env_steps / max(config.epsilon_fraction * config.total_steps, 1.0), 1.0)
        return config.epsilon_start + done * (config.epsilon_end - config.epsilon_start)

    # ---- counting

    def record_due(self) -> bool:
        """Whether it is time to record: every so many vector steps, or once in a while."""
        if self.config.log_every:
            return self.steps % self.config.log_every == 0
        full = (
            int(self.position.episodes.count[0]) + int(self.envs.num_envs)
            > self.position.episodes.returns.size
        )
        now = time.perf_counter()
        due = full or self._loop is not None or now >= self._record_at_s
        if due:
            self._record_at_s = now + self._record_every_s
        return due

    def record(self) -> dict[str, float]:
        """Add what happened since the last record to counters and capture; gives means over its updates."""
        episodes, sums = self.position.episodes, self.learner.statistics
        ended, updates = int(episodes.count[0]), int(sums[-1])
        returns, lengths = episodes.returns[:ended].tolist(), episodes.lengths[:ended].tolist()
        self.recent.add(returns, lengths)
        means = {name: float(sums[place] / updates) for place, name in enumerate(NAMES)} if updates else {}
        self.updates += updates
        self._report(
            env_steps=self.env_steps - self._recorded_env_steps,
            updates=updates,
            episodes=ended,
            episode_return=sum(returns) / ended if ended else None,
            episode_length=sum(lengths) / ended if ended else None,
            loss=means.get("loss"),
        )
        self._recorded_env_steps = self.env_steps
        episodes.count[0] = 0
        sums[:] = 0.0
        return means

    def metrics(self, statistics: dict[str, float]) -> dict[str, float | None]:
        """Everything there is to log."""
        recent = self.recent
        return {
            **statistics,
            "epsilon": self.epsilon(),
            "replay": float(len(self.buffer)),
            "updates": float(self.updates),
            "episodes": float(recent.finished),
            "mean_return": recent.mean_return,
            "mean_length": float(np.mean(recent.lengths)) if recent.lengths else None,
        }

    def solved(self) -> str | None:
        """Whether the wanted return is reached."""
        wanted, mean = self.config.stop_at_return, self.recent.mean_return
        enough = wanted is not None and len(self.recent.returns) == self.recent.returns.maxlen
        return "stop_at_return" if enough and mean is not None and mean >= float(wanted or 0) else None

    def enough_episodes(self) -> bool:
        """Whether as many episodes have ended as were wanted."""
        wanted = self.config.stop_at_episodes
        return wanted is not None and self.recent.finished + int(self.position.episodes.count[0]) >= wanted

    # ---- keeping

    def save(self, path: Path) -> None:
        """Write a checkpoint, unless the weights are not finite."""
        with _checkpoint:
            arrays = {f"learner.{name}": array for name, array in self.learner.state().items()}
            finite = {name: float(np.abs(array).max()) for name, array in arrays.items() if array.size}
            check_finite(finite, self.env_steps, path)
            arrays |= {f"rollout.{name}": array for name, array in self.position.arrays().items()}
            arrays |= {f"replay.{name}": array for name, array in self.buffer.save_state().items()}
            state = {
                "learner": self.learner.name,
                "streams": [str(word) for word in self.streams[0]],
                "steps": self.steps,
                "env_steps": self.env_steps,
                "updates": self.updates,
                "episodes": self.recent.finished,
                "returns": list(self.recent.returns),
                "lengths": list(self.recent.lengths),
            }
            save_checkpoint(path, arrays, state, as_json(self.config))

    def _load(self, saved: Any) -> None:
        path = self.config.checkpoint or Path()
        falling = self.config.epsilon_start != self.config.epsilon_end
        may_differ = MAY_DIFFER - {"total_steps"} if falling else MAY_DIFFER
        check_same_settings(path, saved.config, as_json(self.config), may_differ)

        def part(prefix: str) -> dict[str, NDArray[Any]]:
            return {n.removeprefix(prefix): a for n, a in saved.arrays.items() if n.startswith(prefix)}

        state = saved.state
        self.learner.load(part("learner."))
        self.buffer.load_state(part("replay."))
        before = self.position.observations
        self.position.load(part("rollout."), self.config.seed + state["env_steps"])
        if self.position.observations is not before:  # new episodes, since these envs cannot be saved
            self.buffer.start(self.position.observations)
        self.streams[0] = [int(word) for word in state["streams"]]
        self.steps, self.env_steps, self.updates = state["steps"], state["env_steps"], state["updates"]
        self._recorded_env_steps = self.env_steps
        self.recent.add(state["returns"], state["lengths"])
        self.recent.finished = state["episodes"]

    def result(
        self,
        evaluated: float | None,
        seconds: float,
        steps_here: int,
        stopped_by: str | None,
        statistics: dict[str, float],
    ) -> DQNResult:
        """What the run did."""
        lengths = self.recent.lengths
        return DQNResult(
            self.learner.network,
            self.learner.name,
            self._loop is not None,
            self.env_steps,
            self.updates,
            self.recent.finished,
            seconds,
            steps_here,
            self.recent.mean_return,
            float(np.mean(lengths)) if lengths else None,
            evaluated,
            stopped_by,
            statistics,
        )
