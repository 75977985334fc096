"""`hotloop doctor`: what resources training gets on this machine, warnings, and settings to start from."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import fill

from hotloop._util.units import percent, size
from hotloop.cli.options import Flag
from hotloop.report.to_json import json_object, strict_json
from hotloop.workflows.doctor import Diagnosis, diagnose
from hotloop.workflows.selfcheck import Check, selfcheck

FAILED = 1


@dataclass(frozen=True)
class Arguments:
    """Show what resources training gets on this machine, what to fix, and which settings to start from."""

    selfcheck: Flag = False
    """Record a short run with known figures and check that they come out (exit code 1 if not)."""
    json: Flag = False
    """Print JSON instead of text."""


def run(arguments: Arguments) -> int:
    """Print the diagnosis, or the result of the self-check."""
    if arguments.selfcheck:
        checks = selfcheck()
        passed = all(check.passed for check in checks)
        if arguments.json:
            print(strict_json(json_object("selfcheck", {"passed": passed, "checks": checks})))
        else:
            print(_checks_text(checks, passed))
        return 0 if passed else FAILED
    diagnosis = diagnose()
    print(strict_json(json_object("doctor", diagnosis)) if arguments.json else _text(diagnosis))
    return 0


def _checks_text(checks: tuple[Check, ...], passed: bool) -> str:
    lines = [f"{'ok    ' if check.passed else 'FAILED'}  {check.what}: {check.figure}" for check in checks]
    words = (
        "The profiler works correctly on this machine."
        if passed
        else "The profiler gives wrong figures on this machine; please report it."
    )
    lines = [fill(line, 78, subsequent_indent=" " * 8) for line in lines]
    return "\n".join([*lines, "", words, "", "next: hotloop run train.py"])


def _text(diagnosis: Diagnosis) -> str:
    health = diagnosis.health
    threads = ", ".join(f"{name}={value}" for name, value in health.thread_variables.items()) or "not set"
    facts = (
        ("processor", health.cpu),
        ("cores", f"{health.cores_granted:g} granted of {health.cores_present or '?'} present"),
        ("memory", f"{size(health.memory_available_bytes)} free of {size(health.memory_bytes)}"),
        ("shared memory", f"{size(health.shared_memory_bytes)} free in /dev/shm"),
        ("GPU", ", ".join(health.accelerators) or "none found"),
        ("BLAS threads", threads),
        ("governor", health.governor or "unknown"),
        ("load", "unknown" if health.load_1min is None else f"{health.load_1min:.1f} in the last minute"),
        (
            "noise",
            f"{percent(health.noise_fraction)} (95th percentile of a fixed piece of work, over its median)",
        ),
        ("versions", ", ".join(f"{name} {version}" for name, version in diagnosis.versions.items())),
        ("tier", f"{diagnosis.tier}: {diagnosis.tier_meaning}"),
    )
    lines = ["This machine"]
    lines += [fill(f"  {name:<14} {value}", 78, subsequent_indent=" " * 17) for name, value in facts]
    lines += [
        "",
        "Warnings" if diagnosis.warnings else "No warnings.",
    ]
    for warning in diagnosis.warnings:
        lines.append(fill(f"  - {warning.problem}", 78, subsequent_indent="    "))
        lines.append(fill(f"    fix: {warning.remedy}", 78, subsequent_indent="         "))
    lines += ["", "Settings to start from (rules of thumb, not measured)"]
    lines += [
        fill(f"  {setting.name:<22} {setting.value!s:<6} {setting.reason}", 78, subsequent_indent=" " * 32)
        for setting in diagnosis.settings
    ]
    lines += ["", "Presets of hotloop train (--preset NAME)"]
    lines += [
        fill(f"  {name:<11} {words}", 78, subsequent_indent=" " * 14) for name, words in diagnosis.presets
    ]
    return "\n".join([*lines, "", "next: hotloop tune WORKLOAD, or hotloop run train.py"])
