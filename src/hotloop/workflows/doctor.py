"""`hotloop doctor`: facts about this machine, warnings, and settings to start from."""

from __future__ import annotations

from dataclasses import dataclass

from hotloop.machine.facts import library_versions
from hotloop.machine.health import Health, health
from hotloop.tuning.machine_warnings import MachineWarning, machine_warnings
from hotloop.tuning.starting_rules import Setting, Tier, starting_settings, tier
from hotloop.workflows.train_settings import preset_lines


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything that `hotloop doctor` prints."""

    health: Health
    versions: dict[str, str]
    tier: Tier
    tier_meaning: str
    warnings: tuple[MachineWarning, ...]
    settings: tuple[Setting, ...]
    presets: tuple[tuple[str, str], ...]
    """Name and values of each."""


def diagnose() -> Diagnosis:
    """Examine the machine; takes about half a second."""
    found = health()
    rank, meaning = tier(found.cores_granted, found.memory_bytes, len(found.accelerators))
    settings = starting_settings(found.cores_granted)
    return Diagnosis(
        found, library_versions(), rank, meaning, machine_warnings(found), settings, preset_lines()
    )
