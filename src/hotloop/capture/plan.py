"""A `Plan`: which variants of a command to run, how often and for how long, as a pure value."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Literal

from hotloop._util.errors import HotloopError

Kind = Literal["pairs", "blocks", "sweep", "scale"]
Safety = Literal["safe", "semantic"]  # same results, or may change learning

LOOKS = (5, 8, 12, 16, 20, 24, 30, 40)  # pairs after which the series is looked at
BUDGET_S = 600.0
TOLERANCE = 0.03


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run the command."""

    name: str
    command: tuple[str, ...]  # overrides already in it; {seed} and {n} are filled in at the start
    overrides: tuple[str, ...] = ()  # what differs from the base command, as typed
    environment: tuple[tuple[str, str], ...] = ()  # variables set on top of the lab's own
    expected: str = ""  # what its author expects, in words
    safety: Safety = "safe"
    sweep: str = ""  # the setting this variant is one value of; "" for a suspect
    revision: str = ""  # git revision of the project to run in; "" for the folder as it is


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. The first variant is the baseline the others are compared with."""

    variants: tuple[Variant, ...]
    kind: Kind = "pairs"
    name: str = ""
    seeds: tuple[int, ...] = ()  # used in turn, one for each pair or block; (): 0, 1, 2, ...
    budget_s: float | None = BUDGET_S  # for all runs together; None: as long as it takes
    timeout_s: float | None = None  # for one run; None: the budget
    tolerance: float = TOLERANCE  # a difference below this does not matter
    looks: tuple[int, ...] = LOOKS  # the last one is the most pairs or blocks that are run
    sizes: tuple[int, ...] = ()  # work sizes for {n}, smallest first; () for no scale check
    repeats: int = 3  # runs of each size
    size: int | None = None  # what {n} is outside the scale check; None: the smallest size
    neighbours: int | None = None  # variants beside each run of the baseline; None: all of a block
    order_seed: int = 0  # for the coin flips
    record: bool = True  # whether runs are made to record themselves; False: process times only

    def __post_init__(self) -> None:
        check(self)

    @property
    def baseline(self) -> Variant:
        """What the others are compared with."""
        return self.variants[0]

    @property
    def most_blocks(self) -> int:
        """Pairs or blocks after which it ends in any case."""
        return 0 if self.kind == "scale" or len(self.variants) < 2 else self.looks[-1]

    def variant(self, name: str) -> Variant:
        """The variant of that name."""
        return next(v for v in self.variants if v.name == name)

    def seed_of(self, block: int) -> int:
        """The seed all runs of a block share."""
        return self.seeds[block % len(self.seeds)] if self.seeds else block


def check(plan: Plan) -> None:
    """Raise HotloopError, one sentence, for a plan that cannot be run."""
    names = [v.name for v in plan.variants]
    if not names:
        raise HotloopError("The plan has no variants; give it a command and at least one suspect.")
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise HotloopError(f"Two variants are called {twice!r}; give each a name of its own.")
    for variant in plan.variants:
        if not variant.command or not variant.command[0]:
            raise HotloopError(f"The command of {variant.name!r} is empty; name the program to run.")
    if plan.kind == "pairs" and len(names) != 2:
        raise HotloopError(f"A plan of kind 'pairs' has 2 variants, this one has {len(names)}; use 'blocks'.")
    if plan.kind != "scale" and len(names) < 2 and not plan.sizes:
        raise HotloopError("There is nothing to compare with; add a suspect, a sweep or sizes to the plan.")
    if plan.kind == "scale" and not plan.sizes:
        raise HotloopError("A plan of kind 'scale' needs sizes, such as sizes = [1000, 2000, 4000].")
    if plan.sizes and not any("{n}" in word for v in plan.variants for word in v.command):
        raise HotloopError("The plan has sizes but no {n} in its command; write {n} where the size goes.")
    if not plan.looks or list(plan.looks) != sorted(set(plan.looks)) or plan.looks[0] < 1:
        raise HotloopError(f"looks is {list(plan.looks)}; it must be rising counts of pairs, such as [5, 8].")
    if plan.repeats < 1:
        raise HotloopError(f"repeats is {plan.repeats}; it must be at least 1.")


def split_command(typed: str, what: str) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """A command line as variables (`NAME=value` in front) and words; `what` names it in the complaint.

    No shell reads it, so what only a shell understands is refused.
    """
    try:
        words = shlex.split(typed)
    except ValueError as error:
        raise HotloopError(f"{what} is {typed!r}, which has {error}.") from None
    lexer = shlex.shlex(typed, posix=False, punctuation_chars=True)  # keeps quotes, so '|' is a word
    lexer.whitespace_split = True
    lexer.commenters = ""
    odd = next((word for word in lexer if word and set(word) <= set("();<>|&")), None)
    if odd is not None:
        raise HotloopError(f"{what} has {odd!r}, which needs a shell; write it as bash -c '...'.")
    variables = []
    while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0], re.DOTALL):
        name, _, value = words.pop(0).partition("=")
        variables.append((name, value))
    return tuple(variables), tuple(words)


def overridden(command: tuple[str, ...], overrides: tuple[str, ...]) -> tuple[str, ...]:
    """The command with each override put in: `key=value`, or `flag` for one without a value.

    `{key}` in the command is filled in; `--key old`, `--key=old` and `key=old` get the new value;
    otherwise `--key value` is appended (`key=value` where the command already speaks that way).
    """
    words = list(command)
    for override in overrides:
        key, has_value, value = override.partition("=")
        words = _with(words, key, value if has_value else None)
    return tuple(words)


def _with(words: list[str], key: str, value: str | None) -> list[str]:
    bare = key.lstrip("-")
    if value is not None and any(f"{{{bare}}}" in word for word in words):
        return [word.replace(f"{{{bare}}}", value) for word in words]
    alike = bare.replace("_", "-")
    for at, word in enumerate(words):
        name, assigned, _ = word.partition("=")
        if at == 0 or name.lstrip("-").replace("_", "-") != alike:
            continue
        dashed = name.startswith("-")
        if value is None:
            if dashed:
                return words  # the flag is there already
        elif assigned and (dashed or not key.startswith("-")):
            return [*words[:at], f"{name}={value}", *words[at + 1 :]]
        elif dashed and at + 1 < len(words):
            return [*words[: at + 1], value, *words[at + 2 :]]
    flag = key if key.startswith("-") else f"--{key}"
    if value is None:
        return [*words, flag]
    if not key.startswith("-") and any(re.fullmatch(r"[A-Za-z_][\w.]*=.*", w) for w in words[1:]):
        return [*words, f"{key}={value}"]
    return [*words, flag, value]


def filled(command: tuple[str, ...], seed: int, size: int | None) -> list[str]:
    """The command to start: {seed} and {n} filled in; other braces stay as they are."""
    known = {"{seed}": str(seed)} | ({} if size is None else {"{n}": str(size)})
    out = []
    for word in command:
        for place, value in known.items():
            word = word.replace(place, value)
        out.append(word)
    return out
