"""What collection is made of: a task to collect for, rows of experience, and the one protocol of collectors.

    task = Task(make_env, make_actor, weights=vector.size, seed=1)
    with ProcessCollector(task, Setup(collectors=4)) as collector:     # or SerialCollector, LockedCollector
        collector.publish(vector, control=1.0)
        for rows in collector.take(1000, timeout_s=1.0):
            replay.push(rows)
        collector.done()

A row is one moment of one environment: the newest frame, and what led to it. An episode is a row with
`first` set (a frame and nothing else), then one row for each step. So every frame crosses once, a step
is complete the moment its row arrives, and an episode's last observation is simply its last row's frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError

Rows = NDArray[Any]
"""A structured array of the type `experience_dtype` gives."""
Method = Literal["spawn", "fork", "forkserver"]
WhenFull = Literal["wait", "drop"]


class CollectionFailed(HotloopError):
    """Collection cannot begin or go on; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Spaces:
    """What one collector sees: spaces of a single environment, and how many it steps at once."""

    observation: Any
    action: Any
    envs: int
    frame_stack: int = 1
    """Observations are [frame_stack, ...], newest last, and only the newest frame crosses; 1: all of it."""

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Shape of what a row carries of an observation."""
        shape = tuple(self.observation.shape)
        return shape if self.frame_stack == 1 else shape[1:]


class Actor(Protocol):
    """Chooses actions inside a collector; made there by `Task.make_actor`, used by one thread."""

    def load(self, weights: NDArray[np.float32]) -> None:
        """Take over the learner's flat vector; it is overwritten by the next one, so copy what is kept."""

    def act(self, observations: NDArray[Any], control: float, rng: np.random.Generator) -> NDArray[Any]:
        """Actions [envs, ...] for observations [envs, ...]; all randomness comes from `rng`.

        `control` is the learner's newest `publish(control=...)`, as a rule the chance of a random action.
        """


@dataclass(frozen=True)
class Task:
    """What every collector does. Sent to new processes by cloudpickle, so lambdas are fine."""

    make_env: Callable[[int], Any]
    """Given a seed, a Gymnasium env or vector env; a vector env's own number of envs counts."""
    make_actor: Callable[[Spaces], Actor]
    weights: int = 0
    """Numbers in the flat vector that `publish` sends; 0: the actor needs none and starts at once."""
    control: float = 0.0
    """What actors are given until `publish` says otherwise."""
    envs: int = 1
    """Envs per collector where `make_env` gives single ones; they share one call of `act`."""
    frame_stack: int = 1
    """See `Spaces.frame_stack`."""
    infos: tuple[str, ...] = ()
    """Numbers of the step's infos to carry as fields `info_<name>` (float32; NaN where a step has none)."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Complain of what cannot be."""
        for name, least in (("weights", 0), ("envs", 1), ("frame_stack", 1), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, (int, np.integer)) or value < least:
                raise HotloopError(f"{name}={value!r} must be a whole number of at least {least}.")


@dataclass(frozen=True, slots=True)
class Setup:
    """How collection runs."""

    collectors: int = 2
    ring_rows: int = 0
    """Rows that can wait between one collector and the learner (`locked`: times the collectors, in one
    queue); 0: what fits in 64 MB, at most 4096."""
    when_full: WhenFull = "wait"
    """`wait`: collectors wait for the learner, nothing is lost. `drop`: from the row that found no room to
    the end of its episode rows are thrown away, and counted."""
    method: Method = "spawn"
    """How processes are started."""
    hang_timeout_s: float = 60.0
    """A collector without a sign of life for so long is killed and started anew."""
    start_timeout_s: float = 300.0
    """The same while it makes its environments and its actor."""
    most_failures: int = 3
    """So many ends of one collector in a row without a single step end the run with an error."""
    note: Callable[[str], None] | None = None
    """Told of deaths and restarts, one sentence each; by default they go to stderr."""

    def __post_init__(self) -> None:
        """Complain of what cannot be."""
        for name, least in (("collectors", 1), ("ring_rows", 0), ("most_failures", 1)):
            value = getattr(self, name)
            if not isinstance(value, (int, np.integer)) or value < least:
                raise HotloopError(f"{name}={value!r} must be a whole number of at least {least}.")
        if self.when_full not in ("wait", "drop"):
            raise HotloopError(f"when_full={self.when_full!r} is not known; use 'wait' or 'drop'.")
        if self.method not in ("spawn", "fork", "forkserver"):
            raise HotloopError(f"method={self.method!r} is not known; use 'spawn', 'fork' or 'forkserver'.")
        for name in ("hang_timeout_s", "start_timeout_s"):
            if not getattr(self, name) > 0:
                raise HotloopError(f"{name}={getattr(self, name)!r} must be more than 0 seconds.")

    def rows_for(self, dtype: np.dtype[Any]) -> int:
        """Rows of one collector's ring."""
        return int(self.ring_rows) or max(16, min(4096, (64 << 20) // dtype.itemsize))


@dataclass(frozen=True, slots=True)
class Failure:
    """The end of a collector's process that nobody asked for."""

    collector: int
    life: int
    """0 for the first process of this collector, 1 after its first restart, ..."""
    what: str
    """In words: `raised ValueError`, `was killed by SIGKILL`, `gave no sign of life for 60 s`."""
    traceback: str
    """Of the exception, or where it stood when it hung or crashed; "" when the system left none."""


@dataclass(frozen=True, slots=True)
class CollectorState:
    """Figures since `start`, over all collectors."""

    rows: int
    """Rows the learner has taken."""
    env_steps: int
    """Steps among them (rows that are not an episode's first)."""
    episodes: int
    """Ends of episodes among them."""
    dropped: int
    """Rows thrown away for want of room; always 0 with when_full='wait'."""
    queued: int
    """Rows handed over and not yet taken."""
    queue_fraction: float
    """The same as a share of the room there is."""
    lock_wait_s: float
    """Seconds all processes together have waited for the lock; 0.0 where there is no lock."""
    collector_wait_s: float
    """Seconds all collectors together have waited for room (back-pressure)."""
    learner_wait_s: float
    """Seconds `take` has waited for rows."""
    published_version: int
    """The newest version `publish` was given; 0 before the first."""
    versions_behind: float | None
    """Mean age, in versions, of the policy behind the rows of the last `take`; None before the first."""
    collector_busy_fractions: tuple[float | None, ...]
    """For each collector the share of its life not spent waiting; None before it has begun."""
    alive: int
    """Collectors that run now."""
    restarts: int
    """Processes started in place of ones that ended."""
    failures: tuple[Failure, ...]
    """Every end that nobody asked for, oldest first; the last 100 are kept."""


class Collector(Protocol):
    """Where experience comes from; `serial`, `processes` and `locked` differ in nothing else.

    `take`, `done`, `publish` and `close` belong to one thread; `state` may be asked by any.
    """

    task: Task
    setup: Setup
    spaces: Spaces
    dtype: np.dtype[Any]

    def start(self) -> None:
        """Begin to collect; actors with weights wait for the first `publish`."""

    def take(self, most: int, timeout_s: float = 1.0, least: int = 1) -> Sequence[Rows]:
        """At most `most` rows, as blocks in the transport's own memory; rows say whose they are.

        Waits until `least` rows are there, at most `timeout_s` seconds, then gives what there is: no block
        at all when there is nothing. Blocks are valid until `done`, the next `take` or `close`. Raises
        `CollectionFailed` when collectors cannot be kept alive.
        """

    def done(self) -> None:
        """The blocks of the last `take` are copied: their memory goes back to the collectors."""

    def publish(
        self,
        weights: NDArray[np.float32] | None = None,
        *,
        version: int | None = None,
        control: float | None = None,
    ) -> int:
        """New weights and a new control value, each if given, for the next action of every collector.

        `version` is what rows will carry as `policy_version`; by default one more than before. Returns
        the newest version. Weights are copied; collectors never see parts of two vectors.
        """

    def state(self) -> CollectorState:
        """Figures so far."""

    def close(self) -> None:
        """End every collector and free the memory; rows not yet taken are gone. May be called twice."""

    def __enter__(self) -> Self:
        """`start`, unless that was done."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """`close`."""


def experience_dtype(spaces: Spaces, infos: tuple[str, ...] = ()) -> np.dtype[Any]:
    """One row, in a whole number of cache lines.

    `frame`: the newest frame; `action`, `reward` (float32), `terminated`, `truncated`: of the step that led
    to it, zero where `first`; `policy_version` that chose the action; `collector`, `life` (its restarts so
    far), `env` (which of its environments); `stream`: collector x envs + env, within which rows are in
    order; `sequence` counts the collector's rows from 0, dropped ones too, over all its lives;
    `episode_return` and `episode_length` stand where an episode ended (elsewhere NaN and 0).
    """
    observation, action = spaces.observation, spaces.action
    for what, space in (("observation", observation), ("action", action)):
        if getattr(space, "shape", None) is None or getattr(space, "dtype", None) is None:
            raise HotloopError(
                f"the {what} space {space} is no single array; wrap the environment so that it is one "
                "(gymnasium.wrappers.FlattenObservation does that)."
            )
    kinds: list[tuple[str, Any, tuple[int, ...]]] = [
        ("frame", np.dtype(observation.dtype), spaces.frame_shape),
        ("action", np.dtype(action.dtype), tuple(action.shape)),
        ("reward", np.float32, ()),
        ("sequence", np.uint64, ()),
        ("policy_version", np.uint64, ()),  # from here on nearly the same in every row of an environment
        ("episode_return", np.float32, ()),
        ("episode_length", np.uint32, ()),
        ("collector", np.uint32, ()),
        ("life", np.uint32, ()),
        ("env", np.uint32, ()),
        ("stream", np.uint32, ()),
        ("first", np.bool_, ()),
        ("terminated", np.bool_, ()),
        ("truncated", np.bool_, ()),
        *((f"info_{name}", np.float32, ()) for name in infos),
    ]
    offsets, end = [], 0
    for _, kind, shape in kinds:
        size = np.dtype(kind).itemsize
        at = -(-end // size) * size
        offsets.append(at)
        end = at + size * int(np.prod(shape, dtype=np.int64))
    return np.dtype(
        {
            "names": [name for name, _, _ in kinds],
            "formats": [(kind, shape) for _, kind, shape in kinds],
            "offsets": offsets,
            "itemsize": -(-end // 64) * 64,
        }
    )


@dataclass(slots=True)
class Tally:
    """Counts of what was taken, kept by every collector in the same way."""

    rows: int = 0
    env_steps: int = 0
    episodes: int = 0
    versions_behind: float | None = None
    learner_wait_ns: int = 0

    def count(self, blocks: Sequence[Rows], newest_version: int) -> None:
        """Add the rows of one take."""
        rows = sum(map(len, blocks))
        if not rows:
            return
        self.rows += rows
        behind = 0
        for block in blocks:
            steps = ~block["first"]
            self.env_steps += int(np.count_nonzero(steps))
            self.episodes += int(np.count_nonzero(block["episode_length"]))
            behind += newest_version * len(block) - int(block["policy_version"].sum(dtype=np.int64))
        self.versions_behind = behind / rows
