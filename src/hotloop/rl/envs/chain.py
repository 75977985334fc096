"""The chain of wrappers that game frames go through: frame skip, gray, resize, stack, as plain numbers.

`Chain` says what is done; `PlainChain` does it around one game, step by step, and is what compiled chains are
held to. The same chain out of Gymnasium's wrappers gives the same observations (see `shrink` for the one gray
level where OpenCV rounds otherwise).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError

HEIGHT, WIDTH = 240, 256  # of a game frame in pixels
GRAY = (0.2125, 0.7154, 0.0721)  # Gymnasium's weights of red, green and blue
LEAST_SIZE, MOST_SIZE = 8, HEIGHT

Frame = NDArray[np.uint8]
Step = tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Chain:
    """What happens to the frames of a game before an agent sees them, in this order."""

    skip: int = 4
    """An action is held for so many frames; rewards are added; the last frame is seen. Ends cut it short."""
    gray: bool = True
    """Whether colours become gray: 0.2125 red + 0.7154 green + 0.0721 blue, cut to a whole number."""
    size: int = 84
    """Height and width after averaging over areas, 8 to 240."""
    stack: int = 4
    """So many frames, oldest first; after a reset the first frame is repeated."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("skip", 1, 1000),
            ("size", LEAST_SIZE, MOST_SIZE),
            ("stack", 1, 1000),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise HotloopError(
                    f"{name}={value!r} cannot be used in a chain; give a whole number from {least} to {most}."
                )
        if not isinstance(self.gray, bool):
            raise HotloopError(f"gray={self.gray!r} cannot be used in a chain; give True or False.")

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Of one frame: [size, size], with colours [size, size, 3]."""
        return (self.size, self.size) if self.gray else (self.size, self.size, 3)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of an observation: [stack, size, size], with colours [stack, size, size, 3]."""
        return (self.stack, *self.frame_shape)


def checked_chain(given: Any) -> Chain | None:
    """The chain given, or one sentence on what was given instead."""
    if given is not None and not isinstance(given, Chain):
        raise HotloopError(
            f"chain={given!r} is no chain of wrappers; "
            "give hotloop.rl.envs.chain.Chain(...), or None for RGB frames as they are."
        )
    return given


def to_gray(frame: Frame) -> Frame:
    """RGB [height, width, 3] as gray [height, width], the way Gymnasium's GrayscaleObservation does it."""
    gray: Frame = np.sum(np.multiply(frame, np.array(GRAY)), axis=-1).astype(np.uint8)
    return gray


@functools.cache
def area_weights(length: int, size: int) -> NDArray[np.int64]:
    """How much of each source pixel lies in each output pixel, as whole numbers [size, length].

    `length` source pixels are cut into `size` equal parts. In units of 1/size of a source pixel a source
    pixel is `size` long and an output pixel `length`; both are divided by what they have in common.
    """
    weights = np.zeros((size, length), dtype=np.int64)
    for out in range(size):
        for source in range(length):
            begin, end = max(out * length, source * size), min((out + 1) * length, (source + 1) * size)
            weights[out, source] = max(end - begin, 0)
    return weights // math.gcd(length, size)


def shrink(frame: Frame, size: int) -> Frame:
    """Average over areas to [size, size] or [size, size, 3], exact: the mean, halves rounded to even.

    OpenCV's INTER_AREA means the same but adds 32-bit floats. Where a mean lies exactly half way between two
    levels its sum may come out a little higher or lower: there, and only there, it may differ, by one level.
    Seen in 4 of 100,000 pixels of the platformer.
    """
    if frame.ndim == 3:
        return np.stack([shrink(frame[..., colour], size) for colour in range(3)], axis=-1)
    rows, columns = area_weights(frame.shape[0], size), area_weights(frame.shape[1], size)
    total = int(rows[0].sum() * columns[0].sum())
    # Products of whole numbers below 2^53: floats are exact here, and much faster.
    sums = rows.astype(np.float64) @ frame @ columns.T.astype(np.float64)
    return np.rint(sums / total).astype(np.uint8)  # a mean that ends in .5 is exact as a float too


def seen_through(chain: Chain, frame: Frame) -> Frame:
    """One RGB frame as the chain shows it, [size, size] or [size, size, 3]."""
    return shrink(to_gray(frame) if chain.gray else frame, chain.size)


class Game(Protocol):
    """One game that shows RGB frames and never resets by itself."""

    def reset(self) -> tuple[Frame, dict[str, Any]]:
        """Begin an episode."""
        ...

    def step(self, action: int) -> Step:
        """One frame of the game."""
        ...


class PlainChain:
    """The chain around one game, in plain steps; `max_steps` truncates after so many of its own steps."""

    def __init__(self, game: Game, chain: Chain, max_steps: int | None = None):
        self.game, self.chain, self.max_steps = game, chain, max_steps
        self.frames: list[Frame] = []
        self.elapsed = 0

    def reset(self) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin an episode; its first frame fills the stack."""
        frame, info = self.game.reset()
        self.frames = [seen_through(self.chain, frame)] * self.chain.stack
        self.elapsed = 0
        return np.stack(self.frames), info

    def step(self, action: int) -> Step:
        """Hold the action for `skip` frames or until the episode ends; see the last frame."""
        reward = 0.0
        for _ in range(self.chain.skip):
            frame, gained, terminated, truncated, info = self.game.step(action)
            reward += gained
            if terminated or truncated:
                break
        self.frames = [*self.frames[1:], seen_through(self.chain, frame)]
        self.elapsed += 1
        truncated = truncated or (
            self.max_steps is not None and not terminated and self.elapsed >= self.max_steps
        )
        return np.stack(self.frames), reward, terminated, truncated, info
