"""Workers that follow the patches of `hotloop try`, in one process: the board, the follower, the answers."""

from __future__ import annotations

import os
import threading
from multiprocessing import connection
from pathlib import Path

import pytest

from hotloop.instrument.import_hook import ImportHook
from hotloop.instrument.patch import Patches
from hotloop.instrument.trial_patch import TrialPatch
from hotloop.instrument.trial_patches import NAMES, DeferredCollection
from hotloop.instrument.trial_script import OrdersFile, plan_trial
from hotloop.instrument.trial_workers import Board, Follower, InWorkers, follow, read_word


class FakePatch(TrialPatch):
    """A patch that knows its state."""

    in_workers = True

    def __init__(self, name: str, reason: str | None = None, breaks: bool = False):
        self.name, self.reason, self.breaks, self.is_on = name, reason, breaks, False

    def skip_reason(self) -> str | None:
        return self.reason

    def apply(self) -> None:
        if self.breaks:
            raise RuntimeError("moved")
        assert not self.is_on
        self.is_on = True

    def undo(self) -> None:
        self.is_on = False


def test_one_process_reads_what_another_publishes(tmp_path: Path) -> None:
    board, other = Board(tmp_path), Board(tmp_path)
    assert read_word(other.word) == ("waiting", frozenset())
    board.ask()
    assert read_word(other.word)[0] == "asking"
    board.show("switching", ["gc", "threads", "nothing_1"])  # what does nothing is nobody's business
    assert read_word(other.word) == ("switching", frozenset({"gc", "threads"}))
    board.ask()  # too late: it changes nothing
    assert read_word(other.word)[0] == "switching"
    board.show("switching", NAMES)
    assert read_word(other.word) == ("switching", frozenset(NAMES))
    board.show("over")
    assert read_word(other.word) == ("over", frozenset())


def test_a_follower_answers_once_and_follows_the_board(tmp_path: Path) -> None:
    board = Board(tmp_path)
    made = [
        FakePatch("gc"),
        FakePatch("threads"),
        FakePatch("env_checks", "no env"),
        FakePatch("denormals", breaks=True),
    ]
    only_here = FakePatch("clip")
    only_here.in_workers = False
    asked = []
    follower = Follower(board, lambda: asked.append(1) or [*made, only_here])
    follower.check_board()
    assert not asked and not (tmp_path / "trial-workers").exists()
    board.ask()
    follower.check_board()
    follower.check_board()
    assert len(asked) == 1 and board.answers() == {"gc": 1, "threads": 1, "denormals": 1}
    for on in (["gc"], ["threads", "gc"], ["threads"], [], ["gc", "clip", "env_checks", "denormals"]):
        board.show("switching", on)
        follower.check_board()
        assert [t.name for t in made if t.is_on] == [n for n in ("gc", "threads") if n in on]
    assert not only_here.is_on  # the optimizer is elsewhere
    board.show("over")
    follower.check_board()
    assert not any(patch.is_on for patch in made) and len(asked) == 1


def test_one_that_joins_late_follows_and_one_that_joins_after_the_end_does_nothing(tmp_path: Path) -> None:
    board, late, after = Board(tmp_path), FakePatch("gc"), FakePatch("gc")
    board.show("switching", ["gc"])
    Follower(board, lambda: [late]).check_board()
    assert late.is_on and board.answers() == {"gc": 1}
    board.show("over")
    Follower(board, lambda: [after]).check_board()
    assert not after.is_on


def test_only_the_thread_that_works_switches(tmp_path: Path) -> None:
    board, switch = Board(tmp_path), FakePatch("gc")
    follower = Follower(board, lambda: [switch])
    board.show("switching", ["gc"])
    thread = threading.Thread(target=follower.check_board)
    thread.start()
    thread.join()
    assert not switch.is_on  # threads and denormals are settings of a thread
    follower.check_board()
    assert switch.is_on


def test_messages_bring_the_state_with_them(tmp_path: Path) -> None:
    switch = FakePatch("gc")
    board, hook, patches = Board(tmp_path), ImportHook({}), Patches()
    was = connection.Connection.recv
    follow(board, hook, patches, lambda: [switch])
    try:
        ours, theirs = connection.Pipe()
        for on in (["gc"], [], ["gc"]):
            board.show("switching", on)
            ours.send("step")
            assert theirs.recv() == "step" and switch.is_on == bool(on)
        board.show("over")
        ours.send("close")
        assert theirs.recv() == "close" and not switch.is_on
    finally:
        assert patches.undo() == []
    assert connection.Connection.recv is was
    assert (tmp_path / "trial-workers" / f"{os.getpid()}.json").exists()


def test_a_patch_that_matters_in_workers_alone_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [FakePatch("gc", "off already"), FakePatch("threads"), FakePatch("clip", "no optimizer")]
    monkeypatch.setattr("hotloop.instrument.trial_script.all_patches", lambda: made)
    usable, row = plan_trial(in_workers={"gc": 4, "threads": 4})
    assert list(usable) == ["gc", "threads"] and isinstance(usable["gc"], InWorkers)
    usable["gc"].apply()
    assert not made[0].is_on  # here it would change nothing
    assert {told["name"]: told["workers"] for told in row["candidates"]} == {"gc": 4, "threads": 4}
    assert row["left_out"] == {"clip": "no optimizer"}
    assert InWorkers(DeferredCollection()).line == DeferredCollection.line


def test_orders_are_read_when_they_are_new(tmp_path: Path) -> None:
    file = tmp_path / "orders"
    orders = OrdersFile(file)
    assert orders() == (None, ())
    file.write_text('{"patch_sets": [["x"], ["y", "z"]], "kept": ["w"]}')
    assert orders() == ([("x",), ("y", "z")], ("w",)) and orders() is orders()
    file.write_text("not JSON, and of another time")
    os.utime(file, ns=(1, 1))
    assert orders() == ([("x",), ("y", "z")], ("w",))
