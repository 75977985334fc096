"""Which time recommendations are about, so that no time is promised twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hotloop.analysis.advice.run_view import RunView
from hotloop.analysis.findings import Claim, Estimate, Recommendation

SAME = 0.8  # two recommendations that share this much of the time of both are about the same thing
PART = 0.4  # share of a recommendation's time in earlier ones from which on it is called a part of them

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class TimeTable:
    """The time of the driving thread in pieces, one for each region and sampled path."""

    share: Floats  # [pieces], of the wall time
    region: tuple[tuple[str, ...], ...]  # [pieces], path of the region; () for none
    sampled: NDArray[np.int64]  # [pieces], index into Process.paths; -1 if lines were not sampled

    def mask(self, claim: Claim) -> Mask:
        """The pieces that a claim covers."""
        wanted = set(claim.regions)
        found = np.isin(self.sampled, np.array(claim.sampled, dtype=np.int64))
        if wanted:
            found |= np.array([_covers(wanted, path, claim.own) for path in self.region], dtype=np.bool_)
        return found

    def share_of(self, mask: Mask) -> float:
        return float(self.share[mask].sum())


def _covers(claimed: set[tuple[str, ...]], path: tuple[str, ...], own: bool) -> bool:
    if own:
        return path in claimed
    return any(path[:length] in claimed for length in range(1, len(path) + 1))


def time_table(run: RunView) -> TimeTable:
    """Pieces from samples where there are unbiased ones, else from the own times of regions."""
    lines = run.unbiased_lines
    if lines is not None:
        pairs, place = np.unique(np.stack([lines.node, lines.path], axis=1), axis=0, return_inverse=True)
        weights = np.bincount(place.reshape(-1), weights=lines.weight_ns) / max(lines.total_ns, 1.0)
        known = run.driver.paths
        regions = tuple(known[node] if 0 <= node < len(known) else () for node in pairs[:, 0])
        return TimeTable(weights, regions, pairs[:, 1].astype(np.int64))
    share = np.array([row.own_share for row in run.rows], dtype=np.float64)
    return TimeTable(share, tuple(row.path for row in run.rows), np.full(len(share), -1, dtype=np.int64))


def without_double_promises(ranked: Sequence[Recommendation], table: TimeTable) -> list[Recommendation]:
    """Drop recommendations about the same time as a better one; mark those that are a part of better ones.

    `ranked` is sorted, best first. Options and what to leave alone are not promises, so they are kept as is.
    """
    kept: list[Recommendation] = []
    masks: list[Mask | None] = []
    for one in ranked:
        claims_time = is_fix(one) or one.tier == "no_known_remedy"
        mask = table.mask(one.claim) if one.claim is not None and claims_time else None
        share = table.share_of(mask) if mask is not None else 0.0
        if mask is None or share <= 0:
            kept.append(one)
            masks.append(None)
            continue
        shared = [0.0 if other is None else table.share_of(mask & other) for other in masks]
        most = int(np.argmax(shared)) if shared else -1
        if most >= 0 and shared[most] > 0:
            theirs = masks[most]
            assert theirs is not None
            if shared[most] >= SAME * max(share, table.share_of(theirs)):
                if _names_the_line(one) and not _names_the_line(kept[most]):
                    kept[most], masks[most] = one, mask
                elif not kept[most].site:
                    kept[most] = replace(kept[most], site=one.site)
                continue
            if shared[most] >= PART * share:
                said = f"This time is part of advice {most + 1}: the two gains do not add up."
                one = replace(one, evidence=(*one.evidence, said), part_of=most + 1)
        kept.append(one)
        masks.append(mask)
    return kept


def _names_the_line(one: Recommendation) -> bool:
    """Advice about sampled lines of the user's code, with its remedy; a region's advice knows less."""
    return bool(one.claim and one.claim.sampled and one.site) and one.name != "hottest_code"


def is_fix(one: Recommendation) -> bool:
    return one.tier in ("high", "medium", "low")


def keeps_results(one: Recommendation) -> bool:
    """Whether it is a fix with a known gain that keeps results, up to rounding."""
    return is_fix(one) and one.safety != "semantic" and one.gain is not None and one.claim is not None


def combined_gain(chosen: Sequence[Recommendation], table: TimeTable) -> Estimate:
    """Amdahl's law over recommendations with known gains, all followed.

    Where two are about the same time, the one that saves more counts.
    """
    values = []
    for which in ("value", "low", "high"):
        saved = np.zeros(len(table.share))
        for one in chosen:
            assert one.gain is not None and one.claim is not None
            mask = table.mask(one.claim)
            share = table.share_of(mask)
            if share > 0:
                fraction = min((1 - 1 / max(getattr(one.gain, which), 1.0)) / share, 1.0)
                saved[mask] = np.maximum(saved[mask], fraction)
        together = 1 / max(1 - float((saved * table.share).sum()), 1e-3)
        # A fix may save time that is not its own, such as waits for a writer's thread.
        alone = [getattr(one.gain, which) for one in chosen]
        values.append(max(together, *alone))
    value, low, high = values
    return Estimate(value, min(low, value), max(high, value))
