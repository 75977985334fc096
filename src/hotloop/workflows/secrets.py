"""Asks for secrets that were not stored before a stored command is run again."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable
from dataclasses import replace

from hotloop._util.errors import HotloopError
from hotloop._util.redact import PLACEHOLDER, is_redacted
from hotloop.capture.plan import Plan, Variant

Ask = Callable[[str], str]


def command_with_secrets(words: tuple[str, ...], ask: Ask | None = None) -> tuple[str, ...]:
    """The command with every placeholder replaced by what the user types.

    Raises HotloopError without a terminal to ask at: a placeholder is never run.
    """
    return _Secrets(ask).fill_in(words)


def plan_with_secrets(plan: Plan, ask: Ask | None = None) -> Plan:
    """The same for all commands and variables of a plan; each value is asked for once."""
    secrets = _Secrets(ask)

    def fill_in(variant: Variant) -> Variant:
        names = [name for name, _ in variant.environment]
        values = secrets.fill_in(tuple(value for _, value in variant.environment), names)
        return replace(
            variant,
            command=secrets.fill_in(variant.command),
            overrides=secrets.fill_in(variant.overrides),
            environment=tuple(zip(names, values, strict=True)),
        )

    return replace(plan, variants=tuple(map(fill_in, plan.variants)))


class _Secrets:
    def __init__(self, ask: Ask | None):
        self._ask = ask or (getpass.getpass if sys.stdin is not None and sys.stdin.isatty() else None)
        self._typed: dict[str, str] = {}

    def fill_in(self, words: tuple[str, ...], names: list[str] | None = None) -> tuple[str, ...]:
        if not is_redacted(words):
            return words
        found = []
        for at, word in enumerate(words):
            if PLACEHOLDER in word:
                before = words[at - 1] if at and words[at - 1].startswith("-") else f"argument {at}"
                name = names[at] if names else word.partition(f"={PLACEHOLDER}")[0].partition("=")[0]
                name = before if not names and (name == word or PLACEHOLDER in name) else name
                word = word.replace(PLACEHOLDER, self._value(name))
            found.append(word)
        return tuple(found)

    def _value(self, name: str) -> str:
        if self._ask is None:
            raise HotloopError(
                f"The value of {name} was not stored because it is a secret, so the command cannot be run "
                "again; run this in a terminal, which asks for it, or give the whole command."
            )
        if name not in self._typed:
            self._typed[name] = self._ask(f"value of {name} (is not stored): ")
        return self._typed[name]
