"""What analysis gives to report: frozen results, each number with its unit in its name.

None means "not measured" or "cannot be known from this capture"; the reason stands in
`Findings.not_measured`. A gain is always an `Estimate` with an interval, or None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Tier = Literal["high", "medium", "low", "not worth optimising"]
Safety = Literal["safe", "semantic"]  # same results, or may change learning
Effort = Literal["minutes", "hours", "days"]
ProvableBy = Literal["environment", "patch", "flag", "hand"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class CategoryShare:
    """Own time of all regions of a category; `unattributed` and `hotloop` are categories too."""

    category: str
    own_ns: int
    share: float  # of Breakdown.wall_ns, 0..1
    calls: int


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where the time of one thread, or of several added up, went. The shares add up to 1."""

    label: str  # which thread(s), for people
    wall_ns: int
    categories: tuple[CategoryShare, ...]  # most time first; "unattributed", "hotloop" included
    unattributed_ns: int
    hotloop_ns: int | None  # our own cost, calls x calibrated cost; None when not calibrated


@dataclass(frozen=True, slots=True)
class RegionFinding:
    """One row of the table of all regions (a name at one path, merged over threads)."""

    path: tuple[str, ...]
    name: str
    category: str
    site: str
    calls: int
    total_ns: int
    own_ns: int
    share: float  # own time / wall of the loop thread (or thread time, see Findings.basis)
    mean_ns: float | None
    min_ns: int | None
    max_ns: int | None
    sd_ns: float | None
    p50_ns: float | None
    p90_ns: float | None
    p99_ns: float | None
    rss_growth_bytes: int | None
    rss_peak_bytes: int | None
    device_ns: int | None
    device_peak_bytes: int | None
    bytes_moved: float
    flops: float
    calls_per_env_step: float | None
    out_of_order: bool


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """A region (by name) with its weighted score, and what matters more: the gain if twice as fast."""

    name: str
    category: str
    site: str
    score: float  # 0..1
    score_terms: dict[str, float]  # term -> its scaled value 0..1; terms not measured are absent
    own_ns: int
    share: float
    calls: int
    gain_if_twice_as_fast: Estimate | None  # speed-up factor of the whole, e.g. 1.23


@dataclass(frozen=True, slots=True)
class GrowthFactor:
    """One factor of "k times worse than linear"."""

    factor: Literal["steps per episode", "calls per step", "cost per call"]
    ratio: float  # late / early, contribution to the excess
    is_defect: bool  # cost per call, when a region grows beyond the noise


@dataclass(frozen=True, slots=True)
class RegionGrowth:
    """How the cost of one call of a region grew with the work done."""

    name: str
    exponent: Estimate  # cost per call ~ work ** exponent
    kendall_p: float
    flagged: bool  # interval above 0.15 and p < 0.001
    early_ns: float  # cost per call, early and late stretch
    late_ns: float


@dataclass(frozen=True, slots=True)
class Growth:
    """Time per episode (or per step), an early against a late stretch of the same run."""

    per: Literal["episode", "env step"]
    early_ns: float
    late_ns: float
    excess: float  # late / early; the product of the factors' ratios to 1e-9
    factors: tuple[GrowthFactor, ...]
    regions: tuple[RegionGrowth, ...]  # worst first
    says: str  # one sentence: what is learning, then what is a defect


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a running job will be done, if its growth goes on."""

    goal_env_steps: int
    done_env_steps: int
    remaining_s: Estimate


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """Busy, waiting and idle time of one thread."""

    process: str  # label and pid
    thread: str
    wall_ns: int
    busy_ns: int  # in regions that are not waits
    waiting_ns: int  # in regions of category wait
    idle_ns: int | None  # unattributed minus CPU time, where CPU time is known
    cpu_ns: int | None
    stuck_in: str | None  # innermost open region, of a thread that is or was inside one
    stuck_for_ns: int | None


@dataclass(frozen=True, slots=True)
class Waits:
    """Who waits for whom: waiting as a share of thread time."""

    driver: str  # the thread that drives training
    driver_share: float  # of its wall time that it waits
    others_share: float | None  # the same for the other threads together; None when there are none
    says: str


@dataclass(frozen=True, slots=True)
class Oversubscription:
    """More compute threads than cores, or not."""

    processes: int  # that did work at the same time
    threads_each: int  # compute (BLAS, OpenMP) threads of each
    threads_from: str  # "OMP_NUM_THREADS" or what else gave that number
    cores_granted: float
    factor: float  # processes x threads_each / cores_granted
    cpu_share_of_busy: float | None  # CPU time / busy time of the recorded threads; below 1: held up
    says: str


@dataclass(frozen=True, slots=True)
class RooflineRow:
    """A phase against the best this machine could do."""

    name: str
    limit: str  # "copy bandwidth", "matrix product", ...
    measured_ns: float
    limit_ns: float
    ratio: float  # measured / limit, >= 1


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Advice that can be tested."""

    rule: str  # the rule's name, stable, e.g. "replay-item-by-item"
    title: str
    evidence: tuple[str, ...]  # sentences with the numbers found in this capture
    advice: str
    gain: Estimate | None  # predicted speed-up factor of the whole
    tier: Tier
    effort: Effort
    safety: Safety
    provable_by: ProvableBy
    how_to_change: str  # the variable, flag or edit
    site: str  # file:line in the user's code, "" when unknown
    region: str  # the region it speaks of
    plan: dict[str, Any]  # the Plan that would prove it, as plain data
    prove_command: str  # what to type to test it


@dataclass(frozen=True, slots=True)
class LineShare:
    """A line of the user's code seen while no region was open, by the low-rate sampler."""

    site: str  # file:line
    share: float  # of all samples of the main threads, 0..1


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything analysis can say about one capture."""

    headline: str  # one sentence
    command: tuple[str, ...]
    wall_ns: int
    env_steps: int
    updates: int
    episodes: int
    env_steps_per_s: float | None
    updates_per_s: float | None
    mean_return: float | None
    basis: str  # what the shares are shares of, in words
    breakdown: Breakdown  # of the thread that drives training
    all_threads: Breakdown  # thread time of everything
    bottlenecks: tuple[Bottleneck, ...]  # best first
    recommendations: tuple[Recommendation, ...]  # best first
    growth: Growth | None
    forecast: Forecast | None
    utilisation: tuple[ThreadUse, ...]
    roofline: tuple[RooflineRow, ...]
    regions: tuple[RegionFinding, ...]  # most own time first
    time_series: dict[
        str, tuple[float, ...]
    ]  # over time: "time_s", "env_steps_per_s", "share:<category>", "rss_bytes"
    machine: dict[str, Any]
    versions: dict[str, str]
    not_measured: tuple[str, ...]  # what could not be measured, and why
    warnings: tuple[str, ...]
    waits: Waits | None = None  # None when no region is a wait
    oversubscription: Oversubscription | None = None  # None when the machine's cores are not known
    lines: tuple[LineShare, ...] = ()  # most seen first; empty when lines were not sampled
