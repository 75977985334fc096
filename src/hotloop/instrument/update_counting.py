"""Counts updates: an update is one gradient step of every network that the algorithm trains.

SAC steps three optimizers for one update, and TD3 its actor only at every second one. So the optimizer that
has made the most steps counts, and the others follow it (`measure/twin/call_counters.py`).
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hotloop._util.interrupts import suppress_own
from hotloop.instrument import process_facts, step_counting, torch_mlps
from hotloop.measure.profiler import default

_look_at_models = default.profile("hotloop_models", "hotloop")  # takes some hundredths of a second, once
_optimizers: dict[int, weakref.ref[Any]] = {}
_described: dict[int, dict[str, Any]] = {}  # id of an optimizer -> its entry in the facts of this process


def begin_training() -> None:
    """A library begins to train a model: its first gradient step is an update, whatever came before."""
    count_step.begin()


def _meet(optimizer: Any) -> None:
    """An optimizer makes its first step."""
    note_optimizer(optimizer)
    _describe(id(optimizer), optimizer)


def note_optimizer(optimizer: Any) -> None:
    """An optimizer was given parameters, or made a step."""
    with suppress_own(TypeError):  # its class may forbid weak references
        _optimizers[id(optimizer)] = weakref.ref(optimizer)


def live_optimizers() -> list[Any]:
    """Optimizers that exist now."""
    return [one for one in [known() for known in list(_optimizers.values())] if one is not None]


@contextmanager
def not_counting() -> Iterator[None]:
    """Steps of optimizers in here are no updates: their result is compared and thrown away."""
    before, count_step.paused = count_step.paused, True
    try:
        yield
    finally:
        count_step.paused = before


def _describe(key: int, optimizer: Any) -> None:
    entry = _described.get(key)
    if entry is None:
        groups = getattr(optimizer, "param_groups", ())
        tensors = [p for group in groups for p in group.get("params", ())]
        entry = _described[key] = {
            "class": type(optimizer).__name__,
            "parameters": sum(p.numel() for p in tensors),
            "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in tensors}),
            "largest": list(max((p.shape for p in tensors), key=math.prod, default=())),
            "steps": 0,
        }
        is_boostable = type(optimizer).__name__ in torch_mlps.OPTIMIZERS
        if is_boostable and len(_described) <= torch_mlps.MOST_OPTIMIZERS and not process_facts.has("models"):
            with _look_at_models, suppress_own(Exception):  # objects of the user's own making
                entry["mlp_parameters"] = torch_mlps.parameters_in_mlps(tensors)
        process_facts.note("optimizers", list(_described.values()))


def _fill_in_steps() -> None:
    for key, entry in list(_described.items()):
        entry["steps"] = count_step.steps(key)


def forget_parent() -> None:
    """In a forked child: the steps so far are the parent's."""
    count_step.forget()
    _described.clear()


# Called after each step of an optimizer; counts in the core.
count_step = default.update_counter(
    step_counting.everything, on_new=_meet, on_many=process_facts.changed_again
)
process_facts.at_fork(forget_parent)
process_facts.before_saving(_fill_in_steps)
