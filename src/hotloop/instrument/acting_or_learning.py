"""Is a forward pass acting or learning? By gradient mode; with gradients on, by what follows it.

Scripts that act without `no_grad` would look as if they learned all the time. So the place in the
code a forward pass was called from is remembered until the next env step or backward pass shows what
it was for; from then on every call from that place is known.
"""

from __future__ import annotations

import sys
from types import CodeType
from typing import Any

from hotloop.measure.twin import region as twin_region

Place = tuple[CodeType, int]

_TWIN = twin_region.__file__
_acts: dict[Place, bool] = {}  # place -> whether an env step followed
pending: list[Place] = []  # places called since the last env step or backward pass


def is_learning() -> bool:
    """Whether the forward pass that is about to run, with gradients on, is learning."""
    frame = sys._getframe(1)  # called from the compiled wrapper: this is who calls the module
    while frame.f_code.co_filename == _TWIN and frame.f_back is not None:
        frame = frame.f_back
    place = (frame.f_code, frame.f_lasti)
    acts = _acts.get(place)
    if acts is None and place not in pending:
        pending.append(place)
    return not acts


def env_stepped() -> None:
    """An env step ended: what was called since the one before was acting."""
    if pending:
        _settle(True)


def went_backward(tensor: Any, result: Any) -> None:
    """A backward pass ended: what was called before it was learning."""
    if pending:
        _settle(False)


def _settle(acts: bool) -> None:
    for place in pending:
        _acts.setdefault(place, acts)
    pending.clear()
