"""Tensors that ranks of torch.distributed send to each other, in the message log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from hotloop.capture.message_format import RECEIVE, SEND
from hotloop.instrument.channels import logged_calls, ranks
from hotloop.instrument.patch import Patches


class _Work:
    def wait(self) -> bool:
        return True


class _Log:
    def __init__(self) -> None:
        self.keys: list[str] = []
        self.seen: list[tuple[str, int]] = []

    def channel(self, key: str, kind: str, **facts: Any) -> int:
        if key not in self.keys:
            self.keys.append(key)
        return self.keys.index(key)

    def write(self, channel: int, kind: int, begin_ns: int, end_ns: int, amount: int = 1) -> None:
        if channel >= 0:
            self.seen.append((self.keys[channel], kind))


@pytest.fixture
def rank_1(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, _Log]]:
    """A module like `torch.distributed.distributed_c10d` in rank 1, and what it logs."""
    made, log = ModuleType("c10d"), _Log()

    def isend(tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0) -> _Work:
        return _Work()

    def irecv(tensor: Any, src: int | None = None, group: Any = None, tag: int = 0) -> _Work:
        return _Work()

    def send(tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0) -> None:
        vars(made)["isend"](tensor, dst).wait()

    def recv(tensor: Any, src: int | None = None, group: Any = None, tag: int = 0) -> int:
        vars(made)["irecv"](tensor, src).wait()
        return 2 if src is None else src

    vars(made).update(isend=isend, irecv=irecv, send=send, recv=recv, Work=_Work, get_rank=lambda: 1)
    for module in (ranks, logged_calls):
        monkeypatch.setattr(module, "log", log)
    monkeypatch.setitem(sys.modules, "torch.distributed", made)  # the package has the same functions
    patches = Patches()
    ranks.patch_tensors(made, patches)
    yield made, log
    patches.undo()


def test_a_sender_waits_until_its_tensor_was_asked_for(rank_1: tuple[Any, _Log]) -> None:
    rank, log = rank_1
    rank.send(None, 0)
    assert log.seen == [("tensors 1>0 0", SEND), ("tensors 1>0 0 asked", RECEIVE)]


def test_a_receiver_asks_and_waits_for_the_tensor(rank_1: tuple[Any, _Log]) -> None:
    rank, log = rank_1
    assert rank.recv(None, src=0, tag=7) == 0
    assert log.seen == [("tensors 0>1 7 asked", SEND), ("tensors 0>1 7", RECEIVE)]


def test_who_sent_to_anyone_is_known_afterwards(rank_1: tuple[Any, _Log]) -> None:
    rank, log = rank_1
    assert rank.recv(None) == 2
    assert log.seen[-1] == ("tensors 2>1 0", RECEIVE)


def test_work_that_was_begun_is_waited_for_later(rank_1: tuple[Any, _Log]) -> None:
    rank, log = rank_1
    sent, taken = rank.isend(None, 0), rank.irecv(None, 0)
    assert log.seen == [("tensors 1>0 0", SEND), ("tensors 0>1 0 asked", SEND)]
    taken.wait()
    sent.wait()
    sent.wait()  # has been waited for
    assert log.seen[2:] == [("tensors 0>1 0", RECEIVE), ("tensors 1>0 0 asked", RECEIVE)]
