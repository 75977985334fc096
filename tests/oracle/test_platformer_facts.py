"""Facts about the platformer: speeds, heights, blocks, enemies, clock, flag, rewards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from hotloop.rl.envs.platformer import config as c
from hotloop.rl.envs.platformer.config import PLANS, PlatformerConfig, Tile
from hotloop.rl.envs.platformer.env import PlatformerVectorEnv
from hotloop.rl.envs.platformer.expert import expert_actions
from hotloop.rl.envs.platformer.levels import LOWEST_GROUND, build_level
from hotloop.rl.envs.platformer.rules import Enemy, Platformer

NOTHING, RIGHT, RIGHT_A, RIGHT_B, RIGHT_AB, A, LEFT = range(7)
GROUND = LOWEST_GROUND


def meadow() -> Platformer:
    """A level of flat ground, nobody on it."""
    game = Platformer(PlatformerConfig(level=0, preprocessing=None), 0, draw=False)
    game.reset()
    game.enemies = []
    game.tiles[: game.level.width] = Tile.EMPTY
    game.tiles[:, GROUND] = Tile.GRASS
    return game


def hold(game: Platformer, action: int, frames: int) -> list[tuple[Any, ...]]:
    return [game.step(action)[1:] for _ in range(frames)]


def stand_in_front_of(game: Platformer, kind: int, pixels: int) -> Enemy:
    """An enemy that many pixels to the right of the player."""
    x = game.x + c.BOX_WIDTH + (pixels << c.UNIT_BITS)
    game.enemies = [Enemy(kind, x, (GROUND << c.TILE_BITS) - c.ENEMY_SIZE)]
    return game.enemies[0]


# ---- moving


@pytest.mark.parametrize(("action", "pixels_in_16_frames"), [(RIGHT, 24), (RIGHT_B, 40)])
def test_walking_is_one_and_a_half_pixels_a_frame_and_running_two_and_a_half(
    action: int, pixels_in_16_frames: int
) -> None:
    game = meadow()
    hold(game, action, 60)
    before = game.x
    hold(game, action, 16)
    assert (game.x - before) / 16 == pixels_in_16_frames


def test_a_player_slides_to_a_stop_and_turns_faster_than_it_stops() -> None:
    game = meadow()
    hold(game, RIGHT_B, 60)
    hold(game, NOTHING, c.RUN_SPEED)
    assert game.speed == 0
    hold(game, RIGHT_B, 60)
    hold(game, LEFT, c.RUN_SPEED // 2)
    assert game.speed == 0


def test_a_held_button_jumps_higher_and_a_run_higher_still() -> None:
    heights = []
    for run_up, held in ((0, 1), (0, 60), (60, 60)):
        game = meadow()
        hold(game, RIGHT_B, run_up)
        start, top = game.y, game.y
        for frame in range(80):
            game.step((RIGHT_AB if run_up else A) if frame < held else NOTHING)
            top = min(top, game.y)
        heights.append((start - top) / 16 / 16)
        assert game.on_ground
    tap, full, running = heights
    assert 1 < tap < 2 and 4 < full < 5 and 5 < running < 6  # tiles


def test_a_jump_needs_the_button_to_come_up_first() -> None:
    game = meadow()
    hold(game, A, 100)
    assert game.on_ground  # it has landed, A is still down, and it does not jump again
    hold(game, NOTHING, 1)
    hold(game, A, 1)
    assert not game.on_ground


def test_the_player_cannot_pass_walls_or_leave_the_screen() -> None:
    game = meadow()
    game.tiles[7, GROUND - 1] = Tile.STONE
    hold(game, RIGHT, 100)
    assert game.x == (7 << c.TILE_BITS) - c.BOX_WIDTH and game.speed == 0
    hold(game, LEFT, 200)
    assert game.x == 0 and game.camera == 0
    far = meadow()
    hold(far, RIGHT_B, 200)
    camera = far.camera
    assert camera > 0
    hold(far, LEFT, 300)
    assert far.camera >= camera and far.x == far.camera << c.UNIT_BITS


# ---- blocks, coins, enemies


def jump_under(tile: Tile) -> Platformer:
    game = meadow()
    column = game.x >> c.TILE_BITS
    game.tiles[column, GROUND - 4] = tile
    hold(game, A, 30)
    return game


def test_blocks_hit_from_below() -> None:
    column = c.START_COLUMN
    brick = jump_under(Tile.BRICK)
    assert brick.tiles[column, GROUND - 4] == Tile.EMPTY and brick.score == c.BRICK_POINTS
    coin = jump_under(Tile.COIN_BLOCK)
    assert coin.tiles[column, GROUND - 4] == Tile.USED_BLOCK
    assert (coin.coins, coin.score) == (1, c.COIN_POINTS)
    star = jump_under(Tile.STAR_BLOCK)
    assert star.info()["status"] == "tall" and star.coins == 0
    stone = jump_under(Tile.STONE)
    assert stone.tiles[column, GROUND - 4] == Tile.STONE and stone.score == 0


def test_coins_are_taken_by_touch() -> None:
    game = meadow()
    game.tiles[6:9, GROUND - 1] = Tile.COIN
    hold(game, RIGHT, 120)
    assert (game.coins, game.score) == (3, 3 * c.COIN_POINTS)
    assert not game.tiles[6:9, GROUND - 1].any()


def test_a_touch_from_the_side_kills_and_costs_fifteen() -> None:
    game = meadow()
    stand_in_front_of(game, c.BLOB, 40)
    for _ in range(200):
        before = game.x >> 4, game.time
        reward, terminated, truncated, info = game.step(RIGHT)[1:]
        if terminated:
            break
    assert game.dead and not truncated and info["life"] == c.LIVES - 1 and not info["flag_get"]
    assert reward == max((game.x >> 4) - before[0] + game.time - before[1] - 15, -15)


def test_feet_on_an_enemy_squash_it_and_bounce() -> None:
    game = meadow()
    enemy = stand_in_front_of(game, c.BEETLE, 0)
    game.x, game.y = enemy.x, enemy.y - c.BOX_HEIGHT - 200
    while enemy.state != c.SQUASHED:
        game.step(NOTHING)
    assert not game.dead and game.score == c.STOMP_POINTS and game.fall == -c.BOUNCE_SPEED
    hold(game, NOTHING, c.SQUASHED_FRAMES)
    assert enemy.state == c.GONE


def test_a_star_saves_once_and_for_a_while() -> None:
    game = meadow()
    stand_in_front_of(game, c.BLOB, 1)
    game.status = c.TALL
    hold(game, NOTHING, 10)
    assert not game.dead and game.info()["status"] == "small" and game.safe > 0
    hold(game, RIGHT, c.SAFE_FRAMES - 20)
    assert not game.dead


@pytest.mark.parametrize(("kind", "falls"), [(c.BLOB, True), (c.BEETLE, False)])
def test_beetles_turn_at_edges_and_blobs_do_not(kind: int, falls: bool) -> None:
    game = meadow()
    game.tiles[5:8, GROUND] = Tile.EMPTY
    enemy = stand_in_front_of(game, kind, 110)
    hold(game, NOTHING, 300)
    assert (enemy.y > GROUND << c.TILE_BITS) == falls and (enemy.state == c.GONE) == falls


# ---- ends and rewards


def test_a_pit_and_the_clock_are_deaths() -> None:
    game = meadow()
    game.tiles[5:9, GROUND] = Tile.EMPTY
    steps = hold(game, RIGHT, 200)
    assert any(terminated for _, terminated, _, _ in steps) and min(reward for reward, *_ in steps) <= -13
    late = meadow()
    late.time, late.frames = 1, c.FRAMES_PER_TICK - 1
    reward, terminated, truncated, info = late.step(NOTHING)[1:]
    assert (reward, terminated, truncated, info["time"]) == (-15.0, True, False, 0)  # -15 - 1, clipped


def test_the_clock_ticks_every_24_frames_and_costs_one() -> None:
    game = meadow()
    steps = hold(game, NOTHING, 48)
    assert [number for number, (reward, *_) in enumerate(steps, 1) if reward == -1.0] == [24, 48]
    assert sum(reward for reward, *_ in steps) == -2.0 and game.info()["time"] == c.CLOCK - 2


def test_the_reward_is_progress_in_pixels_to_either_side() -> None:
    game = meadow()
    start = game.x >> 4
    gained = sum(reward for reward, *_ in hold(game, RIGHT_B, 90) + hold(game, LEFT, 60))
    assert gained == (game.x >> 4) - start + game.time - c.CLOCK


def test_the_flag_ends_the_level_without_a_death() -> None:
    game = meadow()
    game.x = (game.level.flag - 2) << c.TILE_BITS
    steps = hold(game, RIGHT, 60)
    first = next(number for number, step in enumerate(steps) if step[1])
    reward, _, truncated, info = steps[first]
    assert info["flag_get"] and info["life"] == c.LIVES and reward > 0 and not truncated
    assert info["score"] == c.CLOCK_POINTS * info["time"]


# ---- levels


@pytest.mark.parametrize("difficulty", ["easy", "normal", "hard"])
def test_levels_have_all_there_is_and_nothing_impossible(difficulty: str) -> None:
    plan, seen = PLANS[difficulty], np.zeros(c.TILES, dtype=bool)
    enemies = 0
    for seed in range(60):
        level = build_level(np.random.default_rng(seed), plan)
        seen[np.unique(level.tiles)] = True
        enemies += len(level.enemies)
        assert not level.tiles[plan.width :].any() and level.flag == plan.width - 14
        footing = ((level.tiles >= c.FIRST_SOLID) & (level.tiles <= c.LAST_SOLID)).any(axis=1)[: plan.width]
        gaps = np.diff(np.flatnonzero(np.concatenate([[True], footing, [True]]))) - 1
        assert gaps.max() <= max(plan.pit, 4)
        assert (level.tiles[: c.START_COLUMN + 4, GROUND] == Tile.GRASS).all()
    missing = {Tile(int(tile)).name for tile in np.flatnonzero(~seen)}
    assert missing <= {"USED_BLOCK"} | (set() if plan.bridges else {"PLANK"})
    assert enemies > 60


def test_a_level_number_is_always_the_same_level_and_seeds_make_others() -> None:
    fixed = PlatformerVectorEnv(3, level=9)
    fixed.reset(seed=0)
    first = fixed.tiles.copy()
    fixed.reset(seed=77)
    assert np.array_equal(fixed.tiles, first) and np.array_equal(first[0], first[2])
    drawn = PlatformerVectorEnv(3)
    drawn.reset(seed=0)
    assert not np.array_equal(drawn.tiles[0], drawn.tiles[1])


def play_expert(difficulty: Any, rows: int, steps: int) -> float:
    """The share of levels whose flag the expert reaches."""
    env = PlatformerVectorEnv(rows, difficulty=difficulty, autoreset_mode=AutoresetMode.DISABLED)
    _, infos = env.reset(seed=1000)
    reached = np.zeros(rows, dtype=bool)
    for _ in range(steps):
        _, _, terminated, _, infos = env.step(expert_actions(env))
        reached |= infos["flag_get"]
        env.over[...] = (
            False  # those that are through go on playing, which changes nothing of what is counted
        )
        if (reached | terminated).all():
            break
    return float(reached.mean())


@pytest.mark.long
def test_the_expert_reaches_the_flag_on_easy_levels() -> None:
    assert play_expert("easy", 100, 400) >= 0.98


@pytest.mark.long
@pytest.mark.parametrize(("difficulty", "share"), [("easy", 0.98), ("normal", 0.97), ("hard", 0.95)])
def test_the_expert_on_many_levels(difficulty: str, share: float) -> None:
    assert play_expert(difficulty, 500, 700) >= share
