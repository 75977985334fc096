"""Settings found by tuning, remembered for this hardware and these versions."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hotloop._util import HOTLOOP_VERSION
from hotloop._util.files import write_atomically
from hotloop.machine.facts import library_versions, memory_bytes
from hotloop.machine.limits import cache_file as limits_file
from hotloop.machine.limits import machine_key

VERSION = 2  # of an entry; others are tuned again (1 had other names of settings)


@dataclass(frozen=True, slots=True)
class Tuned:
    """What tuning found for one workload or script."""

    target: str
    """Name of the workload, or the script's command line as typed."""
    base: dict[str, Any]
    """The settings that were not tuned."""
    safe: dict[str, Any] = field(default_factory=dict)
    """Settings that make it faster and change nothing else; {}: keep yours."""
    semantic: dict[str, Any] = field(default_factory=dict)
    """Settings that make it faster still and may change learning, those of `safe` included; {}: none."""
    invariants: tuple[str, ...] = ()
    """What stays the same with the semantic ones."""
    safe_gain: str = ""
    """The verdict on the safe ones."""
    semantic_gain: str = ""
    """The verdict on all of them."""
    rate_per_s: float | None = None
    """Env steps per second seen with the safe settings, or with those in use where none were faster."""
    semantic_rate_per_s: float | None = None
    """The same with the semantic ones."""
    at_s: float = 0.0
    """Seconds since 1970."""


def cache_file() -> Path:
    """`$XDG_CACHE_HOME/hotloop/tuned.json`, by default below ~/.cache."""
    return limits_file().with_name("tuned.json")


def key() -> str:
    """What settings depend on: processor, cores granted, thread variables, memory, versions."""
    versions = ", ".join(f"{name} {version}" for name, version in library_versions().items())
    memory = (memory_bytes() or 0) >> 30
    return f"{machine_key()}; {memory} GiB; hotloop {HOTLOOP_VERSION}; {versions}"


def remember(found: Tuned, file: Path | None = None) -> bool:
    """Keep what was found; False when the file cannot be written."""
    file = file or cache_file()
    entries = _read(file)
    data = asdict(found) | {"version": VERSION, "at_s": found.at_s or time.time()}
    entries.setdefault(key(), {})[found.target] = data
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(entries, indent=1, sort_keys=True) + "\n")
        return True
    return False


def recall(target: str, file: Path | None = None) -> Tuned | None:
    """What tuning found for this target on this hardware with these versions; None when it never did."""
    entry = _read(file or cache_file()).get(key(), {}).get(target)
    if not isinstance(entry, dict) or entry.pop("version", None) != VERSION:
        return None
    try:
        found = Tuned(**entry)
        return Tuned(**(asdict(found) | {"invariants": tuple(found.invariants)}))
    except TypeError:
        return None


def elsewhere(target: str, file: Path | None = None) -> bool:
    """Whether the target was tuned with other hardware or versions."""
    return any(target in entries for k, entries in _read(file or cache_file()).items() if k != key())


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """All entries; {} for a missing or broken file."""
    try:
        data: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {k: v for k, v in data.items() if isinstance(v, dict)} if isinstance(data, dict) else {}
