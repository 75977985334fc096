"""`hotloop tune`: finds the fastest settings for this machine and compares them with the current ones."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from hotloop._util.errors import CaptureError, HotloopError
from hotloop._util.files import write_atomically
from hotloop._util.units import duration
from hotloop.analysis.comparison import VariantComparison
from hotloop.capture.folder import new_folder
from hotloop.capture.plan import LOOKS, TOLERANCE, Plan, Variant
from hotloop.capture.reader import load
from hotloop.capture.series import Figures
from hotloop.lab.lanes import Node, NodeLost
from hotloop.lab.machine_lock import machine_lock
from hotloop.lab.process import Job, Outcome
from hotloop.lab.run_plan import seed_variables
from hotloop.machine.facts import machine_facts
from hotloop.report.to_json import strict_json
from hotloop.tuning.cache import Tuned as Tuned
from hotloop.tuning.cache import never_tuned, recall, remember
from hotloop.tuning.search import EXPLORE_SHARE, PROBES, Search, SearchResult, SearchTerms, probe_line
from hotloop.tuning.space import Settings as Settings
from hotloop.tuning.space import Space
from hotloop.tuning.space import words_of as words_of
from hotloop.tuning.time_model import Probe, split_phases
from hotloop.workflows.experiments import (
    HERE,
    ExperimentResult,
    Progress,
    Runners,
    create_series,
    interruptible,
    plain_environment,
    run_experiment,
)
from hotloop.workflows.probes import (
    REFUSED,
    Host,
    ProbeLength,
    Running,
    StartOnNode,
    ended_early,
    probe_figures,
)
from hotloop.workflows.run import recording_environment

SEARCH_SHARE = 0.5  # of the budget at most; the rest is for the comparison
LEAST_SEARCH_SHARE = 0.4
START_S = 4.0  # start-up of a run at most: the warm-up probe may have compiled for minutes
COMPARED = 2 * 11  # runs: two comparisons of five pairs (the first look), and a few more
PROBE_S = 2.0
LEAST_PROBE_S = 0.3
PROBES_IN_A_SEARCH = 30  # roughly: 12 to explore, 18 among the finalists
LEAST_TIMEOUT_S = 120.0  # the first run may compile
FEW_PROBES = 3  # fewer are not a search
LEAST_BUDGET_S = 5.0  # too short to compare anything in less
CURRENT, SAFE, ALL = "yours", "safe", "all"
BASE_NAMES = {CURRENT: "yours", SAFE: "the safe ones"}  # variants that others are compared with
ENV_STEP, UPDATE = "env step", "update"  # units of work

Decision = Literal["faster", "keep_yours", "undecided"]


class Target(Protocol):
    """What is tuned: a reference workload or a user's script."""

    name: str
    space: Space
    cycles: int
    """Cycles of collection and learning that a probe must complete, see `ProbeLength`."""
    warm_up_updates: int
    """First updates of a probe that are not counted, see `ProbeLength`."""
    compare_s: float
    """Longest work of one run of the comparison."""
    is_workload: bool
    """Whether it is a reference workload, which exits with 2 and one sentence if a setting is invalid."""

    def check(self) -> None:
        """Raise HotloopError if the current settings are invalid."""

    @property
    def base(self) -> dict[str, Any]:
        """Settings that are not tuned."""

    def changes(self, settings: Settings) -> dict[str, Any]:
        """Changes from the current settings, including dependent settings."""

    def command(self, settings: Settings) -> tuple[str, ...]:
        """Command line with these settings."""

    def command_for(self, changes: Mapping[str, Any]) -> tuple[str, ...]:
        """Command line to which --tuned adds these changes: flags would override them."""

    def variables(self, settings: Settings) -> tuple[tuple[str, str], ...]:
        """Environment variables of a run."""

    def fits(self, settings: Settings, probes: Sequence[Probe]) -> bool:
        """Whether the settings fit into memory."""

    def memory_bytes(self, settings: Settings, probes: Sequence[Probe]) -> int | None:
        """Memory of a run with these settings, predicted or measured; None if unknown."""

    def starter(self) -> AbstractContextManager[Any]:
        """Context that must be open while probes run."""

    def start(self, job: Job) -> Running:
        """Start one probe."""

    def run_on_nodes(self, start: StartOnNode, length: ProbeLength) -> Callable[[Job], Outcome]:
        """A function that makes one probe on a node of a cluster."""


@dataclass(frozen=True)
class TuneTerms:
    """Budget, tolerance and seed of a tuning."""

    budget_s: float = 120.0
    tolerance: float = TOLERANCE
    seed: int = 0


@dataclass(frozen=True)
class Tuning:
    """Result of `hotloop tune`."""

    target: Target
    searched: SearchResult
    folder: Path
    compared: tuple[ExperimentResult, ...]
    """Comparisons of the current settings with the best safe ones and the best of all; () if the search was
    interrupted or found nothing faster."""
    tuned: Tuned
    """What is cached, if the result is certain."""
    interrupted: bool = False
    failed: str = ""
    """Why the current settings could not be measured; "" if they could."""
    unit: str = ENV_STEP
    """Unit of the rates: env steps, or updates in a run without env steps."""
    node: str = ""
    """Node of a cluster where the search was made; "" on this machine."""

    def row(self, name: str) -> VariantComparison | None:
        """Comparison of a variant; None if it was not compared."""
        return _rows(self.compared).get(name)

    def decision(self, name: str) -> Decision:
        """What to do, by the verdict on a variant."""
        row = self.row(name)
        if row is None:
            return "keep_yours"
        if row.verdict.word == "undecided":
            return "undecided"
        return "faster" if row.verdict.word == "faster" else "keep_yours"


def tune(
    target: Target, terms: TuneTerms, folder: Path | None, progress: Progress, runners: Runners = HERE
) -> Tuning:
    """Search, compare the best with the current settings, cache the result if it is for this machine.

    On a cluster, all probes of a search are made on one node, because nodes differ; the comparison uses all.
    """
    if terms.budget_s < LEAST_BUDGET_S:
        raise HotloopError(
            f"--budget {terms.budget_s:.3g}s is too short to compare anything; give at least "
            f"{LEAST_BUDGET_S:.0f}s, and a few minutes for a verdict."
        )
    target.check()
    place = folder or new_folder(f"tune-{_short(target.name)}")
    if place.exists() and any(place.iterdir()):
        raise CaptureError(f"{place} is not empty; choose another folder with --probes.")
    try:
        (place / "probes").mkdir(parents=True)
    except OSError as error:
        raise CaptureError(f"{place} cannot be created ({error.strerror}); choose another folder.") from error
    longest_s = min(PROBE_S, 2 * target.compare_s)
    work_s = min(max(SEARCH_SHARE * terms.budget_s / PROBES_IN_A_SEARCH, LEAST_PROBE_S), longest_s)
    most_s = max(10 * work_s, 0.25 * terms.budget_s)
    length = ProbeLength(work_s, most_s, target.cycles, warm_up_updates=target.warm_up_updates)
    prober = Prober(target, place, length, progress, terms, runners=runners)
    try:
        with interruptible(), target.starter() if runners.nodes is None else contextlib.nullcontext() as host:
            if isinstance(host, Host):
                host.wait_until_ready()
            return replace(_tune(target, terms, place, progress, prober), node=prober.node)
    except KeyboardInterrupt:
        # outside the search and the comparison, which keep their own partial results
        return _interrupted(target, place, prober)


def tuned_before(target: str) -> Tuned:
    """Cached result for a target; HotloopError if there is none."""
    found = recall(target)
    if found is None:
        raise never_tuned(target)
    return found


def _short(name: str) -> str:
    """Name of the workload, or of the script without folder and extension."""
    words = name.split()
    return Path(next((word for word in words if word.endswith(".py")), words[0])).stem


def _tune(target: Target, terms: TuneTerms, place: Path, progress: Progress, prober: Prober) -> Tuning:
    while True:
        try:
            warm, searched = _search(target, terms, prober)
            break
        except NodeLost as lost:
            progress.note(f"{lost}; the search begins again on another node")
            if not prober.runners.lanes:
                raise HotloopError("All nodes were lost.") from None
    if warm.failure:
        return Tuning(target, searched, place, (), Tuned(target.name, target.base), failed=warm.failure)
    write_search(place, target.name, searched)
    if searched.interrupted:
        nothing_tuned = Tuned(target.name, target.base)
        return Tuning(target, searched, place, (), nothing_tuned, interrupted=True, unit=prober.unit)
    compared = _compare(target, terms, place, progress, prober, searched)
    tuned = tuned_from(target, searched, compared, prober.unit)
    interrupted = any(done.interrupted for done in compared)
    if not interrupted and _is_certain(searched, compared) and not prober.node:
        remember(tuned)
    return Tuning(target, searched, place, compared, tuned, interrupted, unit=prober.unit)


def _search(target: Target, terms: TuneTerms, prober: Prober) -> tuple[Probe, SearchResult]:
    """The warm-up probe, and the search if that one worked; raises NodeLost."""
    prober.choose_node()
    warm = prober.warm_up()
    if prober.refused:
        raise HotloopError(prober.refused)
    space = target.space
    if warm.failure:
        return warm, SearchResult(space, (warm,), None, space.current, space.current, 0, 0, 0.0)
    probe_s = min(warm.spent_s, prober.length.work_s + START_S)
    search_terms = SearchTerms(_search_s(terms, probe_s), prober.runners.room[0], seed=terms.seed)
    return warm, Search(space, prober.probe, search_terms, fits=target.fits, tell=prober.tell).run()


def _is_certain(searched: SearchResult, compared: Sequence[ExperimentResult]) -> bool:
    """Whether the result is worth caching: a verdict, or a full search that found nothing faster."""
    if compared:
        return any(row.verdict.word != "undecided" for row in _rows(compared).values())
    return not too_few_probes(searched)


def too_few_probes(searched: SearchResult) -> bool:
    """Whether the search had too little time to try anything else."""
    return len(searched.probes) < min(FEW_PROBES, searched.legal)


def write_search(place: Path, target: str, searched: SearchResult) -> None:
    """Save the search before the comparison starts."""
    data = {
        "kind": "hotloop-search",
        "schema_version": 2,
        "target": target,
        "machine": machine_facts(),
        **searched.as_json(),
    }
    try:
        write_atomically(place / "tuning.json", strict_json(data, indent=1) + "\n")
    except OSError as error:
        raise _cannot_write(place, error) from error


def _cannot_write(place: Path, error: OSError) -> HotloopError:
    return HotloopError(f"{place} cannot be written ({error.strerror}); choose another folder.")


def _search_s(terms: TuneTerms, probe_s: float) -> float:
    """Seconds for the search: half of the budget, or less if long probes need more for the comparison."""
    most, least = (share * terms.budget_s for share in (SEARCH_SHARE, LEAST_SEARCH_SHARE))
    return min(most, max(least, terms.budget_s - COMPARED * probe_s))


def budget_for(probe_s: float) -> float:
    """Budget in seconds for a search and a comparison with probes of this length."""
    return max(PROBES / EXPLORE_SHARE * probe_s / SEARCH_SHARE, COMPARED * probe_s / (1 - SEARCH_SHARE))


def _interrupted(target: Target, place: Path, prober: Prober) -> Tuning:
    space = target.space
    searched = SearchResult(space, tuple(prober.probes), None, space.current, space.current, 0, 0, 0.0, True)
    tuned = Tuned(target.name, target.base)
    return Tuning(target, searched, place, (), tuned, interrupted=True, unit=prober.unit)


def _compare(
    target: Target, terms: TuneTerms, place: Path, progress: Progress, prober: Prober, searched: SearchResult
) -> tuple[ExperimentResult, ...]:
    """Compare the best safe settings with the current ones, then the best of all with the faster of the two:
    changes that may affect learning must gain something beyond the safe ones."""
    space = searched.space
    wanted = {SAFE: searched.best_safe} | ({} if space.is_safe(searched.best) else {ALL: searched.best})
    wanted = {name: settings for name, settings in wanted.items() if settings != space.current}
    prober.length.work_s = min(prober.length.work_s, target.compare_s)
    left_s = max(terms.budget_s - searched.spent_s, (1 - SEARCH_SHARE) * terms.budget_s)
    compared: list[ExperimentResult] = []
    base = (CURRENT, space.current)
    for at, (name, settings) in enumerate(wanted.items()):
        progress.note(f"comparing with {BASE_NAMES[base[0]]}: {words_of(space.changed(settings))}")
        plan = Plan(
            variants=(_variant(target, *base), _variant(target, name, settings)),
            name=f"tune {_short(target.name)}: {words_of(space.changed(settings))}",
            seeds=tuple(range(terms.seed, terms.seed + LOOKS[-1])),
            budget_s=left_s / (len(wanted) - at),
            timeout_s=max(left_s, LEAST_TIMEOUT_S),
            tolerance=terms.tolerance,
            order_seed=terms.seed,
        )
        series = create_series(plan, place / f"compare-{name}", "tune", prober.runners)
        compared.append(
            run_experiment(
                series, progress, runners=prober.runners, read_figures=prober.figures, start=prober.run
            )
        )
        left_s -= compared[-1].series.spent_s
        if compared[-1].interrupted:
            break
        if _rows(compared)[name].verdict.word == "faster":
            base = (name, settings)
    return tuple(compared)


def _variant(target: Target, name: str, settings: Settings) -> Variant:
    safe = target.space.is_safe(settings)
    return Variant(
        name=name,
        command=target.command(settings),
        overrides=tuple(f"{key}={value}" for key, value in target.space.changed(settings)),
        environment=target.variables(settings),
        safety="safe" if safe else "semantic",
    )


def _rows(compared: Sequence[ExperimentResult]) -> dict[str, VariantComparison]:
    return {row.variant.name: row for done in compared for row in done.comparison.compared}


def tuned_from(
    target: Target, searched: SearchResult, compared: Sequence[ExperimentResult], unit: str = ENV_STEP
) -> Tuned:
    """What to cache: changes whose gain is certain, safe and semantic ones apart.

    Rates are cached only if they are env steps per second.
    """
    rows, space = _rows(compared), searched.space

    def gained(name: str) -> str:
        row = rows.get(name)
        return row.verdict.summary if row is not None and row.verdict.word == "faster" else ""

    def rate(settings: Settings) -> float | None:
        seconds = searched.measured_s(settings) if unit == ENV_STEP else None
        return 1 / seconds if seconds else None

    safe_gain, all_gain = gained(SAFE), gained(ALL)
    if safe_gain and all_gain:
        all_gain += f" than {BASE_NAMES[SAFE]}"
    changed = [name for name, _ in space.changed(searched.best) if space.knob(name).safety == "semantic"]
    return Tuned(
        target=target.name,
        base=target.base,
        safe=target.changes(searched.best_safe) if safe_gain else {},
        semantic=target.changes(searched.best) if all_gain else {},
        invariants=tuple(f"{name}: {space.knob(name).invariant}" for name in changed) if all_gain else (),
        safe_gain=safe_gain,
        semantic_gain=all_gain,
        rate_per_s=rate(searched.best_safe if safe_gain else space.current),
        semantic_rate_per_s=rate(searched.best) if all_gain else None,
    )


class Prober:
    """Runs probes, each in its own folder, and keeps their results."""

    def __init__(
        self,
        target: Target,
        place: Path,
        length: ProbeLength,
        progress: Progress,
        terms: TuneTerms,
        clock: Callable[[], float] = time.monotonic,
        runners: Runners = HERE,
    ):
        self.target, self.place, self.length, self.progress = target, place, length, progress
        self.runners = runners
        self.node = ""  # of a cluster, where all probes are made; "": here
        self.probes: list[Probe] = []
        self.unit = ENV_STEP
        self.refused = ""  # error message of the workload about an invalid setting
        self.run = (
            ended_early(target.start, length)
            if runners.start is None
            else target.run_on_nodes(runners.start, length)
        )
        self.figures = partial(probe_figures, warm_up_updates=target.warm_up_updates)
        self._timeout_s = max(terms.budget_s, LEAST_TIMEOUT_S)
        self._seed = terms.seed
        self._clock, self._began_s, self._budget_s = clock, clock(), terms.budget_s

    def choose_node(self) -> None:
        """Take a node for the probes that are to follow, if there is a cluster; earlier ones do not count."""
        lane = next(iter(self.runners.lanes), None)
        if isinstance(lane, Node):
            self.node = lane.name
            self.progress.note(f"searching on node {self.node}")
        self.probes.clear()

    def warm_up(self) -> Probe:
        """Run the current settings once, uncounted: compiles, fills caches, shows whether they work."""
        self.progress.note(f"warming up: {words_of(self.target.space.current)}")
        work_s, self.length.work_s = self.length.work_s, LEAST_PROBE_S
        try:
            made = self._made(self.target.space.current, "warm-up")
        finally:
            self.length.work_s = work_s
        if not made.failure and made.s_per_unit is None:
            return replace(
                made, failure="it reported no env steps and no updates, so there is nothing to measure"
            )
        return made

    def probe(self, settings: Settings) -> Probe:
        """Run one probe; a failure is also a result."""
        self.progress.show(f"trying {words_of(settings)}{self._spent()}{self._best_so_far()}")
        made = self._made(settings, f"{len(self.probes):03d}")
        self.probes.append(made)
        return made

    def tell(self, probe: Probe) -> None:
        """Print the result of a probe, and how much of the budget is spent."""
        self.progress.note(f"  probe {len(self.probes)}: {probe_line(probe, self.unit)}{self._spent()}")

    def _spent(self) -> str:
        return f", {duration((self._clock() - self._began_s) * 1e9)} of {duration(self._budget_s * 1e9)}"

    def _best_so_far(self) -> str:
        """`; best so far n_envs=32: 88,000 env steps/s`."""
        done = [probe for probe in self.probes if probe.s_per_unit]
        if not done:
            return ""
        return f"; best so far {probe_line(min(done, key=lambda p: p.s_per_unit or math.inf), self.unit)}"

    def _made(self, settings: Settings, name: str) -> Probe:
        folder = self.place / "probes" / name
        try:
            if folder.exists():  # of a search whose node was lost
                shutil.rmtree(folder)
            folder.mkdir()
        except OSError as error:
            raise _cannot_write(folder, error) from error
        capture = folder / "capture"
        environment = recording_environment(capture, plain_environment())
        job = Job(
            command=tuple(word.replace("{seed}", str(self._seed)) for word in self.target.command(settings)),
            environment=environment | seed_variables(self._seed) | dict(self.target.variables(settings)),
            folder=Path.cwd(),
            timeout_s=self._timeout_s,
            node=self.node,
        )
        with contextlib.nullcontext() if self.node else machine_lock(self.progress.note):
            outcome = self.run(job)
        made = self._read(settings, capture, outcome)
        try:
            write_atomically(folder / "probe.json", strict_json(dataclasses.asdict(made), indent=1) + "\n")
        except OSError as error:
            raise _cannot_write(folder, error) from error
        return made

    def _read(self, settings: Settings, capture: Path, outcome: Outcome) -> Probe:
        if outcome.failure:
            last = (outcome.stderr_tail.splitlines() or [""])[-1]
            self.refused = last if outcome.exit_code == REFUSED and self.target.is_workload else ""
            words = self.refused or f"{outcome.failure}. {last}".strip()
            return Probe(settings, None, spent_s=outcome.wall_s, failure=words)
        try:
            found, peaks = self.figures(capture), [p.rss_peak_bytes for p in load(capture).processes]
        except (CaptureError, OSError) as error:
            return Probe(
                settings, None, spent_s=outcome.wall_s, failure=f"its capture cannot be read: {error}"
            )
        self.unit = ENV_STEP if found.s_per_env_step else UPDATE
        per_unit = found.s_per_env_step or found.s_per_update
        return Probe(
            settings=settings,
            s_per_unit=per_unit,
            phases_s=split_phases(found.components_s),
            updates_per_unit=_updates_per_step(found),
            peak_bytes=sum(peak for peak in peaks if peak) or None,
            spent_s=outcome.wall_s,
            failure="" if per_unit else "it reported no env steps and no updates in the time of a probe",
        )


def _updates_per_step(found: Figures) -> float | None:
    if found.s_per_env_step and found.s_per_update:
        return found.s_per_env_step / found.s_per_update
    return None
