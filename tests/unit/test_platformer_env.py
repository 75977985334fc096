"""The platformer as an environment: checkers, the conformance kit, settings, pictures."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import hotloop.rl.envs  # noqa: F401
from hotloop._util.errors import HotloopError
from hotloop.rl.envs.frame_preprocessing import FramePreprocessing
from hotloop.rl.envs.platformer.config import PlatformerConfig
from hotloop.rl.envs.platformer.env import PlatformerEnv, PlatformerVectorEnv
from hotloop.rl.envs.platformer.rules import make_twin
from hotloop.testing.conformance import check_vector_env

SMALL = FramePreprocessing(skip=3, size=12, stack=2)


@pytest.mark.parametrize(
    "preprocessing", [FramePreprocessing(), None, FramePreprocessing(gray=False, stack=1)]
)
def test_the_checkers_of_gymnasium_and_stable_baselines3_pass(
    preprocessing: FramePreprocessing | None,
) -> None:
    sb3 = pytest.importorskip("stable_baselines3.common.env_checker")
    made = gymnasium.make("hotloop/Platformer-v0", preprocessing=preprocessing, render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Stable-Baselines3 has opinions on the shape of pictures
        sb3.check_env(PlatformerEnv(preprocessing=preprocessing))
    check_env(made.unwrapped)


def rightwards(_env: Any, _infos: Any, rng: Any) -> Any:
    return rng.choice([1, 2, 3, 4, 4, 6], _env.num_envs)


def test_the_conformance_kit_passes() -> None:
    setup: dict[str, Any] = {"difficulty": "hard", "preprocessing": SMALL, "max_episode_steps": 25}

    def make(
        num_envs: int, autoreset_mode: Any = "NextStep", num_threads: int = 1, copy: bool = True
    ) -> PlatformerVectorEnv:
        return PlatformerVectorEnv(
            num_envs, autoreset_mode=autoreset_mode, num_threads=num_threads, copy=copy, **setup
        )

    config = PlatformerConfig(**setup)
    report = check_vector_env(
        make,
        make_twin=lambda seed: make_twin(config, seed),
        num_envs=2,
        steps=36,
        seeds=(0, 1000),
        choose=rightwards,
    )
    assert "twin" in report.checked and not report.not_checked, report


def test_default_observations_and_the_newest_frame_for_collectors() -> None:
    env = PlatformerVectorEnv(3, autoreset_mode="SameStep", copy=False)
    observations, infos = env.reset(seed=0)
    assert observations.shape == (3, 4, 84, 84) and observations.dtype == np.uint8
    assert env.newest_frame.shape == (3, 84, 84) and np.shares_memory(env.newest_frame, env.observations)
    wanted = {"x_pos", "y_pos", "coins", "score", "time", "life", "flag_get", "status"}
    assert {name for name in infos if not name.startswith("_")} == wanted
    one = PlatformerEnv()
    _, info = one.reset(seed=0)
    assert info == {
        "x_pos": 48,
        "y_pos": 32,
        "coins": 0,
        "score": 0,
        "time": 400,
        "life": 2,
        "flag_get": False,
        "status": "small",
    }
    assert one.newest_frame.shape == (84, 84)


def test_frames_are_pictures_of_the_game() -> None:
    env = PlatformerEnv(level=0, preprocessing=None, render_mode="rgb_array")
    frame, _ = env.reset(seed=0)
    assert frame.shape == (240, 256, 3) and np.array_equal(np.asarray(env.render()), frame)
    assert len(np.unique(frame.reshape(-1, 3), axis=0)) > 30  # colours
    for _ in range(75):
        later, *_ = env.step(3)
    assert (later[100:200] != frame[100:200]).any(axis=-1).mean() > 0.2  # hills and ground have scrolled
    assert env.metadata["render_fps"] == 60 and PlatformerEnv().metadata["render_fps"] == 15


def test_threads_change_nothing_and_copies_are_independent() -> None:
    one, four = (PlatformerVectorEnv(7, num_threads=threads, autoreset_mode="SameStep") for threads in (1, 4))
    rng = np.random.default_rng(0)
    one.reset(seed=5), four.reset(seed=5)
    copied = pickle.loads(pickle.dumps(four))
    for _ in range(40):
        actions = rng.integers(0, 7, 7)
        expected = one.step(actions)[0]
        assert np.array_equal(expected, four.step(actions)[0])
        assert np.array_equal(expected, copied.step(actions)[0])
    four.close(), copied.close()


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"difficulty": "brutal"}, "easy, normal, hard"),
        ({"level": -1}, "at least 0"),
        ({"level": True}, "at least 0"),
        ({"preprocessing": 4}, "raw RGB frames"),
        ({"max_episode_steps": 0}, "at least 1"),
        ({"render_mode": "human"}, "rgb_array"),
    ],
)
def test_invalid_settings_are_refused_with_the_allowed_values(wrong: dict[str, Any], word: str) -> None:
    with pytest.raises(HotloopError, match=word):
        PlatformerVectorEnv(1, **wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"skip": 0},
        {"size": 7},
        {"size": 241},
        {"stack": 0},
        {"skip": 2.5},
        {"gray": 1},
        {"show_jump_button": 1},
    ],
)
def test_invalid_preprocessing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(HotloopError, match=r"is out of range; use|use True or False"):
        FramePreprocessing(**wrong)


@pytest.mark.parametrize("gray", [True, False])
def test_the_top_of_a_frame_shows_whether_a_is_down(gray: bool) -> None:
    hidden, shown = (
        PlatformerVectorEnv(
            1, level=3, preprocessing=FramePreprocessing(size=36, gray=gray, show_jump_button=show)
        )
        for show in (False, True)
    )
    for env in (hidden, shown):
        env.reset(seed=0)
    assert not shown.newest_frame[0, :4].any()
    for action, level in ((4, 255), (3, 0), (5, 255), (0, 0)):
        for env in (hidden, shown):
            env.step(np.array([action]))
        assert (shown.newest_frame[0, :4] == level).all()
        assert np.array_equal(shown.observations[0, :, 4:], hidden.observations[0, :, 4:])
    assert [int(frame[:4].max()) for frame in shown.observations[0]] == [255, 0, 255, 0]


def test_the_old_module_names_the_new_one() -> None:
    with pytest.raises(ImportError, match=r"import FramePreprocessing .* preprocessing="):
        from hotloop.rl.envs.chain import Chain  # noqa: F401


def test_a_wrong_action_is_refused_and_nothing_is_stepped() -> None:
    env = PlatformerVectorEnv(3, preprocessing=SMALL)
    env.reset(seed=0)
    before = env.save_state()
    with pytest.raises(HotloopError, match="action 7 of row 1"):
        env.step(np.array([0, 7, 0]))
    assert all((before[name] == value).all() for name, value in env.save_state().items())
    env.step(np.zeros(3, dtype=np.int64))
