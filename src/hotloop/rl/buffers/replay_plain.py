"""The plain twins of the replay buffer: whole transitions in lists, nothing shared, nothing fast.

Tests compare `ReplayBuffer` with them sample by sample: same pushes and same seed, same batches to the last
bit. `push_one` is also what `ReplayBuffer.push_each` runs for each environment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.buffers import replay_kernels as kernels
from hotloop.rl.buffers.replay_layout import Layout
from hotloop.rl.buffers.sum_tree import make_tree, plain_find, plain_set


@dataclass(slots=True)
class Transition:
    """One step of one environment, with both observations in full."""

    observation: NDArray[Any]
    action: Any
    reward: float
    next_observation: NDArray[Any]
    terminated: bool
    truncated: bool


def n_step_transition(steps: Sequence[Transition | None], layout: Layout) -> dict[str, Any]:
    """The first of `steps` with the rewards of up to `n_steps` of them summed."""
    total, discount = 0.0, 1.0
    begin = last = steps[0]
    assert begin is not None and last is not None
    for step in steps[: layout.n_steps]:
        assert step is not None
        last = step
        total += discount * last.reward
        discount *= layout.gamma
        if last.terminated or last.truncated:
            break
    return {
        "observations": begin.observation.reshape(layout.observation_shape),
        "actions": begin.action,
        "rewards": np.float32(total),
        "next_observations": last.next_observation.reshape(layout.observation_shape),
        "discounts": np.float32(0.0 if last.terminated else discount),
        "terminated": last.terminated,
        "truncated": last.truncated,
    }


class PlainReplay:
    """Twin of `ReplayBuffer`, with the same `start`, `push` and `sample`."""

    def __init__(self, buffer_size: int, layout: Layout, *, alpha: float | None = None, seed: int = 0):
        self.layout = layout
        # one list per vector step, with one transition per environment, or None where it was only a reset
        self.steps: deque[list[Transition | None]] = deque(maxlen=buffer_size // layout.n_envs)
        self.stacks: list[deque[NDArray[Any]]] = []
        self.rng = np.random.default_rng(seed)
        self.alpha = alpha
        self.ring_length = buffer_size // layout.n_envs + layout.frame_stack
        self.time = 0
        self.tree = make_tree(self.ring_length * layout.n_envs if alpha is not None else 1)
        self.largest_priority = 1.0

    def __len__(self) -> int:
        return sum(transition is not None for step in self.steps for transition in step)

    def start(self, frames: NDArray[Any]) -> None:
        """Begin new episodes; running ones are truncated."""
        if self.steps:
            for transition in self.steps[-1]:
                if transition is not None and not transition.terminated:
                    transition.truncated = True
        self.stacks = [self._new_stack(frame) for frame in frames]
        self.ended = [False] * self.layout.n_envs

    def push(
        self,
        actions: Any,
        rewards: Any,
        terminated: Any,
        truncated: Any,
        frames: Any,
        final_frames: Any = None,
    ) -> None:
        """Store one vector step; observations are single frames."""
        step: list[Transition | None] = []
        for env in range(self.layout.n_envs):
            if self.ended[env]:
                step.append(None)
                self.stacks[env], self.ended[env] = self._new_stack(frames[env]), False
                continue
            observation = np.stack(self.stacks[env])
            ended = bool(terminated[env] or truncated[env])
            same_step = self.layout.autoreset == "same_step"
            self.stacks[env].append((final_frames if ended and same_step else frames)[env].copy())
            step.append(
                Transition(
                    observation,
                    actions[env],
                    float(np.float32(rewards[env])),
                    np.stack(self.stacks[env]),
                    bool(terminated[env]),
                    bool(truncated[env]),
                )
            )
            if ended and same_step:
                self.stacks[env] = self._new_stack(frames[env])
            elif ended:
                self.ended[env] = True
        self.steps.append(step)
        self.time += 1
        if self.alpha is not None:
            self._set_priorities(step)

    def draw(self, count: int) -> list[int]:
        """Places in the ring of `count` transitions, drawn uniformly or by priority."""
        if self.alpha is not None:
            leaves = plain_find(self.tree, self.rng, count)
            return [
                leaf % self.layout.n_envs * self.ring_length + leaf // self.layout.n_envs for leaf in leaves
            ]
        rows, kept = [], len(self.steps)
        places = [int(self.rng.random() * (kept * self.layout.n_envs)) for _ in range(count)]
        for place in places:
            while self.steps[place % kept][place // kept] is None:
                place = int(self.rng.random() * (kept * self.layout.n_envs))
            slot = (self.time - kept + place % kept) % self.ring_length
            rows.append(place // kept * self.ring_length + slot)
        return rows

    def leaf(self, row: int) -> int:
        """The leaf of a place in the ring: ordered by slot, then environment."""
        return row % self.ring_length * self.layout.n_envs + row // self.ring_length

    def sample(self, count: int, beta: float = 0.4) -> dict[str, NDArray[Any]]:
        """A batch as a dict, with the names of `ReplayBatch`."""
        rows = self.draw(count)
        found = [self.read(row) for row in rows]
        batch = {name: np.array([one[name] for one in found]) for name in found[0]}
        weights = np.ones(count)
        if self.alpha is not None:
            leaves = np.array([self.tree[self.tree.size // 2 + self.leaf(row)] for row in rows])
            weights = (len(self) * leaves / self.tree[1]) ** -beta
        return batch | {"rows": np.array(rows), "weights": (weights / weights.max()).astype(np.float32)}

    def read(self, row: int) -> dict[str, Any]:
        """The n-step transition that begins at a place in the ring."""
        env, slot = divmod(row, self.ring_length)
        age = (self.time - 1 - slot) % self.ring_length
        first = len(self.steps) - 1 - age
        return n_step_transition([step[env] for step in list(self.steps)[first:]], self.layout)

    def update_priorities(self, rows: Any, errors: Any, epsilon: float = 1e-6) -> None:
        assert self.alpha is not None
        values = (np.abs(np.asarray(errors, dtype=np.float64)) + epsilon) ** self.alpha
        self.largest_priority = max(self.largest_priority, float(values.max()))
        plain_set(self.tree, np.array([self.leaf(row) for row in rows]), values)

    def _set_priorities(self, step: list[Transition | None]) -> None:
        envs = self.layout.n_envs
        values = np.array([0.0 if one is None else self.largest_priority for one in step])
        newest = (self.time - 1) % self.ring_length
        plain_set(self.tree, newest * envs + np.arange(envs), values)
        gone = (self.time - 1 - (self.steps.maxlen or 0)) % self.ring_length
        plain_set(self.tree, gone * envs + np.arange(envs), np.zeros(envs))

    def _new_stack(self, frame: NDArray[Any]) -> deque[NDArray[Any]]:
        earlier = frame if self.layout.stack_padding == "first" else np.zeros_like(frame)
        stack = [earlier.copy() for _ in range(self.layout.frame_stack - 1)]
        return deque([*stack, frame.copy()], maxlen=self.layout.frame_stack)


class PlainRows:
    """Twin of a `ReplayBuffer` that takes rows; None in a list is a frame without a transition."""

    def __init__(self, buffer_size: int, layout: Layout, seed: int = 0):
        self.layout = layout
        slots = buffer_size // layout.n_envs
        self.streams: list[deque[Transition | None]] = [deque(maxlen=slots) for _ in range(layout.n_envs)]
        self.stacks: list[deque[NDArray[Any]] | None] = [None] * layout.n_envs
        self.rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return sum(one is not None for stream in self.streams for one in stream)

    def push_rows(self, rows: NDArray[Any]) -> None:
        for row in rows:
            number = int(row["stream"])
            stream, stack = self.streams[number], self.stacks[number]
            frame = row["frame"].copy()
            if row["first"]:
                if stack is not None:
                    if stream and stream[-1] is not None and not stream[-1].terminated:
                        stream[-1].truncated = True
                    stream.append(None)
                earlier = frame if self.layout.stack_padding == "first" else np.zeros_like(frame)
                padding = [earlier] * (self.layout.frame_stack - 1)
                self.stacks[number] = deque([*padding, frame], maxlen=self.layout.frame_stack)
                continue
            assert stack is not None
            observation = np.stack(stack)
            stack.append(frame)
            stream.append(
                Transition(
                    observation,
                    row["action"].copy(),
                    float(row["reward"]),
                    np.stack(stack),
                    bool(row["terminated"]),
                    bool(row["truncated"]),
                )
            )

    def sample(self, count: int) -> dict[str, NDArray[Any]]:
        """A batch as a dict, with the names of `ReplayBatch`."""
        places = [(number, at) for number, stream in enumerate(self.streams) for at in range(len(stream))]
        drawn = [int(self.rng.random() * len(places)) for _ in range(count)]
        for turn, place in enumerate(drawn):
            while self.streams[places[place][0]][places[place][1]] is None:
                place = int(self.rng.random() * len(places))
            drawn[turn] = place
        found = [self.read(*places[place]) for place in drawn]
        return {name: np.array([one[name] for one in found]) for name in found[0]}

    def read(self, number: int, at: int) -> dict[str, Any]:
        """The n-step transition that begins at place `at` of a stream."""
        return n_step_transition(list(self.streams[number])[at:], self.layout)


def push_one(
    ring: NDArray[np.int64],
    records: NDArray[Any],
    free: NDArray[np.int64],
    finals: NDArray[np.uint8],
    layout: Layout,
    action: Any,
    reward: Any,
    terminated: Any,
    truncated: Any,
    observation: Any,
    final: Any,
) -> None:
    """Twin of one iteration of the kernel `push`: store one environment's step in its ring `records`."""
    length, time = len(records), int(ring[kernels.TIME])
    here, after, before = (records[at % length] for at in (time, time + 1, time - 1))
    oldest = records["marks"][(time - ring[kernels.SLOTS]) % length]
    if ring[kernels.COUNT] == ring[kernels.SLOTS] and not oldest & kernels.HOLE:
        ring[kernels.LIVE] -= 1
    if after["marks"] & kernels.FINAL:
        free[ring[kernels.FREE]] = after["marks"] >> kernels.PLACE
        ring[kernels.FREE] += 1
    earlier = int(before["marks"])
    hole = (
        layout.autoreset == "next_step"
        and time > 0
        and bool(earlier & (kernels.TERMINATED | kernels.TRUNCATED))
        and not earlier & (kernels.FINAL | kernels.HOLE)
    )
    if time > 0:
        before["marks"] = earlier & ~kernels.NEWEST
    edges = kernels.FIRST | kernels.LAST
    marks = int(here["marks"]) & (kernels.START | edges) | kernels.NEWEST
    keeps_final = False
    if hole:
        marks |= kernels.HOLE
    else:
        ring[kernels.LIVE] += 1
        marks |= kernels.TERMINATED * bool(terminated) | kernels.TRUNCATED * bool(truncated)
        keeps_final = layout.autoreset == "same_step" and bool(terminated or truncated)
    if keeps_final:
        ring[kernels.FREE] -= 1
        place = int(free[ring[kernels.FREE]])
        frames = finals.view(layout.observation_dtype).reshape(-1, *layout.frame_shape)
        frames[place] = layout.newest(final)
        marks |= kernels.FINAL | place << kernels.PLACE
    here["action"], here["reward"], here["marks"] = action, reward, marks
    after["frame"] = layout.newest(observation)
    after["marks"] = int(after["marks"]) & edges | (kernels.START if hole or keeps_final else 0)
