"""Opens what a user names: a capture folder, a one-file JSON export, or nothing for the latest capture."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from hotloop._util.errors import CaptureError
from hotloop.capture import layout
from hotloop.capture.export import from_json
from hotloop.capture.folder import latest_capture
from hotloop.capture.model import Capture
from hotloop.capture.reader import load


def open_capture(path: str | None) -> Capture:
    """Read the capture at `path`, or the latest one in `hotloop-runs` when `path` is None.

    `path` is a capture folder, its capture.json, or a one-file JSON export. Raises CaptureError when it is
    none of these.
    """
    place = latest_capture() if path is None else Path(path)
    if place.is_dir():
        return load(place)
    if not place.exists():
        raise CaptureError(f"There is no capture at {place}: no such file or folder.")
    if place.name == "capture.json" and (place.parent / "parts").is_dir():
        return load(place.parent)
    return _read_export(place)


def _read_export(file: Path) -> Capture:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CaptureError(f"{file} cannot be read ({error.strerror}); check its permissions.") from error
    if content.startswith(layout.MAGIC):
        raise CaptureError(
            f"{file} is the part of one process; name the capture folder it is in: "
            f"{file.absolute().parent.parent}"
        )
    try:
        data = json.loads(content)
    except (UnicodeDecodeError, RecursionError):
        raise CaptureError(f"{file} is not a capture: it is neither a folder nor a JSON export.") from None
    except ValueError as error:
        raise CaptureError(_why_not_json(file, content, error)) from None
    try:
        return dataclasses.replace(from_json(data), path=file)
    except CaptureError as problem:
        raise CaptureError(f"{file}: {problem}") from problem.__cause__


def _why_not_json(file: Path, content: bytes, error: ValueError) -> str:
    if not content.lstrip().startswith(b"{"):
        return f"{file} is not a capture: it is neither a folder nor a JSON export."
    at = getattr(error, "pos", 0)
    if at >= len(content.decode("utf-8", "replace").rstrip()) or not content.rstrip().endswith(b"}"):
        return f"{file} is cut short after {len(content)} bytes; export the capture again, or copy it again."
    return f"{file} is not valid JSON ({error}); export the capture again."
