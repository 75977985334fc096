"""Rows as whole transitions, for learners with a replay buffer of their own (Stable-Baselines3, plain torch).

Our own `ReplayBuffer.push_rows` takes rows as they come and needs none of this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.collect.protocol import Rows, Spaces


class Transitions(NamedTuple):
    """As many transitions as there were steps; first index the transition, arrays are the caller's."""

    observations: NDArray[Any]
    actions: NDArray[Any]
    rewards: NDArray[np.float32]
    next_observations: NDArray[Any]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    streams: NDArray[np.uint32]


class Pairing:
    """Remembers each stream's last observation, and so makes transitions out of rows; stacks are rebuilt.

    Before an episode's first frame stands that frame again, as Gymnasium's frame stacking has it by default.
    """

    def __init__(self, spaces: Spaces):
        self._spaces = spaces
        self._last: dict[int, NDArray[Any]] = {}

    def transitions(self, blocks: Iterable[Rows]) -> Transitions:
        """The steps among these rows, copied; blocks in the order they were taken."""
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
                self._last[stream] = self._stack_of(frame)
                continue
            made.observations[at] = self._last[stream]
            made.next_observations[at] = self._last[stream] = self._next(self._last[stream], frame)
            made.actions[at], made.rewards[at] = row["action"], row["reward"]
            made.terminated[at], made.truncated[at] = row["terminated"], row["truncated"]
            made.streams[at] = stream
            at += 1
        return made

    def _stack_of(self, frame: NDArray[Any]) -> NDArray[Any]:
        if self._spaces.frame_stack == 1:
            return np.array(frame)
        return np.stack([frame] * self._spaces.frame_stack)

    def _next(self, before: NDArray[Any], frame: NDArray[Any]) -> NDArray[Any]:
        if self._spaces.frame_stack == 1:
            return np.array(frame)
        return np.concatenate([before[1:], frame[None]])
