"""Rows of collectors in the replay ring, against whole transitions kept in a list for each stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop._util.errors import HotloopError
from hotloop.rl.buffers.replay import Prioritized, ReplayBuffer
from hotloop.rl.buffers.replay_plain import PlainRows
from hotloop.rl.collect.processes import ProcessCollector
from hotloop.rl.collect.protocol import Setup, Spaces, Task, experience_dtype
from tests.collect_envs import Stacked, Steered

SPACES: dict[str, tuple[Any, Any]] = {
    "vector": (Box(-9.0, 9.0, (3,), np.float32), Discrete(4)),
    "bytes": (Box(0, 255, (5,), np.uint8), Box(-1.0, 1.0, (2,), np.float32)),
    "picture": (Box(0, 255, (7, 3), np.uint8), Discrete(2)),
}


def stacked(space: Box, stack: int) -> Box:
    if stack == 1:
        return space
    return Box(np.min(space.low), np.max(space.high), (stack, *space.shape), space.dtype.type)


class Source:
    """Made-up rows of streams in any mixture: episodes end in both ways, or are cut when a collector dies."""

    def __init__(self, dtype: np.dtype[Any], streams: int, seed: int, ends: float):
        self.rng, self.dtype, self.ends = np.random.default_rng(seed), dtype, ends
        self.over = np.ones(streams, dtype=bool)

    def rows(self, count: int) -> np.ndarray[Any, Any]:
        rng, rows = self.rng, np.zeros(count, dtype=self.dtype)
        for row in rows:
            stream = row["stream"] = rng.integers(len(self.over))
            row["frame"] = rng.integers(0, 250, row["frame"].shape)
            row["first"] = self.over[stream] or rng.random() < self.ends / 4
            if not row["first"]:
                row["action"] = rng.integers(0, 2, row["action"].shape)
                row["reward"] = rng.normal()
                row["terminated"] = rng.random() < self.ends
                row["truncated"] = rng.random() < self.ends / 2
            self.over[stream] = row["terminated"] or row["truncated"]
        return rows


def assert_same(batch: Any, expected: dict[str, np.ndarray[Any, Any]]) -> None:
    for name, values in expected.items():
        np.testing.assert_array_equal(getattr(batch, name), values, err_msg=name)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(sorted(SPACES)),
    streams=st.integers(1, 5),
    slots=st.integers(2, 12),
    stack=st.sampled_from([1, 1, 2, 4]),
    n_steps=st.integers(1, 4),
    padding=st.sampled_from(["first", "zero"]),
    ends=st.sampled_from([0.0, 0.1, 0.5]),
    seed=st.integers(0, 2**31),
)
def test_every_sample_equals_the_plain_twins(
    kind: str, streams: int, slots: int, stack: int, n_steps: int, padding: Any, ends: float, seed: int
) -> None:
    space, action = SPACES[kind]
    space = stacked(space, stack)
    fast = ReplayBuffer(
        slots * streams, streams, space, action,
        frame_stack=stack, stack_padding=padding, n_steps=n_steps, seed=seed,
    )  # fmt: skip
    plain = PlainRows(slots * streams, fast.layout, seed)
    batch = fast.make_batch(17, shared=n_steps == 1 and seed % 2 == 0)
    source = Source(experience_dtype(Spaces(space, action, 1, stack)), streams, seed, ends)
    for _ in range(20):
        rows = source.rows(1 + seed % (3 * slots))
        fast.push_rows(rows)
        plain.push_rows(rows)
        assert len(fast) == len(plain)
        if len(plain):
            assert_same(fast.sample(batch), plain.sample(17))
            again = fast.make_batch(17, shared=False)
            fast.gather(batch.rows, again)
            np.testing.assert_array_equal(again.next_observations, batch.next_observations)


def filled(seed: int = 0) -> tuple[ReplayBuffer, Source]:
    space, action = SPACES["picture"]
    space = stacked(space, 3)
    buffer = ReplayBuffer(60, 3, space, action, frame_stack=3, seed=seed)
    source = Source(experience_dtype(Spaces(space, action, 1, 3)), 3, 1, 0.1)
    buffer.push_rows(source.rows(150))
    return buffer, source


def test_a_saved_buffer_continues_with_the_same_samples() -> None:
    buffer, source = filled()
    state = buffer.save_state()
    other = ReplayBuffer(60, 3, *(stacked(SPACES["picture"][0], 3), SPACES["picture"][1]), frame_stack=3)
    other.load_state(state)
    rows = source.rows(40)
    batches = []
    for one in (buffer, other):
        one.push_rows(rows)
        batch = one.sample(one.make_batch(50))
        batches.append((batch.rows.copy(), batch.observations.copy(), batch.rewards.copy()))
    for mine, theirs in zip(*batches, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_invalid_rows_are_one_sentence_and_change_nothing() -> None:
    buffer, source = filled()
    before = buffer.save_state()
    wrong = source.rows(3)
    wrong["stream"][2] = 3
    with pytest.raises(HotloopError, match="row 2 belongs to stream 3, but this buffer has 3"):
        buffer.push_rows(wrong)
    with pytest.raises(HotloopError, match="this buffer stores"):
        buffer.push_rows(np.zeros(1, dtype=experience_dtype(Spaces(*SPACES["vector"], 1))))
    with pytest.raises(HotloopError, match="push_rows"):
        buffer.push(*(np.zeros(3),) * 4, np.zeros((3, 7, 3), dtype=np.uint8))  # type: ignore[arg-type]
    for name, array in buffer.save_state().items():
        if name != "clocks":
            np.testing.assert_array_equal(array, before[name], err_msg=name)
    np.testing.assert_array_equal(buffer.save_state()["clocks"][:2], before["clocks"][:2])
    empty = ReplayBuffer(60, 3, *SPACES["vector"])
    headless = np.zeros(1, dtype=experience_dtype(Spaces(*SPACES["vector"], 1)))
    with pytest.raises(HotloopError, match="first row is missing"):
        empty.push_rows(headless)
    with pytest.raises(HotloopError, match="empty"):
        empty.sample(empty.make_batch(4))
    with pytest.raises(HotloopError, match="without priorities"):
        ReplayBuffer(60, 3, *SPACES["vector"], prioritized=Prioritized()).push_rows(headless)


def test_rows_from_a_collectors_ring_give_the_same_samples_as_the_twin() -> None:
    task = Task(Stacked, Steered, frame_stack=3, n_envs=2, seed=4)
    with ProcessCollector(task, Setup(collectors=2, ring_rows=32, method="fork")) as collector:
        spaces = collector.spaces
        fast = ReplayBuffer(400, 4, spaces.observation, spaces.action, frame_stack=3, seed=8)
        plain = PlainRows(400, fast.layout, 8)
        while len(fast) < 300:
            for rows in collector.take(50, 60.0):
                plain.push_rows(rows)
                fast.push_rows(rows)
            collector.release()
    assert_same(fast.sample(fast.make_batch(200)), plain.sample(200))


def test_fifty_thousand_stacks_take_hardly_more_than_their_single_frames() -> None:
    space, frames = Box(0, 255, (4, 84, 84), np.uint8), 50_000
    single = frames * 84 * 84
    buffer = ReplayBuffer(frames, 4, space, Discrete(7), frame_stack=4)
    assert buffer.buffer_size == frames
    assert buffer.bytes_stored <= 1.15 * single
    before = resident_bytes()
    rows = np.zeros(1000, dtype=experience_dtype(Spaces(space, Discrete(7), 1, 4)))
    rows["stream"] = np.arange(1000) % 4
    rows["first"][:4] = True
    for _ in range(frames // len(rows) + 1):
        buffer.push_rows(rows)
        rows["first"] = False
    assert len(buffer) == frames
    grown = resident_bytes() - before
    assert 0.9 * single < grown <= 1.15 * single
    assert buffer.bytes_stored <= 1.15 * single


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096
