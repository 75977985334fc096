"""`hotloop compare`: A against B, in turn, until the verdict is clear."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hotloop._util.errors import HotloopError
from hotloop._util.units import parse_fraction, parse_seconds
from hotloop.cli.output import note, pen_for_stdout
from hotloop.report.counters import counters_markdown, counters_text
from hotloop.report.series_text import comparison_json, comparison_markdown, comparison_text
from hotloop.report.to_json import plain
from hotloop.workflows.baseline import (
    AgainstBaseline,
    against_baseline,
    baseline_exit_code,
    write_baseline,
)
from hotloop.workflows.compare import (
    Limit,
    Side,
    Terms,
    compare_again,
    compare_commands,
    compare_plan,
    exit_code,
    limit_of,
    look_into,
)
from hotloop.workflows.existing import compare_existing
from hotloop.workflows.experiments import Done, Progress, exit_code_of

TAKES_COMMAND = True

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
Words = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]
Place = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]


@dataclass(frozen=True)
class Arguments:
    """Say which of two ways to run something is faster, with an interval that holds on a noisy machine.

    Give two commands (--a, --b), or one after -- with what differs (--set-b, --env-b, --rev-b), or two
    places with captures that exist. Each run is a fresh process; A and B take turns, in random order.
    """

    captures: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="CAPTURES")] = ()
    """Captures, folders of captures or series to compare instead of running anything: A and B."""
    a: Annotated[str, tyro.conf.arg(metavar="COMMAND")] = ""
    """Command line of A; {seed} in it is the seed of the pair."""
    b: Annotated[str, tyro.conf.arg(metavar="COMMAND")] = ""
    """Command line of B; that of A with other settings when not given."""
    set_a: Words = ()
    """A setting of A, as key=value or flag; may be repeated. Replaces --key or {key} in the command."""
    set_b: Words = ()
    """A setting of B."""
    env_a: Words = ()
    """An environment variable of A, as NAME=value; may be repeated."""
    env_b: Words = ()
    """An environment variable of B."""
    rev_a: str = ""
    """Git revision of this project to run A in."""
    rev_b: str = ""
    """Git revision of this project to run B in."""
    selftest: Flag = False
    """Run A against A: what is found then is noise."""
    budget: Annotated[str, tyro.conf.arg(metavar="TIME")] = ""
    """Time for all runs together, such as 2m; 10m when not given."""
    timeout: Annotated[str, tyro.conf.arg(metavar="TIME")] = ""
    """Time for one run; the budget when not given."""
    jobs: int = 1
    """Pairs to run at the same time, each on cores of its own; refused when there are too few free ones."""
    tolerance: Annotated[str, tyro.conf.arg(metavar="PERCENT")] = "3%"
    """Differences below this do not matter."""
    fail_if: Annotated[str | None, tyro.conf.arg(metavar="slower:PERCENT")] = None
    """Exit 3 when B is slower by this much, 4 when undecided; work:PERCENT for work counters."""
    no_record: Flag = False
    """Time whole processes only; do not make them record themselves."""
    detailed: Flag = False
    """One more run of each under cProfile: top 50 functions, and what differs."""
    series: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Where the runs are kept; hotloop-runs/<time>-compare when not given."""
    resume: Flag = False
    """Go on with the series in --series."""
    order_seed: int = 0
    """Seed of the coin flips."""
    baseline: Place = None
    """Hold the captures named against this file: work counters exactly, time with --time."""
    update: Flag = False
    """Write the baseline instead."""
    time: Flag = False
    """Compare times with the baseline, too."""
    markdown: Place = None
    """Also write the result as markdown, for a pull request."""
    json: Flag = False
    """Print the result as one JSON object."""
    command: tyro.conf.Suppress[tuple[str, ...]] = ()


def run(arguments: Arguments) -> int:
    """Compare, print, and return the exit code."""
    limit = limit_of(arguments.fail_if)
    if arguments.baseline is not None:
        return with_baseline(arguments, arguments.baseline, limit)
    if arguments.captures:
        return existing(arguments, limit)
    return commands(arguments, limit)


def commands(arguments: Arguments, limit: Limit | None) -> int:
    """Run both in turn."""
    progress = Progress()
    budget_s = parse_seconds(arguments.budget, "--budget") if arguments.budget else None
    if arguments.resume:
        done = compare_again(arguments.series, progress, budget_s, arguments.jobs)
    else:
        terms = Terms(
            budget_s=budget_s or Terms().budget_s,
            timeout_s=parse_seconds(arguments.timeout, "--timeout") if arguments.timeout else None,
            tolerance=parse_fraction(arguments.tolerance, "--tolerance"),
            order_seed=arguments.order_seed,
            record=not arguments.no_record,
        )
        a = Side(arguments.a, arguments.set_a, arguments.env_a, arguments.rev_a)
        b = Side(arguments.b, arguments.set_b, arguments.env_b, arguments.rev_b)
        plan = compare_plan(a, b, arguments.command, terms, arguments.selftest)
        done = compare_commands(plan, arguments.series, progress, arguments.jobs)
    show(arguments, done)
    if done.conducted.ended in ("interrupted", "failed", "disk"):
        return exit_code_of(done.conducted)
    if arguments.detailed:
        text, files = look_into(done.series)
        (note if arguments.json else print)(f"\n{text}")
        for file in files:
            note(f"wrote {file}")
    return exit_code(done.found, limit)


def show(arguments: Arguments, done: Done) -> None:
    """The result, and where it lies."""
    if arguments.json:
        print(json.dumps(comparison_json(done.series, done.found)))
    else:
        print(comparison_text(done.series, done.found, pen_for_stdout()))
    if arguments.markdown is not None:
        write(arguments.markdown, comparison_markdown(done.series, done.found))
    note(done.conducted.says)
    name = shlex.quote(str(done.series.path))
    if done.interrupted:
        note(f"next: hotloop compare --series {name} --resume")
        return
    budget_s = done.series.plan.budget_s
    open_ = any(row.verdict.word == "undecided" for row in done.found.compared)
    if done.conducted.ended == "budget" and open_ and budget_s is not None:
        note(f"more pairs: hotloop compare --series {name} --resume --budget {2 * budget_s:.0f}s")
    note(f"next: hotloop report {name}")


def existing(arguments: Arguments, limit: Limit | None) -> int:
    """Compare what was recorded before."""
    if len(arguments.captures) != 2:
        odd = next((word for word in arguments.captures if "=" in word), None)
        if odd is not None:
            raise HotloopError(f"{odd!r} is no capture; repeat the option for each: --set-a x=1 --set-a y=2.")
        raise HotloopError(
            f"{len(arguments.captures)} captures are named; name two, or one and --baseline FILE."
        )
    result = compare_existing(
        *arguments.captures, tolerance=parse_fraction(arguments.tolerance, "--tolerance")
    )
    for warning in result.warnings:
        note(f"warning: {warning}")
    if arguments.json:
        data = comparison_json(result.series, result.found)
        print(json.dumps({**data, "warnings": list(result.warnings)}))
    else:
        print(comparison_text(result.series, result.found, pen_for_stdout()))
    if arguments.markdown is not None:
        write(arguments.markdown, comparison_markdown(result.series, result.found, result.warnings))
    return exit_code(result.found, limit)


def with_baseline(arguments: Arguments, file: Path, limit: Limit | None) -> int:
    """Against a file kept in the project."""
    if len(arguments.captures) != 1:
        raise HotloopError("--baseline needs one capture, folder of captures or series to look at.")
    place = arguments.captures[0]
    if arguments.update:
        note(f"wrote {file}: {write_baseline(place, file)} counters")
        return 0
    with_time = arguments.time or (limit is not None and limit.what == "slower")
    found = against_baseline(place, file, parse_fraction(arguments.tolerance, "--tolerance"), with_time)
    notes = baseline_notes(found)
    if arguments.json:
        print(json.dumps({"kind": "hotloop baseline comparison", "schema_version": 1, **plain(found)}))
    else:
        print(counters_text(found.changes, found.counters, pen_for_stdout(), found.time, notes))
    if arguments.markdown is not None:
        write(arguments.markdown, counters_markdown(found.changes, found.counters, found.time, notes))
    return baseline_exit_code(found, limit)


def baseline_notes(found: AgainstBaseline) -> list[str]:
    """What should be known beside the counters."""
    notes = list(found.warnings)
    if found.unsteady:
        names = ", ".join(found.unsteady[:5]) + (" ..." if len(found.unsteady) > 5 else "")
        notes.append(f"{len(found.unsteady)} counters differ from run to run and are left out: {names}")
    return notes


def write(file: Path, text: str) -> None:
    """Write a small file, or say in one sentence why not."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise HotloopError(f"{file} cannot be written ({error.strerror}); choose another place.") from error
    note(f"wrote {file}")
