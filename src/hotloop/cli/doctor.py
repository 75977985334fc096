"""`hotloop doctor`: the machine, what is wrong with it for training, the settings to start from."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from textwrap import fill

from hotloop._util.units import percent, size
from hotloop.cli.options import Flag
from hotloop.workflows.doctor import Diagnosis, diagnose
from hotloop.workflows.selfcheck import Check, selfcheck

FAILED = 1


@dataclass(frozen=True)
class Arguments:
    """Say what this machine grants a training run, what is wrong with it, and where to start."""

    selfcheck: Flag = False
    """Record a short run whose figures are known and check that they come out (exit 1 if not)."""
    json: Flag = False
    """Print data instead of text."""


def run(arguments: Arguments) -> int:
    """Print the diagnosis, or the result of the self-check."""
    if arguments.selfcheck:
        checks = selfcheck()
        passed = all(check.passed for check in checks)
        if arguments.json:
            print(json.dumps({"schema_version": 1, "passed": passed, "checks": [asdict(c) for c in checks]}))
        else:
            print(_checks_text(checks, passed))
        return 0 if passed else FAILED
    diagnosis = diagnose()
    print(json.dumps(diagnosis.as_json()) if arguments.json else _text(diagnosis))
    return 0


def _checks_text(checks: tuple[Check, ...], passed: bool) -> str:
    lines = [f"{'ok    ' if check.passed else 'FAILED'}  {check.what}: {check.figure}" for check in checks]
    words = (
        "The profiler measures right here."
        if passed
        else "The profiler cannot be trusted here; please report it."
    )
    lines = [fill(line, 78, subsequent_indent=" " * 8) for line in lines]
    return "\n".join([*lines, "", words, "", "next: hotloop run train.py"])


def _text(diagnosis: Diagnosis) -> str:
    seen = diagnosis.health
    threads = ", ".join(f"{name}={value}" for name, value in seen.thread_variables.items()) or "not set"
    facts = (
        ("processor", seen.cpu),
        ("cores", f"{seen.cores_granted:g} granted of {seen.cores_present or '?'} present"),
        ("memory", f"{size(seen.memory_available_bytes)} free of {size(seen.memory_bytes)}"),
        ("shared memory", f"{size(seen.shared_memory_bytes)} free in /dev/shm"),
        ("accelerator", ", ".join(seen.accelerators) or "none seen"),
        ("BLAS threads", threads),
        ("governor", seen.governor or "not told by the system"),
        ("load", "not told" if seen.load_1min is None else f"{seen.load_1min:.1f} in the last minute"),
        ("noise", f"{percent(seen.noise_fraction)} (p95 of a fixed piece of work over its median)"),
        ("versions", ", ".join(f"{name} {version}" for name, version in diagnosis.versions.items())),
        ("tier", f"{diagnosis.tier}: {diagnosis.tier_means}"),
    )
    lines = ["This machine"]
    lines += [fill(f"  {name:<14} {value}", 78, subsequent_indent=" " * 17) for name, value in facts]
    lines += [
        "",
        "What is wrong with it for training" if diagnosis.complaints else "Nothing wrong was found.",
    ]
    for complaint in diagnosis.complaints:
        lines.append(fill(f"  - {complaint.what}", 78, subsequent_indent="    "))
        lines.append(fill(f"    do: {complaint.remedy}", 78, subsequent_indent="        "))
    lines += ["", "Settings to start from (by rule, not measured)"]
    lines += [
        fill(f"  {one.name:<22} {one.value!s:<6} {one.reason}", 78, subsequent_indent=" " * 32)
        for one in diagnosis.settings
    ]
    lines += ["", "Presets of hotloop train (--preset NAME)"]
    lines += [
        fill(f"  {name:<11} {words}", 78, subsequent_indent=" " * 14) for name, words in diagnosis.presets
    ]
    return "\n".join([*lines, "", "next: hotloop tune WORKLOAD, or hotloop run train.py"])
