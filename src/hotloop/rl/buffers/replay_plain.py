"""The replay buffer as one would write it down: whole transitions in a list, nothing shared, nothing fast.

Tests hold `ReplayBuffer` to it, sample by sample: same pushes and same seed, same batches to the last bit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.buffers import replay_kernels as kernels
from hotloop.rl.buffers.replay_layout import Layout
from hotloop.rl.buffers.sum_tree import make_tree, plain_find, plain_set


@dataclass(slots=True)
class Transition:
    """One step of one environment, both observations in full."""

    observation: NDArray[Any]
    action: Any
    reward: float
    next_observation: NDArray[Any]
    terminated: bool
    truncated: bool


class PlainReplay:
    """The twin of `ReplayBuffer`: `start`, `push` and `sample` mean the same."""

    def __init__(self, capacity: int, layout: Layout, *, alpha: float | None = None, seed: int = 0):
        self.layout = layout
        # one list for each vector step, in it one transition for each environment, or None for a mere reset
        self.steps: deque[list[Transition | None]] = deque(maxlen=capacity // layout.num_envs)
        self.stacks: list[deque[NDArray[Any]]] = []
        self.rng = np.random.default_rng(seed)
        self.alpha = alpha
        self.ring_length = capacity // layout.num_envs + layout.frame_stack
        self.time = 0
        self.tree = make_tree(self.ring_length * layout.num_envs if alpha is not None else 1)
        self.largest_priority = 1.0

    def __len__(self) -> int:
        return sum(transition is not None for step in self.steps for transition in step)

    def start(self, frames: NDArray[Any]) -> None:
        """Begin new episodes; running ones are cut."""
        if self.steps:
            for transition in self.steps[-1]:
                if transition is not None and not transition.terminated:
                    transition.truncated = True
        self.stacks = [self._new_stack(frame) for frame in frames]
        self.over = [False] * self.layout.num_envs

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
        for env in range(self.layout.num_envs):
            if self.over[env]:
                step.append(None)
                self.stacks[env], self.over[env] = self._new_stack(frames[env]), False
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
                self.over[env] = True
        self.steps.append(step)
        self.time += 1
        if self.alpha is not None:
            self._set_priorities(step)

    def draw(self, count: int) -> list[int]:
        """Places in the ring of that many transitions drawn uniformly, or by priority."""
        if self.alpha is not None:
            leaves = plain_find(self.tree, self.rng, count)
            return [
                leaf % self.layout.num_envs * self.ring_length + leaf // self.layout.num_envs
                for leaf in leaves
            ]
        rows, kept = [], len(self.steps)
        places = [int(self.rng.random() * (kept * self.layout.num_envs)) for _ in range(count)]
        for place in places:
            while self.steps[place % kept][place // kept] is None:
                place = int(self.rng.random() * (kept * self.layout.num_envs))
            slot = (self.time - kept + place % kept) % self.ring_length
            rows.append(place // kept * self.ring_length + slot)
        return rows

    def leaf(self, row: int) -> int:
        """Where a place of the ring stands in the tree: ordered by slot, then environment."""
        return row % self.ring_length * self.layout.num_envs + row // self.ring_length

    def sample(self, count: int, beta: float = 0.4) -> dict[str, NDArray[Any]]:
        """A batch, by the names of `ReplayBatch`."""
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
        total, discount = 0.0, 1.0
        begin = last = self.steps[first][env]
        assert begin is not None and last is not None
        for place in range(first, min(first + self.layout.n_step, len(self.steps))):
            step = self.steps[place][env]
            assert step is not None
            last = step
            total += discount * last.reward
            discount *= self.layout.gamma
            if last.terminated or last.truncated:
                break
        shape = self.layout.observation_shape
        return {
            "observations": begin.observation.reshape(shape),
            "actions": begin.action,
            "rewards": np.float32(total),
            "next_observations": last.next_observation.reshape(shape),
            "discounts": np.float32(0.0 if last.terminated else discount),
            "terminated": last.terminated,
            "truncated": last.truncated,
        }

    def update_priorities(self, rows: Any, errors: Any, epsilon: float = 1e-6) -> None:
        """New priorities for rows that were drawn."""
        assert self.alpha is not None
        values = (np.abs(np.asarray(errors, dtype=np.float64)) + epsilon) ** self.alpha
        self.largest_priority = max(self.largest_priority, float(values.max()))
        plain_set(self.tree, np.array([self.leaf(row) for row in rows]), values)

    def _set_priorities(self, step: list[Transition | None]) -> None:
        envs = self.layout.num_envs
        values = np.array([0.0 if one is None else self.largest_priority for one in step])
        newest = (self.time - 1) % self.ring_length
        plain_set(self.tree, newest * envs + np.arange(envs), values)
        gone = (self.time - 1 - (self.steps.maxlen or 0)) % self.ring_length
        plain_set(self.tree, gone * envs + np.arange(envs), np.zeros(envs))

    def _new_stack(self, frame: NDArray[Any]) -> deque[NDArray[Any]]:
        earlier = frame if self.layout.stack_padding == "first" else np.zeros_like(frame)
        stack = [earlier.copy() for _ in range(self.layout.frame_stack - 1)]
        return deque([*stack, frame.copy()], maxlen=self.layout.frame_stack)


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
    """One turn of the kernel `push`, in plain Python: one environment's step into its own ring `records`."""
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
