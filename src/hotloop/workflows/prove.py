"""`hotloop prove CAPTURE N`: measures a recommendation and compares it with the prediction."""

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
from hotloop.capture.plan import Plan, Variant, apply_overrides
from hotloop.lab.run_plan import Workplace
from hotloop.report.to_json import plain
from hotloop.workflows.compare import ComparisonSettings
from hotloop.workflows.experiments import (
    ExperimentResult,
    Progress,
    create_series,
    plain_environment,
    run_experiment,
)
from hotloop.workflows.report import CaptureReport, report_on

# Version history (raised when a field changes its meaning or goes; a new field does not raise it):
#   1  first version
#   2  kind is "hotloop-proof"; `says` is `conclusion`
SCHEMA_VERSION = 2


@dataclass(frozen=True)
class Proof:
    """Predicted and measured speed-up of a recommendation, as factors of the whole run."""

    number: int
    recommendation: Recommendation
    result: ExperimentResult
    predicted: Estimate | None  # None: the capture did not allow a prediction
    measured: Estimate | None  # None: too few pairs for an interval
    conclusion: str  # one sentence
    file: Path | None  # None: it could not be written


def prove(
    capture: str | None,
    number: int,
    overrides: tuple[str, ...],
    settings: ComparisonSettings,
    folder: Path | None,
    progress: Progress,
) -> Proof:
    """Compare the recorded command with the same command after recommendation `number` (from 1).

    `overrides` names the setting to change if the recommendation is about a flag of the script.
    """
    run = report_on(capture)
    found = find_recommendation(run, number)
    plan = plan_of(run, found, number, overrides, settings)
    place = Workplace(_working_folder(run.capture), plain_environment())
    places = {variant.name: place for variant in plan.variants}
    result = run_experiment(create_series(plan, folder, f"prove-{number}"), progress, places)
    measured = result.comparison.compared[0].verdict.speed_up
    conclusion = conclude(found.gain, measured)
    file = _write(run.capture, number, found, result, conclusion)
    return Proof(number, found, result, found.gain, measured, conclusion, file)


def find_recommendation(run: CaptureReport, number: int) -> Recommendation:
    """Recommendation `number`, counted from 1 as in the report."""
    given = run.findings.recommendations
    if not given:
        raise HotloopError(f"{run.name} has no recommendations, so there is nothing to prove.")
    if not 1 <= number <= len(given):
        raise HotloopError(f"{run.name} has no recommendation {number}; choose one from 1 to {len(given)}.")
    return given[number - 1]


def plan_of(
    run: CaptureReport,
    found: Recommendation,
    number: int,
    overrides: tuple[str, ...],
    settings: ComparisonSettings,
) -> Plan:
    """The plan that tests a recommendation; raises HotloopError if it needs a change of code."""
    command = tuple(run.capture.command)
    if not command:
        raise HotloopError(f"{run.name} does not name the recorded command, so it cannot be run again.")
    variables = {k: v for variant in found.plan.get("variants", ()) for k, v in _variables(variant).items()}
    if not variables and not overrides:
        raise HotloopError(_by_hand(found, number, run.name))
    name = found.name if found.name != "as recorded" else "changed"
    changed = Variant(
        name=name,
        command=apply_overrides(command, overrides),
        overrides=overrides,
        environment=tuple(variables.items()),
        expected=found.title,
        safety=found.safety,
    )
    return Plan(
        variants=(Variant("as recorded", command), changed),
        name=f"recommendation {number}: {found.title}",
        budget_s=settings.budget_s,
        timeout_s=settings.timeout_s,
        tolerance=settings.tolerance,
    )


def conclude(predicted: Estimate | None, measured: Estimate | None) -> str:
    """One sentence on whether the measured speed-up agrees with the prediction."""
    if measured is None:
        return "Not measured: too few pairs for an interval."
    got = f"measured {measured.value:.2f}x [{measured.low:.2f}, {measured.high:.2f}]"
    if predicted is None:
        return f"No prediction; {got}."
    said = f"predicted {predicted.value:.2f}x [{predicted.low:.2f}, {predicted.high:.2f}], {got}"
    if measured.low > predicted.high:
        return f"More than predicted: {said}."
    if measured.high < predicted.low:
        return f"Less than predicted: {said}."
    return f"As predicted, within the intervals: {said}."


def _variables(variant: dict[str, Any]) -> dict[str, str]:
    return {str(k): str(v) for k, v in dict(variant.get("environment", {})).items()}


def _by_hand(found: Recommendation, number: int, name: str) -> str:
    what = f"Recommendation {number} ({found.title})"
    if found.provable_by == "flag":
        return (
            f"{what} needs a flag of your script ({found.how_to_change}); "
            f"name it: hotloop prove {name} {number} --set FLAG=VALUE"
        )
    if found.provable_by == "patch":
        return f"{what} is a patch; try it inside the running script: hotloop try -- COMMAND"
    return (
        f"{what} needs a change of code: {found.how_to_change}; then compare the "
        "two revisions: hotloop compare --rev-a BEFORE --rev-b AFTER -- COMMAND"
    )


def _working_folder(capture: Capture) -> Path:
    place = Path(str(capture.facts.get("working_folder") or "."))
    return place if place.is_dir() else Path.cwd()


def _write(
    capture: Capture, number: int, found: Recommendation, result: ExperimentResult, conclusion: str
) -> Path | None:
    """Write the proof into the capture; None if that is not possible."""
    place = capture.path
    if place is None:
        return None
    file = place / f"proof-{number}.json" if place.is_dir() else place.with_suffix(f".proof-{number}.json")
    row = result.comparison.compared[0]
    data = {
        "kind": "hotloop-proof",
        "schema_version": SCHEMA_VERSION,
        "recommendation": number,
        "name": found.name,
        "title": found.title,
        "predicted_speed_up": plain(found.gain),
        "measured_speed_up": plain(row.verdict.speed_up),
        "verdict": plain(row.verdict),
        "work": plain(row.work),
        "learning": plain(row.learning),
        "conclusion": conclusion,
        "series": str(result.series.path),
        "at_s": time.time(),
    }
    try:
        write_atomically(file, json.dumps(data, indent=1) + "\n")
    except OSError:
        return None
    return file
