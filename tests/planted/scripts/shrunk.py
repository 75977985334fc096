"""Defect: a picture four times too large is made and shrunk at every step."""

import numpy as np
from _pace import turns

from hotloop import profile, progress

rng = np.random.default_rng(0)
weights = rng.normal(size=(84 * 84, 4)) * 0.01
background = rng.integers(0, 255, (336, 336), dtype=np.uint8)

place = 0
for _ in turns(1100):
    with profile("game"):
        place = (place + 7) % 300
        picture = background.copy()
        picture[place : place + 20, place : place + 20] = 255
    with profile("shrink", "rendering"):
        small = picture.astype(np.float64).reshape(84, 4, 84, 4).mean(axis=(1, 3)).astype(np.uint8)
    with profile("brain"):
        move = int((small.ravel() / 255.0 @ weights).argmax())
    progress(env_steps=1)
