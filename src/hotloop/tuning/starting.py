"""The settings to start from on a machine, by rule, and the presets that people know by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hotloop._util.errors import HotloopError

Tier = Literal["minimum", "recommended", "optimal"]
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting with the reason for its value."""

    name: str
    value: int | str
    reason: str


@dataclass(frozen=True, slots=True)
class Preset:
    """Settings known by a name; None leaves the rule's value."""

    demonstration_workers: int | None = None
    loading_workers: int | None = None
    n_envs: int | None = None
    batch_size: int | None = None
    n_episodes: int | None = None
    n_epochs: int | None = None
    total_timesteps: int | None = None


PRESETS: dict[str, Preset] = {
    "small-ram": Preset(demonstration_workers=2, loading_workers=2, n_envs=2),
    "many-cores": Preset(demonstration_workers=12, loading_workers=8, n_envs=12),
    "gpu": Preset(loading_workers=8, n_envs=12, batch_size=512),
    "quick": Preset(
        demonstration_workers=4,
        loading_workers=2,
        n_envs=4,
        n_episodes=50,
        n_epochs=20,
        total_timesteps=100_000,
    ),
}


def preset(name: str) -> Preset:
    """A preset by name."""
    if name not in PRESETS:
        raise HotloopError(f"there is no preset {name!r}; there is {', '.join(PRESETS)}.")
    return PRESETS[name]


def whole_cores(cores_granted: float) -> int:
    """Cores that can be counted on: a quota of 2.5 is two, one of 0.5 is one."""
    return max(int(cores_granted), 1)


def starting_settings(cores_granted: float) -> tuple[Setting, ...]:
    """Where to start, one core left free; a measured search does better."""
    cores = whole_cores(cores_granted)
    granted = f"{cores_granted:g} {'core' if cores_granted == 1 else 'cores'} granted"
    demonstrations = min(max(cores - 1, 1), 12)
    loading = min(cores // 2, 8)
    envs = min(max(cores - 1, 2), 8)
    return (
        Setting("demonstration workers", demonstrations, f"{granted}, one left free, at most 12"),
        Setting("loading workers", loading, f"{granted}, half of them, at most 8"),
        Setting("envs", envs, f"{granted}, one left free, at least 2, at most 8"),
        Setting("torch threads", 1, "small networks lose time to more; measure larger ones"),
        Setting("start method", "spawn", "safe with threads and accelerators; fork starts faster"),
    )


def tier(cores_granted: float, memory_bytes: int | None, accelerators: int) -> tuple[Tier, str]:
    """How this machine ranks for the reference workloads, and what that means."""
    memory = memory_bytes or 0
    if cores_granted >= 12 and memory >= 32 * GIB and accelerators:
        return "optimal", "every workload at full size, learner on the accelerator"
    if cores_granted >= 4 and memory >= 16 * GIB:
        return "recommended", "every workload at full size; pixel workloads take hours, not minutes"
    return "minimum", "every workload runs; parallel collection gains little, so prefer fewer workers"
