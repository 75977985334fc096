"""The recorder in plain Python: what the compiled core (`_core.c`) does, slower and obvious.

Same names, same file, same results: every test of the recorder runs on both. A thread writes only
its own arena, so nothing here takes a lock between a region's start and its end.

The rule that makes times add up: between two events of a thread, the time that passed belongs to
the node on top of its stack (the root when the stack is empty). Own times therefore sum to the
thread's wall time whatever order regions are closed in.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from operator import index
from typing import Any

from hotloop.capture import layout
from hotloop.measure import memory
from hotloop.measure.part import Part
from hotloop.measure.regions import describe, user_site

KIND = layout.CORE_PYTHON
SAMPLE_INTERVAL_S = 0.05
SWITCH_TIMELINE, SWITCH_SEGMENT = 1, 2  # bits of `Recorder.switches`

_ARENA_AT = {name: (32 + at) // 8 for name, at in layout.offsets("ARENA").items()}
_SEQ, _LAST, _DEPTH = _ARENA_AT["seq"], _ARENA_AT["last_ns"], _ARENA_AT["depth"]
_STACK, _COUNTS = _ARENA_AT["stack"], _ARENA_AT["state"]
_FRAME_WORDS = layout.item_bytes("FRAME") // 8
_WINDOWS_AT = 32 + layout.offsets("ARENA")["windows"]
_WINDOW_BYTES = layout.item_bytes("WINDOW")
_PROGRESS_AT = 32 + layout.offsets("ARENA")["progress"]
_PROGRESS = struct.Struct("<3QdQdQdQ")
_PROGRESS_SLICE = slice(_PROGRESS_AT, _PROGRESS_AT + _PROGRESS.size)
_NODE_BYTES = layout.item_bytes("NODE")
_NODE_AT = layout.offsets("NODE")
_BLOCK_AT = layout.offsets("NODE_BLOCK")
# Readers look at any time, and `pack_into` clears the bytes before it writes them: what they may see
# half way is therefore packed first and then put in place in one copy.
_HOT = struct.Struct("<6Qd")  # calls .. squares
_NODE_WINDOW = struct.Struct("<3Q")
_NODE_WINDOWS_BYTES = layout.item_bytes("NODE_WINDOWS")
_BUCKET_WORDS = layout.BUCKETS
_EVENT = struct.Struct("<IIQQ")
_EVENTS_AT = layout.offsets("EVENT_BLOCK")["events"]
_OCTAVE_BASE = layout.FIRST_OCTAVE * 4
_LAST_BUCKET = layout.BUCKETS - 1

_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()
_epochs = iter(range(1, sys.maxsize))


class Node:
    """A path of one thread: the figures in plain attributes, and where they go in the file."""

    __slots__ = (
        "bucket_word",
        "buckets",
        "bytes_view",
        "calls",
        "children",
        "first",
        "hot",
        "index",
        "least",
        "most",
        "own",
        "parent",
        "region",
        "squares",
        "start",
        "total",
        "window_at",
    )

    def __init__(self, number: int, parent: Node | None, region: Region | None, block: memoryview):
        slot = number % layout.NODES_PER_BLOCK
        self.index = number
        self.parent = parent
        self.region = region
        self.children: dict[Region, Node] = {}
        self.bytes_view = block
        self.start = _BLOCK_AT["nodes"] + slot * _NODE_BYTES
        self.hot = slice(self.start + _NODE_AT["calls"], self.start + _NODE_AT["calls"] + _HOT.size)
        self.buckets = block.cast("Q")
        self.bucket_word = _BLOCK_AT["buckets"] // 8 + slot * _BUCKET_WORDS
        self.window_at = _BLOCK_AT["windows"] + slot * _NODE_WINDOWS_BYTES
        self.clear()
        struct.pack_into("<I", block, self.at("region"), region.number if region else layout.UNNAMED)
        struct.pack_into("<I", block, self.at("parent"), parent.index if parent else layout.NO_PARENT)

    def at(self, field: str) -> int:
        """Byte offset of a field in the block."""
        return self.start + _NODE_AT[field]

    def clear(self) -> None:
        """All figures back to zero."""
        self.calls = self.total = self.own = self.first = self.least = self.most = 0
        self.squares = 0.0
        start = self.at("region")
        site = self.read("site", "<I")
        self.bytes_view[start + 4 : start + _NODE_BYTES] = bytes(_NODE_BYTES - 4)
        self.write("site", site, "<I")
        struct.pack_into(
            "<I", self.bytes_view, self.at("parent"), self.parent.index if self.parent else layout.NO_PARENT
        )
        self.bytes_view[self.bucket_word * 8 : (self.bucket_word + _BUCKET_WORDS) * 8] = bytes(
            _BUCKET_WORDS * 8
        )
        self.bytes_view[self.window_at : self.window_at + _NODE_WINDOWS_BYTES] = bytes(_NODE_WINDOWS_BYTES)

    def save(self) -> None:
        """Write the figures every event touches."""
        self.bytes_view[self.hot] = _HOT.pack(
            self.calls,
            self.total,
            self.own,
            self.least,
            self.most,
            self.first,
            self.squares,
        )

    def read(self, field: str, code: str = "<Q") -> Any:
        """One of the rarely written fields."""
        return struct.unpack_from(code, self.bytes_view, self.at(field))[0]

    def write(self, field: str, value: float, code: str = "<Q") -> None:
        """Set one of the rarely written fields."""
        struct.pack_into(code, self.bytes_view, self.at(field), value)


class Arena:
    """What one thread writes."""

    __slots__ = (
        "__weakref__",
        "cpu_start",
        "depth",
        "due",
        "epoch",
        "event_count",
        "events",
        "frames",
        "interval",
        "last",
        "last_outermost",
        "nodes",
        "number",
        "open",
        "overflow",
        "part",
        "progress",
        "recorder",
        "seq",
        "state",
        "view",
        "window_count",
        "words",
    )

    def __init__(self, recorder: Recorder, part: Part, number: int, now: int, state: int):
        self.recorder = recorder
        self.part = part
        self.number = number
        self.view = part.block("ARENA_BLOCK", number, 0)
        self.words = self.view.cast("Q")
        self.seq = 0
        self.nodes: list[Node] = []
        self.events: memoryview | None = None
        self.reset(now, state)
        self.add_node(None, None)
        self.open = [self.nodes[0]]
        self.publish()

    def reset(self, now: int, state: int) -> None:
        """Begin to serve a thread."""
        thread = threading.current_thread()
        self.epoch = self.recorder.epoch
        self.state = state
        self.depth = self.overflow = self.window_count = self.event_count = 0
        self.last_outermost: Region | None = None  # what ended last at depth 0, for segmenting
        self.frames: list[tuple[Node, Region, int]] = []
        self.open = self.nodes[:1]
        self.interval = layout.FIRST_WINDOW_NS
        self.last = now
        self.cpu_start = time.thread_time_ns()
        self.due = now + self.interval
        self.progress: list[Any] = [0, 0, 0, 0.0, 0, 0.0, 0, 0.0, 0]
        self.words[_ARENA_AT["start_ns"]] = now
        self.words[_LAST] = now
        for field in ("folded_wall_ns", "folded_cpu_ns", "cpu_ns", "event_count"):
            self.words[_ARENA_AT[field]] = 0
        self.words[_ARENA_AT["native_id"]] = threading.get_native_id()
        self.words[_ARENA_AT["window_interval_ns"]] = self.interval
        folded = state == layout.ARENA_FOLDED
        name = b"ended threads" if folded else thread.name.encode("utf-8", "replace")[:63]
        at = 32 + layout.offsets("ARENA")["thread_name"]
        self.view[at : at + 64] = name + bytes(64 - len(name))
        self.view[_PROGRESS_SLICE] = _PROGRESS.pack(*self.progress)
        for node in self.nodes:
            node.clear()

    def publish(self, folded_threads: int | None = None) -> None:
        """Write the small counts readers start from."""
        if folded_threads is None:
            folded_threads = self.words[_ARENA_AT["window_count"]] >> 32
        self.words[_COUNTS] = self.state | len(self.nodes) << 32
        self.words[_DEPTH] = self.depth | self.overflow << 32
        self.words[_ARENA_AT["window_count"]] = self.window_count | folded_threads << 32

    def begin(self) -> None:
        """Readers, wait: an update is under way."""
        self.words[_SEQ] = self.seq + 1

    def end(self) -> None:
        """The update is complete."""
        self.seq += 2
        self.words[_SEQ] = self.seq

    def add_node(self, parent: Node | None, region: Region | None) -> Node:
        """A new node, visible to readers once it is complete."""
        number = len(self.nodes)
        block = (
            self.part.block("NODE_BLOCK", self.number, number)
            if number % layout.NODES_PER_BLOCK == 0
            else self.nodes[-1].bytes_view
        )
        node = Node(number, parent, region, block)
        self.nodes.append(node)
        self.words[_COUNTS] = self.state | len(self.nodes) << 32
        return node

    def child(self, parent: Node, region: Region) -> Node:
        """The node of `region` below `parent`, made at its first use."""
        found = parent.children.get(region)
        if found is None:
            found = self.recorder.make_child(self, parent, region)
        return found

    # -- events ----------------------------------------------------------------------------------

    def settle(self, now: int) -> None:
        """Give the time since the last event to the node on top."""
        top = self.open[-1]
        self.begin()
        top.own += now - self.last
        top.save()
        self.last = self.words[_LAST] = now
        self.end()

    def close_out_of_order(self, region: Region, now: int) -> None:
        """End the nearest open call of `region` below the top; the ones above move up."""
        for position in range(self.depth - 1, -1, -1):
            if self.frames[position][1] is region:
                break
        else:
            return  # begun before recording, or before a fork: not ours to count
        self.settle(now)
        self.begin()
        node, _, start = self.frames.pop(position)
        self.finish(node, start, now)
        node.write("flags", layout.NODE_OUT_OF_ORDER, "<I")
        self.depth -= 1
        del self.open[position + 1 :]
        for place in range(position, self.depth):
            _, moved, start = self.frames[place]
            below = self.child(self.open[-1], moved)
            below.write("flags", layout.NODE_OUT_OF_ORDER, "<I")
            self.frames[place] = (below, moved, start)
            self.open.append(below)
            self.save_frame(place)
        self.words[_DEPTH] = self.depth | self.overflow << 32
        self.end()

    def finish(self, node: Node, start: int, now: int) -> None:
        """Count one completed call; the caller has settled own time."""
        duration = now - start
        if node.calls:
            if duration < node.least:
                node.least = duration
            if duration > node.most:
                node.most = duration
            node.squares += float(duration - node.first) ** 2
        else:
            node.least = node.most = node.first = duration
        node.calls += 1
        node.total += duration
        node.save()
        node.buckets[node.bucket_word + layout.bucket_of(duration)] += 1

    def save_frame(self, place: int) -> None:
        """Write one frame of the open stack."""
        node, region, start = self.frames[place]
        at = _STACK + place * _FRAME_WORDS
        self.words[at] = node.index | region.number << 32
        self.words[at + 1] = start

    def record_event(self, node: Node, start: int, now: int) -> None:
        """Add a completed call to the timeline's ring."""
        if self.events is None:
            self.events = self.part.block("EVENT_BLOCK", self.number, 0)
        at = _EVENTS_AT + self.event_count % layout.EVENTS_PER_BLOCK * _EVENT.size
        _EVENT.pack_into(self.events, at, node.index, 0, start, now - start)
        self.event_count += 1
        self.words[_ARENA_AT["event_count"]] = self.event_count

    # -- windows ---------------------------------------------------------------------------------

    def take_window(self, now: int) -> None:
        """Snapshot every node and counter; with no room left, first drop every second window."""
        self.begin()
        if self.window_count == layout.MAX_WINDOWS:
            self.thin_windows()
        at = _WINDOWS_AT + self.window_count * _WINDOW_BYTES
        cpu_ns = time.thread_time_ns() - self.cpu_start if self.state == layout.ARENA_LIVE else 0
        self.words[_ARENA_AT["cpu_ns"]] = cpu_ns
        struct.pack_into("<4Q", self.view, at, now, time.time_ns(), cpu_ns, self.part.get("rss_bytes"))
        _PROGRESS.pack_into(self.view, at + 32, *self.progress)
        for node in self.nodes:
            slot = node.window_at + self.window_count * _NODE_WINDOW.size
            _NODE_WINDOW.pack_into(node.bytes_view, slot, node.calls, node.total, node.own)
        for node, _, start in self.frames:
            slot = node.window_at + self.window_count * _NODE_WINDOW.size + 8
            total = struct.unpack_from("<Q", node.bytes_view, slot)[0]
            struct.pack_into("<Q", node.bytes_view, slot, total + now - start)
        self.window_count += 1
        self.publish()
        self.end()
        cost = self.recorder.now() - now if self.recorder.clock is None else 0
        self.due = now + max(self.interval, 1000 * cost)

    def thin_windows(self) -> None:
        """Keep the later window of each pair and double the interval."""
        half = layout.MAX_WINDOWS // 2
        for to in range(half):
            source = 2 * to + 1
            self._move(self.view, _WINDOWS_AT, _WINDOW_BYTES, source, to)
            for node in self.nodes:
                self._move(node.bytes_view, node.window_at, _NODE_WINDOW.size, source, to)
        self.window_count = half
        self.interval *= 2
        self.words[_ARENA_AT["window_interval_ns"]] = self.interval

    @staticmethod
    def _move(view: memoryview, base: int, size: int, source: int, to: int) -> None:
        view[base + to * size : base + (to + 1) * size] = view[
            base + source * size : base + (source + 1) * size
        ]


class Region:
    """A named stretch of code: made once, entered as often as you like, from any thread."""

    __slots__ = ("category", "device", "name", "number", "recorder", "site")

    def __init__(self, recorder: Recorder, number: int, name: str, category: str, device: bool, site: str):
        self.recorder = recorder
        self.number = number
        self.name = name
        self.category = category
        self.device = device
        self.site = site

    def __repr__(self) -> str:
        return f"<hotloop region {self.name!r}>"

    def __enter__(self) -> Region:
        recorder = self.recorder
        if not recorder.epoch:
            return self
        arena = getattr(recorder.local, "arena", None)
        if arena is None or arena.epoch != recorder.epoch:
            arena = recorder.attach()
            if arena is None:
                return self
        if arena.depth == layout.MAX_DEPTH:
            arena.overflow += 1
            return self
        if self.device and recorder.device is not None:
            recorder.device.enter()
        top = arena.open[-1]
        node = top.children.get(self) or arena.child(top, self)
        now = recorder.now()
        if recorder.switches & SWITCH_SEGMENT and not arena.depth and arena.last_outermost is not None:
            recorder.credit_gap(arena, arena.last_outermost, self, now)
        words = arena.words
        words[_SEQ] = arena.seq + 1
        top.own += now - arena.last
        top.bytes_view[top.hot] = _HOT.pack(
            top.calls,
            top.total,
            top.own,
            top.least,
            top.most,
            top.first,
            top.squares,
        )
        at = _STACK + arena.depth * _FRAME_WORDS
        words[at] = node.index | self.number << 32
        words[at + 1] = now
        arena.frames.append((node, self, now))
        arena.open.append(node)
        arena.depth += 1
        words[_DEPTH] = arena.depth | arena.overflow << 32
        arena.last = words[_LAST] = now
        arena.seq += 2
        words[_SEQ] = arena.seq
        return self

    def __exit__(self, *exception: object) -> None:
        recorder = self.recorder
        if not recorder.epoch:
            return
        now = recorder.now()
        arena = getattr(recorder.local, "arena", None)
        if arena is None or arena.epoch != recorder.epoch:
            return  # begun before recording, or before a fork
        if arena.overflow:
            arena.overflow -= 1
            return
        if not arena.depth or arena.frames[-1][1] is not self:
            arena.close_out_of_order(self, now)
        else:
            words = arena.words
            node, _, start = arena.frames.pop()
            arena.open.pop()
            words[_SEQ] = arena.seq + 1
            node.own += now - arena.last
            duration = now - start
            if node.calls:
                if duration < node.least:
                    node.least = duration
                if duration > node.most:
                    node.most = duration
                node.squares += float(duration - node.first) ** 2
            else:
                node.least = node.most = node.first = duration
            node.calls += 1
            node.total += duration
            node.bytes_view[node.hot] = _HOT.pack(
                node.calls,
                node.total,
                node.own,
                node.least,
                node.most,
                node.first,
                node.squares,
            )
            if duration >= 16:
                octave = duration.bit_length() - 1
                bucket = octave * 4 - _OCTAVE_BASE + ((duration >> (octave - 2)) & 3)
                if bucket > _LAST_BUCKET:
                    bucket = _LAST_BUCKET
            else:
                bucket = 0
            node.buckets[node.bucket_word + bucket] += 1
            arena.depth -= 1
            words[_DEPTH] = arena.depth
            arena.last = words[_LAST] = now
            arena.seq += 2
            words[_SEQ] = arena.seq
            if recorder.switches:
                if recorder.switches & SWITCH_TIMELINE:
                    arena.record_event(node, start, now)
                if not arena.depth:
                    arena.last_outermost = self
            if self.device and recorder.device is not None:
                recorder.device.exit(node)
        if now >= arena.due:
            recorder.window(arena, now)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Use as a decorator: every call of `function` is one call of this region."""
        from hotloop.measure.decorate import decorate

        return decorate(self, function)

    def is_open(self) -> bool:
        """Whether the calling thread is inside this region."""
        recorder = self.recorder
        arena = getattr(recorder.local, "arena", None)
        if not recorder.epoch or arena is None or arena.epoch != recorder.epoch:
            return False
        return any(region is self for _, region, _ in arena.frames)

    def wrap(
        self,
        function: Callable[..., Any],
        *,
        outer: Region | None = None,
        alone: tuple[Region, ...] = (),
        choose: Callable[[], object] | None = None,
        otherwise: Region | None = None,
        after: Callable[[Any, Any], object] | None = None,
    ) -> Callable[..., Any]:
        """A function that runs `function` inside this region.

        `outer` is opened around it unless it is open on this thread already. When one of `alone` is
        open the call is passed through and not recorded. `choose` is asked at each call: where it
        answers false, `otherwise` is the region. `after(first argument, result)` is called at the
        end of calls that opened `outer` (of all calls when there is none); what it raises is
        reported and goes no further.
        """

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if not self.recorder.epoch or any(region.is_open() for region in alone):
                return function(*args, **kwargs)
            region = self
            if choose is not None and otherwise is not None and not choose():
                region = otherwise
            around = outer if outer is not None and not outer.is_open() else None
            with around or nullcontext(), region:
                result = function(*args, **kwargs)
            if after is not None and (around is not None or outer is None):
                try:
                    after(args[0] if args else None, result)
                except Exception:
                    sys.excepthook(*sys.exc_info())
            return result

        return wrapped

    def add(self, *, bytes: float = 0, flops: float = 0) -> None:
        """Say what the open call of this region moved (bytes) or computed (flops)."""
        recorder = self.recorder
        arena = getattr(recorder.local, "arena", None)
        if not recorder.epoch or arena is None or arena.epoch != recorder.epoch:
            return
        for node, region, _ in reversed(arena.frames):
            if region is self:
                arena.begin()
                node.write("bytes", node.read("bytes", "<d") + bytes, "<d")
                node.write("flops", node.read("flops", "<d") + flops, "<d")
                arena.end()
                return


class _ThreadEnd:
    """Lives in a thread's local storage; its end is the thread's end."""

    __slots__ = ("arena",)

    def __init__(self, arena: Arena):
        self.arena = arena

    def __del__(self) -> None:
        arena = self.arena
        if arena.epoch == arena.recorder.epoch and arena.state == layout.ARENA_LIVE:
            arena.settle(arena.recorder.now())
            arena.words[_ARENA_AT["cpu_ns"]] = max(time.thread_time_ns() - arena.cpu_start, 0)
            arena.state = layout.ARENA_ENDED
            arena.publish()


class Recorder:
    """Regions, threads and the part of one profiler."""

    def __init__(self, clock: Callable[[], int] | None = None):
        self.clock = clock
        self.now: Callable[[], int] = clock or time.monotonic_ns
        self.epoch = 0  # 0 while off; another number after every start and fork
        self.switches = 0
        self.local = threading.local()
        self.device: Any = None
        self.part: Part | None = None
        self.on_window: Callable[[int], None] | None = None
        self.on_steps: Callable[[], None] | None = None
        self.name_gap: Callable[[Region, Region], Region] | None = None
        self._gaps: dict[tuple[Region, Region], Region] = {}
        self.steps_due = 0
        self.locate = False  # whether new nodes note the line of the user's code
        self._regions: dict[tuple[str, str | None], Region] = {}
        self._arenas: list[Arena] = []
        self._folded: Arena | None = None
        self._node_count = 0
        self._open_part: Callable[[], Part] | None = None
        self._sampler: memory.Sampler | None = None
        self._sample_memory = True
        self._lock = threading.RLock()
        _recorders.add(self)

    # -- regions ---------------------------------------------------------------------------------

    def profile(self, name: str, category: str | None = None, *, device: bool | None = None) -> Region:
        """The region of that name, to be used in a `with` statement, kept, or as a decorator."""
        found = self._regions.get((name, category))
        return found if found is not None else self._intern(name, category, device)

    def _intern(self, name: str, category: str | None, device: bool | None) -> Region:
        on_device, site = describe(name, category, device)
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
                f"more than {layout.MAX_REGIONS} different region names; the rest is recorded "
                f"under {layout.OTHER_NAMES!r}",
            )
        return self._regions[key]

    def make_child(self, arena: Arena, parent: Node, region: Region) -> Node:
        """A new node, or the thread's bucket for paths beyond the limit."""
        if self._node_count >= layout.MAX_NODES - layout.MAX_ARENAS:
            if self.part is not None:
                self.part.raise_flag(
                    layout.FLAG_PATHS_OVERFLOW,
                    f"more than {layout.MAX_NODES} different paths; the rest is recorded under "
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
        """Begin to record into the part that `open_part` makes, here and in forked children.

        With `lazily` the part is made at the first region, as it is after a fork.
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
        self._arenas = []
        self._folded = None
        self._node_count = 0
        self.part = self._open_part()
        for region in sorted(self._regions.values(), key=lambda r: r.number):
            self.part.add_region(region.name, region.category, region.site)
        self._sampler = memory.Sampler(self, SAMPLE_INTERVAL_S, self._sample_memory)
        if self.clock is None:
            self._sampler.start()

    def stop(self) -> Part | None:
        """Stop recording; a reader counts what was open up to now."""
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
        if mine is not None and mine.epoch == epoch:  # other threads may be in the middle of an update
            mine.settle(now)
            mine.take_window(now)
        part.close(now)
        return part

    def after_fork(self) -> None:
        """In the child: what was recorded so far belongs to the parent."""
        self._lock = threading.RLock()
        self._sampler = None
        if self.epoch:
            self.epoch = next(_epochs)

    def attach(self) -> Arena | None:
        """The calling thread's arena; in a forked child this first opens a part of its own."""
        if getattr(self.local, "attaching", False):
            return None  # a signal handler or finalizer came in between
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
        if len(self._arenas) >= layout.FOLD_AFTER:
            for arena in self._arenas:
                if arena.state == layout.ARENA_ENDED:
                    self._fold(arena, now)
                    arena.begin()
                    arena.reset(now, layout.ARENA_LIVE)
                    arena.publish(0)
                    arena.end()
                    return arena
        if len(self._arenas) >= layout.MAX_ARENAS:
            self.part.raise_flag(
                layout.FLAG_THREADS_OVERFLOW,
                f"more than {layout.MAX_ARENAS} threads at once; the rest is not recorded",
            )
            return None
        arena = Arena(self, self.part, len(self._arenas), now, layout.ARENA_LIVE)
        self._arenas.append(arena)
        return arena

    def _fold(self, ended: Arena, now: int) -> None:
        """Add an ended thread's figures to the arena that keeps all such threads together."""
        assert self.part is not None
        if self._folded is None:
            self._folded = Arena(self, self.part, len(self._arenas), now, layout.ARENA_FOLDED)
            self._arenas.append(self._folded)
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
        words[_ARENA_AT["folded_wall_ns"]] += ended.last - ended.words[_ARENA_AT["start_ns"]]
        words[_ARENA_AT["folded_cpu_ns"]] += ended.words[_ARENA_AT["cpu_ns"]]
        into.progress = [a + b for a, b in zip(into.progress, ended.progress, strict=True)]
        into.view[_PROGRESS_SLICE] = _PROGRESS.pack(*into.progress)
        into.last = words[_LAST] = now
        into.publish((words[_ARENA_AT["window_count"]] >> 32) + 1)
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
        arena.view[_PROGRESS_SLICE] = _PROGRESS.pack(*values)
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
        """Take the thread's window, then let others do what they do at windows."""
        arena.take_window(now)
        if self.part is not None:
            self.part.copy_if_due(now)
        if self.device is not None:
            self.device.collect()
        if self.on_window is not None:
            self.on_window(now)

    def credit_gap(self, arena: Arena, before: Region, after: Region, now: int) -> None:
        """Make the time between two outermost regions a call of a region named by its neighbours."""
        gap = self._gaps.get((before, after))
        if gap is None:
            if self.name_gap is None:
                return
            gap = self._gaps[before, after] = self.name_gap(before, after)
        node = arena.child(arena.nodes[0], gap)
        arena.begin()
        arena.finish(node, arena.last, now)
        node.own += now - arena.last
        node.save()
        arena.last = arena.words[_LAST] = now
        arena.end()

    def open_depth(self, native_id: int) -> int:
        """Open regions of the thread with that native id."""
        for arena in self._arenas:
            if arena.state == layout.ARENA_LIVE and arena.words[_ARENA_AT["native_id"]] == native_id:
                return arena.depth if self.epoch else 0
        return 0

    def credit_device(self, node: Node, device_ns: int | None, growth: int, peak: int) -> None:
        """Add what a device did during a call of `node`; the owning thread calls this."""
        if device_ns is not None:
            node.write("device_ns", node.read("device_ns") + device_ns)
            node.write("device_calls", node.read("device_calls") + 1)
        else:
            node.write("device_growth_bytes", node.read("device_growth_bytes", "<q") + growth, "<q")
            node.write("device_peak_bytes", max(node.read("device_peak_bytes"), peak))

    # -- memory ----------------------------------------------------------------------------------

    def sample(self) -> None:
        """One heartbeat and one reading of memory, now; with an injected clock, the only way."""
        if self._sampler is not None:
            self._sampler.sample()

    def credit_memory(self, growth: int, level: int) -> None:
        """Called by the sampler: share growth between the innermost open regions of all threads."""
        busy = [a for a in self._arenas if a.state == layout.ARENA_LIVE and a.depth]
        for arena in busy:
            try:
                nodes = [node for node, _, _ in arena.frames[: arena.depth]]
                innermost = nodes[-1]
            except IndexError:  # the thread moved on meanwhile
                continue
            share = growth // len(busy)
            innermost.write("rss_growth_bytes", innermost.read("rss_growth_bytes", "<q") + share, "<q")
            for node in nodes:
                node.write("rss_peak_bytes", max(node.read("rss_peak_bytes"), level))
                node.write("rss_samples", node.read("rss_samples") + 1)


def add_node(into: Node, other: Node) -> None:
    """Add the figures of one node to another's."""
    if other.calls:
        if into.calls:
            into.least = min(into.least, other.least)
            into.most = max(into.most, other.most)
            shift = float(other.first - into.first)
            away = float(other.total - other.calls * other.first)
            into.squares += other.squares + 2 * shift * away + other.calls * shift * shift
        else:
            into.least, into.most, into.first = other.least, other.most, other.first
            into.squares = other.squares
    into.calls += other.calls
    into.total += other.total
    into.own += other.own
    into.save()
    for bucket in range(_BUCKET_WORDS):
        into.buckets[into.bucket_word + bucket] += other.buckets[other.bucket_word + bucket]
    flags = into.read("flags", "<I") | other.read("flags", "<I")
    into.write("flags", flags, "<I")
    for field, code in (
        ("bytes", "<d"),
        ("flops", "<d"),
        ("device_ns", "<Q"),
        ("device_calls", "<Q"),
        ("device_growth_bytes", "<q"),
        ("rss_growth_bytes", "<q"),
        ("rss_samples", "<Q"),
    ):
        into.write(field, into.read(field, code) + other.read(field, code), code)
    for field in ("device_peak_bytes", "rss_peak_bytes"):
        into.write(field, max(into.read(field), other.read(field)))


def _after_fork_in_child() -> None:
    for recorder in list(_recorders):
        recorder.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
