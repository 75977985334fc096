"""Two training loops that really run, with switches that turn on one defect each.

`off_policy` learns from a replay buffer, `on_policy` from rollouts. They are instrumented by hand, since rules about
regions speak of regions that somebody named; the scripts next to this file are for what `hotloop run` sees.
"""

from __future__ import annotations

import io
import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from hotloop import Profiler
from hotloop.capture.model import Capture

SECONDS = 1.2
LEAST_ITERATIONS = 400
STATE = 32
HORIZON = 20  # steps of an episode, of all envs together

# What is wrong in the loop -> the rule that must say so
DEFECTS = {
    "store_each": "replay_item_by_item",
    "features_each": "per_item_calls",
    "gather_each": "batch_item_by_item",
    "act_each": "policy_one_by_one",
    "many_updates": "too_many_updates",
    "one_env": "too_few_envs",
    "log_each": "logging_too_often",
    "evaluate_often": "evaluation_too_often",
    "save_often": "checkpoint_too_often",
    "draw": "rendering_in_python",
    "resize": "resizing",
    "slow_reset": "costly_resets",
    "lock": "lock_wait",
}


class Parts:
    """What both loops do, each part in a region of its own."""

    def __init__(self, profiler: Profiler, defect: str, n_envs: int):
        self.profiler, self.defect = profiler, defect
        self.region = cache(profiler.profile)  # a region is made once
        self.n_envs = 1 if defect == "one_env" else n_envs
        self.random = np.random.default_rng(1)
        self.weights = self.random.standard_normal((STATE, STATE)) / STATE**0.5
        self.dynamics = self.random.standard_normal((STATE, STATE)) / STATE**0.5
        self.state = self.random.standard_normal((self.n_envs, STATE))
        self.log = io.StringIO()
        self.background = self.random.random((96, 96))

    def network(self, rows: Any) -> Any:
        for _ in range(120 if self.n_envs == len(rows) == 1 else 8):
            rows = np.tanh(rows @ self.weights)
        return rows

    def act(self) -> Any:
        if self.defect != "act_each":
            with self.region("policy_forward"):
                return self.network(self.state)
        actions = np.empty_like(self.state)
        for env in range(self.n_envs):
            with self.region("policy_forward"):
                actions[env] = self.network(self.state[env : env + 1])[0]
        return actions

    def step(self, actions: Any, number: int) -> None:
        with self.region("env_step"):
            for _ in range(6):
                self.state = np.tanh(self.state @ self.dynamics + actions)
            for _ in range(self.n_envs if self.defect == "draw" else 0):
                with self.region("env_render"):
                    self.draw()
            for _ in range(self.n_envs if self.defect == "resize" else 0):
                with self.region("resize_frame", "rendering"):
                    self.background.reshape(48, 2, 48, 2).mean(axis=(1, 3))
        if number % HORIZON == HORIZON - 1:
            with self.region("env_reset"):
                self.state = self.random.standard_normal((self.n_envs, STATE))
                if self.defect == "slow_reset":
                    for _ in range(40):
                        np.linalg.inv(self.random.standard_normal((48, 48)))
        if self.defect == "features_each":
            for env in range(self.n_envs):
                with self.region("features", "other"):
                    self.network(self.state[env])
        self.profiler.progress(env_steps=self.n_envs, episodes=int(number % HORIZON == HORIZON - 1))

    def draw(self) -> Any:
        picture = self.background.copy()
        for row in range(0, 96, 4):
            for column in range(0, 96, 12):
                picture[row : row + 2, column : column + 2] = 1.0
        return picture

    def learn(self, rows: Any) -> None:
        """One update on a batch of these rows, which `gather_each` copies one by one."""
        for _ in range(24 if self.defect == "many_updates" else 1):
            with self.region("update"):
                batch = np.array([self.copied(row) for row in rows]) if self.defect == "gather_each" else rows
                with self.region("learner_forward"):
                    out = self.network(batch)
                with self.region("backward"):
                    gradient = sum(batch.T @ (out * (1 - out**2)) for _ in range(4))
                with self.region("optimizer_step"):
                    self.weights -= 1e-6 * gradient / len(batch)
            self.profiler.progress(updates=1)

    def copied(self, row: Any) -> list[float]:
        with self.region("batch_item", "data"):
            return [float(value) for value in row]

    def beside(self, number: int) -> None:
        """Logging, evaluation and checkpoints: rarely, or too often."""
        if self.defect == "log_each" or number % 200 == 199:
            with self.region("log"):
                json.dump({"number": number, "weights": self.weights[:8].tolist()}, self.log)
                self.log.seek(0)
        if number % (5 if self.defect == "evaluate_often" else 1000) == 4:
            with self.region("evaluate"):
                for _ in range(20):
                    self.network(self.state)
        if number % (4 if self.defect == "save_often" else 1000) == 3:
            with self.region("checkpoint"):
                pickle.dumps([self.weights.tolist() for _ in range(4)])


def off_policy(profiler: Profiler, defect: str) -> Iterator[None]:
    """Each iteration: act, step 16 envs, store, draw a batch, update."""
    parts = Parts(profiler, defect, 16)
    store = np.zeros((4096, STATE))
    number = 0
    while True:
        parts.step(parts.act(), number)
        place = number * parts.n_envs % (4096 - parts.n_envs)
        if defect == "store_each":
            for env in range(parts.n_envs):
                with parts.region("replay_push"):
                    store[place + env] = json.loads(json.dumps(parts.state[env].tolist()))
        else:
            with parts.region("replay_push"):
                store[place : place + parts.n_envs] = parts.state
        with parts.region("replay_sample"):
            chosen = parts.random.integers(0, 4096, 64)
            batch = store[chosen]
        parts.learn(batch)
        parts.beside(number)
        number += 1
        yield


def on_policy(profiler: Profiler, defect: str) -> Iterator[None]:
    """Each iteration: act and step 8 envs; after 8 of them advantages and two updates on the rollout."""
    parts = Parts(profiler, defect, 8)
    number = 0
    while True:
        rollout = []
        for _ in range(8):
            parts.step(parts.act(), number)
            if defect == "store_each":
                for env in range(parts.n_envs):
                    with parts.region("store_transition", "other"):
                        rollout.append(np.array(json.loads(json.dumps(parts.state[env].tolist()))))
            else:
                with parts.region("store_transition", "other"):
                    rollout.extend(parts.state.copy())
            parts.beside(number)
            number += 1
            yield
        if defect != "many_updates":  # with advantages, many updates are what PPO does
            with parts.region("advantage"):
                np.cumsum(np.stack(rollout), axis=0)
        for _ in range(2):
            with parts.region("minibatch", "data"):
                batch = np.stack(rollout)
            parts.learn(batch)


def recorded(loop: Callable[[Profiler, str], Iterator[None]], defect: str) -> Capture:
    """The capture of a loop that ran for a second or so."""
    profiler = Profiler().start(memory=False)
    lock, stop, waits = threading.Lock(), threading.Event(), profiler.profile("lock_wait")

    def hold() -> None:
        while not stop.is_set():
            with waits:
                lock.acquire()
            time.sleep(0.002)
            lock.release()

    other = threading.Thread(target=hold)
    try:
        if defect == "lock":
            other.start()
        # No system call for the clock: a busy machine would take the core away there, outside all regions.
        end = time.perf_counter() + SECONDS
        for number, _ in enumerate(loop(profiler, defect)):
            if defect == "lock":
                with waits:
                    lock.acquire()
                lock.release()
            if number >= LEAST_ITERATIONS and time.perf_counter() > end:
                break
        return profiler.capture()
    finally:
        stop.set()
        profiler.stop()
