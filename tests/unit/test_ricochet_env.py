"""Ricochet as an environment: Gymnasium's and other checkers, threads, copies, wrong input, regions."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from hotloop._util.errors import HotloopError
from hotloop.measure.profiler import default
from hotloop.rl.envs.compiled import kernel
from hotloop.rl.envs.ricochet import kernels, kernels_draw
from hotloop.rl.envs.ricochet.config import RicochetConfig
from hotloop.rl.envs.ricochet.env import RicochetEnv, RicochetVectorEnv
from hotloop.rl.envs.ricochet.rules import Ricochet
from hotloop.testing.conformance import check_vector_env

SAME_STEP = AutoresetMode.SAME_STEP
MODES = ("rgb_image", "image", "symbolic")


# ---- as an environment


@pytest.mark.parametrize("lookahead", [1, 2])
def test_looking_ahead_shows_the_move_that_solves_a_board(lookahead: int) -> None:
    env = RicochetVectorEnv(40, obs_mode="symbolic", lookahead=lookahead, max_solution_moves=4)
    observations, infos = env.reset(seed=2)
    assert all(env.single_observation_space.contains(row) for row in observations)
    base = RicochetVectorEnv(1, obs_mode="symbolic").single_observation_space.shape[0]
    assert observations.shape == (40, base + 16 * (2 + lookahead))
    ahead = observations[:, base:].reshape(40, 16, 2 + lookahead)
    solving, moves = env.expert_actions()
    assert ahead[:, :, 2].any(axis=1).tolist() == (moves == 1).tolist()
    assert not ahead[ahead[:, :, 2] == 1.0][:, :2].any()  # the end is the target itself
    at = np.arange(40)
    assert ahead[at, solving, 2].tolist() == (moves == 1).tolist()
    if lookahead == 2:
        assert ahead[at, solving, 3][moves == 2].all() and (moves == 2).sum() > 5
        assert not ahead[moves > 2, :, 3].any()
    assert (moves == infos["optimal_moves"]).all()


@pytest.mark.parametrize("obs_mode", MODES)
def test_the_checkers_of_gymnasium_and_stable_baselines3_pass(obs_mode: str) -> None:
    sb3 = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*It seems that your observation.*is an image.*")
        warnings.filterwarnings("ignore", message=".*The minimal resolution.*")
        warnings.filterwarnings("ignore", message="Treating image space as channels-last.*")
        check_env(gymnasium.make("hotloop/Ricochet-v0", obs_mode=obs_mode, render_mode="rgb_array").unwrapped)
        sb3.check_env(RicochetEnv(obs_mode=obs_mode))


@pytest.mark.parametrize("obs_mode", MODES)
def test_the_conformance_kit_passes_with_the_twin(obs_mode: str) -> None:
    setup: dict[str, Any] = {
        "obs_mode": obs_mode,
        "robots": 2,
        "max_solution_moves": 2,
        "max_episode_steps": 20,
    }

    def make(
        num_envs: int, autoreset_mode: Any = AutoresetMode.NEXT_STEP, num_threads: int = 1, copy: bool = True
    ) -> RicochetVectorEnv:
        modes: dict[str, Any] = {"autoreset_mode": autoreset_mode, "num_threads": num_threads, "copy": copy}
        return RicochetVectorEnv(num_envs, **modes, **setup)

    steps = 30 if obs_mode == "rgb_image" else 60
    report = check_vector_env(
        make, make_twin=lambda seed: Ricochet(RicochetConfig(**setup), seed), steps=steps
    )
    assert not report.not_checked, report


@pytest.mark.parametrize("rendering", ["pil", "compiled"])
def test_threads_change_nothing(rendering: str) -> None:
    setup: dict[str, Any] = {
        "rendering": rendering,
        "max_solution_moves": 3,
        "max_episode_steps": 7,
        "autoreset_mode": SAME_STEP,
    }
    one, two = (RicochetVectorEnv(5, num_threads=threads, **setup) for threads in (1, 2))
    assert np.array_equal(one.reset(seed=4)[0], two.reset(seed=4)[0])
    rng = np.random.default_rng(0)
    for _ in range(20):
        actions = rng.integers(16, size=5)
        expected, seen = one.step(actions), two.step(actions)
        for a, b in zip(seen[:4], expected[:4], strict=True):
            assert np.array_equal(a, b)
    two.close()


def test_a_saved_state_continues_identically() -> None:
    env = RicochetVectorEnv(3, max_episode_steps=9)
    env.reset(seed=2)
    actions = np.random.default_rng(1).integers(16, size=(40, 3))
    for one in actions[:15]:
        env.step(one)
    state = env.save_state()
    expected = [env.step(one)[0] for one in actions[15:]]
    other = RicochetVectorEnv(3, max_episode_steps=9)
    other.load_state(state)
    for one, pictures in zip(actions[15:], expected, strict=True):
        assert np.array_equal(other.step(one)[0], pictures)


def test_another_batch_size_or_board_compiles_nothing_again() -> None:
    for rows, size in ((1, 8), (3, 8), (2, 13)):
        for obs_mode in MODES:
            env = RicochetVectorEnv(rows, board_size=size, obs_mode=obs_mode, max_solution_moves=2)
            env.reset(seed=0)
            env.step(np.zeros(rows, dtype=np.int64))
    every = (
        kernels.step_rows,
        kernels.advance_rows,
        kernels.reset_rows,
        kernels.observe_new_rows,
        kernels_draw.draw_rows,
    )
    assert [len(one.signatures) for one in every] == [1] * len(every)


def test_the_picture_for_people_is_large_and_shows_every_colour() -> None:
    env = gymnasium.make("hotloop/Ricochet-v0", render_mode="rgb_array", robots=5)
    env.reset(seed=3)
    picture: Any = env.render()
    assert picture.shape == (481, 481, 3)
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 8


@kernel
def play(rows: kernels.Rows, actions: Any, seen: Any, options: Any, values: Any) -> float:
    """Somebody else's kernel around ours: steps the first row through the actions."""
    total = 0.0
    for action in actions:
        kernels.step_row(rows, 0, action, options, values)
        kernels.observe_row(rows, 0, options, seen)
        total += rows.rewards[0]
    return total


def test_the_functions_on_one_row_can_be_called_from_other_kernels() -> None:
    one, other = RicochetVectorEnv(1, obs_mode="image"), RicochetVectorEnv(1, obs_mode="image")
    one.reset(seed=6)
    other.reset(seed=6)
    actions = np.random.default_rng(0).integers(16, size=20)
    expected = 0.0
    for number, action in enumerate(actions, start=1):
        _, rewards, terminated, _, _ = one.step(np.array([action]))
        expected += float(rewards[0])
        if terminated[0]:
            actions = actions[:number]
            break
    assert len(actions) > 3
    assert play(other.rows, actions, other.flat, other.options, other.values) == expected
    assert np.array_equal(other.observations, one.observations)


# ---- wrong input


@pytest.mark.parametrize(
    ("setup", "word"),
    [
        ({"board_size": 6}, "board_size=6 .*from 7 to 16"),
        ({"board_size": 17}, "board_size=17 .*from 7 to 16"),
        ({"board_size": 8.0}, "board_size=8.0"),
        ({"robots": 0}, "robots=0 .*from 1 to 5"),
        ({"robots": 6}, "robots=6"),
        ({"max_solution_moves": 0}, "max_solution_moves=0 .*from 1 to 12"),
        ({"max_episode_steps": 0}, "max_episode_steps=0"),
        ({"goal_reward": float("nan")}, "goal_reward=nan"),
        ({"step_reward": "low"}, "step_reward='low'"),
        ({"obs_mode": "rgb"}, "unknown obs_mode='rgb'; use 'rgb_image' or 'image' or 'symbolic'"),
        ({"lookahead": 3, "obs_mode": "symbolic"}, "lookahead=3 .*from 0 to 2"),
        ({"lookahead": 1, "obs_mode": "image"}, "lookahead=1 needs obs_mode='symbolic', not 'image'"),
        ({"rendering": "opengl"}, "unknown rendering='opengl'; use 'compiled' or 'pil'"),
        ({"size": 8}, "Ricochet has no setting 'size'; use board_size, "),
        ({"render_mode": "human"}, "render_mode='human'"),
    ],
)
def test_a_wrong_setting_is_one_clear_error(setup: dict[str, Any], word: str) -> None:
    with pytest.raises(HotloopError, match=word):
        RicochetVectorEnv(2, **setup)


@pytest.mark.parametrize("obs_mode", MODES)
def test_a_wrong_action_changes_nothing(obs_mode: str) -> None:
    env = RicochetVectorEnv(3, obs_mode=obs_mode, robots=2)
    env.reset(seed=0)
    before = env.save_state()
    for actions in (np.array([0, 8, 0]), np.array([0, 0, -1])):
        with pytest.raises(HotloopError, match="is not in Discrete"):
            env.step(actions)
    for actions in (np.zeros(2, dtype=np.int64), np.zeros(3)):
        with pytest.raises(HotloopError, match="do not fit 3 environments"):
            env.step(actions)
    for name, array in env.save_state().items():
        assert np.array_equal(array, before[name])
    env.step(np.array([7, 0, 3]))


# ---- regions


def nested(node: Any, above: str = "") -> dict[str, int]:
    """Every region as "outer > inner", and how often it ran."""
    found: dict[str, int] = {}
    for child in node.children:
        here = f"{above} > {child.name}" if above else child.name
        found |= {here: child.calls} | nested(child, here)
    return found


@pytest.mark.parametrize("rendering", ["pil", "compiled"])
def test_regions_are_named_and_nested_as_they_run(rendering: str) -> None:
    env = RicochetVectorEnv(2, rendering=rendering)
    env.reset(seed=0)
    default.start(memory=False)
    try:
        for _ in range(3):
            env.step(np.array([0, 1]))
        seen = nested(default.capture().tree)
    finally:
        default.stop()
    outer = "env_rgb_observation_generation"
    inner = f"{outer} > env_rgb_rendering"
    if rendering == "compiled":
        assert seen == {outer: 3}
    else:
        parts = ("grid", "walls", "robots", "target")
        assert seen == {
            outer: 6,
            inner: 6,
            f"{outer} > env_rgb_resizing": 6,
            **{f"{inner} > env_rgb_draw_{part}": 6 for part in parts},
        }
