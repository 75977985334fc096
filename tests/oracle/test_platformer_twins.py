"""The compiled platformer equals the one in plain Python: games, levels, frames, preprocessing."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import FrameStackObservation, GrayscaleObservation, TransformObservation
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.rl.envs.frame_preprocessing import (
    FramePreprocessing,
    area_weights,
    preprocess_frame,
    shrink,
    to_gray,
)
from hotloop.rl.envs.frame_preprocessing_kernels import CompiledPreprocessor
from hotloop.rl.envs.platformer import kernels as k
from hotloop.rl.envs.platformer import kernels_step
from hotloop.rl.envs.platformer.config import PlatformerConfig
from hotloop.rl.envs.platformer.env import PlatformerEnv, PlatformerVectorEnv
from hotloop.rl.envs.platformer.rules import Platformer, make_twin

SAME_STEP, NEXT_STEP = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP
QUICK = FramePreprocessing(skip=1, size=8, stack=1)  # the least to draw
LIKELY = np.array([0, 1, 2, 3, 4, 4, 4, 2, 5, 6])  # mostly to the right


class Fingers:
    """Random buttons that stay down for a while."""

    def __init__(self, rows: int, seed: int):
        self.rng = np.random.default_rng(seed)
        self.actions = np.ones(rows, dtype=np.int64)

    def __call__(self) -> np.ndarray:
        rows = len(self.actions)
        change = self.rng.random(rows) < 0.1
        self.actions = np.where(change, self.rng.choice(LIKELY, rows), self.actions)
        return self.actions


def states_of(env: PlatformerVectorEnv) -> list[tuple[list[int], list[list[int]]]]:
    """Of every row what moves: the numbers of the game and its enemies."""
    games, enemies = env.games[:, k.PX :].tolist(), env.enemies.tolist()
    counts = env.games[:, k.ENEMY_COUNT]
    return [(game, some[:count]) for game, some, count in zip(games, enemies, counts, strict=True)]


def state_of_twin(game: Platformer) -> tuple[list[int], list[list[int]]]:
    numbers = [game.x, game.y, game.speed, game.fall, game.on_ground, game.faces_left, game.held_jump]
    numbers += [game.safe, game.camera, game.frames, game.dead, game.pop_x, game.pop_y, game.pop_frames]
    numbers += [game.pop_star, game.level.width, game.level.flag, len(game.enemies)]
    enemies = [[one.kind, one.x, one.y, one.speed, one.fall, one.state, one.timer] for one in game.enemies]
    return [int(number) for number in numbers], enemies


def info_of(infos: dict[str, Any], row: int) -> dict[str, Any]:
    return {name: infos[name][row] for name in infos if not name.startswith("_") and name[:5] != "final"}


@pytest.mark.parametrize(
    ("mode", "difficulty", "level"),
    [
        (SAME_STEP, "easy", None),
        (NEXT_STEP, "normal", None),
        (SAME_STEP, "hard", None),
        (NEXT_STEP, "hard", 5),
    ],
)
def test_more_than_a_hundred_thousand_frames_of_the_game_are_the_same(
    mode: AutoresetMode, difficulty: Any, level: int | None
) -> None:
    rows, seed = 26, 11  # four times 26 x 1000 frames
    setup: dict[str, Any] = {"level": level, "difficulty": difficulty, "max_episode_steps": 400}
    env = PlatformerVectorEnv(rows, preprocessing=QUICK, autoreset_mode=mode, copy=False, **setup)
    # Without preprocessing the twin counts frames itself, and QUICK's steps are frames.
    twins = [
        Platformer(PlatformerConfig(preprocessing=None, **setup), seed + row, draw=False)
        for row in range(rows)
    ]
    env.reset(seed=seed)
    for twin in twins:
        twin.reset()
    fingers, over, ended = Fingers(rows, seed), [False] * rows, [0, 0]
    for step in range(1000):
        actions = fingers()
        _, rewards, terminated, truncated, infos = env.step(actions)
        judged, expected = [], []
        for row, (twin, action) in enumerate(zip(twins, actions.tolist(), strict=True)):
            if over[row]:
                _, info = twin.reset()
                judged.append((0.0, False, False))
                over[row] = False
            else:
                _, reward, died, stopped, info = twin.step(action)
                judged.append((reward, died, stopped))
                ended[0] += died
                ended[1] += stopped
                if died or stopped:
                    if mode == SAME_STEP:
                        assert info_of(infos["final_info"], row) == info
                        _, info = twin.reset()
                    else:
                        over[row] = True
            expected.append(info)
        found = zip(rewards.tolist(), terminated.tolist(), truncated.tolist(), strict=True)
        assert list(found) == judged, step
        assert states_of(env) == [state_of_twin(twin) for twin in twins], step
        for name in expected[0]:
            assert infos[name].tolist() == [info[name] for info in expected], (step, name)
        if step % 50 == 0:
            assert all(np.array_equal(env.tiles[row], twin.tiles) for row, twin in enumerate(twins)), step
    assert min(ended) > 10


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), difficulty=st.sampled_from(["easy", "normal", "hard"]))
def test_both_builders_draw_the_same_levels(seed: int, difficulty: Any) -> None:
    env = PlatformerVectorEnv(2, difficulty=difficulty, preprocessing=QUICK)
    twin = Platformer(PlatformerConfig(difficulty=difficulty), seed + 1, draw=False)
    for first_seed in (seed, None):  # the second level shows that both streams went on to the same place
        env.reset(seed=first_seed)
        twin.reset()
        assert np.array_equal(env.tiles[1], twin.tiles)
        assert states_of(env)[1] == state_of_twin(twin)


# ---- frames


@pytest.mark.parametrize("difficulty", ["easy", pytest.param("hard", marks=pytest.mark.long)])
def test_a_thousand_frames_are_drawn_the_same(difficulty: Any) -> None:
    rows, seed = 10, 3
    env = PlatformerVectorEnv(
        rows,
        difficulty=difficulty,
        preprocessing=None,
        autoreset_mode=SAME_STEP,
        copy=False,
        render_mode="rgb_array",
    )
    twins = [Platformer(env.config, seed + row, draw=False) for row in range(rows)]
    observations, _ = env.reset(seed=seed)
    fingers, drawn = Fingers(rows, 2), 0
    for twin in twins:
        twin.reset()
    for step in range(600):
        look = step % 6 == 0  # a frame is a function of the state, which the test above holds in every step
        for row, twin in enumerate(twins):
            if look:
                twin.draws = True
                assert np.array_equal(observations[row], twin.observe()), (step, row)
                twin.draws = False
                drawn += 1
        actions = fingers()
        observations, _, terminated, _, _ = env.step(actions)
        for row, twin in enumerate(twins):
            assert twin.step(int(actions[row]))[2] == terminated[row]
            if terminated[row]:
                twin.reset()
    assert drawn == 1000
    assert np.array_equal(env.render()[3], observations[3])


def run_preprocessed(
    preprocessing: FramePreprocessing, seed: int, steps: int, difficulty: Any = "hard"
) -> int:
    """Follow two rows with preprocessing; return how many episodes ended."""
    config = PlatformerConfig(difficulty=difficulty, preprocessing=preprocessing, max_episode_steps=25)
    env = PlatformerVectorEnv(
        2, difficulty=difficulty, preprocessing=preprocessing, max_episode_steps=25, autoreset_mode=SAME_STEP
    )
    twins = [make_twin(config, seed + row) for row in range(2)]
    observations, _ = env.reset(seed=seed)
    for row, twin in enumerate(twins):
        assert np.array_equal(observations[row], twin.reset()[0])
    fingers, ended = Fingers(2, seed), 0
    for step in range(steps):
        actions = fingers()
        observations, rewards, terminated, truncated, infos = env.step(actions)
        assert np.array_equal(env.newest_frame, observations[:, -1])
        for row, twin in enumerate(twins):
            expected, *judged, info = twin.step(int(actions[row]))
            assert (rewards[row], terminated[row], truncated[row]) == tuple(judged), (step, row)
            if judged[1] or judged[2]:
                ended += 1
                assert np.array_equal(infos["final_obs"][row], expected), (step, row)
                assert info_of(infos["final_info"], row) == info
                expected, info = twin.reset()
            assert np.array_equal(observations[row], expected), (step, row)
            assert info_of(infos, row) == info
    return ended


def test_all_preprocessing_is_the_same_as_its_plain_form() -> None:
    assert run_preprocessed(FramePreprocessing(show_jump_button=True), 7, 40) > 1


@settings(max_examples=4, deadline=None, derandomize=True)
@given(
    preprocessing=st.builds(
        FramePreprocessing,
        skip=st.integers(1, 5),
        gray=st.booleans(),
        size=st.integers(8, 240),
        stack=st.integers(1, 5),
        show_jump_button=st.booleans(),
    ),
    seed=st.integers(0, 10**6),
)
def test_any_preprocessing_is_the_same_as_its_plain_form(
    preprocessing: FramePreprocessing, seed: int
) -> None:
    run_preprocessed(preprocessing, seed, 8)


@pytest.mark.long
def test_ten_thousand_preprocessed_frames_are_the_same() -> None:
    assert run_preprocessed(FramePreprocessing(), 70, 2000) > 30
    assert run_preprocessed(FramePreprocessing(gray=False, skip=2), 71, 1000, "normal") > 10


# ---- the preprocessing against Gymnasium's wrappers


class Skip(gymnasium.Wrapper):
    """Hold an action, add the rewards, see the last frame; Gymnasium has only one that mixes two frames."""

    def __init__(self, env: Any, skip: int):
        super().__init__(env)
        self.skip = skip

    def step(self, action: Any) -> Any:
        total = 0.0
        for _ in range(self.skip):
            frame, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return frame, total, terminated, truncated, info


def wrapped(preprocessing: FramePreprocessing, resize: Any) -> Any:
    env: Any = Skip(PlatformerEnv(preprocessing=None, difficulty="normal"), preprocessing.skip)
    if preprocessing.gray:
        env = GrayscaleObservation(env)
    return FrameStackObservation(resize(env, (preprocessing.size, preprocessing.size)), preprocessing.stack)


def our_resize(env: Any, shape: tuple[int, int]) -> Any:
    space = gymnasium.spaces.Box(0, 255, (*shape, *env.observation_space.shape[2:]), np.uint8)
    return TransformObservation(env, lambda frame: shrink(frame, shape[0]), space)


def play_both(preprocessing: FramePreprocessing, resize: Any, steps: int) -> tuple[list[Any], list[Any]]:
    """Observations of the compiled preprocessing and of the wrappers; rewards and flags must be the same."""
    ours, theirs = (
        PlatformerEnv(preprocessing=preprocessing, difficulty="normal"),
        wrapped(preprocessing, resize),
    )
    assert ours.observation_space == theirs.observation_space
    seen: tuple[list[Any], list[Any]] = ([ours.reset(seed=4)[0]], [theirs.reset(seed=4)[0]])
    fingers = Fingers(1, 4)
    for _ in range(steps):
        action = int(fingers()[0])
        one, other = ours.step(action), theirs.step(action)
        assert one[1:] == other[1:]
        seen[0].append(one[0])
        seen[1].append(other[0])
        if one[2]:
            seen[0].append(ours.reset()[0])
            seen[1].append(theirs.reset()[0])
    return seen


@pytest.mark.parametrize(
    "preprocessing", [FramePreprocessing(), FramePreprocessing(skip=3, gray=False, size=60, stack=2)]
)
def test_gymnasiums_wrappers_around_raw_frames_give_the_same_observations(
    preprocessing: FramePreprocessing,
) -> None:
    ours, theirs = play_both(preprocessing, our_resize, 30)
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("preprocessing", [FramePreprocessing(), FramePreprocessing(gray=False, size=60)])
def test_opencv_differs_by_one_level_and_only_where_the_mean_is_exactly_between_two(
    preprocessing: FramePreprocessing,
) -> None:
    pytest.importorskip("cv2", reason="Gymnasium's ResizeObservation needs opencv-python-headless")
    from gymnasium.wrappers import ResizeObservation

    ours, theirs = play_both(preprocessing, ResizeObservation, 50)
    distance = np.abs(np.array(ours, dtype=np.int64) - np.array(theirs))
    assert distance.max() <= 1 and (distance > 0).mean() < 1e-3

    import cv2

    game = Platformer(PlatformerConfig(preprocessing=None, difficulty="normal"), 4)
    frame, _ = game.reset()
    for step in range(40):
        frame = game.step(1 + step // 10 % 2)[0]
        gray = to_gray(frame)
        exact, opencv = shrink(gray, 84), cv2.resize(gray, (84, 84), interpolation=cv2.INTER_AREA)
        rows, columns = area_weights(240, 84), area_weights(256, 84)
        sums, total = rows @ gray.astype(np.int64) @ columns.T, rows[0].sum() * columns[0].sum()
        between = (2 * sums + total) % (2 * total) == 0
        assert np.array_equal(exact[~between], opencv[~between])


@settings(max_examples=6, deadline=None, derandomize=True)
@given(size=st.integers(8, 240), gray=st.booleans(), seed=st.integers(0, 100))
def test_the_compiled_preprocessor_for_any_frames_is_the_plain_one(size: int, gray: bool, seed: int) -> None:
    preprocessing = FramePreprocessing(size=size, gray=gray, stack=3)
    frames = np.random.default_rng(seed).integers(0, 256, (4, 240, 256, 3)).astype(np.uint8)
    compiled = CompiledPreprocessor(preprocessing)
    expected = [preprocess_frame(preprocessing, frame) for frame in frames]
    assert np.array_equal(compiled.begin(frames[0]), np.stack([expected[0]] * 3))
    for frame in frames[1:]:
        seen = compiled.push(frame)
    assert np.array_equal(seen, np.stack(expected[1:]))


def test_area_weights_share_every_pixel_out_exactly() -> None:
    for length, size in ((240, 84), (256, 84), (240, 240), (256, 97)):
        weights = area_weights(length, size)
        assert len(set(weights.sum(axis=0))) == 1 and len(set(weights.sum(axis=1))) == 1
    assert area_weights(240, 84)[0].sum() == 20 and area_weights(256, 84)[0].sum() == 64


def test_another_batch_or_preprocessing_never_compiles_again() -> None:
    for rows, preprocessing in (
        (1, None),
        (3, FramePreprocessing()),
        (5, FramePreprocessing(gray=False, size=30, stack=1)),
    ):
        env = PlatformerVectorEnv(rows, preprocessing=preprocessing)
        env.reset(seed=0)
        env.step(np.ones(rows, dtype=np.int64))
    assert len(kernels_step.run_rows.signatures) == 1  # type: ignore[attr-defined]
