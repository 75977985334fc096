"""The rules of the platformer for one game in plain Python: the reference for the compiled batch.

Order within a frame: horizontal speed, jump and gravity, horizontal move, vertical move, coins, camera,
enemies, contacts, clock, flag. Positions are in units of 1/16 pixel; x points right, y down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop.rl.envs.frame_preprocessing import HEIGHT, WIDTH, PreprocessedGame
from hotloop.rl.envs.platformer import config as c
from hotloop.rl.envs.platformer.config import PlatformerConfig, Tile
from hotloop.rl.envs.platformer.levels import LOWEST_GROUND, Level, build_level
from hotloop.rl.envs.platformer.render import draw_frame

Step = tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]
_NOT_DRAWN = np.zeros((0, 0, 3), dtype=np.uint8)


@dataclass
class Enemy:
    """One enemy; x and y are the left and top of its box."""

    kind: int
    x: int
    y: int
    speed: int = -c.ENEMY_SPEED
    fall: int = 0
    state: int = c.WAITING
    timer: int = 0
    """Frames for which a squashed enemy stays visible."""


class Platformer:
    """One game. `rng` is a numpy generator or a seed; the game only calls `rng.random()`.

    With `draw=False`, observations are empty, for tests of the rules alone.
    """

    def __init__(
        self,
        config: PlatformerConfig | None = None,
        rng: np.random.Generator | int | None = None,
        draw: bool = True,
    ):
        self.config = config if config is not None else PlatformerConfig()
        self.rng = rng if isinstance(rng, np.random.Generator) else np.random.default_rng(rng)
        self.draws = draw

    def reset(self) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Start an episode on a new or the fixed level, with the player at its left end."""
        fixed = self.config.level
        rng = self.rng if fixed is None else np.random.default_rng(fixed)
        self.level: Level = build_level(rng, self.config.plan)
        self.tiles = self.level.tiles
        self.enemies = [Enemy(*enemy) for enemy in self.level.enemies]
        self.x, self.y = c.START_COLUMN << c.TILE_BITS, (LOWEST_GROUND << c.TILE_BITS) - c.BOX_HEIGHT
        self.speed, self.fall = 0, 0  # horizontal and vertical, units per frame
        self.on_ground, self.faces_left, self.held_jump = True, False, False
        self.status, self.safe = c.SMALL, 0
        self.camera = 0  # pixels
        self.frames = 0
        self.time, self.coins, self.score, self.life = c.CLOCK, 0, 0, c.LIVES
        self.flag_get = self.dead = False
        self.pop_x, self.pop_y, self.pop_frames = 0, 0, 0  # what came out of a block; pixels
        self.pop_star = False
        return self.observe(), self.info()

    def step(self, action: int) -> Step:
        """Play one frame with the action's buttons held."""
        if not 0 <= action < c.ACTIONS:
            raise HotloopError(f"invalid action {action}; use 0 to {c.ACTIONS - 1}.")
        x_before, time_before = self.x >> c.UNIT_BITS, self.time
        self.frames += 1
        self.safe = max(self.safe - 1, 0)
        self.pop_frames = max(self.pop_frames - 1, 0)
        self._steer(c.DIRECTIONS[action], c.RUNS[action])
        self._jump(c.JUMPS[action])
        self._move_along()
        self._move_down()
        self._take_coins()
        ahead = (self.x >> c.UNIT_BITS) - c.CAMERA_LEAD
        self.camera = max(self.camera, min(ahead, self.level.width * c.TILE - WIDTH))
        for enemy in self.enemies:
            self._move_enemy(enemy)
        falling = self.fall > 0
        for enemy in self.enemies:
            self._meet(enemy, falling)
        if self.frames % c.FRAMES_PER_TICK == 0:
            self.time -= 1
        if self.time == 0 or self.y > HEIGHT << c.UNIT_BITS:
            self.dead = True
        middle = self.x + c.BOX_WIDTH // 2
        if self.dead:
            self.life -= 1
        elif middle >= self.level.flag << c.TILE_BITS:
            self.flag_get = True
            self.score += c.CLOCK_POINTS * self.time
        reward = (self.x >> c.UNIT_BITS) - x_before + self.time - time_before
        if self.dead:
            reward += c.DEATH_REWARD
        reward = min(max(reward, -c.MOST_REWARD), c.MOST_REWARD)
        terminated = self.dead or self.flag_get
        limit = self.config.max_episode_steps
        truncated = (
            self.config.preprocessing is None
            and limit is not None
            and not terminated
            and self.frames >= limit
        )
        return self.observe(), float(reward), terminated, truncated, self.info()

    def info(self) -> dict[str, Any]:
        """Return the player's position (pixels; y from the bottom to its feet) and status."""
        return {
            "x_pos": self.x >> c.UNIT_BITS,
            "y_pos": HEIGHT - ((self.y + c.BOX_HEIGHT) >> c.UNIT_BITS),
            "coins": self.coins,
            "score": self.score,
            "time": self.time,
            "life": self.life,
            "flag_get": self.flag_get,
            "status": c.STATUS_NAMES[self.status],
        }

    def observe(self) -> NDArray[np.uint8]:
        """Draw the frame, RGB uint8 [240, 256, 3]."""
        if not self.draws:
            return _NOT_DRAWN
        return draw_frame(self)

    # ---- the player

    def _steer(self, direction: int, run: bool) -> None:
        """Accelerate to the limit; slow down without a button or above the limit; turn faster."""
        if direction == 0:
            self.speed -= c.FRICTION * ((self.speed > 0) - (self.speed < 0))
            return
        self.faces_left = direction < 0
        limit = c.RUN_SPEED if run else c.WALK_SPEED
        forward = self.speed * direction
        if forward < limit:
            forward = min(forward + (c.TURN_PUSH if forward < 0 else c.PUSH), limit)
        elif forward > limit:
            forward -= c.FRICTION
        self.speed = forward * direction

    def _jump(self, pressed: bool) -> None:
        """Start a jump when A is pressed on the ground; holding A makes it higher."""
        if pressed and not self.held_jump and self.on_ground:
            self.fall = -(c.JUMP_SPEED + abs(self.speed) // 4)
        self.held_jump = pressed
        self.fall += c.HELD_GRAVITY if self.fall < 0 and pressed else c.GRAVITY
        self.fall = min(self.fall, c.FALL_SPEED)

    def _move_along(self) -> None:
        """Move horizontally; walls and the left edge of the screen stop the player."""
        self.x += self.speed
        if self.x < self.camera << c.UNIT_BITS:
            self.x, self.speed = self.camera << c.UNIT_BITS, max(self.speed, 0)
        rows = _cells(self.y, c.BOX_HEIGHT)
        if self.speed > 0:
            column = (self.x + c.BOX_WIDTH - 1) >> c.TILE_BITS
            if any(self.solid(column, row) for row in rows):
                self.x, self.speed = (column << c.TILE_BITS) - c.BOX_WIDTH, 0
        elif self.speed < 0:
            column = self.x >> c.TILE_BITS
            if any(self.solid(column, row) for row in rows):
                self.x, self.speed = (column + 1) << c.TILE_BITS, 0

    def _move_down(self) -> None:
        """Move vertically: land on solid cells below, hit blocks above."""
        self.y += self.fall
        self.on_ground = False
        columns = _cells(self.x, c.BOX_WIDTH)
        if self.fall > 0:
            row = (self.y + c.BOX_HEIGHT - 1) >> c.TILE_BITS
            if any(self.solid(column, row) for column in columns):
                self.y, self.fall, self.on_ground = (row << c.TILE_BITS) - c.BOX_HEIGHT, 0, True
        elif self.fall < 0:
            row = self.y >> c.TILE_BITS
            if any(self.solid(column, row) for column in columns):
                self.y, self.fall = (row + 1) << c.TILE_BITS, 0
                middle = (self.x + c.BOX_WIDTH // 2) >> c.TILE_BITS
                hit = [middle] if self.solid(middle, row) else [k for k in columns if self.solid(k, row)]
                self._hit_block(hit[0], row)

    def _hit_block(self, column: int, row: int) -> None:
        """Break a brick, or open a block: a coin, or a star that makes the player tall."""
        tile = self.tile(column, row)
        if tile == Tile.BRICK:
            self.tiles[column, row] = Tile.EMPTY
            self.score += c.BRICK_POINTS
        elif tile in (Tile.COIN_BLOCK, Tile.STAR_BLOCK):
            self.tiles[column, row] = Tile.USED_BLOCK
            self.pop_star = tile == Tile.STAR_BLOCK
            if self.pop_star:
                self.status = c.TALL
                self.score += c.STAR_POINTS
            else:
                self._gain_coin()
            self.pop_x, self.pop_y, self.pop_frames = column * c.TILE, (row - 1) * c.TILE, c.POP_FRAMES

    def _take_coins(self) -> None:
        for column in _cells(self.x, c.BOX_WIDTH):
            for row in _cells(self.y, c.BOX_HEIGHT):
                if self.tile(column, row) == Tile.COIN:
                    self.tiles[column, row] = Tile.EMPTY
                    self._gain_coin()

    def _gain_coin(self) -> None:
        self.coins += 1
        self.score += c.COIN_POINTS

    # ---- enemies

    def _move_enemy(self, enemy: Enemy) -> None:
        left = self.camera << c.UNIT_BITS
        if enemy.state == c.WAITING and enemy.x < left + c.WAKE_DISTANCE:
            enemy.state = c.WALKING
        if enemy.state == c.SQUASHED:
            enemy.timer -= 1
            if enemy.timer == 0:
                enemy.state = c.GONE
        if enemy.state != c.WALKING:
            return
        enemy.x += enemy.speed
        front = enemy.x + c.ENEMY_SIZE - 1 if enemy.speed > 0 else enemy.x
        column = front >> c.TILE_BITS
        below = (enemy.y + c.ENEMY_SIZE) >> c.TILE_BITS
        at_edge = enemy.kind == c.BEETLE and enemy.fall == 0 and not self.solid(column, below)
        if at_edge or any(self.solid(column, row) for row in _cells(enemy.y, c.ENEMY_SIZE)):
            enemy.x -= enemy.speed
            enemy.speed = -enemy.speed
        enemy.fall = min(enemy.fall + c.ENEMY_GRAVITY, c.ENEMY_FALL_SPEED)
        enemy.y += enemy.fall
        row = (enemy.y + c.ENEMY_SIZE - 1) >> c.TILE_BITS
        if any(self.solid(column, row) for column in _cells(enemy.x, c.ENEMY_SIZE)):
            enemy.y, enemy.fall = (row << c.TILE_BITS) - c.ENEMY_SIZE, 0
        if enemy.y > HEIGHT << c.UNIT_BITS or enemy.x < left - c.LEAVE_DISTANCE:
            enemy.state = c.GONE

    def _meet(self, enemy: Enemy, falling: bool) -> None:
        """Squash an enemy hit from above; any other contact costs the star or the life."""
        apart = (
            enemy.x >= self.x + c.BOX_WIDTH
            or enemy.x + c.ENEMY_SIZE <= self.x
            or enemy.y >= self.y + c.BOX_HEIGHT
            or enemy.y + c.ENEMY_SIZE <= self.y
        )
        if enemy.state != c.WALKING or apart or self.dead:
            return
        if falling and self.y + c.BOX_HEIGHT - enemy.y <= c.STOMP_DEPTH:
            enemy.state, enemy.timer = c.SQUASHED, c.SQUASHED_FRAMES
            self.fall = -(c.HELD_BOUNCE_SPEED if self.held_jump else c.BOUNCE_SPEED)
            self.score += c.STOMP_POINTS
        elif self.safe == 0:
            if self.status == c.TALL:
                self.status, self.safe = c.SMALL, c.SAFE_FRAMES
            else:
                self.dead = True

    # ---- the level

    def tile(self, column: int, row: int) -> int:
        """Return the tile of a cell: EMPTY above and below the screen, STONE beyond the level's ends."""
        if not 0 <= row < c.ROWS:
            return Tile.EMPTY
        if not 0 <= column < self.level.width:
            return Tile.STONE
        return int(self.tiles[column, row])

    def solid(self, column: int, row: int) -> bool:
        """Whether a cell is solid."""
        return c.FIRST_SOLID <= self.tile(column, row) <= c.LAST_SOLID


def _cells(begin: int, length: int) -> range:
    """Return the columns or rows that a box covers."""
    return range(begin >> c.TILE_BITS, ((begin + length - 1) >> c.TILE_BITS) + 1)


def make_twin(config: PlatformerConfig, seed: int, draw: bool = True) -> Platformer | PreprocessedGame:
    """Return the reference for one row of the compiled environment, preprocessing included."""
    game = Platformer(config, seed, draw)
    return (
        game
        if config.preprocessing is None
        else PreprocessedGame(game, config.preprocessing, config.max_episode_steps)
    )
