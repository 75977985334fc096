"""Expert demonstrations of the track, one episode for each task, driven in worker processes.

A worker drives an episode, writes its file and says so; nothing else goes between processes. The worker
that dies loses only the episode it was driving: another takes its place and the episode is driven again,
to the same numbers, since episode i is seeded with seed + i whoever drives it.
"""

from __future__ import annotations

import errno
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

MOST_TRIES = 3  # of an episode whose worker dies

_step = profile("env_step")
_expert = profile("policy_forward")
_aggregate = profile("aggregate", "data")
_write = profile("disk_write")
_wait = profile("ipc_wait")


@dataclass(frozen=True, slots=True)
class Driven:
    """An episode that a worker has driven and kept."""

    episode: int
    steps: int
    total_reward: float
    lap_fraction: float
    """1 and more is a finished lap."""
    simulation_s: float
    """Environment and expert."""
    aggregation_s: float
    """Putting the steps into arrays."""
    disk_s: float
    memory: ProcessMemory | None


@dataclass(frozen=True, slots=True)
class Failed:
    """What kept a worker from its episode."""

    episode: int
    sentence: str
    disk_full: bool = False


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection did."""

    driven: tuple[Driven, ...]
    seconds: float
    """From the moment the first worker was ready to the last episode kept."""
    start_up_s: float
    """Before that: starting the first worker."""
    deaths: int
    """Workers that died; their episodes were driven again."""
    stopped: bool
    """Whether `stop` ended it early."""


class DiskFull(HotloopError):
    """No room for an episode; those written before are whole."""


class Driver:
    """Drives whole episodes of one car and keeps them; what a worker does, usable without one."""

    def __init__(self, store: DemonstrationStore, seed: int, settings: dict[str, Any]):
        self.store, self.seed = store, seed
        self.env = TrackVectorEnv(1, autoreset_mode="Disabled", copy=False, **settings)
        most = self.env.config.max_episode_steps
        width = self.env.observations.shape[1]
        self._observations = np.zeros((most + 1, width), dtype=np.float32)
        self._actions = np.zeros((most, 2), dtype=np.float32)
        self._rewards = np.zeros(most)

    def drive(self, number: int) -> Driven:
        """One episode, from its own seed to its end, onto the disk."""
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
        return Driven(
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
    done: Callable[[Driven], None] = lambda one: None,
    stop: Callable[[], bool] = lambda: False,
) -> Collected:
    """Drive and keep the episodes with these numbers; `done` is told of each, `stop` asked between them.

    Raises DiskFull when an episode cannot be written (the others are kept), HotloopError when an episode
    kills its worker again and again.
    """
    if workers < 1:
        raise HotloopError(f"workers={workers} must be at least 1.")
    pool = _Pool(store, list(episodes), min(workers, max(len(episodes), 1)), seed, settings)
    try:
        return pool.run(done, stop)
    finally:
        pool.end()


class _Worker:
    """A worker process, its pipe, and the episode it is driving."""

    def __init__(self, store: DemonstrationStore, seed: int, settings: dict[str, Any]):
        context = multiprocessing.get_context("spawn")
        self.pipe, far = context.Pipe()
        self.episode: int | None = None
        self.process = context.Process(
            target=_work, args=(far, str(store.folder), seed, settings), daemon=True, name="demonstrations"
        )
        self.process.start()
        far.close()

    def end(self) -> None:
        """Let it end by itself, or end it."""
        try:
            self.pipe.send(None)
        except OSError:
            pass
        self.process.join(5.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()
        self.process.close()


class _Pool:
    """Workers, the episodes that wait, and how often each was tried."""

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
        self._tries: dict[int, int] = {}
        self._driven: list[Driven] = []
        self._deaths = 0
        self._began = time.perf_counter()
        self._ready_at: float | None = None
        self._workers = [self._make() for _ in range(workers)]

    def _make(self) -> _Worker:
        return _Worker(self._store, self._seed, self._settings)

    def run(self, done: Callable[[Driven], None], stop: Callable[[], bool]) -> Collected:
        """Until every episode is kept, or `stop` says so and those being driven are kept."""
        stopped = False
        while len(self._driven) < self._all:
            stopped = stopped or stop()
            busy = [w for w in self._workers if w.episode is not None]
            if stopped and not busy:
                break
            with _wait:
                found = wait([w.pipe for w in self._workers], timeout=0.2)
            for worker in [w for w in self._workers if w.pipe in found]:
                self._hear(worker, done, stopped)
        end = time.perf_counter()
        ready = self._ready_at if self._ready_at is not None else end
        return Collected(tuple(self._driven), end - ready, ready - self._began, self._deaths, stopped)

    def _hear(self, worker: _Worker, done: Callable[[Driven], None], stopped: bool) -> None:
        """Take what a worker says: ready, an episode, or, by a broken pipe, that it died."""
        try:
            word = worker.pipe.recv()
        except (EOFError, OSError):
            self._replace(worker)
            return
        if isinstance(word, Failed):
            raise self._error(word)
        if self._ready_at is None:
            self._ready_at = time.perf_counter()
        if isinstance(word, Driven):
            worker.episode = None
            self._driven.append(word)
            done(word)
        if self._waiting and not stopped:
            worker.episode = self._waiting.popleft()
            try:
                worker.pipe.send(worker.episode)
            except OSError:
                self._replace(worker)

    def _replace(self, worker: _Worker) -> None:
        """A worker died: its episode waits again, another worker takes its place."""
        self._workers.remove(worker)
        worker.process.join(5.0)
        code = worker.process.exitcode
        lost = worker.episode
        worker.end()
        self._deaths += 1
        if lost is None:
            lost = -1  # died before it was given one: counted as a try of starting
        else:
            self._waiting.appendleft(lost)
        self._tries[lost] = self._tries.get(lost, 0) + 1
        if self._tries[lost] >= MOST_TRIES:
            what = "starting" if lost < 0 else f"episode {lost}"
            raise HotloopError(
                f"{what} ended its worker {MOST_TRIES} times (last exit code {code}); "
                f"{len(self._store.numbers())} episodes are kept in {self._store.folder}. Try fewer workers, "
                "and look at the memory."
            )
        self._workers.append(self._make())

    def _error(self, word: Failed) -> HotloopError:
        kept = f"{len(self._store.numbers())} episodes are kept in {self._store.folder}"
        if word.disk_full:
            return DiskFull(
                f"no room on the disk for episode {word.episode} ({word.sentence}); {kept}. "
                "Make room and go on with --resume."
            )
        return HotloopError(f"episode {word.episode} failed ({word.sentence}); {kept}.")

    def end(self) -> None:
        """End every worker."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()


def _work(pipe: Connection, folder: str, seed: int, settings: dict[str, Any]) -> None:
    """The body of a worker: says that it is ready, then drives what it is told until told to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    driver = Driver(DemonstrationStore(Path(folder)), seed, settings)
    driver.env.reset(seed=0)
    driver.env.step(np.zeros((1, 2), dtype=np.float32))  # compiled, or read from the cache
    try:
        pipe.send("ready")
        while (number := pipe.recv()) is not None:
            try:
                word: Driven | Failed = driver.drive(number)
            except OSError as error:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
                word = Failed(number, error.strerror or str(error), full)
            pipe.send(word)
    except (EOFError, BrokenPipeError):
        pass  # the parent has gone; so do we
