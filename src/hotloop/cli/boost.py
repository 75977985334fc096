"""`hotloop boost`: runs an unmodified script of Stable-Baselines3 or plain torch on compiled kernels."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from hotloop.cli.options import Flag, option
from hotloop.cli.output import note
from hotloop.cli.run import exit_code
from hotloop.report.to_json import strict_json
from hotloop.workflows.boost import BoostedRun, run_boosted

TAKES_COMMAND = True
OPTIONS_WITH_VALUE = ("--keep",)
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Arguments:
    """Run an unmodified script on compiled learners, with the same random numbers and the same results up to
    rounding, checked against the library while it trains. For Stable-Baselines3, and for loops in plain torch
    with MLPs and Adam.

    What cannot be boosted runs as always; a line on stderr gives the reason.

    Examples:

        hotloop boost train.py --its arguments
        hotloop boost -m package.train
        hotloop boost --show -- python train.py --its arguments
    """

    show: Flag = False
    """At the end, print what was put into each model, or why not, and what the audits found."""
    keep: Annotated[Path | None, option("FILE")] = None
    """Apply the patches in this file, too, when training begins; hotloop try --save FILE writes it."""
    background: Flag = False
    """Start training unboosted while kernels are compiled, and switch over when they are ready. Two runs with
    the same seed then differ; where the switch was is printed and recorded."""
    json: Flag = False
    """Print the same as one JSON object; the script's stdout goes to stderr."""
    command: tyro.conf.Suppress[tuple[str, ...]] = ()


def run(arguments: Arguments) -> int:
    result = run_boosted(arguments.command, arguments.json, arguments.keep, arguments.background)
    if arguments.json:
        print(strict_json(as_json(result)))
    elif arguments.show:
        sys.stdout.flush()
        for line in as_text(result):
            note(line)
    if result.ran.exit_code and not result.ran.interrupted:
        note(f"hotloop: the script {result.ran.ending_as_predicate}")
    return exit_code(result.ran)


def as_json(result: BoostedRun) -> dict[str, object]:
    """The models and how the script ended; `models` is null when the script could not report."""
    models = None if result.models is None else [asdict(model) for model in result.models]
    script = {"exit_code": result.ran.exit_code, "ending": result.ran.ending}
    return {"schema_version": SCHEMA_VERSION, "models": models, "script": script}


def as_text(result: BoostedRun) -> list[str]:
    """A line or two for each model."""
    if result.models is None:
        return ["hotloop boost: the script was killed before it could report"]
    if not result.models:
        return [
            "hotloop boost: nothing to boost: no Stable-Baselines3 model began to learn, and no "
            "nn.Sequential or Adam of torch was used more than a few times"
        ]
    return [line for model in result.models for line in _about(model)]


def _about_torch(part: Any) -> list[str]:
    """Modules, optimizers and functions of plain torch."""
    name = f"{part.model} ({part.boosted})" if part.boosted else part.model
    if not part.calls and not part.gradient_steps:
        found = [f"hotloop boost: {name} ran unboosted: {part.reason or 'it was called too rarely'}"]
    else:
        made = {
            "module": f"{part.calls:,} forward and {part.gradient_steps:,} backward passes",
            "optimizer": f"{part.gradient_steps:,} steps",
        }.get(part.kind, f"{part.calls:,} calls")
        passed = part.audits_passed + part.acting_audits_passed
        failed = part.audits_failed + part.acting_audits_failed
        found = [
            f"hotloop boost: {name}: {made} compiled; audits: {passed} equal to torch's, {failed} failed, "
            f"{part.audit_s:.2f} s"
        ]
        if part.reason is not None:
            found.append(f"hotloop boost: {name} ended unboosted: {part.reason}")
    for reason, count in part.left.items():
        found.append(f"hotloop boost: {name}: {count:,} calls left to torch: {reason}")
    return found


def _about(model: Any) -> list[str]:
    if model.kind != "model":
        return _about_torch(model)
    if model.boosted is None or model.gradient_steps == 0:
        return [f"hotloop boost: {model.model} ran unboosted: {model.reason or 'it made no gradient step'}"]
    difference = model.largest_mean_difference
    apart = "infinite" if difference is None else f"{difference:.1g} learning rates"
    checks = (
        f"audits: {model.audits_passed} gradient steps and {model.acting_audits_passed} actions equal to the "
        f"library's (largest mean difference of weights: {apart}), "
        f"{model.audits_failed + model.acting_audits_failed} failed, {model.audit_s:.2f} s"
    )
    found = [
        f"hotloop boost: {model.model}: {model.gradient_steps} gradient steps compiled ({model.boosted})",
        f"hotloop boost: {model.model}: {checks}",
    ]
    if model.switched_at_env_step is not None:
        found.insert(
            1,
            f"hotloop boost: {model.model}: unboosted up to env step {model.switched_at_env_step:,} "
            f"(n_updates {model.switched_at_n_updates:,}), while its kernels were compiled",
        )
    if model.reason is not None:
        found.append(f"hotloop boost: {model.model} ended unboosted: {model.reason}")
    return found
