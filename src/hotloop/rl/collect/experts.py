"""Expert demonstrations of the track, driven in worker processes, one episode per task.

A worker drives an episode, writes its file and reports it; nothing else passes between processes. A worker
that dies loses only the episode it was driving: a new worker drives it again, to the same numbers, because
episode i is seeded with seed + i in any worker.
"""

from __future__ import annotations

import errno
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from hotloop import profile
from hotloop._util.errors import HotloopError
from hotloop.machine.process_memory import ProcessMemory, process_memory
from hotloop.rl.buffers.demonstrations import DemonstrationStore, Episode, schema
from hotloop.rl.envs.track.env import TrackVectorEnv
from hotloop.rl.envs.track.expert import expert_actions

MAX_ATTEMPTS = 3  # at an episode whose worker dies

_step = profile("env_step")
_expert = profile("policy_forward")
_aggregate = profile("aggregate", "data")
_write = profile("disk_write")
_wait = profile("ipc_wait")
_shut_down = profile("shut_down", "other")


@dataclass(frozen=True, slots=True)
class DrivenEpisode:
    """An episode that a worker has driven and written."""

    episode: int
    steps: int
    total_reward: float
    lap_fraction: float
    """1 or more for a finished lap."""
    simulation_s: float
    """Seconds in environment and expert."""
    aggregation_s: float
    """Seconds for copying the steps into arrays."""
    disk_s: float
    memory: ProcessMemory | None


@dataclass(frozen=True, slots=True)
class FailedEpisode:
    """An episode that could not be written."""

    episode: int
    sentence: str
    disk_full: bool = False


@dataclass(frozen=True, slots=True)
class CollectionResult:
    """Result of a collection."""

    episodes: tuple[DrivenEpisode, ...]
    seconds: float
    """From the first worker being ready to the last episode written."""
    start_up_s: float
    """Before that: start-up of the first worker."""
    deaths: int
    """Workers that died; their episodes were driven again."""
    stopped: bool
    """Whether `stop` ended it early."""


class DiskFull(HotloopError):
    """The disk is full; the episodes written before are complete."""


class Driver:
    """Drives whole episodes of one car and writes them; workers use it, but it needs no worker process."""

    def __init__(self, store: DemonstrationStore, seed: int, settings: dict[str, Any]):
        self.store, self.seed = store, seed
        self.env = TrackVectorEnv(1, autoreset_mode="Disabled", copy=False, **settings)
        most = self.env.config.max_episode_steps
        width = self.env.observations.shape[1]
        self._observations = np.zeros((most + 1, width), dtype=np.float32)
        self._actions = np.zeros((most, 2), dtype=np.float32)
        self._rewards = np.zeros(most)

    def drive(self, number: int) -> DrivenEpisode:
        """Drive one episode and write it."""
        env, clock = self.env, time.perf_counter
        simulation = aggregation = 0.0
        seen, infos = env.reset(seed=[self.seed + number])
        self._observations[0] = seen[0]
        step, over = 0, False
        while not over:
            began = clock()
            with _expert:
                actions = expert_actions(seen, env.config)
            with _step:
                seen, rewards, terminated, truncated, infos = env.step(actions)
            middle = clock()
            with _aggregate:
                self._observations[step + 1] = seen[0]
                self._actions[step] = actions[0]
                self._rewards[step] = rewards[0]
            over = bool(terminated[0] or truncated[0])
            step += 1
            aggregation += clock() - middle
            simulation += middle - began
        began = clock()
        with _aggregate:
            ends = np.zeros((2, step), dtype=np.bool_)
            ends[:, -1] = terminated[0], truncated[0]
            episode = Episode(
                self._observations[: step + 1], self._actions[:step], self._rewards[:step], *ends
            )
        middle = clock()
        with _write:
            self.store.write(number, episode)
        return DrivenEpisode(
            number,
            step,
            float(self._rewards[:step].sum()),
            float(infos["lap_fraction"][0]),
            simulation,
            aggregation + middle - began,
            clock() - middle,
            process_memory(),
        )


def track_schema(seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """The schema of the expert's demonstrations on this track."""
    env = TrackVectorEnv(1, **settings)
    return schema("hotloop/Track-v0", settings, seed, env.single_observation_space, env.single_action_space)


def collect(
    store: DemonstrationStore,
    episodes: Sequence[int],
    *,
    workers: int,
    seed: int,
    settings: dict[str, Any],
    on_episode: Callable[[DrivenEpisode], None] = lambda one: None,
    stop: Callable[[], bool] = lambda: False,
) -> CollectionResult:
    """Drive and write the episodes with these numbers.

    `on_episode` is called with each; the collection ends early once `stop()` is true. Raises DiskFull when an
    episode cannot be written (the others are kept), HotloopError when an episode kills its worker repeatedly.
    """
    if workers < 1:
        raise HotloopError(f"workers={workers} must be at least 1.")
    pool = _Pool(store, list(episodes), min(workers, max(len(episodes), 1)), seed, settings)
    try:
        return pool.run(on_episode, stop)
    finally:
        pool.end()


class _Worker:
    """A worker process, its pipe, and the episode it drives."""

    def __init__(self, store: DemonstrationStore, seed: int, settings: dict[str, Any]):
        context = multiprocessing.get_context("spawn")
        self.pipe, far = context.Pipe()
        self.episode: int | None = None
        self.is_ready = False
        self.process = context.Process(
            target=_work, args=(far, str(store.folder), seed, settings), daemon=True, name="demonstrations"
        )
        resource_tracker.ensure_running()  # its start unblocks SIGINT
        # Inherited until `_work` ignores it: Ctrl-C would end a worker that still loads, with a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        far.close()

    def end(self) -> None:
        """Ask the process to end, and kill it if it does not, or if it is still loading."""
        try:
            self.pipe.send(None)
        except OSError:
            pass
        self.process.join(5.0 if self.is_ready else 0.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()
        self.process.close()


class _Pool:
    """The workers, the episodes still to drive, and the attempts at each."""

    def __init__(
        self,
        store: DemonstrationStore,
        episodes: list[int],
        workers: int,
        seed: int,
        settings: dict[str, Any],
    ):
        self._store, self._seed, self._settings = store, seed, settings
        self._all = len(episodes)
        self._waiting = deque(episodes)
        self._attempts: dict[int, int] = {}
        self._driven: list[DrivenEpisode] = []
        self._deaths = 0
        self._began = time.perf_counter()
        self._ready_at: float | None = None
        self._workers = [self._new_worker() for _ in range(workers)]

    def _new_worker(self) -> _Worker:
        return _Worker(self._store, self._seed, self._settings)

    def run(self, on_episode: Callable[[DrivenEpisode], None], stop: Callable[[], bool]) -> CollectionResult:
        """Run until every episode is written; after `stop()`, only finish the episodes under way."""
        stopped = False
        while len(self._driven) < self._all:
            stopped = stopped or stop()
            busy = [w for w in self._workers if w.episode is not None]
            if stopped and not busy:
                break
            with _wait:
                found = wait([w.pipe for w in self._workers], timeout=0.2)
            for worker in [w for w in self._workers if w.pipe in found]:
                self._handle(worker, on_episode, stopped)
        end = time.perf_counter()
        ready = self._ready_at if self._ready_at is not None else end
        return CollectionResult(tuple(self._driven), end - ready, ready - self._began, self._deaths, stopped)

    def _handle(self, worker: _Worker, on_episode: Callable[[DrivenEpisode], None], stopped: bool) -> None:
        """Handle a worker's message: ready, an episode, or a broken pipe, which means that it died."""
        try:
            message = worker.pipe.recv()
        except (EOFError, OSError):
            self._replace(worker)
            return
        if isinstance(message, FailedEpisode):
            raise self._error(message)
        worker.is_ready = True
        if self._ready_at is None:
            self._ready_at = time.perf_counter()
        if isinstance(message, DrivenEpisode):
            worker.episode = None
            self._driven.append(message)
            on_episode(message)
        if self._waiting and not stopped:
            worker.episode = self._waiting.popleft()
            try:
                worker.pipe.send(worker.episode)
            except OSError:
                self._replace(worker)

    def _replace(self, worker: _Worker) -> None:
        """Replace a worker that died and queue its episode again."""
        self._workers.remove(worker)
        worker.process.join(5.0)
        code = worker.process.exitcode
        lost = worker.episode
        worker.end()
        self._deaths += 1
        if lost is None:
            lost = -1  # died before it got an episode
        else:
            self._waiting.appendleft(lost)
        self._attempts[lost] = self._attempts.get(lost, 0) + 1
        if self._attempts[lost] >= MAX_ATTEMPTS:
            what = "Start-up" if lost < 0 else f"Episode {lost}"
            remedy = "Use fewer workers, and check the memory"
            if lost < 0 and code == 1:  # it ended with an exception
                remedy = (
                    "Its own message is above; a script that collects must start under "
                    "`if __name__ == '__main__':`, because each worker imports it"
                )
            raise HotloopError(
                f"{what} killed its worker {MAX_ATTEMPTS} times (last exit code {code}); "
                f"{len(self._store.numbers())} episodes are kept in {self._store.folder}. {remedy}."
            )
        self._workers.append(self._new_worker())

    def _error(self, message: FailedEpisode) -> HotloopError:
        kept = f"{len(self._store.numbers())} episodes are kept in {self._store.folder}"
        if message.disk_full:
            return DiskFull(
                f"The disk is full: episode {message.episode} was not written ({message.sentence}); {kept}. "
                "Free some space and continue with --resume."
            )
        return HotloopError(f"Episode {message.episode} failed ({message.sentence}); {kept}.")

    def end(self) -> None:
        """End every worker."""
        with _shut_down:
            for worker in self._workers:
                worker.end()
        self._workers.clear()


def _work(pipe: Connection, folder: str, seed: int, settings: dict[str, Any]) -> None:
    """Main function of a worker: reports that it is ready, then drives the episodes it is sent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    driver = Driver(DemonstrationStore(Path(folder)), seed, settings)
    driver.env.reset(seed=0)
    driver.env.step(np.zeros((1, 2), dtype=np.float32))  # compiles, or loads from the cache
    try:
        pipe.send("ready")
        while (number := pipe.recv()) is not None:
            try:
                message: DrivenEpisode | FailedEpisode = driver.drive(number)
            except OSError as error:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
                message = FailedEpisode(number, error.strerror or str(error), full)
            pipe.send(message)
    except (EOFError, BrokenPipeError):
        pass  # the parent is gone
