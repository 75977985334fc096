"""`hotloop compare`: two ways to run something, in interleaved pairs, until the verdict is clear."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hotloop._util.errors import HotloopError
from hotloop._util.units import parse_fraction
from hotloop.analysis.comparison import Comparison
from hotloop.analysis.verdict import gate
from hotloop.capture.plan import BUDGET_S, TOLERANCE, Plan, Variant, overridden, split_command
from hotloop.capture.series import Series
from hotloop.workflows.detailed import detailed
from hotloop.workflows.experiments import Done, Progress, begin, carry_out, lanes_for, resume
from hotloop.workflows.revisions import checked_out

REGRESSION, UNDECIDED = 3, 4


@dataclass(frozen=True)
class Side:
    """How one side of the comparison is run."""

    command: str = ""  # a command line; "": the common command
    overrides: tuple[str, ...] = ()  # key=value, see capture.plan.overridden
    variables: tuple[str, ...] = ()  # NAME=value
    revision: str = ""


@dataclass(frozen=True)
class Terms:
    """How long to look and what matters."""

    budget_s: float | None = BUDGET_S
    timeout_s: float | None = None
    tolerance: float = TOLERANCE
    order_seed: int = 0
    record: bool = True


@dataclass(frozen=True)
class Limit:
    """`--fail-if slower:3%` or `work:1%`."""

    what: Literal["slower", "work"]
    by: float  # fraction


def compare_plan(a: Side, b: Side, common: tuple[str, ...], terms: Terms, selftest: bool = False) -> Plan:
    """The plan for two sides; with `selftest` B is A again."""
    if selftest and b != Side():
        raise HotloopError("--selftest runs A against A; leave out what describes B.")
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
        budget_s=terms.budget_s,
        timeout_s=terms.timeout_s,
        tolerance=terms.tolerance,
        order_seed=terms.order_seed,
        record=terms.record,
    )


def _variant(name: str, side: Side, common: tuple[str, ...]) -> Variant:
    before, command = split_command(side.command, f"The command of {name}") if side.command else ((), common)
    if not command:
        raise HotloopError(
            f"{name} has no command; give one with --{name.lower()} 'python train.py', "
            "or one for both after --, as in: hotloop compare --set-b lr=1 -- python train.py"
        )
    return Variant(
        name=name,
        command=overridden(command, side.overrides),
        overrides=side.overrides,
        environment=(*before, *(_variable(name, word) for word in side.variables)),
        revision=side.revision,
    )


def _variable(name: str, word: str) -> tuple[str, str]:
    key, given, value = word.partition("=")
    if not given or not key:
        raise HotloopError(f"--env-{name.lower()} {word!r} is no variable; write it as NAME=value.")
    return key, value


def compare_commands(plan: Plan, folder: Path | None, progress: Progress, jobs: int = 1) -> Done:
    """Run the plan of a comparison in a new series, `jobs` pairs at a time."""
    lanes = lanes_for(jobs)
    with checked_out(plan.variants) as places:
        return carry_out(begin(plan, folder, "compare"), progress, places, lanes)


def compare_again(
    folder: Path | None, progress: Progress, budget_s: float | None = None, jobs: int = 1
) -> Done:
    """Go on with a comparison where it stopped."""
    series, lanes = resume(folder, budget_s), lanes_for(jobs)
    with checked_out(series.plan.variants) as places:
        return carry_out(series, progress, places, lanes)


def look_into(series: Series) -> tuple[str, list[Path]]:
    """`--detailed`: a run of each variant under cProfile; the difference, and the files written."""
    with checked_out(series.plan.variants) as places:
        return detailed(series.plan, places, series.path)


def limit_of(typed: str | None) -> Limit | None:
    """Read `slower:3%` or `work:1%`; None for None."""
    if typed is None:
        return None
    what, _, by = typed.partition(":")
    if what not in ("slower", "work") or not by:
        raise HotloopError(f"--fail-if is {typed!r}; write it as slower:3% or work:1%.")
    none = what == "work" and by.strip() in ("0", "0%")
    return Limit(what, 0.0 if none else parse_fraction(by, "The limit of --fail-if"))  # type: ignore[arg-type]


def exit_code(found: Comparison, limit: Limit | None) -> int:
    """0, or what `--fail-if` asks for; the worst of several variants counts."""
    if limit is None:
        return 0
    if limit.what == "work":
        if any(row.work is None for row in found.compared):
            return UNDECIDED  # nobody counted
        changes = [w for row in found.compared for w in row.work or ()]
        return REGRESSION if any(w.ratio is None or abs(w.ratio - 1) > limit.by for w in changes) else 0
    words = [gate(row.verdict, limit.by) for row in found.compared]
    return REGRESSION if "regression" in words else UNDECIDED if "undecided" in words else 0
