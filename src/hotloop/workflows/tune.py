"""`hotloop tune`: the fastest settings for this machine, measured, and compared with those in use."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from hotloop._util.errors import CaptureError, HotloopError
from hotloop._util.files import write_atomically
from hotloop.analysis.comparison import VariantComparison
from hotloop.capture.folder import new_folder
from hotloop.capture.plan import LOOKS, TOLERANCE, Plan, Variant
from hotloop.capture.reader import load
from hotloop.capture.series import Figures
from hotloop.lab.machine_lock import machine_lock
from hotloop.lab.process import Job, Outcome
from hotloop.lab.run_plan import seed_variables
from hotloop.machine.facts import cores_granted
from hotloop.tuning.cache import Tuned, remember
from hotloop.tuning.model import Probe, split_phases
from hotloop.tuning.search import EXPLORE_SHARE, PROBES, Search, Searched, Terms, says
from hotloop.tuning.space import Settings as Settings
from hotloop.tuning.space import Space
from hotloop.tuning.space import words_of as words_of
from hotloop.workflows.experiments import (
    ExperimentResult,
    Progress,
    create_series,
    interruptible,
    plain_environment,
    run_experiment,
)
from hotloop.workflows.probes import REFUSED, Patience, Running, measured, watched
from hotloop.workflows.run import recording_environment
from hotloop.workflows.tune_record import write_search

SEARCH_SHARE = 0.5  # of the budget, at most; the rest is for the comparison
LEAST_SEARCH_SHARE = 0.4
START_S = 4.0  # of a run, at most: the warm-up may have compiled for minutes
COMPARED = 2 * 11  # runs: two comparisons of five pairs, the first look, and a little more
PROBE_S = 2.0
LEAST_PROBE_S = 0.3
PROBES_IN_A_SEARCH = 30  # about: 12 before the finalists, 18 among them
LEAST_TIMEOUT_S = 120.0  # the first run may have to compile
FEW_PROBES = 3  # fewer are no search
LEAST_BUDGET_S = 5.0  # in less nothing can be compared, however fast the program starts
CURRENT, SAFE, ALL = "yours", "safe", "all"
SAYS_BASE = {CURRENT: "yours", SAFE: "the safe ones"}  # with what others are compared
ENV_STEP, UPDATE = "env step", "update"  # what a rate may be of

Decision = Literal["faster", "keep yours", "undecided"]


class Target(Protocol):
    """What is tuned: a workload of ours or a script of the user's."""

    name: str
    space: Space
    cycles: int
    """Whole cycles a probe must show, see `Patience`."""
    settling: int
    """Updates of a probe that do not count, see `Patience`."""
    compare_s: float
    """Seconds of work of a run of the comparison, at most."""
    own_words: bool
    """Whether exit code 2 means that a sentence of ours on stderr says what is wrong with the settings."""

    def check(self) -> None:
        """HotloopError when there is nothing to probe."""

    @property
    def base(self) -> dict[str, Any]:
        """What is not tuned."""

    def changes(self, settings: Settings) -> dict[str, Any]:
        """What differs from the current settings, with what follows from them."""

    def command(self, settings: Settings) -> tuple[str, ...]:
        """What a person would type."""

    def command_for(self, changes: Mapping[str, Any]) -> tuple[str, ...]:
        """What a person would type who takes these changes from tuning: all but them."""

    def variables(self, settings: Settings) -> tuple[tuple[str, str], ...]:
        """Environment variables of a run."""

    def fits(self, settings: Settings, probes: Sequence[Probe]) -> bool:
        """Whether memory allows the settings."""

    def memory_bytes(self, settings: Settings, probes: Sequence[Probe]) -> int | None:
        """What a run with these settings holds, planned or measured; None when that is not known."""

    def starter(self) -> AbstractContextManager[Any]:
        """What must be there while probes are made."""

    def start(self, job: Job) -> Running:
        """Start one probe."""


@dataclass(frozen=True)
class TuneTerms:
    """How long to search and what matters."""

    budget_s: float = 120.0
    tolerance: float = TOLERANCE
    seed: int = 0


@dataclass(frozen=True)
class Tuning:
    """All that tuning found."""

    target: Target
    searched: Searched
    folder: Path
    compared: tuple[ExperimentResult, ...]
    """Yours against the best safe settings and the best of all; () when the search ended at those in use, or
    was cut short."""
    tuned: Tuned
    """What was found, and remembered where it is certain."""
    interrupted: bool = False
    failed: str = ""
    """Why the current settings could not be measured; "" when they could."""
    unit: str = ENV_STEP
    """What rates are of: env steps, or updates of a run that makes none."""

    def row(self, name: str) -> VariantComparison | None:
        """The verdict on a variant, where it was compared."""
        return _rows(self.compared).get(name)

    def decision(self, name: str) -> Decision:
        """What the verdict means for the user."""
        row = self.row(name)
        if row is None:
            return "keep yours"
        if row.verdict.word == "undecided":
            return "undecided"
        return "faster" if row.verdict.word == "faster" else "keep yours"


def tune(target: Target, terms: TuneTerms, folder: Path | None, progress: Progress) -> Tuning:
    """Search, compare with the current settings, remember the result."""
    if terms.budget_s < LEAST_BUDGET_S:
        raise HotloopError(
            f"--budget is {terms.budget_s:.3g} s, too short to compare anything; give at least "
            f"{LEAST_BUDGET_S:.0f}s, and some minutes for a verdict."
        )
    target.check()
    place = folder or new_folder(f"tune-{_short(target.name)}")
    if place.exists() and any(place.iterdir()):
        raise CaptureError(f"{place} is not empty; choose another place with --probes.")
    try:
        (place / "probes").mkdir(parents=True)
    except OSError as error:
        raise CaptureError(f"{place} cannot be made ({error.strerror}); choose another place.") from error
    longest_s = min(PROBE_S, 2 * target.compare_s)
    work_s = min(max(SEARCH_SHARE * terms.budget_s / PROBES_IN_A_SEARCH, LEAST_PROBE_S), longest_s)
    most_s = max(10 * work_s, 0.25 * terms.budget_s)
    patience = Patience(work_s, most_s, target.cycles, settling=target.settling)
    prober = Prober(target, place, patience, progress, terms)
    try:
        with interruptible(), target.starter():
            return _tune(target, terms, place, progress, prober)
    except KeyboardInterrupt:
        # before or between the parts that keep what they have themselves
        return _interrupted(target, place, prober)


def _short(name: str) -> str:
    """The workload, or the script without its folder and ending."""
    words = name.split()
    return Path(next((word for word in words if word.endswith(".py")), words[0])).stem


def _tune(target: Target, terms: TuneTerms, place: Path, progress: Progress, prober: Prober) -> Tuning:
    warm = prober.warm_up()
    if prober.refused:
        raise HotloopError(prober.refused)
    if warm.failure:
        nothing = Searched(target.space, (warm,), None, target.space.current, target.space.current, 0, 0, 0.0)
        return Tuning(target, nothing, place, (), Tuned(target.name, target.base), failed=warm.failure)
    search = Search(
        target.space,
        prober.probe,
        Terms(
            _search_s(terms, min(warm.spent_s, prober.patience.work_s + START_S)),
            cores_granted(),
            seed=terms.seed,
        ),
        fits=target.fits,
        tell=lambda probe: progress.note(f"  probe {len(prober.probes)}: {says(probe, prober.unit)}"),
    )
    searched = search.run()
    write_search(place, target.name, searched)
    if searched.interrupted:
        nothing_tuned = Tuned(target.name, target.base)
        return Tuning(target, searched, place, (), nothing_tuned, interrupted=True, unit=prober.unit)
    compared = _compare(target, terms, place, progress, prober, searched)
    tuned = verdict_of(target, searched, compared, prober.unit)
    interrupted = any(done.interrupted for done in compared)
    if not interrupted and _is_certain(searched, compared):
        remember(tuned)
    return Tuning(target, searched, place, compared, tuned, interrupted, unit=prober.unit)


def _is_certain(searched: Searched, compared: Sequence[ExperimentResult]) -> bool:
    """Whether there is a result to remember: a verdict, or a search with time that ended where it began."""
    if compared:
        return any(row.verdict.word != "undecided" for row in _rows(compared).values())
    return not too_few_probes(searched)


def too_few_probes(searched: Searched) -> bool:
    """Whether a search that ended where it began says nothing: there was no time to look elsewhere."""
    return len(searched.probes) < min(FEW_PROBES, searched.legal)


def _search_s(terms: TuneTerms, probe_s: float) -> float:
    """Time for the search: half, or less where long runs leave too little for a comparison."""
    most, least = (share * terms.budget_s for share in (SEARCH_SHARE, LEAST_SEARCH_SHARE))
    return min(most, max(least, terms.budget_s - COMPARED * probe_s))


def budget_for(probe_s: float) -> float:
    """Seconds in which probes that take so long make a search and a comparison."""
    return max(PROBES / EXPLORE_SHARE * probe_s / SEARCH_SHARE, COMPARED * probe_s / (1 - SEARCH_SHARE))


def _interrupted(target: Target, place: Path, prober: Prober) -> Tuning:
    space = target.space
    searched = Searched(space, tuple(prober.probes), None, space.current, space.current, 0, 0, 0.0, True)
    tuned = Tuned(target.name, target.base)
    return Tuning(target, searched, place, (), tuned, interrupted=True, unit=prober.unit)


def _compare(
    target: Target, terms: TuneTerms, place: Path, progress: Progress, prober: Prober, searched: Searched
) -> tuple[ExperimentResult, ...]:
    """Yours in pairs with the best safe settings, nothing where that is yours; then with the best of all, or
    that with the safe ones where they won: what may change learning must gain something beyond them."""
    space = searched.space
    wanted = {SAFE: searched.best_safe} | ({} if space.is_safe(searched.best) else {ALL: searched.best})
    wanted = {name: settings for name, settings in wanted.items() if settings != space.current}
    prober.patience.work_s = min(prober.patience.work_s, target.compare_s)
    left_s = max(terms.budget_s - searched.spent_s, (1 - SEARCH_SHARE) * terms.budget_s)
    compared: list[ExperimentResult] = []
    base = (CURRENT, space.current)
    for at, (name, settings) in enumerate(wanted.items()):
        progress.note(f"comparing with {SAYS_BASE[base[0]]}: {words_of(space.changed(settings))}")
        plan = Plan(
            variants=(_variant(target, *base), _variant(target, name, settings)),
            name=f"tune {_short(target.name)}: {words_of(space.changed(settings))}",
            seeds=tuple(range(terms.seed, terms.seed + LOOKS[-1])),
            budget_s=left_s / (len(wanted) - at),
            timeout_s=max(left_s, LEAST_TIMEOUT_S),
            tolerance=terms.tolerance,
            order_seed=terms.seed,
        )
        series = create_series(plan, place / f"compare-{name}", "tune")
        compared.append(run_experiment(series, progress, read_figures=prober.measured, start=prober.run))
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


def verdict_of(
    target: Target, searched: Searched, compared: Sequence[ExperimentResult], unit: str = ENV_STEP
) -> Tuned:
    """What is remembered: settings whose gain is certain, apart by whether they may change learning.

    Rates are remembered where they are of env steps.
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
        all_gain += f" than {SAYS_BASE[SAFE]}"
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
    """Makes probes, each in a folder of its own, and keeps what they gave."""

    def __init__(self, target: Target, place: Path, patience: Patience, progress: Progress, terms: TuneTerms):
        self.target, self.place, self.patience, self.progress = target, place, patience, progress
        self.probes: list[Probe] = []
        self.unit = ENV_STEP
        self.refused = ""  # what the workload said of settings that cannot be
        self.run = watched(target.start, patience)
        self.measured = partial(measured, settling=target.settling)
        self._timeout_s = max(terms.budget_s, LEAST_TIMEOUT_S)
        self._seed = terms.seed

    def warm_up(self) -> Probe:
        """The current settings once, not counted: compiles, fills caches, shows whether it runs at all."""
        self.progress.note(f"warming up: {words_of(self.target.space.current)}")
        work_s, self.patience.work_s = self.patience.work_s, LEAST_PROBE_S
        try:
            made = self._made(self.target.space.current, "warm-up")
        finally:
            self.patience.work_s = work_s
        if not made.failure and made.s_per_unit is None:
            return replace(
                made, failure="it reported no env steps and no updates, so there is nothing to time"
            )
        return made

    def probe(self, settings: Settings) -> Probe:
        """One short run; a failure is a result, too."""
        made = self._made(settings, f"{len(self.probes):03d}")
        self.probes.append(made)
        return made

    def _made(self, settings: Settings, name: str) -> Probe:
        folder = self.place / "probes" / name
        folder.mkdir()
        capture = folder / "capture"
        environment = recording_environment(capture, plain_environment())
        job = Job(
            command=tuple(word.replace("{seed}", str(self._seed)) for word in self.target.command(settings)),
            environment=environment | seed_variables(self._seed) | dict(self.target.variables(settings)),
            folder=Path.cwd(),
            timeout_s=self._timeout_s,
        )
        with machine_lock(self.progress.note):
            outcome = self.run(job)
        made = self._read(settings, capture, outcome)
        write_atomically(folder / "probe.json", json.dumps(dataclasses.asdict(made), indent=1) + "\n")
        return made

    def _read(self, settings: Settings, capture: Path, outcome: Outcome) -> Probe:
        if outcome.failure:
            last = (outcome.stderr_tail.splitlines() or [""])[-1]
            self.refused = last if outcome.exit_code == REFUSED and self.target.own_words else ""
            words = self.refused or f"{outcome.failure}. {last}".strip()
            return Probe(settings, None, spent_s=outcome.wall_s, failure=words)
        try:
            found, peaks = self.measured(capture), [p.rss_peak_bytes for p in load(capture).processes]
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
            failure="" if per_unit else "it reported no env steps and no updates in this time",
        )


def _updates_per_step(found: Figures) -> float | None:
    if found.s_per_env_step and found.s_per_update:
        return found.s_per_env_step / found.s_per_update
    return None
