"""Results of tuning, cached for this hardware and these versions."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hotloop._util import HOTLOOP_VERSION
from hotloop._util.conform import Misfit, conform
from hotloop._util.errors import FileError, HotloopError
from hotloop._util.files import write_atomically
from hotloop._util.read_files import Reader, json_text
from hotloop.machine.facts import library_versions, memory_bytes
from hotloop.machine.limits import cache_file as limits_file
from hotloop.machine.limits import machine_key

_CACHE = Reader(64 << 20, remedy="delete it, and tune again")
VERSION = 2  # of an entry; entries of other versions are ignored (1 had other names of settings)


@dataclass(frozen=True, slots=True)
class Tuned:
    """Result of tuning one workload or script."""

    target: str
    """Name of the workload, or the script's command line as typed."""
    base: dict[str, Any]
    """Settings that were not tuned."""
    safe: dict[str, Any] = field(default_factory=dict)
    """Changes that make it faster and affect nothing else; {} if none was found."""
    semantic: dict[str, Any] = field(default_factory=dict)
    """Changes that make it even faster but may change learning, including those in `safe`; {} if none."""
    invariants: tuple[str, ...] = ()
    """What the semantic changes keep the same, in sentences."""
    safe_gain: str = ""
    """Verdict on the safe changes."""
    semantic_gain: str = ""
    """Verdict on the semantic changes."""
    rate_per_s: float | None = None
    """Env steps per second with the safe changes, or with the current settings if none was faster."""
    semantic_rate_per_s: float | None = None
    """Env steps per second with the semantic changes."""
    at_s: float = 0.0
    """Seconds since 1970."""


def cache_file() -> Path:
    """`$XDG_CACHE_HOME/hotloop/tuned.json`, by default below ~/.cache."""
    return limits_file().with_name("tuned.json")


def key() -> str:
    """What results depend on: processor, cores granted, thread variables, memory, versions."""
    versions = ", ".join(f"{name} {version}" for name, version in library_versions().items())
    memory = (memory_bytes() or 0) >> 30
    return f"{machine_key()}; {memory} GiB; hotloop {HOTLOOP_VERSION}; {versions}"


def remember(found: Tuned, file: Path | None = None) -> bool:
    """Add a result to the cache; False if the file cannot be written."""
    file = file or cache_file()
    entries: dict[str, dict[str, Any]] = {}
    with contextlib.suppress(FileError):  # a damaged file is replaced
        entries = _read(file)
    data = asdict(found) | {"version": VERSION, "at_s": found.at_s or time.time()}
    entries.setdefault(key(), {})[found.target] = data
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json_text(entries))
        return True
    return False


def recall(target: str, file: Path | None = None) -> Tuned | None:
    """Cached result for this target on this hardware with these versions; None if there is none.

    Raises FileError for a damaged cache.
    """
    entry = _read(file or cache_file()).get(key(), {}).get(target)
    if not isinstance(entry, dict) or entry.get("version") != VERSION:
        return None
    try:
        found: Tuned = conform(entry, Tuned, target)
    except Misfit as misfit:
        raise _CACHE.fail(file or cache_file(), f"is damaged ({misfit})") from None
    return found


def never_tuned(target: str) -> HotloopError:
    """The error for a target without a cached result."""
    where = ", only on other hardware or with other versions"
    why = where if tuned_elsewhere(target) else ", or without a clear result"
    return HotloopError(f"{target} was not tuned on this machine{why}; run: hotloop tune {target}")


def tuned_elsewhere(target: str, file: Path | None = None) -> bool:
    """Whether the target was tuned on other hardware or with other versions."""
    return any(target in entries for k, entries in _read(file or cache_file()).items() if k != key())


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """All entries; {} if there is no file. Raises FileError for a damaged one."""
    if not file.exists():
        return {}
    data = _CACHE.read_object(file)
    return {k: v for k, v in data.items() if isinstance(v, dict)}
