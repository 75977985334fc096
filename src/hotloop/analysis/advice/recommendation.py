"""Turns what an advice function found into a `Recommendation` with a tier, a plan and a test command."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Any

from hotloop._util.units import duration, percent
from hotloop.analysis.advice.run_view import RegionRow, RunView
from hotloop.analysis.findings import Effort, Estimate, ProvableBy, Recommendation, Safety, Tier

HIGH, MEDIUM, LOW = 1.25, 1.07, 1.02  # predicted speed-up of the whole run at which a tier starts
UNKNOWN_GAIN = "The gain cannot be predicted from this capture."


@dataclass(frozen=True)
class Change:
    """What to change, and what it takes."""

    how: str  # the variable, flag or edit
    effort: Effort
    safety: Safety
    provable_by: ProvableBy = "hand"
    environment: dict[str, str] = field(default_factory=dict)  # for provable_by="environment"


def tier_of(gain: Estimate) -> Tier:
    """How much a predicted gain matters; if the interval includes almost no gain, at most `low`."""
    if gain.value < LOW:
        return "not_worth_optimising"
    if gain.value < MEDIUM or gain.low < LOW:
        return "low"
    return "high" if gain.value >= HIGH and gain.low >= MEDIUM else "medium"


def advise(
    run: RunView,
    name: str,
    row: RegionRow | None,
    title: str,
    evidence: list[str],
    advice: str,
    gain: Estimate | None,
    change: Change,
    tier: Tier | None = None,
) -> Recommendation:
    """A recommendation about `row` (None: the whole run). `tier` is used if the gain is unknown."""
    if gain is None:
        evidence = [*evidence, UNKNOWN_GAIN]
    return Recommendation(
        name=name,
        title=title,
        evidence=tuple(evidence),
        advice=advice,
        gain=gain,
        tier=tier_of(gain) if gain is not None else tier or "low",
        effort=change.effort,
        safety=change.safety,
        provable_by=change.provable_by,
        how_to_change=change.how,
        site=row.node.site if row is not None else "",
        region=row.name if row is not None else "",
        plan=plan(run, name, change),
        prove_command=prove_command(run, change),
    )


def plan(run: RunView, name: str, change: Change) -> dict[str, Any]:
    """The experiment that would prove it: the recorded command with and without the change."""
    changed: dict[str, Any] = {"name": name, "by": change.provable_by, "change": change.how}
    if change.environment:
        changed["environment"] = dict(change.environment)
    return {
        "kind": "compare",
        "command": run.capture.command,
        "variants": [{"name": "as recorded"}, changed],
        "metric": "ns_per_env_step" if run.env_steps else "wall_ns",
        "check": "equal_results" if change.safety == "safe" else "learning_curve",
    }


def prove_command(run: RunView, change: Change) -> str:
    """How to see the effect; records into a new folder each time, since an existing one would be extended."""
    command = shlex.join(run.capture.command) or "your command"
    variables = "".join(f"{name}={value} " for name, value in change.environment.items())
    again = f"{variables}HOTLOOP_CAPTURE=hotloop-runs/after-$(date +%s) {command}"
    return again if change.environment else f"make the change, then record again: {again}"


def times(value: float) -> str:
    """`once`, `16 times`, `0.25 times`."""
    return "once" if f"{value:.3g}" == "1" else f"{value:.3g} times"


def about(share: float) -> str:
    """An assumed share: `60 %`."""
    return f"{100 * share:.0f} %"


def rate(value: float) -> str:
    """`16`, `0.25`."""
    return f"{value:.3g}"


def took(row: RegionRow) -> str:
    """The first piece of evidence: share, calls and mean time."""
    calls = f"{row.calls:,} calls of {duration(row.mean_ns)} each"
    return f"`{row.name}` took {percent(row.share)} of the wall time: {calls}."
