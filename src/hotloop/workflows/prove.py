"""`hotloop prove CAPTURE N`: runs the plan of a recommendation; predicted against measured."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop._util.files import write_atomically
from hotloop.analysis.findings import Estimate, Recommendation
from hotloop.capture.model import Capture
from hotloop.capture.plan import Plan, Variant, overridden
from hotloop.report.to_json import plain
from hotloop.workflows.compare import Terms
from hotloop.workflows.experiments import Done, Places, Progress, begin, carry_out
from hotloop.workflows.report import CaptureReport, report_on

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Proof:
    """What a recommendation promised and what it gave; speed-up factors of the whole."""

    number: int
    recommendation: Recommendation
    done: Done
    predicted: Estimate | None  # None: the capture could not tell
    measured: Estimate | None  # None: too few pairs for an interval
    says: str
    file: Path | None  # where it was written


def prove(
    capture: str | None,
    number: int,
    overrides: tuple[str, ...],
    terms: Terms,
    folder: Path | None,
    progress: Progress,
) -> Proof:
    """Test recommendation `number` (from 1) of a capture: the run as it was against the run with it.

    `overrides` say which flag to set where the recommendation is about a flag of the script.
    """
    run = report_on(capture)
    found = chosen(run, number)
    plan = plan_of(run, found, number, overrides, terms)
    place = _working_folder(run.capture)
    done = carry_out(begin(plan, folder, f"prove-{number}"), progress, Places(lambda variant: place))
    measured = done.found.compared[0].verdict.speed_up
    says = compared_words(found.gain, measured)
    file = _write(run.capture, number, found, done, says)
    return Proof(number, found, done, found.gain, measured, says, file)


def chosen(run: CaptureReport, number: int) -> Recommendation:
    """Recommendation `number`, counted from 1 as the report does."""
    given = run.findings.recommendations
    if not given:
        raise HotloopError(f"{run.name} has no recommendations to prove.")
    if not 1 <= number <= len(given):
        raise HotloopError(f"{run.name} has recommendations 1 to {len(given)}; there is no number {number}.")
    return given[number - 1]


def plan_of(
    run: CaptureReport, found: Recommendation, number: int, overrides: tuple[str, ...], terms: Terms
) -> Plan:
    """The pairs that prove it, or a sentence why that cannot be done by a machine."""
    command = tuple(run.capture.command)
    if not command:
        raise HotloopError(f"{run.name} does not say which command was recorded, so it cannot be run again.")
    variables = {k: v for variant in found.plan.get("variants", ()) for k, v in _variables(variant).items()}
    if not variables and not overrides:
        raise HotloopError(_by_hand(found, number, run.name))
    name = found.rule if found.rule != "as recorded" else "changed"
    changed = Variant(
        name=name,
        command=overridden(command, overrides),
        overrides=overrides,
        environment=tuple(variables.items()),
        expected=found.title,
        safety=found.safety,
    )
    return Plan(
        variants=(Variant("as recorded", command), changed),
        name=f"recommendation {number}: {found.title}",
        budget_s=terms.budget_s,
        timeout_s=terms.timeout_s,
        tolerance=terms.tolerance,
    )


def compared_words(predicted: Estimate | None, measured: Estimate | None) -> str:
    """Whether the promise was kept, in one sentence."""
    if measured is None:
        return "Not measured: too few pairs for an interval."
    got = f"measured x{measured.value:.2f} [{measured.low:.2f}, {measured.high:.2f}]"
    if predicted is None:
        return f"Nothing was predicted; {got}."
    said = f"predicted x{predicted.value:.2f} [{predicted.low:.2f}, {predicted.high:.2f}], {got}"
    if measured.low > predicted.high:
        return f"More than promised: {said}."
    if measured.high < predicted.low:
        return f"Less than promised: {said}."
    return f"As promised, within the intervals: {said}."


def _variables(variant: dict[str, Any]) -> dict[str, str]:
    return {str(k): str(v) for k, v in dict(variant.get("environment", {})).items()}


def _by_hand(found: Recommendation, number: int, name: str) -> str:
    what = f"Recommendation {number} ({found.title})"
    if found.provable_by == "flag":
        return (
            f"{what} is proven by a flag of your script ({found.how_to_change}); "
            f"say which: hotloop prove {name} {number} --set FLAG=VALUE"
        )
    if found.provable_by == "patch":
        return f"{what} is proven by a patch inside the running script: hotloop try -- COMMAND"
    return (
        f"{what} is proven by hand: {found.how_to_change}; then compare the "
        "two revisions: hotloop compare --rev-a BEFORE --rev-b AFTER -- COMMAND"
    )


def _working_folder(capture: Capture) -> Path:
    place = Path(str(capture.facts.get("working_folder") or "."))
    return place if place.is_dir() else Path.cwd()


def _write(capture: Capture, number: int, found: Recommendation, done: Done, says: str) -> Path | None:
    """Put the proof beside what it proves; None when that cannot be written."""
    place = capture.path
    if place is None:
        return None
    file = place / f"proof-{number}.json" if place.is_dir() else place.with_suffix(f".proof-{number}.json")
    row = done.found.compared[0]
    data = {
        "kind": "hotloop proof",
        "schema_version": SCHEMA_VERSION,
        "recommendation": number,
        "rule": found.rule,
        "title": found.title,
        "predicted_speed_up": plain(found.gain),
        "measured_speed_up": plain(row.verdict.speed_up),
        "verdict": plain(row.verdict),
        "work": plain(row.work),
        "learning": plain(row.learning),
        "says": says,
        "series": str(done.series.path),
        "at_s": time.time(),
    }
    try:
        write_atomically(file, json.dumps(data, indent=1) + "\n")
    except OSError:
        return None
    return file
