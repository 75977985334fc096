"""`hotloop compare`: two ways to run something, in interleaved pairs, until the verdict is clear."""

from __future__ import annotations

import pstats
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hotloop._util.errors import HotloopError
from hotloop._util.files import write_atomically
from hotloop._util.units import parse_fraction
from hotloop.analysis.comparison import Comparison
from hotloop.analysis.profiled_functions import FunctionTime, function_changes, function_times
from hotloop.analysis.verdict import gate
from hotloop.capture.plan import (
    BUDGET_S,
    TOLERANCE,
    Plan,
    Variant,
    apply_overrides,
    fill_command,
    split_command,
)
from hotloop.capture.series import Series
from hotloop.lab import process
from hotloop.lab.run_plan import Workplace, seed_variables
from hotloop.report.pen import Pen
from hotloop.report.side_by_side import function_changes_text, functions_text
from hotloop.workflows.experiments import (
    ExperimentResult,
    Progress,
    create_series,
    resume_series,
    run_experiment,
    runners_for,
)
from hotloop.workflows.revisions import checked_out

REGRESSION, UNDECIDED = 3, 4
_PYTHON_OPTIONS_WITH_VALUE = {"-X", "-W", "--check-hash-based-pycs"}


@dataclass(frozen=True)
class Side:
    """How one side of the comparison is run."""

    command: str = ""  # a command line; "": the common command
    overrides: tuple[str, ...] = ()  # key=value, see capture.plan.apply_overrides
    variables: tuple[str, ...] = ()  # NAME=value
    revision: str = ""


@dataclass(frozen=True)
class ComparisonSettings:
    """How long a comparison may take and which differences matter."""

    budget_s: float | None = BUDGET_S
    timeout_s: float | None = None
    tolerance: float = TOLERANCE
    order_seed: int = 0
    record: bool = True
    resources: tuple[tuple[str, float], ...] = ()  # of a node, for one run on a cluster


def compare_plan(
    a: Side, b: Side, common: tuple[str, ...], settings: ComparisonSettings, selftest: bool = False
) -> Plan:
    """The plan for two sides; with `selftest` A is compared with itself."""
    if selftest and b != Side():
        raise HotloopError("--selftest compares A with itself; remove the options that describe B.")
    first = _variant("A", a, common)
    second = _variant("B", a if selftest else b, common or first.command)
    same = (first.command, first.environment, first.revision) == (
        second.command,
        second.environment,
        second.revision,
    )
    if same and not selftest:
        raise HotloopError(
            "A and B are the same command; say how they differ with --b, --set-b, --env-b or --rev-b, "
            "or measure the noise with --selftest."
        )
    return Plan(
        variants=(first, second),
        name="selftest: A against A" if selftest else "",
        budget_s=settings.budget_s,
        timeout_s=settings.timeout_s,
        tolerance=settings.tolerance,
        order_seed=settings.order_seed,
        record=settings.record,
        resources=settings.resources,
    )


def _variant(name: str, side: Side, common: tuple[str, ...]) -> Variant:
    before, command = split_command(side.command, f"The command of {name}") if side.command else ((), common)
    if not command:
        raise HotloopError(
            f"{name} has no command; pass one with --{name.lower()} 'python train.py', "
            "or one for both after --, as in: hotloop compare --set-b lr=1 -- python train.py"
        )
    return Variant(
        name=name,
        command=apply_overrides(command, side.overrides),
        overrides=side.overrides,
        environment=(*before, *(_variable(name, word) for word in side.variables)),
        revision=side.revision,
    )


def _variable(name: str, word: str) -> tuple[str, str]:
    key, given, value = word.partition("=")
    if not given or not key:
        raise HotloopError(f"--env-{name.lower()} {word!r} is not a variable; write it as NAME=value.")
    return key, value


def compare_commands(
    plan: Plan, folder: Path | None, progress: Progress, jobs: int = 1, on: str | None = None
) -> ExperimentResult:
    """Run the plan of a comparison in a new series, `jobs` pairs at a time, or on the cluster `on`."""
    with runners_for(jobs, on, plan.resources, progress) as runners, checked_out(plan.variants) as places:
        series = create_series(plan, folder, "compare", runners)
        return run_experiment(series, progress, places, runners)


def resume_comparison(
    folder: Path | None,
    progress: Progress,
    budget_s: float | None = None,
    jobs: int = 1,
    on: str | None = None,
) -> ExperimentResult:
    """Continue a comparison where it stopped."""
    series = resume_series(folder, budget_s, on)
    plan = series.plan
    with runners_for(jobs, on, plan.resources, progress) as runners, checked_out(plan.variants) as places:
        return run_experiment(series, progress, places, runners)


# -- --fail-if -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limit:
    """`--fail-if slower:3%` or `work:1%`."""

    what: Literal["slower", "work"]
    by: float  # fraction


def parse_limit(typed: str | None) -> Limit | None:
    """`slower:3%` or `work:1%`; None for None."""
    if typed is None:
        return None
    what, _, by = typed.partition(":")
    if what not in ("slower", "work") or not by:
        raise HotloopError(f"--fail-if is {typed!r}; write it as slower:3% or work:1%.")
    none = what == "work" and by.strip() in ("0", "0%")
    return Limit(what, 0.0 if none else parse_fraction(by, "The limit of --fail-if"))  # type: ignore[arg-type]


def exit_code(found: Comparison, limit: Limit | None) -> int:
    """0, or the exit code that `--fail-if` asks for; the worst variant counts."""
    if limit is None:
        return 0
    if limit.what == "work":
        if any(row.work is None for row in found.compared):
            return UNDECIDED  # no work was recorded
        changes = [w for row in found.compared for w in row.work or ()]
        return REGRESSION if any(w.ratio is None or abs(w.ratio - 1) > limit.by for w in changes) else 0
    words = [gate(row.verdict, limit.by) for row in found.compared]
    return REGRESSION if "regression" in words else UNDECIDED if "undecided" in words else 0


# -- --detailed ----------------------------------------------------------------------------------


def profile_functions(series: Series) -> tuple[str, list[Path]]:
    """`--detailed`: one more run of each variant under cProfile.

    Returns the difference as text (or why there is none), and the files written to the folder `detailed` of
    the series.
    """
    with checked_out(series.plan.variants) as places:
        return _profile_variants(series.plan, places, series.path)


def under_cprofile(command: list[str], output: Path) -> list[str] | str:
    """The command with cProfile around the script, or the reason why that is impossible."""
    if not re.fullmatch(r"(python|pypy)[\d.]*w?(\.exe)?", Path(command[0]).name):
        return f"{command[0]!r} is not a Python interpreter; write the command as python SCRIPT ..."
    at = 1
    while at < len(command) and command[at].startswith("-") and command[at] != "-m":
        if command[at].startswith("-c") or command[at] == "-":
            return "cProfile cannot run `python -c`; put the program into a file"
        at += 2 if command[at] in _PYTHON_OPTIONS_WITH_VALUE else 1
    if at >= len(command):
        return "the command has no script"
    return [*command[:at], "-m", "cProfile", "-o", str(output), *command[at:]]


def _profile_variants(
    plan: Plan, places: Mapping[str, Workplace], folder: Path | None
) -> tuple[str, list[Path]]:
    pen = Pen(width=110, unicode=False)
    texts: dict[str, str] = {}
    profiles: dict[str, list[FunctionTime]] = {}
    problems = []
    for variant in plan.variants:
        found = _profile(plan, variant, places[variant.name])
        if isinstance(found, str):
            problems.append(f"no cProfile report for {variant.name}: {found}.")
            continue
        profiles[variant.name] = found
        texts[_file_name(variant.name)] = functions_text(variant.name, found, pen)
    difference = ""
    base = plan.baseline.name
    for name, functions in profiles.items():
        if name != base and base in profiles:
            changes = function_changes(profiles[base], functions)
            texts[_file_name(f"{base}-{name}-difference")] = function_changes_text(base, name, changes, pen)
            difference = difference or function_changes_text(base, name, changes, pen, most=12)
    return "\n".join([difference, *problems]).strip(), _write_texts(folder, texts)


def _profile(plan: Plan, variant: Variant, place: Workplace) -> list[FunctionTime] | str:
    with tempfile.TemporaryDirectory(prefix="hotloop-cprofile-") as temporary:
        output = Path(temporary) / "profile"
        seed = plan.seed_of(0)
        command = under_cprofile(fill_command(variant.command, seed, plan.comparison_size), output)
        if isinstance(command, str):
            return command
        environment = {**place.environment, **seed_variables(seed), **dict(variant.environment)}
        outcome = process.run(process.Job(tuple(command), environment, place.folder, plan.timeout_s))
        if outcome.failure:
            last = outcome.stderr_tail.strip().splitlines()[-1:] or [""]
            return f"the run under cProfile failed ({outcome.failure}) {last[0]}".strip()
        if not output.is_file():
            return "the run wrote no profile"
        table = pstats.Stats(str(output)).stats  # type: ignore[attr-defined]
        return function_times(table)


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.=-]+", "-", name).strip("-.") + ".txt"


def _write_texts(folder: Path | None, texts: dict[str, str]) -> list[Path]:
    if folder is None or not texts:
        return []
    place = folder / "detailed"
    try:
        place.mkdir(exist_ok=True)
        for name, text in texts.items():
            write_atomically(place / name, text)
    except OSError as error:
        raise HotloopError(f"{place} cannot be written ({error.strerror}); make room for it.") from error
    return [place / name for name in texts]
