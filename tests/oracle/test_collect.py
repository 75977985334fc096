"""Collectors: the same rows by every transport, whole streams, the right policy behind each row."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import hotloop
from hotloop._util.errors import HotloopError
from hotloop.rl.collect.actor_loop import derive_seeds
from hotloop.rl.collect.locked import LockedCollector
from hotloop.rl.collect.processes import ProcessCollector
from hotloop.rl.collect.protocol import Rows, Setup, Spaces, Task, experience_dtype
from hotloop.rl.collect.serial import SerialCollector
from hotloop.rl.collect.transitions import TransitionBuilder
from hotloop.rl.envs.cartpole.env import CartPoleVectorEnv
from tests.collect_envs import Counting, Stacked, Steered, check_streams

KINDS: dict[str, Any] = {"serial": SerialCollector, "processes": ProcessCollector, "locked": LockedCollector}
ONES = np.ones(2, dtype=np.float32)


def gather(collector: Any, rows: int, most: int = 100, least: int = 1, each: int = 0) -> Rows:
    """At least so many rows, and of each collector at least `each`, copied, in the order taken."""
    found: list[Rows] = []
    counts = np.zeros(collector.setup.collectors, dtype=np.int64)
    while counts.sum() < rows or counts.min() < each:
        blocks = collector.take(most, 60.0, least)
        assert blocks, "nothing came for a minute"
        assert sum(map(len, blocks)) <= most
        found += [block.copy() for block in blocks]
        for block in blocks:
            counts += np.bincount(block["collector"], minlength=len(counts))
        collector.release()
    return np.concatenate(found)


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "it did not happen in a minute"
        time.sleep(0.005)


def per_collector(rows: Rows, collectors: int) -> list[Rows]:
    return [rows[rows["collector"] == number] for number in range(collectors)]


@pytest.mark.parametrize("envs", [1, 3])
def test_every_transport_hands_over_the_same_rows(envs: int) -> None:
    task = Task(Counting, Steered, n_weights=2, n_envs=envs, infos=("total", "absent"), seed=5)
    found = {}
    for name, kind in KINDS.items():
        method: Any = "fork" if envs == 3 else "spawn"
        with kind(task, Setup(collectors=2, ring_rows=50, method=method)) as collector:
            collector.publish(ONES)
            rows = gather(collector, 1000, each=300)
            state = collector.state()
        check_streams(rows, envs)
        assert state.rows == len(rows) and state.env_steps == np.count_nonzero(~rows["first"])
        assert state.episodes == np.count_nonzero(rows["terminated"] | rows["truncated"])
        assert (state.dropped, state.restarts, state.failures, state.alive) == (0, 0, (), 2)
        assert np.isnan(rows["info_absent"]).all()
        steps = ~rows["first"]
        np.testing.assert_array_equal(rows["info_total"][steps], rows["frame"][steps, 3])
        found[name] = per_collector(rows, 2)
    for streams in found.values():
        for mine, reference in zip(streams, found["serial"], strict=True):
            both = min(len(mine), len(reference))
            assert both > 100 and mine[:both].tobytes() == reference[:both].tobytes()


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_other_ways_to_start_a_process_give_the_same_rows(method: Any) -> None:
    task = Task(Counting, Steered, n_weights=2, seed=5)
    with SerialCollector(task, Setup(collectors=1)) as collector:
        collector.publish(ONES)
        reference = gather(collector, 300)
    with ProcessCollector(task, Setup(collectors=1, method=method)) as collector:
        collector.publish(ONES)
        rows = gather(collector, 300)
    both = min(len(rows), len(reference))
    assert rows[:both].tobytes() == reference[:both].tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_carry_the_policy_and_the_control_value_that_made_them(kind: str) -> None:
    setup = Setup(collectors=2, ring_rows=16, method="fork")
    with KINDS[kind](Task(Counting, Steered, n_weights=2, control=0.5), setup) as collector:
        for version in (3, 4, 9):
            assert collector.publish(version * ONES, version=version) == version
            rows = gather(collector, 200, most=20, each=50)
            actions = rows["action"][~rows["first"]].astype(np.int64)
            versions = rows["policy_version"][~rows["first"]].astype(np.int64)
            np.testing.assert_array_equal(actions // 10 * 10, 10 * versions + 50)
            assert versions[-1] == version
            for own in per_collector(rows, 2):
                assert (np.diff(own["policy_version"].astype(np.int64)) >= 0).all()
        behind = collector.state().versions_behind
        assert behind == 0.0
        assert collector.publish(control=2.0) == 9
        rows = gather(collector, 200, most=20, each=50)
        actions = rows["action"][~rows["first"]].astype(np.int64)
        assert actions[-1] // 10 * 10 == 290
        with pytest.raises(HotloopError, match="not newer"):
            collector.publish(ONES, version=9)
        with pytest.raises(HotloopError, match="flat float32"):
            collector.publish(np.zeros(3, dtype=np.float32))


def test_staleness_is_the_mean_number_of_versions_behind() -> None:
    with SerialCollector(
        Task(Counting, Steered, n_weights=2), Setup(collectors=1, ring_rows=64)
    ) as collector:
        collector.publish(ONES)
        collector.take(10)
        assert collector.state().versions_behind == 0.0
        collector.publish(2 * ONES, version=5)
        collector.publish(3 * ONES, version=8)
        assert collector.state().published_version == 8
        collector.take(40)
        assert collector.state().versions_behind == 0.0
        leftover = Setup(collectors=1, ring_rows=8, method="fork")
    with ProcessCollector(Task(Counting, Steered, n_weights=2), leftover) as process:
        process.publish(ONES)
        gather(process, 100, most=4)
        wait_until(lambda: process.state().queued == 8)
        process.publish(2 * ONES, version=11)
        blocks = process.take(6)
        assert all((block["policy_version"] == 1).all() for block in blocks)
        assert process.state().versions_behind == 10.0


@pytest.mark.parametrize("kind", ["processes", "locked"])
def test_a_full_queue_holds_collectors_back_and_loses_nothing(kind: str) -> None:
    setup = Setup(collectors=2, ring_rows=8, method="fork")
    with KINDS[kind](Task(Counting, Steered), setup) as collector:
        wait_until(lambda: collector.state().queued == 16)
        before = collector.state().collector_wait_s
        wait_until(lambda: collector.state().collector_wait_s > before + 0.05)
        assert collector.state().queue_fraction == 1.0
        rows = gather(collector, 500, most=5)
        busy = collector.state().collector_busy_fractions
    check_streams(rows)
    assert all(one is not None and 0.0 <= one < 1.0 for one in busy)


@pytest.mark.parametrize("kind", ["processes", "locked"])
def test_dropping_is_counted_and_leaves_whole_episode_starts(kind: str) -> None:
    setup = Setup(collectors=2, ring_rows=8, method="fork", when_full="drop")
    rows: list[Rows] = []
    with KINDS[kind](Task(Counting, Steered, n_envs=2, seed=3), setup) as collector:
        while len(rows) < 60 or collector.state().dropped < 600:
            time.sleep(0.01)  # fills the ring; a collector that has begun a row may wait for room
            rows += [block.copy() for block in collector.take(1000)]
            collector.release()
    taken = np.concatenate(rows)
    for number in range(4):
        own = taken[taken["stream"] == number]
        first, (_, _, step, total) = own["first"], own["frame"].T
        follows = np.diff(total) == 1
        assert (follows | first[1:])[:].all(), "a step without the one before it"
        np.testing.assert_array_equal(step[1:][~first[1:]], step[:-1][~first[1:]] + 1)
    for number in range(2):
        sequence = taken["sequence"][taken["collector"] == number].astype(np.int64)
        assert (np.diff(sequence) > 0).all() and sequence[-1] > len(sequence)


def test_waiting_for_many_rows_gives_many_and_ends_in_time() -> None:
    with ProcessCollector(Task(Counting, Steered), Setup(collectors=2, ring_rows=400, method="fork")) as one:
        rows = sum(map(len, one.take(300, 60.0, min_rows=250)))
        assert 250 <= rows <= 300
    with ProcessCollector(Task(Counting, Steered, n_weights=2), Setup(collectors=1, method="fork")) as two:
        assert list(two.take(10, 0.05)) == []  # no weights, no rows
        assert two.state().learner_wait_s >= 0.05
        assert two.state().lock_wait_s == 0.0


def test_the_locked_queue_times_its_lock() -> None:
    with LockedCollector(
        Task(Counting, Steered), Setup(collectors=2, ring_rows=8, method="fork")
    ) as collector:
        gather(collector, 500, most=4)
        assert collector.state().lock_wait_s > 0.0


class ThreadCounting(Steered):
    """Its actions are the threads that torch and the BLAS libraries may use here."""

    def act(self, observations: Any, control: float, rng: Any) -> Any:
        import torch

        return np.array([10 * torch.get_num_threads() + int(os.environ["OPENBLAS_NUM_THREADS"])])


def test_collectors_compute_with_one_thread() -> None:
    with ProcessCollector(Task(Counting, ThreadCounting), Setup(collectors=1)) as collector:
        rows = gather(collector, 20)
    assert (rows["action"][~rows["first"]] == 11).all()


def make_counting(envs: int, mode: AutoresetMode, seed: int) -> SyncVectorEnv:
    return SyncVectorEnv([partial(Counting, seed + row) for row in range(envs)], autoreset_mode=mode)


class Fixed(Steered):
    """Always the same action."""

    def act(self, observations: Any, control: float, rng: Any) -> Any:
        return np.full(self._envs, 7)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_vector_envs_give_the_rows_of_single_ones(mode: AutoresetMode) -> None:
    with SerialCollector(
        Task(partial(make_counting, 3, mode), Fixed, infos=("total",)), Setup(collectors=1)
    ) as collector:
        vector = gather(collector, 300)
    check_streams(vector, envs=3)
    steps = ~vector["first"]
    np.testing.assert_array_equal(vector["info_total"][steps], vector["frame"][steps, 3])


class Leaning:
    """Pushes the cart towards the side the pole leans to."""

    def __init__(self, spaces: Spaces):
        pass

    def load(self, weights: Any) -> None:
        """Nothing to learn."""

    def act(self, observations: Any, control: float, rng: Any) -> Any:
        return (observations[:, 2] > 0).astype(np.int64)


def test_our_batched_env_without_copies_gives_the_same_in_both_ways_of_autoreset() -> None:
    streams = []
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        make = partial(make_cartpole, mode)
        with SerialCollector(Task(make, Leaning, seed=2), Setup(collectors=1)) as collector:
            rows = gather(collector, 2000)
        fields = ["frame", "action", "reward", "terminated", "truncated", "first", "episode_length"]
        streams.append([rows[rows["env"] == env][fields] for env in range(4)])
    for one, other in zip(*streams, strict=True):
        both = min(len(one), len(other))
        assert both > 200
        for name in fields:
            np.testing.assert_array_equal(one[name][:both], other[name][:both], err_msg=name)


def make_cartpole(mode: AutoresetMode, seed: int) -> CartPoleVectorEnv:
    return CartPoleVectorEnv(4, autoreset_mode=mode, copy=mode == AutoresetMode.NEXT_STEP)


def test_stacks_are_rebuilt_as_the_environment_made_them() -> None:
    task = Task(Stacked, Steered, frame_stack=3, seed=9)
    with ProcessCollector(task, Setup(collectors=1, ring_rows=40, method="fork")) as collector:
        assert collector.dtype["frame"].shape == (5, 4)
        rows = gather(collector, 400)
        pairing = TransitionBuilder(collector.spaces)
    made = pairing.transitions([rows[:150], rows[150:]])
    (seed,), _ = derive_seeds(task, 0, 0)
    env = Stacked(seed)
    observation, _ = env.reset(seed=seed)
    for at in range(len(made.actions)):
        np.testing.assert_array_equal(made.observations[at], observation)
        observation, reward, terminated, truncated, _ = env.step(int(made.actions[at]))
        np.testing.assert_array_equal(made.next_observations[at], observation)
        assert (made.rewards[at], made.terminated[at], made.truncated[at]) == (reward, terminated, truncated)
        if terminated or truncated:
            observation, _ = env.reset()


def test_hotloop_collect_takes_names_and_functions_with_or_without_a_seed() -> None:
    for make in ("CartPole-v1", lambda: gymnasium.make("CartPole-v1"), lambda seed: Counting(seed)):
        with hotloop.collect(make, collectors=1, kind="serial") as collector:
            assert sum(map(len, collector.take(50))) == 50
    with hotloop.collect(lambda: Counting(4), collectors=2, method="spawn") as collector:
        check_rows = gather(collector, 60)
    assert (check_rows["frame"][:, 0] == 4).all()
    with pytest.raises(HotloopError, match="'processes', 'locked', 'serial'"):
        hotloop.collect("CartPole-v1", kind="threads")  # type: ignore[arg-type]
    with pytest.raises(HotloopError, match="Gymnasium id or a function"):
        hotloop.collect(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"collectors": 0}, "collectors=0"),
        ({"ring_rows": -1}, "ring_rows=-1"),
        ({"when_full": "burn"}, "'wait' or 'drop'"),
        ({"method": "thread"}, "'forkserver'"),
        ({"hang_timeout_s": 0.0}, "hang_timeout_s=0.0"),
    ],
)
def test_an_invalid_setup_is_one_sentence(words: dict[str, Any], said: str) -> None:
    with pytest.raises(HotloopError, match=said):
        Setup(**words)


def test_mistakes_of_actors_and_environments_are_one_sentence() -> None:
    class Wrong(Steered):
        def act(self, observations: Any, control: float, rng: Any) -> Any:
            return np.zeros((2, 2))

    wrong = pytest.raises(HotloopError, match=r"actions of shape \(2, 2\)")
    with SerialCollector(Task(Counting, Wrong), Setup(collectors=1)) as collector, wrong:
        collector.take(10)
    with pytest.raises(HotloopError, match="has no reset"):
        SerialCollector(Task(lambda seed: 3, Steered))
    with pytest.raises(HotloopError, match="frame_stack=4 does not fit"):
        SerialCollector(Task(Stacked, Steered, frame_stack=4))
    with pytest.raises(HotloopError, match="autoreset disabled"):
        SerialCollector(Task(partial(make_counting, 2, AutoresetMode.DISABLED), Steered))
    with pytest.raises(HotloopError, match="not a single array"):
        experience_dtype(Spaces(gymnasium.spaces.Dict({"a": Discrete(2)}), Discrete(2), 1))
    unstarted = SerialCollector(Task(Counting, Steered, n_weights=2))
    with pytest.raises(HotloopError, match="before start"):
        unstarted.take(1)
    unstarted.start()
    with pytest.raises(HotloopError, match="before publish"):
        unstarted.take(1)
    unstarted.close()


def test_rows_are_whole_cache_lines_and_hold_every_kind_of_space() -> None:
    for observation, action in (
        (Box(0, 255, (84, 84), np.uint8), Discrete(7)),
        (Discrete(16), Box(-1, 1, (3,), np.float32)),
        (Box(-1, 1, (4,), np.float64), Discrete(2)),
    ):
        dtype = experience_dtype(Spaces(observation, action, 1), ("x_pos",))
        assert dtype.itemsize % 64 == 0 and dtype["frame"].shape == observation.shape
        assert dtype["info_x_pos"] == np.float32
    assert experience_dtype(Spaces(Box(0, 255, (4, 84, 84), np.uint8), Discrete(7), 1, 4)).itemsize < 7200
