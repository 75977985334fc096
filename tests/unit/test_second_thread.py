"""Parts that a second thread shares: each is done once, whichever thread has a core; errors come back."""

from __future__ import annotations

import threading

import pytest
import torch

from hotloop.rl.train.runs import torch_threads
from hotloop.rl.train.second_thread import SecondThread


def test_every_part_is_done_once_by_one_of_two_threads() -> None:
    done: list[tuple[int, str]] = []
    both = threading.Barrier(2, timeout=60)

    def part(number: int) -> None:
        if number < 2:
            both.wait()  # the first two parts are under way at the same time
        done.append((number, threading.current_thread().name))

    with SecondThread() as second:
        second.start([lambda n=n: part(n) for n in range(20)]).finish()  # type: ignore[misc]
    assert sorted(number for number, _ in done) == list(range(20))
    assert {name for _, name in done} == {threading.current_thread().name, "second_thread_0"}


def test_the_first_thread_does_everything_if_the_second_one_is_busy() -> None:
    begun, free = threading.Event(), threading.Event()
    done: list[str] = []

    def keep_busy() -> None:
        begun.set()
        assert free.wait(60)

    with SecondThread() as second:
        busy = second.start([keep_busy])
        assert begun.wait(60)
        second.start([lambda: done.append(threading.current_thread().name)] * 3).finish()
        free.set()
        busy.finish()
    assert done == [threading.current_thread().name] * 3


def test_an_error_in_a_part_is_raised_where_parts_are_finished() -> None:
    both = threading.Barrier(2, timeout=60)

    def fail() -> None:
        name = threading.current_thread().name
        both.wait()
        if name == "second_thread_0":
            raise ValueError("no room")

    with SecondThread() as second, pytest.raises(ValueError, match="no room"):
        second.start([fail, fail]).finish()


def test_parts_have_the_creator_s_torch_threads_and_no_gradient() -> None:
    found: list[tuple[int, bool]] = []
    both = threading.Barrier(2, timeout=60)

    def look() -> None:
        both.wait()
        found.append((torch.get_num_threads(), torch.is_grad_enabled()))

    with torch_threads(1), SecondThread() as second:
        second.start([look, look]).finish()
        assert torch.is_grad_enabled()
    assert found == [(1, False), (1, False)]
