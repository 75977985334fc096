"""Defect: the board is painted cell by cell in Python at every step."""

import numpy as np
from _pace import turns

from hotloop import profile, progress

SIZE = 12
rng = np.random.default_rng(0)
weights = rng.normal(size=(SIZE * SIZE * 3, 4)) * 0.01
robot = [3, 4]
walls = rng.random((SIZE, SIZE)) < 0.2


def paint(where):
    canvas = np.zeros((SIZE, SIZE, 3), dtype=np.uint8)
    for row in range(SIZE):
        for column in range(SIZE):
            canvas[row, column] = (90, 90, 90) if walls[row, column] else (230, 230, 230)
    canvas[where[0], where[1]] = (200, 30, 30)
    return canvas


for _ in turns(7000):
    with profile("turn"):
        with profile("paint_board", "rendering"):
            seen = paint(robot)
        with profile("net"):
            move = int((seen.ravel() / 255.0 @ weights).argmax())
        with profile("slide"):
            robot = [(robot[0] + move + 1) % SIZE, (robot[1] + move * 2) % SIZE]
    progress(env_steps=1)
