"""Where the time of a training batch goes, and what a gain in one part means for the whole.

Reads the region `training_batch` of a capture: everything a loop does for one batch, without start-up and
warm-up. Collection is the region of the collector itself, never the remainder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hotloop.analysis.advice.recommendation import tier_of
from hotloop.analysis.categories import Resolver
from hotloop.analysis.findings import Estimate, Tier
from hotloop.analysis.tree import FlatTree, driving_thread, flatten
from hotloop.analysis.verdict import ComponentVerdict, Verdict, judge_components
from hotloop.analysis.whatif import amdahl
from hotloop.capture.model import Capture, Node

BATCH = "training_batch"
COLLECTION = "data_collection"
ENV_STEP, ENV_RESET, POLICY = "env_step", "env_reset", "policy_forward"
FRAMEWORK, TENSORDICT, STORING = "framework", "tensordict", "storing"
ADVANTAGE, REPLAY, LOSS, BACKWARD, OPTIMIZER = "advantage", "replay_buffer", "loss", "backward", "optimizer"
ONE_KERNEL, OTHER, UNATTRIBUTED, HOTLOOP = "fused_update", "other", "unattributed", "hotloop"
ROLLOUT_KERNEL = "fused_rollout"

OTHER_COLLECTED = "other_collection"
COLLECTED = (ENV_STEP, POLICY, TENSORDICT, FRAMEWORK, ENV_RESET, STORING, ROLLOUT_KERNEL, OTHER_COLLECTED)
ORDER = (ADVANTAGE, REPLAY, LOSS, BACKWARD, OPTIMIZER, ONE_KERNEL, OTHER, UNATTRIBUTED, HOTLOOP)
SMALLEST_SHARE = 0.005  # smaller parts are not mentioned
# Sums of parts that people ask for; the policy's forward pass is in both.
TOTALS = {
    "data collection": COLLECTED,
    "neural network total": (POLICY, LOSS, BACKWARD, OPTIMIZER, ONE_KERNEL),
}

_LEARNING = {
    "advantage": ADVANTAGE,
    "replay": REPLAY,
    "loss": LOSS,
    "model": LOSS,
    "backward": BACKWARD,
    "optimizer": OPTIMIZER,
}
_COLLECTING = {"policy": POLICY, "replay": STORING, "framework": FRAMEWORK, "transfer": FRAMEWORK}


@dataclass(frozen=True, slots=True)
class Part:
    """One line of the breakdown, over all batches."""

    name: str
    own_ns: int  # net of our own cost
    share: float  # of the batches' wall time
    inner: tuple[Part, ...] = ()  # its parts; own_ns is their sum


@dataclass(frozen=True, slots=True)
class BatchBreakdown:
    """Where the time of the measured batches went; shares of `parts` add up to 1."""

    batches: int
    wall_ns: int
    mean_ns: float
    min_ns: int | None
    max_ns: int | None
    parts: tuple[Part, ...]  # collection first, then in training order

    def flat(self) -> dict[str, int]:
        """Nanoseconds by name, with collection split into its parts."""
        return {part.name: part.own_ns for top in self.parts for part in (top.inner or (top,))}


@dataclass(frozen=True, slots=True)
class Impact:
    """What making a part twice as fast would gain; intervals span all runs."""

    name: str
    share: Estimate
    gain_if_twice_as_fast: Estimate
    tier: Tier


@dataclass(frozen=True, slots=True)
class Explanation:
    """The gain predicted from the parts that changed, against the measured one."""

    parts: tuple[str, ...]  # parts that became faster or slower
    share: float | None  # their share of A's time
    predicted: Estimate | None  # speed-up of the whole by Amdahl's law; None: no part changed
    measured: Estimate | None  # None: too few pairs for an interval
    at_most: float | None  # speed-up of the whole if those parts took no time at all
    sentences: tuple[str, ...]
    certain: bool = True  # whether the changes of the parts hold together, not only one at a time


def batch_breakdown(capture: Capture) -> BatchBreakdown | None:
    """The breakdown of the measured batches of a capture; None if it has none."""
    driver = driving_thread(capture)
    found = [] if driver is None else batch_nodes(driver[1].root)
    if not found:
        return None
    whole = Node(BATCH)
    for node in found:
        whole.merge(node)
    flat = flatten(whole, Resolver(), capture.region_cost_ns)
    if not whole.calls or not flat.wall_ns:
        return None
    sums = _sums(flat)
    collected = [Part(n, sums[n], sums[n] / flat.wall_ns) for n in COLLECTED if n in sums]
    parts = [Part(n, sums[n], sums[n] / flat.wall_ns) for n in ORDER if n in sums]
    if collected:
        total = sum(part.own_ns for part in collected)
        parts.insert(0, Part(COLLECTION, total, total / flat.wall_ns, tuple(collected)))
    return BatchBreakdown(
        whole.calls, flat.wall_ns, whole.closed_ns / whole.calls, whole.min_ns, whole.max_ns, tuple(parts)
    )


def batch_nodes(root: Node) -> list[Node]:
    """The measured batches in a tree, at any depth."""
    found, todo = [], list(root.children)
    while todo:
        node = todo.pop()
        if node.name == BATCH:
            found.append(node)
        else:
            todo += node.children
    return found


def _sums(flat: FlatTree) -> dict[str, int]:
    """Own time of every part in nanoseconds."""
    simulated = any(node.name == "env_simulation" for node in flat.nodes)
    names: list[str] = []
    sums: dict[str, int] = {}
    for node, kind, parent, own_ns in zip(
        flat.nodes, flat.categories, flat.parents, flat.own_ns, strict=True
    ):
        name = _part(node.name, kind, names[parent] if parent >= 0 else "", simulated)
        names.append(name)
        sums[name] = sums.get(name, 0) + own_ns
    if any(node.name == "tensordict" for node in flat.nodes):
        sums[TENSORDICT] = sums.pop(FRAMEWORK, 0)
    sums[UNATTRIBUTED] = sums.get(UNATTRIBUTED, 0) + flat.unattributed_ns
    if flat.cost_known:
        sums[HOTLOOP] = sums.get(HOTLOOP, 0) + flat.cost_ns
    return sums


def _part(name: str, kind: str, above: str, simulated: bool) -> str:
    """The part of a region inside a region of part `above` ("" directly in the batch).

    If the simulator has its own region (`simulated`), what a library does around it counts as the
    library's work, not the environment's.
    """
    if kind == "hotloop":
        return HOTLOOP
    if name == "fused_rollout":
        return ROLLOUT_KERNEL
    if name == "collect_rollouts" or name.endswith(".iterator"):
        return FRAMEWORK
    if above in COLLECTED:
        if name in ("env_simulation", "env_simulation_reset"):
            return ENV_STEP if name == "env_simulation" else ENV_RESET
        if kind in ("environment", "rendering"):
            if above in (ENV_STEP, ENV_RESET):
                return above
            return FRAMEWORK if simulated else ENV_RESET if name == "env_reset" else ENV_STEP
        if above in (POLICY, ENV_STEP, ENV_RESET) and kind not in ("framework", "transfer"):
            return above
        return _COLLECTING.get(kind, OTHER_COLLECTED)
    if above:
        return above
    return ONE_KERNEL if name == "fused_update" else _LEARNING.get(kind, OTHER)


def explain_gain(components: Sequence[ComponentVerdict], whole: Verdict, change: str) -> Explanation:
    """Where the gain comes from: Amdahl's law on the parts that changed.

    These are the parts with a verdict, which hold together; if there are none, the parts whose own interval
    excludes no change, and the text says so.
    """
    rows = _changed(components, lambda verdict: verdict.word in ("faster", "slower"))
    certain = bool(rows)
    if not certain:
        rows = _changed(components, _by_itself)
    if not rows:
        said = f"No part clearly changed with {change}, so there is no gain to explain."
        return Explanation((), None, None, whole.speed_up, None, (said,))
    together = sum(share for _, share, _ in rows)
    ends = [
        1.0
        / (1.0 - sum(share * (1.0 - 1.0 / getattr(by, end)) for _, share, by in rows) / max(together, 1.0))
        for end in ("value", "low", "high")
    ]
    predicted = Estimate(ends[0], min(ends), max(ends))
    faster = [row for row in rows if row[2].value > 1]
    reach = sum(share for _, share, _ in faster)
    at_most = amdahl(reach, 1.0) if 0 < reach < 1 else None
    sentences = [] if certain else ["Too few pairs to be sure of all parts together; each on its own:"]
    sentences += [
        f"{_words(name)} took {_percent(share)} of the time and is {_times(by)} as fast with {change}."
        for name, share, by in rows
    ]
    sentences.append(_against(predicted, whole.speed_up))
    if at_most is not None:
        names = " and ".join(_words(name) for name, _, _ in faster)
        sentences.append(f"Even if {names} took no time at all, the whole would be {at_most:.2f}x as fast.")
    changed = tuple(name for name, _, _ in rows)
    return Explanation(changed, together, predicted, whole.speed_up, at_most, tuple(sentences), certain)


def _changed(
    components: Sequence[ComponentVerdict], has: Callable[[Verdict], bool]
) -> list[tuple[str, float, Estimate]]:
    """Name, share of A and speed-up of the parts whose verdict fulfils `has`."""
    rows = []
    for part in components:
        share, speed_up = part.share_of_a, part.verdict.speed_up
        if share and speed_up and has(part.verdict):
            rows.append((part.name, share, speed_up))
    return rows


def _by_itself(verdict: Verdict) -> bool:
    return verdict.change is not None and verdict.change.low * verdict.change.high > 0


def _against(predicted: Estimate, measured: Estimate | None) -> str:
    law = f"Amdahl's law predicts {_times(predicted)} for the whole"
    if measured is None:
        return f"{law}; there are too few runs to check that."
    got = f"measured: {_times(measured)}"
    if measured.low > predicted.high:
        return f"{law}; {got}, which is more: other parts, too small or too noisy to name, changed as well."
    if measured.high < predicted.low:
        return f"{law}; {got}, which is less: other parts, too small or too noisy to name, changed as well."
    return f"{law}; {got}, which agrees."


def total_verdicts(
    pairs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]], tolerance: float
) -> tuple[ComponentVerdict, ...]:
    """Verdicts on `TOTALS`; `pairs` hold seconds by part of A and of B."""
    named = {
        total: [(_sum(a, names), _sum(b, names)) for a, b in pairs]
        for total, names in TOTALS.items()
        if any(_sum(side, names) for pair in pairs for side in pair)
    }
    return judge_components(
        named, [(sum(a.values()), sum(b.values())) for a, b in pairs], tolerance=tolerance
    )


def _sum(parts_s: Mapping[str, float], names: Sequence[str]) -> float:
    return sum(parts_s.get(name, 0.0) for name in names)


def impacts(runs: Sequence[Mapping[str, float]]) -> tuple[Impact, ...]:
    """What to optimise, largest part first; `runs` hold seconds by part, and intervals span the runs."""
    if not runs:
        return ()
    found = []
    for name in dict.fromkeys(name for run in runs for name in run):
        shares = [run.get(name, 0.0) / sum(run.values()) for run in runs]
        share = Estimate(float(np.median(shares)), min(shares), max(shares))
        if name in (UNATTRIBUTED, HOTLOOP) or share.value < SMALLEST_SHARE:
            continue
        gain = Estimate(*(amdahl(value, 0.5) for value in (share.value, share.low, share.high)))
        found.append(Impact(name, share, gain, tier_of(gain)))
    return tuple(sorted(found, key=lambda one: -one.share.value))


def _words(name: str) -> str:
    return name.replace("_", " ")


def _times(speed: Estimate) -> str:
    return f"{speed.value:.2f}x [{speed.low:.2f}, {speed.high:.2f}]"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
