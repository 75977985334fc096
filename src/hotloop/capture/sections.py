"""Finds the sections of a part; skips what it does not know, and stops where the bytes make no sense."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotloop.capture import layout

Bytes = NDArray[np.uint8]
Struct = NDArray[np.void]
SkippedSections = Counter[tuple[str, int]]  # (name, version) -> how many

_HEADER = layout.dtype("SECTION")
_HEADER_1 = layout.fields_dtype(layout.VERSION_1_BLOCK)
_NAME = re.compile(rb"[a-z][a-z0-9_.-]*")
DTYPES = {
    (name, number + 1): layout.dtype(struct)
    for name, versions in layout.SECTIONS.items()
    for number, struct in enumerate(versions)
    if struct is not None
}


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a known name and version."""

    name: str
    version: int
    owner: int  # number of the thread it belongs to
    first: int  # number of its first region or node
    payload: Bytes  # shared with the process that writes it, if that still runs

    def struct(self) -> Struct:
        """The payload as the struct of this version; still shared."""
        dtype = DTYPES[self.name, self.version]
        found: Struct = self.payload[: dtype.itemsize].view(dtype)[0]
        return found


@dataclass(frozen=True, slots=True)
class _Found:
    """What a section header says, whatever the version of the part."""

    name: str  # "" when the header makes no sense
    version: int
    owner: int
    first: int
    bytes: int
    payload_at: int
    payload_bytes: int


def find_sections(
    pieces: list[Bytes],
    used_bytes: int,
    part_version: int,
    warnings: list[str] | None = None,
    skipped: SkippedSections | None = None,
) -> list[Section]:
    """The readable sections of a part in the order of the file.

    `pieces` are its mapped segments, the first of which starts with the header page. Damage is described in
    `warnings`; sections of an unknown name or version are counted in `skipped`.
    """
    warnings = [] if warnings is None else warnings
    read_header = _read_header if part_version > 1 else _read_header_1
    found: list[Section] = []
    left = used_bytes - layout.PAGE
    for number, piece in enumerate(pieces):
        at = layout.PAGE if number == 0 else 0
        while left > 0 and at < len(piece):
            header = read_header(piece, at)
            if header is None:
                break
            if not header.name:
                if piece[at : at + 64].any() or len(pieces) == 1:
                    warnings.append(f"damaged at byte {at}; the rest is left out")
                break
            if at + header.bytes > len(piece) and header.name != "filler":
                warnings.append(_cut_short(len(piece), used_bytes))
                return found
            found += _known(header, piece, at, warnings, skipped)
            at += header.bytes
            left -= header.bytes
    if left > 0 and len(pieces) == 1 and not warnings:
        warnings.append(_cut_short(len(pieces[0]), used_bytes))
    return found


def consecutive(sections: list[Section], name: str, owner: int | None = None) -> list[Struct]:
    """The structs of sections that number their items, up to the first one that is missing."""
    mine = [s for s in sections if s.name == name and owner in (None, s.owner)]
    found: list[Struct] = []
    count = 0
    for section in sorted(mine, key=lambda s: s.first):
        if section.first != count:
            break
        found.append(section.struct())
        count += _ITEMS[name]
    return found


_ITEMS = {"regions": layout.REGIONS_PER_SECTION, "nodes": layout.NODES_PER_SECTION}


def describe_skipped(skipped: SkippedSections) -> list[str]:
    """One sentence for each kind of section that was skipped."""
    found = []
    for (name, version), count in sorted(skipped.items()):
        what = f"skipped {count} {'section' if count == 1 else 'sections'} {name!r} of version {version}"
        known = len(layout.SECTIONS.get(name, ()))
        why = f"this hotloop reads version {known}" if known else "this hotloop does not know it"
        found.append(f"{what}: {why}; update hotloop to see it")
    return found


def _known(
    header: _Found, piece: Bytes, at: int, warnings: list[str], skipped: SkippedSections | None
) -> Iterator[Section]:
    if header.name == "filler":
        return
    if not 1 <= header.version <= len(layout.SECTIONS.get(header.name, ())):
        if skipped is not None:
            skipped[header.name, header.version] += 1
        return
    dtype = DTYPES.get((header.name, header.version))
    if dtype is not None and header.payload_bytes < dtype.itemsize:
        warnings.append(
            f"left out the section {header.name!r} at byte {at}: it has {header.payload_bytes} bytes "
            f"instead of {dtype.itemsize}"
        )
        return
    start = at + header.payload_at
    payload = piece[start : start + header.payload_bytes]
    yield Section(header.name, header.version, header.owner, header.first, payload)


def _read_header(piece: Bytes, at: int) -> _Found | None:
    """The section header at `at`; None at the end of the piece."""
    row = _row(piece, at, _HEADER)
    if row is None:
        return None
    name = row["name"].tobytes().rstrip(b"\0")
    total, payload = int(row["bytes"]), int(row["payload_bytes"])
    makes_sense = _NAME.fullmatch(name) and total % 8 == 0 and _HEADER.itemsize + payload <= total
    return _Found(
        name=name.decode("ascii") if makes_sense else "",
        version=int(row["version"]),
        owner=int(row["owner"]),
        first=int(row["first"]),
        bytes=total,
        payload_at=_HEADER.itemsize,
        payload_bytes=payload,
    )


def _read_header_1(piece: Bytes, at: int) -> _Found | None:
    """The same for parts of version 1 (hotloop 0.1), whose blocks have a number for their kind."""
    row = _row(piece, at, _HEADER_1)
    if row is None:
        return None
    total = int(row["bytes"])
    name, payload_at = layout.VERSION_1_KINDS.get(int(row["kind"]), ("", 32))
    makes_sense = total >= payload_at and total % 8 == 0
    return _Found(
        name=name if makes_sense else "",
        version=1,
        owner=int(row["owner"]),
        first=int(row["first"]),
        bytes=total,
        payload_at=payload_at,
        payload_bytes=total - payload_at,
    )


def _row(piece: Bytes, at: int, dtype: np.dtype[np.void]) -> Struct | None:
    if at + dtype.itemsize > len(piece):
        return None
    row: Struct = piece[at : at + dtype.itemsize].copy().view(dtype)[0]
    return row


def _cut_short(size: int, used_bytes: int) -> str:
    return f"cut short at byte {size} of {used_bytes}; the rest is left out"
