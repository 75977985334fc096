"""Category colours stay distinct with any colour vision, and stand out on both backgrounds."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from hotloop.analysis.categories import CATEGORIES
from hotloop.report.palette import CATEGORY_COLOURS, FALLBACK_COLOUR, colour_of

Floats = NDArray[np.float64]

# Full dichromacy on linear RGB (Machado, Oliveira, Fernandes 2009, severity 1).
SIGHT = {
    "normal": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
    ),
    "no blue": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]]
    ),
}
# Linear RGB to Oklab (Ottosson 2020), in which equal distances look about equally far.
TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.793617785, -0.0040720468],
        [1.9779984951, -2.428592205, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.808675766],
    ]
)


def linear(colour: str) -> Floats:
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def seen(colour: str, sight: str) -> Floats:
    light = np.clip(SIGHT[sight] @ linear(colour), 0, 1)
    return np.asarray(TO_LAB @ np.cbrt(TO_CONES @ light))


def contrast(a: str, b: str) -> float:
    lights = sorted(float(linear(c) @ np.array([0.2126, 0.7152, 0.0722])) for c in (a, b))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def test_every_category_has_its_own_colour() -> None:
    assert set(CATEGORIES) <= set(CATEGORY_COLOURS)
    assert len(set(CATEGORY_COLOURS.values())) == len(CATEGORY_COLOURS)


def test_a_category_of_the_users_own_gets_the_fallback() -> None:
    assert colour_of("my category") == FALLBACK_COLOUR


@pytest.mark.parametrize("sight", SIGHT)
def test_no_two_categories_look_alike(sight: str) -> None:
    pairs = combinations(CATEGORY_COLOURS.items(), 2)
    distances = {(a, b): float(np.linalg.norm(seen(x, sight) - seen(y, sight))) for (a, x), (b, y) in pairs}
    closest = min(distances, key=lambda pair: distances[pair])
    assert distances[closest] > 0.04, f"{closest}: {distances[closest]:.3f}"


@pytest.mark.parametrize("background", ["#ffffff", "#1b1c1f"])
def test_every_colour_stands_out_from_the_page(background: str) -> None:
    weak = {c: contrast(v, background) for c, v in CATEGORY_COLOURS.items() if contrast(v, background) < 1.9}
    assert weak == {}
