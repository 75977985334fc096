"""Predicts the time per env step of untried settings from a few probes, as sums of non-negative terms.

Times are for one step of all n environments (collection) or one update (learning), with w worker processes,
C cores, t threads and batches of B samples:

    t_env   = e n / min(w, C) + i w + i0        without a setting for w: e n + e' n / min(n, C) + i0
    t_infer = a + n (b + b' / min(t, C)) + k (t - 1)
    t_train = c + B (d + d' / min(t, C)) + k' (t - 1)
    t_rest  = r n + r0

b + b' / min(t, C) is Amdahl's law for t threads; k is the cost of each further thread. Each phase is fitted
on its own, by non-negative least squares; errors are relative to the whole time of a probe, so that a phase
missing from one probe does not count more than the others.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from hotloop.tuning.space import Settings, Space

PHASES: dict[str, tuple[str, ...]] = {
    "env": ("environment", "rendering", "ipc"),
    "infer": ("policy",),
    "train": ("model", "loss", "backward", "optimizer", "advantage", "replay", "data", "transfer"),
}
REST = "rest"
LEAST_PROBES = 3  # fewer do not show how a time grows
NEGLIGIBLE = 0.01  # a phase below this fraction of the time in every probe is added to the rest

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Probe:
    """Measurements of a short run with some settings."""

    settings: Settings
    s_per_unit: float | None
    """Seconds per env step, or per update in a run without env steps; None if the run failed."""
    phases_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of that in each phase: env, infer, train, rest; {} if unknown."""
    updates_per_unit: float | None = None
    peak_bytes: int | None = None
    """Peak memory of all its processes together."""
    spent_s: float = 0.0
    failure: str = ""
    """Why it failed, in one sentence; "" if it did not."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Fitted terms of one phase."""

    name: str
    terms: tuple[str, ...]
    weights: tuple[float, ...]
    """Seconds per unit of each term, none negative."""


@dataclass(frozen=True)
class Model:
    """Predicts seconds per env step; valid for settings whose choices are those of the fitted probes."""

    space: Space
    cores: float
    phases: tuple[Phase, ...]
    updates: tuple[float, bool]
    """Updates per env step, and whether they are inversely proportional to the batch size (then: for a batch
    of 1)."""
    error_fraction: float
    """Median relative error on the probes it was fitted to."""

    def predict_s(self, settings: Settings) -> float:
        """Seconds per env step."""
        amounts = _Amounts.of(self.space, settings, self.cores)
        return sum(self._phase_s(phase, amounts) for phase in self.phases)

    def _phase_s(self, phase: Phase, amounts: _Amounts) -> float:
        per = float(np.dot([amounts.term(term) for term in phase.terms], phase.weights))
        if phase.name == "train":
            rate, falls = self.updates
            return per * (rate / amounts.batch if falls else rate)
        return per / amounts.envs

    @property
    def inference(self) -> tuple[float, float] | None:
        """Highest rate that inference allows (1/b env steps per second, one thread), and the number of envs
        that reaches half of it (a/b); None if inference was not measured or does not depend on the envs."""
        found = next((phase for phase in self.phases if phase.name == "infer"), None)
        if found is None:
            return None
        weights = dict(zip(found.terms, found.weights, strict=True))
        each = weights.get("n", 0.0) + weights.get("n/threads", 0.0)
        return (1 / each, weights.get("1", 0.0) / each) if each > 0 else None


@dataclass(frozen=True, slots=True)
class _Amounts:
    """Numeric settings that the terms are computed from."""

    envs: int
    workers: int | None
    threads: int
    batch: int
    cores: float

    @classmethod
    def of(cls, space: Space, settings: Settings, cores: float) -> _Amounts:
        def amount(role: str, least: int) -> int | None:
            found = space.amount(settings, role)  # type: ignore[arg-type]
            return None if found is None else max(found, least)

        return cls(
            amount("envs", 1) or 1,
            amount("workers", 0),
            amount("threads", 1) or 1,
            amount("batch", 1) or 1,
            cores,
        )

    def term(self, name: str) -> float:
        """Value of one term."""
        workers = max(self.workers or 0, 1)  # without workers, the main process steps the environments
        values: dict[str, float] = {
            "1": 1.0,
            "n": self.envs,
            "n/min(n,C)": self.envs / min(self.envs, self.cores),
            "n/min(w,C)": self.envs / min(workers, self.cores),
            "w": self.workers or 0,
            "B": self.batch,
            "n/threads": self.envs / min(self.threads, self.cores),
            "B/threads": self.batch / min(self.threads, self.cores),
            "threads-1": self.threads - 1,
        }
        return values[name]


def split_phases(components_s: Mapping[str, float]) -> dict[str, float]:
    """Seconds by category -> seconds by phase; categories of no phase are the rest."""
    found = {name: sum(components_s.get(c, 0.0) for c in kinds) for name, kinds in PHASES.items()}
    found[REST] = sum(components_s.values()) - sum(found.values())
    return {name: seconds for name, seconds in found.items() if seconds > 0}


def fit(space: Space, probes: Sequence[Probe], cores: float) -> Model | None:
    """Fit a model to the probes that succeeded, all with the same choices; None if there are too few."""
    good = [p for p in probes if p.s_per_unit]
    if len({p.settings for p in good}) < LEAST_PROBES:
        return None
    amounts = [_Amounts.of(space, p.settings, cores) for p in good]
    shares = [_phases_of(p) for p in good]
    seen = [
        name
        for name in PHASES
        if max(s.get(name, 0.0) / (p.s_per_unit or 1.0) for s, p in zip(shares, good, strict=True))
        >= NEGLIGIBLE
    ]
    updates = _updates(good, amounts)
    if updates is None and "train" in seen:
        seen.remove("train")  # without a count of updates, learning is part of the rest
    phases = []
    for name in (*seen, REST):
        per_step = [
            shares[at].get(name, 0.0)
            if name != REST
            else (probe.s_per_unit or 0.0) - sum(shares[at].get(other, 0.0) for other in seen)
            for at, probe in enumerate(good)
        ]
        if name == "train" and updates is not None:
            steps = [1 / (p.updates_per_unit or updates[0]) for p in good]
        else:
            steps = [float(a.envs) for a in amounts]
        times = np.array(per_step) * steps
        totals = np.array([p.s_per_unit or 0.0 for p in good]) * steps
        phases.append(_fitted(name, _terms(name, space, seen), amounts, times, totals))
    model = Model(space, cores, tuple(phases), updates or (0.0, False), 0.0)
    errors = [abs(model.predict_s(p.settings) / p.s_per_unit - 1) for p in good if p.s_per_unit]
    return Model(space, cores, tuple(phases), model.updates, float(statistics.median(errors)))


def _phases_of(probe: Probe) -> Mapping[str, float]:
    """Phase times scaled to add up to the probe's time: they may cover a slightly different interval."""
    total = sum(probe.phases_s.values())
    scale = (probe.s_per_unit or 0.0) / total if total > 0 else 0.0
    return {name: seconds * scale for name, seconds in probe.phases_s.items()}


def _terms(phase: str, space: Space, seen: Sequence[str]) -> tuple[str, ...]:
    """Terms that can vary in this space."""
    roles = {knob.role for knob in space.knobs}
    threads = "threads" in roles
    if phase == "infer":
        return ("1", "n", *(("n/threads", "threads-1") if threads else ()))
    if phase == "train":
        return ("1", "B", *(("B/threads", "threads-1") if threads else ()))
    if phase == "env":
        return ("n/min(w,C)", "w", "1") if "workers" in roles else ("n", "n/min(n,C)", "1")
    alone = not seen  # no phases were measured: the rest is everything
    found = ["1", "n"]
    found += ["n/min(w,C)", "w"] if alone and "workers" in roles else []
    found += ["n/min(n,C)"] if alone and "workers" not in roles and "envs" in roles else []
    found += ["n/threads", "threads-1"] if alone and threads else []
    found += ["B"] if alone and "batch" in roles else []
    return tuple(found)


def _fitted(
    name: str, terms: tuple[str, ...], amounts: Sequence[_Amounts], times: Floats, totals: Floats
) -> Phase:
    """Non-negative weights with the smallest errors relative to the total times (least squares)."""
    measured, scale = np.maximum(times, 0.0), 1 / totals
    table: Floats = np.array([[a.term(term) for term in terms] for a in amounts])
    weights, _ = nnls(table * scale[:, None], measured * scale)
    return Phase(name, terms, tuple(float(w) for w in weights))


def _updates(probes: Sequence[Probe], amounts: Sequence[_Amounts]) -> tuple[float, bool] | None:
    """Updates per env step: constant, or inverse to the batch size, whichever fits the probes better."""
    pairs = [
        (p.updates_per_unit, a.batch) for p, a in zip(probes, amounts, strict=True) if p.updates_per_unit
    ]
    if not pairs:
        return None
    rates, products = [u for u, _ in pairs], [u * b for u, b in pairs]
    falls = _spread(products) < _spread(rates)
    return float(statistics.median(products if falls else rates)), falls


def _spread(values: Sequence[float]) -> float:
    return max(values) / min(values)
