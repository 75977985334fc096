"""Rules of thumb: settings to start from on a machine, named presets, hardware tiers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tier = Literal["minimum", "recommended", "optimal"]
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting with the reason for its value."""

    name: str
    value: int | str
    reason: str


@dataclass(frozen=True, slots=True)
class Preset:
    """A named set of values; None keeps the default."""

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


def whole_cores(cores_granted: float) -> int:
    """Cores rounded down, at least 1: a quota of 2.5 cores gives 2, one of 0.5 gives 1."""
    return max(int(cores_granted), 1)


def starting_settings(cores_granted: float) -> tuple[Setting, ...]:
    """Settings to start from, leaving one core free; `hotloop tune` finds better ones by measuring."""
    cores = whole_cores(cores_granted)
    granted = f"{cores_granted:g} {'core' if cores_granted == 1 else 'cores'} granted"
    demonstrations = min(max(cores - 1, 1), 12)
    loading = min(cores // 2, 8)
    envs = min(max(cores - 1, 2), 8)
    return (
        Setting("demonstration workers", demonstrations, f"{granted}; one stays free; at most 12"),
        Setting("loading workers", loading, f"{granted}; half of them; at most 8"),
        Setting("envs", envs, f"{granted}; one stays free; 2 to 8"),
        Setting("torch threads", 1, "more threads slow down small networks; measure larger ones"),
        Setting("start method", "spawn", "safe with threads and GPUs; fork starts faster"),
    )


def tier(cores_granted: float, memory_bytes: int | None, accelerators: int) -> tuple[Tier, str]:
    """Hardware tier for the reference workloads, and what it means."""
    memory = memory_bytes or 0
    if cores_granted >= 12 and memory >= 32 * GIB and accelerators:
        return "optimal", "every workload runs at full size, with the learner on the GPU"
    if cores_granted >= 4 and memory >= 16 * GIB:
        return (
            "recommended",
            "every workload runs at full size; training from pixels takes hours, not minutes",
        )
    return "minimum", "every workload runs, but parallel collection gains little: use few workers"
