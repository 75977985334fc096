"""The recorder in plain Python; `_core.c` is the same, compiled.

A thread writes only its own arena, so no lock is taken between the start and the end of a region.

A signal handler of the user's may raise in any line of this. What it raises is passed on; errors of our own
are printed and never reach the user's code. arena.py says how its figures stay whole.

Times add up because the time between two events of a thread belongs to the node on top of its stack (to the
root when the stack is empty). Own times therefore sum to the wall time of the thread, in whatever order
regions are closed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from operator import index
from typing import Any

from hotloop._util.interrupts import is_users, report_own
from hotloop.capture import layout
from hotloop.measure.core_shared import describe_region, user_site
from hotloop.measure.part import Part
from hotloop.measure.twin.arena import (
    ARENA_AT,
    LAST,
    LOWER_HALF,
    PROGRESS,
    PROGRESS_SLICE,
    SEQ,
    WINDOW_COUNT,
    Arena,
    Node,
    add_node,
)
from hotloop.measure.twin.region import Region
from hotloop.measure.twin.rss_sampler import RssSampler

KIND = layout.CORE_PYTHON
SAMPLE_INTERVAL_S = 0.05
HOOKS_NAME = "hotloop_hooks"  # the region for hooks after wrapped calls

_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()
_epochs = iter(range(1, sys.maxsize))


class _ThreadEnd:
    """Kept in a thread's local storage, so that its end is the end of the thread.

    Not of the main thread: Python would drop what a signal handler raises during `__del__`.
    """

    arena: Arena | None = None

    def __del__(self) -> None:
        arena = self.arena
        if arena is None:
            return
        if arena.epoch == arena.recorder.epoch and arena.state == layout.ARENA_LIVE:
            arena.settle(arena.recorder.now())
            arena.words[ARENA_AT["cpu_ns"]] = max(time.thread_time_ns() - arena.cpu_start, 0)
            arena.state = layout.ARENA_ENDED
            arena.publish()


def _never_back(clock: Callable[[], int]) -> Callable[[], int]:
    """A clock that stands still when the given one goes back."""
    last = 0

    def now() -> int:
        nonlocal last
        last = max(last, clock())
        return last

    return now


class Recorder:
    """The regions, threads and part of one profiler."""

    def __init__(self, clock: Callable[[], int] | None = None):
        self.clock = clock
        self.now: Callable[[], int] = time.monotonic_ns if clock is None else _never_back(clock)
        self.epoch = 0  # 0 while off; a new number after every start and fork
        self._paused_epoch = 0  # the one to return to
        self.flags = 0
        self.local = threading.local()
        self.device: Any = None
        self.part: Part | None = None
        self.on_window: Callable[[int], None] | None = None
        self.on_steps: Callable[[], None] | None = None
        self.name_gap: Callable[[Region, Region], Region] | None = None
        self._gaps: dict[tuple[Region, Region], Region] = {}
        self.steps_due = 0
        self.locate = False  # whether new nodes note the calling line of the user's code
        self.after_work: Callable[[], None] | None = None  # called once the interrupted work is done
        self._regions: dict[tuple[str, str | None], Region] = {}
        self._numbers = iter(range(sys.maxsize))
        self._published: set[int] = set()  # numbers of the regions whose names are in the part
        self.arenas: list[Arena] = []
        self._folded: Arena | None = None
        self._node_count = 0
        self._open_part: Callable[[], Part] | None = None
        self._sampler: RssSampler | None = None
        self._sample_memory = True
        self._lock = threading.RLock()
        _recorders.add(self)

    # -- regions ---------------------------------------------------------------------------------

    def profile(self, name: str, category: str | None = None, *, device: bool | None = None) -> Region:
        """The region with that name: use it in a `with` statement or as a decorator, or keep it."""
        found = self._regions.get((name, category))
        return found if found is not None else self._intern(name, category, device)

    def _intern(self, name: str, category: str | None, device: bool | None) -> Region:
        on_device, site = describe_region(name, category, device)
        if len(self._regions) >= layout.MAX_REGIONS - 2:
            if self.part is not None:
                self.safely(
                    self.part.raise_flag,
                    layout.FLAG_NAMES_OVERFLOW,
                    f"more than {layout.MAX_REGIONS} distinct region names; the rest is recorded "
                    f"under {layout.OTHER_NAMES!r}",
                )
            return self._other(layout.OTHER_NAMES)
        with self._lock:
            return self._regions.get((name, category)) or self._regions.setdefault(
                (name, category), Region(self, next(self._numbers), name, category or "", on_device, site)
            )

    def _other(self, name: str) -> Region:
        with self._lock:
            return self._regions.get((name, "other")) or self._regions.setdefault(
                (name, "other"), Region(self, next(self._numbers), name, "other", False, "")
            )

    def make_child(self, arena: Arena, parent: Node, region: Region) -> Node:
        """A new node, or the node of this thread for paths beyond the limit."""
        assert self.part is not None
        if self._node_count >= layout.MAX_NODES - layout.MAX_ARENAS:
            self.part.raise_flag(
                layout.FLAG_PATHS_OVERFLOW,
                f"more than {layout.MAX_NODES} distinct paths; the rest is recorded under "
                f"{layout.OTHER_PATHS!r}",
            )
            region, parent = self._other(layout.OTHER_PATHS), arena.nodes[0]
            if region in parent.children:
                return parent.children[region]
        self._publish(region)
        node = arena.add_node(parent, region)
        self._node_count += 1
        if self.locate and (site := user_site()):
            holder = self.profile(site, layout.SITE_CATEGORY)
            self._publish(holder)
            node.write("site", holder.number + 1, "<I")
        return node

    def _publish(self, region: Region) -> None:
        """Write the name of a region to the part: before anything there refers to it."""
        if region.number not in self._published:
            assert self.part is not None
            self.part.publish_region(region.number, region.name, region.category, region.site)
            self._published.add(region.number)

    def safely(self, action: Callable[..., Any], *args: Any, otherwise: Any = None) -> Any:
        """What `action(*args)` returns, or `otherwise` after an error of our own, which is printed."""
        try:
            return action(*args)
        except Exception as error:
            if is_users(error):
                raise
            report_own(error)
            return otherwise

    # -- starting and stopping -------------------------------------------------------------------

    def start(self, open_part: Callable[[], Part], sample_memory: bool = True, lazily: bool = False) -> None:
        """Record into the part that `open_part` creates, here and in forked children.

        With `lazily`, the part is created at the first region, as it is after a fork.
        """
        self._open_part = open_part
        self._sample_memory = sample_memory
        epoch = next(_epochs)
        if not lazily:
            self._open()
        self.epoch = epoch
        if not lazily:
            self.attach()

    def _open(self) -> None:
        assert self._open_part is not None
        published: set[int] = set()
        part = self._open_part()
        sampler = None
        try:
            self.part = part  # the sampler looks for it
            sampler = RssSampler(self, SAMPLE_INTERVAL_S, self._sample_memory)
            if self.clock is None:
                self.safely(sampler.start)  # there may be no more threads
        except BaseException:
            self.part = None
            if sampler is not None:
                sampler.stop()
            part.forget()
            raise
        # Plain assignments from here on, in `start` as well.
        self.arenas, self._folded, self._node_count, self._published = [], None, 0, published
        self._sampler = sampler

    def stop(self) -> Part | None:
        """Stop recording; open regions count up to now."""
        self.resume()
        if not self.epoch:
            return None
        now, pid = self.now(), os.getpid()
        mine = getattr(self.local, "arena", None)
        epoch, sampler, part = self.epoch, self._sampler, self.part
        self.epoch, self._sampler, self.part = 0, None, None
        if part is None:
            return None
        try:
            if part.pid != pid:
                part.forget()
                return None
            if sampler is not None:
                sampler.stop()
            if mine is not None and mine.epoch == epoch:  # others may be in the middle of an update
                mine.settle(now)
                mine.take_window(now)
            part.close(now)
        except BaseException:  # of a signal handler: do what is left
            if sampler is not None:
                sampler.stop()
            part.close(now)
            raise
        return part

    @property
    def at_work(self) -> bool:
        """Whether the calling thread is in the middle of our bookkeeping: a handler or a finalizer asks."""
        arena = getattr(self.local, "arena", None)
        return getattr(self.local, "attaching", False) or (arena is not None and arena.busy)

    def pause(self) -> None:
        """Record nothing until `resume`; the part stays open."""
        if self.epoch:
            self.epoch, self._paused_epoch = 0, self.epoch

    def resume(self) -> None:
        """Continue after `pause`."""
        if self._paused_epoch:
            self.epoch, self._paused_epoch = self._paused_epoch, 0

    def after_fork(self) -> None:
        """In the child: everything recorded so far belongs to the parent."""
        self._lock = threading.RLock()
        self._sampler = None
        if self.epoch:
            self.epoch = next(_epochs)
        elif self._paused_epoch:
            self._paused_epoch = next(_epochs)

    def attach(self) -> Arena | None:
        """The arena of the calling thread; in a forked child this first opens its own part."""
        if getattr(self.local, "attaching", False):
            return None  # a signal handler or finalizer interrupted us
        local = self.local
        end = None if threading.current_thread() is threading.main_thread() else _ThreadEnd()
        local.attaching = True
        try:
            with self._lock:
                if not self.epoch:
                    return None
                if self.part is None or self.part.pid != os.getpid():
                    if self.part is not None:
                        self.part.forget()
                    self._open()
                arena = self._free_arena()
                if arena is not None:
                    local.arena = arena
                    if end is not None:
                        end.arena, local.end = arena, end
        except Exception as error:
            if is_users(error):
                raise
            report_own(error)
            self.epoch = 0  # cannot be recorded
            return None
        finally:
            local.attaching = False
        return arena

    def _free_arena(self) -> Arena | None:
        now = self.now()
        assert self.part is not None
        # Signal handlers interrupt the main thread only, and must not interrupt this.
        may_fold = threading.current_thread() is not threading.main_thread()
        if len(self.arenas) >= layout.FOLD_AFTER and may_fold:
            for arena in self.arenas:
                if arena.state == layout.ARENA_ENDED:
                    self._fold(arena, now)
                    arena.begin()
                    arena.reset(now, layout.ARENA_LIVE)
                    arena.publish()
                    arena.end()
                    return arena
        number = len(self.arenas)
        if number >= layout.MAX_ARENAS:
            self.part.raise_flag(
                layout.FLAG_THREADS_OVERFLOW,
                f"more than {layout.MAX_ARENAS} threads at the same time; the rest is not recorded",
            )
            return None
        arena = Arena(self, self.part, number, now, layout.ARENA_LIVE)
        self.arenas[number:] = (arena,)
        return arena

    def _fold(self, ended: Arena, now: int) -> None:
        """Add the figures of an ended thread to the arena shared by all such threads."""
        assert self.part is not None
        if self._folded is None:
            self._folded = Arena(self, self.part, len(self.arenas), now, layout.ARENA_FOLDED)
            self.arenas.append(self._folded)
        into = self._folded
        into.begin()
        for node, _, start, *_ in ended.frames[: ended.depth]:
            node.count(ended.last - start)
        twins: dict[int, Node] = {}
        for node in ended.nodes:
            twin = into.nodes[0]
            if node.parent is not None and node.region is not None:
                twin = into.child(twins[node.parent.index], node.region)
            twins[node.index] = twin
            add_node(twin, node)
        words = into.words
        words[ARENA_AT["folded_wall_ns"]] += ended.last - ended.words[ARENA_AT["start_ns"]]
        words[ARENA_AT["folded_cpu_ns"]] += ended.words[ARENA_AT["cpu_ns"]]
        into.progress = [a + b for a, b in zip(into.progress, ended.progress, strict=True)]
        into.view[PROGRESS_SLICE] = PROGRESS.pack(*into.progress)
        into.last = words[LAST] = now
        words[WINDOW_COUNT] += LOWER_HALF + 1  # one folded thread more
        into.publish()
        into.end()
        if now >= into.due:
            into.take_window(now)

    # -- progress and windows --------------------------------------------------------------------

    def progress(
        self,
        *,
        env_steps: int = 0,
        updates: int = 0,
        episodes: int = 0,
        episode_length: float | None = None,
        episode_return: float | None = None,
        loss: float | None = None,
    ) -> None:
        """Count work done since the last call; the values are means over `episodes` (1 if 0)."""
        counts = {"env_steps": env_steps, "updates": updates, "episodes": episodes}
        for name, value in counts.items():
            if not 0 <= index(value) < 2**63:
                wrong = "is too large" if index(value) > 0 else "must not be negative: counts only rise"
                raise ValueError(f"progress({name}={value!r}) {wrong}.")
        if not self.epoch:
            return
        arena = getattr(self.local, "arena", None)
        if arena is None or arena.epoch != self.epoch:
            arena = self.attach()
            if arena is None:
                return
        now = self.now()
        values = list(arena.progress)
        for at, count in enumerate(counts.values()):
            values[at] = (values[at] + index(count)) % 2**64
        for at, mean, weight in (
            (3, episode_length, episodes or 1),
            (5, episode_return, episodes or 1),
            (7, loss, updates or 1),
        ):
            if mean is not None:
                values[at] += float(mean) * weight
                values[at + 1] = (values[at + 1] + index(weight)) % 2**64
        packed = PROGRESS.pack(*values)
        words = arena.words
        # Plain assignments: all or nothing, whatever a signal handler does.
        words[SEQ] = arena.seq + 1
        arena.progress = values
        arena.view[PROGRESS_SLICE] = packed
        arena.seq = words[SEQ] = arena.seq + 2
        if arena.busy:
            return  # called by a signal handler in the middle of our bookkeeping
        if now >= arena.due:
            arena.settle(now)
            self.window(arena, now)
        if self.steps_due and env_steps and self.on_steps is not None:
            self.steps_due -= env_steps
            if self.steps_due <= 0:
                self.steps_due = 0  # the callback sets it again
                self.on_steps()

    def window(self, arena: Arena, now: int) -> None:
        """Take the window of the thread, then run the on_window callbacks."""
        arena.busy = True
        try:
            self.safely(arena.take_window, now)
            if self.part is not None:
                self.safely(self.part.window_taken, now)
            if self.device is not None:
                self.safely(self.device.collect)
        finally:
            arena.busy = False
        if self.after_work is not None:
            self.finish_work()
        if self.on_window is not None:
            self.safely(self.on_window, now)

    def finish_work(self) -> None:
        """Do what was asked for in the middle of our bookkeeping."""
        action, self.after_work = self.after_work, None
        if action is not None:
            self.safely(action)

    def credit_gap(self, arena: Arena, before: Region, after: Region, now: int) -> None:
        """Turn the time between two outermost regions into a call of a region named after them."""
        gap = self._gaps.get((before, after))
        if gap is None:
            if self.name_gap is None:
                return
            gap = self._gaps[before, after] = self.name_gap(before, after)
        arena.credit(arena.child(arena.open[arena.depth], gap), now)

    def credit_hook(self) -> None:
        """Record the time since the last event as our own: hooks after wrapped calls are overhead."""
        region = self.profile(HOOKS_NAME, "hotloop")
        arena = getattr(self.local, "arena", None)
        if not self.epoch or arena is None or arena.epoch != self.epoch or arena.overflow or arena.busy:
            return
        arena.busy = True
        try:
            arena.credit(arena.child(arena.open[arena.depth], region), self.now())
        finally:
            arena.busy = False

    def open_node(self, native_id: int) -> tuple[int, int]:
        """Number of the thread with that native id and index of its innermost open region.

        (-1, 0) for a thread that has opened none.
        """
        for arena in self.arenas:
            if self.epoch and arena.state == layout.ARENA_LIVE and arena.native_id == native_id:
                return arena.number, arena.open[arena.depth].index
        return -1, 0

    def sample_lines(self, own: str, libraries: tuple[str, ...], interval_ns: int = 0) -> str | None:
        """Why lines cannot be sampled without the GIL; the compiled core can, and returns None."""
        return "only the compiled core can read stacks without the GIL"

    def take_line_sample(self) -> None:
        """Nothing to do: this core takes no samples."""

    def save_samples(self) -> None:
        """Nothing to do: this core takes no samples while the part is not open."""

    def credit_device(self, node: Node, device_ns: int | None, growth: int, peak: int) -> None:
        """Add device time and memory to `node`; called by the thread that owns it."""
        if device_ns is not None:
            node.write("device_ns", node.read("device_ns") + device_ns)
            node.write("device_calls", node.read("device_calls") + 1)
        else:
            node.write("device_growth_bytes", node.read("device_growth_bytes", "<q") + growth, "<q")
            node.write("device_peak_bytes", max(node.read("device_peak_bytes"), peak))

    # -- memory ----------------------------------------------------------------------------------

    def sample(self) -> None:
        """Write a heartbeat and sample memory now; with an injected clock, nothing else does."""
        if self._sampler is not None:
            self._sampler.sample()

    def credit_memory(self, growth: int, level: int) -> None:
        """Share growth between the innermost open regions of all threads; called by the sampler."""
        busy = [a for a in self.arenas if a.state == layout.ARENA_LIVE and a.depth]
        for arena in busy:
            try:
                nodes = [frame[0] for frame in arena.frames[: arena.depth]]
                innermost = nodes[-1]
            except IndexError:  # the thread has moved on
                continue
            share = growth // len(busy)
            innermost.write("rss_growth_bytes", innermost.read("rss_growth_bytes", "<q") + share, "<q")
            for node in nodes:
                node.write("rss_peak_bytes", max(node.read("rss_peak_bytes"), level))
                node.write("rss_samples", node.read("rss_samples") + 1)


def _after_fork_in_child() -> None:
    for recorder in list(_recorders):
        recorder.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
