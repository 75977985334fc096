"""The folder of a capture: where a new one goes, which one is the latest, changes to its capture.json."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from hotloop._util.errors import CaptureError
from hotloop._util.files import write_atomically
from hotloop._util.read_files import Reader, json_text

# Version of the folder as a whole, in capture.json; each part has layout.VERSION.
#   1  hotloop 0.1
#   2  parts of version 2
FORMAT_VERSION = 2
FACTS = Reader(64 << 20, CaptureError, "restore it or record again", follow=False)  # reads capture.json
RUNS = Path("hotloop-runs")
CAPTURE_VARIABLE = "HOTLOOP_CAPTURE"  # environment variable: the capture that processes record into


def new_folder(name: str) -> Path:
    """A folder that does not exist yet: `hotloop-runs/<time>-<name>`."""
    safe = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"
    stem = RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{safe}"
    folder, number = stem, 2
    while folder.exists():
        folder, number = Path(f"{stem}-{number}"), number + 1
    return folder


def update_facts(folder: Path, changes: dict[str, Any]) -> None:
    """Update entries of capture.json in one step; raises OSError or CaptureError."""
    file = folder / "capture.json"
    write_atomically(file, json_text(FACTS.read_object(file) | changes, indent=2, default=str))


def latest_capture() -> Path:
    """The newest capture in `hotloop-runs`."""
    captures = sorted(RUNS.glob("*/capture.json"), key=lambda file: file.parent.stat().st_mtime_ns)
    if not captures:
        raise CaptureError(
            f"There is no capture in {RUNS}/; name a capture folder, or record one with "
            "hotloop.start() in your script."
        )
    return captures[-1].parent
