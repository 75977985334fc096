"""What analysis passes to report: frozen results, each number with its unit in its name.

Figures are those of training (see `Phases`) unless a comment says otherwise.
None means "not measured" or "cannot be known from this capture", with the reason in
`Findings.not_measured`. A gain is always an `Estimate` with an interval, or None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hotloop.analysis.system import System

# An option changes training itself (more envs, fewer updates): faster, but not the same work.
# Undecided: the evidence is too weak for advice, but a test that takes a minute would tell.
# No known remedy: the code takes much time, but nothing says that it is slow. It may just be the work.
Tier = Literal["high", "medium", "low", "no_known_remedy", "undecided", "option", "not_worth_optimising"]
ADVICE_TIERS: tuple[Tier, ...] = ("high", "medium", "low")
# safe: equal to the bit; rounding: equal up to rounding; semantic: may change learning
Safety = Literal["safe", "rounding", "semantic"]
Effort = Literal["minutes", "hours", "days"]
ProvableBy = Literal["environment", "patch", "flag", "hand"]  # how the change can be made for a test


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Phases:
    """Lengths of the phases on the driving thread; they add up to its wall time."""

    start_up_ns: int  # imports, building environments and networks
    warm_up_ns: int  # compilation, first batches, filling the replay buffer
    training_ns: int
    last_round_ns: int  # learning and collecting after the last whole round of both
    shutdown_ns: int  # after the last env step or update
    windows: int  # of training; gains need LEAST_WINDOWS
    unit: str  # "env_steps" or "updates", what progress was measured by; "" for none
    why_no_gains: str = ""  # one sentence if training was too short for gains, else ""

    @property
    def steady(self) -> bool:
        """Whether training was long enough to predict gains."""
        return not self.why_no_gains

    @property
    def whole_run(self) -> bool:
        """Whether nothing but training was found."""
        return self.start_up_ns + self.warm_up_ns + self.last_round_ns + self.shutdown_ns == 0


def short_site(site: str) -> str:
    """`train.py:12` for a line of a file anywhere."""
    return site.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class CategoryShare:
    """Own time of all regions of a category; `unattributed` and `hotloop` count as categories."""

    category: str
    own_ns: int
    share: float  # of Breakdown.wall_ns, 0..1
    calls: int


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where the time of one or more threads went; the shares add up to 1."""

    label: str  # names the thread(s)
    wall_ns: int
    categories: tuple[CategoryShare, ...]  # most time first, including "unattributed" and "hotloop"
    unattributed_ns: int
    hotloop_ns: int | None  # our own cost: calls x calibrated cost; None: not calibrated


@dataclass(frozen=True, slots=True)
class RegionFinding:
    """One row of the table of all regions: one path, merged over threads."""

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
    """A region name with its weighted score and, more important, the gain if it were twice as fast."""

    name: str
    category: str
    site: str
    score: float  # 0..1
    score_terms: dict[str, float]  # term -> value scaled to 0..1; terms that were not measured are absent
    own_ns: int
    share: float
    calls: int
    gain_if_twice_as_fast: Estimate | None  # speed-up of training, e.g. 1.23


@dataclass(frozen=True, slots=True)
class GrowthFactor:
    """One factor of a slow-down."""

    factor: Literal["steps_per_episode", "calls_per_step", "cost_per_call"]
    ratio: float  # late / early: its contribution to the excess
    is_defect: bool  # true for cost_per_call if a region clearly gets slower


@dataclass(frozen=True, slots=True)
class RegionGrowth:
    """How the cost of a call of one region grew with the work done."""

    name: str
    exponent: Estimate  # cost per call ~ work ** exponent
    kendall_p: float
    flagged: bool  # it grows, compared with the other regions and per env step as well
    early_ns: float  # cost per call in the early stretch, at the usual pace of the other regions
    late_ns: float  # the same in the late stretch


@dataclass(frozen=True, slots=True)
class Growth:
    """Time per episode (or env step) in an early and in a late stretch of the run."""

    per: Literal["episode", "env_step"]
    early_ns: float
    late_ns: float
    excess: float  # late / early; equals the product of the factors' ratios to 1e-9
    factors: tuple[GrowthFactor, ...]
    regions: tuple[RegionGrowth, ...]  # worst first
    summary: str  # one sentence: what is due to learning, then what is a defect


@dataclass(frozen=True, slots=True)
class Forecast:
    """Time left of a running job, if the trend continues."""

    goal_env_steps: int
    done_env_steps: int
    remaining_s: Estimate


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """Busy, waiting and idle time of one thread."""

    process: str  # label and pid
    thread: str
    wall_ns: int
    busy_ns: int  # in regions of any category but `wait`
    waiting_ns: int  # in regions of category `wait`
    idle_ns: int | None  # in no region and off the CPU; None: CPU time is unknown
    cpu_ns: int | None
    stuck_in: str | None  # innermost region that was open when the capture was read
    stuck_for_ns: int | None


@dataclass(frozen=True, slots=True)
class Waits:
    """Who waits for whom."""

    driver: str  # the thread that drives training
    driver_share: float  # share of its wall time spent waiting
    others_share: float | None  # the same for all other threads together; None: there are none
    summary: str


@dataclass(frozen=True, slots=True)
class Oversubscription:
    """Compute threads against cores."""

    processes: int  # that ran at the same time
    threads_each: int  # compute threads (BLAS, OpenMP) of each process
    threads_from: str  # where that number comes from, such as "OMP_NUM_THREADS"
    cores_granted: float
    factor: float  # processes x threads_each / cores_granted
    cpu_share_of_busy: float | None  # CPU time / busy time
    summary: str


@dataclass(frozen=True, slots=True)
class CoreTime:
    """What the system did with the driving thread and its process, as shares of the thread's wall time."""

    on_core: float
    run_queue: float  # ready to run, but without a core
    pool_on_core: float | None  # threads that run no Python (pools of OpenMP, MKL), added up
    pool_run_queue: float | None
    taken_off_per_s: float | None  # involuntary switches: it had to leave its core


@dataclass(frozen=True, slots=True)
class RooflineRow:
    """A region against the best this machine could do."""

    name: str
    limit: str  # "copy_bandwidth", "matrix_product", ...
    measured_ns: float  # per call
    limit_ns: float
    ratio: float  # measured / limit, >= 1


@dataclass(frozen=True, slots=True)
class Claim:
    """The time of the driving thread that a recommendation is about."""

    regions: tuple[tuple[str, ...], ...] = ()  # paths of regions
    own: bool = False  # own time of these regions only; False: with everything inside them
    sampled: tuple[int, ...] = ()  # indices into Process.paths, for lines of the user's code
    waits: bool = False  # the change does away with waiting itself, not with work


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Advice with its evidence, predicted gain and a way to test it."""

    name: str  # stable, the name of the advice function, e.g. "replay_item_by_item"
    title: str
    evidence: tuple[str, ...]  # sentences with the numbers found in this capture
    advice: str
    gain: Estimate | None  # predicted speed-up of training
    tier: Tier
    effort: Effort
    safety: Safety
    provable_by: ProvableBy
    how_to_change: str  # the variable, flag or edit
    site: str  # file:line in the user's code, "" for unknown
    region: str  # the region it is about, "" for the whole run
    plan: dict[str, Any]  # the plan of an experiment that would prove it, as plain data
    prove_command: str  # the command that tests it
    claim: Claim | None = None  # None: it is about the whole run
    part_of: int | None = None  # number of the recommendation that most of its time belongs to as well
    # Share of the time that the change can affect, where the gain is unknown; None: not known either
    affects: float | None = None
    # What the driving thread would gain if it waited for nobody; None: the same as `gain`
    alone: Estimate | None = None
    changed_elsewhere: bool = False  # `site` is where the time goes, not where the change is made


@dataclass(frozen=True, slots=True)
class LineShare:
    """A line of the user's code that the sampler saw while no region was open."""

    site: str  # file:line
    share: float  # of all samples of the main threads, 0..1


@dataclass(frozen=True, slots=True)
class HotLine:
    """A line of the user's code, with the library calls it made, during training."""

    site: str  # file:line
    function: str
    text: str  # its source; "" if it was not kept
    called: str  # library function that took most of its time; "" for none
    callers: tuple[str, ...]  # file:line of the user's calls that led there most often, outermost first
    share: float  # of the driving thread's time, 0..1
    per: str  # "env_step" or "update"; "" if neither was counted
    ns_per_unit: float | None
    gain_if_twice_as_fast: Estimate


@dataclass(frozen=True, slots=True)
class AnnotatedLine:
    """A line of a user's file and the time it took during training, with the library calls it made."""

    number: int
    text: str
    share: float  # of the driving thread's time, 0..1
    ns_per_unit: float | None  # None: it took no time, or nothing was counted


@dataclass(frozen=True, slots=True)
class AnnotatedFile:
    """Lines of a user's file that took time, with their neighbours; a gap in the numbers is a cut."""

    file: str
    share: float  # of the driving thread's time, 0..1
    changed: bool  # it was modified after the process had started, so texts may not fit
    per: str  # "env_step" or "update"; "" if neither was counted
    lines: tuple[AnnotatedLine, ...]  # in the order of the file


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything analysis can say about one capture."""

    headline: str  # one sentence
    command: tuple[str, ...]
    wall_ns: int  # of the whole run
    env_steps: int  # of the whole run, like updates and episodes
    updates: int
    episodes: int
    env_steps_per_s: float | None  # during training
    updates_per_s: float | None  # during training
    mean_return: float | None
    basis: str  # what shares refer to, in words
    breakdown: Breakdown  # of the thread that drives training
    all_threads: Breakdown  # all threads added up
    bottlenecks: tuple[Bottleneck, ...]  # best first
    recommendations: tuple[Recommendation, ...]  # best first
    growth: Growth | None
    forecast: Forecast | None
    utilisation: tuple[ThreadUse, ...]
    roofline: tuple[RooflineRow, ...]
    regions: tuple[RegionFinding, ...]  # most own time first
    time_series: dict[str, tuple[float, ...]]  # "time_s", "env_steps_per_s", "share:<category>", "rss_bytes"
    machine: dict[str, Any]
    versions: dict[str, str]
    not_measured: tuple[str, ...]  # "what: why it could not be measured"
    warnings: tuple[str, ...]
    waits: Waits | None = None  # None: no thread waited in a region
    oversubscription: Oversubscription | None = None  # None: the number of cores is unknown
    lines: tuple[LineShare, ...] = ()  # largest share first; empty if lines were not sampled
    phases: Phases | None = None  # None: nothing was recorded
    hot_lines: tuple[HotLine, ...] = ()  # most time first; empty if lines were not sampled
    gain_of_all: Estimate | None = None  # of all advice that keeps results; None: fewer than two known gains
    boosted: tuple[str, ...] = ()  # sentences on models that ran under `hotloop boost`
    stood_still_ns: int = 0  # nothing ran at all (a paused machine); left out of every figure but wall_ns
    gradient_steps: int = 0  # of the whole run and of all optimizers; an update is one of each network
    system: System | None = None  # who works, who waits and for whom; None: nothing was recorded
    source: tuple[AnnotatedFile, ...] = ()  # most time first; empty if lines were not sampled
    working_folder: str = ""  # where the command ran; "": unknown
    hotloop_version: str = ""  # that recorded the run; "": unknown
    started_at_ns: int | None = None  # since 1970; None: unknown
