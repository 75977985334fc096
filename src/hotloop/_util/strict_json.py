"""JSON that every parser reads: what Python would write as Infinity or NaN becomes null."""

from __future__ import annotations

import json
import math
from typing import Any

from hotloop._util.interrupts import is_users


def dumps(data: Any, **how: Any) -> str:
    """`json.dumps` without Infinity and NaN, which are no JSON; a figure that is not finite is null."""
    try:
        return json.dumps(data, allow_nan=False, **how)
    except ValueError as error:  # or a list that contains itself; then the next line raises RecursionError
        if is_users(error):
            raise
        return json.dumps(finite(data), allow_nan=False, **how)


def finite(data: Any) -> Any:
    """The same lists and dicts with None in place of floats that are not finite."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {finite(key) if isinstance(key, float) else key: finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [finite(item) for item in data]
    return data
