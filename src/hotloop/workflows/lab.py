"""`hotloop lab`: runs a plan of suspects, sweeps and sizes and ranks them; writes a plan to start from."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import hotloop
from hotloop._util.errors import HotloopError
from hotloop._util.files import write_atomically
from hotloop.analysis.comparison import VariantComparison, best_combination, compare_series, rank_comparison
from hotloop.analysis.findings import Recommendation
from hotloop.analysis.ranking import RankedTable
from hotloop.analysis.scaling import Scaling, scaling_of
from hotloop.capture import series as store
from hotloop.capture.plan import Plan, Variant
from hotloop.capture.plan_file import read_plan
from hotloop.capture.series import Series
from hotloop.lab.run_plan import Workplace
from hotloop.workflows.experiments import (
    ExperimentResult,
    Progress,
    Runners,
    create_series,
    resume_series,
    run_experiment,
    runners_for,
)
from hotloop.workflows.report import report_on
from hotloop.workflows.revisions import checked_out

SHIPPED_PLANS = Path(hotloop.__file__).parent / "rl" / "workloads" / "plans"
COMBINATION = "combination"  # sub-folder of the series: pairs of the baseline and the combination
MIN_COMBINATION_SHARE = 0.25  # of the budget, if the suspects used it all
MAX_BY_HAND = 6  # recommendations listed in a new plan that need a change of code


@dataclass(frozen=True)
class Investigation:
    """The ranked suspects of a plan and how its time grows with size."""

    result: ExperimentResult
    table: RankedTable | None  # None for a plan that only has sizes
    scaling: Scaling | None


def investigate(
    file: Path,
    folder: Path | None,
    resumed: bool,
    progress: Progress,
    jobs: int = 1,
    on: str | None = None,
) -> Investigation:
    """Run a plan, `jobs` blocks at a time, in a new series or, with `resumed`, in the one in `folder`.

    `on` names a cluster whose nodes make the runs.
    """
    plan = find_plan(file)
    with runners_for(jobs, on, plan.resources if on else (), progress) as runners:
        return _investigate(plan, file, folder, resumed, progress, runners, on)


def _investigate(
    plan: Plan,
    file: Path,
    folder: Path | None,
    resumed: bool,
    progress: Progress,
    runners: Runners,
    on: str | None,
) -> Investigation:
    if resumed:
        series = resume_series(folder, on=on)
        if replace(series.plan, budget_s=plan.budget_s) != store.plan_without_secrets(plan):
            raise HotloopError(f"{file} is not the plan of the series in {folder}; start a new series.")
        series = replace(series, plan=plan)
    else:
        series = create_series(plan, folder, plan.name or file.stem, runners)
    with checked_out(plan.variants) as places:
        result = run_experiment(series, progress, places, runners)
        if result.outcome.ended not in ("interrupted", "disk") and result.comparison.compared:
            combined = _run_combination(result, places, progress, runners)
            if combined is not None and combined.interrupted:
                result = replace(result, outcome=replace(result.outcome, ended="interrupted"))
    table = None
    if result.comparison.compared:
        table = rank_comparison(result.comparison, read_combination(result.series))
    return Investigation(result, table, scaling_of(result.series))


def read_combination(series: Series) -> VariantComparison | None:
    """The verdict on the best combination of suspects; None if it was not run."""
    place = series.path / COMBINATION if series.path is not None else None
    if place is None or not store.is_series(place):
        return None
    found = compare_series(store.read(place))
    return found.compared[0] if found.compared[0].pairs else None


def _run_combination(
    result: ExperimentResult,
    places: Mapping[str, Workplace],
    progress: Progress,
    runners: Runners,
) -> ExperimentResult | None:
    """Compare the baseline with all clearly faster suspects together, in pairs."""
    series = result.outcome.series
    together = best_combination(compare_series(series))
    if together is None or series.path is None:
        return None
    places = {**places, together.name: places[series.plan.baseline.name]}
    folder = series.path / COMBINATION
    if store.is_series(folder):
        known, typed = store.read(folder), _pairs_plan(series, together)
        if store.plan_without_secrets(typed).variants == known.plan.variants:
            known = replace(known, plan=replace(known.plan, variants=typed.variants))
        return run_experiment(known, progress, places, runners)
    progress.note(f"together: {together.name}")
    pairs = create_series(_pairs_plan(series, together), folder, "", runners)
    return run_experiment(pairs, progress, places, runners)


def _pairs_plan(series: Series, together: Variant) -> Plan:
    plan = series.plan
    budget_s = plan.budget_s
    if budget_s is not None:
        budget_s = max(budget_s - series.spent_s, MIN_COMBINATION_SHARE * budget_s)
    return replace(
        plan,
        variants=(plan.baseline, together),
        kind="pairs",
        budget_s=budget_s,
        timeout_s=plan.timeout_s or plan.budget_s,
        sizes=(),
        size=plan.comparison_size,
    )


# -- plans that come with hotloop ----------------------------------------------------------------


def shipped_plans() -> list[str]:
    """Names of the plans that come with hotloop."""
    return sorted(file.stem for file in SHIPPED_PLANS.glob("*.toml"))


def find_plan(name: Path) -> Plan:
    """The plan in a file or, if there is no such file, the shipped plan of that name."""
    if name.suffix or name.parent != Path() or name.exists():
        return read_plan(name)
    if name.name not in shipped_plans():
        raise HotloopError(
            f"{name.name!r} is neither a file nor a plan that comes with hotloop; "
            f"name a file, or one of: {', '.join(shipped_plans())}."
        )
    plan = read_plan(SHIPPED_PLANS / f"{name.name}.toml")
    variants = (
        replace(v, command=(sys.executable, *v.command[1:])) if v.command[0] == "python" else v
        for v in plan.variants
    )
    return replace(plan, variants=tuple(variants))


# -- hotloop lab new -----------------------------------------------------------------------------

_HEAD = """\
# Suspects for: {shown}
# Run it with:  hotloop lab run {file}
# Every run is a fresh process. Each block runs the command as it is and every suspect once, in random
# order, with one seed ({{seed}} in the command, HOTLOOP_SEED and PYTHONHASHSEED in the environment).

name = {name}
command = {command}
budget = "10m"      # for all runs together
tolerance = "3%"    # ignore differences below this
# timeout = "5m"    # for one run
# seeds = [0, 1, 2] # one per block, reused in turn; default: 0, 1, 2, ...
"""
_DEFAULT = """
[[suspects]]
name = "one compute thread"
environment = { OMP_NUM_THREADS = "1", MKL_NUM_THREADS = "1" }
expected = "faster with small networks or many processes, slower with large ones"
safety = "safe"     # same results
"""
_TAIL = """
# Add your own: `set` changes settings in the command (--lr 0.001, lr=0.001 or {lr}).
# [[suspects]]
# name = "larger batches"
# set = { batch-size = 256 }
# expected = "faster by 10 %"
# safety = "semantic" # may change learning

# One setting over several values:
# [[sweeps]]
# setting = "n-envs"
# values = [1, 2, 4, 8]

# How time grows with size: write {n} in the command where the size goes.
# [scale]
# sizes = [1000, 2000, 4000]
# repeats = 3
"""


def new_plan(capture: str | None, file: Path, force: bool = False) -> int:
    """Write a plan for the script of a capture, its recommendations as suspects; returns their number."""
    if file.exists() and not force:
        raise HotloopError(f"{file} exists; choose another name, or replace it with --force.")
    run = report_on(capture)
    if not run.capture.command:
        raise HotloopError(f"{run.name} does not name the recorded command; write the plan by hand.")
    command = with_seed(run.capture.command)
    text, suspects = plan_text(command, file, run.findings.recommendations)
    try:
        write_atomically(file.absolute(), text)
    except OSError as error:
        raise HotloopError(f"{file} cannot be written ({error.strerror}); choose another file.") from error
    return suspects


def plan_text(command: list[str], file: Path, recommendations: tuple[Recommendation, ...]) -> tuple[str, int]:
    """The plan as commented TOML, and the number of suspects in it."""
    head = _HEAD.format(
        shown=_comment(shlex.join(command)),
        file=shlex.quote(str(file)),
        name=_quoted(file.stem),
        command="[" + ", ".join(_quoted(word) for word in command) + "]",
    )
    ready = [r for r in recommendations if _variables(r)]
    parts = [head, *(_suspect(r) for r in ready)] if ready else [head, _DEFAULT]
    flags = [r for r in recommendations if r.provable_by == "flag" and not _variables(r)]
    parts += [_flag(r) for r in flags]
    by_hand = [r for r in recommendations if r not in ready and r not in flags and r.name != "leave_alone"]
    if by_hand:
        lines = [f"# {_comment(r.title)} ({_comment(r.how_to_change)})" for r in by_hand[:MAX_BY_HAND]]
        parts.append("\n# These need a change of code; compare two revisions:\n" + "\n".join(lines) + "\n")
    return "".join([*parts, _TAIL]), max(len(ready), 1)


def with_seed(command: list[str]) -> list[str]:
    """The command with {seed} in place of its seed: `--seed 3`, `--seed=3` or `seed=3`."""
    words = list(command)
    for at, word in enumerate(words):
        if re.fullmatch(r"-{0,2}(random[_-])?seed=\d+", word):
            words[at] = word.partition("=")[0] + "={seed}"
        elif (
            re.fullmatch(r"--?(random[_-])?seed", word) and words[at + 1 : at + 2] and words[at + 1].isdigit()
        ):
            words[at + 1] = "{seed}"
    return words


def _variables(found: Recommendation) -> dict[str, str]:
    for variant in found.plan.get("variants", ()):
        if variant.get("environment"):
            return {str(k): str(v) for k, v in variant["environment"].items()}
    return {}


def _suspect(found: Recommendation) -> str:
    variables = ", ".join(f"{_quoted(k)} = {_quoted(v)}" for k, v in _variables(found).items())
    return (
        f"\n# {_comment(found.title)}\n[[suspects]]\nname = {_quoted(found.name)}\n"
        f"environment = {{ {variables} }}\nexpected = {_quoted(_expected(found))}\n"
        f"safety = {_quoted(_safety(found))}\n"
    )


def _flag(found: Recommendation) -> str:
    return (
        f"\n# {_comment(found.title)}: fill in the setting of your script.\n# [[suspects]]\n"
        f'# name = {_quoted(found.name)}\n# set = {{ FLAG = "VALUE" }}   # {_comment(found.how_to_change)}\n'
        f"# expected = {_quoted(_expected(found))}\n# safety = {_quoted(_safety(found))}\n"
    )


def _safety(found: Recommendation) -> str:
    """As plans have it: up to rounding counts as safe."""
    return "semantic" if found.safety == "semantic" else "safe"


def _expected(found: Recommendation) -> str:
    gain = found.gain
    return f"{gain.value:.2f}x [{gain.low:.2f}, {gain.high:.2f}]" if gain else "not predicted"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _comment(text: str) -> str:
    """Text from a capture, made safe for a comment line."""
    return "".join(c if c.isprintable() else " " for c in text)[:200]
