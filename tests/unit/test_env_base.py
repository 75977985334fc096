"""The base of all batched environments, on a small made-up one: a random walk written in plain Python."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.batch import NEXT_STEP, SAME_STEP, BatchedEnv
from hotloop.rl.envs.compiled import addresses
from hotloop.rl.envs.single import SingleEnv
from hotloop.rl.envs.streams import make_streams, next_below, next_double, seed_streams
from hotloop.testing.conformance import check_vector_env
from hotloop.testing.trajectories import same

MODES = list(AutoresetMode)


class WalkVectorEnv(BatchedEnv):
    """Left or right by a random length from a random place; the rules end it below 0, time at 9 steps."""

    def __init__(self, num_envs: int = 1, **settings: Any):
        super().__init__(num_envs, Box(-10, 10, (2,), np.float32), Discrete(2), **settings)
        self.place, self.final_place = np.zeros(num_envs), np.zeros(num_envs)

    def _begin(self, row: int) -> None:
        self.place[row] = next_double(self.streams, row)
        self.observations[row] = (self.place[row], 0)
        self.elapsed[row] = 0
        self.over[row] = False

    def _reset_rows(self, rows: NDArray[np.bool_]) -> None:
        for row in np.flatnonzero(rows):
            self._begin(int(row))

    def _step_rows(self, start: int, stop: int) -> int:
        for row in range(self.num_envs):
            if not 0 <= self.actions[row] <= 1:
                return row
        for row in range(start, stop):
            if self.over[row] and self.mode == NEXT_STEP:
                self._begin(int(row))
                self.rewards[row], self.terminated[row], self.truncated[row] = 0, False, False
                continue
            self.elapsed[row] += 1
            length = next_double(self.streams, row)
            self.place[row] += length if self.actions[row] else -length
            self.observations[row] = (self.place[row], self.elapsed[row])
            self.rewards[row] = length
            self.terminated[row] = self.place[row] < 0
            self.truncated[row] = self.elapsed[row] >= 9
            if self.terminated[row] or self.truncated[row]:
                if self.mode == SAME_STEP:
                    self.final_observations[row] = self.observations[row]
                    self.final_place[row] = self.place[row]
                    self._begin(int(row))
                else:
                    self.over[row] = True
        return -1

    def _step_infos(self) -> dict[str, Any]:
        place = self.place.copy() if self.copy else self.place
        return {"place": place, "_place": np.ones(self.num_envs, dtype=bool)}

    def _final_infos(self) -> dict[str, Any]:
        ended = self.terminated | self.truncated
        return {"place": np.where(ended, self.final_place, 0.0), "_place": ended}

    def _state_arrays(self) -> dict[str, NDArray[Any]]:
        return {**super()._state_arrays(), "place": self.place}


def rollout(env: WalkVectorEnv, steps: int = 40, *, first_step: int = 0) -> list[Any]:
    """What `steps` steps give, copied; the actions depend on the number of the step only."""
    seen: list[Any] = []
    for step in range(first_step, first_step + steps):
        actions = np.random.default_rng(step).integers(0, 2, env.num_envs)
        seen.append(copy.deepcopy(env.step(actions)))
        if env.autoreset_mode == AutoresetMode.DISABLED and env.over.any():
            seen.append(copy.deepcopy(env.reset(options={"reset_mask": env.over.copy()})))
    return seen


def assert_same(one: Any, other: Any) -> None:
    assert same(one, other), (one, other)


# ---- random streams


def test_a_stream_equals_numpys_generator() -> None:
    seeds = [0, 1, 12345, 2**31, 2**63, 2**100]
    streams = make_streams(len(seeds))
    seed_streams(streams, seeds)
    for row, seed in enumerate(seeds):
        expected = np.random.default_rng(seed).random(2000)
        assert [next_double(streams, row) for _ in range(2000)] == expected.tolist()


def test_whole_numbers_are_scaled_doubles() -> None:
    streams = make_streams(1)
    seed_streams(streams, [3])
    rng = np.random.default_rng(3)
    assert [next_below(streams, 0, 6) for _ in range(500)] == [int(rng.random() * 6) for _ in range(500)]


def test_without_a_seed_streams_differ() -> None:
    streams = make_streams(2)
    seed_streams(streams, [None, None])
    assert next_double(streams, 0) != next_double(streams, 1)


def test_only_contiguous_arrays_are_handed_over_by_address() -> None:
    table = np.arange(6).reshape(2, 3)
    assert addresses(table, table[1]).tolist() == [table.ctypes.data, table.ctypes.data + 24]
    with pytest.raises(ValueError, match="cannot pass a non-contiguous array"):
        addresses(table[:, 1])


# ---- seeding


def test_one_number_seeds_row_i_with_seed_plus_i() -> None:
    env = WalkVectorEnv(3)
    observations, _ = env.reset(seed=10)
    assert observations[:, 0].tolist() == [
        np.float32(np.random.default_rng(seed).random()) for seed in (10, 11, 12)
    ]


def test_a_list_seeds_each_row_and_none_continues_its_stream() -> None:
    env = WalkVectorEnv(3)
    env.reset(seed=[5, 6, 7])
    observations, _ = env.reset(seed=[5, None, np.int64(7)])  # type: ignore[list-item]
    six = np.random.default_rng(6)
    assert observations[0, 0] == np.float32(np.random.default_rng(5).random())
    assert observations[1, 0] == np.float32([six.random(), six.random()][1])
    assert observations[2, 0] == np.float32(np.random.default_rng(7).random())


def test_reset_without_a_seed_continues_the_stream() -> None:
    env = WalkVectorEnv(1)
    places = [env.reset(seed=4)[0][0, 0], env.reset()[0][0, 0], env.reset()[0][0, 0]]
    rng = np.random.default_rng(4)
    assert places == [np.float32(rng.random()) for _ in range(3)]


def test_a_first_reset_without_a_seed_is_seeded_by_the_system() -> None:
    one, other = WalkVectorEnv(2), WalkVectorEnv(2)
    first, second = one.reset()[0], other.reset()[0]
    assert len({*first[:, 0].tolist(), *second[:, 0].tolist()}) == 4


def test_invalid_seeds_are_refused() -> None:
    env = WalkVectorEnv(3)
    before, _ = env.reset(seed=1)
    wrong: list[Any] = [-1, [1, 2], [1, -2, 3], [1.5, 2, 3], ["a", 1, 2], 1.5]
    for seed in wrong:
        with pytest.raises(HotloopError, match="cannot seed 3 environments"):
            env.reset(seed=seed)
    assert_same(env.reset(seed=1)[0], before)


# ---- partial resets


def test_a_mask_resets_its_rows_and_no_other() -> None:
    env, untouched = WalkVectorEnv(3), WalkVectorEnv(3)
    for batch in (env, untouched):
        batch.reset(seed=0)
        batch.step(np.array([1, 1, 1]))
    observations, _ = env.reset(seed=[50, 51, 52], options={"reset_mask": np.array([False, True, False])})
    assert observations[1].tolist() == [np.float32(np.random.default_rng(51).random()), 0]
    assert_same(env.elapsed, [1, 0, 1])
    one, other = env.step(np.ones(3, dtype=int)), untouched.step(np.ones(3, dtype=int))
    assert_same(one[0][[0, 2]], other[0][[0, 2]])


def test_invalid_masks_are_refused() -> None:
    env = WalkVectorEnv(3)
    env.reset(seed=0)
    for mask in (np.array([True]), np.array([0, 1, 1]), np.zeros(3, dtype=bool), [True, True], "all"):
        with pytest.raises(HotloopError, match="reset_mask"):
            env.reset(options={"reset_mask": mask})
    env.step(np.ones(3, dtype=int))


def test_rows_reset_one_after_the_other_are_ready_when_all_were() -> None:
    env = WalkVectorEnv(2)
    env.reset(seed=3, options={"reset_mask": np.array([True, False])})
    with pytest.raises(HotloopError, match="before row 1 was reset"):
        env.step(np.ones(2, dtype=int))
    observations, _ = env.reset(seed=3, options={"reset_mask": np.array([False, True])})
    assert_same(observations, WalkVectorEnv(2).reset(seed=3)[0])
    env.step(np.ones(2, dtype=int))


# ---- autoreset, copies, threads


def test_it_conforms_in_all_modes() -> None:
    def make(
        num_envs: int, *, autoreset_mode: Any = "NextStep", copy: bool = True, num_threads: int = 1
    ) -> Any:
        return WalkVectorEnv(num_envs, autoreset_mode=autoreset_mode, copy=copy, num_threads=num_threads)

    report = check_vector_env(make, steps=60, num_envs=3, max_episode_steps=9)
    assert set(report.not_checked) == {"twin"}


def test_next_step_resets_in_the_step_after_the_end() -> None:
    env = WalkVectorEnv(1)
    env.reset(seed=0)
    while not env.step([0])[2][0]:
        pass
    observations, rewards, terminated, truncated, _ = env.step([1])
    assert (observations[0, 1], rewards[0], terminated[0], truncated[0]) == (0, 0, False, False)


def test_same_step_gives_the_last_observation_and_the_next_first_one() -> None:
    env = WalkVectorEnv(2, autoreset_mode=AutoresetMode.SAME_STEP)
    env.reset(seed=0)
    for _ in range(9):  # both walk right until time is up
        observations, _, terminated, truncated, infos = env.step([1, 1])
    assert truncated.tolist() == [True, True]
    assert terminated.tolist() == [False, False]
    assert observations[:, 1].tolist() == [0, 0]
    assert [final[1] for final in infos["final_obs"]] == [9, 9]
    assert infos["_final_obs"].tolist() == [True, True]
    assert infos["_final_info"].tolist() == [True, True]
    assert "final_obs" not in env.step([1, 1])[4]


def test_disabled_refuses_to_step_a_row_that_is_over() -> None:
    env = WalkVectorEnv(2, autoreset_mode="Disabled")
    env.reset(seed=0)
    while not env.step([1, 0])[2][1]:
        pass
    with pytest.raises(HotloopError, match="row 1 has ended and autoreset is disabled"):
        env.step([1, 1])
    env.reset(options={"reset_mask": np.array([False, True])})
    env.step([1, 1])


@pytest.mark.parametrize("mode", MODES)
def test_without_copies_the_same_arrays_are_returned_each_time(mode: AutoresetMode) -> None:
    env = WalkVectorEnv(3, copy=False, autoreset_mode=mode)
    first = env.reset(seed=0)[0]
    assert all(
        one is other for one, other in zip(env.step([1, 1, 1])[:4], env.step([1, 1, 1])[:4], strict=True)
    )
    assert env.step([1, 1, 1])[0] is first
    kept = WalkVectorEnv(3, autoreset_mode=mode)
    env.reset(seed=5)
    kept.reset(seed=5)
    for one, other in zip(rollout(env), rollout(kept), strict=True):
        assert_same(one[:4] if len(one) == 5 else one[0], other[:4] if len(other) == 5 else other[0])


def test_the_number_of_threads_changes_nothing() -> None:
    one = WalkVectorEnv(7)
    for threads in (2, 3, 7, 50):
        many = WalkVectorEnv(7, num_threads=threads)
        assert_same(one.reset(seed=0), many.reset(seed=0))
        assert_same(rollout(one), rollout(many))
        assert many.num_threads == min(threads, 7)
        many.close()


# ---- bad input


def test_step_before_reset() -> None:
    env = WalkVectorEnv(2)
    with pytest.raises(HotloopError, match=r"before row 0 was reset"):
        env.step([0, 0])
    env.reset(seed=0)
    env.step([0, 0])


BAD_ACTIONS: list[tuple[Any, str]] = [
    ([0], r"actions of shape \(1,\)"),
    (np.zeros((3, 1), dtype=int), r"actions of shape \(3, 1\)"),
    (np.zeros(3), "type float64"),
    (np.array(["a", "b", "c"]), "do not fit 3 environments"),
    (None, "type object"),
    ([0, 2, 0], "action 2 of row 1 is not in Discrete"),
    ([0, 0, -1], "action -1 of row 2 is not in Discrete"),
]


@pytest.mark.parametrize("threads", [1, 2])
def test_invalid_actions_change_nothing(threads: int) -> None:
    env, other = WalkVectorEnv(3, num_threads=threads), WalkVectorEnv(3)
    env.reset(seed=2)
    other.reset(seed=2)
    for number, (actions, words) in enumerate(BAD_ACTIONS):
        assert_same(rollout(env, 5, first_step=5 * number), rollout(other, 5, first_step=5 * number))
        with pytest.raises(HotloopError, match=words):
            env.step(actions)
    assert_same(rollout(env, 20), rollout(other, 20))
    env.close()


def test_whole_numbers_of_every_kind_are_actions() -> None:
    env, other = WalkVectorEnv(3), WalkVectorEnv(3)
    env.reset(seed=0)
    other.reset(seed=0)
    kinds = [np.array([1, 0, 1], dtype=kind) for kind in (np.int8, np.uint8, np.int32, np.uint64, bool)]
    for given in (*kinds, [1, 0, 1], (1, 0, 1)):
        assert_same(env.step(given), other.step(np.array([1, 0, 1])))


def test_invalid_settings_are_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"num_envs": 0}, "num_envs=0"),
        ({"num_threads": 0}, "num_threads=0"),
        ({"render_mode": "human"}, "unknown render_mode='human'"),
        ({"autoreset_mode": "sometimes"}, "unknown autoreset_mode='sometimes'"),
    ]
    for settings, words in wrong:
        with pytest.raises(HotloopError, match=words):
            WalkVectorEnv(**settings)


# ---- state, copies of the environment, other processes


@pytest.mark.parametrize("mode", MODES)
def test_a_saved_state_continues_with_the_same_numbers(mode: AutoresetMode) -> None:
    env = WalkVectorEnv(4, autoreset_mode=mode)
    env.reset(seed=0)
    rollout(env, 13)
    state = env.save_state()
    expected = rollout(env, 30, first_step=13)
    other = WalkVectorEnv(4, autoreset_mode=mode)
    other.load_state(pickle.loads(pickle.dumps(state)))
    assert_same(rollout(other, 30, first_step=13), expected)
    env.load_state(state)
    assert_same(rollout(env, 30, first_step=13), expected)


def test_a_state_of_another_size_is_refused() -> None:
    env = WalkVectorEnv(4)
    env.reset(seed=0)
    with pytest.raises(HotloopError, match="environment with other settings"):
        WalkVectorEnv(3).load_state(env.save_state())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_copy_of_the_environment_goes_its_own_way(copied: Any, threads: int) -> None:
    env = WalkVectorEnv(4, num_threads=threads)
    env.reset(seed=0)
    rollout(env, 7)
    twin = copied(env)
    expected = rollout(env, 20, first_step=7)
    assert_same(rollout(twin, 20, first_step=7), expected)
    env.close()
    twin.close()


def _steps_in_a_fork(env: WalkVectorEnv, out: Any) -> None:
    out.send([part.tolist() for part in env.step([1, 0, 1, 0])[:4]])


def test_threads_do_not_hang_in_a_forked_process() -> None:
    env = WalkVectorEnv(4, num_threads=2)
    env.reset(seed=0)
    env.step([1, 1, 1, 1])  # the threads exist now, and do not follow into the fork
    here, there = multiprocessing.get_context("fork").Pipe()
    process = multiprocessing.get_context("fork").Process(target=_steps_in_a_fork, args=(env, there))
    process.start()
    assert here.poll(20), "the forked process did not answer"
    assert here.recv() == [part.tolist() for part in env.step([1, 0, 1, 0])[:4]]
    process.join(10)
    here.close()
    there.close()
    env.close()


# ---- one environment


class WalkEnv(SingleEnv):
    def __init__(self) -> None:
        super().__init__(WalkVectorEnv(1, autoreset_mode=AutoresetMode.DISABLED))


def test_the_single_form_passes_gymnasiums_checker() -> None:
    check_env(WalkEnv(), skip_render_check=True)


def test_the_single_form_gives_plain_numbers() -> None:
    env = WalkEnv()
    observation, info = env.reset(seed=1)
    assert observation.shape == (2,)
    assert set(info) == {"place"}
    assert isinstance(info["place"], float)
    _, reward, terminated, truncated, info = env.step(np.int64(1))
    assert [type(value) for value in (reward, terminated, truncated)] == [float, bool, bool]
    assert info["place"] == pytest.approx(float(observation[0]) + reward)


def test_the_single_form_refuses_other_actions() -> None:
    env = WalkEnv()
    env.reset(seed=1)
    for action in (2, -1, 0.5, None, "left", [0]):
        with pytest.raises(HotloopError, match="is not in Discrete"):
            env.step(action)
    env.step(1)


def test_the_single_form_must_be_reset_after_the_end() -> None:
    env = WalkEnv()
    env.reset(seed=0)
    while not env.step(0)[2]:
        pass
    with pytest.raises(HotloopError, match="has ended"):
        env.step(0)
    env.reset()
    env.step(1)
