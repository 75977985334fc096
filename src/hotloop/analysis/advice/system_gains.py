"""Gains of advice where several threads or processes work: from the replay of messages, as in `whatif`.

Advice functions look at the time of the driving thread. That is right where one thread does everything in
turn. Elsewhere the same saving goes through the model of the whole system: work is taken off the threads that
do it, and the replay says what training gains. Without a replay, training is at most as fast as its busiest
helper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hotloop.analysis.advice.claims import TimeTable, is_fix
from hotloop.analysis.advice.recommendation import APART, tier_of
from hotloop.analysis.advice.run_view import RunView
from hotloop.analysis.findings import Claim, Estimate, Recommendation
from hotloop.analysis.line_samples import LineSamples, waits
from hotloop.analysis.what_ifs import Saving
from hotloop.capture.samples import SLEEPING, Samples

DIFFERS = 0.03  # of the logarithm of a gain: the evidence says why
WHICH = ("low", "value", "high")


def with_system_gain(run: RunView, one: Recommendation, table: TimeTable) -> Recommendation:
    """The recommendation with the gain that the whole system would have, and the tier of that gain."""
    if one.gain is None or one.claim is None or one.claim.waits or one.name == "leave_alone":
        return one
    gain = gain_in_system(run, one.gain, one.claim, table)
    if gain is one.gain:
        return one
    evidence = one.evidence
    if gain is not None and abs(math.log(gain.value / one.gain.value)) > DIFFERS and _is_replayed(run):
        assert run.model is not None
        evidence = (
            *evidence,
            f"On its own, your training thread would run {one.gain.value:.2f}x as fast. Together with the "
            f"threads and processes that it waits for, it is {gain.value:.2f}x. The limit now is "
            f"{run.model.limit.sentence}.",
        )
    tier = tier_of(gain) if gain is not None and one.tier not in APART else one.tier
    return replace(one, gain=gain, evidence=evidence, tier=tier, alone=one.gain)


def gain_in_system(run: RunView, gain: Estimate, claim: Claim, table: TimeTable) -> Estimate | None:
    """A gain of the driving thread as one of the whole system; the same object where both are the same."""
    if not _is_replayed(run):
        return _at_most(gain, run) if run.is_pipeline and not _helped(run, claim) else gain
    assert run.model is not None
    if run.model.is_alone:
        return gain
    savings = [saving_of(run, claim, getattr(gain, which), table) for which in WHICH]
    if not any(one.regions or one.threads for one in savings):
        return gain
    return run.model.gain_of_saving(*savings)


def combined_in_system(run: RunView, chosen: Sequence[Recommendation], table: TimeTable) -> Estimate | None:
    """The gain if all of these were followed; None without a replay, or if some do away with waits."""
    if run.model is None or not run.model.replays:
        return None
    if any(one.claim is not None and one.claim.waits for one in chosen):
        return None
    together = []
    for which in WHICH:
        regions: dict[str, float] = {}
        threads: dict[tuple[int, int], float] = {}
        for one in chosen:
            gain = one.alone or one.gain
            if one.claim is None or gain is None or not is_fix(one):
                continue
            saving = saving_of(run, one.claim, getattr(gain, which), table)
            for name, part in saving.regions.items():
                regions[name] = max(regions.get(name, 0.0), part)
            for key, part in saving.threads.items():
                threads[key] = 1 - (1 - threads.get(key, 0.0)) * (1 - part)
        together.append(Saving(regions, threads))
    return run.model.gain_of_saving(*together)


def saving_of(run: RunView, claim: Claim, gain: float, table: TimeTable) -> Saving:
    """What a claim saves, if that makes the driving thread `gain` times as fast."""
    share = table.share_of(table.mask(claim))
    part = min((1 - 1 / max(gain, 1.0)) / share, 1.0) if share > 0 else 0.0
    rows = {row.path: row for row in run.rows}
    regions: dict[str, float] = {}
    for path in claim.regions:
        row = rows.get(path)
        if row is not None and row.total_ns > 0:
            mine = part * (row.own_ns / row.total_ns if claim.own else 1.0)
            regions[path[-1]] = max(regions.get(path[-1], 0.0), mine)
    parts = claimed_parts(run, claim.sampled) if claim.sampled else {}
    return Saving(regions, {key: part * of for key, of in parts.items() if of > 0})


def claimed_parts(run: RunView, paths: Sequence[int]) -> dict[tuple[int, int], float]:
    """The share of their time that threads spend on sampled paths, without waits, by thread."""
    lines = run.lines
    if lines is None:
        return {}
    found = {}
    own = ~lines.helping if len(lines.helping) else np.ones(len(lines.path), dtype=np.bool_)
    idle = np.isin(lines.path, lines.paths_where(waits)) & (lines.state == SLEEPING)
    mine = float(lines.weight_ns[own & ~idle & lines.among(paths)].sum())
    if lines.total_ns > 0:
        found[run.process.pid, run.driver.native_id] = mine / lines.total_ns
    for native in np.unique(lines.others["native_id"]):
        rows = lines.others[lines.others["native_id"] == native]
        found[run.process.pid, int(native)] = _part(lines, rows, 0, paths)
    for process in run.capture.processes:
        offset = lines.helpers.get(process.pid)
        if offset is not None and process is not run.process:
            rows = process.samples[process.samples["native_id"] == process.pid]
            found[process.pid, process.pid] = _part(lines, rows, offset, paths)
    return found


def _part(lines: LineSamples, rows: Samples, offset: int, paths: Sequence[int]) -> float:
    place = rows["path"].astype(np.int64) + offset
    idle = np.isin(place, lines.paths_where(waits))
    whole = float(rows["weight_ns"].sum())
    wanted = np.isin(place, np.array(paths, dtype=np.int64))
    return float(rows["weight_ns"][~idle & wanted].sum()) / whole if whole > 0 else 0.0


def _is_replayed(run: RunView) -> bool:
    return run.model is not None and run.model.replays


def _helped(run: RunView, claim: Claim) -> bool:
    """Whether a claim is about what helpers do."""
    return run.lines is not None and bool(claim.sampled) and run.lines.helped(claim.sampled) > 0.5


def _at_most(gain: Estimate, run: RunView) -> Estimate:
    """A gain that leaves training no shorter than the work of its busiest helper."""
    most = max(1.0 / max(run.longest_helper_ns / max(run.wall_ns, 1), 1e-3), 1.0)
    if gain.high <= most:
        return gain
    return Estimate(min(gain.value, most), min(gain.low, most), min(gain.high, most))
