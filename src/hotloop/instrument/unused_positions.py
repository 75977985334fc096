"""Which positions of sequences a loss uses: padding, and results of which only a slice is read.

A module gets [batch, time, ...] or [time, batch, ...]. The gradient of its output says exactly what the loss
depends on: where it is zero for every sequence, from some step to the end, these steps were computed for
nothing, whatever they hold. Without gradients (targets), steps at the end that are the same in every
sequence are padding.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop._util.interrupts import suppress_own

Frames = tuple[tuple[str, int, int], ...]
LEAST_STEPS = 8
MOST_CALLS = 48  # that are looked at in one window
MOST_KEPT = 1_000
MOST_PLACES = 48  # in the facts
RECURRENT = ("LSTM", "GRU", "RNN")


@dataclass(eq=False)
class _Call:
    frames: Frames
    kind: str
    axis: int  # of time
    shape: tuple[int, int]  # sequences, steps
    window: int
    has_gradients: bool
    first: int = 0  # step that is used
    last: int = -1  # behind the last one that is used; -1: not known yet
    own_last: float = 0.0  # the same for each sequence, on average
    state_is_used: bool = False
    backward: Frames = ()


class UnusedPositions:
    """What is known about the positions that losses use."""

    KINDS = ("Linear", "Embedding", *RECURRENT)

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._window = 0
        self._in_window = 0
        self.backward: Frames = ()  # of the pass that is running

    def wants(self, module: Any, given: Any) -> bool:
        """Whether a call has sequences, as far as can be told quickly."""
        shape: tuple[int, ...] = getattr(given, "shape", ())
        least = 2 if type(module).__name__ == "Embedding" else 3
        return len(shape) >= least and shape[0] > 1 and shape[1] > 1 and self._in_window < MOST_CALLS

    def look(self, module: Any, given: Any, result: Any, frames: Frames) -> None:
        """Look at a call of a module; what the loss uses of it is known after the backward pass."""
        torch = sys.modules["torch"]
        kind = next((name for name in self.KINDS if isinstance(module, getattr(torch.nn, name))), "")
        recurrent = kind in RECURRENT
        if recurrent and (module.bidirectional or given.dim() != 3):
            return
        axis = 0 if recurrent and not module.batch_first else 1
        sequences, steps = given.shape[1 - axis], given.shape[axis]
        output, *rest = result if isinstance(result, tuple) else (result,)
        if steps < LEAST_STEPS or sequences < 2 or len(self._calls) >= MOST_KEPT:
            return
        call = _Call(frames, kind, axis, (sequences, steps), self._window, bool(output.requires_grad))
        if call.has_gradients:
            output.register_hook(lambda gradient: self._learn(call, gradient))
            for state in _tensors(rest):
                if state.requires_grad:
                    state.register_hook(lambda gradient: self._learn_of_state(call, gradient))
        else:
            call.last = call.own_last = _end_of_differences(given.detach(), axis)
            if call.last == steps:
                return
        self._calls.append(call)
        self._in_window += 1

    def _learn(self, call: _Call, gradient: Any) -> None:
        with suppress_own(Exception):
            if call.last >= 0 or not self.backward:
                return  # once for each call
            used = _used(gradient.detach(), call.axis)
            steps = np.flatnonzero(used.any(axis=0))
            if len(steps):
                call.first, call.last = int(steps[0]), int(steps[-1]) + 1
                ends = used.shape[1] - used[:, ::-1].argmax(axis=1)
                call.own_last = float(np.where(used.any(axis=1), ends, 0).mean())
                call.backward = self.backward

    def _learn_of_state(self, call: _Call, gradient: Any) -> None:
        with suppress_own(Exception):
            call.state_is_used |= bool((gradient != 0).any())

    def facts(self) -> dict[str, Any]:
        """Places of the script whose sequences have unused positions; the window is over."""
        self._window += 1
        self._in_window = 0
        self._calls = [call for call in self._calls if call.last >= 0]
        places: dict[tuple[Frames, str], list[_Call]] = {}
        for call in self._calls:
            places.setdefault((call.frames, call.kind), []).append(call)
        found = [_fact(calls) for calls in places.values() if any(_has_unused(call) for call in calls)]
        return {"positions": found[:MOST_PLACES]} if found else {}


def _has_unused(call: _Call) -> bool:
    return call.first > 0 or call.last < call.shape[1]


def _fact(calls: list[_Call]) -> dict[str, Any]:
    first = calls[0]
    return {
        "frames": [list(frame) for frame in first.frames],
        "backward": [list(frame) for frame in first.backward],
        "kind": first.kind,
        "gradients": first.has_gradients,
        "state_is_used": any(call.state_is_used for call in calls),
        "calls": len(calls),
        "windows": len({call.window for call in calls}),
        "sequences": float(np.mean([call.shape[0] for call in calls])),
        "steps": float(np.mean([call.shape[1] for call in calls])),
        "first": [min(call.first for call in calls), max(call.first for call in calls)],
        "last": [min(call.last for call in calls), max(call.last for call in calls)],
        "used": float(np.mean([call.last / call.shape[1] for call in calls])),
        "own_used": float(np.mean([call.own_last / call.shape[1] for call in calls])),
    }


def _tensors(values: list[Any]) -> list[Any]:
    return [t for value in values for t in (value if isinstance(value, tuple) else (value,)) if t is not None]


def _used(gradient: Any, axis: int) -> NDArray[np.bool_]:
    """Where a gradient is not zero, [sequences, steps]."""
    nonzero = gradient != 0
    if nonzero.dim() > 2:
        nonzero = nonzero.flatten(2).any(dim=2)
    array: NDArray[np.bool_] = nonzero.cpu().numpy()
    return array.T if axis == 0 else array


def _end_of_differences(given: Any, axis: int) -> int:
    """The step behind the last one at which sequences differ."""
    rows = given.transpose(0, 1) if axis == 0 else given
    same = rows == rows[:1]
    if same.dim() > 2:
        same = same.flatten(2).all(dim=2)
    differs = np.flatnonzero(~same.all(dim=0).cpu().numpy())
    return int(differs[-1]) + 1 if len(differs) else rows.shape[1]
