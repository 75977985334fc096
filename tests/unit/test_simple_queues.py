"""SimpleQueues in the message log: how many messages the pipe of one holds."""

from __future__ import annotations

import multiprocessing
import multiprocessing.queues
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotloop.capture.message_format import RECEIVE, SEND
from hotloop.capture.messages import read_messages
from hotloop.instrument.channels import logged_calls, processes
from hotloop.instrument.channels.identity import pipe_bytes
from hotloop.instrument.channels.message_log import MessageLog as OpenLog
from hotloop.instrument.channels.processes import MEASURED, patch_queues
from hotloop.instrument.patch import Patches
from hotloop.measure.profiler import default


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which this process logs its queues."""
    monkeypatch.setattr(default, "folder", tmp_path)
    monkeypatch.setattr(type(default), "is_recording", property(lambda self: True))
    opened = OpenLog()
    for module in (logged_calls, processes):
        monkeypatch.setattr(module, "log", opened)
    before, patches = default.recorder.flags, Patches()
    patch_queues(multiprocessing.queues, patches)
    yield tmp_path
    assert not patches.undo()
    default.recorder.flags = before


def test_a_pipe_holds_as_many_messages_as_fit_into_it(log: Path) -> None:
    games: Any = multiprocessing.get_context("fork").SimpleQueue()
    size = pipe_bytes(games._writer.fileno())
    for number in range(MEASURED + 1):
        games.put(bytes(size * 3 // 10))
        if number < MEASURED - 1:
            assert read_messages(log)[0][0].channels[0].capacity is None  # not known yet
        assert len(games.get()) == size * 3 // 10
    assert "send_bytes" not in vars(games._writer)
    (found,), unreadable = read_messages(log)
    assert not unreadable
    assert [(one.kind, one.capacity) for one in found.channels] == [("simple_queue", 3)]
    assert [int(row["kind"]) for row in found.records] == [SEND, RECEIVE] * (MEASURED + 1)
