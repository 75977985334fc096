"""Positions that users give: as text, from a file, with an open centre, with a target for any robot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.ricochet import board, given_position
from hotloop.rl.envs.ricochet.board import DOWN, RIGHT, Position, add_wall, check_position, empty_walls
from hotloop.rl.envs.ricochet.config import RicochetConfig
from hotloop.rl.envs.ricochet.env import RicochetEnv, RicochetVectorEnv
from hotloop.rl.envs.ricochet.position_text import format_position, parse_position, read_position
from hotloop.rl.envs.ricochet.rules import Ricochet
from hotloop.rl.envs.ricochet.solver import solve, solve_plainly

SMALL = """
# a comment
+--+--+--+
|R    |  |
+  +--+  +
|   Yb   |
+  +  +  +
|      B |
+--+--+--+
"""


def walls_of(size: int, *walls: tuple[int, int], walled_centre: bool = True) -> tuple[int, ...]:
    bits = empty_walls(size, walled_centre=walled_centre)
    for cell, direction in walls:
        add_wall(bits, size, cell, direction)
    return tuple(bits)


def test_a_drawn_position_is_read() -> None:
    walls = walls_of(3, (1, RIGHT), (1, DOWN), walled_centre=False)
    assert parse_position(SMALL) == Position(3, walls, (0, 8, 4), 4, 1)


@pytest.mark.parametrize(
    "text",
    ["+-+-+\n|R|*|\n+ + +\n|   |\n+-+-+", "  +---+---+\n  | R | * |\n  +   +   +\n  |\n  +---+---+\n\n"],
)
def test_cells_may_be_wider_and_lines_shorter(text: str) -> None:
    assert parse_position(text) == Position(2, walls_of(2, (0, RIGHT), walled_centre=False), (0,), 1, None)


def test_what_is_drawn_reads_the_same_again(tmp_path: Path) -> None:
    env = RicochetEnv(robots=5, board_size=16, obs_mode="symbolic")
    for seed in range(3):
        env.reset(seed=seed)
        for position in (env.position, replace(env.position, target_robot=None)):
            (tmp_path / "board.txt").write_text(format_position(position))
            assert read_position(tmp_path / "board.txt") == position


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a square board: its first line has 0 corners, and there are 0 lines"),
        ("+--+--+\n|R  * |\n+--+--+", "has 3 corners, and there are 3 lines"),
        ("+-+--+\n|R  *\n+\n|\n+-+--+", "is not a square board"),
        (SMALL.replace("Y", "Q"), "has the unknown 'Q' in row 1"),
        (SMALL.replace("Y", "R"), "has two 'R' in row 1"),
        (SMALL.replace("Yb", "Y "), "has 3 robots and 0 targets"),
        (SMALL.replace("Yb", "*b"), "has 2 robots and 2 targets"),
        (SMALL.replace("b", "g"), "a target 'g' but no robot 'G'"),
    ],
)
def test_what_is_wrong_with_a_drawing_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(HotloopError, match=words) as caught:
        parse_position(text)
    assert "\n" not in str(caught.value)


def test_a_wall_on_one_side_only_is_refused() -> None:
    walls = list(walls_of(5))
    walls[6] |= 1 << RIGHT
    with pytest.raises(HotloopError, match="a wall between cells 6 and 7 on one side only"):
        solve(Position(5, tuple(walls), (0,), 4, 0))


# ---- targets for any robot, open centres


def given_positions() -> list[Position]:
    """Positions on 8 x 8 with three robots: open centre or not, a target for one robot or for any."""
    open_centre = walls_of(8, (27, RIGHT), (36, DOWN), (9, DOWN), walled_centre=False)
    walled = walls_of(8, (20, RIGHT), (42, DOWN), (5, DOWN))
    return [
        Position(8, walls, (1, 50, 61), target, whose)
        for walls in (open_centre, walled)
        for target, whose in ((29, None), (19, 2), (44, None))
    ]


@pytest.mark.parametrize("position", given_positions())
def test_any_robot_and_open_centres_are_solved_as_plainly(position: Position) -> None:
    found = solve(position, 7)
    assert found == solve_plainly(position, 7)
    if position.target_robot is None and found is not None:
        each = [solve(replace(position, target_robot=robot), 7) for robot in range(3)]
        assert len(found) == min(len(one) for one in each if one is not None)


def test_any_robot_on_random_boards_is_solved_as_plainly() -> None:
    rng = np.random.default_rng(0)
    for size, robots in ((4, 2), (5, 3), (6, 4), (6, 5)):
        for _ in range(8):
            walls = list(walls_of(size))
            inner = [cell for cell in range(size * size) if walls[cell] != 15]
            for _ in range(size):
                add_wall(walls, size, int(rng.choice(inner)), int(rng.integers(4)))
            *cells, target = (int(cell) for cell in rng.permutation(inner)[: robots + 1])
            position = Position(size, tuple(walls), tuple(cells), target, None)
            assert solve(position, 4) == solve_plainly(position, 4)


def test_a_target_for_any_robot_cannot_ask_for_a_turn() -> None:
    position = replace(given_positions()[0], target_robot=None)
    with pytest.raises(HotloopError, match="must_turn=True needs a target for one robot"):
        solve(position, must_turn=True)


def settings_of(mode: str) -> dict[str, Any]:
    return {
        "robots": 3,
        "obs_mode": mode,
        "lookahead": 2 if mode == "symbolic" else 0,
        "max_episode_steps": 15,
    }


@pytest.mark.parametrize("mode", ["symbolic", "image", "rgb_image"])
def test_given_positions_play_as_the_plain_rules(mode: str) -> None:
    positions = given_positions()
    env = RicochetVectorEnv(len(positions), autoreset_mode="Disabled", **settings_of(mode))
    twins = [Ricochet(RicochetConfig(**settings_of(mode))) for _ in positions]
    observations, infos = env.reset(seed=0, options={"position": positions})
    for row, (twin, position) in enumerate(zip(twins, positions, strict=True)):
        expected, info = twin.reset(position=position)
        assert np.array_equal(observations[row], expected)
        assert infos["optimal_moves"][row] == info["optimal_moves"]
        assert env.position(row) == position
    rng = np.random.default_rng(1)
    ended = np.zeros(len(positions), dtype=bool)
    for _ in range(15):
        actions = rng.integers(12, size=len(positions))
        observations, rewards, terminated, truncated, _ = env.step(actions)
        for row, twin in enumerate(twins):
            if ended[row]:
                continue
            expected, *flags, _ = twin.step(int(actions[row]))
            assert np.array_equal(observations[row], expected), (row, mode)
            assert [rewards[row], terminated[row], truncated[row]] == flags
        ended |= terminated | truncated
        if ended.all():
            break
        env.over[:] = False
    assert ended.all()


def test_rows_without_a_position_and_later_episodes_are_generated() -> None:
    env = RicochetVectorEnv(2, autoreset_mode="SameStep", **settings_of("symbolic"))
    env.reset(seed=5)
    generated = env.position(1)
    position = given_positions()[0]
    env.reset(seed=5, options={"position": [position, None]})
    assert (env.position(0), env.position(1)) == (position, generated)
    env.reset()
    assert position not in (env.position(0), env.position(1))
    env.reset(options={"position": format_position(position)})
    assert env.position(0) == env.position(1) == position


def test_the_single_environment_takes_a_position_and_its_expert_solves_it() -> None:
    env = RicochetEnv(**settings_of("symbolic"))
    _, info = env.reset(options={"position": given_positions()[0]})
    for _ in range(info["optimal_moves"]):
        action = env.expert_action()
        assert action is not None
        _, _, terminated, _, _ = env.step(action)
    assert terminated


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            parse_position(SMALL),
            "3 x 3 cells with 3 robots does not fit this environment; create it with board",
        ),
        (replace(given_positions()[0], target=1), "is solved already"),
        (replace(given_positions()[4], target=27), "cell 27 is inside the walled centre"),
        ([None, None], "does not fit 1 environments"),
        (7, "position=7 does not fit"),
        ([7], "of type int is not known"),
        (Path("nowhere.txt"), "nowhere.txt"),
    ],
)
def test_a_position_that_does_not_fit_is_one_sentence(given: Any, words: str) -> None:
    env = RicochetEnv(**settings_of("symbolic"))
    with pytest.raises(HotloopError, match=words):
        env.reset(options={"position": given})


def test_a_position_may_be_the_path_of_a_file(tmp_path: Path) -> None:
    position = given_positions()[0]
    path = tmp_path / "board.txt"
    path.write_text(format_position(position))
    env = RicochetVectorEnv(2, **settings_of("symbolic"))
    env.reset(seed=1, options={"position": [path, None]})
    assert env.position(0) == position != env.position(1)
    env.reset(options={"position": path})
    assert env.position(0) == env.position(1) == position


def test_a_search_that_gives_up_is_not_called_unsolvable(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(*_: Any) -> None:
        raise HotloopError("no solution among the first positions")

    monkeypatch.setattr(given_position, "solve", give_up)
    env = RicochetEnv(**settings_of("symbolic"))
    assert env.reset(options={"position": given_positions()[0]})[1]["optimal_moves"] == -2


def test_unknown_reset_options_are_refused() -> None:
    env = RicochetEnv(**settings_of("symbolic"))
    with pytest.raises(
        HotloopError, match=r"unknown reset option 'positions'; .* knows 'reset_mask', 'position'"
    ):
        env.reset(options={"positions": given_positions()[0]})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"walls": [16, 0]}, "the walls 21 of cell 0 are not known; use four bits"),
        ({"walls": [0.0, 0]}, r"a position holds 5\.0"),
        ({"target": 5.0}, r"a position holds 5\.0"),
        ({"target_robot": True}, "a position holds True"),
        ({"target_robot": "R"}, "a position holds 'R'"),
        ({"robots": ("a",)}, "a position holds 'a'"),
    ],
)
def test_what_is_no_number_of_a_board_is_refused(changes: dict[str, Any], words: str) -> None:
    position = given_positions()[0]
    if "walls" in changes:
        changes = {"walls": (position.walls[0] + changes["walls"][0], *position.walls[1:])}
    with pytest.raises(HotloopError, match=words):
        check_position(replace(position, **changes))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("|R    |", "|R    |B", "has 'B' in line 2, column 8"),
        ("+  +  +", "+ B+  +", "has 'B' in line 3, column 3"),
        ("+  +  +", "+ +   +", r"has '\+' in line 3, column 3"),
        ("|R    |", "|R G  |", "has 'G' in line 2, column 4"),
    ],
)
def test_letters_that_belong_to_no_cell_are_refused(old: str, new: str, words: str) -> None:
    text = "+--+--+\n|R    |\n+  +  +\n|    r|\n+--+--+\n"
    parse_position(text)
    with pytest.raises(HotloopError, match=words):
        parse_position(text.replace(old, new))


def test_drawn_and_plain_pictures_of_given_positions_agree() -> None:
    pil, compiled = (
        RicochetVectorEnv(6, robots=3, rendering=how, autoreset_mode="SameStep")
        for how in ("pil", "compiled")
    )
    options = {"position": given_positions()}
    assert np.array_equal(compiled.reset(seed=0, options=options)[0], pil.reset(seed=0, options=options)[0])
    rng = np.random.default_rng(2)
    for _ in range(25):
        actions = rng.integers(12, size=6)
        assert np.array_equal(compiled.step(actions)[0], pil.step(actions)[0])
    assert board.has_walled_centre(given_positions()[4].walls, 8)
