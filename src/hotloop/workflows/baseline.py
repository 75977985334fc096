"""`hotloop compare CAPTURE --baseline FILE`: compares a run with a stored one, for CI."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from hotloop._util import HOTLOOP_VERSION
from hotloop._util.conform import Misfit, conform
from hotloop._util.errors import HotloopError
from hotloop._util.files import write_atomically
from hotloop._util.read_files import Reader, json_text
from hotloop.analysis.comparison import Metric
from hotloop.analysis.verdict import Verdict, gate, judge_unpaired
from hotloop.analysis.work_counters import CounterChange, Counters, counter_changes, steady_counters
from hotloop.capture.facts import Machine
from hotloop.machine.facts import machine_facts
from hotloop.workflows.compare import REGRESSION, UNDECIDED, Limit
from hotloop.workflows.compare_captures import RecordedRuns, gather_runs

# Version history (raised when a reader of the old file would misread it):
#   1  first version; its kind was "hotloop baseline"
#   2  kind is "hotloop-baseline", and times are those of an "env_step"
KIND, VERSION = "hotloop-baseline", 2
_READABLE = (("hotloop baseline", 1), (KIND, VERSION))
_FILE = Reader(64 << 20, remedy="write it again with --update")


class _Baseline(TypedDict):
    """The file as it is read."""

    counters: dict[str, float]
    unsteady: list[str]
    times_s: dict[str, list[float]]
    machine: Machine


@dataclass(frozen=True)
class BaselineComparison:
    """Exact comparison of work counters and, if asked for, a verdict on times."""

    file: str
    counters: int  # number of counters compared
    changes: tuple[CounterChange, ...]
    unsteady: tuple[str, ...]  # counters that vary from run to run; left out
    metric: Metric
    time: Verdict | None  # None: not asked for
    warnings: tuple[str, ...]


def write_baseline(place: str, file: Path) -> int:
    """Store counters and times of the runs at `place`; returns the number of counters."""
    recorded = gather_runs(place, "A")
    counters = _counters(recorded, place)
    data = {
        "kind": KIND,
        "schema_version": VERSION,
        "hotloop_version": HOTLOOP_VERSION,
        "command": list(recorded.command),
        "machine": machine_facts(),
        "counters": counters.values,
        "unsteady": list(counters.unsteady),
        "times_s": _times(recorded),
    }
    try:
        write_atomically(file, json_text(data))
    except OSError as error:
        raise HotloopError(f"{file} cannot be written ({error.strerror}); choose another file.") from error
    return len(counters.values)


def compare_with_baseline(place: str, file: Path, tolerance: float, with_time: bool) -> BaselineComparison:
    """Compare the runs at `place` with a baseline file."""
    data = _read(file)
    recorded = gather_runs(place, "B")
    after = _counters(recorded, place)
    before = Counters({k: float(v) for k, v in data["counters"].items()}, tuple(data["unsteady"]))
    metric, verdict = _judge_times(data["times_s"], _times(recorded), tolerance)
    warnings = list(recorded.warnings)
    if with_time:
        warnings.append(
            "the baseline was timed earlier, so its times can only be compared on the same quiet machine; "
            "for a reliable verdict use --rev-a and --rev-b"
        )
        if data["machine"].get("cpu") != machine_facts()["cpu"]:
            warnings.append(f"the baseline was measured on another CPU: {data['machine'].get('cpu')}")
    return BaselineComparison(
        file=str(file),
        counters=len({*before.values, *after.values} - {*before.unsteady, *after.unsteady}),
        changes=counter_changes(before, after),
        unsteady=tuple(dict.fromkeys([*before.unsteady, *after.unsteady])),
        metric=metric,
        time=verdict if with_time else None,
        warnings=tuple(warnings),
    )


def baseline_exit_code(found: BaselineComparison, limit: Limit | None) -> int:
    """0, or the exit code that `--fail-if` asks for."""
    if limit is None:
        return 0
    if limit.what == "work":
        worse = [c for c in found.changes if c.change is None or abs(c.change) > limit.by]
        return REGRESSION if worse else 0
    word = gate(found.time, limit.by) if found.time is not None else "undecided"
    return {"regression": REGRESSION, "undecided": UNDECIDED, "passed": 0}[word]


def _counters(recorded: RecordedRuns, place: str) -> Counters:
    if not recorded.counters:
        raise HotloopError(
            f"The runs in {place} have no work counters; record them with hotloop run or hotloop.start()."
        )
    return steady_counters(recorded.counters)


def _times(recorded: RecordedRuns) -> dict[str, list[float]]:
    runs = recorded.runs
    found: dict[str, list[float | None]] = {
        "env_step": [r.figures.s_per_env_step for r in runs],
        "update": [r.figures.s_per_update for r in runs],
        "run": [r.wall_s for r in runs],
    }
    return {name: [v for v in values if v] for name, values in found.items() if all(values)}


def _judge_times(
    before: dict[str, list[float]], after: dict[str, list[float]], tolerance: float
) -> tuple[Metric, Verdict]:
    """Uses the finest metric that both sides have."""
    metrics: tuple[Metric, ...] = ("env_step", "update", "run")
    metric: Metric = next((m for m in metrics if before.get(m) and after.get(m)), "run")
    return metric, judge_unpaired(before.get(metric, []), after.get(metric, []), tolerance=tolerance)


def _read(file: Path) -> _Baseline:
    if not file.exists():
        raise HotloopError(f"The baseline {file} does not exist; write it with --update.")
    data = _FILE.read_object(file, lambda data: _check_version(data, file))
    try:
        found: _Baseline = conform(data, _Baseline, "the baseline")
    except Misfit as misfit:
        raise _FILE.fail(file, f"is damaged ({misfit})") from None
    # Version 1 wrote "env step".
    found["times_s"] = {name.replace(" ", "_"): times for name, times in found["times_s"].items()}
    numbers = [*found["counters"].values(), *(time for times in found["times_s"].values() for time in times)]
    if not all(0 <= number < 1e18 for number in numbers):
        raise _FILE.fail(file, "is damaged (a counter or a time makes no sense)")
    return found


def _check_version(data: Any, file: Path) -> None:
    kinds = [kind for kind, _ in _READABLE]
    if not isinstance(data, dict) or data.get("kind") not in kinds:
        raise HotloopError(f"{file} is not a baseline; write one with --baseline FILE --update.")
    if (data["kind"], data.get("schema_version")) not in _READABLE:
        raise HotloopError(
            f"{file} has baseline format {data.get('schema_version')!r}; hotloop reads 1 and {VERSION}, so "
            "write it again with --update."
        )
