"""Rows into replay as one would write it down: whole transitions in a list for each stream.

Tests hold `ReplayBuffer.push_rows` to it: same rows and same seed, same batches to the last bit.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.buffers.replay_layout import Layout
from hotloop.rl.buffers.replay_plain import Transition


class PlainRows:
    """The twin: `push_rows` and `sample` mean the same; a None in a list is a frame nothing followed."""

    def __init__(self, capacity: int, layout: Layout, seed: int = 0):
        self.layout = layout
        slots = capacity // layout.num_envs
        self.streams: list[deque[Transition | None]] = [deque(maxlen=slots) for _ in range(layout.num_envs)]
        self.stacks: list[deque[NDArray[Any]] | None] = [None] * layout.num_envs
        self.rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return sum(one is not None for stream in self.streams for one in stream)

    def push_rows(self, rows: NDArray[Any]) -> None:
        """Store rows one after the other."""
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
        """A batch, by the names of `ReplayBatch`."""
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
        stream = self.streams[number]
        begin = last = stream[at]
        assert begin is not None and last is not None
        total, discount = 0.0, 1.0
        for step in list(stream)[at : at + self.layout.n_step]:
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
