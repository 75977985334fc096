"""The types of experience collection: what to collect, how to run it, and the protocol of all collectors.

    task = Task(make_env, make_actor, n_weights=vector.size, seed=1)
    with ProcessCollector(task, Setup(collectors=4)) as collector:     # or SerialCollector, LockedCollector
        collector.publish(vector, control=1.0)
        for rows in collector.take(1000, timeout_s=1.0):
            replay.push_rows(rows)
        collector.release()

A row is one moment of one environment: the newest frame and the step that led to it. An episode is a row
with `first` set (only a frame), then one row per step. Every frame is sent once, a step is complete when its
row arrives, and an episode's last observation is the frame of its last row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import HotloopError
from hotloop.rl.nonfinite import NonFiniteCheck, count_nonfinite, first_nonfinite, is_finite

Rows = NDArray[Any]
"""A structured array with the dtype from `experience_dtype`."""
Method = Literal["spawn", "fork", "forkserver"]
WhenFull = Literal["wait", "drop"]


class CollectionFailed(HotloopError):
    """Collection cannot start or continue."""


@dataclass(frozen=True, slots=True)
class Spaces:
    """Spaces of a single environment, and how many of them one collector steps."""

    observation: Any
    action: Any
    n_envs: int
    frame_stack: int = 1
    """Above 1, observations are [frame_stack, ...], newest last, and rows carry the newest frame only."""

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Shape of a row's `frame`."""
        shape = tuple(self.observation.shape)
        return shape if self.frame_stack == 1 else shape[1:]


class Actor(Protocol):
    """Chooses actions inside a collector; created there by `Task.make_actor`, used by one thread."""

    def load(self, weights: NDArray[np.float32]) -> None:
        """Take the learner's flat vector. The next one overwrites it: copy what you keep."""

    def act(self, observations: NDArray[Any], control: float, rng: np.random.Generator) -> NDArray[Any]:
        """Return actions [n_envs, ...] for observations [n_envs, ...]; draw random numbers from `rng` only.

        `control` is the learner's latest `publish(control=...)`, usually the exploration rate.
        """


@dataclass(frozen=True)
class Task:
    """What every collector does. Sent to new processes with cloudpickle, so lambdas are fine."""

    make_env: Callable[[int], Any]
    """Takes a seed; returns a Gymnasium env or a vector env, whose own `num_envs` then replaces `n_envs`."""
    make_actor: Callable[[Spaces], Actor]
    n_weights: int = 0
    """Length of the vector that `publish` sends. With 0 the actor needs none and starts at once."""
    control: float = 0.0
    """What actors get until `publish` sets it."""
    n_envs: int = 1
    """Envs per collector if `make_env` returns single ones; one call of `act` serves them all."""
    frame_stack: int = 1
    """See `Spaces.frame_stack`."""
    infos: tuple[str, ...] = ()
    """Names of numbers in the step's infos, carried as float32 fields `info_<name>` (NaN where absent)."""
    seed: int = 0
    first_collector: int = 0
    """Number of the first of these collectors, where several computers share a task."""
    first_life: int = 0
    """Life in which they begin, where they replace collectors that were lost with their computer."""

    def __post_init__(self) -> None:
        _check_whole_numbers(
            self, n_weights=0, n_envs=1, frame_stack=1, seed=0, first_collector=0, first_life=0
        )


@dataclass(frozen=True, slots=True)
class Setup:
    """How collection runs."""

    collectors: int = 2
    ring_rows: int = 0
    """Rows that can queue between one collector and the learner (`locked`: that many per collector, in one
    queue). 0: as many as fit into 64 MB, at most 4096."""
    when_full: WhenFull = "wait"
    """`wait`: collectors wait for the learner and nothing is lost. `drop`: a row that finds no room and the
    rest of its episode are dropped and counted."""
    method: Method = "spawn"
    """How processes are started."""
    hang_timeout_s: float = 60.0
    """A collector that makes no progress for this long is killed and restarted."""
    start_timeout_s: float = 300.0
    """The same while it creates its environments and its actor."""
    max_failures: int = 3
    """Collection fails when one collector dies this many times in a row without making a step."""
    allow_nonfinite: bool = False
    """Hand over rows whose reward or frame is NaN or infinite, and count them; without it, `take` raises
    `NonFiniteData`."""
    log: Callable[[str], None] | None = None
    """Receives one sentence per death and restart; by default they go to stderr."""

    def __post_init__(self) -> None:
        _check_whole_numbers(self, collectors=1, ring_rows=0, max_failures=1)
        if self.when_full not in ("wait", "drop"):
            raise HotloopError(f"when_full={self.when_full!r} is unknown; use 'wait' or 'drop'.")
        if self.method not in ("spawn", "fork", "forkserver"):
            raise HotloopError(f"method={self.method!r} is unknown; use 'spawn', 'fork' or 'forkserver'.")
        for name in ("hang_timeout_s", "start_timeout_s"):
            if not getattr(self, name) > 0:
                raise HotloopError(f"{name}={getattr(self, name)!r} must be more than 0 seconds.")

    def rows_for(self, dtype: np.dtype[Any]) -> int:
        """Rows in one collector's ring."""
        return int(self.ring_rows) or max(16, min(4096, (64 << 20) // dtype.itemsize))


def _check_whole_numbers(settings: Task | Setup, **minima: int) -> None:
    for name, minimum in minima.items():
        value = getattr(settings, name)
        if not isinstance(value, (int, np.integer)) or value < minimum:
            raise HotloopError(f"{name}={value!r} must be a whole number of at least {minimum}.")


@dataclass(frozen=True, slots=True)
class Failure:
    """How a collector's process ended unexpectedly."""

    collector: int
    life: int
    """0 for the collector's first process, 1 after its first restart, ..."""
    what: str
    """`raised ValueError: ...`, `was killed by SIGKILL`, `made no progress for 60.0 s and was killed`, ..."""
    traceback: str
    """Where it raised, hung or crashed; "" if the system left none."""


@dataclass(frozen=True, slots=True)
class CollectorState:
    """Counters and times since `start`, over all collectors."""

    rows: int
    """Rows taken by the learner."""
    env_steps: int
    """Steps among them (rows that do not begin an episode)."""
    episodes: int
    """Episodes that ended in them."""
    dropped: int
    """Rows dropped for lack of room; always 0 with when_full='wait'."""
    queued: int
    """Rows written and not yet taken."""
    queue_fraction: float
    """The same as a fraction of the capacity."""
    lock_wait_s: float
    """Seconds that all processes together waited for the lock; 0.0 without a lock."""
    collector_wait_s: float
    """Seconds that all collectors together waited for room (back-pressure)."""
    learner_wait_s: float
    """Seconds that `take` waited for rows."""
    published_version: int
    """The latest version given to `publish`; 0 before the first."""
    versions_behind: float | None
    """Mean age, in versions, of the policy behind the rows of the last `take`; None before the first."""
    collector_busy_fractions: tuple[float | None, ...]
    """For each collector the fraction of its life not spent waiting; None until it collects."""
    alive: int
    """Collectors running now."""
    restarts: int
    """Processes started to replace dead ones."""
    failures: tuple[Failure, ...]
    """The last 100 failures, oldest first."""
    nonfinite: int = 0
    """Numbers in rewards and frames that were NaN or infinite, with allow_nonfinite."""
    lost: int = 0
    """Rows that computers had reported as made before they were lost, and that never arrived."""


class Collector(Protocol):
    """Where experience comes from: `serial`, `processes` and `locked` are interchangeable.

    Call `take`, `release`, `publish` and `close` from one thread; `state` from any.
    """

    task: Task
    setup: Setup
    spaces: Spaces
    dtype: np.dtype[Any]

    def start(self) -> None:
        """Start collecting; actors with weights wait for the first `publish`."""

    def take(self, max_rows: int, timeout_s: float = 1.0, min_rows: int = 1) -> Sequence[Rows]:
        """Return up to `max_rows` rows as blocks in the transport's own memory.

        Waits up to `timeout_s` seconds for `min_rows` rows, then returns what there is, possibly no block.
        Blocks are valid until `release`, the next `take` or `close`. Raises `CollectionFailed` when
        collectors cannot be kept alive, and `NonFiniteData` for a reward or a frame that is NaN or infinite.
        """

    def release(self) -> None:
        """Return the memory of the last `take` to the collectors, once its rows are copied."""

    def publish(
        self,
        weights: NDArray[np.float32] | None = None,
        *,
        version: int | None = None,
        control: float | None = None,
    ) -> int:
        """Send new weights, a new control value, or both, for each collector's next action.

        Rows carry `version` as `policy_version`; by default it is one more than before. Returns the latest
        version. Weights are copied, and collectors never see a mixture of two vectors.
        """

    def state(self) -> CollectorState:
        """Return counters and times so far."""

    def close(self) -> None:
        """Stop every collector and free the memory; rows not yet taken are lost. May be called twice."""

    def __enter__(self) -> Self:
        """Call `start`, unless it was called before."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Call `close`."""


def experience_dtype(spaces: Spaces, infos: tuple[str, ...] = ()) -> np.dtype[Any]:
    """The dtype of a row, padded to whole cache lines.

    `frame`: the newest frame. `action`, `reward` (float32), `terminated`, `truncated`: the step that led to
    it, zero where `first`. `policy_version`: of the policy that chose the action. `collector`, `life` (its
    restarts so far), `env` (which of its environments), `stream` (collector * n_envs + env; rows of a stream
    are in order). `sequence`: counts the collector's rows from 0 across restarts, dropped ones included.
    `episode_return`, `episode_length`: set where an episode ended, elsewhere NaN and 0.
    """
    observation, action = spaces.observation, spaces.action
    for what, space in (("observation", observation), ("action", action)):
        if getattr(space, "shape", None) is None or getattr(space, "dtype", None) is None:
            raise HotloopError(
                f"The {what} space {space} is not a single array; wrap the environment to flatten it, for "
                "example in gymnasium.wrappers.FlattenObservation."
            )
    kinds: list[tuple[str, Any, tuple[int, ...]]] = [
        ("frame", np.dtype(observation.dtype), spaces.frame_shape),
        ("action", np.dtype(action.dtype), tuple(action.shape)),
        ("reward", np.float32, ()),
        ("sequence", np.uint64, ()),
        ("policy_version", np.uint64, ()),  # from here on nearly constant within an environment
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
    """Counts of the rows taken; every collector keeps one."""

    nonfinite: NonFiniteCheck
    rows: int = 0
    env_steps: int = 0
    episodes: int = 0
    versions_behind: float | None = None
    learner_wait_ns: int = 0

    def count(self, blocks: Sequence[Rows], newest_version: int) -> None:
        rows = sum(map(len, blocks))
        if not rows:
            return
        self.rows += rows
        behind = 0
        for block in blocks:
            self._check_finite(block)
            steps = ~block["first"]
            self.env_steps += int(np.count_nonzero(steps))
            self.episodes += int(np.count_nonzero(block["episode_length"]))
            behind += newest_version * len(block) - int(block["policy_version"].sum(dtype=np.int64))
        self.versions_behind = behind / rows

    def _check_finite(self, block: Rows) -> None:
        for what in ("reward", "frame"):
            values = block[what]
            if not is_finite(values):
                (row, *_), value = first_nonfinite(values)
                who = f"environment {block['env'][row]} of collector {block['collector'][row]}"
                steps = self.env_steps + int(np.count_nonzero(~block["first"][: row + 1]))
                self.nonfinite.report(who, what, value, steps, count_nonfinite(values))
