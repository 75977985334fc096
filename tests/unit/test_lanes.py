"""Several runs at once, with a fake runner: which cores, which pairs, interrupts."""

from __future__ import annotations

import errno
import itertools
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotloop._util.errors import HotloopError
from hotloop.capture import series as store
from hotloop.capture.plan import Plan, Variant
from hotloop.capture.series import Run, Series, create, read
from hotloop.lab import run_plan as lab
from hotloop.lab.lanes import lanes_of, share_out
from hotloop.lab.process import Job, Outcome
from hotloop.lab.run_plan import PlanOutcome
from hotloop.machine.cores import AvailableCores, core_usage, physical_core
from tests.unit.test_lab import FakeLab, plan


def busy_room(busy: dict[int, float], quota: float | None = None) -> AvailableCores:
    return AvailableCores(tuple(busy), quota, busy)


def test_lanes_get_the_idlest_cores_evenly_and_whole_physical_cores() -> None:
    idle = dict.fromkeys((0, 4, 1, 5, 2, 6, 3, 7), 0.02)  # 0 and 4 are threads of one core
    assert share_out(2, busy_room(idle)) == ((0, 4, 1, 5), (2, 6, 3, 7))
    assert share_out(4, busy_room(idle)) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert share_out(2, busy_room(idle | {4: 1.0, 1: 0.9})) == ((0, 5, 2), (6, 3, 7))
    assert share_out(2, busy_room(idle, quota=2.0)) == ((0,), (4,))
    assert lanes_of(1, look=lambda: busy_room({})) == ((),)  # nothing is looked at


@pytest.mark.parametrize(
    ("jobs", "room", "says"),
    [
        (2, busy_room({0: 0.0}), "needs 2 free cores; this process may use 1; use fewer jobs"),
        (2, busy_room({0: 0.9, 1: 0.8}), "may use 2, and other programs use 1.7 of them"),
        (
            3,
            busy_room(dict.fromkeys(range(8), 0.0), quota=2.5),
            "needs 3 free cores; this process may use 2.5",
        ),
        (2, AvailableCores((), None, {}), "needs a system that can pin processes to cores"),
        (0, busy_room({0: 0.0}), "--jobs is 0; it must be at least 1."),
    ],
)
def test_without_free_cores_there_is_one_sentence(jobs: int, room: AvailableCores, says: str) -> None:
    with pytest.raises(HotloopError, match=re.escape(says)):
        lanes_of(jobs, lambda: room)


class Meeting:
    """A fake runner for lanes that knows which jobs are under way at the same time."""

    def __init__(self, time_of: Callable[[Job], float | Outcome]):
        self.time_of = time_of
        self.lock = threading.Lock()
        self.now: list[Job] = []
        self.together: list[tuple[Job, ...]] = []
        self.ended = threading.Event()
        self.met = threading.Event()

    def start(self, job: Job) -> Outcome:
        with self.lock:
            self.now.append(job)
            self.together.append(tuple(self.now))
            if len(self.now) > 1:
                self.met.set()
        self.met.wait(5)  # the first two jobs are sure to meet
        told = self.time_of(job)
        with self.lock:
            self.now.remove(job)
        return told if isinstance(told, Outcome) else Outcome(told, told, 0)

    def end(self, insist: bool) -> None:
        self.ended.set()


def in_lanes(made: Plan, meeting: Meeting, folder: Path, fake: FakeLab | None = None) -> PlanOutcome:
    fake = fake or FakeLab(lambda job, number: 1.0)
    fake.start = meeting.start  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hotloop.lab.process.end_running", meeting.end)
        return fake.run(create(folder / "series", made, {}), ((0, 1), (2, 3)))


def test_lanes_run_pairs_of_their_own_and_never_one_pair_at_once(tmp_path: Path) -> None:
    meeting = Meeting(lambda job: 2.0 if job.command[0] == "B" else 1.0)
    done = in_lanes(plan(), meeting, tmp_path)
    assert done.ended == "decided" and done.summary == "Decided after 5 pairs."
    series = read(tmp_path / "series")
    assert series.runs == done.series.runs and [run.number for run in series.runs] == list(range(10))
    for block in range(5):
        first, second = (run for run in series.runs if run.block == block)
        assert first.cores == second.cores != () and first.at_once == 2  # the same place for both
    for jobs in meeting.together:
        assert len({job.cores for job in jobs}) == len(jobs) <= 2  # no core has two
        assert len({job.command[1] for job in jobs}) == len(jobs)  # the seed is that of the pair
    assert any(len(jobs) == 2 for jobs in meeting.together)
    assert series.spent_s == pytest.approx(15.0 / 2)


def test_lanes_never_go_beyond_a_look(tmp_path: Path) -> None:
    times = iter([1.0, 2.0] * 100)
    done = in_lanes(plan(), Meeting(lambda job: next(times)), tmp_path, FakeLab(lambda job, number: 1.0))
    assert len(done.series.runs) / 2 in (5, 8, 12, 16, 20, 24, 30, 40)


def test_a_failing_run_in_a_lane_loses_only_its_pair(tmp_path: Path) -> None:
    failed: list[Any] = []

    def time_of(job: Job) -> float | Outcome:
        if job.command == ("B", "1") and not failed:
            failed.append(job)
            return Outcome(0.1, exit_code=3, failure="exit code 3", stderr_tail="no")
        return 2.0 if job.command[0] == "B" else 1.0

    done = in_lanes(plan(), Meeting(time_of), tmp_path)
    assert done.ended == "decided" and len(done.series.failures) == 1
    assert {run.block for run in done.series.runs} == set(range(6))  # one more for the one that was lost


def test_a_variant_that_always_fails_ends_the_lanes(tmp_path: Path) -> None:
    meeting = Meeting(lambda job: Outcome(0.1, failure="exit code 1") if job.command[0] == "B" else 1.0)
    done = in_lanes(plan(), meeting, tmp_path)
    assert done.ended == "failed" and len(done.series.runs) <= 8


def test_ctrl_c_ends_all_lanes_and_keeps_what_was_complete(tmp_path: Path) -> None:
    count = itertools.count()
    meeting = Meeting(lambda job: 1.0)

    def time_of(job: Job) -> float | Outcome:
        number = next(count)
        if number == 5:
            raise KeyboardInterrupt
        if number == 4:  # the other lane's run, ended by the lab
            assert meeting.ended.wait(5)
            return Outcome(0.2, failure="killed by SIGTERM")
        return 1.0

    meeting.time_of = time_of
    done = in_lanes(plan(), meeting, tmp_path)
    assert done.ended == "interrupted" and meeting.ended.is_set()
    series = read(tmp_path / "series")
    assert len(series.runs) == 4 and not series.failures  # what was cut short is nobody's run
    again = FakeLab(lambda job, number: 2.0 if job.command[0] == "B" else 1.0).run(series)
    assert again.ended == "decided"  # one at a time from here on
    assert {run.at_once for run in again.series.runs} == {1, 2}


def test_a_full_disk_in_a_lane_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(series: Series, run: Run) -> Series:
        if run.number == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return store.append(series, run)

    monkeypatch.setattr(lab, "append", full)
    done = in_lanes(plan(), Meeting(lambda job: 1.0), tmp_path)
    assert done.ended == "disk" and "No space left" in done.summary
    assert {0, 1, 2} <= {run.number for run in read(tmp_path / "series").runs}


def test_sizes_go_through_lanes_round_by_round(tmp_path: Path) -> None:
    made = Plan((Variant("x", ("x", "{n}")),), kind="scale", sizes=(10, 20, 40), repeats=3, budget_s=None)
    done = in_lanes(made, Meeting(lambda job: float(job.command[1])), tmp_path)
    assert done.ended == "scaled" and len(done.series.runs) == 9
    for repeat in range(3):
        assert len({run.cores for run in done.series.runs if run.block == repeat}) == 1


def test_core_usage_is_read_from_the_system(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text(
        "cpu  9 9 9 9 9 9 9 9\ncpu0 100 0 0 900 0 0 0 0 0 0\ncpu1 100 0 0 900 0 0 0 0 0 0\nintr 1\n"
    )

    def later(seconds: float) -> None:
        stat.write_text("cpu0 100 0 0 990 10 0 0 0 0 0\ncpu1 150 0 20 900 0 0 0 30 0 0\n")

    assert core_usage([0, 1, 2], 0.5, tmp_path, later) == {0: 0.0, 1: 1.0}
    assert core_usage([0], 0.5, tmp_path / "none", later) == {}
    (tmp_path / "cpu5" / "topology").mkdir(parents=True)
    (tmp_path / "cpu5" / "topology" / "thread_siblings_list").write_text("1,5\n")
    assert physical_core(5, tmp_path) == 1 and physical_core(2, tmp_path) == 2
