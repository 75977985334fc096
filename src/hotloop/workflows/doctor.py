"""`hotloop doctor`: what this machine grants, what is wrong with it for training, where to start."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hotloop.machine.facts import library_versions
from hotloop.machine.health import Health, health
from hotloop.tuning.complaints import Complaint, complaints
from hotloop.tuning.starting import Setting, Tier, starting_settings, tier
from hotloop.workflows.presets import preset_lines

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All that doctor says."""

    health: Health
    versions: dict[str, str]
    tier: Tier
    tier_means: str
    complaints: tuple[Complaint, ...]
    settings: tuple[Setting, ...]
    presets: tuple[tuple[str, str], ...]
    """Name and values in words."""

    def as_json(self) -> dict[str, Any]:
        """The diagnosis as plain values."""
        return {"schema_version": SCHEMA_VERSION, "kind": "hotloop doctor"} | asdict(self)


def diagnose() -> Diagnosis:
    """Look at the machine; takes about half a second."""
    seen = health()
    rank, means = tier(seen.cores_granted, seen.memory_bytes, len(seen.accelerators))
    settings = starting_settings(seen.cores_granted)
    return Diagnosis(seen, library_versions(), rank, means, complaints(seen), settings, preset_lines())
