"""`--detailed`: one more run of each variant under cProfile, and the difference of the two."""

from __future__ import annotations

import pstats
import re
import tempfile
from pathlib import Path

from hotloop.analysis.profiled_functions import FunctionTime, function_changes, function_times
from hotloop.capture.plan import Plan, Variant, filled
from hotloop.lab import process
from hotloop.lab.conduct import seed_variables
from hotloop.report.functions import changes_text, functions_text
from hotloop.report.pen import Pen
from hotloop.workflows.experiments import Places, plain_environment

_WITH_VALUE = {"-X", "-W", "--check-hash-based-pycs"}


def under_cprofile(command: list[str], output: Path) -> list[str] | str:
    """The command with cProfile around the script, or a sentence why that cannot be."""
    if not re.fullmatch(r"(python|pypy)[\d.]*w?(\.exe)?", Path(command[0]).name):
        return f"{command[0]!r} is not a Python interpreter; write the command as python SCRIPT ..."
    at = 1
    while at < len(command) and command[at].startswith("-") and command[at] != "-m":
        if command[at].startswith("-c") or command[at] == "-":
            return "cProfile cannot run `python -c`; put the program into a file"
        at += 2 if command[at] in _WITH_VALUE else 1
    if at >= len(command):
        return "there is no script in the command"
    return [*command[:at], "-m", "cProfile", "-o", str(output), *command[at:]]


def detailed(plan: Plan, places: Places, folder: Path | None) -> tuple[str, list[Path]]:
    """cProfile reports of each variant and the difference; written to `folder`/detailed when given.

    Returns the text of the difference (or why there is none), and the files written.
    """
    pen = Pen(width=110, unicode=False)
    texts: dict[str, str] = {}
    profiles: dict[str, list[FunctionTime]] = {}
    problems = []
    for variant in plan.variants:
        found = _profile(plan, variant, places)
        if isinstance(found, str):
            problems.append(f"no cProfile report for {variant.name}: {found}.")
            continue
        profiles[variant.name] = found
        texts[_file_name(variant.name)] = functions_text(variant.name, found, pen)
    difference = ""
    base = plan.baseline.name
    for name, functions in profiles.items():
        if name != base and base in profiles:
            text = changes_text(base, name, function_changes(profiles[base], functions), pen)
            texts[_file_name(f"{base}-{name}-difference")] = text
            difference = difference or changes_text(
                base, name, function_changes(profiles[base], functions), pen, most=12
            )
    return "\n".join([difference, *problems]).strip(), _written(folder, texts)


def _profile(plan: Plan, variant: Variant, places: Places) -> list[FunctionTime] | str:
    size = plan.size if plan.size is not None else plan.sizes[0] if plan.sizes else None
    with tempfile.TemporaryDirectory(prefix="hotloop-cprofile-") as temporary:
        output = Path(temporary) / "profile"
        command = under_cprofile(filled(variant.command, plan.seed_of(0), size), output)
        if isinstance(command, str):
            return command
        environment = (
            plain_environment(places.python_path_of(variant))
            | seed_variables(plan.seed_of(0))
            | dict(variant.environment)
        )
        job = process.Job(tuple(command), environment, places.folder_of(variant), plan.timeout_s)
        outcome = process.run(job)
        if outcome.failure:
            last = outcome.stderr_tail.strip().splitlines()[-1:] or [""]
            return f"the run under cProfile failed ({outcome.failure}) {last[0]}".strip()
        if not output.is_file():
            return "the run wrote no profile"
        table = pstats.Stats(str(output)).stats  # type: ignore[attr-defined]
        return function_times(table)


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.=-]+", "-", name).strip("-.") + ".txt"


def _written(folder: Path | None, texts: dict[str, str]) -> list[Path]:
    if folder is None or not texts:
        return []
    place = folder / "detailed"
    place.mkdir(exist_ok=True)
    files = []
    for name, text in texts.items():
        (place / name).write_text(text, encoding="utf-8")
        files.append(place / name)
    return files
