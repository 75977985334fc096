"""Event loops in the message log: what other threads hand to a loop is a message to its thread."""

from __future__ import annotations

import asyncio
import asyncio.base_events
import contextlib
import selectors
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hotloop.capture.message_format import LATER, RECEIVE, SEND
from hotloop.capture.messages import read_messages
from hotloop.instrument.channels import event_loops, logged_calls
from hotloop.instrument.channels.event_loops import patch_event_loops
from hotloop.instrument.channels.message_log import MessageLog as OpenLog
from hotloop.instrument.channels.sockets import patch_selectors
from hotloop.instrument.patch import Patches
from hotloop.measure.profiler import default


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which this process logs what its event loops get."""
    monkeypatch.setattr(default, "folder", tmp_path)
    monkeypatch.setattr(type(default), "is_recording", property(lambda self: True))
    opened = OpenLog()
    for module in (logged_calls, event_loops):
        monkeypatch.setattr(module, "log", opened)
    before, patches = default.recorder.flags, Patches()
    patch_selectors(selectors, patches)
    patch_event_loops(asyncio.base_events, patches)
    yield tmp_path
    assert not patches.undo()
    default.recorder.flags = before


def test_a_loop_receives_what_a_thread_hands_to_it(log: Path) -> None:
    threads: list[int] = []

    def simulate(number: int) -> int:
        threads.append(threading.get_native_id())
        time.sleep(0.02)
        return number

    async def steps(pool: ThreadPoolExecutor) -> list[int]:
        loop = asyncio.get_running_loop()
        loop.call_soon_threadsafe(threads.clear)  # by its own thread: no message
        await asyncio.sleep(0)
        return [await loop.run_in_executor(pool, simulate, number) for number in range(3)]

    with ThreadPoolExecutor(1) as pool:
        assert asyncio.run(steps(pool)) == [0, 1, 2]
    (found,), unreadable = read_messages(log)
    assert not unreadable and [one.kind for one in found.channels] == ["thread_queue"]
    sent = [row for row in found.records if row["kind"] == SEND]
    taken = [row for row in found.records if row["kind"] == RECEIVE]
    assert [int(row["thread"]) for row in sent] == threads
    assert [int(row["thread"]) for row in taken] == [threading.get_native_id()] * 3
    for send, take in zip(sent, taken, strict=True):
        assert take["begin_ns"] <= send["end_ns"] <= take["end_ns"]  # it waited in its selector


def test_a_timer_is_a_message_that_is_there_when_it_is_due(log: Path) -> None:
    async def steps() -> None:
        sleeping = asyncio.ensure_future(asyncio.sleep(0.02))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.sleep(0.001), 9)  # whose timer is cancelled
        await sleeping

    asyncio.run(steps())
    (found,), unreadable = read_messages(log)
    assert not unreadable
    timers = found.records[found.records["kind"] == LATER]
    assert len(timers) == 2 and sum(found.records["kind"] == RECEIVE) == 2
    delays = sorted((timers["end_ns"] - timers["begin_ns"]).tolist())
    assert 0 <= delays[0] <= 1.01e6 and 0 <= delays[1] <= 20.01e6
