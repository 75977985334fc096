"""Whether an optimizer's state still consists of the tensors that kernels know."""

from __future__ import annotations

from itertools import chain
from operator import is_, methodcaller
from typing import Any

_from_iterable, _values = chain.from_iterable, methodcaller("values")


class KnownState:
    """An optimizer's state and the tensors in it when they were last looked at.

    `load_state_dict` replaces the state, `optimizer.state.clear()` removes the tensors, and users replace or
    remove single ones.
    """

    def __init__(self, optimizer: Any):
        self._optimizer = optimizer
        self.note()

    def note(self) -> None:
        """Remember what is there now."""
        self._known = self._parts()

    def changed(self) -> bool:
        """Whether something else is there now; called before every `train`, so the loops are C's."""
        now, known = self._parts(), self._known
        return len(now) != len(known) or not all(map(is_, now, known))

    def _parts(self) -> list[Any]:
        # In the state's order: looking up parameters would call Tensor.__hash__, which is Python.
        state = self._optimizer.state
        return [state, *_from_iterable(map(_values, state.values()))]
