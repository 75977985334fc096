"""A `Plan`: which variants of a command to run, how often and for how long, as a pure value."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Literal

from hotloop._util.errors import HotloopError

Kind = Literal["pairs", "blocks", "sweep", "scale"]
Safety = Literal["safe", "semantic"]  # semantic: may change what is learned

LOOKS = (5, 8, 12, 16, 20, 24, 30, 40)  # numbers of pairs after which a verdict may be given
BUDGET_S = 600.0
TOLERANCE = 0.03


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run the command."""

    name: str
    command: tuple[str, ...]  # overrides applied; {seed} and {n} are filled in for each run
    overrides: tuple[str, ...] = ()  # what differs from the base command, as typed
    environment: tuple[tuple[str, str], ...] = ()  # variables set on top of the lab's own
    expected: str = ""  # what the author expects, in words
    safety: Safety = "safe"
    sweep: str = ""  # the swept setting this variant is one value of; "" for a suspect
    revision: str = ""  # git revision to run; "" for the working folder as it is


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. The first variant is the baseline the others are compared with."""

    variants: tuple[Variant, ...]
    kind: Kind = "pairs"
    name: str = ""
    seeds: tuple[int, ...] = ()  # one for each pair or block, reused in turn; (): 0, 1, 2, ...
    budget_s: float | None = BUDGET_S  # for all runs together; None: unlimited
    timeout_s: float | None = None  # for one run; None: the budget
    tolerance: float = TOLERANCE  # a difference below this fraction does not matter
    looks: tuple[int, ...] = LOOKS  # the last one is the largest number of pairs or blocks
    sizes: tuple[int, ...] = ()  # values of {n}, smallest first; (): no scale check
    repeats: int = 3  # runs of each size
    size: int | None = None  # value of {n} outside the scale check; None: the smallest size
    neighbours: int | None = None  # variants that share a run of the baseline; None: the whole block
    order_seed: int = 0  # of the random order of runs
    resources: tuple[tuple[str, float], ...] = ()  # of a node, for one run on a cluster; (): a whole node
    turns: bool = False  # variants take turns inside one process, instead of a process for each run
    record: bool = True  # whether runs record themselves; False: only process times are taken

    def __post_init__(self) -> None:
        check(self)

    @property
    def baseline(self) -> Variant:
        """The variant the others are compared with."""
        return self.variants[0]

    @property
    def most_blocks(self) -> int:
        """The largest number of pairs or blocks that are run."""
        return 0 if self.kind == "scale" or len(self.variants) < 2 else self.looks[-1]

    @property
    def comparison_size(self) -> int | None:
        """The value of {n} in every run outside the scale check."""
        return self.size if self.size is not None else self.sizes[0] if self.sizes else None

    def variant(self, name: str) -> Variant:
        return next(v for v in self.variants if v.name == name)

    def seed_of(self, block: int) -> int:
        """The seed shared by all runs of a block."""
        return self.seeds[block % len(self.seeds)] if self.seeds else block


def check(plan: Plan) -> None:
    """Raise HotloopError for a plan that cannot be run."""
    names = [v.name for v in plan.variants]
    if not names:
        raise HotloopError("The plan has no variants; give it a command and at least one suspect.")
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise HotloopError(f"Two variants are called {twice!r}; give each its own name.")
    for variant in plan.variants:
        if not variant.command or not variant.command[0]:
            raise HotloopError(f"The command of {variant.name!r} is empty; name the program to run.")
    if plan.kind == "pairs" and len(names) != 2:
        raise HotloopError(
            f"A plan of kind 'pairs' needs 2 variants and this one has {len(names)}; use 'blocks'."
        )
    if plan.kind != "scale" and len(names) < 2 and not plan.sizes:
        raise HotloopError("The plan has nothing to compare; add a suspect, a sweep or sizes.")
    if plan.kind == "scale" and not plan.sizes:
        raise HotloopError("A plan of kind 'scale' needs sizes, such as sizes = [1000, 2000, 4000].")
    if plan.sizes and not any("{n}" in word for v in plan.variants for word in v.command):
        raise HotloopError("The plan has sizes but no {n} in its command; write {n} where the size goes.")
    if not plan.looks or list(plan.looks) != sorted(set(plan.looks)) or plan.looks[0] < 1:
        raise HotloopError(
            f"looks is {list(plan.looks)}; it must be increasing numbers of pairs, such as [5, 8]."
        )
    for name, amount in plan.resources:
        if not name or not 0 < amount < 1e9:
            raise HotloopError(f"The resource {name!r} is {amount:g}; write it as CPU=4, above 0.")
    if plan.repeats < 1:
        raise HotloopError(f"repeats is {plan.repeats}; it must be at least 1.")


def split_command(typed: str, what: str) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Split a command line into variables (leading `NAME=value`) and words; `what` names it in errors.

    No shell is involved, so shell syntax raises HotloopError.
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


def apply_overrides(command: tuple[str, ...], overrides: tuple[str, ...]) -> tuple[str, ...]:
    """The command with each override applied: `key=value`, or `flag` for one without a value.

    Replaces `{key}`, `--key old`, `--key=old` or `key=old`. If the command has none of them, appends
    `--key value`, or `key=value` where the command already uses that form.
    """
    words = list(command)
    for override in overrides:
        key, has_value, value = override.partition("=")
        words = _apply_override(words, key, value if has_value else None)
    return tuple(words)


def _apply_override(words: list[str], key: str, value: str | None) -> list[str]:
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
                return words  # already set
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


def fill_command(command: tuple[str, ...], seed: int, size: int | None) -> list[str]:
    """The command to start: {seed} and {n} filled in; other braces are left alone."""
    known = {"{seed}": str(seed)} | ({} if size is None else {"{n}": str(size)})
    out = []
    for word in command:
        for place, value in known.items():
            word = word.replace(place, value)
        out.append(word)
    return out
