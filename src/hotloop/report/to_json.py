"""The findings as plain data: `report.json`, `--json`, and the block embedded in the HTML page.

The names are those of `hotloop.analysis.findings`, so its docstrings document the file: nanoseconds in
`_ns`, bytes in `_bytes`, shares 0..1, an estimate as value, low and high (95 %). None becomes null and
means "not measured"; so do numbers JSON cannot hold. Beside the findings stand `kind` and
`schema_version`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from hotloop.analysis.findings import Findings

# Version history (raised when a field changes its meaning or goes; a new field does not raise it):
#   1  first version
SCHEMA_VERSION = 1


def findings_json(findings: Findings) -> dict[str, Any]:
    """The findings as dicts, lists, strings, numbers and None, ready for json.dumps."""
    return {"kind": "hotloop findings", "schema_version": SCHEMA_VERSION, **plain(findings)}


def plain(value: Any) -> Any:
    """A value of the findings without dataclasses, tuples, NaN or infinity."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value):
        return {name: plain(getattr(value, name)) for name in _fields(type(value))}
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if hasattr(value, "item"):  # a numpy scalar
        return plain(value.item())
    return str(value)


_known: dict[type, tuple[str, ...]] = {}


def _fields(kind: type) -> tuple[str, ...]:
    if kind not in _known:
        _known[kind] = tuple(field.name for field in dataclasses.fields(kind))
    return _known[kind]
