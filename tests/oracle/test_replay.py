"""The replay ring against whole transitions kept in a list, and the sum tree against a full sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop._util.errors import HotloopError
from hotloop.rl.buffers import replay_kernels, sum_tree
from hotloop.rl.buffers.raw_memory import huge_bytes
from hotloop.rl.buffers.replay import Prioritized, ReplayBuffer
from hotloop.rl.buffers.replay_plain import PlainReplay
from hotloop.rl.envs.streams import make_streams, seed_streams

SPACES: dict[str, tuple[Any, Any]] = {
    "vector": (Box(-9.0, 9.0, (3,), np.float32), Discrete(4)),
    "bytes": (Box(0, 255, (5,), np.uint8), Box(-1.0, 1.0, (2,), np.float32)),
    "picture": (Box(0, 255, (7, 3), np.uint8), Discrete(2)),
}


class Steps:
    """Made-up vector steps: every frame is different, episodes end in both ways, resets as declared."""

    def __init__(self, observation: Box, action: Any, envs: int, seed: int, ends: float):
        self.rng = np.random.default_rng(seed)
        self.observation, self.action, self.envs, self.ends = observation, action, envs, ends

    def frames(self) -> np.ndarray:
        shape = (self.envs, *self.observation.shape)
        return self.rng.integers(0, 250, shape).astype(self.observation.dtype)

    def step(self) -> tuple[np.ndarray, ...]:
        actions = self.rng.integers(0, 4, (self.envs, *self.action.shape)).astype(self.action.dtype)
        rewards = self.rng.normal(size=self.envs)
        terminated = self.rng.random(self.envs) < self.ends
        truncated = self.rng.random(self.envs) < self.ends / 2
        return actions, rewards, terminated, truncated, self.frames(), self.frames()


def pair(
    kind: str,
    buffer_size: int,
    envs: int,
    stack: int = 1,
    seed: int = 0,
    alpha: float | None = None,
    **words: Any,
) -> tuple[ReplayBuffer, PlainReplay]:
    space, action = SPACES[kind]
    if stack > 1:
        low, high = np.min(space.low), np.max(space.high)
        space = Box(low, high, (stack, *space.shape), space.dtype.type)
    prioritized = None if alpha is None else Prioritized(alpha)
    fast = ReplayBuffer(
        buffer_size, envs, space, action, frame_stack=stack, prioritized=prioritized, seed=seed, **words
    )
    return fast, PlainReplay(buffer_size, fast.layout, alpha=alpha, seed=seed)


def assert_same(batch: Any, expected: dict[str, np.ndarray]) -> None:
    for name, values in expected.items():
        np.testing.assert_array_equal(getattr(batch, name), values, err_msg=name)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(sorted(SPACES)),
    envs=st.integers(1, 5),
    slots=st.integers(2, 12),
    stack=st.sampled_from([1, 1, 2, 4]),
    n_steps=st.integers(1, 4),
    padding=st.sampled_from(["first", "zero"]),
    autoreset=st.sampled_from(["same_step", "next_step"]),
    alpha=st.sampled_from([None, None, 0.6]),
    ends=st.sampled_from([0.0, 0.1, 0.5]),
    seed=st.integers(0, 2**31),
    item_by_item=st.booleans(),
)
def test_every_sample_equals_the_plain_twins(
    kind: str,
    envs: int,
    slots: int,
    stack: int,
    n_steps: int,
    padding: Any,
    autoreset: Any,
    alpha: float | None,
    ends: float,
    seed: int,
    item_by_item: bool,
) -> None:
    fast, plain = pair(
        kind,
        slots * envs,
        envs,
        stack,
        seed,
        alpha,
        n_steps=n_steps,
        stack_padding=padding,
        autoreset=autoreset,
    )
    shared = n_steps == 1 and seed % 2 == 0
    batch = fast.make_batch(17, shared=shared)
    steps = Steps(SPACES[kind][0], SPACES[kind][1], envs, seed, ends)
    first = steps.frames()
    fast.start(first)
    plain.start(first)
    for number in range(3 * slots + stack):
        step = steps.step()
        (fast.push_each if item_by_item else fast.push)(*step)
        plain.push(*step)
        assert len(fast) == len(plain)
        if len(plain):
            assert_same(fast.sample(batch), plain.sample(17))
        if alpha is not None:
            errors = steps.rng.normal(size=17)
            fast.update_priorities(batch.rows, errors)
            plain.update_priorities(batch.rows, errors)
        if number % 7 == 6:
            again = steps.frames()
            fast.start(again)
            plain.start(again)


def test_pushes_in_one_go_and_item_by_item_leave_the_same_bytes() -> None:
    for autoreset in ("same_step", "next_step"):
        whole, _ = pair("picture", 60, 4, 3, autoreset=autoreset)
        items, _ = pair("picture", 60, 4, 3, autoreset=autoreset)
        steps = Steps(*SPACES["picture"], 4, 5, 0.2)
        first = steps.frames()
        whole.start(first)
        items.start(first)
        for _ in range(100):
            step = steps.step()
            whole.push(*step)
            items.push_each(*step)
        for name, array in whole.save_state().items():
            np.testing.assert_array_equal(array, items.save_state()[name], err_msg=name)


def test_stacked_observations_and_their_newest_frames_are_the_same_push() -> None:
    stacked, _ = pair("picture", 40, 2, 4)
    single, _ = pair("picture", 40, 2, 4)
    steps = Steps(*SPACES["picture"], 2, 1, 0.2)
    first = steps.frames()
    single.start(first)
    stacked.start(np.repeat(first[:, None], 4, axis=1))
    for _ in range(30):
        actions, rewards, terminated, truncated, frames, finals = steps.step()
        single.push(actions, rewards, terminated, truncated, frames, finals)
        wide = [
            np.concatenate([np.zeros_like(f)[:, None].repeat(3, 1), f[:, None]], 1) for f in (frames, finals)
        ]
        stacked.push(actions, rewards, terminated, truncated, *wide)
    a, b = single.sample(single.make_batch(64)), stacked.sample(stacked.make_batch(64))
    np.testing.assert_array_equal(a.observations, b.observations)
    np.testing.assert_array_equal(a.next_observations, b.next_observations)


def test_a_transition_worked_out_by_hand() -> None:
    """One env, three-step returns, gamma 1/2; the second step terminates, then a truncation."""
    space = Box(-9.0, 99.0, (1,), np.float32)
    buffer = ReplayBuffer(8, 1, space, Discrete(2), n_steps=3, gamma=0.5)

    def frame(value: float) -> np.ndarray:
        return np.array([[value]], dtype=np.float32)

    def push(reward: float, terminated: bool, truncated: bool, after: float, final: float = -1.0) -> None:
        ends = (np.array([terminated]), np.array([truncated]))
        buffer.push(np.array([1]), np.array([reward]), *ends, frame(after), frame(final))

    buffer.start(frame(0))
    push(1.0, False, False, 1)
    push(2.0, True, False, 10, final=2)
    push(4.0, False, False, 11)
    push(8.0, False, True, 20, final=12)
    push(16.0, False, False, 21)
    batch = buffer.gather(np.arange(5), buffer.make_batch(5))
    assert batch.observations[:, 0].tolist() == [0, 1, 10, 11, 20]
    assert batch.rewards.tolist() == [1 + 0.5 * 2, 2, 4 + 0.5 * 8, 8, 16]
    assert batch.next_observations[:, 0].tolist() == [2, 2, 12, 12, 21]
    assert batch.discounts.tolist() == [0, 0, 0.25, 0.5, 0.5]
    assert batch.terminated.tolist() == [True, True, False, False, False]
    assert batch.truncated.tolist() == [False, False, True, True, False]


def test_frames_are_stored_once() -> None:
    space = Box(0, 255, (4, 84, 84), np.uint8)
    buffer = ReplayBuffer(1000, 1, space, Discrete(4), frame_stack=4)
    assert buffer.bytes_stored < 1.02 * 1000 * 84 * 84


def test_uniform_draws_are_uniform_and_skip_resets() -> None:
    buffer, _ = pair("vector", 40, 2, autoreset="next_step")
    steps = Steps(*SPACES["vector"], 2, 3, 0.3)
    buffer.start(steps.frames())
    for _ in range(50):
        buffer.push(*steps.step())
    batch = buffer.make_batch(4000)
    counts = np.zeros(2 * 21)
    for _ in range(20):
        np.add.at(counts, buffer.sample(batch).rows, 1)
    drawn = counts[counts > 0]
    assert drawn.size == len(buffer) < 40
    expected = 80_000 / drawn.size
    assert ((drawn - expected) ** 2 / expected).sum() < 2 * drawn.size  # chi-square, far out


def test_priorities_are_drawn_in_proportion() -> None:
    tree = sum_tree.make_tree(1000)
    values = np.random.default_rng(0).random(1000) ** 4
    sum_tree.set_range(tree, 0, values)
    assert tree[1] == pytest.approx(values.sum(), rel=1e-12)
    streams = make_streams(1)
    seed_streams(streams, [7])
    rows, room = np.zeros(200_000, dtype=np.int64), np.zeros(200_000)
    sum_tree.find_leaves(tree, streams, rows, room)
    shares = np.bincount(rows, minlength=1000) / rows.size
    assert np.abs(shares - values / values.sum()).max() < 1e-4  # stratified: far closer than chance


@settings(max_examples=40, deadline=None, derandomize=True)
@given(leaves=st.integers(1, 70), seed=st.integers(0, 2**31), count=st.integers(1, 30))
def test_the_tree_equals_the_sum_of_everything(leaves: int, seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    fast, plain = sum_tree.make_tree(leaves), sum_tree.make_tree(leaves)
    streams = make_streams(1)
    seed_streams(streams, [seed])
    twin = np.random.default_rng(seed)
    for _ in range(5):
        rows = rng.integers(0, leaves, count)
        values = rng.random(count) * (rng.random(count) < 0.7)
        sum_tree.set_leaves(fast, rows, values)
        sum_tree.plain_set(plain, rows, values)
        first = int(rng.integers(0, leaves))
        run = rng.random(int(rng.integers(1, leaves - first + 1)))
        sum_tree.set_range(fast, first, run)
        sum_tree.plain_set(plain, np.arange(first, first + run.size), run)
        np.testing.assert_array_equal(fast, plain)
        drawn, room = np.zeros(count, dtype=np.int64), np.zeros(count)
        sum_tree.find_leaves(fast, streams, drawn, room)
        assert drawn.tolist() == sum_tree.plain_find(plain, twin, count)
        assert (fast[fast.size // 2 + drawn] > 0).all()


def test_a_saved_buffer_continues_with_the_same_samples() -> None:
    for alpha in (None, 0.6):
        one, _ = pair("picture", 60, 3, 2, alpha=alpha, n_steps=2)
        steps = Steps(*SPACES["picture"], 3, 9, 0.2)
        one.start(steps.frames())
        for _ in range(33):
            one.push(*steps.step())
        other, _ = pair("picture", 60, 3, 2, seed=5, alpha=alpha, n_steps=2)
        other.load_state(one.save_state())
        for _ in range(30):
            step = steps.step()
            one.push(*step)
            other.push(*step)
            a, b = one.sample(one.make_batch(8)), other.sample(other.make_batch(8))
            for name in ("rows", "observations", "next_observations", "rewards", "weights"):
                np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def test_one_batch_serves_two_buffers_of_a_shape_and_survives_growth() -> None:
    buffers, plains = zip(*(pair("vector", 40, 2, seed=seed) for seed in (1, 2)), strict=True)
    batch = buffers[0].make_batch(9)
    for seed, (buffer, plain) in enumerate(zip(buffers, plains, strict=True)):
        steps = Steps(*SPACES["vector"], 2, seed, 0.9)  # many ends: room for final observations grows
        first = steps.frames()
        buffer.start(first)
        plain.start(first)
        for _ in range(30):
            step = steps.step()
            buffer.push(*step)
            plain.push(*step)
            assert_same(buffer.sample(batch), plain.sample(9))
    for buffer, plain in zip(buffers, plains, strict=True):
        assert_same(buffer.sample(batch), plain.sample(9))


def test_another_batch_size_or_shape_compiles_nothing() -> None:
    for kind, envs, size in (("vector", 2, 4), ("bytes", 3, 9), ("picture", 1, 100)):
        buffer, _ = pair(kind, 50, envs)
        steps = Steps(*SPACES[kind], envs, 0, 0.1)
        buffer.start(steps.frames())
        buffer.push(*steps.step())
        buffer.sample(buffer.make_batch(size))
    for function in (replay_kernels.push, replay_kernels.sample_batch, replay_kernels.begin):
        assert len(function.signatures) == 1


def test_torch_tensors_share_the_batch() -> None:
    buffer, _ = pair("vector", 50, 2)
    steps = Steps(*SPACES["vector"], 2, 0, 0.1)
    buffer.start(steps.frames())
    buffer.push(*steps.step())
    batch = buffer.make_batch(6)
    tensors = batch.tensors()
    buffer.sample(batch)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor.numpy(), getattr(batch, name))
    assert huge_bytes(5).tolist() == [0] * 5


def test_invalid_settings_and_steps_are_refused_and_change_nothing() -> None:
    space, action = SPACES["vector"]
    for words, part in (
        ({"buffer_size": 1, "n_envs": 2}, "buffer_size=1"),
        ({"buffer_size": 5, "n_envs": 0}, "n_envs=0"),
        ({"buffer_size": 1 << 50, "n_envs": 1}, "choose a smaller one"),
        ({"buffer_size": 8, "n_envs": 1, "n_steps": 0}, "n_steps=0"),
        ({"buffer_size": 8, "n_envs": 1, "gamma": 1.5}, "gamma=1.5"),
        ({"buffer_size": 8, "n_envs": 1, "frame_stack": 4}, "frame_stack=4"),
        ({"buffer_size": 8, "n_envs": 1, "autoreset": "later"}, "autoreset='later'"),
    ):
        with pytest.raises(HotloopError, match=part):
            ReplayBuffer(observation_space=space, action_space=action, **words)
    buffer, _ = pair("vector", 50, 2, n_steps=2)
    steps = Steps(*SPACES["vector"], 2, 0, 1.0)
    step = steps.step()
    with pytest.raises(HotloopError, match="start"):
        buffer.push(*step)
    buffer.start(steps.frames())
    with pytest.raises(HotloopError, match="empty"):
        buffer.sample(buffer.make_batch(3))
    before = buffer.save_state()
    for wrong, part in (
        ((step[0][:1], *step[1:]), "actions of shape"),
        ((step[0].astype(np.int32), *step[1:]), "int32"),
        ((step[0], step[1][:1], *step[2:]), "rewards of shape"),
        ((*step[:2], step[2].astype(np.int8), *step[3:]), "int8"),
        ((*step[:4], step[4].astype(np.float64), step[5]), "float64"),
        (step[:5], "final_observations is missing"),
    ):
        with pytest.raises(HotloopError, match=part):
            buffer.push(*wrong)
    for name, array in buffer.save_state().items():
        np.testing.assert_array_equal(array, before[name])
    buffer.push(*step)
    with pytest.raises(HotloopError, match="rows of shape"):
        buffer.gather([0, 999], buffer.make_batch(2))
    with pytest.raises(HotloopError, match="row 4 no longer holds a transition"):
        buffer.gather([0, 4], buffer.make_batch(2))
    with pytest.raises(HotloopError, match="n_steps=2"):
        buffer.make_batch(2, shared=True)
    with pytest.raises(HotloopError, match="size=0"):
        buffer.make_batch(0)
    with pytest.raises(HotloopError, match="has no priorities"):
        buffer.update_priorities(np.zeros(1, dtype=np.int64), np.ones(1))
    with pytest.raises(HotloopError, match="made by a buffer of another shape"):
        buffer.sample(pair("bytes", 50, 2)[0].make_batch(3))
    other, _ = pair("vector", 52, 2)
    with pytest.raises(HotloopError, match="another shape"):
        other.load_state(buffer.save_state())
    assert len(buffer) == 2


def test_copies_of_any_length_move_their_bytes_and_no_others() -> None:
    source = np.arange(1, 201, dtype=np.uint8)
    for count in range(130):
        target = np.zeros(200, dtype=np.uint8)
        replay_kernels.copy(target, 7, source, 11, count)
        assert (target[7 : 7 + count] == source[11 : 11 + count]).all()
        assert target[:7].sum() == target[7 + count :].sum() == 0
