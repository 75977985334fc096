"""Ways to damage a file: its bytes, its JSON, or what it is."""

from __future__ import annotations

import copy
import json
import os
import random
import socket
import stat
import struct
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

INTERESTING = (
    *(struct.pack("<Q", n) for n in (0, 1, 2, 255, 4096, 2**31, 2**32 - 1, 2**53, 2**63, 2**64 - 1)),
    *(struct.pack("<d", x) for x in (float("nan"), float("inf"), -float("inf"), -1.0, 1e-320, 1e308)),
)
ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202e\ud800\n\r"
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    1,
    -1,
    2**31,
    2**63,
    2**64,
    10**400,
    0.5,
    -1.5,
    1e-320,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "1",
    ESCAPES,
    "/dev/zero",
    "A" * 5000,
    [],
    [[]],
    {},
    {"x": 1},
    {"$float": "nan"},
    {"$float": "x"},
)


# -- bytes ---------------------------------------------------------------------------------------


def damage_bytes(rng: random.Random, content: bytes) -> bytes:
    """The content with one kind of damage that disks, copies and editors do."""
    return rng.choice(BYTES)(rng, bytearray(content))


def _flip(rng: random.Random, data: bytearray) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 4, 32)) if data else 0):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _field(rng: random.Random, data: bytearray) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(max(len(data) // 8, 1)) * 8
        data[at : at + 8] = rng.choice(INTERESTING)
    return bytes(data)


def damage_fields(rng: random.Random, content: bytes) -> bytes:
    """Other numbers in places that hold one: most of a part is zeros."""
    data = bytearray(content)
    pages = _used_words(content)
    for _ in range(rng.choice((1, 1, 2, 8)) if pages else 0):
        at, other = (8 * rng.choice(rng.choice(pages)) for _ in range(2))
        value = struct.unpack_from("<Q", data, at)[0]
        near = struct.pack("<Q", rng.choice((value + 1, value - 1, 2 * value, value >> 1, ~value)) % 2**64)
        data[at : at + 8] = rng.choice((rng.choice(INTERESTING), near, data[other : other + 8]))
    return bytes(data)


@lru_cache
def _used_words(content: bytes) -> list[list[int]]:
    """Numbers of the 8-byte words that are not zero, page by page, so that no large section gets it all."""
    words = np.frombuffer(content, dtype="<u8", count=len(content) // 8)
    used = np.flatnonzero(words)
    return [used[used // 512 == page].tolist() for page in np.unique(used // 512)]


def _zeros(rng: random.Random, data: bytearray) -> bytes:
    at = rng.randrange(len(data) + 1)
    length = min(rng.choice((1, 8, 512, 4096, 65536)), len(data) - at)
    data[at : at + length] = bytes(length)
    return bytes(data)


def _cut(rng: random.Random, data: bytearray) -> bytes:
    return bytes(data[: rng.randrange(len(data) + 1)])


def _more(rng: random.Random, data: bytearray) -> bytes:
    return bytes(data) + rng.randbytes(rng.choice((1, 8, 4096)))


def _insert(rng: random.Random, data: bytearray) -> bytes:
    at = rng.randrange(len(data) + 1)
    return bytes(data[:at]) + rng.randbytes(rng.choice((1, 8, 64))) + bytes(data[at:])


def _remove(rng: random.Random, data: bytearray) -> bytes:
    at = rng.randrange(len(data) + 1)
    return bytes(data[:at]) + bytes(data[at + rng.choice((1, 8, 64, 4096)) :])


def _exchange(rng: random.Random, data: bytearray) -> bytes:
    """Two stretches change places, as when sectors are written out of order."""
    size = rng.choice((8, 512, 4096))
    a, b = (rng.randrange(max(len(data) // size, 1)) * size for _ in range(2))
    data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]
    return bytes(data)


def _noise(rng: random.Random, data: bytearray) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 100, 5000)))


BYTES: tuple[Callable[[random.Random, bytearray], bytes], ...] = (
    *(_flip, _flip, _flip, _field, _field),
    *(_zeros, _cut, _more, _insert, _remove, _exchange, _noise),
)


# -- JSON ----------------------------------------------------------------------------------------


def damage_json(rng: random.Random, data: Any) -> Any:
    """A copy of plain data with values of other types, missing keys, new keys, or absurd nesting."""
    data = json.loads(json.dumps(data))
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        place = _some_place(rng, data)
        if place is None:
            return _value(rng)
        parent, key = place
        action = rng.randrange(12)
        if action == 0:
            del parent[key]
        elif action == 1 and isinstance(parent, dict):
            parent[rng.choice(("unknown", "checksum", ESCAPES, "kind"))] = _value(rng)
        elif action == 2 and isinstance(parent, list):
            parent.insert(key, parent[key])
        elif action == 3:
            other = _some_place(rng, data)
            parent[key] = json.loads(json.dumps(other[0][other[1]])) if other else None
        elif action == 4:
            parent[key] = _nested(rng.choice((50, 200, 900)))
        elif action == 5 and isinstance(parent[key], (int, float)):
            parent[key] = rng.choice((-1, 0, 2, 1000, 10**12)) * parent[key]
        else:
            parent[key] = _value(rng)
    return data


def _some_place(rng: random.Random, data: Any) -> tuple[Any, Any] | None:
    """A container and a key in it, of any depth alike."""
    found: tuple[Any, Any] | None = None
    inside = data
    while isinstance(inside, (dict, list)) and inside:
        key = rng.choice(list(inside)) if isinstance(inside, dict) else rng.randrange(len(inside))
        found = inside, key
        if rng.random() < 0.15:
            break
        inside = inside[key]
    return found


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def _value(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(VALUES))


# -- what a file is ------------------------------------------------------------------------------


def exchange_file(rng: random.Random, file: Path, name: str, others: list[bytes]) -> None:
    """Put something else, by its name in `INSTEAD`, in the place of a file or a folder."""
    if file.is_dir() and not file.is_symlink():
        os.rename(file, file.with_name(file.name + ".was"))
    else:
        file.unlink(missing_ok=True)
    INSTEAD[name](rng, file, others)


def _device(rng: random.Random, file: Path, others: list[bytes]) -> None:
    try:
        os.mknod(file, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        file.symlink_to("/dev/zero")


def _socket(rng: random.Random, file: Path, others: list[bytes]) -> None:
    here = os.getcwd()
    os.chdir(file.parent)  # the path of a socket has at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(file.name[-90:])
    finally:
        os.chdir(here)


def _sparse(rng: random.Random, file: Path, others: list[bytes]) -> None:
    content = rng.choice(others)
    file.write_bytes(content)
    os.truncate(file, rng.choice((1 << 30, 1 << 40)))


INSTEAD: dict[str, Callable[[random.Random, Path, list[bytes]], object]] = {
    "nothing": lambda rng, file, others: None,
    "an empty file": lambda rng, file, others: file.touch(),
    "a folder": lambda rng, file, others: file.mkdir(),
    "a FIFO": lambda rng, file, others: os.mkfifo(file),
    "a link to itself": lambda rng, file, others: file.symlink_to(file.name),
    "a link to /dev/zero": lambda rng, file, others: file.symlink_to("/dev/zero"),
    "a link to nowhere": lambda rng, file, others: file.symlink_to("nowhere"),
    "a link to a folder": lambda rng, file, others: file.symlink_to("/proc"),
    "a device": _device,
    "a socket": _socket,
    "a sparse file": _sparse,
    "another file": lambda rng, file, others: file.write_bytes(rng.choice(others)),
}
