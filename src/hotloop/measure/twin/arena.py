"""What one thread of the Python twin writes: its arena and the nodes of its tree.

Every change is prepared first and then made in one go, so that an exception of a signal handler leaves it
made or not made, never half: Python runs handlers at calls and at the end of a loop's body, but not between
plain assignments. Where many values are written, one call of `write_all` does it.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Iterable
from operator import setitem
from typing import TYPE_CHECKING, Any

from hotloop.capture import layout
from hotloop.measure.part import Part

if TYPE_CHECKING:
    from hotloop.measure.twin.recorder import Recorder
    from hotloop.measure.twin.region import Region

ARENA_AT = {name: at // 8 for name, at in layout.offsets("ARENA").items()}
SEQ, LAST, DEPTH = ARENA_AT["seq"], ARENA_AT["last_ns"], ARENA_AT["depth"]
STACK, COUNTS = ARENA_AT["stack"], ARENA_AT["state"]
WINDOW_COUNT = ARENA_AT["window_count"]  # and, in the upper half of the word, the folded threads
LOWER_HALF = 0xFFFFFFFF
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
FRAME = struct.Struct("<IIQ")
NODE_WINDOW = struct.Struct("<3Q")
NODE_WINDOWS_BYTES = layout.item_bytes("NODE_WINDOWS")
BUCKET_WORDS = layout.BUCKETS
EVENT = struct.Struct("<IIQQ")
ROUNDS = struct.Struct("<QQ")  # its count and least_ns, in front of its events
CALLS = struct.Struct("<QQQQ")  # seq, count, burst_shift and least_ns, in front of its events
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
        "frame_word",
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
        self.frame_word = number | (region.number << 32 if region is not None else 0)  # in the stack
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

    def count(self, duration: int, own: int = 0) -> None:
        """Count one completed call, and its own time."""
        if self.calls:
            least, most, first = min(self.least, duration), max(self.most, duration), self.first
            squares = self.squares + float(duration - first) ** 2
        else:
            least = most = first = duration
            squares = 0.0
        bucket = self.bucket_word + layout.bucket_of(duration)
        words, at = self.words, self.own_word
        # Plain assignments from here on.
        self.calls = words[at - 2] = self.calls + 1
        self.total = words[at - 1] = self.total + duration
        self.own = words[at] = self.own + own
        self.least = words[at + 1] = least
        self.most = words[at + 2] = most
        self.first = words[at + 3] = first
        self.squares = self.floats[at + 4] = squares
        words[bucket] += 1

    def flag(self, flag: int) -> None:
        """Set a flag."""
        self.write("flags", self.read("flags", "<I") | flag, "<I")

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
        "burst",
        "burst_calls",
        "burst_due",
        "burst_shift",
        "busy",
        "calls",
        "cpu_start",
        "depth",
        "due",
        "epoch",
        "event_count",
        "events",
        "frames",
        "last",
        "last_outermost",
        "least_call_ns",
        "limit",
        "native_id",
        "nodes",
        "number",
        "open",
        "overflow",
        "part",
        "progress",
        "recorder",
        "round_burst",
        "round_events",
        "rounds",
        "scheduling",
        "seq",
        "state",
        "view",
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
        self.rounds: memoryview | None = None
        self.round_burst = self.round_events = 0
        self.calls: memoryview | None = None
        self.reset(now, state)
        self.open[0] = self.add_node(None, None)
        self.publish()

    def reset(self, now: int, state: int) -> None:
        """Prepare for a thread, new or reused."""
        thread = threading.current_thread()
        self.epoch = self.recorder.epoch
        self.busy = False  # true while the thread is writing
        self.state = state
        self.depth = self.overflow = self.event_count = 0
        self.limit = layout.MAX_DEPTH  # depth at which calls are no longer recorded; less after a failure
        self.burst = self.burst_calls = self.burst_due = 0  # calls are kept in a row from burst_due on
        self.burst_shift = layout.FIRST_BURST_SHIFT
        self.least_call_ns = layout.FIRST_LONG_CALL_NS  # calls that take as long are kept at any time
        if self.calls is not None:  # of another thread
            CALLS.pack_into(self.calls, 0, 0, 0, self.burst_shift, self.least_call_ns)
        self.last_outermost: Region | None = None  # ended last at depth 0, to name the gap after it
        # Of the open regions, `depth` of them: node, region, start, and where it was entered.
        self.frames: list[Any] = [None] * layout.MAX_DEPTH
        # The root, then the nodes of the open regions.
        self.open: list[Any] = [*self.nodes[:1], *[None] * (layout.MAX_DEPTH + 1)]
        self.last = now
        self.cpu_start = time.thread_time_ns()
        self.due = now + layout.FIRST_WINDOW_NS
        self.progress: list[Any] = [0, 0, 0, 0.0, 0, 0.0, 0, 0.0, 0]
        self.words[ARENA_AT["start_ns"]] = now
        self.words[LAST] = now
        for field in ("folded_wall_ns", "folded_cpu_ns", "cpu_ns", "event_count"):
            self.words[ARENA_AT[field]] = 0
        self.native_id = self.words[ARENA_AT["native_id"]] = threading.get_native_id()
        self.words[ARENA_AT["window_interval_ns"]] = layout.FIRST_WINDOW_NS
        self.words[WINDOW_COUNT] = 0
        folded = state == layout.ARENA_FOLDED
        name = b"ended threads" if folded else thread.name.encode("utf-8", "replace")[:63]
        at = layout.offsets("ARENA")["thread_name"]
        self.view[at : at + 64] = name + bytes(64 - len(name))
        self.view[PROGRESS_SLICE] = PROGRESS.pack(*self.progress)
        for node in self.nodes:
            node.clear()

    def publish(self) -> None:
        """Write the counts that readers begin with."""
        self.words[COUNTS] = self.state | len(self.nodes) << 32
        self.words[DEPTH] = self.depth | self.overflow << 32

    def begin(self) -> None:
        """Mark the beginning of an update, for readers."""
        self.words[SEQ] = self.seq + 1

    def end(self) -> None:
        """Mark the end of an update."""
        self.seq = self.words[SEQ] = self.seq + 2

    def write_all(self, items: Iterable[tuple[Any, Any, Any]]) -> None:
        """Write (memory, place, value) of each, as one update for readers."""
        writes = [(self.words, SEQ, self.seq + 1), *items, (self.words, SEQ, self.seq + 2)]
        columns = map(setitem, *zip(*writes, strict=True))
        self.seq += 2
        deque(columns, 0)  # empties the iterator in one call, so that no signal handler runs in between

    def add_node(self, parent: Node | None, region: Region | None) -> Node:
        """Add a node; readers see it once it is complete."""
        number = len(self.nodes)
        section = (
            self.part.add_section("nodes", self.number, number)
            if number % layout.NODES_PER_SECTION == 0
            else self.nodes[-1].bytes_view
        )
        node = Node(number, parent, region, section)
        # Plain assignments from here on.
        self.nodes[number:] = (node,)
        self.words[COUNTS] = self.state | (number + 1) << 32
        if parent is not None and region is not None:
            parent.children[region] = node
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
        top = self.open[self.depth]
        words = self.words
        words[SEQ] = self.seq + 1
        top.own = top.words[top.own_word] = top.own + now - self.last
        self.last = words[LAST] = now
        self.seq = words[SEQ] = self.seq + 2

    def credit(self, node: Node, now: int) -> None:
        """Turn the time since the last event into a completed call of `node`."""
        duration = now - self.last
        self.begin()
        node.count(duration, duration)
        self.last = self.words[LAST] = now
        self.seq = self.words[SEQ] = self.seq + 2

    def begin_unrecorded(self) -> None:
        """A call too deep to be recorded, or with no memory for its node; its end must be ignored, too."""
        top = self.open[self.depth]
        at = top.at("unrecorded_calls") // 8
        self.limit = self.depth  # what it calls is ignored as well, so that ends match beginnings
        self.overflow += 1
        self.words[DEPTH] = self.depth | self.overflow << 32
        top.words[at] += 1

    def end_unrecorded(self) -> None:
        self.overflow -= 1
        self.words[DEPTH] = self.depth | self.overflow << 32
        if not self.overflow:
            self.limit = layout.MAX_DEPTH

    def close_out_of_order(self, region: Region, now: int) -> None:
        """End the nearest open call of `region` below the top; those above it move down."""
        depth = self.depth
        for position in range(depth - 1, -1, -1):
            if self.frames[position][1] is region:
                break
        else:
            return  # begun before the recording or before a fork
        node, start = self.frames[position][0], self.frames[position][2]
        node.flag(layout.NODE_OUT_OF_ORDER)
        moved, opened, stack = [], [], b""
        parent = self.open[position]
        for frame in self.frames[position + 1 : depth]:
            parent = self.recorder.safely(self.child, parent, frame[1], otherwise=frame[0])
            parent.flag(layout.NODE_OUT_OF_ORDER)
            opened.append(parent)
            moved.append((parent, *frame[1:]))
            stack += FRAME.pack(parent.index, frame[1].number, frame[2])
        at = 8 * (STACK + position * FRAME_WORDS)
        self.settle(now)
        self.begin()
        node.count(now - start)
        # Plain assignments from here on.
        self.frames[position : depth - 1] = moved
        self.open[position + 1 : depth] = opened
        self.depth = depth - 1
        self.view[at : at + len(stack)] = stack
        self.words[DEPTH] = self.depth | self.overflow << 32
        self.seq = self.words[SEQ] = self.seq + 2

    def record_event(self, node: Node, start: int, now: int) -> None:
        """Add a completed call to the ring buffer of the timeline."""
        if self.events is None:
            self.events = self.part.add_section("events", self.number)
        at = self.event_count % layout.EVENTS_PER_SECTION * EVENT.size
        EVENT.pack_into(self.events, at, node.index, 0, start, now - start)
        self.event_count = self.words[ARENA_AT["event_count"]] = self.event_count + 1

    def shows_round(self, duration_ns: int, now: int) -> bool:
        """Whether a call that has just ended is kept for the rounds in which threads work together."""
        if now >> layout.ROUND_BURST_SHIFT & layout.ROUND_BURST_MASK:
            return duration_ns >> layout.ROUND_LONG_SHIFT != 0
        return self.rounds is None or duration_ns >= ROUNDS.unpack_from(self.rounds)[1]

    def record_round(self, node: Node, start: int, now: int) -> None:
        """Add a completed call to the ring buffer of rounds."""
        if self.rounds is None:
            self.rounds = self.part.add_section("rounds", self.number)
        count, least_ns = ROUNDS.unpack_from(self.rounds)
        burst = now >> layout.ROUND_BURST_SHIFT
        self.round_events = self.round_events + 1 if burst == self.round_burst else 1
        self.round_burst = burst
        if self.round_events > layout.ROUND_EVENTS_PER_BURST:
            least_ns = 2 * least_ns or 1000
            self.round_events = 0
        at = ROUNDS.size + count % layout.ROUND_EVENTS * EVENT.size
        EVENT.pack_into(self.rounds, at, node.index, 0, start, now - start)
        ROUNDS.pack_into(self.rounds, 0, count + 1, least_ns)

    def record_call(self, node: Node, start: int, now: int) -> None:
        """Add a completed call to the sample over the whole run."""
        if self.calls is None:
            self.calls = self.part.add_section("calls", self.number)
            CALLS.pack_into(self.calls, 0, 0, 0, self.burst_shift, self.least_call_ns)
        seq, count, *_ = CALLS.unpack_from(self.calls)
        if count == layout.MAX_CALLS:
            seq, count = seq + 2, self._thin_calls(self.calls, seq)
        burst = layout.NO_BURST
        if now >= self.burst_due:
            bit = self.burst_shift - layout.FIRST_BURST_SHIFT
            stretch = now >> layout.FIRST_BURST_SHIFT & 0x7FFFFFFF
            if not self.burst_calls or stretch >> bit != self.burst >> bit:
                self.burst, self.burst_calls = stretch, 0
            burst = self.burst
            self.burst_calls += 1
            if self.burst_calls == layout.CALLS_PER_BURST:
                self.burst_calls = 0
                self.burst_due = ((now >> self.burst_shift) + 1) << self.burst_shift
        EVENT.pack_into(self.calls, CALLS.size + count * EVENT.size, node.index, burst, start, now - start)
        CALLS.pack_into(self.calls, 0, seq, count + 1, self.burst_shift, self.least_call_ns)

    def _thin_calls(self, calls: memoryview, seq: int) -> int:
        """Drop every second burst or the shortest of the long calls, whichever are more; the number left."""
        events = [*EVENT.iter_unpack(calls[CALLS.size : CALLS.size + layout.MAX_CALLS * EVENT.size])]
        while len(events) > layout.MAX_CALLS * 3 // 4:
            outside = sum(event[1] == layout.NO_BURST for event in events)
            bit = self.burst_shift - layout.FIRST_BURST_SHIFT
            if bit >= 31 or self.least_call_ns >> 62:  # a clock that went astray
                events = []
                break
            if 2 * outside <= len(events):
                self.burst_shift += 1
                events = [
                    (node, layout.NO_BURST if burst >> bit & 1 else burst, *times)
                    for node, burst, *times in events
                ]
            else:
                self.least_call_ns *= 2
            events = [e for e in events if e[1] != layout.NO_BURST or e[3] >= self.least_call_ns]
        left = b"".join(EVENT.pack(*event) for event in events)
        CALLS.pack_into(calls, 0, seq + 1, len(events), self.burst_shift, self.least_call_ns)
        calls[CALLS.size : CALLS.size + len(left)] = left
        CALLS.pack_into(calls, 0, seq + 2, len(events), self.burst_shift, self.least_call_ns)
        return len(events)

    # -- windows ---------------------------------------------------------------------------------

    def take_window(self, now: int) -> None:
        """Take a snapshot of every node and counter; when full, first drop every second window."""
        cpu = time.thread_time_ns()
        counts, interval = self.words[WINDOW_COUNT], self.words[ARENA_AT["window_interval_ns"]]
        number, items = counts & LOWER_HALF, []
        if number == layout.MAX_WINDOWS:
            number, interval = number // 2, interval * 2
            items = self._thinned()
        cpu_ns = cpu - self.cpu_start if self.state == layout.ARENA_LIVE else 0
        row = struct.pack("<4Q", now, time.time_ns(), cpu_ns, self.part.get("rss_bytes"))
        row += PROGRESS.pack(*self.progress)
        at = WINDOWS_AT + number * WINDOW_BYTES
        items.append((self.view, slice(at, at + WINDOW_BYTES), row))
        open_ns: dict[Node, int] = {}
        for node, _, start, *_ in self.frames[: self.depth]:
            open_ns[node] = open_ns.get(node, 0) + now - start
        for node in self.nodes:
            at = node.window_at + number * NODE_WINDOW.size
            figures = NODE_WINDOW.pack(node.calls, node.total + open_ns.get(node, 0), node.own)
            items.append((node.bytes_view, slice(at, at + NODE_WINDOW.size), figures))
        items.append((self.words, ARENA_AT["cpu_ns"], cpu_ns))
        items.append((self.words, ARENA_AT["window_interval_ns"], interval))
        items.append((self.words, WINDOW_COUNT, number + 1 | counts & ~LOWER_HALF))
        self.write_all(items)
        # CPU time, not wall time: on a busy machine the thread may lose its core here for milliseconds.
        cost = time.thread_time_ns() - cpu if self.recorder.clock is None else 0
        self.due = now + max(interval, 1000 * cost)

    def _thinned(self) -> list[tuple[Any, Any, Any]]:
        """What to write to keep the later window of each pair."""
        columns = [(self.view, WINDOWS_AT, WINDOW_BYTES)]
        columns += [(node.bytes_view, node.window_at, NODE_WINDOW.size) for node in self.nodes]
        items: list[tuple[Any, Any, Any]] = []
        for view, base, size in columns:
            odd = [view[base + at * size : base + (at + 1) * size] for at in range(1, layout.MAX_WINDOWS, 2)]
            items.append((view, slice(base, base + len(odd) * size), b"".join(odd)))
        return items


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
        ("unrecorded_calls", "<Q"),
    ):
        into.write(field, into.read(field, code) + other.read(field, code), code)
    for field in ("device_peak_bytes", "rss_peak_bytes"):
        into.write(field, max(into.read(field), other.read(field)))
