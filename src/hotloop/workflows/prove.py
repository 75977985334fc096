"""`hotloop prove CAPTURE N`: measures a recommendation and compares it with the prediction.

How the change is made depends on the recommendation: an environment variable or a flag of the script (pairs
of fresh processes), a patch (a trial inside one run of the script), or an edit by the user (the working tree
against the revision before it).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hotloop._util.errors import HotloopError
from hotloop._util.files import write_atomically
from hotloop._util.units import duration
from hotloop.analysis.advice.commands import change_of, command_again
from hotloop.analysis.findings import Estimate, Recommendation
from hotloop.analysis.verdict import Verdict
from hotloop.capture.folder import new_folder
from hotloop.capture.model import Capture
from hotloop.capture.plan import Plan, Variant, apply_overrides
from hotloop.capture.series import Run, Series
from hotloop.lab.run_plan import Workplace
from hotloop.report.before_after import BeforeAfter
from hotloop.report.to_json import plain, strict_json
from hotloop.workflows.compare import ComparisonSettings
from hotloop.workflows.experiments import (
    ExperimentResult,
    Progress,
    create_series,
    plain_environment,
    run_experiment,
)
from hotloop.workflows.report import CaptureReport, report_on
from hotloop.workflows.revisions import checked_out, is_in_revision, project_root, revision_before
from hotloop.workflows.secrets import command_with_secrets
from hotloop.workflows.trial import TrialResult, TrialSettings, run_trial

# Version history (raised when a field changes its meaning or goes; a new field does not raise it):
#   1  first version
#   2  kind is "hotloop-proof"; `says` is `conclusion`
SCHEMA_VERSION = 2
BEFORE = "as recorded"


@dataclass(frozen=True)
class Proof:
    """Predicted and measured speed-up of a recommendation, as factors of the whole run."""

    number: int
    recommendation: Recommendation
    result: ExperimentResult | TrialResult
    predicted: Estimate | None  # None: the capture did not allow a prediction
    measured: Estimate | None  # None: too few pairs for an interval
    at_least: float | None  # speed-up, if one side was ended by the budget and the other finished
    conclusion: str  # one sentence
    file: Path | None  # None: it could not be written

    def card(self) -> BeforeAfter | None:
        """The before/after card of what was measured."""
        if isinstance(self.result, TrialResult):
            return self.result.card()
        card = self.result.card(self.recommendation.how_to_change)
        # The name of a recommendation means nothing to those with whom the card is shared.
        return card and replace(card, after="with the change")


@dataclass(frozen=True)
class ProofRequest:
    """What the user asked for."""

    capture: str | None  # None: the latest
    number: int  # of the recommendation, from 1
    overrides: tuple[str, ...] = ()  # settings of the script that make the change
    by_revision: bool = False  # the user has edited the code


def prove(
    request: ProofRequest, settings: ComparisonSettings, folder: Path | None, progress: Progress
) -> Proof:
    """Measure the recorded command with and without the change of a recommendation."""
    run = report_on(request.capture)
    found = find_recommendation(run, request.number)
    patch = change_of(found).get("patch")
    if patch and not request.overrides and not request.by_revision:
        return _by_trial(run, found, request.number, str(patch), settings, folder, progress)
    if request.by_revision:
        result = _by_revision(run, found, request.number, settings, folder, progress)
    else:
        plan = plan_of(run, found, request.number, request.overrides, settings)
        place = Workplace(working_folder(run.capture), plain_environment())
        places = {variant.name: place for variant in plan.variants}
        result = run_experiment(create_series(plan, folder, f"prove-{request.number}"), progress, places)
    row = result.comparison.compared[0]
    at_least, cut = cut_by_budget(result.series) if row.verdict.speed_up is None else (None, "")
    conclusion = cut or conclude(found.gain, row.verdict.speed_up)
    about = {"work": plain(row.work), "learning": plain(row.learning), "series": str(result.series.path)}
    file = _write(run.capture, request.number, found, row.verdict, conclusion, about | {"at_least": at_least})
    return Proof(request.number, found, result, found.gain, row.verdict.speed_up, at_least, conclusion, file)


def find_recommendation(run: CaptureReport, number: int) -> Recommendation:
    """Recommendation `number`, counted from 1 as in the report; what to leave alone does not count."""
    given = [r for r in run.findings.recommendations if r.tier != "not_worth_optimising"]
    if not given:
        raise HotloopError(f"{run.name} has no recommendations, so there is nothing to prove.")
    if not 1 <= number <= len(given):
        raise HotloopError(f"{run.name} has no recommendation {number}; choose one from 1 to {len(given)}.")
    return given[number - 1]


# -- a variable or a flag --------------------------------------------------------------------------


def plan_of(
    run: CaptureReport,
    found: Recommendation,
    number: int,
    overrides: tuple[str, ...],
    settings: ComparisonSettings,
) -> Plan:
    """The plan that tests a recommendation; raises HotloopError if it needs a change of code."""
    command = recorded_command(run)
    change = change_of(found)
    variables = {str(k): str(v) for k, v in dict(change.get("environment", {})).items()}
    overrides = overrides or tuple(change.get("set", ()))
    if not variables and not overrides:
        raise HotloopError(_by_hand(found, number, run))
    changed = _changed(found, apply_overrides(command, overrides), overrides, variables)
    return _plan(found, number, (Variant(BEFORE, command), changed), settings)


def recorded_command(run: CaptureReport) -> tuple[str, ...]:
    command = tuple(command_again(run.capture))
    if not command:
        raise HotloopError(f"{run.name} does not name the recorded command, so it cannot be run again.")
    return command_with_secrets(command)


def _changed(
    found: Recommendation,
    command: tuple[str, ...],
    overrides: tuple[str, ...] = (),
    variables: Mapping[str, str] | None = None,
) -> Variant:
    return Variant(
        name=found.name if found.name != BEFORE else "changed",
        command=command,
        overrides=overrides,
        environment=tuple((variables or {}).items()),
        expected=found.title,
        safety="semantic" if found.safety == "semantic" else "safe",
    )


def _plan(
    found: Recommendation, number: int, variants: tuple[Variant, Variant], settings: ComparisonSettings
) -> Plan:
    return Plan(
        variants=variants,
        name=f"recommendation {number}: {found.title}",
        budget_s=settings.budget_s,
        timeout_s=settings.timeout_s,
        tolerance=settings.tolerance,
    )


def _by_hand(found: Recommendation, number: int, run: CaptureReport) -> str:
    what = f"Recommendation {number} ({found.title})"
    again = f"hotloop prove {run.name} {number}"
    if found.provable_by == "flag":
        return (
            f"{what} needs a flag of your script ({found.how_to_change}); "
            f"name it: {again} --set FLAG=VALUE, or change the code and use --rev"
        )
    return f"{what} needs a change of code: {found.how_to_change}; make it, then run: {again} --rev"


# -- an edit of the user ---------------------------------------------------------------------------


def _by_revision(
    run: CaptureReport,
    found: Recommendation,
    number: int,
    settings: ComparisonSettings,
    folder: Path | None,
    progress: Progress,
) -> ExperimentResult:
    """The working tree against the revision before the change, each with its own copy of the files."""
    here = working_folder(run.capture).resolve()
    root = project_root(here)
    revision = revision_before(here, str(run.capture.facts.get("git_hash") or ""))
    command = _inside_project(recorded_command(run), here, root, revision)
    variants = Variant(BEFORE, command, revision=revision), _changed(found, command)
    series = create_series(_plan(found, number, variants, settings), folder, f"prove-{number}")
    with checked_out(variants, here) as places:
        own = tuple(place for place in (here, root / "src") if place.is_dir())
        places[variants[1].name] = Workplace(here, plain_environment(own))
        return run_experiment(series, progress, places)


def _inside_project(command: tuple[str, ...], here: Path, root: Path, revision: str) -> tuple[str, ...]:
    """The command with files of the project relative to `here`, so that each copy runs its own files."""
    words = list(command)
    for at, word in enumerate(words):
        file = here / word
        if not file.is_file() or not file.resolve().is_relative_to(root):
            continue
        if is_in_revision(file, revision, root):
            words[at] = os.path.relpath(file.resolve(), here)
        elif word.endswith(".py"):
            raise HotloopError(
                f"{word} is not in {revision}, so there is no version before the change; commit that version "
                "first, then make the change."
            )
    return tuple(words)


# -- a patch ---------------------------------------------------------------------------------------


def _by_trial(
    run: CaptureReport,
    found: Recommendation,
    number: int,
    patch: str,
    settings: ComparisonSettings,
    folder: Path | None,
    progress: Progress,
) -> Proof:
    """Switch the patch on and off inside one run of the script."""
    target = (folder or new_folder(f"prove-{number}")).absolute()
    trial = TrialSettings(
        budget_s=settings.budget_s or TrialSettings.budget_s,
        only=(patch,),
        tolerance=settings.tolerance,
        stop=True,
    )
    with contextlib.chdir(working_folder(run.capture)):
        result = run_trial(recorded_command(run), target, trial, quiet=True, on_progress=progress.note)
    verdict = next((row.verdict for row in result.report.patches if row.name == patch), None)
    measured = verdict.speed_up if verdict is not None else None
    why = next((left.reason for left in result.report.left_out if left.name == patch), "")
    conclusion = f"Not measured: {why}." if why else conclude(found.gain, measured)
    file = _write(run.capture, number, found, verdict, conclusion, {"trial": str(target)})
    return Proof(number, found, result, found.gain, measured, None, conclusion, file)


# -- conclusions -----------------------------------------------------------------------------------


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
    if measured.low <= 1 < predicted.low:
        return f"Undecided: {said}; a larger --budget makes more pairs."
    return f"As predicted, within the intervals: {said}."


def cut_by_budget(series: Series) -> tuple[float | None, str]:
    """The least speed-up, and a sentence, if one side was ended by the budget while the other finished.

    The speed-up is below 1 if the changed side was ended. None and "" if that did not happen.
    """
    changed = series.plan.variants[1].name
    finished = {name: [run.wall_s for run in series.of(name)] for name in (BEFORE, changed)}
    ended = {name: [r.wall_s for r in series.failures if r.variant == name and _cut(r)] for name in finished}
    for slow, fast in ((BEFORE, changed), (changed, BEFORE)):
        if ended[slow] and finished[fast] and not finished[slow]:
            times = min(ended[slow]) / max(finished[fast])
            if times <= 1:
                return None, ""
            said = (
                f"{slow!r} was ended after {duration(1e9 * min(ended[slow]))}, {fast!r} finished in "
                f"{duration(1e9 * max(finished[fast]))}."
            )
            more, factor = ("faster", times) if slow == BEFORE else ("slower", 1 / times)
            return factor, f"At least {times:.3g}x {more}: {said}"
    return None, ""


def _cut(run: Run) -> bool:
    return run.exit_code is None and "timeout" in run.failure


def working_folder(capture: Capture) -> Path:
    """Where the command was run; the current folder if that is gone."""
    place = Path(str(capture.facts.get("working_folder") or "."))
    return place if place.is_dir() else Path.cwd()


def _write(
    capture: Capture,
    number: int,
    found: Recommendation,
    verdict: Verdict | None,
    conclusion: str,
    about: dict[str, Any],
) -> Path | None:
    """Write the proof into the capture; None if that is not possible."""
    place = capture.path
    if place is None:
        return None
    file = place / f"proof-{number}.json" if place.is_dir() else place.with_suffix(f".proof-{number}.json")
    data = {
        "kind": "hotloop-proof",
        "schema_version": SCHEMA_VERSION,
        "recommendation": number,
        "name": found.name,
        "title": found.title,
        "predicted_speed_up": plain(found.gain),
        "measured_speed_up": plain(verdict.speed_up if verdict is not None else None),
        "verdict": plain(verdict),
        "conclusion": conclusion,
        **about,
        "at_s": time.time(),
    }
    try:
        write_atomically(file, strict_json(data, indent=1) + "\n")
    except OSError:
        return None
    return file
