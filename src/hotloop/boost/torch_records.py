"""What is said about modules, optimizers and distributions of plain torch that kernels stand in for.

Things of one kind and shape share a record: a script may make thousands of networks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from hotloop.boost import active
from hotloop.boost.active import Kind, Record, say
from hotloop.instrument.trial_patch import live_objects

MOST_LINES = 5  # about things that are left to torch
PART = 0.1  # of the share for audits: a script has about five things with two kinds of audits each

_records: dict[tuple[str, str, str, str], Record] = {}
_lines = 0


def record_of(kind: Kind, name: str, description: str, reason: str | None) -> Record:
    """The record of things like this, made and announced if it is new."""
    global _lines
    key = (kind, name, description, reason or "")
    record = _records.get(key)
    if record is None:
        record = _records[key] = Record(name, description, reason, kind=kind)
        record.audits.part = record.acting_audits.part = PART
        active.history.append(record)
        if reason is None:
            say(f"{name} ({description}) runs on compiled kernels")
        else:
            _lines += 1
            if _lines <= MOST_LINES:
                say(f"{name} runs unboosted: {reason}")
            elif _lines == MOST_LINES + 1:
                say("more is left to torch; hotloop boost --show lists it at the end")
    return record


def switch_off(record: Record, reason: str) -> None:
    """Leave everything with this record to torch from now on."""
    record.reason = f"{reason} Torch's result was kept."
    say(f"{record.name} ({record.description}) continues unboosted: {record.reason}")


def forget_all() -> None:
    global _lines
    _records.clear()
    _lines = 0


def in_stable_baselines3(parameters: Iterable[Any]) -> bool:
    """Whether a parameter belongs to a policy or model of Stable-Baselines3, which has its own boost.

    SAC's entropy coefficient belongs to no policy, only to one of the model's optimizers.
    """
    names = (("policies", "BaseModel"), ("base_class", "BaseAlgorithm"))
    modules = [(sys.modules.get(f"stable_baselines3.common.{module}"), name) for module, name in names]
    kinds = [kind for module, name in modules if (kind := getattr(module, name, None)) is not None]
    if not kinds:
        return False
    ours = {id(parameter) for parameter in parameters}

    def has_one(things: Iterable[Any]) -> bool:
        return any(id(one) in ours for thing in things for one in _parameters_of(thing))

    return has_one(active.policies()) or has_one(live_objects(*kinds))  # the second takes 0.1 s


def _parameters_of(thing: Any) -> Iterable[Any]:
    """The parameters of a policy, or of a model's own optimizers."""
    if hasattr(thing, "parameters"):
        yield from thing.parameters()
        return
    for value in list(vars(thing).values()):
        for group in getattr(value, "param_groups", ()):
            yield from group["params"]
