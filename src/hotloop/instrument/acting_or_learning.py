"""Is a forward pass acting or learning? Without gradients it is acting; with gradients, what follows decides.

Scripts that act without `no_grad` would otherwise seem to learn all the time. The place in the code that
called a forward pass is therefore remembered until the next env step or backward pass shows what it was
for; from then on every call from that place is known.
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
    frame = sys._getframe(1)  # the caller of the module: the compiled wrapper has no frame
    while frame.f_code.co_filename == _TWIN and frame.f_back is not None:
        frame = frame.f_back
    place = (frame.f_code, frame.f_lasti)
    acts = _acts.get(place)
    if acts is None and place not in pending:
        pending.append(place)
    return not acts


def env_stepped() -> None:
    """An env step ended, so the pending forward passes were acting."""
    if pending:
        _settle(True)


def went_backward(tensor: Any, result: Any) -> None:
    """A backward pass ended, so the pending forward passes were learning."""
    if pending:
        _settle(False)


def _settle(acts: bool) -> None:
    for place in pending:
        _acts.setdefault(place, acts)
    pending.clear()
