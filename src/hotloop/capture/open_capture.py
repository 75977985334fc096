"""Opens what a user names: a capture folder, a one-file JSON export, or nothing for the latest capture."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from hotloop._util.errors import CaptureError
from hotloop._util.read_files import Reader
from hotloop.capture import layout
from hotloop.capture.clock_alignment import align_messages
from hotloop.capture.export import check_kind, from_json
from hotloop.capture.folder import latest_capture
from hotloop.capture.messages import read_messages
from hotloop.capture.model import Capture
from hotloop.capture.plausible import plausible_capture
from hotloop.capture.reader import LEFT_OUT, NOT_YET, load
from hotloop.capture.secrets import facts_without_secrets

_EXPORT = Reader(512 << 20, CaptureError, "export the capture again, or copy it again")


def open_capture(path: str | None) -> Capture:
    """Read the capture at `path`, or the latest one in `hotloop-runs` when `path` is None.

    `path` is a capture folder, its capture.json, or a one-file JSON export. Raises CaptureError when it is
    none of these.
    """
    place = latest_capture() if path is None else Path(path)
    if place.is_dir():
        return _read_folder(place)
    if not os.path.lexists(place):
        raise CaptureError(f"There is no capture at {place}: no such file or folder.")
    if place.name == "capture.json" and (place.parent / "parts").is_dir():
        return _read_folder(place.parent)
    return read_export(place)


def _read_folder(folder: Path) -> Capture:
    """Read a capture folder; raises CaptureError if none of its processes can be read."""
    capture = load(folder)
    lost = [text for text in capture.warnings if text.startswith(LEFT_OUT) and not text.endswith(NOT_YET)]
    if lost and not capture.processes:
        raise CaptureError(f"{folder} has no process that can be read; {'; '.join(lost).rstrip('.')}.")
    messages, unreadable = read_messages(folder)
    messages = align_messages(messages, capture.processes, capture.nodes)
    return replace(capture, messages=messages, warnings=(*capture.warnings, *unreadable))


def read_export(file: Path) -> Capture:
    """Read a one-file JSON export; raises CaptureError."""
    content = _EXPORT.read_bytes(file)
    if content.startswith(layout.MAGIC):
        raise CaptureError(
            f"{file} is the part of one process; name the capture folder it is in: "
            f"{file.absolute().parent.parent}"
        )
    if not content.lstrip().startswith((b"{", b"[")):
        raise CaptureError(f"{file} is not a capture: it is neither a folder nor a JSON export.")
    if content.lstrip().startswith(b"{") and not content.rstrip().endswith(b"}"):
        raise CaptureError(
            f"{file} is cut short after {len(content)} bytes; export the capture again, or copy it again."
        )
    try:
        data = _EXPORT.parse_json(file, content, first=check_kind)
        capture = plausible_capture(from_json(data))
    except CaptureError as problem:
        named = str(problem).startswith(str(file))
        raise CaptureError(str(problem) if named else f"{file}: {problem}") from None
    return replace(capture, path=file, facts=facts_without_secrets(capture.facts))
