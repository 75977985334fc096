"""The compiled renderer against PIL: the same pixels, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from hotloop.rl.envs.ricochet import kernels_draw, render
from hotloop.rl.envs.ricochet.board import Position, empty_walls
from hotloop.rl.envs.ricochet.config import PICTURE
from hotloop.rl.envs.ricochet.env import RicochetVectorEnv


def same_for(rows: int, steps: int, seed: int, **setup: Any) -> int:
    """Step a batch drawn by PIL and a compiled one side by side; how many episodes ended."""
    pil, compiled = (RicochetVectorEnv(rows, rendering=how, **setup) for how in ("pil", "compiled"))
    assert np.array_equal(compiled.reset(seed=seed)[0], pil.reset(seed=seed)[0])
    rng = np.random.default_rng(seed)
    ended = 0
    for _ in range(steps):
        actions = rng.integers(pil.single_action_space.n, size=rows)  # type: ignore[attr-defined]
        expected, seen = pil.step(actions), compiled.step(actions)
        for one, other in zip(seen[:4], expected[:4], strict=True):
            assert np.array_equal(one, other)
        assert np.array_equal(seen[4]["optimal_moves"], expected[4]["optimal_moves"])
        for row in np.flatnonzero(seen[2] | seen[3]):
            ended += 1
            if pil.autoreset_mode == AutoresetMode.SAME_STEP:
                assert np.array_equal(seen[4]["final_obs"][row], expected[4]["final_obs"][row])
    return ended


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_a_thousand_steps_in_both_autoreset_modes(mode: AutoresetMode) -> None:
    setup = {"max_solution_moves": 4, "max_episode_steps": 40, "noop": True, "autoreset_mode": mode}
    assert same_for(5, 200, 3, **setup) > 10


@given(st.integers(7, 16), st.integers(1, 5), st.integers(0, 10**6))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_any_size_and_seed_agree(size: int, robots: int, seed: int) -> None:
    setup = {"board_size": size, "robots": robots, "max_solution_moves": 4, "max_episode_steps": 9}
    same_for(2, 12, seed, **setup)


@pytest.mark.long
@pytest.mark.parametrize("size", range(7, 17))
def test_four_thousand_steps_of_every_size(size: int) -> None:
    same_for(20, 200, size, board_size=size, robots=5, max_solution_moves=4, max_episode_steps=25)


def test_a_robot_of_any_colour_and_the_star_look_the_same_in_every_cell() -> None:
    size, measures = 16, render.OBSERVED
    assets = kernels_draw.make_assets(size)
    colours = np.array(kernels_draw.PALETTE, dtype=np.uint8)
    for cell in range(size * size):
        row, column = divmod(cell, size)
        picture = Image.new("RGB", (size * 20 + 1, size * 20 + 1))
        render.draw_disc(ImageDraw.Draw(picture), row, column, render.ROBOTS[0], measures)
        seen = np.asarray(picture)[row * 20 : row * 20 + 21, column * 20 : column * 20 + 21]
        assert np.array_equal(seen, colours[assets.disc])
        assert np.count_nonzero(np.asarray(picture).any(axis=2)) == np.count_nonzero(assets.disc)
        picture = Image.new("RGB", (size * 20 + 1, size * 20 + 1))
        render.draw_star(ImageDraw.Draw(picture), row, column, render.ROBOTS[0], measures)
        seen = np.asarray(picture)[row * 20 : row * 20 + 21, column * 20 : column * 20 + 21]
        assert np.array_equal(seen, colours[assets.star])
        assert np.count_nonzero(np.asarray(picture).any(axis=2)) == np.count_nonzero(assets.star)


@pytest.mark.parametrize("size", range(7, 17))
def test_resizing_is_pils_on_random_pixels(size: int) -> None:
    width = size * 20 + 1
    assets = kernels_draw.make_assets(size)
    board = np.random.default_rng(size).integers(0, len(kernels_draw.PALETTE), (width, width), dtype=np.uint8)
    picture = np.zeros((3, PICTURE, PICTURE), dtype=np.uint8)
    band = np.zeros((64, 64, 2), dtype=np.uint64)
    for top in range(0, width, 20):
        for left in range(0, width, 20):
            kernels_draw.refresh(board, picture, band, assets, top, top + 19, left, left + 19)
    drawn = Image.fromarray(np.array(kernels_draw.PALETTE, dtype=np.uint8)[board])
    expected = np.asarray(drawn.resize((PICTURE, PICTURE), render.FILTER)).transpose(2, 0, 1)
    assert np.array_equal(picture, expected)


def test_everything_is_drawn_at_its_place() -> None:
    walls = empty_walls(8)
    picture = np.asarray(render.draw(Position(8, tuple(walls), (9, 0), 63, 1), render.OBSERVED))
    assert picture.shape == (161, 161, 3)
    assert tuple(picture[30, 30]) == render.ROBOTS[0]
    assert tuple(picture[10, 10]) == render.ROBOTS[1]
    assert tuple(picture[150, 150]) == render.ROBOTS[1]
    assert tuple(picture[80, 80]) == render.CENTRE
    assert tuple(picture[50, 20]) == render.GRID
    assert tuple(picture[50, 30]) == render.FLOOR
    for y, x in ((0, 50), (1, 50), (159, 50), (160, 50), (50, 0), (50, 160), (59, 70), (60, 70), (61, 70)):
        assert tuple(picture[y, x]) == render.WALL
    assert tuple(picture[2, 50]) == tuple(picture[158, 50]) == render.FLOOR
    disc = (picture == render.ROBOTS[0]).all(axis=2)
    assert np.flatnonzero(disc.any(axis=0)).tolist() == list(range(23, 38))
    assert abs(disc.sum() - np.pi * 7.5**2) < 5
