"""A replay buffer over vector environments: each observation stored once, sampled without allocation.

Each environment has its own ring, with one record for each step:

    env 0 | observation 0, action 0, reward 0, marks 0 | observation 1, action 1, ... | ...
    env 1 | ...

A transition's next observation is the observation of the following record. Where an episode ended and the
environment was reset in the same step (Gymnasium's SAME_STEP), the following record holds the first
observation of the next episode; the final observation is then stored separately and the record's marks point
to it. With NEXT_STEP the following record is the true next observation and the one after it only a reset: it
is marked as a hole, never drawn and never counted. With `frame_stack`, only the newest frame of each
observation is stored; stacks are rebuilt when sampled and never reach back past the start of an episode.
`terminated` and `truncated` stay apart: only termination stops bootstrapping.

    buffer = ReplayBuffer(100_000, env.num_envs, env.single_observation_space, env.single_action_space)
    batch = buffer.make_batch(256)                # memory for samples, allocated once
    buffer.start(observations)                    # from reset()
    buffer.push(actions, rewards, terminated, truncated, observations, final_observations)
    buffer.sample(batch)                          # fills batch.observations, batch.rewards, ...

Collectors that run at their own pace deliver rows instead of vector steps. A buffer for them is filled with
`buffer.push_rows(rows)` only (replay_rows.py).

With this layout a small transition takes one or two cache lines, and a stack of frames one contiguous copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hotloop._util.errors import HotloopError
from hotloop._util.units import size as in_bytes
from hotloop.machine.facts import memory_bytes
from hotloop.rl.buffers import replay_kernels as kernels
from hotloop.rl.buffers.raw_memory import huge_bytes
from hotloop.rl.buffers.replay_batch import ReplayBatch
from hotloop.rl.buffers.replay_layout import NO_BYTES, Layout
from hotloop.rl.buffers.replay_plain import push_one
from hotloop.rl.buffers.replay_rows import RowStreams
from hotloop.rl.buffers.sum_tree import find_leaves, make_tree, set_leaves, set_range
from hotloop.rl.envs.compiled import addresses
from hotloop.rl.envs.streams import make_streams, seed_streams

_gather: Any = kernels.gather
_EMPTY = "The replay buffer is empty; push at least one step before sampling."


@dataclass(frozen=True, slots=True)
class Prioritized:
    """Draw each transition with probability proportional to (|its last TD error| + epsilon) ** alpha."""

    alpha: float = 0.6
    epsilon: float = 1e-6


class ReplayBuffer:
    """A ring of at least `buffer_size // n_envs` vector steps; the module's docstring explains its layout.

    The buffer owns its memory and allocates it at once, except for final observations, whose room grows as
    episodes end. It draws random numbers from its own stream: same seed, same pushes, same samples.
    """

    def __init__(
        self,
        buffer_size: int,
        n_envs: int,
        observation_space: Any,
        action_space: Any,
        *,
        frame_stack: int = 1,
        stack_padding: Literal["first", "zero"] = "first",
        n_steps: int = 1,
        gamma: float = 0.99,
        prioritized: Prioritized | None = None,
        autoreset: Literal["same_step", "next_step"] = "same_step",
        seed: int = 0,
    ):
        """Spaces are those of a single environment: any object with `shape` and `dtype`.

        `frame_stack` k > 1: observations have shape (k, ...), newest last. `stack_padding`: what the
        environment puts before an episode's first frame, that frame again or zeros.
        """
        layout = self.layout = Layout(
            n_envs, tuple(observation_space.shape), np.dtype(observation_space.dtype),
            tuple(action_space.shape), np.dtype(action_space.dtype),
            frame_stack, stack_padding, n_steps, gamma, autoreset,
        )  # fmt: skip
        if buffer_size < n_envs:
            raise HotloopError(
                f"buffer_size={buffer_size} has no room for one step of n_envs={n_envs} environments; "
                "make it at least as large."
            )
        self.n_envs, self.prioritized = n_envs, prioritized
        record = layout.record()
        slots = buffer_size // n_envs
        self.buffer_size = slots * n_envs
        length = slots + frame_stack
        available, needed = memory_bytes(), length * n_envs * record.itemsize
        if available is not None and needed > available:
            raise HotloopError(
                f"buffer_size={buffer_size} at {record.itemsize} bytes a transition needs "
                f"{in_bytes(needed)}, more than this machine's {in_bytes(available)}; choose a smaller one."
            )
        self._memory = huge_bytes(needed)
        self._records = self._memory.view(record).reshape(n_envs, length)
        self._numbers, self._marks = self._memory.view(np.float32), self._memory.view(np.int32)
        self._ring = np.zeros(kernels.RING_FIELDS, dtype=np.int64)
        here = self._memory.ctypes.data
        self._ring[: kernels.TIME] = (
            n_envs, slots, length, record.itemsize, layout.frame_bytes,
            self._records["action"].ctypes.data - here, layout.action_bytes,
            self._records["reward"].ctypes.data - here,
            frame_stack, stack_padding == "zero", n_steps, autoreset == "same_step",
        )  # fmt: skip
        self._records["marks"][:, 0] |= kernels.FIRST
        self._records["marks"][:, -1] |= kernels.LAST
        self._length = length
        self._finals: NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)
        self._free = np.zeros(0, dtype=np.int64)
        self._streams = make_streams(1)
        seed_streams(self._streams, [seed])
        self._started = False
        self._row_streams: RowStreams | None = None  # once rows are pushed instead of vector steps
        self._largest_priority = 1.0
        # leaves are ordered by slot, then environment, so that those of one step are neighbours
        self._tree = make_tree(length * n_envs if prioritized else 1)
        self._one_step = np.zeros(n_envs, dtype=np.float64)

    def __len__(self) -> int:
        """Transitions that can be drawn now."""
        return int(self._ring[kernels.LIVE])

    @property
    def bytes_stored(self) -> int:
        """Memory allocated for the ring, final observations and priorities."""
        return int(self._memory.nbytes + self._finals.nbytes + self._free.nbytes + self._tree.nbytes)

    # ---- storing

    def start(self, observations: NDArray[Any]) -> None:
        """Begin new episodes with the observations of a reset; running episodes count as truncated."""
        given = self.layout.observation_bytes(observations, "observations")
        self.make_room(self.n_envs)
        kernels.begin(self._memory, self._marks, self._finals, self._free, self._ring, given)
        self._started = True

    def push(
        self,
        actions: NDArray[Any],
        rewards: ArrayLike,
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        observations: NDArray[Any],
        final_observations: NDArray[Any] | None = None,
    ) -> None:
        """Store one vector step (first axis: environment); everything is copied.

        `observations` are those that the step returned. `final_observations` are the last ones of episodes
        that just ended: needed with SAME_STEP, read only in those rows.
        """
        step = self._checked(actions, rewards, terminated, truncated, observations, final_observations)
        kernels.push(
            self._memory, self._numbers, self._marks, self._finals, self._free, self._ring, *step
        )  # fmt: skip
        if self.prioritized:
            self._set_new_priorities()

    def push_each(
        self,
        actions: NDArray[Any],
        rewards: ArrayLike,
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        observations: NDArray[Any],
        final_observations: NDArray[Any] | None = None,
    ) -> None:
        """`push`, but one environment after the other in Python, as in a plain training script."""
        step = self._checked(actions, rewards, terminated, truncated, observations, final_observations)
        for env in range(self.n_envs):
            final = None if final_observations is None else final_observations[env]
            row = actions[env], step[1][env], terminated[env], truncated[env], observations[env], final
            push_one(self._ring, self._records[env], self._free, self._finals, self.layout, *row)
        self._ring[kernels.TIME] += 1
        self._ring[kernels.COUNT] = min(self._ring[kernels.COUNT] + 1, self._ring[kernels.SLOTS])
        if self.prioritized:
            self._set_new_priorities()

    def push_rows(self, rows: NDArray[Any]) -> None:
        """Store rows of collectors, with one copy. Streams may be mixed; each must be in order.

        A row's stream is its environment in this buffer. A buffer takes either rows or vector steps, and
        draws rows uniformly.
        """
        if self._started or self.prioritized:
            raise HotloopError(
                "push_rows() needs a buffer without priorities and without vector steps; create a new one."
            )
        if self._row_streams is None:
            self._row_streams = RowStreams(self.layout)
        stored = (self._memory, self._numbers, self._marks, self._ring)
        self._row_streams.push(stored, rows)

    # ---- sampling

    def make_batch(self, size: int, *, shared: bool | None = None, pinned: bool = False) -> ReplayBatch:
        """Memory for `size` transitions; a batch can be filled any number of times.

        `shared`: a stack and the next stack have all frames but one in common, so each transition's frames
        are written once and both arrays are views of them; the default for stacks with one-step returns.
        `pinned`: page-locked memory, which copies to a CUDA device asynchronously.
        """
        if shared is None:
            shared = self.layout.frame_stack > 1 and self.layout.n_steps == 1
        if size < 1:
            raise HotloopError(f"size={size} is too small for a batch; use at least 1.")
        if shared and self.layout.n_steps > 1:
            raise HotloopError(
                f"shared=True needs one-step returns, not n_steps={self.layout.n_steps}; leave it out."
            )
        return ReplayBatch(size, self.layout, shared=shared, pinned=pinned)

    def sample(self, batch: ReplayBatch, *, beta: float = 0.4) -> ReplayBatch:
        """Fill `batch` with transitions drawn with replacement, and return it.

        Draws uniformly, or by priority if the buffer is prioritized: then `batch.weights` are the importance
        weights (len(buffer) * probability) ** -beta, divided by the largest of the batch.
        """
        if self._row_streams is not None:
            self._check_batch(batch)
            if not len(self):
                raise HotloopError(_EMPTY)
            self._row_streams.sample(self._stored, self._streams, batch)
            return batch
        if self.prioritized is None:
            if batch.bound_to is not self._finals:
                self._bind(batch)
            if not kernels.sample_batch(batch.table, self.layout.gamma):
                raise HotloopError(_EMPTY)
            return batch
        self._check_batch(batch)
        if not len(self):
            raise HotloopError(_EMPTY)
        find_leaves(self._tree, self._streams, batch.rows, batch.scratch)
        leaves = self._tree[self._tree.size // 2 + batch.rows]
        slots, envs = divmod(batch.rows, self.n_envs)
        np.add(envs * self._length, slots, out=batch.rows)
        _gather(*self._stored, *batch.arguments)
        weights = (len(self) * leaves / self._tree[1]) ** -beta
        np.divide(weights, weights.max(), out=batch.weights, casting="same_kind")
        return batch

    def gather(self, rows: ArrayLike, batch: ReplayBatch) -> ReplayBatch:
        """Fill `batch` with the transitions at `rows`, which an earlier sample wrote to `batch.rows`."""
        wanted = np.asarray(rows, dtype=np.int64)
        envs, slots = divmod(wanted, self._length)
        inside = (envs >= 0) & (envs < self.n_envs)
        if wanted.shape != batch.rows.shape or not inside.all():
            raise HotloopError(
                f"rows of shape {wanted.shape} are not {batch.rows.size} places in a ring of "
                f"{self._records.size}; pass rows that sample() drew into a batch of this size."
            )
        if self._row_streams is None:
            kept = (self._ring[kernels.TIME] - 1 - slots) % self._length < self._ring[kernels.COUNT]
        else:
            kept = self._row_streams.drawable(envs, slots, self._length)
        drawable = kept & (self._records["marks"][envs, slots] & kernels.HOLE == 0)
        if not drawable.all():
            raise HotloopError(
                f"row {int(wanted[~drawable][0])} no longer holds a transition; gather before pushing more."
            )
        self._check_batch(batch)
        batch.rows[...] = wanted
        _gather(*self._stored, *batch.arguments)
        return batch

    def update_priorities(self, rows: NDArray[np.int64], errors: NDArray[Any]) -> None:
        """Set the priorities of a batch's rows from their new TD errors, before anything else is pushed."""
        if self.prioritized is None:
            raise HotloopError("This buffer has no priorities; create it with prioritized=Prioritized().")
        sizes = np.abs(np.asarray(errors, dtype=np.float64)) + self.prioritized.epsilon
        if sizes.shape != rows.shape or not np.isfinite(sizes).all():
            raise HotloopError(
                f"errors of shape {sizes.shape} must be one finite number for each of {rows.size} rows."
            )
        values = sizes**self.prioritized.alpha
        self._largest_priority = max(self._largest_priority, float(values.max()))
        envs, slots = divmod(rows, self._length)
        set_leaves(self._tree, slots * self.n_envs + envs, values)

    # ---- checkpoints

    def save_state(self) -> dict[str, NDArray[Any]]:
        """Copies of everything later samples depend on; slots never written are left out."""
        slots = int(self._ring[kernels.TIME]) + 1 if self._started else 0
        if self._row_streams is not None:
            slots = self._row_streams.written
        written = min(slots, self._length)
        state: dict[str, NDArray[Any]] = {
            "memory": self._by_env[:, : written * self._records.itemsize],
            "ring": self._ring,
            "finals": self._finals,
            "free": self._free,
            "streams": self._streams,
            "tree": self._tree[self._tree.size // 2 :],
            "largest_priority": np.array([self._largest_priority]),
        }
        if self._row_streams is not None:
            state["clocks"] = self._row_streams.clocks
        return {name: array.copy() for name, array in state.items()}

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Continue exactly where `save_state` was called, in a buffer made with the same settings."""
        fixed = slice(0, kernels.TIME)
        half = self._tree.size // 2
        if not (
            state.keys() >= {"memory", "ring", "finals", "free", "streams", "tree", "largest_priority"}
            and np.array_equal(state["ring"][fixed], self._ring[fixed])
            and state["memory"].shape[1] <= self._by_env.shape[1]
            and state["tree"].size == half
        ):
            raise HotloopError(
                "This state belongs to a replay buffer of another shape; create the buffer with the "
                "buffer_size, n_envs, spaces and settings of the saved one."
            )
        self._by_env[:, : state["memory"].shape[1]] = state["memory"]
        self._started = state["memory"].size > 0 and "clocks" not in state
        if "clocks" in state:
            self._row_streams = RowStreams(self.layout)
            self._row_streams.clocks[...] = state["clocks"]
        self._ring[...], self._streams[...] = state["ring"], state["streams"]
        self._finals, self._free = state["finals"].copy(), state["free"].copy()
        self._largest_priority = float(state["largest_priority"][0])
        set_range(self._tree, 0, np.ascontiguousarray(state["tree"]))

    def kernel_arrays(self, batch: ReplayBatch) -> kernels.ReplayArrays:
        """The arrays that kernels push to and sample from; they may be replaced, so call it each time."""
        stored = (self._memory, self._numbers, self._marks, self._finals, self._free, self._ring)
        return kernels.ReplayArrays(*stored, self._streams, *batch.arguments)

    # ---- internals

    def _check_batch(self, batch: ReplayBatch) -> None:
        if batch.stored is not self.layout and batch.stored != self.layout:
            raise HotloopError(
                "This batch was made by a buffer of another shape; use this buffer's make_batch()."
            )

    def _bind(self, batch: ReplayBatch) -> None:
        """Note all addresses in the batch; needed again when the room for final observations has grown."""
        self._check_batch(batch)
        sizes = (self._memory.size, self._finals.size, batch.memory.size, batch.rows.size)
        where = addresses(
            self._memory, self._finals, self._ring, self._streams, batch.rows, batch.memory, batch.layout
        )
        batch.table = np.concatenate([np.array(sizes, dtype=np.int64), where])
        batch.bound_to = self._finals

    @property
    def _by_env(self) -> NDArray[np.uint8]:
        return self._memory.reshape(self.n_envs, -1)

    @property
    def _stored(self) -> tuple[Any, ...]:
        """What `gather` reads."""
        return self._memory, self._numbers, self._marks, self._finals, self._ring, self.layout.gamma

    def _checked(self, *step: Any) -> tuple[NDArray[Any], ...]:
        """Arguments of a push in the form that kernels take; also makes room for final observations."""
        if self._row_streams is not None:
            raise HotloopError("This buffer stores rows (push_rows()); create another one for vector steps.")
        if not self._started:
            raise HotloopError("push() before start(): pass the observations of reset() to start() first.")
        checked = self.layout.checked_step(*step)
        if checked[-1] is not NO_BYTES:
            self.make_room(self.n_envs)
        return checked

    def make_room(self, ends: int) -> None:
        """Make room for the final observations of `ends` more episodes; `push` does so itself."""
        if self._ring[kernels.FREE] >= ends:
            return
        before = self._free.size
        after = max(2 * before, before + ends, 16)
        finals = np.zeros(after * self.layout.frame_bytes, dtype=np.uint8)
        finals[: self._finals.size] = self._finals
        free = np.zeros(after, dtype=np.int64)
        waiting = int(self._ring[kernels.FREE])
        free[: after - before] = np.arange(after - 1, before - 1, -1)
        free[after - before : after - before + waiting] = self._free[:waiting]
        self._finals, self._free = finals, free
        self._ring[kernels.FREE] = after - before + waiting

    def _set_new_priorities(self) -> None:
        """Give the newest transitions the largest priority so far, and those just overwritten none."""
        length = self._length
        newest, gone = (
            (int(self._ring[kernels.TIME]) - back) % length
            for back in (1, 1 + int(self._ring[kernels.SLOTS]))
        )
        holes = self._records["marks"][:, newest] & kernels.HOLE
        self._one_step[...] = np.where(holes, 0.0, self._largest_priority)
        set_range(self._tree, newest * self.n_envs, self._one_step)
        self._one_step[...] = 0.0
        set_range(self._tree, gone * self.n_envs, self._one_step)
