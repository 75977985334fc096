"""Reads plans from TOML, as users write them, and to and from JSON, as a series stores them."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args

from hotloop._util.errors import HotloopError
from hotloop._util.read_files import Reader
from hotloop._util.units import parse_fraction, parse_seconds
from hotloop.capture.plan import (
    BUDGET_S,
    LOOKS,
    TOLERANCE,
    Kind,
    Plan,
    Safety,
    Variant,
    apply_overrides,
    split_command,
)

_FILE = Reader(16 << 20, remedy="name a plan file")
_MOST = 10**15  # of anything that is counted


def read_plan(file: Path) -> Plan:
    """Read a plan from a TOML file; raises HotloopError with the name of the invalid key."""
    text = _FILE.read_text(file)
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise HotloopError(f"The plan {file} is not valid TOML ({error}); fix it.") from None
    try:
        return plan_from_data(data) if "variants" in data else plan_from_table(data)
    except HotloopError as error:
        raise HotloopError(f"{file}: {error}") from None


def plan_to_data(plan: Plan) -> dict[str, Any]:
    """The plan as plain data for JSON; the inverse of `plan_from_data`."""
    data: dict[str, Any] = {f.name: getattr(plan, f.name) for f in fields(plan)}
    data["variants"] = [
        {f.name: getattr(v, f.name) for f in fields(v)}
        | {
            "command": list(v.command),
            "overrides": list(v.overrides),
            "environment": dict(v.environment),
        }
        for v in plan.variants
    ]
    data["resources"] = dict(plan.resources)
    return {k: list(v) if isinstance(v, tuple) else v for k, v in data.items()}


def plan_from_data(data: Any) -> Plan:
    table = _Table(data, "the plan")
    variants = []
    for number, entry in enumerate(table.tables("variants")):
        variants.append(_variant(entry, f"variant {number + 1}", ()))
        entry.done()
    return _plan(table, tuple(variants), table.choice("kind", get_args(Kind), "pairs"))


def plan_from_table(data: Any) -> Plan:
    """A plan as its author writes it: a base command, suspects, sweeps, a scale check.

    docs/lab.md lists the keys. Raises HotloopError with the name of the invalid key.
    """
    table = _Table(data, "the plan")
    variables, command = table.command("command")
    base = Variant(
        name=table.text("baseline", "as it is"),
        command=command,
        environment=tuple((dict(table.variables("environment")) | dict(variables)).items()),
    )
    if not base.command:
        raise HotloopError('the plan has no command; add one, such as command = "python train.py".')
    variants = [base]
    for entry in table.tables("suspects"):
        variants.append(_variant(entry, f"suspect {len(variants)}", base.command, base.environment))
        entry.done()
    sweeps = table.tables("sweeps")
    for entry in sweeps:
        variants += _sweep(entry, base)
        entry.done()
    scale = table.table("scale")
    if scale is not None:
        table.add({key: scale.take(key) for key in ("sizes", "repeats") if key in scale.left})
        scale.done()
    kind: Kind = "pairs" if len(variants) == 2 else "blocks"
    if len(variants) == 1 and scale is not None:
        kind = "scale"
    if sweeps and "suspects" not in table.data:
        kind = "sweep"
    return _plan(table, tuple(variants), kind)


def _plan(table: _Table, variants: tuple[Variant, ...], kind: str) -> Plan:
    budget = table.take("budget") if "budget" in table.left else table.take("budget_s", BUDGET_S)
    timeout = table.take("timeout") if "timeout" in table.left else table.take("timeout_s", None)
    made = {
        "kind": kind,
        "name": table.text("name", ""),
        "seeds": table.counts("seeds", (), least=0),
        "budget_s": None if budget is None or budget == "none" else parse_seconds(budget, "budget"),
        "timeout_s": None if timeout is None else parse_seconds(timeout, "timeout"),
        "tolerance": parse_fraction(table.take("tolerance", TOLERANCE), "tolerance"),
        "looks": table.counts("looks", LOOKS),
        "sizes": tuple(sorted(table.counts("sizes", ()))),
        "repeats": table.count("repeats", 3),
        "size": table.count("size", None),
        "neighbours": table.count("neighbours", None),
        "order_seed": table.count("order_seed", 0, least=0),
        "resources": table.amounts("resources"),
        "turns": table.choice("turns", (True, False), False),
        "record": table.choice("record", (True, False), True),
    }
    table.done()
    return Plan(variants, **made)


def _variant(
    entry: _Table, what: str, base: tuple[str, ...], inherited: tuple[tuple[str, str], ...] = ()
) -> Variant:
    name = entry.text("name", "")
    if not name:
        raise HotloopError(f'{what} has no name; add one, such as name = "one-thread".')
    entry.what = repr(name)
    overrides = entry.words("set" if "set" in entry.left else "overrides")
    variables, command = entry.command("command")
    command = command or base
    return Variant(
        name=name,
        # In data from `plan_to_data` the overrides are already applied.
        command=apply_overrides(command, overrides) if base else command,
        overrides=overrides,
        environment=tuple((dict(inherited) | dict(variables) | dict(entry.variables("environment"))).items()),
        expected=entry.text("expected", ""),
        safety=entry.choice("safety", get_args(Safety), "safe"),
        sweep=entry.text("sweep", ""),
        revision=entry.text("revision", ""),
    )


def _sweep(entry: _Table, base: Variant) -> list[Variant]:
    setting = entry.text("setting", "")
    if not setting:
        raise HotloopError('a sweep has no setting; add one, such as setting = "batch-size".')
    entry.what = f"the sweep of {setting}"
    values = entry.take("values", [])
    if not isinstance(values, list) or not values:
        raise HotloopError(f"{entry.what} has no values; add some, such as values = [32, 64].")
    expected, safety = entry.text("expected", ""), entry.choice("safety", get_args(Safety), "semantic")
    by_variable = entry.choice("by", ("flag", "environment"), "flag") == "environment"
    made = []
    for value in values:
        words = str(value).lower() if isinstance(value, bool) else str(value)
        one = replace(base, name=f"{setting}={words}", expected=expected, safety=safety, sweep=setting)
        if by_variable:
            variables = dict(base.environment) | {setting: words}
            made.append(replace(one, environment=tuple(variables.items())))
        else:
            override = (f"{setting}={words}",)
            made.append(replace(one, command=apply_overrides(base.command, override), overrides=override))
    return made


@dataclass
class _Table:
    """A TOML table that is read key by key; a key left over at the end is an error."""

    data: Any
    what: str
    left: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.data, Mapping):
            raise HotloopError(f"{self.what} is {self.data!r}; it must be a table of keys and values.")
        self.left = dict(self.data)
        self.known: list[str] = []

    def add(self, more: dict[str, Any]) -> None:
        self.left |= more

    def take(self, key: str, default: Any = None) -> Any:
        self.known.append(key)
        return self.left.pop(key, default)

    def done(self) -> None:
        if self.left:
            key = next(iter(self.left))
            raise HotloopError(
                f"{self.what} has an unknown key {key!r}; known: {', '.join(sorted(self.known))}."
            )

    def text(self, key: str, default: str) -> str:
        value = self.take(key, default)
        if not isinstance(value, str):
            raise HotloopError(f"{key} of {self.what} is {value!r}; it must be text in quotes.")
        return value

    def command(self, key: str) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
        if isinstance(self.left.get(key), str):
            return split_command(self.take(key), f"{key} of {self.what}")
        return (), self.words(key)

    def words(self, key: str) -> tuple[str, ...]:
        value = self.take(key, [])
        if isinstance(value, Mapping):
            return tuple(f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in value.items())
        if isinstance(value, str):
            try:
                return tuple(shlex.split(value))
            except ValueError as error:
                raise HotloopError(f"{key} of {self.what} is {value!r}, which has {error}.") from None
        if not isinstance(value, list) or any(isinstance(v, (list, dict)) for v in value):
            raise HotloopError(f"{key} of {self.what} is {value!r}; it must be text or a list of words.")
        return tuple(str(v) for v in value)

    def variables(self, key: str) -> tuple[tuple[str, str], ...]:
        value = self.take(key, {})
        if not isinstance(value, Mapping) or any(isinstance(v, (list, dict)) for v in value.values()):
            raise HotloopError(f'{key} of {self.what} is {value!r}; write it as {{ OMP_NUM_THREADS = "1" }}.')
        return tuple((k, str(v)) for k, v in value.items())

    def amounts(self, key: str) -> tuple[tuple[str, float], ...]:
        value = self.take(key, {})
        if not isinstance(value, Mapping) or any(type(v) not in (int, float) for v in value.values()):
            raise HotloopError(f"{key} of {self.what} is {value!r}; write it as {{ CPU = 4, GPU = 1 }}.")
        return tuple((str(k), float(v)) for k, v in value.items())

    def choice(self, key: str, allowed: tuple[Any, ...], default: Any) -> Any:
        value = self.take(key, default)
        if value not in allowed:
            raise HotloopError(
                f"{key} of {self.what} is {value!r}; choose one of {', '.join(map(str, allowed))}."
            )
        return value

    def count(self, key: str, default: int | None, least: int = 1) -> Any:
        value = self.take(key, default)
        if value is not None and not (type(value) is int and least <= value <= _MOST):
            raise HotloopError(f"{key} of {self.what} is {value!r}; it must be a whole number from {least}.")
        return value

    def counts(self, key: str, default: tuple[int, ...], least: int = 1) -> tuple[int, ...]:
        value = self.take(key, list(default))
        whole = isinstance(value, list) and all(type(v) is int and least <= v <= _MOST for v in value)
        if not whole:
            raise HotloopError(f"{key} of {self.what} is {value!r}; it must be a list of whole numbers.")
        return tuple(value)

    def table(self, key: str) -> _Table | None:
        value = self.take(key, None)
        return None if value is None else _Table(value, key)

    def tables(self, key: str) -> list[_Table]:
        value = self.take(key, [])
        if not isinstance(value, list):
            raise HotloopError(f"{key} of {self.what} is {value!r}; write each one under [[{key}]].")
        return [_Table(entry, f"{key} {number}") for number, entry in enumerate(value, 1)]
