"""What one thread of the Python twin writes: its arena and the nodes of its tree."""

from __future__ import annotations

import struct
import threading
import time
from typing import TYPE_CHECKING, Any

from hotloop.capture import layout
from hotloop.measure.part import Part

if TYPE_CHECKING:
    from hotloop.measure.twin.recorder import Recorder
    from hotloop.measure.twin.region import Region

ARENA_AT = {name: at // 8 for name, at in layout.offsets("ARENA").items()}
SEQ, LAST, DEPTH = ARENA_AT["seq"], ARENA_AT["last_ns"], ARENA_AT["depth"]
STACK, COUNTS = ARENA_AT["stack"], ARENA_AT["state"]
FRAME_WORDS = layout.item_bytes("FRAME") // 8
WINDOWS_AT = layout.offsets("ARENA")["windows"]
WINDOW_BYTES = layout.item_bytes("WINDOW")
PROGRESS_AT = layout.offsets("ARENA")["progress"]
PROGRESS = struct.Struct("<3QdQdQdQ")
PROGRESS_SLICE = slice(PROGRESS_AT, PROGRESS_AT + PROGRESS.size)
NODE_BYTES = layout.item_bytes("NODE")
NODE_AT = layout.offsets("NODE")
NODES_AT = layout.offsets("NODES")
# Readers may look at any time, and `pack_into` clears the bytes before it writes them. What they must not see
# half written is packed first and then copied into place.
HOT = struct.Struct("<6Qd")  # calls .. squares
NODE_WINDOW = struct.Struct("<3Q")
NODE_WINDOWS_BYTES = layout.item_bytes("NODE_WINDOWS")
BUCKET_WORDS = layout.BUCKETS
EVENT = struct.Struct("<IIQQ")
OCTAVE_BASE = layout.FIRST_OCTAVE * 4
LAST_BUCKET = layout.BUCKETS - 1


class Node:
    """A path of one thread: its figures as plain attributes, and where they go in the file."""

    __slots__ = (
        "bucket_word",
        "bytes_view",
        "calls",
        "children",
        "first",
        "floats",
        "hot",
        "index",
        "least",
        "most",
        "own",
        "own_word",
        "parent",
        "region",
        "squares",
        "start",
        "total",
        "window_at",
        "words",
    )

    def __init__(self, number: int, parent: Node | None, region: Region | None, section: memoryview):
        slot = number % layout.NODES_PER_SECTION
        self.index = number
        self.parent = parent
        self.region = region
        self.children: dict[Region, Node] = {}
        self.bytes_view = section
        self.start = NODES_AT["nodes"] + slot * NODE_BYTES
        self.hot = slice(self.start + NODE_AT["calls"], self.start + NODE_AT["calls"] + HOT.size)
        self.words = section.cast("Q")
        self.floats = section.cast("d")
        self.own_word = (self.start + NODE_AT["own_ns"]) // 8
        self.bucket_word = NODES_AT["buckets"] // 8 + slot * BUCKET_WORDS
        self.window_at = NODES_AT["windows"] + slot * NODE_WINDOWS_BYTES
        self.clear()
        struct.pack_into("<I", section, self.at("region"), region.number if region else layout.UNNAMED)
        struct.pack_into("<I", section, self.at("parent"), parent.index if parent else layout.NO_PARENT)

    def at(self, field: str) -> int:
        """Byte offset of a field in the section."""
        return self.start + NODE_AT[field]

    def clear(self) -> None:
        self.calls = self.total = self.own = self.first = self.least = self.most = 0
        self.squares = 0.0
        start = self.at("region")
        site = self.read("site", "<I")
        self.bytes_view[start + 4 : start + NODE_BYTES] = bytes(NODE_BYTES - 4)
        self.write("site", site, "<I")
        struct.pack_into(
            "<I", self.bytes_view, self.at("parent"), self.parent.index if self.parent else layout.NO_PARENT
        )
        self.bytes_view[self.bucket_word * 8 : (self.bucket_word + BUCKET_WORDS) * 8] = bytes(
            BUCKET_WORDS * 8
        )
        self.bytes_view[self.window_at : self.window_at + NODE_WINDOWS_BYTES] = bytes(NODE_WINDOWS_BYTES)

    def save(self) -> None:
        """Write the figures that every event changes."""
        self.bytes_view[self.hot] = HOT.pack(
            self.calls,
            self.total,
            self.own,
            self.least,
            self.most,
            self.first,
            self.squares,
        )

    def read(self, field: str, code: str = "<Q") -> Any:
        """Read one of the fields that seldom change."""
        return struct.unpack_from(code, self.bytes_view, self.at(field))[0]

    def write(self, field: str, value: float, code: str = "<Q") -> None:
        """Write one of the fields that seldom change."""
        struct.pack_into(code, self.bytes_view, self.at(field), value)


class Arena:
    """What one thread writes into the part."""

    __slots__ = (
        "__weakref__",
        "busy",
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
        "native_id",
        "nodes",
        "number",
        "open",
        "overflow",
        "part",
        "progress",
        "recorder",
        "scheduling",
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
        self.view = part.add_section("thread", number)
        self.words = self.view.cast("Q")
        live = state == layout.ARENA_LIVE
        self.scheduling = part.add_section("scheduling", number) if live else None
        self.seq = 0
        self.nodes: list[Node] = []
        self.events: memoryview | None = None
        self.reset(now, state)
        self.add_node(None, None)
        self.open = [self.nodes[0]]
        self.publish()

    def reset(self, now: int, state: int) -> None:
        """Prepare for a thread, new or reused."""
        thread = threading.current_thread()
        self.epoch = self.recorder.epoch
        self.busy = False  # true while the thread is writing
        self.state = state
        self.depth = self.overflow = self.window_count = self.event_count = 0
        self.last_outermost: Region | None = None  # ended last at depth 0, to name the gap after it
        self.frames: list[tuple[Node, Region, int]] = []
        self.open = self.nodes[:1]
        self.interval = layout.FIRST_WINDOW_NS
        self.last = now
        self.cpu_start = time.thread_time_ns()
        self.due = now + self.interval
        self.progress: list[Any] = [0, 0, 0, 0.0, 0, 0.0, 0, 0.0, 0]
        self.words[ARENA_AT["start_ns"]] = now
        self.words[LAST] = now
        for field in ("folded_wall_ns", "folded_cpu_ns", "cpu_ns", "event_count"):
            self.words[ARENA_AT[field]] = 0
        self.native_id = self.words[ARENA_AT["native_id"]] = threading.get_native_id()
        self.words[ARENA_AT["window_interval_ns"]] = self.interval
        folded = state == layout.ARENA_FOLDED
        name = b"ended threads" if folded else thread.name.encode("utf-8", "replace")[:63]
        at = layout.offsets("ARENA")["thread_name"]
        self.view[at : at + 64] = name + bytes(64 - len(name))
        self.view[PROGRESS_SLICE] = PROGRESS.pack(*self.progress)
        for node in self.nodes:
            node.clear()

    def publish(self, folded_threads: int | None = None) -> None:
        """Write the counts that readers begin with."""
        if folded_threads is None:
            folded_threads = self.words[ARENA_AT["window_count"]] >> 32
        self.words[COUNTS] = self.state | len(self.nodes) << 32
        self.words[DEPTH] = self.depth | self.overflow << 32
        self.words[ARENA_AT["window_count"]] = self.window_count | folded_threads << 32

    def begin(self) -> None:
        """Mark the beginning of an update, for readers."""
        self.words[SEQ] = self.seq + 1

    def end(self) -> None:
        """Mark the end of an update."""
        self.seq += 2
        self.words[SEQ] = self.seq

    def add_node(self, parent: Node | None, region: Region | None) -> Node:
        """Add a node; readers see it once it is complete."""
        number = len(self.nodes)
        section = (
            self.part.add_section("nodes", self.number, number)
            if number % layout.NODES_PER_SECTION == 0
            else self.nodes[-1].bytes_view
        )
        node = Node(number, parent, region, section)
        self.nodes.append(node)
        self.words[COUNTS] = self.state | len(self.nodes) << 32
        return node

    def child(self, parent: Node, region: Region) -> Node:
        """The node of `region` below `parent`, created at its first use."""
        found = parent.children.get(region)
        if found is None:
            found = self.recorder.make_child(self, parent, region)
        return found

    # -- events ----------------------------------------------------------------------------------

    def settle(self, now: int) -> None:
        """Credit the time since the last event to the node on top."""
        top = self.open[-1]
        self.begin()
        top.own += now - self.last
        top.save()
        self.last = self.words[LAST] = now
        self.end()

    def close_out_of_order(self, region: Region, now: int) -> None:
        """End the nearest open call of `region` below the top; those above it move down."""
        for position in range(self.depth - 1, -1, -1):
            if self.frames[position][1] is region:
                break
        else:
            return  # begun before the recording or before a fork
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
        self.words[DEPTH] = self.depth | self.overflow << 32
        self.end()

    def finish(self, node: Node, start: int, now: int) -> None:
        """Count one completed call; the caller has settled its own time."""
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
        node.words[node.bucket_word + layout.bucket_of(duration)] += 1

    def save_frame(self, place: int) -> None:
        """Write one frame of the stack of open regions."""
        node, region, start = self.frames[place]
        at = STACK + place * FRAME_WORDS
        self.words[at] = node.index | region.number << 32
        self.words[at + 1] = start

    def record_event(self, node: Node, start: int, now: int) -> None:
        """Add a completed call to the ring buffer of the timeline."""
        if self.events is None:
            self.events = self.part.add_section("events", self.number)
        at = self.event_count % layout.EVENTS_PER_SECTION * EVENT.size
        EVENT.pack_into(self.events, at, node.index, 0, start, now - start)
        self.event_count += 1
        self.words[ARENA_AT["event_count"]] = self.event_count

    # -- windows ---------------------------------------------------------------------------------

    def take_window(self, now: int) -> None:
        """Take a snapshot of every node and counter; when full, first drop every second window."""
        cpu = time.thread_time_ns()
        self.begin()
        if self.window_count == layout.MAX_WINDOWS:
            self.thin_windows()
        at = WINDOWS_AT + self.window_count * WINDOW_BYTES
        cpu_ns = cpu - self.cpu_start if self.state == layout.ARENA_LIVE else 0
        self.words[ARENA_AT["cpu_ns"]] = cpu_ns
        struct.pack_into("<4Q", self.view, at, now, time.time_ns(), cpu_ns, self.part.get("rss_bytes"))
        PROGRESS.pack_into(self.view, at + 32, *self.progress)
        for node in self.nodes:
            slot = node.window_at + self.window_count * NODE_WINDOW.size
            NODE_WINDOW.pack_into(node.bytes_view, slot, node.calls, node.total, node.own)
        for node, _, start in self.frames:
            slot = node.window_at + self.window_count * NODE_WINDOW.size + 8
            total = struct.unpack_from("<Q", node.bytes_view, slot)[0]
            struct.pack_into("<Q", node.bytes_view, slot, total + now - start)
        self.window_count += 1
        self.publish()
        self.end()
        # CPU time, not wall time: on a busy machine the thread may lose its core here for milliseconds.
        cost = time.thread_time_ns() - cpu if self.recorder.clock is None else 0
        self.due = now + max(self.interval, 1000 * cost)

    def thin_windows(self) -> None:
        """Keep the later window of each pair and double the interval."""
        half = layout.MAX_WINDOWS // 2
        for to in range(half):
            source = 2 * to + 1
            self._move(self.view, WINDOWS_AT, WINDOW_BYTES, source, to)
            for node in self.nodes:
                self._move(node.bytes_view, node.window_at, NODE_WINDOW.size, source, to)
        self.window_count = half
        self.interval *= 2
        self.words[ARENA_AT["window_interval_ns"]] = self.interval

    @staticmethod
    def _move(view: memoryview, base: int, size: int, source: int, to: int) -> None:
        view[base + to * size : base + (to + 1) * size] = view[
            base + source * size : base + (source + 1) * size
        ]


def add_node(into: Node, other: Node) -> None:
    """Add the figures of one node to another."""
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
    for bucket in range(BUCKET_WORDS):
        into.words[into.bucket_word + bucket] += other.words[other.bucket_word + bucket]
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
