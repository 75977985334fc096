"""Soft actor-critic (Haarnoja et al., 2018) with two critics and its own temperature, from top to bottom.

    from hotloop.rl.train.sac import SACConfig, train
    result = train(SACConfig(env="Track", total_steps=50_000))

Each vector step: act (tanh of a normal draw), step the envs, push to the replay, then the updates that are
due. `updates` counts them for each env step, so the work is the same for any number of envs. Two learners do
them with the same numbers up to rounding: `fused` (kernels, small dense networks) and `torch`.

A run can begin with an actor that was learnt elsewhere, such as a clone. What keeps it from being forgotten:
the distance from it is part of the actor's loss (`anchor_weight`), its noise and the temperature are small
from the start (`first_log_std`, `first_temperature`), the critics learn first while the actor only drives
(`actor_starts`), and with `keep_best` the actor that did best is the result, the first one included.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from hotloop import profile, progress
from hotloop._util.errors import HotloopError
from hotloop.rl.buffers.replay import ReplayBuffer
from hotloop.rl.train.fused.sac_learner import FusedLearner
from hotloop.rl.train.make_envs import RolloutState, evaluate_policy, make_envs
from hotloop.rl.train.networks.squashed import SquashedActor, TwinCritics
from hotloop.rl.train.runs import (
    ProgressLine,
    RecentEpisodes,
    StopRequests,
    Stopwatch,
    TensorboardLog,
    check_finite,
    check_same_settings,
    load_checkpoint,
    save_checkpoint,
)
from hotloop.rl.train.sac_config import MAY_DIFFER, SACResult, as_json, check
from hotloop.rl.train.sac_config import SACConfig as SACConfig
from hotloop.rl.train.sac_torch import NAMES, TorchLearner

_policy = profile("policy_forward")
_step = profile("env_step")
_push = profile("replay_push")
_log = profile("log")
_evaluate = profile("evaluate")
_checkpoint = profile("checkpoint")
_compile = profile("compile_kernels", "other")

RECORD_EVERY_S = 0.05
Best = Callable[[NDArray[Any]], NDArray[np.float32]]  # observations [rows, ...] -> actions in -1 .. 1


def train(
    config: SACConfig,
    *,
    envs: Any = None,
    actor: SquashedActor | None = None,
    judge: Callable[[Best], float] | None = None,
    watch: Stopwatch | None = None,
    after_record: Callable[[int, dict[str, float]], None] | None = None,
    report: Callable[..., Any] = progress,
) -> SACResult:
    """Train an actor; see `SACConfig`.

    `envs`: a Gymnasium vector env with one array of observations and bounded continuous actions to train on,
    which stays the caller's; by default it is made from `config.env`. `actor`: where to begin; it is
    changed in place. `judge(best)` gives the mean return of an evaluation; by default the episodes are
    played in envs made from `config.env`. `watch` is told the seconds of stepping, replay, learning and
    evaluation.
    """
    check(config)
    if envs is not None and config.evaluate_every and judge is None:
        raise HotloopError(
            f"evaluate_every={config.evaluate_every} in which environment? Give judge, or leave it 0."
        )
    watch = watch or Stopwatch()
    with ExitStack() as leave:
        leave.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(config.threads)
        if envs is None:
            envs = make_envs(config.env, config.num_envs)
            leave.callback(envs.close)
        run = _Run(config, envs, actor, judge, watch, report)
        metrics = TensorboardLog(config.metrics)
        leave.callback(metrics.close)
        stop = leave.enter_context(StopRequests())
        line = ProgressLine(config.total_steps, run.env_steps, quiet=config.quiet)
        leave.callback(line.close)

        logging = watch.part("logging", _log)
        statistics: dict[str, float] = {}
        first_step = saved_at = run.env_steps
        began = time.perf_counter()
        if first_step == 0:
            run.evaluate()
        while run.env_steps < config.total_steps and stop.by is None:
            run.step()
            if run.evaluation_due():
                run.evaluate()
            if run.record_due():
                with logging:
                    statistics = run.record() or statistics
                    check_finite(statistics, run.env_steps, config.checkpoint)
                    metrics.write(run.env_steps, {**statistics, "return": run.recent.mean_return})
                    if after_record is not None:
                        after_record(run.env_steps, statistics)
                    line.update(run.env_steps, run.recent.mean_return)
                if config.checkpoint and run.env_steps - saved_at >= config.checkpoint_every:
                    run.save(config.checkpoint)
                    saved_at = run.env_steps
        statistics = run.record() or statistics
        check_finite(statistics, run.env_steps, config.checkpoint)
        if config.checkpoint is not None:
            run.save(config.checkpoint)
        if stop.by is None and config.evaluate_every and run.evaluated_at != run.env_steps:
            run.evaluate()
        seconds = time.perf_counter() - began
        return run.result(seconds, run.env_steps - first_step, stop.by, statistics)


class _Run:
    """The state of a run: what a checkpoint holds, and what belongs to it."""

    def __init__(
        self,
        config: SACConfig,
        envs: Any,
        actor: SquashedActor | None,
        judge: Callable[[Best], float] | None,
        watch: Stopwatch,
        report: Callable[..., Any],
    ):
        space, action_space = envs.single_observation_space, envs.single_action_space
        bounded = isinstance(action_space, Box) and bool(action_space.is_bounded())
        if not isinstance(space, Box) or not bounded or len(action_space.shape) != 1:
            raise HotloopError(
                f"SAC takes one array of observations and a bounded vector of continuous actions, not "
                f"{space} and {action_space}; wrap the environment."
            )
        self.config, self.envs, self._report = config, envs, report
        self._judge = judge or self._play
        self._low, self._high = action_space.low, action_space.high
        self._plain = bool((self._low == -1.0).all() and (self._high == 1.0).all())
        rows, count, width = int(envs.num_envs), action_space.shape[0], math.prod(space.shape)
        actor, critics = make_networks(config, width, count, actor)
        self.learner: TorchLearner | FusedLearner
        if config.learner == "torch":
            self.learner = TorchLearner(actor, critics, config, watch)
        else:
            self.learner = FusedLearner(actor, critics, config, watch)
        mode = envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._same_step = mode == AutoresetMode.SAME_STEP
        self.buffer = ReplayBuffer(
            config.capacity,
            rows,
            Box(-np.inf, np.inf, (width,), np.float32),
            Box(-1.0, 1.0, (count,), np.float32),
            gamma=config.discount,
            autoreset="same_step" if self._same_step else "next_step",
            seed=config.seed + 1,
        )
        self.batch = self.buffer.make_batch(config.batch_size)
        self.position = RolloutState(envs, config.seed, 1024 * rows)
        self.rng = np.random.default_rng(config.seed)
        self._actions = np.zeros((rows, count), dtype=np.float32)
        self._finals = np.zeros((rows, width), dtype=np.float32)
        self.recent = RecentEpisodes()
        self.env_steps = self.updates = self.actor_updates = self._recorded = 0
        self._rate, self._owed = config.updates_per_env_step, Fraction(0)
        self._record_at = 0.0
        self.evaluations: list[tuple[int, float]] = []
        self.best: tuple[float, int, dict[str, NDArray[Any]]] | None = None
        self.evaluated_at = -1
        with _compile:
            self.learner.warm_up(self.buffer, self.batch)
            self._warm_up()
        self._acting, self._stepping = watch.part("stepping", _policy), watch.part("stepping", _step)
        self._pushing = watch.part("replay", _push)
        self._evaluating = watch.part("evaluation", _evaluate)
        self._keeping = watch.part("logging", _checkpoint)
        self.buffer.start(self._rows(self.position.observations))
        if config.resume and config.checkpoint:
            self._load(load_checkpoint(config.checkpoint))

    def _warm_up(self) -> None:
        """Call the replay's kernels once, on a buffer that is thrown away."""
        layout, rows = self.buffer.layout, self.buffer.n_envs
        space = Box(-np.inf, np.inf, layout.observation_shape, np.float32)
        small = ReplayBuffer(2 * rows, rows, space, Box(-1.0, 1.0, layout.action_shape, np.float32))
        seen = np.zeros((rows, *layout.observation_shape), dtype=np.float32)
        no = np.zeros(rows, dtype=np.bool_)
        small.start(seen)
        small.push(self._actions, np.zeros(rows), no, no, seen)
        small.sample(small.make_batch(1))

    # ---- one step

    def step(self) -> None:
        """One vector step, and the updates that are due after it."""
        config, actions = self.config, self._actions
        with self._acting:
            if self.env_steps < config.random_steps:
                actions[:] = self.rng.uniform(-1.0, 1.0, actions.shape)
            else:
                self.learner.act(self._rows(self.position.observations), self._noise(*actions.shape), actions)
        with self._stepping:
            observations, rewards, terminated, truncated, infos = self.envs.step(self._scaled(actions))
        with self._pushing:
            ended = terminated | truncated
            finals = self._final_rows(infos, ended) if self._same_step and ended.any() else None
            self.buffer.push(actions, rewards, terminated, truncated, self._rows(observations), finals)
            taken = self._note_episodes(rewards, ended)
            self.position.observations = observations
        if self.env_steps <= config.learning_starts:
            return
        self._owed += taken * self._rate
        whole = int(self._owed)
        self._owed -= whole
        if whole:
            noise = self._noise(whole, 2, config.batch_size, actions.shape[1])
            learn_actor = self.env_steps > config.actor_starts
            self.learner.learn(self.buffer, self.batch, noise, learn_actor)

    def _noise(self, *shape: int) -> NDArray[np.float32]:
        drawn: NDArray[np.float32] = self.rng.standard_normal(shape, dtype=np.float32)
        return drawn

    def _note_episodes(self, rewards: NDArray[Any], ended: NDArray[np.bool_]) -> int:
        """Add to returns and lengths; returns the steps taken: a row that was only a reset is none."""
        position = self.position
        returns, lengths = position.episodes.running_returns, position.episodes.running_lengths
        counted = ~position.only_reset
        returns += rewards * counted
        lengths += counted
        if not self._same_step:
            ended = ended & counted
            position.only_reset[:] = ended
        if ended.any():
            position.episodes.finish(ended)
        taken = int(counted.sum())
        self.env_steps += taken
        return taken

    def _rows(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Observations as contiguous float32 [rows, width]; no copy when they are."""
        return np.ascontiguousarray(observations.reshape(len(observations), -1), dtype=np.float32)

    def _scaled(self, actions: NDArray[np.float32]) -> NDArray[Any]:
        """Actions in -1 .. 1 as the envs take them."""
        if self._plain:
            return actions
        scaled: NDArray[Any] = self._low + 0.5 * (actions + 1.0) * (self._high - self._low)
        return scaled

    def _final_rows(self, infos: dict[str, Any], ended: NDArray[np.bool_]) -> NDArray[np.float32]:
        """The last observations of episodes that ended now; other rows hold anything."""
        given = infos["final_obs"]
        if given.dtype != object:
            return self._rows(given)
        for row in np.flatnonzero(ended):
            self._finals[row] = np.ravel(given[row])
        return self._finals

    # ---- judging

    def evaluation_due(self) -> bool:
        """Whether it is time for an evaluation."""
        every = self.config.evaluate_every
        return every > 0 and self.env_steps // every > max(self.evaluated_at, 0) // every

    def evaluate(self) -> None:
        """Let the actor play without noise, and remember it if it is the best so far."""
        if not self.config.evaluate_every:
            return
        with self._evaluating:
            found = self._judge(self.learner.best)
        self.evaluated_at = self.env_steps
        self.evaluations.append((self.env_steps, found))
        if self.best is None or found > self.best[0]:
            weights = {n: w.detach().numpy().copy() for n, w in self.learner.actor.named_parameters()}
            self.best = found, self.env_steps, weights

    def _play(self, best: Best) -> float:
        config = self.config
        envs = make_envs(config.env, min(config.num_envs, config.evaluation_episodes))
        try:
            returns, _ = evaluate_policy(
                lambda seen, _: self._scaled(best(seen)),
                envs,
                config.evaluation_episodes,
                config.seed + 1_000_000,
            )
        finally:
            envs.close()
        return float(returns.mean())

    # ---- counting

    def record_due(self) -> bool:
        """Whether it is time to record: once in a while, or because much has ended."""
        episodes, now = self.position.episodes, time.perf_counter()
        full = int(episodes.count[0]) + int(self.envs.num_envs) > episodes.returns.size
        if not full and now < self._record_at:
            return False
        self._record_at = now + RECORD_EVERY_S
        return True

    def record(self) -> dict[str, float]:
        """Add what happened since the last record to counters and capture; gives means over its updates."""
        episodes, sums = self.position.episodes, self.learner.statistics
        ended, (updates, actor_updates) = int(episodes.count[0]), (int(n) for n in sums[-2:])
        returns, lengths = episodes.returns[:ended].tolist(), episodes.lengths[:ended].tolist()
        self.recent.add(returns, lengths)
        found: dict[str, float] = {}
        for place, name in enumerate(NAMES):
            count = updates if place < 2 else actor_updates
            if count:
                found[name] = float(sums[place] / count)
        if updates:
            found["temperature"] = self.learner.temperature.value
        self.updates += updates
        self.actor_updates += actor_updates
        self._report(
            env_steps=self.env_steps - self._recorded,
            updates=updates,
            episodes=ended,
            episode_return=sum(returns) / ended if ended else None,
            episode_length=sum(lengths) / ended if ended else None,
            loss=found.get("critic_loss"),
        )
        self._recorded = self.env_steps
        episodes.count[0] = 0
        sums[:] = 0.0
        return found

    # ---- keeping

    def save(self, path: Path) -> None:
        """Write a checkpoint, unless the weights are not finite."""
        with self._keeping:
            self.record()
            arrays = {f"learner.{name}": array for name, array in self.learner.state().items()}
            finite = {name: float(np.abs(array).max()) for name, array in arrays.items() if array.size}
            check_finite(finite, self.env_steps, path)
            arrays |= {f"rollout.{name}": array for name, array in self.position.arrays().items()}
            arrays |= {f"replay.{name}": array for name, array in self.buffer.save_state().items()}
            state = {
                "rng": self.rng.bit_generator.state,
                "owed": str(self._owed),
                "env_steps": self.env_steps,
                "updates": self.updates,
                "actor_updates": self.actor_updates,
                "episodes": self.recent.finished,
                "returns": list(self.recent.returns),
                "lengths": list(self.recent.lengths),
                "evaluations": self.evaluations,
                "evaluated_at": self.evaluated_at,
            }
            if self.best is not None:
                state["best"] = self.best[:2]
                arrays |= {f"best.{name}": array for name, array in self.best[2].items()}
            save_checkpoint(path, arrays, state, as_json(self.config))

    def _load(self, saved: Any) -> None:
        check_same_settings(self.config.checkpoint or Path(), saved.config, as_json(self.config), MAY_DIFFER)

        def part(prefix: str) -> dict[str, NDArray[Any]]:
            return {n.removeprefix(prefix): a for n, a in saved.arrays.items() if n.startswith(prefix)}

        state = saved.state
        self.learner.load(part("learner."))
        self.buffer.load_state(part("replay."))
        before = self.position.observations
        self.position.load(part("rollout."), self.config.seed + state["env_steps"])
        if self.position.observations is not before:  # new episodes, since these envs cannot be saved
            self.buffer.start(self._rows(self.position.observations))
        self.rng.bit_generator.state = state["rng"]
        self._owed = Fraction(state["owed"])
        self.env_steps = self._recorded = state["env_steps"]
        self.updates, self.actor_updates = state["updates"], state["actor_updates"]
        self.recent.add(state["returns"], state["lengths"])
        self.recent.finished = state["episodes"]
        self.evaluations = [(int(steps), float(found)) for steps, found in state["evaluations"]]
        self.evaluated_at = state["evaluated_at"]
        if "best" in state:
            self.best = float(state["best"][0]), int(state["best"][1]), part("best.")

    def result(
        self, seconds: float, steps_here: int, stopped_by: str | None, statistics: dict[str, float]
    ) -> SACResult:
        """What the run did; the best actor's weights are put into the actor, if they are to be kept."""
        actor, kept_from = self.learner.actor, None
        if self.config.keep_best and self.best is not None and self.best[1] != self.env_steps:
            kept_from = self.best[1]
            with torch.no_grad():
                for name, weight in actor.named_parameters():
                    weight.copy_(torch.from_numpy(self.best[2][name]))
        return SACResult(
            actor,
            self.learner.name,
            self.env_steps,
            self.updates,
            self.actor_updates,
            self.recent.finished,
            seconds,
            steps_here,
            self.recent.mean_return,
            tuple(self.evaluations),
            kept_from,
            stopped_by,
            statistics,
        )


def make_networks(
    config: SACConfig, observation: int, actions: int, actor: SquashedActor | None = None
) -> tuple[SquashedActor, TwinCritics]:
    """The networks a run begins with; an actor that is given must have the sizes of the config."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        made = SquashedActor(
            observation, actions, config.hidden, config.activation, first_log_std=config.first_log_std
        )
        critics = TwinCritics(observation, actions, config.hidden, config.activation)
    if actor is None:
        return made, critics
    if actor.sizes != made.sizes or actor.activation != made.activation:
        raise HotloopError(
            f"the actor given has layers {actor.sizes} and {actor.activation}, this run's would have "
            f"{made.sizes} and {made.activation}; give hidden and activation as that actor has them."
        )
    return actor, critics
