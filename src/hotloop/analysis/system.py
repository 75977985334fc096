"""The whole run as a system: threads with their states, roles, and the edges over which they wait.

`find_system` (in `find_system.py`) fills this from a capture. Everything refers to training unless a comment
says otherwise, and to one host. Members, roles and edges refer to each other by index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# What a thread is for. A service is a process that only starts or looks after others (fork server, resource
# tracker, manager), a launcher one that starts the training itself (torchrun's agent): neither is a worker.
RoleKind = Literal[
    "learner",
    "rank",
    "env_worker",
    "loader_worker",
    "collector",
    "evaluator",
    "logger",
    "thread",
    "worker",
    "launcher",
    "service",
]
HELD_UP = 0.25  # share of its time that the driving member waits, to make it the headline
LEAST_SHOWN = 0.01  # share of its time that a thread wants a core; one that wants less is idle
NO_WORKERS: tuple[RoleKind, ...] = ("launcher", "service")
EdgeKind = Literal[
    "pipe",
    "queue",
    "thread_queue",
    "socket",
    "condition",
    "ring",
    "loader",
    "pool",
    "collective",
    "task",
    "unknown",
]
# What training is limited by: cores (more busy threads than cores), the GIL of one process, one role (its
# members work while the others wait for them), a device, or unknown.
Regime = Literal["cores", "gil", "role", "device", "unknown"]
How = Literal["measured", "sampled", "regions"]


@dataclass(frozen=True, slots=True)
class States:
    """Where a thread was, as shares of its time; they add up to 1."""

    running: float  # on a core, and not only to ask whether a wait is over
    ready: float  # ready to run, but without a core
    waiting: float  # in a wait that has a known partner: off the core, or spinning on it
    gil: float  # off the core, waiting for the GIL
    blocked: float  # off the core for another reason: sleep, input and output, a lock, a library's own wait
    unknown: float = 0.0  # the recording does not tell

    @property
    def off_core(self) -> float:
        """Share of the time in which it neither had nor wanted a core."""
        return self.waiting + self.gil + self.blocked


@dataclass(frozen=True, slots=True)
class RegionStates:
    """Where a thread was while one region was the innermost open one."""

    path: tuple[str, ...]  # () for the time outside of all regions
    category: str
    share: float  # of the thread's time
    calls: int
    states: States  # shares of this region's time


@dataclass(frozen=True, slots=True)
class Blocked:
    """A wait without a known partner, at one line."""

    share: float  # of the thread's time
    reason: str  # "sleep", "lock", "input", "event", "child process", "disk"; "" if the system does not tell
    region: str  # innermost open region; "" for none
    site: str  # file:line of the user's code; "" if only libraries were on the stack
    function: str  # the library function it was in, such as "ray.get"; "" for none


@dataclass(frozen=True, slots=True)
class Member:
    """One thread of the run."""

    name: str  # "learner", "env worker 3", "rank 1"
    kind: RoleKind
    role: int  # index into System.roles
    process: int  # index into Capture.processes
    thread: int | None  # index into Process.threads; None: it has opened no region and was only sampled
    pid: int
    native_id: int
    label: str  # as in other parts of the report: "train.py (pid 42), MainThread"
    number: int | None  # rank, or number of the worker within its role, from 0 up
    wall_ns: int  # time of it that falls into training
    states: States
    how: How  # measured: from the kernel's counters; sampled; regions: only from what regions tell
    regions: tuple[RegionStates, ...]  # most time first
    blocked: tuple[Blocked, ...]  # most time first
    busiest: str  # where it works most: "`Env.step`, physics.py:88"; "" if it hardly works
    env_steps: int
    updates: int
    drives: bool = False  # it is the thread that drives training


@dataclass(frozen=True, slots=True)
class Role:
    """Members that do the same."""

    kind: RoleKind
    name: str  # "env workers"
    members: tuple[int, ...]  # indices into System.members
    states: States  # mean over the members
    slack: float  # share of its time in which its members wait for others; the limiting role has the least
    limiting: bool = False

    @property
    def works(self) -> bool:
        """Whether it counts as a worker: no launcher and no service."""
        return self.kind not in NO_WORKERS


NEXT_TASK = "the next task"  # name of the edge to an idle worker of Ray


@dataclass(frozen=True, slots=True)
class Edge:
    """Messages from one member to another; the answer to a request is another edge, the other way round.

    A collective has one edge for each pair (source: a member; target: the member that waited for it).
    """

    kind: EdgeKind
    name: str  # "pipe 3", "queue 1", "all_reduce"
    source: int  # index into System.members
    target: int
    messages: int | None  # None: not measured
    bytes: int | None
    source_waited_ns: int  # while it sent: the queue or pipe was full
    target_waited_ns: int  # until a message arrived
    depth_mean: float | None = None  # messages in the queue when one was taken; None: no queue, or unknown
    depth_max: int | None = None
    capacity: int | None = None  # None: unbounded or unknown


@dataclass(frozen=True, slots=True)
class BarrierMember:
    """What one member takes in each round of a barrier."""

    member: int  # index into System.members
    mean_ns: float
    sd_ns: float
    slowest_fraction: float | None  # of the rounds in which it was the last one; None: rounds were not seen


@dataclass(frozen=True, slots=True)
class Barrier:
    """Rounds in which all members have to arrive: a step of a vector env, a collective."""

    name: str  # "step of 4 envs", "all_reduce of 2 ranks"
    role: int  # index into System.roles: those who arrive
    waits: int | None  # index into System.members: who waits for them; None: they wait for each other
    rounds: int
    mean_ns: float  # mean over rounds and members
    slowest_ns: float  # mean over rounds of the slowest member
    members: tuple[BarrierMember, ...]
    pattern: Literal["even", "steady", "random"]  # steady: the same members are slow in every round
    share: float  # imbalance_ns x rounds / training time: what imbalance costs
    exact: bool  # rounds were seen one by one; False: computed from each member's distribution

    @property
    def imbalance_ns(self) -> float:
        """Mean of the slowest minus the mean, in each round."""
        return self.slowest_ns - self.mean_ns


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One step of the critical chain: a member that waits for the next one, or works."""

    member: int  # index into System.members
    share: float  # of its time: waiting for the next link or, in the last one, working
    edge: int | None  # index into System.edges; None in the last link
    what: str  # what it waits for or does


@dataclass(frozen=True, slots=True)
class Limit:
    """What training is limited by, and what would be next."""

    regime: Regime
    role: int | None  # index into System.roles
    next_role: int | None
    gain_until_next: float | None  # speed-up at which the next limit is reached, if the first one vanished
    why: str  # one sentence


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one lane of the timeline; times from the beginning of the cycle."""

    begin_ns: int
    end_ns: int
    region: str  # "" for the member's own code
    category: str
    state: Literal["works", "waits", "blocked"] = "works"  # what the member mostly does in this region


@dataclass(frozen=True, slots=True)
class Lane:
    """One member during the typical cycle."""

    member: int
    spans: tuple[Span, ...]  # outermost regions that are no mere framework, in order of time; no overlap


@dataclass(frozen=True, slots=True)
class Cycle:
    """One typical round of the driving member, with everyone on one clock."""

    region: str  # what repeats: "env_step", "training_epoch", ...
    length_ns: int
    lanes: tuple[Lane, ...]


@dataclass(frozen=True, slots=True)
class RoleLink:
    """All edges of one kind from one role to another, added up."""

    kind: EdgeKind
    source: int  # index into System.roles
    target: int
    messages_per_s: float | None  # None: not measured
    bytes_per_s: float | None
    source_wait: float  # share of its time that a member of the source waits for room, on average
    target_wait: float  # share of its time that a member of the target waits for a message, on average
    depth_mean: float | None
    capacity: int | None


@dataclass(frozen=True, slots=True)
class Folded:
    """Processes that do the same, whose nodes sent one summary of the whole run."""

    name: str  # class of an actor, function, or program
    members: int
    nodes: int
    running: float  # share of the time on a core, mean over the main threads of its members
    least_running: float
    most_running: float
    busiest: str  # the member with the most
    waiting: float  # share of the time in regions that are waits, likewise
    env_steps: int  # during training
    updates: int


@dataclass(frozen=True, slots=True)
class System:
    """Everything about who works, who waits and for whom."""

    training_ns: int
    cores_granted: float | None
    core_load: float | None  # cores used by this run / cores granted
    members: tuple[Member, ...]
    roles: tuple[Role, ...]  # the learner first, then by number of members
    edges: tuple[Edge, ...]
    barriers: tuple[Barrier, ...]
    chain: tuple[ChainLink, ...]
    chain_sentence: str  # "" if nobody waits
    limit: Limit
    cycle: Cycle | None = None
    links: tuple[RoleLink, ...] = ()  # edges between roles, those with the most waiting first
    sentences: tuple[str, ...] = ()  # stragglers, imbalance, spinning: further facts worth reading
    folded: tuple[Folded, ...] = ()  # processes that are not among the members, most of them first
    ranks_elsewhere: str = ""  # a sentence, if ranks of this launch are in other captures

    @property
    def shown_roles(self) -> tuple[int, ...]:
        """Roles worth showing: no idle threads of libraries, without messages or regions but waits."""
        busy = {i for e in self.edges if e.messages is not None for i in (e.source, e.target)}
        busy |= {
            number
            for number, member in enumerate(self.members)
            if any(r.path and r.category != "wait" and r.share >= LEAST_SHOWN for r in member.regions)
        }
        return tuple(
            number
            for number, role in enumerate(self.roles)
            if role.works
            and (
                role.kind != "thread"
                or role.limiting
                or role.states.running + role.states.ready + role.states.gil >= LEAST_SHOWN
                or not busy.isdisjoint(role.members)
            )
        )

    @property
    def shown_links(self) -> tuple[RoleLink, ...]:
        """Links between these roles."""
        shown = self.shown_roles
        return tuple(link for link in self.links if link.source in shown and link.target in shown)


def leading(members: Sequence[Member]) -> set[int]:
    """Learners and ranks; without any, the member that drives training, such as the driver of a Ray job."""
    learning = {i for i, member in enumerate(members) if member.kind in ("learner", "rank")}
    return learning or {i for i, member in enumerate(members) if member.drives}
