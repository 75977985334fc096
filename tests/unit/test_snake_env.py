"""Snake as an environment: Gymnasium's and SB3's checkers, settings, threads, copies, regions, mistakes."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check
from gymnasium.vector import AutoresetMode

import hotloop.rl.envs  # noqa: F401
from hotloop._util.errors import HotloopError
from hotloop.measure.profiler import default
from hotloop.rl.envs import compiled
from hotloop.rl.envs.snake.config import BASE_FEATURES, SnakeConfig
from hotloop.rl.envs.snake.env import SnakeEnv, SnakeVectorEnv
from hotloop.rl.envs.snake.kernels import reset_row, step_batch, step_row
from hotloop.rl.envs.snake.layout import (
    DIED,
    OUTCOME,
    make_boards,
    make_options,
    make_payoffs,
    make_snakes,
)
from hotloop.rl.envs.snake.observe import observe_row
from hotloop.rl.envs.snake.rules import SnakeRules
from hotloop.rl.envs.streams import make_streams, seed_streams
from hotloop.testing.conformance import check_vector_env

OBSERVATIONS = ("features", "planes", "planes5", "grid")
SETTINGS: list[dict[str, Any]] = [
    *({"observation": kind} for kind in OBSERVATIONS),
    *({"flood_fill": kind} for kind in ("compiled", "cached", "every_k")),
    {"actions": "absolute", "tail_blocks": True, "split_regions": True},
]


def play(env: SnakeVectorEnv, steps: int, seed: int = 3, first_row: int = 0) -> list[Any]:
    """What random actions give; row r of any batch takes the same ones."""
    seen: list[Any] = [env.reset(seed=seed + first_row)]
    for step in range(steps):
        rng = np.random.default_rng(step)
        actions = rng.integers(0, env.single_action_space.n, 64)[first_row : first_row + env.num_envs]  # type: ignore[attr-defined]
        seen.append(env.step(actions))
    return seen


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) or (isinstance(one, np.ndarray) and one.dtype == object):
        return len(one) == len(other) and all(equal(a, b) for a, b in zip(one, other, strict=True))
    return bool(np.array_equal(one, other))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_checkers_find_nothing(settings: dict[str, Any]) -> None:
    from stable_baselines3.common.env_checker import check_env as sb3_check

    env = SnakeEnv(render_mode="rgb_array", size=6, **settings)
    features = settings.get("observation", "features") == "features"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gymnasium_check(env, skip_render_check=True)
        # SB3 warns that planes and grids are no images for its own network, which they are not.
        warnings.simplefilter("error" if features else "ignore")
        sb3_check(env)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_batch_conforms(settings: dict[str, Any]) -> None:
    rules = {name: value for name, value in settings.items() if name != "split_regions"}

    def make(num_envs: int, autoreset_mode: Any = "NextStep", num_threads: int = 1, copy: bool = True) -> Any:
        return SnakeVectorEnv(
            num_envs,
            autoreset_mode=autoreset_mode,
            num_threads=num_threads,
            copy=copy,
            size=5,
            max_episode_steps=20,
            **settings,
        )

    check_vector_env(
        make,
        make_twin=lambda seed: SnakeRules(SnakeConfig(size=5, max_episode_steps=20, **rules), seed),
        steps=60,
    )


def test_gymnasium_makes_it() -> None:
    one = gymnasium.make("hotloop/Snake-v0", size=8, observation="planes", render_mode="rgb_array")
    observation, info = one.reset(seed=1)
    assert observation.shape == (3, 8, 8)
    assert info == {"length": 3}
    picture = one.render()
    assert picture.shape == (320, 320, 3)
    assert picture.dtype == np.uint8
    many = gymnasium.make_vec("hotloop/Snake-v0", num_envs=5, size=8, observation="grid", max_episode_steps=7)
    observations, infos = many.reset(seed=1)
    assert observations.shape == (5, 8, 8)
    assert observations.dtype == np.uint8
    assert infos["length"].tolist() == [3] * 5
    assert many.unwrapped.config.max_episode_steps == 7  # type: ignore[attr-defined]
    one.close()
    many.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"size": 3}, "size=3"),
        ({"size": 65}, "4 to 64"),
        ({"size": 8.0}, "size=8.0"),
        ({"observation": "pixels"}, "features, planes, planes5, grid"),
        ({"flood_fill": "fast"}, "off, python, cached, every_k, compiled, every_k_compiled"),
        ({"actions": "diagonal"}, "relative, absolute"),
        ({"observation": "grid", "flood_fill": "compiled"}, "flood_fill='off'"),
        ({"flood_every": 0}, "flood_every=0"),
        ({"max_episode_steps": 0}, "max_episode_steps=0"),
        ({"speed": 2}, "no setting speed"),
    ],
)
def test_an_invalid_setting_is_one_sentence(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(HotloopError, match=words):
        SnakeVectorEnv(2, **settings)


@pytest.mark.parametrize("flood", ["off", "python"])
def test_a_wrong_action_changes_nothing(flood: str) -> None:
    env = SnakeVectorEnv(4, flood_fill=flood)
    env.reset(seed=0)
    before = env.save_state()
    for actions in ([0, 0, 3, 0], [0, -1, 0, 0], [0, 0, 0], [0.0, 1.0, 0.0, 0.0]):
        with pytest.raises(HotloopError):
            env.step(np.array(actions))
        assert equal(before, env.save_state())
    env.step(np.array([0, 1, 2, 0]))
    assert not equal(before, env.save_state())


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_rows_do_not_depend_on_the_batch_or_the_threads(settings: dict[str, Any]) -> None:
    whole = play(SnakeVectorEnv(9, size=6, autoreset_mode="SameStep", **settings), 40)
    env = SnakeVectorEnv(9, size=6, autoreset_mode="SameStep", num_threads=3, **settings)
    assert equal(whole, play(env, 40))
    env.close()
    part = play(SnakeVectorEnv(2, size=6, autoreset_mode="SameStep", **settings), 40, first_row=4)
    for large, small in zip(whole[1:], part[1:], strict=True):
        for a, b in zip(large[:4], small[:4], strict=True):
            assert np.array_equal(a[4:6], b)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_saved_or_copied_batch_continues_identically(settings: dict[str, Any]) -> None:
    env = SnakeVectorEnv(6, size=6, **settings)
    play(env, 15)
    fresh = SnakeVectorEnv(6, size=6, **settings)
    fresh.load_state(env.save_state())
    others = [fresh, copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
    rng = np.random.default_rng(0)
    for _ in range(30):
        actions = rng.integers(0, 3, 6)
        expected = env.step(actions)
        assert all(equal(expected, other.step(actions)) for other in others)


def test_another_batch_size_compiles_nothing() -> None:
    compiled = set()
    for rows in (1, 2, 33):
        for kind in OBSERVATIONS:
            play(SnakeVectorEnv(rows, observation=kind, size=4 + rows % 3), 3)
        compiled.add(len(step_batch.signatures))  # type: ignore[attr-defined]
    assert len(compiled) == 1


def test_without_copies_the_arrays_themselves_are_returned() -> None:
    env = SnakeVectorEnv(3, copy=False, observation="grid")
    first, infos = env.reset(seed=0)
    second, *_, later = env.step(np.zeros(3, dtype=np.int64))
    assert first is second is env.observations
    assert np.shares_memory(infos["length"], env.snakes)
    assert np.shares_memory(later["length"], env.snakes)


def test_every_kth_step_keeps_old_areas_in_between() -> None:
    """A change of meaning, not only of speed: the features are up to k - 1 steps old."""
    env = SnakeVectorEnv(1, flood_fill="every_k", flood_every=3, autoreset_mode="Disabled", size=9)
    exact = SnakeVectorEnv(1, flood_fill="compiled", autoreset_mode="Disabled", size=9)
    areas = [batch.reset(seed=1)[0][0, BASE_FEATURES:] for batch in (env, exact)]
    assert np.array_equal(areas[0], areas[1])
    old, differs = areas[0], False
    for step, action in enumerate([0, 0, 0, 0, 1, 0, 0], start=1):  # at step 4 a wall is ahead
        seen, truth = (batch.step(np.array([action]))[0][0, BASE_FEATURES:] for batch in (env, exact))
        assert np.array_equal(seen, truth if step % 3 == 0 else old)
        differs = differs or not np.array_equal(seen, truth)
        old = seen
    assert differs


def test_cached_remembers_what_it_has_seen() -> None:
    env = SnakeVectorEnv(8, flood_fill="cached")
    env.reset(seed=0)
    known = env._row_flood._known
    assert known is not None
    assert len(known) == 1  # all snakes begin alike
    env.step(np.zeros(8, dtype=np.int64))
    assert len(known) == 2


def test_the_parts_of_a_step_are_regions() -> None:
    def regions(**settings: Any) -> dict[str, int]:
        default.start()
        try:
            play(SnakeVectorEnv(4, size=5, autoreset_mode="SameStep", **settings), 20)
            return {node.name: node.calls for node in default.capture().tree.children}
        finally:
            default.stop()

    assert regions(flood_fill="compiled") == {}
    found = regions(flood_fill="cached")
    assert set(found) == {"env_collision", "env_features", "env_flood_fill"}
    assert found["env_collision"] == 20
    assert set(regions(flood_fill="compiled", split_regions=True)) == set(found)
    assert set(regions(split_regions=True)) == {"env_collision", "env_features"}


@compiled.kernel
def rollout(
    snakes: Any, boards: Any, streams: Any, elapsed: Any, options: Any, payoffs: Any, seen: Any, steps: int
) -> float:
    """A loop of another kernel around the rows: turns left whenever straight on is a danger."""
    total = 0.0
    for row in range(len(elapsed)):
        reset_row(snakes, boards, streams, elapsed, options, row)
        observe_row(snakes, boards, options, row, seen)
        for _ in range(steps):
            action = 1 if seen[row, 0] == 1.0 else 0
            total += step_row(snakes, boards, streams, elapsed, options, payoffs, row, action)
            observe_row(snakes, boards, options, row, seen)
            if snakes[row, OUTCOME] >= DIED:
                reset_row(snakes, boards, streams, elapsed, options, row)
                observe_row(snakes, boards, options, row, seen)
    return total


@pytest.mark.long
def test_rows_can_be_stepped_from_another_kernel() -> None:
    config, rows, steps = SnakeConfig(size=6, step_reward=-0.25), 5, 200
    snakes, boards, streams = make_snakes(rows, 6), make_boards(rows, 6), make_streams(rows)
    seed_streams(streams, range(rows))
    seen = np.zeros((rows, BASE_FEATURES), dtype=np.float32)
    elapsed = np.zeros(rows, dtype=np.int32)
    total = rollout(snakes, boards, streams, elapsed, make_options(config), make_payoffs(config), seen, steps)
    expected = 0.0
    for row in range(rows):
        rules = SnakeRules(config, row)
        observation, _ = rules.reset()
        for _ in range(steps):
            observation, reward, terminated, *_ = rules.step(1 if observation[0] == 1 else 0)
            expected += reward
            if terminated:
                observation, _ = rules.reset()
        assert np.array_equal(observation, seen[row])
    assert total == expected


def test_a_picture_shows_head_and_food() -> None:
    env = SnakeVectorEnv(2, size=10, render_mode="rgb_array", observation="grid")
    grids, _ = env.reset(seed=0)
    pictures = env.render()
    assert pictures is not None
    for grid, picture in zip(grids, pictures, strict=True):
        cells = picture.reshape(10, 32, 10, 32, 3).mean(axis=(1, 3))
        assert picture.shape == (320, 320, 3)
        redness = cells[..., 0] - cells[..., 1]
        assert redness.argmax() == grid.ravel().tolist().index(4)
        greenness = cells[..., 1] - cells[..., 0]
        assert set(np.argsort(greenness.ravel())[-3:]) == set(np.flatnonzero(np.isin(grid, (1, 2, 3))))


def test_a_row_that_is_over_waits_for_its_reset() -> None:
    env = SnakeVectorEnv(2, size=4, autoreset_mode=AutoresetMode.DISABLED)
    env.reset(seed=0)
    for _ in range(2):
        env.step(np.array([0, 1]))
    assert env.terminated.tolist() == [True, False]
    with pytest.raises(HotloopError, match="row 0 has ended"):
        env.step(np.array([0, 0]))
    env.reset(options={"reset_mask": np.array([True, False])})
    env.step(np.array([1, 0]))
