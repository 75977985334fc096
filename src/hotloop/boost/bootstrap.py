"""Called from `sitecustomize` in every process of a boosted script."""

from __future__ import annotations

import atexit
import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hotloop._util import strict_json
from hotloop._util.files import write_atomically
from hotloop.boost import active, install
from hotloop.instrument import process_facts, trial_patches
from hotloop.instrument.trial_patch import Place, TrialPatch, live_objects

BOOST_VARIABLE = "HOTLOOP_BOOST"  # JSON: the options of `hotloop boost`, or 1
TRIAL = "trial"  # an option: boost is off, and a patch of `hotloop try`
BACKGROUND = "background"  # an option: train unboosted until kernels are compiled
KEEP = "keep"  # an option: names of patches to apply when training begins
REPORT = "report"  # an option: the file for `Report`, in the script's own process


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What was put into one model, or into parts of plain torch of one shape, and what the audits found."""

    model: str
    """Name of its class."""
    boosted: str | None
    """What ran compiled, or None."""
    reason: str | None
    """Why the library's own code ran, at the end if not from the beginning."""
    gradient_steps: int
    """Made by kernels."""
    audits_passed: int
    audits_failed: int
    acting_audits_passed: int
    acting_audits_failed: int
    largest_mean_difference: float | None
    """Of the weights after an audited gradient step, in learning rates; None: infinite."""
    audit_s: float
    """Time spent on audits."""
    switched_at_env_step: int | None = None
    """Where kernels compiled in the background took over; None: they ran from the beginning, or never."""
    switched_at_n_updates: int | None = None
    """The same as the library logs it (`train/n_updates`)."""
    kind: str = "model"
    """model (of Stable-Baselines3), or of plain torch: module, optimizer, function."""
    calls: int = 0
    """Of a module or function, made by kernels."""
    left: dict[str, int] = field(default_factory=dict)
    """Calls that torch made itself, by reason."""


class BoostPatch(TrialPatch):
    """Boost as a patch of `hotloop try`, which switches it on and off while a script trains."""

    name = "boost"
    line = "hotloop.boost()"
    needs = ("import hotloop",)
    place: Place = "imports"
    why = (
        "Stable-Baselines3, or MLPs and Adam of plain torch, run on compiled kernels: the same random "
        "numbers and the same results up to rounding, checked while it trains. `hotloop boost` does the "
        "same without the line."
    )
    between_phases = True

    def skip_reason(self) -> str | None:
        """Why no model can be boosted; compiles the kernels of those that can."""
        module = sys.modules.get("stable_baselines3.common.base_class")
        models: list[Any] = live_objects(module.BaseAlgorithm) if module is not None else []
        if not models:
            parts = None if install.current is None else install.current.torch
            return "no model of Stable-Baselines3 is in use" if parts is None else parts.prepare()
        reasons = [install.prepare(model).record.reason for model in models]
        return None if None in reasons else reasons[0]

    def apply(self) -> None:
        active.is_paused = False

    def undo(self) -> None:
        active.is_paused = True


def boost_process() -> None:
    """Boost this process, and write the report when it ends if it is the script's own."""
    given = json.loads(os.environ.get(BOOST_VARIABLE) or "{}")
    options = given if isinstance(given, dict) else {}
    file = options.pop(REPORT, None)
    os.environ[BOOST_VARIABLE] = strict_json.dumps(options)
    if options.get(TRIAL):
        active.is_paused = True
        trial_patches.more_patches.append(BoostPatch)
    install.install()
    install.compile_in_background(bool(options.get(BACKGROUND)))
    install.keep(options.get(KEEP, ()))
    atexit.register(note_in_capture)
    if file is not None:
        atexit.register(_end_script, Path(file), os.getpid())


def reports() -> list[ModelReport]:
    """One for each model of this process that began to learn."""
    return [
        ModelReport(
            model=record.name,
            boosted=record.description or None,
            reason=record.reason,
            gradient_steps=record.gradient_steps,
            audits_passed=record.audits.passed,
            audits_failed=record.audits.failed,
            acting_audits_passed=record.acting_audits.passed,
            acting_audits_failed=record.acting_audits.failed,
            largest_mean_difference=strict_json.finite(record.audits.largest_mean_step),
            audit_s=record.audits.spent_s + record.acting_audits.spent_s,
            switched_at_env_step=record.switched_at_env_step,
            switched_at_n_updates=record.switched_at_n_updates,
            kind=record.kind,
            calls=record.calls,
            left=dict(record.left),
        )
        for record in active.history
    ]


def _end_script(file: Path, process: int) -> None:
    """Write the reports as JSON, unless this is a fork of the process that was to write them."""
    if os.getpid() == process:
        install.say_what_was_not_kept()
        write_atomically(file, strict_json.dumps([asdict(report) for report in reports()]))


def note_in_capture() -> None:
    """Write the reports into the capture, if this process is recorded."""
    if active.history:
        process_facts.note("boost", [asdict(report) for report in reports()])


def read_reports(text: str) -> list[ModelReport]:
    """What a script wrote at its end."""
    found: list[dict[str, Any]] = json.loads(text)
    return [ModelReport(**one) for one in found]
