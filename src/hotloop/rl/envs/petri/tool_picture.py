"""Draws the cluster tool from above: two robots, their chambers, wafers with their remaining time."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop.rl.envs.petri.canvas import (
    FAINT,
    FLOOR,
    INK,
    LATE,
    LINE,
    READY,
    ROBOT,
    WORKING,
    Canvas,
    Colour,
)
from hotloop.rl.envs.petri.cluster_tool import ROBOT_OF_HOP, ROUTE
from hotloop.rl.envs.petri.net import Net, Place

WIDTH, HEIGHT = 640, 360

# Centres of the chambers of each stage, and of the robots.
_CHAMBERS = {
    "s1": ((165, 85), (255, 85)),
    "s5": ((165, 295), (255, 295)),
    "s2": ((340, 130),),
    "s4": ((340, 250),),
    "s3": ((560, 120), (560, 260)),
}
_ROBOTS = {"R1": (210, 190), "R2": (450, 190)}
_CASSETTES = {"LP": (62, 112), "done": (62, 268)}
_HALF = 38


def draw_tool(at: Canvas, net: Net, tokens: Sequence[Sequence[tuple[int, int]]], clock_s: int) -> None:
    """Draw on a canvas of WIDTH x HEIGHT."""
    here = {name: tokens[index] for name, index in net.place_index.items()}
    at.box(118, 36, 382, 344, FLOOR, radius=16)
    at.box(298, 60, 606, 320, FLOOR, radius=16)
    finished = len(here["done"])
    total = net.places[net.place_index["done"]].goal
    at.text(24, 20, f"{clock_s:,} s".replace(",", " "), INK, 18, anchor="lm")
    at.text(616, 20, f"{finished} of {total} wafers done", FAINT, 13, anchor="rm")
    for stage, (x, y) in _CASSETTES.items():
        _cassette(at, x, y, "load port" if stage == "LP" else "done", here[stage])
    for robot, centre in _ROBOTS.items():
        _robot(at, robot, centre, here)
    for stage, centres in _CHAMBERS.items():
        place = net.places[net.place_index[stage]]
        for chamber, (x, y) in zip(_in_chambers(here[stage], len(centres)), centres, strict=True):
            _chamber(at, x, y, place, chamber, clock_s)


def _in_chambers(queue: Sequence[tuple[int, int]], chambers: int) -> list[tuple[int, int] | None]:
    """Assign wafers to chambers by number, so that none jumps when another leaves."""
    shown: list[tuple[int, int] | None] = [None] * chambers
    for token in queue:
        wanted = token[1] % chambers
        free = wanted if shown[wanted] is None else shown.index(None)
        shown[free] = token
    return shown


def _chamber(at: Canvas, x: int, y: int, place: Place, token: tuple[int, int] | None, clock_s: int) -> None:
    colour: Colour = LINE
    words = ""
    if token is not None:
        left_s = token[0] + place.holding_s - clock_s
        if place.residence_s is None:
            colour, words = FAINT, "waiting"
        elif left_s > 0:
            colour, words = WORKING, f"{left_s} s"
        elif left_s + place.residence_s >= 0:
            colour, words = READY, f"scrap in {left_s + place.residence_s} s"
        else:
            colour, words = LATE, "scrapped"
    at.frame(x - _HALF, y - _HALF, x + _HALF, y + _HALF, colour)
    at.text(x - _HALF + 7, y - _HALF + 11, place.name, FAINT, 10, anchor="lm")
    if token is None:
        at.disc(x, y, 17, FLOOR)
        return
    if place.holding_s:
        at.ring(x, y, 22, 1.0, LINE)
        at.ring(x, y, 22, (clock_s - token[0]) / place.holding_s, colour)
    at.wafer(x, y, 16, token[1])
    at.text(x, y + _HALF - 8, words, colour if colour != WORKING else INK, 10)


def _cassette(at: Canvas, x: int, y: int, name: str, queue: Sequence[tuple[int, int]]) -> None:
    at.frame(x - 40, y - 64, x + 40, y + 64, LINE)
    at.text(x, y - 53, f"{name}: {len(queue)}", FAINT, 11)
    for position, (_, slot) in enumerate(queue[:12]):
        at.wafer(x - 24 + 24 * (position % 3), y - 30 + 26 * (position // 3), 11, slot)
    if len(queue) > 12:
        at.text(x, y + 58, f"and {len(queue) - 12} more", FAINT, 8)


def _robot(
    at: Canvas, robot: str, centre: tuple[int, int], here: dict[str, Sequence[tuple[int, int]]]
) -> None:
    """Draw a robot; a loaded one points to the wafer's destination."""
    x, y = centre
    held = None
    for start, end, owner in zip(ROUTE, ROUTE[1:], ROBOT_OF_HOP, strict=False):
        queue = here[f"{owner}:{start}-{end}"]
        if owner == robot and queue:
            held = (queue[0][1], end)
    if held is not None:
        slot, goal = held
        target = _CASSETTES[goal] if goal in _CASSETTES else _CHAMBERS[goal][slot % len(_CHAMBERS[goal])]
        hand = (x + (target[0] - x) * 0.42, y + (target[1] - y) * 0.42)
        at.line(centre, hand, ROBOT, 9)
        at.disc(x, y, 20, ROBOT)
        at.wafer(*hand, 14, slot)
        at.text(x, y + 30, f"to {goal}", INK, 10)
    else:
        at.disc(x, y, 20, ROBOT)
    at.text(x, y, robot, (255, 255, 255), 12)
