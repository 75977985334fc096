"""Super Mario Bros in its emulator as a Gymnasium environment on current numpy."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import hotloop
import hotloop.rl.envs
from hotloop._util.errors import HotloopError
from hotloop.rl.envs.frame_preprocessing import FramePreprocessing, PreprocessedGame, preprocess_frame
from hotloop.rl.envs.mario import BUTTONS, INFOS, MarioEnv

installed = pytest.mark.skipif(
    subprocess.run(
        [sys.executable, "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('nes_py') is None)"],
        check=False,
    ).returncode
    != 0,
    reason="the extra `mario` is not installed: pip install 'hotloop[mario]'",
)


@pytest.fixture
def raw() -> Iterator[MarioEnv]:
    env = MarioEnv(preprocessing=None, render_mode="rgb_array")
    yield env
    env.close()


@installed
def test_the_checker_of_gymnasium_passes_and_nothing_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*render modes.*")
        env = gymnasium.make("hotloop/Mario-v0", render_mode="rgb_array").unwrapped
        check_env(env, skip_close_check=True)
    env.close()


@installed
def test_running_right_is_rewarded_by_progress_and_clock(raw: MarioEnv) -> None:
    frame, info = raw.reset(seed=0)
    assert frame.shape == (240, 256, 3) and set(info) == set(INFOS)
    assert info["status"] == "small" and info["life"] == 2 and type(info["x_pos"]) is int
    start, clock, gained = info["x_pos"], info["time"], 0.0
    for _ in range(70):
        frame, reward, terminated, truncated, info = raw.step(3)
        gained += reward
        assert isinstance(reward, float) and terminated is False and truncated is False
    assert info["x_pos"] > start + 50
    assert gained == info["x_pos"] - start + info["time"] - clock
    assert np.array_equal(np.asarray(raw.render()), frame)


@installed
def test_a_death_costs_and_terminates(raw: MarioEnv) -> None:
    raw.reset()
    for _ in range(2000):  # into the first enemy
        _, reward, terminated, truncated, info = raw.step(1)
        if terminated:
            break
    assert terminated and not truncated and -15 <= reward <= -12 and not info["flag_get"]
    with pytest.raises(HotloopError, match="call reset"):
        raw.step(0)
    raw.reset()
    raw.step(0)


@installed
def test_frames_are_preprocessed_as_in_the_platformer_to_the_bit(raw: MarioEnv) -> None:
    class Game:
        held_jump = False

        def reset(self) -> Any:
            self.held_jump = False
            return raw.reset()

        def step(self, action: int) -> Any:
            self.held_jump = action in (2, 4, 5)
            return raw.step(action)

    preprocessing = FramePreprocessing(show_jump_button=True)
    ours, plain = MarioEnv(preprocessing=preprocessing), PreprocessedGame(Game(), preprocessing)
    assert np.array_equal(ours.reset()[0], plain.reset()[0])
    rng = np.random.default_rng(1)
    for _ in range(40):
        action = int(rng.choice([1, 2, 3, 4]))
        one, other = ours.step(action), plain.step(action)
        assert np.array_equal(one[0], other[0]) and one[1:] == other[1:]
    assert ours.observation_space.contains(one[0])
    ours.close()


@installed
def test_stages_colours_and_limits() -> None:
    env = MarioEnv(
        world=4, stage=2, preprocessing=FramePreprocessing(gray=False, size=60, stack=2), max_episode_steps=3
    )
    first, _ = env.reset()
    assert first.shape == (2, 60, 60, 3) and np.array_equal(first[0], first[1])
    outcomes = [env.step(0)[2:4] for _ in range(3)]
    assert outcomes == [(False, False), (False, False), (False, True)]
    env.close()
    env.close()  # a second time is nothing


@installed
def test_the_same_actions_give_the_same_episode() -> None:
    seen = []
    for _ in range(2):
        env = MarioEnv(rom="rectangle")
        env.reset(seed=3)
        seen.append([env.step(action)[0] for action in (4, 4, 3, 2, 1, 4, 4)])
        env.close()
    assert np.array_equal(seen[0], seen[1])


def test_the_actions_are_the_platformers() -> None:
    right, left, b, a = 128, 64, 2, 1
    assert (0, right, right | a, right | b, right | a | b, a, left) == BUTTONS


def test_without_the_extra_one_sentence_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['gym_super_mario_bros'] = None\n"
        "from hotloop.rl.envs.mario import MarioEnv\n"
        "try: MarioEnv()\n"
        "except Exception as problem: print(type(problem).__name__, problem)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("HotloopError") and "pip install 'hotloop[mario]'" in done.stdout
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"world": 9}, "1 to 8"),
        ({"stage": 0}, "1 to 4"),
        ({"rom": "gold"}, "vanilla"),
        ({"preprocessing": "gray"}, "raw RGB frames"),
        ({"max_episode_steps": -1}, "at least 1"),
        ({"render_mode": "human"}, "rgb_array"),
    ],
)
def test_invalid_settings_are_refused(wrong: dict[str, Any], word: str) -> None:
    with pytest.raises(HotloopError, match=word):
        MarioEnv(**wrong)


def test_no_rom_is_kept_here() -> None:
    assert not list(Path(hotloop.__file__).parents[2].glob("src/**/*.nes"))


def test_each_frame_is_preprocessed_once() -> None:
    frame = np.zeros((240, 256, 3), dtype=np.uint8)
    frame[:, 128:] = 255
    seen = preprocess_frame(FramePreprocessing(), frame)
    assert set(np.unique(seen[:, :41])) == {0} and set(np.unique(seen[:, 43:])) == {255}
