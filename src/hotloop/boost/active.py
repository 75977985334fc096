"""Which models of this process are boosted, and what is said about it.

State is kept here and not on the models, so that `model.save` never sees it.
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass, field
from typing import Any, Literal

from hotloop.boost.audit import Audits

Kind = Literal["model", "module", "optimizer", "function"]


@dataclass(slots=True)
class Record:
    """What was decided and found for one model, or for parts of plain torch of one shape; outlives them."""

    name: str
    """Of its class."""
    description: str = ""
    """What runs compiled."""
    reason: str | None = None
    """Why the library's own code runs, or None."""
    audits: Audits = field(default_factory=Audits)
    """Of gradient steps."""
    acting_audits: Audits = field(default_factory=Audits)
    """Of calls of the policy."""
    gradient_steps: int = 0
    """Made by kernels; backward passes of a module."""
    switched_at_env_step: int | None = None
    """Where kernels compiled in the background took over; None: they ran from the beginning, or never."""
    switched_at_n_updates: int | None = None
    """The same as the library logs it (`train/n_updates`)."""
    kind: Kind = "model"
    calls: int = 0
    """Of a module or function, made by kernels."""
    left: dict[str, int] = field(default_factory=dict)
    """Calls that torch made itself, by reason."""

    def leave(self, reason: str) -> None:
        """Count a call that torch makes itself."""
        self.left[reason] = self.left.get(reason, 0) + 1


@dataclass(slots=True, weakref_slot=True)
class Boosted:
    """A model's record, and the learner that holds its networks."""

    record: Record
    learner: Any = None
    """The compiled learner, or None: then the library's own code runs."""
    compilation: Any = None
    """Of its kernels in the background, or None."""
    functions: Any = None
    """The library's functions that kernels stand in for, as they were when the learner was first used."""

    def switch_off(self, reason: str) -> None:
        """Leave this model to the library from now on."""
        self.learner, self.record.reason = None, reason
        say(f"{self.record.name} continues unboosted: {reason}")


_by_model: weakref.WeakKeyDictionary[Any, Boosted] = weakref.WeakKeyDictionary()
_by_policy: weakref.WeakKeyDictionary[Any, weakref.ref[Boosted]] = weakref.WeakKeyDictionary()
is_paused = False  # then all models run on the library's own code
has_models = False  # whether a model of Stable-Baselines3 was ever decided on in this process
history: list[Record] = []  # of every model decided on, for reports


def of(model: Any) -> Any:
    """The compiled learner of a model, or None."""
    found = _by_model.get(model)
    return None if found is None else found.learner


def boosted_policy(policy: Any) -> Boosted | None:
    """What is known of the model that a policy belongs to, or None; None for all while boost is paused."""
    found = None if is_paused else _by_policy.get(policy)
    return None if found is None else found()


def of_policy(policy: Any) -> Any:
    """The compiled learner of the model that a policy belongs to, or None."""
    found = boosted_policy(policy)
    return None if found is None else found.learner


def policies() -> list[Any]:
    """The policies of all models that were decided on and still live."""
    return list(_by_policy)


def boosted(model: Any) -> Boosted | None:
    """What is known of a model, or None if nothing was decided yet."""
    return _by_model.get(model)


def remember(model: Any, found: Boosted) -> None:
    """Keep the decision on a model as long as the model lives."""
    global has_models
    has_models = True
    _by_model[model] = found
    _by_policy[model.policy] = weakref.ref(found)
    if all(known is not found.record for known in history):
        history.append(found.record)


def say(sentence: str) -> None:
    print(f"hotloop boost: {sentence}", file=sys.stderr, flush=True)
