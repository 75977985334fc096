"""Plans that come with hotloop: `hotloop lab run snake-investigation` finds them by name."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import hotloop
from hotloop._util.errors import HotloopError
from hotloop.capture.plan import Plan
from hotloop.capture.plan_file import read_plan

FOLDER = Path(hotloop.__file__).parent / "rl" / "workloads" / "plans"


def names() -> list[str]:
    """The plans there are."""
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


def plan_called(name: Path) -> Plan:
    """The plan in this file or, when there is none, the shipped one of this name, for this Python."""
    if name.suffix or name.parent != Path() or name.exists():
        return read_plan(name)
    if name.name not in names():
        raise HotloopError(
            f"There is no file {name.name!r} here and no plan of that name comes with hotloop; "
            f"name a file, or one of: {', '.join(names())}."
        )
    plan = read_plan(FOLDER / f"{name.name}.toml")
    variants = (
        replace(v, command=(sys.executable, *v.command[1:])) if v.command[0] == "python" else v
        for v in plan.variants
    )
    return replace(plan, variants=tuple(variants))
