"""The compiled track against its rules, step by step, and facts about driving."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.env_checker import check_env as sb3_check_env

import hotloop.rl.envs  # noqa: F401
from hotloop._util.errors import HotloopError
from hotloop.rl.envs.track.env import TrackEnv, TrackVectorEnv
from hotloop.rl.envs.track.expert import expert_actions
from hotloop.rl.envs.track.line import CLEARANCE_M, LEAST_RADIUS_M, draw_line
from hotloop.rl.envs.track.rules import Track, TrackConfig
from hotloop.testing.conformance import check_vector_env


def actions_for(observations: np.ndarray, step: int, rng: np.random.Generator) -> np.ndarray:
    """Good driving with noise, and now and then a wild stretch that crashes."""
    rows = len(observations)
    if step % 200 > 150:
        return (rng.uniform(-1.0, 1.0, (rows, 2)) + np.array([0.6, 0.7])).astype(np.float32)
    return (expert_actions(observations) + rng.normal(0.0, 0.5, (rows, 2))).astype(np.float32)


def hold_to_rules(projection: Any, track_seed: int, points: int, seed: int, steps: int, rows: int) -> int:
    """Step the batch and its rows' rules side by side; returns how many episodes ended."""
    env = TrackVectorEnv(
        rows, projection=projection, track_seed=track_seed, track_points=points, max_episode_steps=300
    )
    twins = [Track(env.line, env.config, np.random.default_rng(seed + row)) for row in range(rows)]
    observations, infos = env.reset(seed=seed)
    for row, twin in enumerate(twins):
        expected, info = twin.reset()
        assert (observations[row] == expected).all() and infos["lap_fraction"][row] == info["lap_fraction"]
    rng, over, ended = np.random.default_rng(seed), [False] * rows, 0
    for step in range(steps):
        actions = actions_for(observations, step, rng)
        observations, rewards, terminated, truncated, infos = env.step(actions)
        for row, twin in enumerate(twins):
            if over[row]:
                expected, info = twin.reset()
                judged = [0.0, False, False]
            else:
                expected, *judged, info = twin.step(actions[row])
            assert (observations[row] == expected).all(), (step, row)
            assert (rewards[row], terminated[row], truncated[row]) == tuple(judged), (step, row)
            assert infos["lap_fraction"][row] == info["lap_fraction"], (step, row)
            over[row] = bool(judged[1] or judged[2])
            ended += over[row]
    return ended


@pytest.mark.parametrize("projection", ["all", "near"])
@settings(max_examples=4, deadline=None, derandomize=True)
@given(track_seed=st.integers(0, 50), points=st.integers(60, 200), seed=st.integers(0, 10**6))
def test_kernels_follow_the_rules(projection: str, track_seed: int, points: int, seed: int) -> None:
    assert hold_to_rules(projection, track_seed, points, seed, steps=450, rows=2) > 0


@pytest.mark.long
@pytest.mark.parametrize("projection", ["all", "near"])
def test_kernels_follow_the_rules_for_long(projection: str) -> None:
    assert hold_to_rules(projection, 0, 600, 7, steps=25_000, rows=4) > 100


def test_both_projections_give_the_same_numbers_over_a_hundred_thousand_steps() -> None:
    envs = [TrackVectorEnv(256, projection=projection, copy=False) for projection in ("all", "near")]
    seen = [env.reset(seed=3)[0] for env in envs]
    rng = np.random.default_rng(0)
    for step in range(400):
        actions = actions_for(seen[0], step, rng)
        results = [env.step(actions) for env in envs]
        for everywhere, near in zip(*(result[:4] for result in results), strict=True):
            assert (everywhere == near).all(), step
        seen = [result[0] for result in results]
    assert (envs[0].segments == envs[1].segments).all()


def test_the_expert_drives_laps_and_never_crashes() -> None:
    env = TrackVectorEnv(16, autoreset_mode=AutoresetMode.SAME_STEP)
    observations, _ = env.reset(seed=1)
    laps = 0
    for _ in range(2200):
        observations, rewards, terminated, truncated, infos = env.step(expert_actions(observations))
        assert not terminated.any()
        laps += int(truncated.sum())
        if truncated.any():
            assert (infos["final_info"]["lap_fraction"][truncated] >= 1.0).all()
    assert laps >= 16 and rewards.mean() > 0.9


@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000))
def test_lines_are_even_gentle_and_never_near_to_themselves(seed: int) -> None:
    line = draw_line(seed)
    assert len(line.points) == 600 and line.lap_m == pytest.approx(300.0, rel=1e-3)
    assert line.lengths.max() / line.lengths.min() < 1.01
    far = np.linalg.norm(line.points[0] - line.points, axis=1)
    assert far[60:-60].min() >= CLEARANCE_M
    following = np.roll(line.tangents, -1, axis=0)
    turn = np.arccos(np.clip((line.tangents * following).sum(axis=1), -1, 1))
    assert (line.lengths / np.maximum(turn, 1e-9)).min() > 0.95 * LEAST_RADIUS_M


def test_one_car_passes_the_checkers() -> None:
    check_env(gymnasium.make("hotloop/Track-v0").unwrapped, skip_render_check=True)
    sb3_check_env(TrackEnv())


@pytest.mark.parametrize("projection", ["all", "near"])
def test_the_conformance_kit_passes_with_the_twin(projection: Any) -> None:
    setup: dict[str, Any] = {"track_points": 80, "max_episode_steps": 25}
    config = TrackConfig(**setup)
    line = draw_line(config.track_seed, config.track_points, config.lap_m)

    def make(
        num_envs: int, autoreset_mode: Any = AutoresetMode.NEXT_STEP, num_threads: int = 1, copy: bool = True
    ) -> TrackVectorEnv:
        modes: dict[str, Any] = {"autoreset_mode": autoreset_mode, "num_threads": num_threads, "copy": copy}
        return TrackVectorEnv(num_envs, projection=projection, **modes, **setup)

    report = check_vector_env(
        make, make_twin=lambda seed: Track(line, config, np.random.default_rng(seed)), steps=60
    )
    assert not report.not_checked, report


def test_pictures_show_the_car_where_it_is() -> None:
    env = TrackVectorEnv(2, render_mode="rgb_array")
    env.reset(seed=0)
    first, second = env.render() or ()
    assert first.shape == (480, 480, 3) and first.dtype == np.uint8
    red = [np.argwhere((frame[..., 0] > 190) & (frame[..., 1] < 90)) for frame in (first, second)]
    assert len(red[0]) > 20 and not np.array_equal(red[0].mean(axis=0), red[1].mean(axis=0))


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"projection": "nearest"}, "near"),
        ({"crash_m": 9.0}, "at most 5"),
        ({"track_points": 10}, "at least 60"),
        ({"speed": 3}, "no setting 'speed'"),
        ({"target_speed": 0.0}, "above 0"),
    ],
)
def test_invalid_settings_are_refused_with_the_allowed_values(wrong: dict[str, Any], word: str) -> None:
    with pytest.raises(HotloopError, match=word):
        TrackVectorEnv(1, **wrong)


def test_an_action_that_is_not_finite_is_refused_and_nothing_is_stepped() -> None:
    env = TrackVectorEnv(3)
    env.reset(seed=0)
    before = env.save_state()
    with pytest.raises(HotloopError, match="row 1"):
        env.step(np.array([[0, 0], [np.nan, 0], [0, 0]], dtype=np.float32))
    assert all((before[name] == value).all() for name, value in env.save_state().items())
    env.step(np.zeros((3, 2), dtype=np.float32))
