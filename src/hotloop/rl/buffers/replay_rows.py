"""Rows from many collectors into the replay ring, where each stream advances at its own pace.

A row is one moment of one environment (see `hotloop.rl.collect.protocol`): an episode's first frame, or a
step and the frame it led to. Every stream has its own ring with the same records as vector steps, so sampling
and stacking work the same way. The place of a frame that ended an episode, or after which its collector died,
holds no transition and is never drawn.

Pushing is the only copy from a collector's memory to the replay buffer. The plain twin is in replay_plain.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop.rl.buffers.raw_memory import copy_bytes, prefetch
from hotloop.rl.buffers.replay_batch import ReplayBatch
from hotloop.rl.buffers.replay_kernels import (
    ACTION,
    ACTION_AT,
    ENVS,
    FIRST,
    FRAME,
    HOLE,
    LAST,
    LENGTH,
    LIVE,
    NEWEST,
    REWARD_AT,
    SLOTS,
    START,
    STRIDE,
    TERMINATED,
    TRUNCATED,
    Bytes,
    Words,
    gather,
)
from hotloop.rl.buffers.replay_layout import Layout
from hotloop.rl.envs.compiled import kernel
from hotloop.rl.envs.streams import Streams, next_below

# rows of `clocks`, one column per stream: slot of its newest frame (-1: none yet), slots in use, scratch
TIME, COUNT, BEGUN = range(3)
# indices into `where`: byte offsets of a row's fields, and bytes of a row
FRAME_OF, ACTION_OF, REWARD_OF, STREAM_OF, FIRST_OF, TERMINATED_OF, TRUNCATED_OF, ROW_BYTES = range(8)
_gather: Any = gather
_FIELDS = ("frame", "action", "reward", "stream", "first", "terminated", "truncated")


class RowStreams:
    """Positions of the streams in a replay buffer that takes rows."""

    def __init__(self, layout: Layout):
        self.clocks = np.zeros((3, layout.n_envs), dtype=np.int64)
        self.clocks[TIME] = -1
        self._layout = layout
        self._where: tuple[np.dtype[Any], Words] | None = None

    def push(self, stored: tuple[Any, ...], rows: NDArray[Any]) -> None:
        """Copy rows into `stored` (memory, numbers, marks, ring); raises before anything is changed."""
        if not len(rows):
            return
        if not rows.flags.c_contiguous:
            rows = np.ascontiguousarray(rows)
        where = self._offsets(rows.dtype)
        raw = rows.view(np.uint8)
        found = _push(*stored, self.clocks, raw, raw.view(np.float32), raw.view(np.uint32), where)
        if found == -1:
            return
        stream, streams = int(rows["stream"][found]), self.clocks.shape[1]
        if stream >= streams:
            raise HotloopError(
                f"row {found} belongs to stream {stream}, but this buffer has {streams}; create it with "
                "n_envs = collectors * envs of each collector."
            )
        raise HotloopError(
            f"row {found} is a step of stream {stream}, whose first row is missing; push every row, in order."
        )

    def sample(self, stored: tuple[Any, ...], streams: Streams, batch: ReplayBatch) -> None:
        """Fill the batch with transitions drawn uniformly over all streams."""
        memory, _, marks, _, ring, _ = stored
        draw_rows(memory, marks, ring, self.clocks, streams, batch.rows)
        _gather(*stored, *batch.arguments)

    def drawable(self, envs: Words, slots: Words, length: int) -> NDArray[np.bool_]:
        """Which of these places were written and not yet overwritten."""
        age = (self.clocks[TIME, envs] - 1 - slots) % length
        inside: NDArray[np.bool_] = age < self.clocks[COUNT, envs]
        return inside

    @property
    def written(self) -> int:
        """Number of slots that at least one stream has written."""
        return int(self.clocks[TIME].max()) + 1

    def _offsets(self, dtype: np.dtype[Any]) -> Words:
        known = self._where
        if known is not None and known[0] is dtype:
            return known[1]
        layout = self._layout
        wanted = {
            "frame": (layout.observation_dtype, layout.frame_shape),
            "action": (layout.action_dtype, layout.action_shape),
        }
        for name, (kind, shape) in wanted.items():
            field = dtype[name] if dtype.names and name in dtype.names else None
            if field is None or field.base != kind or field.shape != shape:
                raise HotloopError(
                    f"{name} of these rows is {field}; this buffer stores {kind} of shape {shape}."
                )
        if dtype.itemsize % 4:
            raise HotloopError(f"rows of {dtype.itemsize} bytes are not aligned; use experience_dtype().")
        fields: Any = dtype.fields
        offsets = [fields[name][1] for name in _FIELDS]
        where = np.array([*offsets, dtype.itemsize], dtype=np.int64)
        self._where = (dtype, where)
        return where


@kernel
def push_rows(
    memory: Bytes,
    numbers: NDArray[np.float32],
    marks: NDArray[np.int32],
    ring: Words,
    clocks: NDArray[np.int64],
    given: Bytes,
    given_numbers: NDArray[np.float32],
    given_words: NDArray[np.uint32],
    where: Words,
) -> int:
    """Store rows, each in its stream; returns -1, or the first invalid row after changing nothing."""
    size, rows = where[ROW_BYTES], given.size // where[ROW_BYTES]
    clocks[BEGUN] = clocks[TIME] >= 0
    for row in range(rows):
        at = row * size
        stream = np.int64(given_words[(at + where[STREAM_OF]) // 4])
        if stream >= ring[ENVS]:
            return row
        if given[at + where[FIRST_OF]]:
            clocks[BEGUN, stream] = 1
        elif not clocks[BEGUN, stream]:
            return row
    for row in range(rows):
        store_row(memory, numbers, marks, ring, clocks, given, given_numbers, given_words, where, row * size)
    return -1


@kernel
def store_row(
    memory: Bytes,
    numbers: NDArray[np.float32],
    marks: NDArray[np.int32],
    ring: Words,
    clocks: NDArray[np.int64],
    given: Bytes,
    given_numbers: NDArray[np.float32],
    given_words: NDArray[np.uint32],
    where: Words,
    at: int,
) -> None:
    """Store the row at byte `at`: its step in the stream's current slot, its frame in the next one."""
    length, stride, frame, slots = ring[LENGTH], ring[STRIDE], ring[FRAME], ring[SLOTS]
    mark_at = ring[REWARD_AT] // 4 + 1
    stream = np.int64(given_words[(at + where[STREAM_OF]) // 4])
    first = given[at + where[FIRST_OF]] != 0
    base, time, count = stream * length, clocks[TIME, stream], clocks[COUNT, stream]
    new = (base + (time + 1) % length) * stride // 4 + mark_at
    if time >= 0:
        mark = (base + time % length) * stride // 4 + mark_at
        earlier = (base + (time - 1) % length) * stride // 4 + mark_at
        oldest = (base + (time - slots) % length) * stride // 4 + mark_at
        # the oldest transition can no longer be drawn, though its frame may still be part of a stack
        if count == slots and marks[oldest] & HOLE == 0:
            ring[LIVE] -= 1
        flags = np.int64(marks[mark] & (START | FIRST | LAST)) | NEWEST
        if time > 0:
            marks[earlier] &= ~NEWEST
        if first:
            # the frame here ended an episode, or its collector died: no transition starts from it
            flags |= HOLE
            if time > 0 and marks[earlier] & (TERMINATED | TRUNCATED | HOLE) == 0:
                marks[earlier] |= np.int32(TRUNCATED)
        else:
            ring[LIVE] += 1
            flags |= TERMINATED if given[at + where[TERMINATED_OF]] else 0
            flags |= TRUNCATED if given[at + where[TRUNCATED_OF]] else 0
            action = (base + time % length) * stride + ring[ACTION_AT]
            copy_bytes(memory, action, given, at + where[ACTION_OF], ring[ACTION])
            numbers[mark - 1] = given_numbers[(at + where[REWARD_OF]) // 4]
        marks[mark] = np.int32(flags)
        clocks[COUNT, stream] = min(count + 1, slots)
    copy_bytes(memory, (base + (time + 1) % length) * stride, given, at + where[FRAME_OF], frame)
    marks[new] = (marks[new] & (FIRST | LAST)) | (START if first else 0)
    clocks[TIME, stream] = time + 1


_push: Any = push_rows


@kernel
def draw_rows(
    memory: Bytes,
    marks: NDArray[np.int32],
    ring: Words,
    clocks: NDArray[np.int64],
    streams: Streams,
    rows: Words,
) -> None:
    """Fill `rows` with transitions drawn uniformly over all streams, with replacement.

    One number for each row first; then rows without a transition are drawn again until none is left.
    """
    stride, reward_at = ring[STRIDE], ring[REWARD_AT]
    total = 0
    for stream in range(ring[ENVS]):
        total += clocks[COUNT, stream]
    for place in range(rows.size):
        row = place_in_streams(clocks, ring, next_below(streams, 0, total))
        rows[place] = row
        prefetch(memory, row * stride)
        prefetch(memory, row * stride + reward_at)
    if ring[LIVE] == total:
        return
    mark_at = reward_at // 4 + 1
    for place in range(rows.size):
        while marks[rows[place] * stride // 4 + mark_at] & HOLE:
            rows[place] = place_in_streams(clocks, ring, next_below(streams, 0, total))


@kernel
def place_in_streams(clocks: NDArray[np.int64], ring: Words, number: int) -> int:
    """Row of slot `number`, counted stream by stream, oldest first."""
    stream = 0
    while number >= clocks[COUNT, stream]:
        number -= clocks[COUNT, stream]
        stream += 1
    slot = (clocks[TIME, stream] - clocks[COUNT, stream] + number) % ring[LENGTH]
    return int(stream * ring[LENGTH] + slot)
