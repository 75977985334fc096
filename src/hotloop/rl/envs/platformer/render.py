"""Draws a frame of the platformer layer by layer: the reference for the compiled drawing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hotloop.rl.envs.frame_preprocessing import HEIGHT, WIDTH
from hotloop.rl.envs.platformer import atlas
from hotloop.rl.envs.platformer import config as c
from hotloop.rl.envs.platformer.paint import ANIMATION, LANDSCAPE

if TYPE_CHECKING:
    from hotloop.rl.envs.platformer.rules import Enemy, Platformer

Bytes = NDArray[np.uint8]


def draw_frame(game: Platformer) -> NDArray[np.uint8]:
    """Draw the game as a new RGB image, uint8 [240, 256, 3]."""
    art = atlas.make_art()
    along = np.arange(WIDTH)
    picture = art.sky[:, (game.camera // 4 + along) % LANDSCAPE]
    put(picture, 0, 0, art.hills[:, (game.camera // 2 + along) % LANDSCAPE])
    turn = game.frames // 8 % ANIMATION
    for column in range(game.camera // c.TILE, min(game.camera // c.TILE + 17, game.level.width)):
        for row in np.flatnonzero(game.tiles[column]).tolist():  # the others are clear
            tile = art.tiles[game.tiles[column, row], turn]
            put(picture, row * c.TILE, column * c.TILE - game.camera, tile)
    if game.pop_frames > 0:
        sprite = atlas.STAR if game.pop_star else atlas.COIN + game.frames // 2 % ANIMATION
        top = game.pop_y - (c.POP_FRAMES - game.pop_frames)
        put(picture, top, game.pop_x - game.camera, art.sprites[sprite])
    for enemy in game.enemies:
        if enemy.state in (c.WALKING, c.SQUASHED):
            draw_enemy(picture, game, enemy)
    if game.safe % 8 < 4:  # blinks after a hit
        draw_player(picture, game)
    write(picture, 8, f"SCORE {game.score:06d}")
    write(picture, 120, f"cx{game.coins % 100:02d}")
    write(picture, 184, f"TIME {game.time:03d}")
    return art.palette[picture]


def draw_player(picture: Bytes, game: Platformer) -> None:
    """Choose the player's sprite: standing, running, in the air or hurt; golden helmet when tall."""
    x, y = game.x >> c.UNIT_BITS, game.y >> c.UNIT_BITS
    if game.dead:
        sprite = atlas.HURT
    elif not game.on_ground:
        sprite = atlas.JUMP
    elif game.speed == 0:
        sprite = atlas.STAND
    else:
        sprite = (atlas.RUN_A, atlas.STAND, atlas.RUN_B, atlas.STAND)[x // 8 % 4]
    shown = atlas.make_art().sprites[game.status * atlas.PLAYER_SPRITES + sprite]
    put(picture, y - 1, x - 2 - game.camera, shown[:, ::-1] if game.faces_left else shown)


def draw_enemy(picture: Bytes, game: Platformer, enemy: Enemy) -> None:
    """Choose an enemy's sprite: walking (two alternating ones) or squashed; it faces forward."""
    first = atlas.BLOB_A if enemy.kind == c.BLOB else atlas.BEETLE_A
    step = 2 if enemy.state == c.SQUASHED else game.frames // 8 % 2
    shown = atlas.make_art().sprites[first + step]
    top, left = (enemy.y >> c.UNIT_BITS) - 2, (enemy.x >> c.UNIT_BITS) - 1 - game.camera
    put(picture, top, left, shown[:, ::-1] if enemy.speed < 0 else shown)


def write(picture: Bytes, left: int, text: str) -> None:
    """Draw a line of the display."""
    for place, letter in enumerate(text):
        if letter != " ":
            glyph = atlas.make_art().glyphs[atlas.GLYPHS.index(letter)]
            put(picture, 8, left + atlas.GLYPH * place, glyph)


def put(picture: Bytes, top: int, left: int, sprite: Bytes) -> None:
    """Draw the opaque pixels of a sprite, clipped to the picture."""
    above, before = max(-top, 0), max(-left, 0)
    seen = sprite[above : max(HEIGHT - top, 0), before : max(WIDTH - left, 0)]
    if seen.size:
        y, x = top + above, left + before
        area = picture[y : y + seen.shape[0], x : x + seen.shape[1]]
        np.copyto(area, seen, where=seen != 0)
