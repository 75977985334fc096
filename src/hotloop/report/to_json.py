"""Findings as plain data, for `report.json`, every verb's `--json` and the block embedded in the HTML page.

The names are those of the dataclasses in `hotloop.analysis`, so their comments document the JSON:
nanoseconds in `_ns`, bytes in `_bytes`, shares 0..1, an estimate as value, low and high (95 %). None
becomes null and means "not measured"; so does a number that JSON cannot hold.
"""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from typing import Any

from hotloop._util.strict_json import dumps
from hotloop.analysis.findings import Findings

# Version of everything printed with --json. Raised when a field changes its meaning or goes away, not when
# one is added.
#   1  first version
#   2  kinds in kebab-case, enum values in snake_case; says -> summary, light -> roofline,
#      course -> time_series, rule -> name, badge -> machine_load
SCHEMA_VERSION = 2


def findings_json(findings: Findings) -> dict[str, Any]:
    """The findings as dicts, lists, strings, numbers and None, ready for `strict_json`."""
    return json_object("report", findings)


def json_object(noun: str, data: Any) -> dict[str, Any]:
    """`data`, a dataclass or a dict, as plain values with `kind` ("hotloop-<noun>") and `schema_version`."""
    return {"kind": f"hotloop-{noun}", "schema_version": SCHEMA_VERSION, **plain(data)}


def strict_json(data: Any, indent: int | None = None) -> str:
    """Plain data as text that every JSON parser reads."""
    return dumps(data, indent=indent)


def plain(value: Any) -> Any:
    """A value without dataclasses, tuples, numpy scalars, NaN or infinity.

    With `map`, because a comprehension is a call, too: a tree of the deepest regions there can be needs two
    calls a level, and Python allows 1000.
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value):
        return {name: plain(getattr(value, name)) for name in _field_names(value.__class__)}
    if isinstance(value, dict):
        return dict(zip(map(str, value), map(plain, value.values()), strict=True))
    if isinstance(value, (list, tuple)):
        return list(map(plain, value))
    if hasattr(value, "item"):  # a numpy scalar
        return plain(value.item())
    return str(value)


@cache  # a report holds thousands of regions
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))
