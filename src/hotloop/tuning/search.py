"""Search for the fastest settings: a few probes, a model fitted to them, then rounds among the best few.

The function that runs a probe is passed in, so tests can search on simulated machines.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hotloop.tuning.space import Settings, Space, words_of
from hotloop.tuning.time_model import Model, Probe, fit

PROBES = 12
FINALISTS = 6
EXPLORE_SHARE = 0.55  # of the budget: probes before the finalists are chosen
CHOICE_SHARE = 0.3  # of the budget: those of them that try choices
MOST_ROUNDS = 12  # before the slower half of the finalists is dropped
HOPELESS = 1.5  # times the best time: settings this slow do not become or stay finalists


@dataclass(frozen=True)
class SearchTerms:
    """Budget and size of a search."""

    budget_s: float
    cores: float
    probes: int = PROBES
    finalists: int = FINALISTS
    seed: int = 0


@dataclass(frozen=True)
class SearchResult:
    """Result of a search."""

    space: Space
    probes: tuple[Probe, ...]
    """In the order they were run."""
    model: Model | None
    """None with too few probes."""
    best: Settings
    """Fastest settings."""
    best_safe: Settings
    """Fastest settings with only safe changes; the current ones if no safe change was faster."""
    legal: int
    """Number of settings that are allowed and fit into memory."""
    too_large: int
    """Number of settings left out because they would not fit into memory."""
    spent_s: float
    interrupted: bool = False
    predicted_s: dict[Settings, float] = field(default_factory=dict)
    """Seconds per unit that the model predicted for the finalists."""
    finalists: tuple[Settings, ...] = ()
    """Settings chosen for the rounds."""

    def measured_s(self, settings: Settings) -> float | None:
        """Median seconds per unit of the probes with these settings; None if none succeeded."""
        values = [p.s_per_unit for p in self.probes if p.settings == settings and p.s_per_unit]
        return statistics.median(values) if values else None

    def finalists_by_speed(self) -> list[tuple[Settings, float | None, float | None]]:
        """Settings, predicted and measured seconds per unit of the finalists, fastest first."""
        rows = [(s, self.predicted_s.get(s), self.measured_s(s)) for s in self.finalists]
        return sorted(rows, key=lambda row: row[2] or math.inf)

    def as_json(self) -> dict[str, Any]:
        """The result as plain values."""
        model = self.model
        return {
            "current": dict(self.space.current),
            "best": dict(self.best),
            "best_safe": dict(self.best_safe),
            "legal": self.legal,
            "too_large": self.too_large,
            "spent_s": self.spent_s,
            "interrupted": self.interrupted,
            "probes": [asdict(probe) | {"settings": dict(probe.settings)} for probe in self.probes],
            "finalists": [
                {"settings": dict(s), "predicted_s_per_unit": predicted, "measured_s_per_unit": measured}
                for s, predicted, measured in self.finalists_by_speed()
            ],
            "model": None
            if model is None
            else {
                "error_fraction": model.error_fraction,
                "inference": model.inference,
                "phases": {p.name: dict(zip(p.terms, p.weights, strict=True)) for p in model.phases},
            },
        }


class Search:
    """One search; call `run` once."""

    def __init__(
        self,
        space: Space,
        probe: Callable[[Settings], Probe],
        terms: SearchTerms,
        *,
        fits: Callable[[Settings, Sequence[Probe]], bool] = lambda settings, probes: True,
        tell: Callable[[Probe], None] = lambda probe: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """`fits(settings, probes so far)`: whether they fit into memory; `tell` is called for each probe."""
        self._space, self._probe, self._terms = space, probe, terms
        self._fits, self._tell, self._clock = fits, tell, clock
        self._random = random.Random(terms.seed)
        self._probes: list[Probe] = []
        self._rounds: dict[Settings, list[float]] = {}  # times of each finalist, round by round
        self._survivors: list[Settings] = []
        self._everything: list[Settings] = list(space.all_settings())
        self._predicted: dict[Settings, float] = {}
        self._began_s = clock()

    def run(self) -> SearchResult:
        """Search until the budget is spent or one finalist is left; Ctrl-C keeps what was measured."""
        interrupted = False
        try:
            self._explore()
            self._halve(self._finalists())
        except KeyboardInterrupt:
            interrupted = True
        legal, too_large = self._legal()
        best = self._best(lambda settings: True)
        return SearchResult(
            space=self._space,
            probes=tuple(self._probes),
            model=self._model(),
            best=best,
            best_safe=best if self._space.is_safe(best) else self._best(self._space.is_safe),
            legal=len(legal),
            too_large=too_large,
            spent_s=self._clock() - self._began_s,
            interrupted=interrupted,
            predicted_s=dict(self._predicted),
            finalists=tuple(self._rounds),
        )

    # ---- exploration

    def _explore(self) -> None:
        space = self._space
        self._measure(space.current)
        choices = self._choice_settings()
        for at, settings in enumerate(choices):
            if self._may_explore(CHOICE_SHARE if at else EXPLORE_SHARE):
                self._measure(settings)
        base = dict(space.choices(self._best(lambda settings: True)))
        while self._may_explore():
            known = {p.settings for p in self._probes}
            left = (settings for settings in choices if settings not in known)
            found = self._farthest(space.with_values(space.current, **base)) or next(left, None)
            if found is None:
                return
            self._measure(found)

    def _may_explore(self, share: float = EXPLORE_SHARE) -> bool:
        spent_s = self._clock() - self._began_s
        most = share * self._terms.budget_s
        return len(self._probes) < self._terms.probes and spent_s + self._cost_s() <= most

    def _choice_settings(self) -> list[Settings]:
        """All choices at their most promising value, then each other value alone, in random order."""
        space = self._space
        promising = space.with_values(
            space.current, **{k.name: k.values[0] for k in space.knobs if k.is_choice}
        )
        others = [
            space.with_values(promising, **{knob.name: value})
            for knob in space.knobs
            if knob.is_choice
            for value in knob.all_values[1:]
        ]
        self._random.shuffle(others)
        found = [s for s in dict.fromkeys((promising, *others)) if s != space.current]
        return [s for s in found if space.allowed(dict(s)) and self._fits(s, self._probes)]

    def _farthest(self, base: Settings) -> Settings | None:
        """Settings with the choices of `base` that are farthest from all probes so far.

        The extremes of every knob come first, then the middles. None if all were probed.
        """
        legal, _ = self._legal()
        known = {p.settings for p in self._probes}
        mine = [s for s in legal if self._space.choices(s) == self._space.choices(base) and s not in known]
        if not mine:
            return None
        self._random.shuffle(mine)
        places = [self._place(p.settings) for p in self._probes if p.s_per_unit]
        return max(mine, key=lambda s: min((math.dist(self._place(s), p) for p in places), default=0.0))

    def _place(self, settings: Settings) -> tuple[float, ...]:
        """Position in the space: the logarithm of each number, scaled to 0..1."""
        found = []
        for name, value in settings:
            knob = self._space.knob(name)
            if knob.is_choice:
                continue
            low, high = (math.log(1 + int(end)) for end in (knob.all_values[0], knob.all_values[-1]))
            found.append((math.log(1 + int(value)) - low) / (high - low) if high > low else 0.0)
        return tuple(found)

    # ---- rounds among the finalists

    def _finalists(self) -> list[Settings]:
        """Settings with the best measured (else predicted) times, the current settings always included."""
        space, model = self._space, self._model()
        # The model is fitted to probes with these choices.
        base = space.choices(self._best(lambda settings: True))
        known = {p.settings for p in self._probes}
        scores: dict[Settings, float] = {}
        for settings in self._legal()[0]:
            modelled = model is not None and space.choices(settings) == base
            if model is not None and modelled:
                self._predicted[settings] = model.predict_s(settings)
            found = self._median(settings) if settings in known else self._predicted.get(settings)
            if found is not None:
                scores[settings] = found
        limit = HOPELESS * min(scores.values(), default=0.0)
        ranked = sorted((s for s in scores if scores[s] <= limit), key=lambda s: scores[s])
        safe = sorted((s for s in scores if space.is_safe(s)), key=lambda s: scores[s])
        chosen = list(dict.fromkeys((*safe[:1], space.current)))
        chosen += [s for s in ranked if s not in chosen][: self._terms.finalists - len(chosen)]
        self._predicted = {s: p for s, p in self._predicted.items() if s in chosen}
        return [s for s in chosen if s in scores]

    def _halve(self, finalists: Sequence[Settings]) -> None:
        """Successive halving: run all in rounds, keep the faster half, repeat; each stage gets an equal share
        of the remaining time."""
        left = list(finalists)
        self._rounds = {settings: [] for settings in left}
        while len(left) > 1:
            block_s = len(left) * self._cost_s()
            if self._left_s() < block_s:
                return
            stages = math.ceil(math.log2(len(left)))
            times = min(int(self._left_s() / (stages * block_s)), MOST_ROUNDS) if block_s else MOST_ROUNDS
            for settings in self._shuffled(left * max(times, 1), len(left)):
                if self._left_s() < 0.5 * self._cost_s():
                    return
                made = self._measure(settings)
                self._rounds[settings].append(made.s_per_unit or math.inf)
            middle = {s: statistics.median(self._rounds[s]) for s in left}
            left = sorted(
                (s for s in left if middle[s] <= HOPELESS * min(middle.values())), key=middle.__getitem__
            )
            left = left[: max((len(left) + 1) // 2, 1)]
            self._survivors = left

    def _shuffled(self, turns: Sequence[Settings], size: int) -> list[Settings]:
        """Whole rounds, each in random order, so that drift of the machine affects all settings equally."""
        found: list[Settings] = []
        for at in range(0, len(turns), size):
            block = list(turns[at : at + size])
            self._random.shuffle(block)
            found += block
        return found

    # ---- shared

    def _measure(self, settings: Settings) -> Probe:
        made = self._probe(settings)
        self._probes.append(made)
        self._tell(made)
        return made

    def _cost_s(self) -> float:
        """Expected duration of a probe: the median of the last seven."""
        return statistics.median([p.spent_s for p in self._probes[-7:]]) if self._probes else 0.0

    def _left_s(self) -> float:
        return self._terms.budget_s - (self._clock() - self._began_s)

    def _median(self, settings: Settings) -> float | None:
        values = [p.s_per_unit for p in self._probes if p.settings == settings and p.s_per_unit]
        return statistics.median(values) if values else None

    def _best(self, wanted: Callable[[Settings], bool]) -> Settings:
        """Fastest settings so far; among finalists, the fastest of those that stayed longest."""
        met = {s: times for s, times in self._rounds.items() if times and wanted(s)}
        last = [s for s in self._survivors if s in met]
        if not last and met:
            most = max(len(times) for times in met.values())
            last = [s for s, times in met.items() if len(times) == most]
        if last:
            return min(last, key=lambda s: statistics.median(met[s]))
        known = [s for s in dict.fromkeys(p.settings for p in self._probes) if wanted(s)]
        timed = {s: found for s in known if (found := self._median(s)) is not None}
        return min(timed, key=lambda s: timed[s]) if timed else self._space.current

    def _legal(self) -> tuple[list[Settings], int]:
        """Allowed settings that fit into memory, and how many do not; the current ones are always allowed."""
        current = self._space.current
        found = [s for s in self._everything if s == current or self._fits(s, self._probes)]
        return found, len(self._everything) - len(found)

    def _model(self) -> Model | None:
        base = self._space.choices(self._best(lambda settings: True))
        mine = [p for p in self._probes if self._space.choices(p.settings) == base]
        return fit(self._space, mine, self._terms.cores)


def probe_line(probe: Probe, unit: str) -> str:
    """One line about a probe."""
    words = words_of(probe.settings)
    if probe.s_per_unit is None:
        return f"{words}: {probe.failure or 'nothing measured'}"
    return (
        f"{words}: {1 / probe.s_per_unit:,.0f} {unit}s/s"
        if unit != "run"
        else f"{words}: {probe.s_per_unit:.3g} s"
    )
