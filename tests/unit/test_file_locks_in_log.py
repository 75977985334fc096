"""Locks on files in the message log."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotloop.capture.message_format import RECEIVE, SEND
from hotloop.capture.messages import MessageLog, read_messages
from hotloop.instrument.channels import file_locks, logged_calls
from hotloop.instrument.channels.message_log import MessageLog as OpenLog
from hotloop.instrument.patch import Patches
from hotloop.measure.profiler import default


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which this process logs the locks that it takes."""
    monkeypatch.setattr(default, "folder", tmp_path)
    monkeypatch.setattr(type(default), "is_recording", property(lambda self: True))
    opened = OpenLog()
    for module in (logged_calls, file_locks):
        monkeypatch.setattr(module, "log", opened)
    monkeypatch.setattr(file_locks, "_files", {})
    before, patches = default.recorder.flags, Patches()
    file_locks.patch_file_locks(fcntl, patches)
    yield tmp_path
    assert not patches.undo()
    default.recorder.flags = before


def only_log(folder: Path) -> MessageLog:
    (found,), unreadable = read_messages(folder)
    assert not unreadable
    return found


def test_a_lock_on_a_file_is_a_token(log: Path) -> None:
    held, path = threading.Event(), log / "lock"

    def hold() -> None:
        with open(path, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            held.set()
            time.sleep(0.05)
            fcntl.flock(file, fcntl.LOCK_UN)

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    with open(path, "w") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        fcntl.flock(file.fileno(), fcntl.LOCK_UN)
    other.join()
    found = only_log(log)
    assert [(one.kind, one.tokens) for one in found.channels] == [("lock", 1)]
    assert found.records["kind"].tolist().count(RECEIVE) == found.records["kind"].tolist().count(SEND) == 2
    waited = found.records[found.records["kind"] == RECEIVE]
    assert max(waited["end_ns"] - waited["begin_ns"]) > 20_000_000


def test_a_lock_that_is_tried_again_is_waited_for_and_closing_gives_it_back(log: Path) -> None:
    path = log / "lock"
    one, two = (os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(2))
    fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for _ in range(3):
        with pytest.raises(BlockingIOError):
            fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.01)
    os.close(one)
    fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(two)
    records = only_log(log).records
    assert sorted(records["kind"].tolist()) == sorted([RECEIVE, SEND, RECEIVE, SEND])
    waited = records[records["kind"] == RECEIVE][-1]
    assert waited["end_ns"] - waited["begin_ns"] > 25_000_000


def test_a_lock_that_ends_unseen_and_shared_locks_are_left_out(log: Path) -> None:
    path = log / "lock"
    for _ in range(3):
        with open(path, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        fcntl.flock(file, fcntl.LOCK_UN)
    assert SEND not in only_log(log).records["kind"]
