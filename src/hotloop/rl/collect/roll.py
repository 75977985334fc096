"""The loop every collector runs, wherever it lives: act, step, write rows.

One seed, one stream of rows: serial, processes and locked hand over the same rows, because this file makes
them and the transports only move them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop import profile, progress
from hotloop._util.errors import HotloopError
from hotloop.rl.collect.groups import make_group
from hotloop.rl.collect.post import Post
from hotloop.rl.collect.protocol import Rows, Task, experience_dtype
from hotloop.rl.collect.sink import Sink

_step = profile("env_step")
_reset = profile("env_reset")
_policy = profile("policy_forward")
_send = profile("ipc_send")
_weights = profile("weights_sync")


def seeds_of(task: Task, collector: int, life: int) -> tuple[list[int], np.random.Generator]:
    """Seeds of the environments and the actor's random numbers; every life has its own."""
    numbers, actions = np.random.SeedSequence([task.seed, collector, life]).spawn(2)
    return [int(seed) >> 1 for seed in numbers.generate_state(task.envs)], np.random.default_rng(actions)


class Roller:
    """One life of one collector: its environments, its actor, and where they stand."""

    def __init__(self, task: Task, collector: int, life: int, post: Post):
        seeds, self._rng = seeds_of(task, collector, life)
        self.group = make_group(task, seeds)
        self.spaces = self.group.spaces
        self.actor = task.make_actor(self.spaces)
        self._infos, self._post, self._seeds = task.infos, post, seeds
        self._board = 0
        envs = self.spaces.envs
        self._numbers = np.arange(envs)
        self._returns, self._lengths = np.zeros(envs), np.zeros(envs, dtype=np.int64)
        self._dropping = np.zeros(envs, dtype=np.bool_)
        self._action_shape = (envs, *self.spaces.action.shape)
        self._sequence = 0
        # What rows of an environment have in common, copied as bytes: 1 us instead of 8 for field by field.
        dtype = experience_dtype(self.spaces, task.infos)
        fields: Any = dtype.fields
        self._common_at = int(fields["policy_version"][1])
        self._common = np.zeros((2, envs), dtype=dtype)  # [first or not, env]
        for name, values in (
            ("collector", collector),
            ("life", life),
            ("env", self._numbers),
            ("stream", collector * envs + self._numbers),
            ("episode_return", np.nan),
            *((f"info_{name}", np.nan) for name in task.infos),
        ):
            self._common[name] = values
        self._common["first"][1] = True
        self._common_bytes = self._common.view(np.uint8).reshape(2, envs, -1)[:, :, self._common_at :]

    def begin(self, sink: Sink) -> None:
        """Wait for the first weights, then hand over the first frames."""
        while sink.weights_due():
            pass
        self._take_weights()
        self._sequence = sink.produced()
        with _reset:
            self.group.reset(self._seeds)
        self._emit(sink, self.group.begun, first=True)

    def step(self, sink: Sink) -> None:
        """One step of every environment, from the newest weights to rows handed over."""
        self._take_weights()
        group = self.group
        with _policy:
            actions = np.asarray(self.actor.act(group.observations, self._post.control, self._rng))
        if actions.shape != self._action_shape:
            raise HotloopError(
                f"the actor gave actions of shape {actions.shape} for {self.spaces.envs} environments; "
                f"it must give an array of shape {self._action_shape}."
            )
        with _step:
            group.step(actions)
        with _send:
            self._hand_over(sink, actions)
            if len(group.begun):
                self._emit(sink, group.begun, first=True)

    def close(self) -> None:
        """Close the environments."""
        self.group.close()

    # ---- inside

    def _take_weights(self) -> None:
        if not self._post.size or self._post.board.version <= self._board:
            return
        with _weights:
            found = self._post.newest(self._board)
            if found is not None:
                self._board, self._common["policy_version"], weights = found
                self.actor.load(weights)

    def _hand_over(self, sink: Sink, actions: NDArray[Any]) -> None:
        """Rows of the step just made, in all environments or, where some were only reset, in the others."""
        group = self.group
        ended = group.terminated | group.truncated
        which: NDArray[np.intp] | None = None
        if group.stepped is None:
            self._returns += group.rewards
            self._lengths += 1
        else:
            ended &= group.stepped
            which = np.flatnonzero(group.stepped)
            self._returns += group.rewards * group.stepped
            self._lengths += group.stepped
        some_ended = 1 in ended.tobytes()  # 0.15 us; ended.any() takes 1 us
        self._emit(sink, which, first=False, actions=actions, ended=ended if some_ended else None)
        progress(env_steps=self.spaces.envs if which is None else len(which))
        if some_ended:
            for row in np.flatnonzero(ended):
                progress(
                    episodes=1,
                    episode_return=float(self._returns[row]),
                    episode_length=int(self._lengths[row]),
                )
            self._returns[ended] = 0.0
            self._lengths[ended] = 0

    def _emit(
        self,
        sink: Sink,
        which: NDArray[np.intp] | None,
        *,
        first: bool,
        actions: NDArray[Any] | None = None,
        ended: NDArray[np.bool_] | None = None,
    ) -> None:
        """Hand over a row for each environment of `which` (None: all), or drop it where that is allowed."""
        if not first and 1 in self._dropping.tobytes():
            chosen = self._numbers if which is None else which
            keep = ~self._dropping[chosen]
            self._drop(sink, chosen[~keep])
            which = chosen[keep]
        count, done = self.spaces.envs if which is None else len(which), 0
        frames = self._frames(ended)
        infos = [] if first else [(f"info_{name}", self.group.info(name)) for name in self._infos]
        while done < count:
            rows = sink.reserve(count - done)
            if not len(rows):
                self._drop(sink, (self._numbers if which is None else which)[done:])
                return
            part: Any = slice(done, done + len(rows)) if which is None else which[done : done + len(rows)]
            rows["frame"] = frames[part]
            rows.view(np.uint8).reshape(len(rows), -1)[:, self._common_at :] = self._common_bytes[
                int(first), part
            ]
            rows["sequence"] = self._sequence + self._numbers[: len(rows)]
            if actions is None:
                rows["action"], rows["reward"] = 0, 0.0
                self._dropping[part] = False
            else:
                rows["action"], rows["reward"] = actions[part], self.group.rewards[part]
                for name, values in infos:
                    rows[name] = values[part]
            if ended is not None:
                self._note_ends(rows, part, ended)
            self._sequence += len(rows)
            sink.commit(len(rows))
            done += len(rows)

    def _note_ends(self, rows: Rows, part: Any, ended: NDArray[np.bool_]) -> None:
        group, over = self.group, ended[part]
        rows["terminated"], rows["truncated"] = group.terminated[part] & over, group.truncated[part] & over
        rows["episode_return"][over] = self._returns[part][over]
        rows["episode_length"][over] = self._lengths[part][over]

    def _frames(self, ended: NDArray[np.bool_] | None) -> NDArray[Any]:
        """The newest frame of every environment; where an episode has just ended, its last one."""
        stacked = self.spaces.frame_stack > 1
        frames: NDArray[Any] = self.group.observations[:, -1] if stacked else self.group.observations
        if ended is None:
            return frames
        frames = frames.copy()
        for row in np.flatnonzero(ended):
            final = self.group.finals[row]
            frames[row] = final[-1] if stacked else final
        return frames

    def _drop(self, sink: Sink, envs: NDArray[np.intp]) -> None:
        """Throw away what these have to say, until an episode begins and finds room."""
        sink.drop(len(envs))
        self._sequence += len(envs)
        self._dropping[envs] = True
