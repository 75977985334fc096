"""Deep Q-learning whose experience comes from collectors in processes of their own, from top to bottom.

    from hotloop.rl.train.async_dqn import AsyncDQNConfig, train
    result = train(AsyncDQNConfig(epochs=20), make_env)

The loop takes what the collectors have made, copies it into the replay, and makes the batches that are due:
`learn_per_step` transitions are learnt from for each one collected, no more and no fewer, whichever side is
faster. A learner that is ahead waits for experience; collectors that are ahead wait for room in their
rings. Nothing is dropped unless `drop` says so, and then it is counted.

Every `weights_every` epochs the collectors get the newest weights; the chance of a random action follows the
env steps all the time. Each epoch but the first of a run is one call of the region `training_epoch`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hotloop import profile, progress
from hotloop.rl.collect.protocol import Rows, Task
from hotloop.rl.train.async_dqn_config import MAY_DIFFER, AsyncDQNConfig, AsyncDQNResult, as_json, check
from hotloop.rl.train.async_learner import FrameLearner
from hotloop.rl.train.async_making import (
    compile_kernels,
    make_actor,
    make_collector,
    make_network,
    make_replay,
    try_env,
)
from hotloop.rl.train.async_monitor import Epoch, Moment, Monitor, collectors_busy
from hotloop.rl.train.networks.frames import flat_size, flatten_into
from hotloop.rl.train.runs import (
    RecentEpisodes,
    StopRequests,
    TensorboardLog,
    check_finite,
    check_same_settings,
    load_checkpoint,
    save_checkpoint,
)

_push = profile("replay_push")
_publish = profile("weights_sync")
_log = profile("log")
_checkpoint = profile("checkpoint")
_epoch = profile("training_epoch", "other")
_dropped = profile("rows_dropped", "ipc")
_start_up = profile("start_up", "other")

WAIT_S = 0.5  # the longest sleep before the loop looks whether it was asked to stop


def train(
    config: AsyncDQNConfig,
    make_env: Callable[[int], Any],
    *,
    distance: str | None = None,
    report: Callable[..., Any] = progress,
    note: Callable[[], str] | None = None,
) -> AsyncDQNResult:
    """Train a network of action values on stacks of frames; see `AsyncDQNConfig`.

    `make_env(seed)` gives a Gymnasium env or vector env with observations uint8 [stack, height, width] and
    discrete actions; a single env is made `config.envs` times in each collector. `distance` names the info
    that says how far an episode came. `report` is told of updates and losses in the words of
    `hotloop.progress` (collectors tell of steps and episodes); `note` gives words for the monitoring line.
    """
    check(config)
    with ExitStack() as leave:
        leave.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(config.threads)
        monitor = Monitor(quiet=config.quiet, note=note)
        leave.callback(monitor.close)
        stop = leave.enter_context(StopRequests())
        metrics = TensorboardLog(config.metrics)
        leave.callback(metrics.close)
        with _start_up:
            run = _Run(config, make_env, distance, report, monitor)
            leave.callback(run.collector.close)
            run.start()
        stopped_by: str | None = None
        while run.epochs < config.epochs and stopped_by is None:
            measured: AbstractContextManager[Any] = _epoch if run.epoch_s else nullcontext()
            with measured:
                stopped_by = run.epoch(stop)
            if stopped_by is None:
                metrics.write(run.env_steps, run.end_epoch())
        seconds = time.perf_counter() - run.began_s
        state = run.collector.state()
        run.collector.close()
        if config.checkpoint is not None:
            run.save(config.checkpoint)
        return run.result(seconds, state, stopped_by)


class _Run:
    """The state of a run."""

    def __init__(
        self,
        config: AsyncDQNConfig,
        make_env: Callable[[int], Any],
        distance: str | None,
        report: Callable[..., Any],
        monitor: Monitor,
    ):
        self.config, self._report, self._monitor = config, report, monitor
        self._distance = f"info_{distance}" if distance is not None else None
        actor = partial(
            make_actor,
            channels=tuple(config.channels),
            hidden=config.hidden,
            norm=config.norm,
            fast=config.layout == "fast",
        )
        spaces = try_env(Task(make_env, actor, n_envs=config.envs, seed=config.seed))
        torch.manual_seed(config.seed)
        self.network = make_network(spaces, config.channels, config.hidden, config.norm)
        self.learner = FrameLearner(self.network, config)
        self._vector = np.zeros(flat_size(self.network), dtype=np.float32)
        task = Task(
            make_env,
            actor,
            n_weights=self._vector.size,
            control=config.epsilon_start,
            n_envs=config.envs,
            frame_stack=int(spaces.observation.shape[0]),
            infos=() if distance is None else (distance,),
            seed=config.seed,
        )
        self.collector = make_collector(task, config, monitor.line)
        self.buffer = make_replay(config, spaces, config.capacity)
        self._batch = self.learner.make_batch(self.buffer)
        compile_kernels(config, spaces, self.collector.dtype)
        self.recent, self._distances = RecentEpisodes(), RecentEpisodes()
        self.epochs = self.env_steps = self._takes = self._told_drops = 0
        self.began_s = self._epoch_began_s = time.perf_counter()
        self.epoch_s: list[float] = []
        self._learning_s = self._behind = 0.0
        self._first_step, self._first_batch = 0, 0
        if config.resume and config.checkpoint is not None:
            self._load(config.checkpoint)
        self._due_from = self.env_steps + config.learning_starts
        self._due_batches = self.learner.batches
        self._begin_counts()

    def start(self) -> None:
        """Start the collectors and wait for their first rows, so that start-up is no part of the loop."""
        self.collector.start()
        self._hand_over_weights()
        while not self._take(WAIT_S):
            pass
        self.began_s = self._epoch_began_s = time.perf_counter()
        self._learning_s = 0.0
        self._first_step, self._first_batch = self.env_steps, self.learner.batches

    def _begin_counts(self) -> None:
        """A new epoch: nothing has happened in it."""
        self._epoch_returns: list[float] = []
        self._epoch_distances: list[float] = []

    # ---- the loop

    def epoch(self, stop: StopRequests) -> str | None:
        """Collect and learn until the epoch is over; the name of the signal that came before that."""
        self.learner.set_rate(self.learning_rate())
        while not self._epoch_over():
            if stop.by is not None:
                return stop.by
            self._learn()
            self._take(WAIT_S)
            if self._monitor.due:
                with _log:
                    self._monitor.show(self.moment())
        self._learn()
        return None

    def _epoch_over(self) -> bool:
        if self.config.epoch_steps:  # counted from the run's first step, so that no epoch gains by another
            return self.env_steps - self._first_step >= self.config.epoch_steps * (len(self.epoch_s) + 1)
        return len(self._epoch_returns) >= self.config.episodes_per_epoch

    def _take(self, timeout_s: float) -> int:
        """Copy what has come into the replay, at most `experience_batch_size` rows; returns how many."""
        config, most = self.config, self.config.experience_batch_size
        if config.transport == "serial":
            # Rows are played while we wait, one step of every environment: more would only be played with
            # older weights. No clock ends it, so that the same seed gives the same agent on any machine.
            most, timeout_s = min(most, config.total_envs), math.inf
        blocks = self.collector.take(most, timeout_s, self._least())
        taken = 0
        with _push as region:
            for rows in blocks:
                self.buffer.push_rows(rows)
                self._count(rows)
                taken += len(rows)
            self.collector.release()
            region.add(bytes=taken * self.collector.dtype.itemsize)
        if taken:
            self._takes += 1
            self.collector.publish(control=self.epsilon())
        return taken

    def _least(self) -> int:
        """Rows worth waking up for: what is missing for the next batch, but no more than there is room."""
        config = self.config
        if not config.learn_per_step:
            return 1
        wanted = (
            self._due_from + (self._learnt() + config.batch_size) / config.learn_per_step - self.env_steps
        )
        room = config.ring if config.transport != "serial" else config.experience_batch_size
        return int(max(1, min(wanted, config.experience_batch_size, room // 2)))

    def _count(self, rows: Rows) -> None:
        """Steps, episodes and how old the weights behind them are."""
        steps = int(np.count_nonzero(~rows["first"]))
        self.env_steps += steps
        ended = rows["episode_length"] > 0
        if ended.any():
            returns = rows["episode_return"][ended].tolist()
            self.recent.add(returns, rows["episode_length"][ended].tolist())
            self._epoch_returns += returns
            if self._distance is not None:
                far = rows[self._distance][ended]
                far = far[np.isfinite(far)].tolist()
                self._distances.add(far, [0] * len(far))
                self._epoch_distances += far

    def _learnt(self) -> int:
        """Transitions learnt from since learning was due."""
        return (self.learner.batches - self._due_batches) * self.config.batch_size

    def _learn(self) -> None:
        """Make the batches that are due."""
        config, learner = self.config, self.learner
        began = time.perf_counter()
        before = learner.batches, learner.updates
        while len(self.buffer) and (
            self._learnt() + config.batch_size <= (self.env_steps - self._due_from) * config.learn_per_step
        ):
            learner.learn(self.buffer, self._batch)
        if learner.batches > before[0]:
            self._learning_s += time.perf_counter() - began
            self._report(updates=learner.updates - before[1])

    def epsilon(self) -> float:
        """Chance of a random action now."""
        config = self.config
        done = min(self.env_steps / config.epsilon_steps, 1.0)
        return config.epsilon_start + done * (config.epsilon_end - config.epsilon_start)

    def learning_rate(self) -> float:
        """Adam's step size in this epoch."""
        config = self.config
        if config.learning_rate_end is None or config.epochs == 1:
            return config.learning_rate
        done = min(self.epochs / (config.epochs - 1), 1.0)
        return config.learning_rate + done * (config.learning_rate_end - config.learning_rate)

    def _hand_over_weights(self) -> None:
        with _publish:
            self.collector.publish(flatten_into(self.network, self._vector), control=self.epsilon())

    # ---- the end of an epoch

    def end_epoch(self) -> dict[str, float | None]:
        """Say how it went, hand weights over and save when it is time to; gives the metrics."""
        config = self.config
        with _log:
            self.epochs += 1
            now_s = time.perf_counter()
            self.epoch_s.append(now_s - self._epoch_began_s)
            self._epoch_began_s = now_s
            means = self.learner.statistics()
            check_finite(means, self.env_steps, config.checkpoint)
            if means:
                self._report(loss=means["loss"])
            now = self.moment()
            self._note_drops(now)
            returns, far = self._epoch_returns, self._epoch_distances
            done = Epoch(
                self.epochs,
                self.epoch_s[-1],
                means.get("loss"),
                means.get("td_error"),
                sum(returns) / len(returns) if returns else None,
                sum(far) / len(far) if far else None,
                self.epsilon(),
                len(self.buffer),
            )
            self._monitor.epoch(done, now)
        if self.epochs % config.weights_every == 0:
            self._hand_over_weights()
        if config.checkpoint is not None and self.epochs % config.checkpoint_every == 0:
            self.save(config.checkpoint)
        self._begin_counts()
        return {
            **means,
            "reward": done.mean_return,
            "distance": done.distance,
            "epsilon": done.epsilon,
            "replay": float(done.buffer),
            "epoch_s": done.seconds,
            "learner_busy_fraction": now.busy,
            "lock_wait_s": now.collectors.lock_wait_s,
            "drops": float(now.collectors.dropped),
            "versions_behind": now.collectors.versions_behind,
        }

    def moment(self) -> Moment:
        """How the pipeline is doing."""
        return Moment(
            self.env_steps,
            self._takes,
            len(self.buffer),
            time.perf_counter() - self.began_s,
            self.env_steps - self._first_step,
            self.learner.batches - self._first_batch,
            self._learning_s,
            self.collector.state(),
        )

    def _note_drops(self, now: Moment) -> None:
        """Put rows that were thrown away into the recording: a call, and the bytes that are gone."""
        more = now.collectors.dropped - self._told_drops
        if more:
            with _dropped as region:
                region.add(bytes=more * self.collector.dtype.itemsize)
            self._told_drops = now.collectors.dropped

    # ---- keeping

    def save(self, path: Path) -> None:
        """Write a checkpoint, unless the weights are not finite. The replay is not in it."""
        with _checkpoint:
            arrays = {f"learner.{name}": array for name, array in self.learner.state().items()}
            finite = {name: float(np.abs(array).max()) for name, array in arrays.items() if array.size}
            check_finite(finite, self.env_steps, path)
            state = {
                "epochs": self.epochs,
                "env_steps": self.env_steps,
                "episodes": self.recent.finished,
                "returns": list(self.recent.returns),
                "lengths": list(self.recent.lengths),
                "distances": list(self._distances.returns),
            }
            save_checkpoint(path, arrays, state, as_json(self.config))

    def _load(self, path: Path) -> None:
        saved = load_checkpoint(path)
        check_same_settings(path, saved.config, as_json(self.config), MAY_DIFFER)
        prefix = "learner."
        self.learner.load({name.removeprefix(prefix): array for name, array in saved.arrays.items()})
        state = saved.state
        self.epochs, self.env_steps = state["epochs"], state["env_steps"]
        self.recent.add(state["returns"], state["lengths"])
        self.recent.finished = state["episodes"]
        self._distances.add(state["distances"], [0] * len(state["distances"]))

    def result(self, seconds: float, state: Any, stopped_by: str | None) -> AsyncDQNResult:
        """What the run did."""
        lengths = self.recent.lengths
        return AsyncDQNResult(
            network=self.network,
            epochs=self.epochs,
            env_steps=self.env_steps,
            batches=self.learner.batches,
            updates=self.learner.updates,
            episodes=self.recent.finished,
            mean_return=self.recent.mean_return,
            mean_length=float(np.mean(lengths)) if lengths else None,
            mean_distance=self._distances.mean_return,
            seconds=seconds,
            steps_here=self.env_steps - self._first_step,
            batches_here=self.learner.batches - self._first_batch,
            epoch_s=tuple(self.epoch_s),
            learner_busy_fraction=self._learning_s / seconds if seconds > 0 else 0.0,
            lock_wait_s=state.lock_wait_s,
            drops=state.dropped,
            staleness=state.versions_behind,
            collector_busy_fraction=collectors_busy(state),
            restarts=state.restarts,
            stopped_by=stopped_by,
            precision=self.learner.precision,
        )
