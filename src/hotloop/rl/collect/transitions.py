"""Turns rows into transitions, for replay buffers of other libraries (Stable-Baselines3, plain torch).

Our own `ReplayBuffer.push_rows` takes rows as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.collect.protocol import Rows, Spaces


class Transitions(NamedTuple):
    """One transition per step; first index the transition. The caller owns the arrays."""

    observations: NDArray[Any]
    actions: NDArray[Any]
    rewards: NDArray[np.float32]
    next_observations: NDArray[Any]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    streams: NDArray[np.uint32]


class TransitionBuilder:
    """Remembers each stream's last observation to build transitions, and rebuilds frame stacks.

    The stack of an episode's first observation repeats its only frame, as Gymnasium's wrapper does.
    """

    def __init__(self, spaces: Spaces):
        self._spaces = spaces
        self._last: dict[int, NDArray[Any]] = {}

    def transitions(self, blocks: Iterable[Rows]) -> Transitions:
        """Copy the steps among these rows; pass blocks in the order in which they were taken."""
        space, action = self._spaces.observation, self._spaces.action
        rows = [row for block in blocks for row in block]
        steps = sum(not row["first"] for row in rows)
        made = Transitions(
            np.zeros((steps, *space.shape), dtype=space.dtype),
            np.zeros((steps, *action.shape), dtype=action.dtype),
            np.zeros(steps, dtype=np.float32),
            np.zeros((steps, *space.shape), dtype=space.dtype),
            np.zeros(steps, dtype=np.bool_),
            np.zeros(steps, dtype=np.bool_),
            np.zeros(steps, dtype=np.uint32),
        )
        at = 0
        for row in rows:
            stream, frame = int(row["stream"]), row["frame"]
            if row["first"]:
                self._last[stream] = self._first_stack(frame)
                continue
            made.observations[at] = self._last[stream]
            made.next_observations[at] = self._last[stream] = self._next_stack(self._last[stream], frame)
            made.actions[at], made.rewards[at] = row["action"], row["reward"]
            made.terminated[at], made.truncated[at] = row["terminated"], row["truncated"]
            made.streams[at] = stream
            at += 1
        return made

    def _first_stack(self, frame: NDArray[Any]) -> NDArray[Any]:
        if self._spaces.frame_stack == 1:
            return np.array(frame)
        return np.stack([frame] * self._spaces.frame_stack)

    def _next_stack(self, before: NDArray[Any], frame: NDArray[Any]) -> NDArray[Any]:
        if self._spaces.frame_stack == 1:
            return np.array(frame)
        return np.concatenate([before[1:], frame[None]])
