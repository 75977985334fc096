"""Files that were changed by someone who knows how: with a checksum that fits."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotloop._util.read_files import CHECKSUM, json_text
from hotloop.capture import layout


def edit_json(file: Path, change: dict[str, Any] | Callable[[dict[str, Any]], Any]) -> None:
    """Add `change` to the object in a file, or call it with the object."""
    data = json.loads(file.read_text())
    data.pop(CHECKSUM, None)
    if callable(change):
        change(data)
    else:
        data |= change
    file.write_text(json_text(data))


def resealed(part: bytes | bytearray) -> bytes:
    """A part with a checksum that fits."""
    data, at = bytearray(part), layout.offsets("HEADER")
    if len(data) < layout.item_bytes("HEADER"):
        return bytes(part)
    place = slice(at["checksum"], at["checksum"] + 8)
    data[place] = bytes(8)
    used = min(struct.unpack_from("<Q", data, at["used_bytes"])[0], len(data))
    data[place] = struct.pack("<Q", layout.checksum_of(data[:used]))
    return bytes(data)
