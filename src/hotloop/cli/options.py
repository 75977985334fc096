"""How the options of all verbs look in --help."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import tyro

from hotloop._util.errors import HotloopError

# A switch that is off by default: --json, but no --no-json, and no "(default: False)" in --help.
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]
# An option that may be repeated: --set-a lr=1 --set-a gamma=0.9
Repeated = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=VALUE")]
# A whole number.
Number = Annotated[int, tyro.conf.arg(metavar="N")]


def option(metavar: str, default: str = "", *, aliases: list[str] | tuple[str, ...] = ()) -> Any:
    """An option whose default in code (None or "") means something else, which `default` says in --help.

    series: Annotated[Path | None, option("DIR", "hotloop-runs/<time>-compare")] = None
    """
    hint = f"(default: {default})" if default else ""
    return tyro.conf.arg(metavar=metavar, aliases=aliases, help_behavior_hint=hint)


# The capture that a verb reads, which may be left out.
LatestCapture = Annotated[
    str | None, tyro.conf.Positional, option("[CAPTURE]", "the latest in hotloop-runs/")
]


# The cluster that makes the runs of a lab verb, and what each run needs of a node.
OnCluster = Annotated[str | None, option("ray[://HOST:PORT]", "this machine")]
Resources = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=NUMBER")]


def parse_resources(typed: tuple[str, ...]) -> tuple[tuple[str, float], ...]:
    """`("CPU=4", "GPU=1")` as pairs; raises HotloopError."""
    found = []
    for word in typed:
        name, _, amount = word.partition("=")
        try:
            found.append((name, float(amount)))
        except ValueError:
            raise HotloopError(f"--resources is {word!r}; write it as CPU=4.") from None
    return tuple(found)


def on_words(on: str | None) -> str:
    """` --on ray`, for a command that is printed."""
    return "" if on is None else f" --on {shlex.quote(on)}"
