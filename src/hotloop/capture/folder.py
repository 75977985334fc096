"""The folder of a capture: where a new one goes, who may join it, the latest one, changes to its facts."""

from __future__ import annotations

import itertools
import os
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

from hotloop._util.errors import CaptureError
from hotloop._util.files import create_exclusively, write_atomically
from hotloop._util.interrupts import is_users
from hotloop._util.read_files import Reader, json_text

# Version of the folder as a whole, in capture.json; each part has layout.VERSION.
#   1  hotloop 0.1
#   2  parts of version 2
FORMAT_VERSION = 2
FACTS = Reader(64 << 20, CaptureError, "restore it or record again", follow=False)  # reads capture.json
RUNS = Path("hotloop-runs")
CAPTURE_VARIABLE = "HOTLOOP_CAPTURE"  # environment variable: the capture that processes record into
RUN_ID_VARIABLE = "HOTLOOP_RUN_ID"  # environment variable: the run they belong to


def new_folder(name: str) -> Path:
    """A folder that does not exist yet: `hotloop-runs/<time>-<name>`."""
    safe = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"
    stem = RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{safe}"
    folder, number = stem, 2
    while folder.exists():
        folder, number = Path(f"{stem}-{number}"), number + 1
    return folder


def new_run_id() -> str:
    """An id that no other run has."""
    return os.urandom(8).hex()


class Claim(NamedTuple):
    """The place of a process in a capture."""

    folder: Path
    run_id: str | None  # of the capture; None for one of an older version
    begun: bool  # by this process, not by another one


def claim_folder(folder: Path, facts: dict[str, Any], run_id: str | None) -> Claim:
    """Begin a capture in `folder` with these facts, or join the one there if it is of the same run.

    `run_id` is the id that this process was given; without one it may join a capture that was begun in the
    same way, if that is still being recorded. A folder with a capture of another run is left alone: the new
    one goes to a folder of a similar name. Of several processes that come at once, one begins the capture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        place = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        if number > 1:
            place.mkdir(exist_ok=True)
        file = place / "capture.json"
        if not file.exists():
            if number > 1 and any(not name.startswith(".") for name in os.listdir(place)):
                continue  # something else of the user's
            if create_exclusively(file, json_text(facts, indent=2, default=str)):
                return Claim(place, facts["run_id"], begun=True)
        found = _facts_of_same_run(file, run_id)
        if found is not None:
            return Claim(place, found.get("run_id"), begun=False)
    raise AssertionError("never reached: there is always another number")


def _facts_of_same_run(file: Path, run_id: str | None) -> dict[str, Any] | None:
    try:
        facts = FACTS.read_object(file)
        if run_id is not None:
            same = facts.get("run_id") == run_id
        else:
            same = facts.get("joinable") and facts.get("ended_at_ns") is None and _lives(facts)
        return facts if same else None
    except CaptureError:
        return None


def _lives(facts: dict[str, Any]) -> bool:
    """Whether the process that began a capture still runs; assumed of a process on another computer."""
    if (facts.get("machine") or {}).get("host") != os.uname().nodename:
        return True
    try:
        os.kill(int(facts["pid"]), 0)
    except (OSError, KeyError, TypeError, ValueError) as error:
        if is_users(error):
            raise
        return isinstance(error, PermissionError)  # then it is another user's
    return True


def update_facts(folder: Path, changes: dict[str, Any]) -> None:
    """Update entries of capture.json in one step; raises OSError or CaptureError."""
    file = folder / "capture.json"
    write_atomically(file, json_text(FACTS.read_object(file) | changes, indent=2, default=str))


def latest_capture() -> Path:
    """The newest capture in `hotloop-runs`."""
    captures = sorted(RUNS.glob("*/capture.json"), key=lambda file: file.parent.stat().st_mtime_ns)
    if not captures:
        raise CaptureError(
            f"There is no capture in {RUNS}/; name a capture folder, or record one: hotloop run train.py"
        )
    return captures[-1].parent
