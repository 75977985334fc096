"""`hotloop compare`: runs A and B in turn until the verdict is clear."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hotloop._util.errors import HotloopError
from hotloop._util.files import write_atomically
from hotloop._util.units import parse_fraction, parse_seconds
from hotloop.cli.options import (
    Flag,
    Number,
    OnCluster,
    Repeated,
    Resources,
    on_words,
    option,
    parse_resources,
)
from hotloop.cli.output import note, pen_for_stdout
from hotloop.report.series_text import comparison_json, comparison_markdown, comparison_text
from hotloop.report.to_json import json_object, strict_json
from hotloop.report.verdict import counters_markdown, counters_text
from hotloop.workflows import baseline as baselines
from hotloop.workflows.baseline import BaselineComparison, baseline_exit_code, write_baseline
from hotloop.workflows.before_after import check_card, write_card
from hotloop.workflows.compare import (
    ComparisonSettings,
    Limit,
    Side,
    compare_commands,
    compare_plan,
    exit_code,
    parse_limit,
    profile_functions,
    resume_comparison,
)
from hotloop.workflows.compare_captures import compare_captures
from hotloop.workflows.experiments import ExperimentResult, Progress, exit_code_of

TAKES_COMMAND = COMMAND_IS_OPTIONAL = True

File = Annotated[Path | None, option("FILE")]


@dataclass(frozen=True)
class Arguments:
    """Find out which of two variants is faster, with an interval that holds on a noisy machine.

    Pass two commands (--a, --b), or one command after -- and what differs (--set-b, --env-b, --rev-b), or two
    existing captures. Each run is a fresh process; A and B take turns in random order.
    """

    captures: Annotated[tuple[str, ...], tyro.conf.Positional, option("[A B]")] = ()
    """Two existing captures, folders of captures or series to compare instead of running anything."""
    a: Annotated[str, option("COMMAND")] = ""
    """Command line of A; {seed} stands for the seed of the pair."""
    b: Annotated[str, option("COMMAND", "the command of A with the settings of B")] = ""
    """Command line of B."""
    set_a: Repeated = ()
    """Setting of A, as key=value or flag. Replaces --key or {key} in the command."""
    set_b: Repeated = ()
    """Setting of B."""
    env_a: Repeated = ()
    """Environment variable of A, as NAME=value."""
    env_b: Repeated = ()
    """Environment variable of B."""
    rev_a: Annotated[str, option("REVISION")] = ""
    """Git revision of this project for A."""
    rev_b: Annotated[str, option("REVISION")] = ""
    """Git revision of this project for B."""
    selftest: Flag = False
    """Compare A with itself: any difference found is noise."""
    budget: Annotated[str, option("TIME", "10m")] = ""
    """Time for all runs together, such as 2m."""
    timeout: Annotated[str, option("TIME", "the budget")] = ""
    """Time limit of a single run."""
    jobs: Number = 1
    """Number of pairs to run at the same time, each on its own cores; needs that many free cores."""
    on: OnCluster = None
    """Make the runs on the nodes of a Ray cluster, both runs of a pair on the same node."""
    resources: Resources = ()
    """Resource of a node that a run needs, as CPU=4."""
    tolerance: Annotated[str, tyro.conf.arg(metavar="PERCENT")] = "3%"
    """Ignore differences below this."""
    fail_if: Annotated[str | None, option("slower:PERCENT")] = None
    """Exit with 3 if B is slower by this much, with 4 if undecided; work:PERCENT checks work counters."""
    no_record: Flag = False
    """Only time whole processes; do not record them."""
    detailed: Flag = False
    """Run each side once more under cProfile and write the top 50 functions and what differs."""
    series: Annotated[Path | None, option("DIR", "hotloop-runs/<time>-compare")] = None
    """Folder for the runs."""
    resume: Flag = False
    """Continue the series in --series."""
    order_seed: Number = 0
    """Seed of the random order of A and B."""
    baseline: File = None
    """Compare the capture with this file: work counters exactly, times only with --time."""
    update: Flag = False
    """Write the baseline file instead of comparing."""
    time: Flag = False
    """Also compare times with the baseline."""
    markdown: File = None
    """Also write the result as Markdown, for a pull request."""
    card: File = None
    """Also write a before/after card to share: .html, .png or .svg."""
    json: Flag = False
    """Print the result as one JSON object."""
    command: tyro.conf.Suppress[tuple[str, ...]] = ()


def run(arguments: Arguments) -> int:
    limit = parse_limit(arguments.fail_if)
    check_card(arguments.card)
    if arguments.card is not None and (arguments.baseline is not None or arguments.captures):
        raise HotloopError("--card shows runs made in turn; it goes without captures and --baseline.")
    if arguments.baseline is not None:
        return compare_with_baseline(arguments, arguments.baseline, limit)
    if arguments.captures:
        return compare_existing(arguments, limit)
    return compare_runs(arguments, limit)


def check(arguments: Arguments) -> None:
    """Raise HotloopError for values that `run` would refuse; for programs that do something before it."""
    parse_limit(arguments.fail_if)
    check_card(arguments.card)
    comparison_settings(arguments)


def comparison_settings(arguments: Arguments) -> ComparisonSettings:
    """The settings of a comparison of runs; raises HotloopError for a value that cannot be read."""
    return ComparisonSettings(
        budget_s=parse_seconds(arguments.budget, "--budget")
        if arguments.budget
        else ComparisonSettings().budget_s,
        timeout_s=parse_seconds(arguments.timeout, "--timeout") if arguments.timeout else None,
        tolerance=parse_fraction(arguments.tolerance, "--tolerance"),
        order_seed=arguments.order_seed,
        record=not arguments.no_record,
        resources=parse_resources(arguments.resources),
    )


def compare_runs(arguments: Arguments, limit: Limit | None) -> int:
    if arguments.detailed and arguments.on is not None:
        raise HotloopError("--detailed profiles on this machine; remove it, or --on.")
    progress = Progress()
    if arguments.resume:
        budget_s = parse_seconds(arguments.budget, "--budget") if arguments.budget else None
        result = resume_comparison(arguments.series, progress, budget_s, arguments.jobs, arguments.on)
    else:
        settings = comparison_settings(arguments)
        a = Side(arguments.a, arguments.set_a, arguments.env_a, arguments.rev_a)
        b = Side(arguments.b, arguments.set_b, arguments.env_b, arguments.rev_b)
        plan = compare_plan(a, b, arguments.command, settings, arguments.selftest)
        result = compare_commands(plan, arguments.series, progress, arguments.jobs, arguments.on)
    show(arguments, result)
    if result.outcome.ended in ("interrupted", "failed", "disk"):
        return exit_code_of(result.outcome)
    if arguments.detailed:
        text, files = profile_functions(result.outcome.series)
        (note if arguments.json else print)(f"\n{text}")
        for file in files:
            note(f"wrote {file}")
    return exit_code(result.comparison, limit)


def show(arguments: Arguments, result: ExperimentResult) -> None:
    """Print the verdicts and what to run next."""
    if arguments.json:
        print(strict_json(comparison_json(result.series, result.comparison)))
    else:
        print(comparison_text(result.series, result.comparison, pen_for_stdout()))
    if arguments.markdown is not None:
        write(arguments.markdown, comparison_markdown(result.series, result.comparison))
    if arguments.card is not None:
        note(write_card(result.card(), arguments.card))
    note(result.outcome.summary)
    name = shlex.quote(str(result.series.path))
    where = on_words(arguments.on)
    if result.interrupted:
        note(f"next: hotloop compare --series {name} --resume{where}")
        return
    budget_s = result.series.plan.budget_s
    open_ = any(row.verdict.word == "undecided" for row in result.comparison.compared)
    if result.outcome.ended == "budget" and open_ and budget_s is not None:
        note(f"more pairs: hotloop compare --series {name} --resume{where} --budget {2 * budget_s:.0f}s")
    note(f"next: hotloop report {name}")


def compare_existing(arguments: Arguments, limit: Limit | None) -> int:
    if len(arguments.captures) != 2:
        odd = next((word for word in arguments.captures if "=" in word), None)
        if odd is not None:
            raise HotloopError(f"{odd!r} is not a capture; repeat the option: --set-a x=1 --set-a y=2.")
        raise HotloopError(
            f"{len(arguments.captures)} captures are named; name two, or one with --baseline FILE."
        )
    result = compare_captures(
        *arguments.captures, tolerance=parse_fraction(arguments.tolerance, "--tolerance")
    )
    for warning in result.warnings:
        note(f"warning: {warning}")
    if arguments.json:
        data = comparison_json(result.series, result.found)
        print(strict_json({**data, "warnings": list(result.warnings)}))
    else:
        print(comparison_text(result.series, result.found, pen_for_stdout()))
    if arguments.markdown is not None:
        write(arguments.markdown, comparison_markdown(result.series, result.found, result.warnings))
    return exit_code(result.found, limit)


def compare_with_baseline(arguments: Arguments, file: Path, limit: Limit | None) -> int:
    if len(arguments.captures) != 1:
        raise HotloopError("--baseline needs exactly one capture, folder of captures or series.")
    place = arguments.captures[0]
    if arguments.update:
        note(f"wrote {file}: {write_baseline(place, file)} counters")
        return 0
    with_time = arguments.time or (limit is not None and limit.what == "slower")
    found = baselines.compare_with_baseline(
        place, file, parse_fraction(arguments.tolerance, "--tolerance"), with_time
    )
    notes = baseline_notes(found)
    if arguments.json:
        print(strict_json({**json_object("baseline", found)}))
    else:
        print(counters_text(found.changes, found.counters, pen_for_stdout(), found.time, notes))
    if arguments.markdown is not None:
        write(arguments.markdown, counters_markdown(found.changes, found.counters, found.time, notes))
    return baseline_exit_code(found, limit)


def baseline_notes(found: BaselineComparison) -> list[str]:
    notes = list(found.warnings)
    if found.unsteady:
        names = ", ".join(found.unsteady[:5]) + (" ..." if len(found.unsteady) > 5 else "")
        notes.append(f"{len(found.unsteady)} counters vary from run to run and are left out: {names}")
    return notes


def write(file: Path, text: str) -> None:
    try:
        write_atomically(file.absolute(), text)
    except OSError as error:
        raise HotloopError(f"{file} cannot be written ({error.strerror}); choose another file.") from error
    note(f"wrote {file}")
