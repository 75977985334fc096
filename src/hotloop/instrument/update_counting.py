"""Counts updates: an update is one gradient step of every network that the algorithm trains.

SAC steps three optimizers for one update, and TD3 its actor only at every second one. So the optimizer that
has made the most steps counts, and the others follow it. When it rests while others go on through several
env steps, a new training has begun (another algorithm in the same script), and the counts start anew.
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

RETIRED_AFTER = 4  # env steps between which others step, but not the optimizer that counts

_look_at_models = default.profile("hotloop_models", "hotloop")  # takes some hundredths of a second, once
_counts: dict[int, int] = {}  # id of an optimizer -> its steps in this training
_most = 0  # steps of the optimizer that counts
_since: dict[int, int] = {}  # steps of others since its last one
_rested = 0  # different numbers of env steps seen at these
_rested_at = -1
_is_paused = False  # steps that are made for comparison only do not count
_optimizers: dict[int, weakref.ref[Any]] = {}
_described: dict[int, dict[str, Any]] = {}  # id of an optimizer -> its entry in the facts of this process


def begin_training() -> None:
    """A library begins to train a model: its first gradient step is an update, whatever came before."""
    global _most, _rested
    _counts.clear()
    _since.clear()
    _most = _rested = 0


def count_step(optimizer: Any, result: Any) -> None:
    """An optimizer made a step."""
    global _most, _rested, _rested_at
    if _is_paused:
        return
    key = id(optimizer)
    known = _optimizers.get(key)
    if known is None or known() is not optimizer:
        note_optimizer(optimizer)
    steps = _counts[key] = _counts.get(key, 0) + 1
    _describe(key, optimizer)
    if steps > _most:
        _most = steps
        if _since:
            _since.clear()
            _rested = 0
        default.progress(updates=1)
        return
    _since[key] = _since.get(key, 0) + 1
    now = step_counting.total_steps()
    if now != _rested_at:
        _rested_at = now
        _rested += 1
        if _rested > RETIRED_AFTER:
            _retire()


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
    global _is_paused
    before, _is_paused = _is_paused, True
    try:
        yield
    finally:
        _is_paused = before


def _retire() -> None:
    """Let those that still step count, from the last step of the one that counted so far."""
    global _most, _rested
    _counts.clear()
    _counts.update(_since)
    _most = max(_since.values())
    _since.clear()
    _rested = 0
    default.progress(updates=_most)


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
    entry["steps"] += 1
    process_facts.changed_again()


def forget_parent() -> None:
    """In a forked child: the steps so far are the parent's."""
    begin_training()
    _described.clear()


process_facts.at_fork(forget_parent)
