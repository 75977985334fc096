"""`--preset NAME` of `hotloop train`: a preset's values as settings of a workload."""

from __future__ import annotations

import dataclasses
from typing import Any

from hotloop.tuning.starting import PRESETS, Preset, preset

# workload -> its setting -> the preset's entry. What a workload has no setting for is left out.
# `n_epochs` of a preset are passes over demonstrations: no other workload's epochs are those.
FIELDS: dict[str, dict[str, str]] = {
    "ricochet": {"n_envs": "n_envs", "total_timesteps": "total_timesteps"},
    "petri": {"n_envs": "n_envs", "total_timesteps": "total_timesteps", "batch_size": "batch_size"},
    "snake": {"n_envs": "n_envs", "stop_at_episodes": "n_episodes", "batch_size": "batch_size"},
    "mario": {"n_collectors": "n_envs", "batch_size": "batch_size"},
    "imitate": {
        "workers": "demonstration_workers",
        "loading_workers": "loading_workers",
        "n_envs": "n_envs",
        "batch_size": "batch_size",
        "n_episodes": "n_episodes",
        "n_epochs": "n_epochs",
        "total_timesteps": "total_timesteps",
    },
}


def preset_settings(name: str, config: Any, chosen: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Settings of a preset, to stand in for the workload's defaults, and what is done, in sentences."""
    values = preset(chosen)
    fields = FIELDS.get(name) or _by_name(config)
    found = {
        mine: getattr(values, theirs)
        for mine, theirs in fields.items()
        if getattr(values, theirs) is not None
    }
    said = []
    if name == "petri" and "n_envs" in found:  # the samples of a rollout stay the same
        fitting = largest_divisor(config.samples, found["n_envs"])
        if fitting != found["n_envs"]:
            said.append(
                f"preset {chosen}: n_envs={fitting} instead of {found['n_envs']}, "
                f"which does not divide n_envs * n_steps = {config.samples}"
            )
        found |= {"n_envs": fitting, "n_steps": config.samples // fitting}
    words = " ".join(f"{key}={value}" for key, value in found.items())
    said.insert(0, f"preset {chosen}: {words}" if found else f"preset {chosen} sets nothing of {name}")
    used = {fields[mine] for mine in found if mine in fields}
    rest = {f.name: getattr(values, f.name) for f in dataclasses.fields(Preset) if f.name not in used}
    left = " ".join(f"{key}={value}" for key, value in rest.items() if value is not None)
    if left:
        said.append(f"preset {chosen}: {name} has no setting for {left}")
    return found, tuple(said)


def _by_name(config: Any) -> dict[str, str]:
    """Settings that are called as the preset calls them."""
    mine = {field.name for field in dataclasses.fields(config)}
    return {field.name: field.name for field in dataclasses.fields(Preset) if field.name in mine}


def largest_divisor(number: int, most: int) -> int:
    """The largest whole number up to `most` that divides `number`."""
    return next(n for n in range(min(most, number), 0, -1) if number % n == 0)


def preset_lines() -> tuple[tuple[str, str], ...]:
    """Every preset with its values in words, for doctor."""
    found = []
    for name, values in PRESETS.items():
        given = {f.name: getattr(values, f.name) for f in dataclasses.fields(Preset)}
        words = ", ".join(
            f"{key.replace('_', ' ')} {value}" for key, value in given.items() if value is not None
        )
        found.append((name, words))
    return tuple(found)
