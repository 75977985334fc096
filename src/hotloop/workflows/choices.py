"""Settings that `hotloop train` takes from a preset or from tuning, in place of a workload's defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop.workflows.presets import preset_settings


@dataclass(frozen=True)
class Chosen:
    """What was chosen, and what is said about it."""

    settings: dict[str, Any] = field(default_factory=dict)
    says: tuple[str, ...] = ()
    tuned: bool = False
    rate_per_s: float | None = None
    """Env steps per second that tuning saw with these settings."""


NOTHING_CHOSEN = Chosen()


def wishes_in(words: list[str]) -> dict[str, Any]:
    """`--preset NAME`, `--tuned`, `--tuned-semantic` and `--stage NAME` among the words: what has to be known
    before the others are read."""
    flags = {word.replace("_", "-") for word in words}
    semantic = "--tuned-semantic" in flags
    return {
        "preset": _value_of("--preset", words),
        "tuned": semantic or "--tuned" in flags,
        "semantic": semantic,
        "stage": _value_of("--stage", words),
    }


def _value_of(flag: str, words: list[str]) -> str | None:
    found = None
    for at, word in enumerate(words):
        if word == flag and at + 1 < len(words):
            found = words[at + 1]
        elif word.startswith(f"{flag}="):
            found = word.partition("=")[2]
    return found


def choose(
    name: str, config: Any, preset: str | None, tuned: bool, semantic: bool, stage: str | None = None
) -> Chosen:
    """The settings to begin with; `config` has the defaults, `stage` is the one asked for, if any."""
    if preset is not None and tuned:
        raise HotloopError("--preset and --tuned both choose settings; give one of the two.")
    if preset is not None:
        return Chosen(*preset_settings(name, config, preset))
    if tuned:
        from hotloop.workflows.tuned import tuned_settings

        settings, says, rate_per_s = tuned_settings(name, semantic, stage)
        return Chosen(settings, says, True, rate_per_s)
    return NOTHING_CHOSEN


def says_of(name: str, chosen: Chosen, config: Any) -> tuple[str, ...]:
    """What to tell before the training begins."""
    if not chosen.tuned:
        return chosen.says
    from hotloop.workflows.tuned import other_settings

    other = other_settings(name, config)
    return (*chosen.says, *([other] if other else []))
