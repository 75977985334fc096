"""Code that is known to be slow in training loops, recognised in the source of hot lines.

An idiom is one function: it looks at a `Spot` (a hot statement or loop) and returns a `Match` or None. It
names a mechanism that the source shows; how much it costs was sampled. `saved` is the part of the spot's
time that the remedy removes: an assumption, which benchmarks/truth.py checks on pairs of scripts.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hotloop.analysis.findings import Effort, Safety
from hotloop.analysis.hot_statements import Spot


@dataclass(frozen=True)
class Match:
    """An idiom found at a spot."""

    name: str  # stable, snake_case
    title: str  # what to do, a few words
    why: str  # the mechanism, one sentence
    remedy: str  # what to write instead
    saved: tuple[float, float, float]  # least, most likely, most
    safety: Safety = "safe"
    effort: Effort = "minutes"
    # Names of functions of torch or an RL library that are part of it. Other calls into those libraries (a
    # forward pass, a step of the env) that share its line are not.
    library_calls: tuple[str, ...] = ()
    # Other functions of the user that the statement calls: "hooks" are called by a library on its behalf (a
    # key function, __deepcopy__, a constructor) and go away with it, functions that it names itself do not.
    takes: Literal["own", "hooks", "all"] = "hooks"
    # Whether it reads or writes so much memory at each pass that what runs next finds cold caches.
    walks_memory: bool = False
    backward: bool = False  # whether backward passes get cheaper with it, too
    optimizer: bool = False  # whether steps of the optimizer do
    chills: bool = True  # whether it leaves cold caches at all: code that training runs anyway does not
    waits: bool = False  # whether it is about waiting; else time that its lines wait is not its own
    waits_for_own: bool = False  # whether whom it waits for works for it alone, as a logger's thread does
    patch: str = ""  # name of the patch in `hotloop try` that makes this change, if there is one
    again: bool = False  # only where it comes again and again: a figure may be drawn once, at the end
    helpers: bool = False  # whether what threads and processes do meanwhile takes less time with it, too
    least: float = 0.0  # share of training that its places take together, at least
    part: ast.AST | None = None  # the expression that it is about; None: the whole statement or loop
    # Beginnings of library functions that take less time with it, wherever they are called: an event loop
    also_called: tuple[str, ...] = ()


Idiom = Callable[[Spot], Match | None]


IDIOMS: list[Idiom] = []


def idiom(function: Idiom) -> Idiom:
    """Register an idiom; earlier ones win."""
    IDIOMS.append(function)
    return function


def match(spot: Spot) -> Match | None:
    """The first idiom that the spot shows."""
    for function in IDIOMS:
        found = function(spot)
        if found is not None:
            return found
    return None
