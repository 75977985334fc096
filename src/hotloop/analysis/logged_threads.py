"""Threads and their operations as the message logs have them, before they become lanes of a replay.

Logs of several processes are joined, bytes of sockets become messages, operations whose other side is not
known are dropped, and each receive and each wait finds the operation that ended it.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hotloop.capture.message_format import (
    EMPTY,
    FOUND,
    LATER,
    LOOK,
    MEET,
    PEEK,
    RECEIVE,
    SEND,
    WAIT,
    WAKE,
)
from hotloop.capture.messages import LoggedChannel, MessageLog
from hotloop.capture.model import Capture, Node, Process, Thread

MOST_OPERATIONS = 60_000  # of all threads; a long log is cut to its last part
WAITED_NS = 30_000  # a receive that came this much before its message has waited
PASSED_ON_NS = 90_000  # a receive from a queue that takes longer may have waited for the sender's thread
SPUN_NS = 100_000  # for which a look for a message went on: then it was a wait for one
WRAP = 1 << 32  # bytes of a socket, as the log counts them


@dataclass(slots=True)
class LoggedOperation:
    """One recorded operation."""

    begin: int
    end: int
    channel: int
    kind: int
    round: int
    blocked: bool = False
    since_sent: int = 0  # end of a receive that waited, after the end of its send
    waker: tuple[int, int] | None = None
    delay: int = 0  # of a timer: when its message is there, after its end
    region: str = ""  # of a timer: who waits for it


@dataclass(slots=True)
class LoggedThread:
    """A thread, as its capture and its log have it."""

    process_index: int
    process: Process
    thread: Thread | None  # None: it has opened no region
    native_id: int
    rows: list[LoggedOperation]
    delayed_s: float = 0.0  # time in which it had been woken but had no core


Moments = NDArray[np.int64]
LoggedThreads = dict[tuple[int, int], LoggedThread]  # by process and native id
# By process, channel and kind: end and count.
ChannelCounts = dict[tuple[int, int, int], list[tuple[int, int]]]


def read_threads(
    capture: Capture, logs: Sequence[MessageLog]
) -> tuple[LoggedThreads, list[LoggedChannel], ChannelCounts]:
    """Recorded operations by process and thread, the channels, and the counts of each process over time."""
    channels: list[LoggedChannel] = []
    index: dict[str, int] = {}
    known = {(p.pid, t.native_id): t for p in capture.processes for t in p.threads}
    threads: LoggedThreads = {}
    counts: ChannelCounts = defaultdict(list)
    by_pid = {p.pid: (i, p) for i, p in enumerate(capture.processes)}
    peers = {channel.key: channel.peer for log in logs for channel in log.channels if channel.peer}
    for log in logs:
        if log.pid not in by_pid:
            continue
        numbers: dict[tuple[int, bool], int] = {}
        rows = log.records
        for begin, end, native, channel_index, kind, count in rows.tolist():
            sends = kind == SEND
            number = numbers.get((channel_index, sends))
            if number is None:
                channel = log.channels[channel_index]
                key = peers.get(channel.key, channel.key) if sends and channel.kind == "pipe" else channel.key
                number = index.setdefault(key, len(channels))
                if number == len(channels):
                    channels.append(replace(channel, key=key))
                elif channels[number].capacity is None and channel.capacity is not None:
                    channels[number] = replace(channels[number], capacity=channel.capacity)
                numbers[channel_index, sends] = number
            if channels[number].kind != "socket":
                counts[log.pid, number, kind].append((end, count))
            one = threads.get((log.pid, native))
            if one is None:
                owner, process = by_pid[log.pid]
                one = LoggedThread(owner, process, known.get((log.pid, native)), native, [])
                threads[log.pid, native] = one
            if kind == LATER:
                one.rows.append(LoggedOperation(begin, begin, number, kind, count, delay=end - begin))
            else:
                one.rows.append(LoggedOperation(begin, end, number, kind, count))
    for one in threads.values():
        one.rows.sort(key=lambda r: r.begin)
    _number_rounds(threads)
    for number, channel in enumerate(channels):
        if channel.kind == "socket":
            _find_messages(threads, counts, number)
        elif channel.kind == "folder":
            channels[number] = _find_files(threads, number, channel)
        elif channel.kind == "event" and _is_set_for_each_wait(threads, number):
            channels[number] = replace(channel, kind="pipe")
            _take_events_for_messages(threads, counts, number)
    return threads, channels, counts


def _find_messages(threads: LoggedThreads, counts: ChannelCounts, channel: int) -> None:
    """Messages of a socket: each `send` is one, received by the first `recv` that gets a byte of it.

    Further reads of it are no operations. One that gets several messages receives them one after the other.
    """
    rows = [
        (row, key)
        for key, one in threads.items()
        for row in one.rows
        if row.channel == channel and row.kind != PEEK
    ]
    sent = sorted((pair for pair in rows if pair[0].kind == SEND), key=lambda pair: pair[0].end)
    taken = sorted((pair for pair in rows if pair[0].kind == RECEIVE), key=lambda pair: pair[0].end)
    ends, reads = (_unwrapped([row.round for row, _ in some]) for some in (sent, taken))
    if len(ends) and len(reads):
        reads += np.round((ends[-1] - reads[-1]) / WRAP).astype(np.int64) * WRAP
    for k, (row, key) in enumerate(sent):
        counts[key[0], channel, SEND].append((row.end, k + 1))
    # Message k begins where the one before it ends. If the log lacks that one, the first is like the second.
    first = max(2 * int(ends[0]) - int(ends[1]), 0) if len(ends) > 1 else 0
    begins = np.concatenate([[first], ends[:-1]])[: len(ends)]
    found: dict[tuple[int, int], list[LoggedOperation]] = defaultdict(list)
    seen = 0
    for (row, key), upto in zip(taken, reads.tolist(), strict=True):
        begun = int(np.searchsorted(begins, upto))
        for k in range(seen + 1, begun + 1):
            begin = row.begin if k == seen + 1 else row.end
            found[key].append(LoggedOperation(begin, row.end, channel, RECEIVE, k))
            counts[key[0], channel, RECEIVE].append((row.end, k))
        seen = max(seen, begun)
    for key, one in threads.items():
        if any(row.channel == channel and row.kind == RECEIVE for row in one.rows):
            one.rows = [r for r in one.rows if r.channel != channel or r.kind != RECEIVE] + found[key]
            one.rows.sort(key=lambda r: (r.begin, r.end))


def _find_files(threads: LoggedThreads, number: int, channel: LoggedChannel) -> LoggedChannel:
    """Files in a folder as messages; whoever lists it again and again waits.

    Who then takes one has waited for it, and has it since the last look; who then adds one has waited for
    room. As many files as there usually were then are the limit of the folder.
    """
    waits_for_room = False
    for one in threads.values():
        kept: list[LoggedOperation] = []
        looks: list[LoggedOperation] = []
        for row in one.rows:
            if row.channel != number:
                kept.append(row)
                continue
            if row.kind == LOOK:
                looks.append(row)
                continue
            if row.kind == RECEIVE and looks:
                row.begin, row.end = looks[0].begin, looks[-1].end
            elif row.kind == SEND and len(looks) > 1:
                row.begin, row.blocked, waits_for_room = looks[0].begin, True, True
            looks = []
            kept.append(row)
        one.rows = sorted(kept, key=lambda r: (r.begin, r.end))
    level, full = 0, [1]
    rows = [r for one in threads.values() for r in one.rows if r.channel == number]
    for row in sorted(rows, key=lambda r: (r.end, r.kind == RECEIVE)):
        level = max(level + (1 if row.kind == SEND else -1), 0)
        if row.blocked:
            full.append(level)
    return replace(channel, capacity=round(float(np.median(full))) if waits_for_room else None, tokens=-1)


def keep_own_looks(threads: LoggedThreads) -> None:
    """Leave out looks for messages of others; one that went on until there was a message waited for it."""
    sent = {row.channel for one in threads.values() for row in one.rows if row.kind == SEND}
    for one in threads.values():
        takes = sent & {row.channel for row in one.rows if row.kind == RECEIVE}
        one.rows = [r for r in one.rows if r.kind not in (FOUND, EMPTY, LOOK) or r.channel in takes]
        for row, after in itertools.pairwise(one.rows):
            is_same = after.kind == FOUND and after.channel == row.channel
            if row.kind == EMPTY and is_same and after.begin - row.end < SPUN_NS < row.end - row.begin:
                row.kind = PEEK


def _is_set_for_each_wait(threads: LoggedThreads, channel: int) -> bool:
    """Whether one thread waits for an event, and each of its waits is ended by another `set`."""
    rows = [(row, key) for key, one in threads.items() for row in one.rows if row.channel == channel]
    waits = sorted((row.end, key) for row, key in rows if row.kind == WAIT)
    sets = sorted((row.begin, key) for row, key in rows if row.kind == WAKE)
    if len({key for _, key in waits}) != 1 or not sets or {key for _, key in waits} & {k for _, k in sets}:
        return False
    moments = sorted([(at, True) for at, _ in sets] + [(at, False) for at, _ in waits])
    return all(one != other for (_, one), (_, other) in itertools.pairwise(moments))


def _take_events_for_messages(threads: LoggedThreads, counts: ChannelCounts, channel: int) -> None:
    """An event that is set once for each wait, and cleared after it, does what a message does."""
    for one in threads.values():
        for row in one.rows:
            if row.channel == channel:
                row.kind = SEND if row.kind == WAKE else RECEIVE
    for pid, number, kind in [key for key in counts if key[1] == channel]:
        counts[pid, number, SEND if kind == WAKE else RECEIVE] = counts.pop((pid, number, kind))


def _unwrapped(counts: Sequence[int]) -> Moments:
    """Counts of bytes that began again at 0 after `WRAP`."""
    values = np.asarray(counts, dtype=np.int64)
    wraps = np.concatenate([[0], np.cumsum(np.diff(values) < 0)])[: len(values)]
    return np.asarray(values + WRAP * wraps, dtype=np.int64)


def _number_rounds(threads: LoggedThreads) -> None:
    """Rounds of barriers: a process counts all of its threads, and each of them meets once in a round."""
    here: dict[tuple[int, int], list[LoggedThread]] = defaultdict(list)
    for (pid, _), one in threads.items():
        for channel in {row.channel for row in one.rows if row.kind == MEET}:
            here[pid, channel].append(one)
    for (_, channel), members in here.items():
        if len(members) > 1:
            for one in members:
                for row in one.rows:
                    if row.kind == MEET and row.channel == channel:
                        row.round = (row.round - 1) // len(members) + 1


def drop_lonely(threads: LoggedThreads, channels: list[LoggedChannel]) -> None:
    """Remove operations whose other side was never seen: nothing can be said about them."""
    sides: dict[int, set[int]] = defaultdict(set)
    users: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for key, one in threads.items():
        for row in one.rows:
            sides[row.channel].add(SEND if row.kind == LATER else row.kind)
            users[row.channel].add(key)
            if row.kind == LATER:  # sent by another one, in a way
                users[row.channel].add((0, 0))
    alone = {
        channel
        for channel in sides
        if len(users[channel]) < 2
        or ({SEND, RECEIVE} & sides[channel] and not {SEND, RECEIVE} <= sides[channel])
        or (WAIT in sides[channel] and WAKE not in sides[channel])
        or (WAKE in sides[channel] and WAIT not in sides[channel])
    }
    for one in threads.values():
        one.rows = [r for r in one.rows if r.channel not in alone]


def drop_incomplete_rounds(threads: LoggedThreads) -> None:
    """Remove rounds of barriers that not everyone's log has: nobody would ever complete them."""
    rounds: dict[int, list[set[int]]] = defaultdict(list)
    for one in threads.values():
        mine: dict[int, set[int]] = defaultdict(set)
        for row in one.rows:
            if row.kind == MEET:
                mine[row.channel].add(row.round)
        for channel, seen in mine.items():
            rounds[channel].append(seen)
    common = {channel: set.intersection(*seen) for channel, seen in rounds.items()}
    for one in threads.values():
        one.rows = [r for r in one.rows if r.kind != MEET or r.round in common[r.channel]]


def common_span(threads: LoggedThreads, driver: tuple[int, int], since_ns: int) -> tuple[int, int]:
    """The stretch of time that every log and every timeline covers."""
    begin = max(since_ns, min(r.begin for r in threads[driver].rows))
    end = min(max(r.end for r in one.rows) for one in threads.values())
    mine = threads[driver].rows
    end, late = max(end, mine[len(mine) // 2].end), mine[len(mine) // 2].begin
    for one in threads.values():
        first = one.rows[0]
        if first.begin > late:
            continue  # it began late: nothing of it is missing before
        if first.round > 1 and first.begin > begin and len(one.rows) > 1000:
            begin = max(begin, first.begin)  # its ring begins here
        if one.thread is not None and one.thread.events and _calls(one.thread.root) > len(one.thread.events):
            begin = max(begin, min(e.start_ns for e in one.thread.events))  # earlier regions are not known
    total = sum(len(one.rows) for one in threads.values())
    if total > MOST_OPERATIONS:
        begin = max(begin, int(end - (end - begin) * MOST_OPERATIONS / total))
    return begin, end


def _calls(root: Node) -> int:
    return root.calls + sum(map(_calls, root.children))


def find_backlogs(
    threads: LoggedThreads,
    channels: list[LoggedChannel],
    counts: ChannelCounts,
    begin: int,
) -> dict[int, int]:
    """How many messages each channel held at `begin`: what had been sent but not received."""
    before: dict[tuple[int, int], int] = defaultdict(int)
    for (_, place, kind), rows in counts.items():
        past = [count for end, count in rows if end <= begin]
        before[place, kind] += past[-1] if past else max(rows[0][1] - 1, 0)
    found = {}
    for number, channel in enumerate(channels):
        rows_of = [r for one in threads.values() for r in one.rows if r.channel == number and r.end > begin]
        moves = sorted(
            (r.end if r.kind == RECEIVE else r.begin, 1 if r.kind == RECEIVE else 0)
            for r in rows_of
            if r.kind in (SEND, LATER, RECEIVE)
        )
        is_counted = channel.tokens >= 0 and not any(r.kind == LATER for r in rows_of)
        least = level = 0
        for _, takes in moves:
            level += -1 if takes else 1
            least = min(least, level)
        known = before[number, SEND] - before[number, RECEIVE] + max(channel.tokens, 0)
        if known < 0 and is_counted:
            _drop_delivered(threads, number, begin, -known)
        found[number] = max(known if is_counted else -least, 0)
    return found


def _drop_delivered(threads: LoggedThreads, channel: int, begin: int, count: int) -> None:
    """Remove sends that had not returned at `begin` although their messages had been received."""
    late = sorted(
        (row.begin, key)
        for key, one in threads.items()
        for row in one.rows
        if row.channel == channel and row.kind == SEND and row.begin <= begin < row.end
    )
    for at, key in late[:count]:
        one = threads[key]
        one.rows = [r for r in one.rows if not (r.channel == channel and r.kind == SEND and r.begin == at)]


def match_messages(threads: LoggedThreads, channels: list[LoggedChannel], backlog: dict[int, int]) -> None:
    """Pair the messages of each channel in order, and mark the operations that waited."""
    sends: dict[int, list[LoggedOperation]] = defaultdict(list)
    takes: dict[int, list[LoggedOperation]] = defaultdict(list)
    for one in threads.values():
        for row in one.rows:
            if row.kind in (SEND, LATER):
                sends[row.channel].append(row)
            elif row.kind == RECEIVE:
                takes[row.channel].append(row)
    for number, channel in enumerate(channels):
        sent = sorted(sends[number], key=lambda r: r.end + r.delay)
        taken = sorted(takes[number], key=lambda r: r.end)
        held = backlog.get(number, 0)
        pairs = list(zip(taken[held:], sent, strict=False))
        underway_ns = _time_underway(channel, pairs)
        for row in taken[:held]:
            if channel.kind == "queue" and row.end - row.begin > PASSED_ON_NS:
                row.blocked, row.since_sent = True, -1  # when its message was sent is not known
        for row in taken[held + len(sent) :]:
            row.blocked, row.since_sent = True, -1
        for row, send in pairs:
            there = send.end + send.delay
            if there + underway_ns * (row.end - row.begin > PASSED_ON_NS) > row.begin + WAITED_NS:
                row.blocked = True
                # Below 0: it was faster than the sender's return. No longer than it was there to receive.
                row.since_sent = min(row.end - there, row.end - row.begin)
        if channel.capacity:
            order = sorted(sends[number], key=lambda r: r.begin)
            for k, row in enumerate(order):
                frees = k + held - channel.capacity
                if 0 <= frees < len(taken) and taken[frees].end > row.begin + WAITED_NS:
                    row.blocked = True


def _time_underway(channel: LoggedChannel, pairs: Sequence[tuple[LoggedOperation, LoggedOperation]]) -> int:
    """How long a message is under way at most, once it was put: a thread of the sender passes it on.

    From receives that began before their message was put. Whoever begins later than that after it finds it
    there, and takes as long as it takes to read it.
    """
    if channel.kind != "queue":
        return 0
    late = [row.end - send.end for row, send in pairs if send.end > row.begin + WAITED_NS]
    return max(int(np.median(late)), 0) if late else 0


def find_wakers(threads: Sequence[LoggedThread], channels: Sequence[LoggedChannel]) -> None:
    """For each wait on a condition or an event, the operation that ended it.

    A condition wakes those who wait. An event stays set: who finds it so has not waited, but would have, had
    it been set later. What it saw is the first time that it was set after this thread's wait before.
    """
    wakes: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for lane, one in enumerate(threads):
        for at, row in enumerate(one.rows):
            if row.kind == WAKE:
                # Who waits for an event may go on before `set` returns.
                moment = row.begin if channels[row.channel].kind == "event" else row.end
                wakes[row.channel].append((moment, lane, at))
    for found in wakes.values():
        found.sort()
    for lane, one in enumerate(threads):
        since: dict[int, int] = {}  # by event: end of the wait before
        for row in one.rows:
            if row.kind != WAIT:
                continue
            rows = wakes.get(row.channel, [])
            times = [r[0] for r in rows]
            if channels[row.channel].kind == "event":
                at = int(np.searchsorted(times, since.get(row.channel, 0), side="right"))
                if at < len(rows) and rows[at][0] <= row.end and rows[at][1] != lane:
                    row.waker = rows[at][1], rows[at][2]
                    row.since_sent = row.end - max(rows[at][0], row.begin)
                since[row.channel] = row.end
                continue
            at = int(np.searchsorted(times, row.end, side="right")) - 1
            while at >= 0 and rows[at][0] >= row.begin:
                if rows[at][1] != lane:
                    row.waker = rows[at][1], rows[at][2]
                    row.since_sent = row.end - rows[at][0]
                    break
                at -= 1


def find_awaited_regions(one: LoggedThread) -> None:
    """For each timer, the region that a task waits in: `with profile("x"): await asyncio.sleep(...)`.

    That is the last one opened since the loop received something. When it is closed does not tell: tasks
    that wait in the same region close it for each other.
    """
    if one.thread is None or not any(row.kind == LATER for row in one.rows):
        return
    known = (event for event in one.thread.events if event.path < len(one.thread.paths))
    events = sorted(known, key=lambda event: event.start_ns)
    starts = [event.start_ns for event in events]
    received = 0
    for row in one.rows:
        if row.kind == RECEIVE:
            received = max(received, row.end)
        elif row.kind == LATER:
            opened = events[bisect.bisect_left(starts, received) : bisect.bisect_right(starts, row.begin)]
            still_open = [event for event in opened if event.start_ns + event.duration_ns >= row.begin]
            path = one.thread.paths[still_open[-1].path] if still_open else ()
            row.region = path[-1] if path else ""
