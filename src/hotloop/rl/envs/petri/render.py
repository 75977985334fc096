"""Draws a net: the cluster tool as a machine, any other net as a graph of places and transitions.

Pictures are new arrays, uint8 [height, width, 3], drawn at twice the size and scaled down for smooth edges.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from hotloop.rl.envs.petri import canvas
from hotloop.rl.envs.petri.canvas import FAINT, INK, SCALE, Canvas
from hotloop.rl.envs.petri.cluster_tool import NAME
from hotloop.rl.envs.petri.net import Net
from hotloop.rl.envs.petri.tool_picture import HEIGHT, WIDTH, draw_tool

Tokens = Sequence[Sequence[tuple[int, int]]]  # per place (arrival time in s, slot), oldest first

_COLUMN, _ROW, _MARGIN = 46, 46, 34


def draw(net: Net, tokens: Tokens, clock_s: int) -> NDArray[np.uint8]:
    """Draw the net with these tokens at this time."""
    if net.name == NAME:
        image, at = _blank(WIDTH, HEIGHT)
        draw_tool(at, net, tokens, clock_s)
    else:
        where = _layout(net)
        width = max(x for x, _ in where.values()) + _MARGIN
        height = max(y for _, y in where.values()) + _MARGIN
        image, at = _blank(max(width, 240), height)
        _draw_graph(at, net, tokens, clock_s, where)
    small = image.resize((image.width // SCALE, image.height // SCALE), Image.Resampling.BOX)
    return np.array(small, dtype=np.uint8)


def _blank(width: int, height: int) -> tuple[Image.Image, Canvas]:
    image = Image.new("RGB", (width * SCALE, height * SCALE), canvas.PAPER)
    return image, Canvas(ImageDraw.Draw(image))


def _layout(net: Net) -> dict[str, tuple[int, int]]:
    """Return the position of every place (`p:name`) and transition (`t:name`).

    Columns follow the order in which nodes are first reachable: a transition comes after all its input
    places, a place after the first transition that feeds it. Resources are in a row below.
    """
    column = _columns(net)
    resources = [f"p:{place.name}" for place in net.places if not place.is_tracked]
    filled: dict[int, int] = {}
    where = {}
    for node, depth in column.items():
        where[node] = (_MARGIN + depth * _COLUMN, _MARGIN + 34 + filled.get(depth, 0) * _ROW)
        filled[depth] = filled.get(depth, 0) + 1
    below = max((y for _, y in where.values()), default=0) + _ROW + 14
    for position, node in enumerate(resources):
        where[node] = (_MARGIN + position * 2 * _COLUMN, below)
    return where


def _columns(net: Net) -> dict[str, int]:
    names = [f"p:{place.name}" for place in net.places]
    tracked = [place.is_tracked for place in net.places]
    takes = [[names[place] for place, _ in arcs if tracked[place]] for arcs in net.takes]
    puts = [[names[place] for place, _ in arcs if tracked[place]] for arcs in net.puts]
    column = {
        name: 0 for name, place in zip(names, net.places, strict=True) if place.tokens and place.is_tracked
    }
    waiting = list(range(len(net.transitions)))
    while waiting:
        reached = [index for index in waiting if all(name in column for name in takes[index])]
        for index in reached or waiting[:1]:  # transitions that can never fire are drawn, too
            depth = 1 + max((column.get(name, 0) for name in takes[index]), default=-1)
            column[f"t:{net.transitions[index].name}"] = depth
            for name in puts[index]:
                column.setdefault(name, depth + 1)
            waiting.remove(index)
    for name, is_tracked in zip(names, tracked, strict=True):
        if is_tracked:
            column.setdefault(name, 0)
    return column


def _draw_graph(
    at: Canvas, net: Net, tokens: Tokens, clock_s: int, where: dict[str, tuple[int, int]]
) -> None:
    at.text(_MARGIN - 14, 20, net.name, INK, 14, anchor="lm")
    at.text(_MARGIN - 14, 38, f"{clock_s} s", FAINT, 12, anchor="lm")
    for index, transition in enumerate(net.transitions):
        this = where[f"t:{transition.name}"]
        for place, _ in net.takes[index]:
            at.arrow(
                where[f"p:{net.places[place].name}"], this, gap=6, resource=not net.places[place].is_tracked
            )
        for place, _ in net.inhibitors[index]:
            at.arrow(where[f"p:{net.places[place].name}"], this, gap=6, resource=False, head="circle")
        for place in net.resets[index]:
            at.arrow(where[f"p:{net.places[place].name}"], this, gap=6, resource=False, head="double")
        for place, _ in net.puts[index]:
            at.arrow(this, where[f"p:{net.places[place].name}"], resource=not net.places[place].is_tracked)
    for transition in net.transitions:
        x, y = where[f"t:{transition.name}"]
        at.box(x - 4, y - 12, x + 4, y + 12, INK, radius=2)
    for of, queue in zip(net.places, tokens, strict=True):
        x, y = where[f"p:{of.name}"]
        at.disc(x, y, 14, canvas.CHAMBER, outline=INK if queue else canvas.LINE)
        at.text(x, y + 20, of.name[:12], FAINT, 8)
        if queue and of.holding_s:
            at.ring(x, y, 14, (clock_s - queue[0][0]) / of.holding_s, canvas.WORKING)
        if len(queue) == 1:
            at.wafer(x, y, 8, queue[0][1])
        elif queue:
            at.text(x, y, str(len(queue)), INK, 12)
