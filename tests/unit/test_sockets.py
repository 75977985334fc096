"""Sockets in the message log: bytes are counted, and become messages when a run is analysed."""

from __future__ import annotations

import asyncio
import selectors
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotloop.analysis.message_trace import find_trace
from hotloop.analysis.replay import replay
from hotloop.capture.message_format import MEET, PEEK, RECEIVE, RECORD, SEND
from hotloop.capture.messages import LoggedChannel, MessageLog, read_messages
from hotloop.capture.model import Capture
from hotloop.capture.samples import FOR_THE_GIL, RUNNING, SAMPLE_DTYPE, SLEEPING
from hotloop.instrument.channels import logged_calls, sockets, totals
from hotloop.instrument.channels.message_log import MessageLog as OpenLog
from hotloop.instrument.channels.sockets import patch_selectors, patch_socket
from hotloop.instrument.patch import Patches
from hotloop.measure.profiler import default
from hotloop.testing.captures import ProcessSpec, Spec, ThreadSpec, make_capture

ANSWER = bytes(300)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which this process logs what goes through its sockets."""
    monkeypatch.setattr(default, "folder", tmp_path)
    monkeypatch.setattr(type(default), "is_recording", property(lambda self: True))
    opened = OpenLog()
    for module in (logged_calls, sockets):
        monkeypatch.setattr(module, "log", opened)
    before, patches = default.recorder.flags, Patches()
    patch_socket(socket, patches)
    patch_selectors(selectors, patches)
    yield tmp_path
    assert not patches.undo()
    default.recorder.flags = before


def answer(peer: socket.socket, times: int) -> None:
    for _ in range(times):
        assert peer.recv(2, socket.MSG_WAITALL) == b"go"
        peer.sendall(ANSWER)


def test_bytes_are_counted_in_both_directions(log: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    thread = threading.Thread(target=answer, args=(server, 3))
    thread.start()
    for _ in range(3):
        assert client.send(b"go") == 2
        part = bytearray(100)
        assert client.recv_into(part) == 100
        assert len(client.recv(200, socket.MSG_WAITALL)) == 200
    thread.join()
    client.close()
    assert server.recv(10) == b""  # closed: nothing was received
    server.close()
    listener.close()
    (found,), unreadable = read_messages(log)
    assert (
        not unreadable
        and {channel.kind for channel in found.channels} == {"socket"}
        and len(found.channels) == 2
    )
    there, back = (channel.key for channel in found.channels)
    assert (found.channels[0].peer, found.channels[1].peer) == (back, there)
    counts = {
        (kind, found.channels[channel].key == there): found.records["count"][
            (found.records["channel"] == channel) & (found.records["kind"] == kind)
        ].tolist()
        for channel in (0, 1)
        for kind in (SEND, RECEIVE)
    }
    assert sorted(counts.values()) == [[2, 4, 6], [2, 4, 6], [100, 300, 400, 600, 700, 900], [300, 600, 900]]


def test_asyncio_waits_for_whichever_socket_has_something(log: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(2):
            await asyncio.sleep(0.001)
            writer.write(b"ok")
        writer.close()

    async def talk() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(*address)
        for _ in range(3):
            writer.write(b"go")
            assert await reader.readexactly(2) == b"ok"
        writer.close()
        await writer.wait_closed()
        server.close()

    asyncio.run(talk())
    (found,), _ = read_messages(log)
    kinds = found.records["kind"]
    assert (kinds == SEND).sum() == (kinds == RECEIVE).sum() == 6 and (kinds == PEEK).sum() >= 1


def test_other_sockets_are_left_alone(log: Path) -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one,
        socket.socket(type=socket.SOCK_DGRAM) as two,
    ):
        one.bind(("127.0.0.1", 0))
        two.connect(one.getsockname())
        two.send(b"datagram")
        assert one.recv(100) == b"datagram"
    assert read_messages(log) == ((), ())


# ---- analysis


def logged(
    pid: int, channels: list[LoggedChannel], rows: list[tuple[int, int, int, int, int, int]]
) -> MessageLog:
    return MessageLog(pid, tuple(channels), np.array(sorted(rows), dtype=list(RECORD)), len(rows))


def two_processes() -> Capture:
    return make_capture(
        {"learn": Spec(100, 1e6)}, processes=[ProcessSpec([ThreadSpec({"simulate": Spec(100, 1e6)})])]
    )


def test_reads_of_one_message_are_one_operation() -> None:
    """A learner (2 ms) asks a simulator (3 ms), whose answers are read in two parts."""
    capture = two_processes()
    (learner, simulator), ms = capture.processes[:2], 1_000_000
    me, other = ((p.pid, p.threads[0].native_id) for p in (learner, simulator))
    asks, answers = (
        LoggedChannel("ask", "socket", peer="answer"),
        LoggedChannel("answer", "socket", peer="ask"),
    )
    mine, theirs = [], []
    wrapped = (1 << 32) - 100  # the counts begin again
    for n in range(40):
        at = (1 + 5 * n) * ms
        mine += [
            (at, at + 1000, me[1], 0, SEND, 2 * n + 2),
            (at + 2000, at + 3 * ms, me[1], 1, RECEIVE, (wrapped + 13 * n + 4) % (1 << 32)),
            (at + 3 * ms + 1000, at + 3 * ms + 2000, me[1], 1, RECEIVE, (wrapped + 13 * n + 13) % (1 << 32)),
        ]
        theirs += [
            (at - 2 * ms, at + 1000, other[1], 0, RECEIVE, 2 * n + 2),
            (at + 3 * ms - 2000, at + 3 * ms - 1000, other[1], 1, SEND, (wrapped + 13 * n + 13) % (1 << 32)),
        ]
    logs = [logged(me[0], [asks, answers], mine), logged(other[0], [asks, answers], theirs)]
    trace, why = find_trace(capture, logs, me, 2.0)
    assert trace is not None, why
    for lane in trace.lanes:
        kinds = [operation.kind for operation in lane.operations]
        assert abs(kinds.count(SEND) - kinds.count(RECEIVE)) <= 1 and kinds.count(SEND) >= 39
    done = replay(trace).times
    assert done[-1] / len(done) == pytest.approx(0.0025, rel=0.05)  # 5 ms for a message and its answer


def test_threads_of_one_process_meet_in_rounds() -> None:
    """A process counts the meetings of all of its threads together."""
    capture = make_capture({"learn": Spec(100, 1e6)}, extra_threads=[ThreadSpec({"act": Spec(100, 1e6)})])
    process, ms = capture.processes[0], 1_000_000
    first, second = (thread.native_id for thread in process.threads[:2])
    rows = []
    for n in range(40):
        at = (1 + 5 * n) * ms
        rows += [
            (at, at + ms, first, 0, MEET, 2 * n + 1),
            (at + ms - 1000, at + ms, second, 0, MEET, 2 * n + 2),
        ]
    log = logged(process.pid, [LoggedChannel("barrier", "barrier", 2)], rows)
    trace, why = find_trace(capture, [log], (process.pid, first), 2.0)
    assert trace is not None, why
    assert [len(lane.operations) for lane in trace.lanes] == [40, 40]
    faster = replace(trace, lanes=tuple(replace(lane, work=lane.work / 2) for lane in trace.lanes))
    assert replay(trace).times[-1] == pytest.approx(2 * replay(faster).times[-1], rel=0.05)


def test_time_in_which_a_thread_waits_for_the_gil_is_no_work() -> None:
    """An actor hands something over every 5 ms, and was seen waiting for the GIL in every second sample."""
    capture = make_capture({"learn": Spec(100, 1e6)}, extra_threads=[ThreadSpec({"act": Spec(100, 1e6)})])
    process, ms = capture.processes[0], 1_000_000
    learner, actor = (thread.native_id for thread in process.threads[:2])
    rows = []
    for n in range(40):
        at = (1 + 5 * n) * ms
        rows += [(at, at + 1000, actor, 0, SEND, n + 1), (at - 2 * ms, at + 2000, learner, 0, RECEIVE, n + 1)]
    log = logged(process.pid, [LoggedChannel("queue", "thread_queue")], rows)
    samples = np.zeros(40, SAMPLE_DTYPE)
    samples["time_ns"], samples["weight_ns"] = (np.arange(40) * 5 + 3) * ms, 5 * ms
    samples["native_id"], samples["node"] = actor, 1
    samples["state"] = np.where(np.arange(40) % 2, SLEEPING, RUNNING)
    samples["reason"][1::2] = FOR_THE_GIL
    capture = replace(capture, processes=(replace(process, samples=samples),))
    trace, why = find_trace(capture, [log], (process.pid, learner), 2.0)
    assert trace is not None, why
    act = next(lane for lane in trace.lanes if lane.thread[1] == actor)
    assert float(act.work.sum()) == pytest.approx(0.5 * act.recorded_s, rel=0.1)
    assert act.on_core == {"act": 1.0}


def test_both_ends_of_a_connection_know_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals, "_channels", {})
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    regions = [totals.region_of_socket(one) for one in (client, server, client, listener)]
    assert regions[0] is regions[2] is not regions[1] and regions[3] is None
    send = totals.count_bytes(socket.socket.send)
    assert send(client, b"ask") == 3 and server.recv(3) == b"ask"
    for one in (client, server, listener):
        one.close()
    mine, theirs = ({"here": c["here"], "there": c["there"]} for c in totals.channels_with_news())
    assert mine == {"here": theirs["there"], "there": theirs["here"]}
    assert mine["here"].startswith("socket 127.0.0.1:")
