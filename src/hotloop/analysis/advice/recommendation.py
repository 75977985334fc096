"""Turns what an advice function found into a `Recommendation` with a tier, a plan and a test command."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hotloop._util.units import duration, percent
from hotloop.analysis.advice.commands import command_again, flag_in, prove_command
from hotloop.analysis.advice.run_view import RegionRow, RunView
from hotloop.analysis.findings import Claim, Effort, Estimate, ProvableBy, Recommendation, Safety, Tier

HIGH, MEDIUM, LOW = 1.25, 1.07, 1.02  # predicted speed-up of training at which a tier starts
APART = ("option", "no_known_remedy")  # tiers that do not follow from the gain
LEAST_SAVED = 0.05  # of training, for advice about lines of code
HELPER = "It ran in another thread or process, while the training thread waited for it."
UNKNOWN_GAIN = "The gain cannot be predicted from this capture."


@dataclass(frozen=True)
class Change:
    """What to change, and what it takes."""

    how: str  # the variable, flag or edit
    effort: Effort
    safety: Safety
    provable_by: ProvableBy = "hand"
    environment: dict[str, str] = field(default_factory=dict)  # for provable_by="environment"
    patch: str = ""  # for provable_by="patch": its name in `hotloop try --only`
    flags: tuple[str, ...] = ()  # usual names of the setting, for provable_by="flag"
    times: float = 1.0  # the setting's value is multiplied by this


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
    *,
    claimed: Sequence[RegionRow] | None = None,
    own: bool = False,
    waits: bool = False,
) -> Recommendation:
    """A recommendation about `row` (None: the whole run).

    `tier` is used if the gain is unknown, or if it is one of APART. `claimed` are the regions whose time
    (with `own`, own time) the change reduces; None: `row`. `waits`: it does away with waiting, not with work.
    """
    if gain is None:
        evidence = [*evidence, UNKNOWN_GAIN]
    rows = claimed if claimed is not None else [row] if row is not None else []
    made = Recommendation(
        name=name,
        title=title,
        evidence=tuple(evidence),
        advice=advice,
        gain=gain,
        tier=tier_of(gain) if gain is not None and tier not in APART else tier or "low",
        effort=change.effort,
        safety=change.safety,
        provable_by=change.provable_by,
        how_to_change=_how(run, change),
        site=run.site_of(row) if row is not None else "",
        region=row.name if row is not None else "",
        plan=plan(run, name, change),
        prove_command="",
        claim=Claim(tuple(dict.fromkeys(r.path for r in rows)), own, waits=waits) if rows else None,
    )
    return replace(made, prove_command=prove_command(run.capture, made, 1))


def _how(run: RunView, change: Change) -> str:
    """What to change; the script's own flag where the recorded command has one."""
    found = flag_in(run.capture.command, change.flags)
    if found is None:
        return change.how
    return f"{found[0]} {round_interval(found[1] * change.times)} (now {found[1]:.0f})"


def round_interval(wanted: float) -> int:
    """The number of 1, 2, 5, 10, 20, 50 ... that people would type: the first that is not clearly smaller."""
    power = int(10 ** math.floor(math.log10(max(wanted, 1.0))))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= 0.9 * wanted)


def plan(run: RunView, name: str, change: Change) -> dict[str, Any]:
    """The experiment that would prove it: the recorded command with and without the change."""
    changed: dict[str, Any] = {"name": name, "by": change.provable_by, "change": change.how}
    if change.environment:
        changed["environment"] = dict(change.environment)
    if change.patch:
        changed["patch"] = change.patch
    found = flag_in(run.capture.command, change.flags)
    if found is not None:
        changed["set"] = [f"{found[0]}={round_interval(found[1] * change.times)}"]
    return {
        "kind": "compare",
        "command": command_again(run.capture),
        "variants": [{"name": "as recorded"}, changed],
        "metric": "ns_per_env_step" if run.env_steps else "wall_ns",
        "check": "equal_results" if change.safety == "safe" else "learning_curve",
    }


def library(run: RunView) -> str:
    """The library whose vector env this run steps, by the classes it recorded; "" if it is not known."""
    names = {row.name.partition(".")[0] for row in run.rows}
    names |= {row.name.partition(".")[0] for worker in run.workers for row in worker.rows}
    if names & {"DummyVecEnv", "SubprocVecEnv"}:
        return "stable_baselines3"
    if names & {"SyncVectorEnv", "AsyncVectorEnv"}:
        return "gymnasium"
    return "torchrl" if names & {"SerialEnv", "ParallelEnv"} and _calls_torchrl(run) else ""


def _calls_torchrl(run: RunView) -> bool:
    """Whether it was seen in TorchRL, or was not sampled at all: torch-ac, too, has a `ParallelEnv`."""
    lines = run.lines
    return lines is None or any(
        name.startswith("torchrl.") for path in lines.paths for name in (path.called, path.innermost)
    )


SERIAL = {"stable_baselines3": "DummyVecEnv", "gymnasium": "SyncVectorEnv", "torchrl": "SerialEnv"}


def times(value: float) -> str:
    """`once`, `16 times`, `0.25 times`."""
    return "once" if f"{value:.3g}" == "1" else f"{value:.3g} times"


def about(share: float) -> str:
    """An assumed share: `60 %`."""
    return f"{100 * share:.0f} %"


def rate(value: float) -> str:
    """`16`, `0.25`."""
    return f"{value:.3g}"


def per_unit(run: RunView, share: float) -> str:
    """What a share of training is for each env step or update: `, 1.2 ms per env step`."""
    if run.env_steps:
        return f", {duration(share * run.wall_ns / run.env_steps)} per env step"
    if run.updates:
        return f", {duration(share * run.wall_ns / run.updates)} per update"
    return ""


def lower_first(title: str) -> str:
    """A title inside a sentence."""
    return title[:1].lower() + title[1:]


def took(row: RegionRow) -> str:
    """The first piece of evidence: share, calls and mean time."""
    calls = f"{row.calls:,} calls of {duration(row.mean_ns)} each"
    return f"`{row.name}` took {percent(row.share)} of the wall time: {calls}."
