"""Code that is known to be slow in training loops, one file for each family."""

from __future__ import annotations

from hotloop.analysis.advice.idioms import (
    batches,
    callbacks,
    containers,
    copies,
    loops,
    numbers,
    output,
    remade,
    scientific,
    waiting,
)
from hotloop.analysis.advice.idioms.registry import IDIOMS, Match, idiom, match

# In the order in which they are tried.
FAMILIES = (copies, containers, batches, loops, scientific, callbacks, output, remade, waiting, numbers)
_places = {family.__name__: place for place, family in enumerate(FAMILIES)}
IDIOMS.sort(key=lambda one: _places[one.__module__])

__all__ = ["FAMILIES", "IDIOMS", "Match", "idiom", "match"]
