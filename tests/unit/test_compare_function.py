"""`hotloop.compare`: the verdict on captures that exist, from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import hotloop
from hotloop.testing.fakes import FakeClock


def record(folder: Path, step_ns: int) -> None:
    clock = FakeClock()
    profiler = hotloop.Profiler(clock=clock).start(folder)
    for _ in range(200):
        with profiler.profile("env_step"):
            clock.advance(step_ns)
        profiler.progress(env_steps=1)
    profiler.stop()


def test_two_folders_of_captures_made_in_turn(tmp_path: Path) -> None:
    for number in range(8):
        record(tmp_path / "a" / str(number), 10_000_000 + 1000 * number)
        record(tmp_path / "b" / str(number), 20_000_000 + 1000 * number)
    (compared,) = hotloop.compare(tmp_path / "a", tmp_path / "b").compared
    assert compared.verdict.word == "slower" and compared.pairs == 8
    assert compared.verdict.change is not None
    assert compared.verdict.change.low <= 1.0 <= compared.verdict.change.high  # twice the time


def test_captures_that_were_not_made_in_turn_are_doubtful(tmp_path: Path) -> None:
    for name, step_ns in (("a", 10_000_000), ("b", 10_000_000)):
        for number in range(6):
            record(tmp_path / name / str(number), step_ns + 1000 * number)
    with pytest.warns(UserWarning, match="not run in turn"):
        hotloop.compare(tmp_path / "a", tmp_path / "b")


def test_a_place_without_captures_is_refused(tmp_path: Path) -> None:
    from hotloop._util.errors import HotloopError

    with pytest.raises(HotloopError):
        hotloop.compare(tmp_path, tmp_path)
