"""Which rules to ask: the built-in ones and those that installed packages offer."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from importlib import metadata
from typing import Any

from hotloop.analysis.advice import BUILT_IN
from hotloop.analysis.recommend import AdviceFunction, AdviceWarning

GROUP = "hotloop.rules"  # entry point group; each names a rule, or a list of rules


def load_advice(points: Iterable[metadata.EntryPoint] | None = None) -> tuple[AdviceFunction, ...]:
    """Built-in rules, then those of installed packages in the order of their names.

    A package whose rules cannot be loaded costs a `AdviceWarning`; the others are used.
    """
    found: list[AdviceFunction] = list(BUILT_IN)
    for point in sorted(
        metadata.entry_points(group=GROUP) if points is None else points, key=lambda p: p.name
    ):
        try:
            found += _rules_of(point.load())
        except Exception as error:
            warnings.warn(
                f"the rules {point.name!r} ({point.value}) cannot be loaded ({error!r}) and were left out; "
                "update or remove the package that offers them",
                AdviceWarning,
                stacklevel=2,
            )
    return tuple(found)


def _rules_of(offered: Any) -> list[AdviceFunction]:
    rules = [offered] if callable(offered) else list(offered)
    for rule in rules:
        if not callable(rule):
            raise TypeError(
                f"{rule!r} is not callable; a rule is a function from a RunView to a Recommendation or None"
            )
    return rules
