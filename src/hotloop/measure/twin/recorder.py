"""The recorder in plain Python; `_core.c` is the same, compiled.

A thread writes only its own arena, so no lock is taken between the start and the end of a region.

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

from hotloop.capture import layout
from hotloop.measure.core_shared import describe_region, user_site
from hotloop.measure.part import Part
from hotloop.measure.twin.arena import ARENA_AT, LAST, PROGRESS, PROGRESS_SLICE, Arena, Node, add_node
from hotloop.measure.twin.region import Region
from hotloop.measure.twin.rss_sampler import RssSampler

KIND = layout.CORE_PYTHON
SAMPLE_INTERVAL_S = 0.05
HOOKS_NAME = "hotloop_hooks"  # the region for hooks after wrapped calls

_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()
_epochs = iter(range(1, sys.maxsize))


class _ThreadEnd:
    """Kept in a thread's local storage, so that its end is the end of the thread."""

    __slots__ = ("arena",)

    def __init__(self, arena: Arena):
        self.arena = arena

    def __del__(self) -> None:
        arena = self.arena
        if arena.epoch == arena.recorder.epoch and arena.state == layout.ARENA_LIVE:
            arena.settle(arena.recorder.now())
            arena.words[ARENA_AT["cpu_ns"]] = max(time.thread_time_ns() - arena.cpu_start, 0)
            arena.state = layout.ARENA_ENDED
            arena.publish()


class Recorder:
    """The regions, threads and part of one profiler."""

    def __init__(self, clock: Callable[[], int] | None = None):
        self.clock = clock
        self.now: Callable[[], int] = clock or time.monotonic_ns
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
        self._regions: dict[tuple[str, str | None], Region] = {}
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
        with self._lock:
            key = (name, category)
            if key not in self._regions:
                number = len(self._regions)
                if number >= layout.MAX_REGIONS - 2:
                    return self._other(layout.OTHER_NAMES)
                region = Region(self, number, name, category or "", on_device, site)
                self._regions[key] = region
                if self.part is not None and self.part.pid == os.getpid():
                    self.part.add_region(region.name, region.category, region.site)
            return self._regions[key]

    def _other(self, name: str) -> Region:
        key = (name, "other")
        with self._lock:
            if key not in self._regions:
                region = Region(self, len(self._regions), name, "other", False, "")
                self._regions[key] = region
                if self.part is not None:
                    self.part.add_region(name, "other", "")
        if self.part is not None and name == layout.OTHER_NAMES:
            self.part.raise_flag(
                layout.FLAG_NAMES_OVERFLOW,
                f"more than {layout.MAX_REGIONS} distinct region names; the rest is recorded "
                f"under {layout.OTHER_NAMES!r}",
            )
        return self._regions[key]

    def make_child(self, arena: Arena, parent: Node, region: Region) -> Node:
        """A new node, or the node of this thread for paths beyond the limit."""
        if self._node_count >= layout.MAX_NODES - layout.MAX_ARENAS:
            if self.part is not None:
                self.part.raise_flag(
                    layout.FLAG_PATHS_OVERFLOW,
                    f"more than {layout.MAX_NODES} distinct paths; the rest is recorded under "
                    f"{layout.OTHER_PATHS!r}",
                )
            other = self._other(layout.OTHER_PATHS)
            root = arena.nodes[0]
            if other not in root.children:
                root.children[other] = arena.add_node(root, other)
            return root.children[other]
        self._node_count += 1
        node = parent.children[region] = arena.add_node(parent, region)
        if self.locate and (site := user_site()):
            node.write("site", self.profile(site, layout.SITE_CATEGORY).number + 1, "<I")
        return node

    # -- starting and stopping -------------------------------------------------------------------

    def start(self, open_part: Callable[[], Part], sample_memory: bool = True, lazily: bool = False) -> None:
        """Record into the part that `open_part` creates, here and in forked children.

        With `lazily`, the part is created at the first region, as it is after a fork.
        """
        self._open_part = open_part
        self._sample_memory = sample_memory
        if not lazily:
            self._open()
        self.epoch = next(_epochs)
        if not lazily:
            self.attach()

    def _open(self) -> None:
        assert self._open_part is not None
        self.arenas = []
        self._folded = None
        self._node_count = 0
        self.part = self._open_part()
        for region in sorted(self._regions.values(), key=lambda r: r.number):
            self.part.add_region(region.name, region.category, region.site)
        self._sampler = RssSampler(self, SAMPLE_INTERVAL_S, self._sample_memory)
        if self.clock is None:
            self._sampler.start()

    def stop(self) -> Part | None:
        """Stop recording; open regions count up to now."""
        self.resume()
        if not self.epoch:
            return None
        now = self.now()
        self.epoch, epoch = 0, self.epoch
        if self.part is None:
            return None
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None
        part, self.part = self.part, None
        if part.pid != os.getpid():
            part.forget()
            return None
        mine = getattr(self.local, "arena", None)
        if mine is not None and mine.epoch == epoch:  # not for others: they may be in the middle of an update
            mine.settle(now)
            mine.take_window(now)
        part.close(now)
        return part

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
        self.local.attaching = True
        try:
            with self._lock:
                if not self.epoch:
                    return None
                if self.part is None or self.part.pid != os.getpid():
                    if self.part is not None:
                        self.part.forget()
                    self._open()
                arena = self._free_arena()
        finally:
            self.local.attaching = False
        if arena is not None:
            self.local.arena = arena
            self.local.end = _ThreadEnd(arena)
        return arena

    def _free_arena(self) -> Arena | None:
        now = self.now()
        assert self.part is not None
        if len(self.arenas) >= layout.FOLD_AFTER:
            for arena in self.arenas:
                if arena.state == layout.ARENA_ENDED:
                    self._fold(arena, now)
                    arena.begin()
                    arena.reset(now, layout.ARENA_LIVE)
                    arena.publish(0)
                    arena.end()
                    return arena
        if len(self.arenas) >= layout.MAX_ARENAS:
            self.part.raise_flag(
                layout.FLAG_THREADS_OVERFLOW,
                f"more than {layout.MAX_ARENAS} threads at the same time; the rest is not recorded",
            )
            return None
        arena = Arena(self, self.part, len(self.arenas), now, layout.ARENA_LIVE)
        self.arenas.append(arena)
        return arena

    def _fold(self, ended: Arena, now: int) -> None:
        """Add the figures of an ended thread to the arena shared by all such threads."""
        assert self.part is not None
        if self._folded is None:
            self._folded = Arena(self, self.part, len(self.arenas), now, layout.ARENA_FOLDED)
            self.arenas.append(self._folded)
        into = self._folded
        into.begin()
        for node, _, start in ended.frames:
            ended.finish(node, start, ended.last)
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
        into.publish((words[ARENA_AT["window_count"]] >> 32) + 1)
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
            if index(value) < 0:
                raise ValueError(f"progress({name}={value!r}) must not be negative: counts only rise.")
        if not self.epoch:
            return
        arena = getattr(self.local, "arena", None)
        if arena is None or arena.epoch != self.epoch:
            arena = self.attach()
            if arena is None:
                return
        now = self.now()
        values = arena.progress
        for at, count in enumerate(counts.values()):
            values[at] += index(count)
        for at, mean, weight in (
            (3, episode_length, episodes or 1),
            (5, episode_return, episodes or 1),
            (7, loss, updates or 1),
        ):
            if mean is not None:
                values[at] += float(mean) * weight
                values[at + 1] += weight
        arena.begin()
        arena.view[PROGRESS_SLICE] = PROGRESS.pack(*values)
        arena.end()
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
        arena.take_window(now)
        if self.part is not None:
            self.part.window_taken(now)
        if self.device is not None:
            self.device.collect()
        if self.on_window is not None:
            self.on_window(now)

    def credit_gap(self, arena: Arena, before: Region, after: Region, now: int) -> None:
        """Turn the time between two outermost regions into a call of a region named after them."""
        gap = self._gaps.get((before, after))
        if gap is None:
            if self.name_gap is None:
                return
            gap = self._gaps[before, after] = self.name_gap(before, after)
        self._credit_time(arena, gap, now)

    def credit_hook(self) -> None:
        """Record the time since the last event as our own: hooks after wrapped calls are overhead."""
        region = self.profile(HOOKS_NAME, "hotloop")
        arena = getattr(self.local, "arena", None)
        if self.epoch and arena is not None and arena.epoch == self.epoch and not arena.overflow:
            self._credit_time(arena, region, self.now())

    def _credit_time(self, arena: Arena, region: Region, now: int) -> None:
        """Turn the time since the last event into a completed call below the innermost open region."""
        node = arena.child(arena.open[-1], region)
        arena.begin()
        arena.finish(node, arena.last, now)
        node.own += now - arena.last
        node.save()
        arena.last = arena.words[LAST] = now
        arena.end()

    def open_node(self, native_id: int) -> tuple[int, int]:
        """Number of the thread with that native id and index of its innermost open region.

        (-1, 0) for a thread that has opened none.
        """
        for arena in self.arenas:
            if self.epoch and arena.state == layout.ARENA_LIVE and arena.native_id == native_id:
                return arena.number, arena.open[-1].index
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
                nodes = [node for node, _, _ in arena.frames[: arena.depth]]
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
