"""The lab with a fake runner: order, looks, failures, budgets, interrupts, a disk that fills up."""

from __future__ import annotations

import errno
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from hotloop._util.errors import CaptureError, HotloopError
from hotloop.analysis.comparison import best_combination, compare_series, decide_series, pairs_of
from hotloop.analysis.verdict import BlockDecision
from hotloop.capture import series as store
from hotloop.capture.plan import Plan, Variant
from hotloop.capture.series import Figures, Run, Series, create, read
from hotloop.lab import run_plan as lab
from hotloop.lab.lanes import ONE_LANE, Lane
from hotloop.lab.machine_lock import machine_lock, series_lock
from hotloop.lab.process import Job, Outcome
from hotloop.lab.run_plan import LabCallbacks, PlanOutcome, Workplace, run_plan

NOTHING = Figures()


@dataclass
class FakeLab:
    """Starts nothing: takes the time of a job from a function and writes down what it was asked."""

    time_of: Callable[[Job, int], float | Outcome]
    figures: Figures = NOTHING
    jobs: list[Job] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    looks: int = 0
    interrupt_at: int = -1

    def start(self, job: Job) -> Outcome:
        number = len(self.jobs)
        self.jobs.append(job)
        if number == self.interrupt_at:
            raise KeyboardInterrupt
        if self.figures != NOTHING:
            capture = Path(job.environment["HOTLOOP_CAPTURE"])
            capture.mkdir()
            (capture / "capture.json").write_text("{}")
        told = self.time_of(job, number)
        return told if isinstance(told, Outcome) else Outcome(told, told, 0)

    def run_ended(self, run: Run) -> None:
        pass

    def decide(self, series: Series) -> BlockDecision:
        self.looks += 1
        return decide_series(series)

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)

    def callbacks(self) -> LabCallbacks:
        return LabCallbacks(
            decide=self.decide,
            read_figures=lambda capture: self.figures,
            progress=self,
            start=self.start,
        )

    def run(self, series: Series, lanes: tuple[Lane, ...] = ONE_LANE) -> PlanOutcome:
        here = {variant.name: Workplace(Path.cwd(), {}) for variant in series.plan.variants}
        return run_plan(series, here, self.callbacks(), lanes)


def plan(*names: str, **more: object) -> Plan:
    variants = tuple(Variant(name, (name, "{seed}")) for name in names or ("A", "B"))
    kind = "pairs" if len(variants) == 2 else "blocks"
    return Plan(variants, **({"kind": kind, "budget_s": None} | more))  # type: ignore[arg-type]


def run(made: Plan, fake: FakeLab, folder: Path) -> PlanOutcome:
    return fake.run(create(folder / "series", made, {}))


def twice(job: Job, number: int) -> float:
    """B takes twice the time of A; both scatter a little."""
    return (2.0 if job.command[0] == "B" else 1.0) * (1 + 0.001 * (number % 7))


def test_a_clear_difference_is_decided_at_the_first_look(tmp_path: Path) -> None:
    fake = FakeLab(twice)
    ended = run(plan(), fake, tmp_path)
    assert ended.ended == "decided"
    assert len(fake.jobs) == 10 and fake.looks == 5
    verdict = compare_series(ended.series).compared[0].verdict
    assert verdict.word == "slower"
    assert verdict.change is not None and verdict.change.low < 1.0 < verdict.change.high
    assert read(tmp_path / "series") == ended.series


def test_runs_of_a_pair_share_a_seed_and_the_coin_falls_both_ways(tmp_path: Path) -> None:
    fake = FakeLab(lambda job, number: 1.0 + 0.2 * (number % 5))
    ended = run(plan(seeds=(11, 12)), fake, tmp_path)
    pairs = [fake.jobs[i : i + 2] for i in range(0, len(fake.jobs), 2)]
    assert all({job.command[0] for job in pair} == {"A", "B"} for pair in pairs)
    assert all(len({job.command[1] for job in pair}) == 1 for pair in pairs)
    assert [pair[0].command[1] for pair in pairs[:3]] == ["11", "12", "11"]
    assert {pair[0].command[0] for pair in pairs} == {"A", "B"}
    seeds = {job.environment["HOTLOOP_SEED"] for job in fake.jobs}
    assert seeds == {job.environment["PYTHONHASHSEED"] for job in fake.jobs} == {"11", "12"}
    assert [r.position for r in ended.series.runs[:4]] == [0, 1, 0, 1]


def test_the_order_is_the_same_for_the_same_order_seed_and_another_for_another(tmp_path: Path) -> None:
    orders = []
    for place, seed in (("a", 0), ("b", 0), ("c", 1)):
        fake = FakeLab(lambda job, number: 1.0 + 0.1 * (number % 5))
        (tmp_path / place).mkdir()
        run(plan("A", "B", "C", order_seed=seed), fake, tmp_path / place)
        orders.append([job.command[0] for job in fake.jobs])
    assert orders[0] == orders[1] != orders[2]


def test_blocks_hold_every_variant_once_and_settled_ones_are_left_out(tmp_path: Path) -> None:
    def times(job: Job, number: int) -> float:
        clear = {"A": 1.0, "B": 3.0, "C": 1.0}[job.command[0]]
        noise = 0.4 * ((number * 7919) % 13 - 6) / 13 if job.command[0] == "C" else 0.001 * (number % 5)
        return clear + noise

    fake = FakeLab(times)
    ended = run(plan("A", "B", "C", looks=(5, 8, 12, 16)), fake, tmp_path)
    blocks: dict[int, list[str]] = {}
    for made in ended.series.runs:
        blocks.setdefault(made.block, []).append(made.variant)
    assert all(len(names) == len(set(names)) and "A" in names for names in blocks.values())
    assert set(blocks[0]) == {"A", "B", "C"}
    assert set(blocks[max(blocks)]) == {"A", "C"}


def test_neighbours_have_a_baseline_of_their_own_and_are_compared_with_it(tmp_path: Path) -> None:
    """The machine gets slower by a tenth with every run: far apart, all others would look slower."""
    names = ("A", *"BCDEFGH")
    fake = FakeLab(lambda job, number: 1.1**number * (0.2 if job.command[0] == "B" else 1.0))
    ended = run(plan(*names, neighbours=2, looks=(12,)), fake, tmp_path)
    groups: dict[tuple[int, int], list[Run]] = {}
    for made in ended.series.runs:
        groups.setdefault((made.block, made.group), []).append(made)
    assert len(groups) == 12 * 4
    for block in range(12):
        mine = [group for (of, _), group in groups.items() if of == block]
        assert [len(group) for group in mine] == [3, 3, 3, 2]
        assert sorted(r.variant for group in mine for r in group) == sorted([*"AAA", *names])
        assert all("A" in {r.variant for r in group} for group in mine)
        places = [r.position for group in mine for r in group]
        assert places == list(range(11)) and len({r.seed for group in mine for r in group}) == 1
    first = {groups[at][0].variant == "A" for at in groups}
    assert first == {True, False}  # the baseline has no place of its own
    for row in compare_series(ended.series).compared:
        sizes = [abs(b.position - a.position) for a, b in pairs_of(ended.series, row.variant.name)]
        assert len(sizes) == 12 and max(sizes) <= 2
        assert row.verdict.change is not None
        assert (row.verdict.word == "faster") == (row.variant.name == "B")
        assert -0.2 < row.verdict.change.value < 0.25 or row.variant.name == "B"
    assert read(tmp_path / "series") == ended.series


def test_a_group_without_its_baseline_is_left_out(tmp_path: Path) -> None:
    def first_baseline_fails(job: Job, number: int) -> float | Outcome:
        earlier = [one.command[0] for one in fake.jobs[:number]]
        return Outcome(1.0, 1.0, 1, "failed") if job.command[0] == "A" and "A" not in earlier else 1.0

    fake = FakeLab(first_baseline_fails)
    ended = run(plan(*"ABCDE", neighbours=2, looks=(5,)), fake, tmp_path)
    beside = {r.variant for r in ended.series.runs if (r.block, r.group) == (0, 0)} - {"A"}
    told = {name: [b.block for _, b in pairs_of(ended.series, name)] for name in "BCDE"}
    assert len(beside) == 2 and {name for name in told if 0 not in told[name]} == beside


def test_no_difference_continues_to_the_last_look_and_no_further(tmp_path: Path) -> None:
    fake = FakeLab(lambda job, number: 1.0 + ((number * 7919) % 101) / 100)
    ended = run(plan(looks=(5, 8)), fake, tmp_path)
    assert len(fake.jobs) == 16
    assert (ended.ended, ended.summary) == ("looks", "Stopped after 8 pairs, the maximum.")
    assert compare_series(ended.series).compared[0].verdict.word == "undecided"


def test_two_failures_in_a_row_end_a_variant_and_leave_the_others_alone(tmp_path: Path) -> None:
    def times(job: Job, number: int) -> float | Outcome:
        if job.command[0] == "C":
            return Outcome(0.1, 0.1, 3, "exit code 3", "Traceback\nValueError: no")
        return twice(job, number)

    fake = FakeLab(times)
    ended = run(plan("A", "B", "C"), fake, tmp_path)
    assert ended.ended == "decided"
    assert Counter(job.command[0] for job in fake.jobs)["C"] == 2
    assert any("'C' failed 2 times in a row" in note for note in fake.notes)
    found = {row.variant.name: row for row in compare_series(ended.series).compared}
    assert found["B"].verdict.word == "slower" and found["C"].failures == 2
    assert [r.stderr_tail for r in read(tmp_path / "series").failures] == ["Traceback\nValueError: no"] * 2


def test_one_failure_loses_only_its_pair(tmp_path: Path) -> None:
    def times(job: Job, number: int) -> float | Outcome:
        return Outcome(0.1, 0.1, 1, "exit code 1") if number == 2 else twice(job, number)

    fake = FakeLab(times)
    ended = run(plan(), fake, tmp_path)
    assert ended.ended == "decided"
    assert compare_series(ended.series).compared[0].pairs == 5
    assert len(fake.jobs) == 12


def test_a_baseline_that_fails_ends_it(tmp_path: Path) -> None:
    fake = FakeLab(lambda job, n: Outcome(0.1, None, None, "killed") if job.command[0] == "A" else 1.0)
    ended = run(plan(), fake, tmp_path)
    assert ended.ended == "failed" and "'A'" in ended.summary
    assert len(fake.jobs) == 4


def test_the_budget_ends_it_before_a_pair_that_would_not_fit(tmp_path: Path) -> None:
    fake = FakeLab(lambda job, number: 1.0 + ((number * 7919) % 101) / 1000)
    ended = run(plan(budget_s=7.5), fake, tmp_path)
    assert ended.ended == "budget"
    assert len(fake.jobs) == 6
    assert {job.timeout_s for job in fake.jobs} == {7.5}


def test_an_interrupt_keeps_what_was_measured_and_resume_completes_it(tmp_path: Path) -> None:
    fake = FakeLab(twice, interrupt_at=5)
    ended = run(plan(), fake, tmp_path)
    assert ended.ended == "interrupted"
    kept = read(tmp_path / "series")
    assert len(kept.runs) == 5 == len(ended.series.runs)
    assert compare_series(kept).compared[0].verdict.word == "undecided"
    again = FakeLab(twice).run(kept)
    assert again.ended == "decided"
    found = compare_series(again.series).compared[0]
    assert found.verdict.word == "slower" and found.pairs == 5
    # The half pair of the interrupt is kept on disk, and is nobody's pair.
    blocks = Counter(r.block for r in again.series.runs)
    assert sorted(blocks.values()) == [1, 2, 2, 2, 2, 2]
    assert [r.number for r in again.series.runs] == list(range(11))


def test_a_decided_series_that_is_resumed_runs_nothing(tmp_path: Path) -> None:
    run(plan(), FakeLab(twice), tmp_path)
    fake = FakeLab(twice)
    assert fake.run(read(tmp_path / "series")).ended == "decided"
    assert fake.jobs == []


def test_a_full_disk_loses_nothing_already_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Run] = []

    def full(series: Series, made: Run) -> Series:
        if len(written) == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(made)
        return store.append(series, made)

    monkeypatch.setattr(lab, "append", full)
    ended = run(plan(), FakeLab(twice), tmp_path)
    assert ended.ended == "disk" and "No space left" in ended.summary
    assert len(read(tmp_path / "series").runs) == 4
    assert len(ended.series.runs) == 5  # the one that could not be written is judged, too


def test_a_scale_check_runs_every_size_and_resumes_with_those_missing(tmp_path: Path) -> None:
    made = Plan((Variant("A", ("a", "{n}")),), "scale", sizes=(10, 20, 40), repeats=2, budget_s=None)
    fake = FakeLab(lambda job, number: float(job.command[1]), interrupt_at=4)
    ended = run(made, fake, tmp_path)
    assert ended.ended == "interrupted"
    more = FakeLab(lambda job, number: float(job.command[1]))
    ended = more.run(read(tmp_path / "series"))
    assert ended.ended == "scaled" and len(more.jobs) == 2
    assert Counter(r.size for r in ended.series.runs) == {10: 2, 20: 2, 40: 2}
    from hotloop.analysis.scaling import scaling_of

    found = scaling_of(ended.series)
    assert found is not None and found.exponent is not None and abs(found.exponent.value - 1) < 1e-9


def test_two_labs_cannot_write_one_series(tmp_path: Path) -> None:
    series = create(tmp_path / "series", plan(), {})
    with series_lock(tmp_path / "series"), pytest.raises(CaptureError, match="Another hotloop"):
        FakeLab(twice).run(series)


def test_time_per_env_step_is_compared_where_runs_recorded_it(tmp_path: Path) -> None:
    fake = FakeLab(twice, Figures(env_steps=100, updates=10, s_per_env_step=0.01, s_per_update=0.1))
    ended = run(plan(looks=(5, 8)), fake, tmp_path)
    found = compare_series(ended.series)
    assert found.metric == "env_step"
    # Processes differ by a factor of two, env steps do not: that is the verdict.
    assert found.compared[0].verdict.word in ("no_difference", "undecided")
    assert dict(found.compared[0].more)["whole_process"].word == "slower"
    assert found.compared[0].work == ()


def test_work_that_differs_is_found_and_compared_per_unit(tmp_path: Path) -> None:
    ended = run(plan(), FakeLab(twice), tmp_path)
    a = Figures(env_steps=100, updates=100, s_per_env_step=0.01, components_s={"model": 0.008})
    b = replace(a, updates=88, s_per_env_step=0.02, components_s={"model": 0.018})
    runs = tuple(replace(r, figures=a if r.variant == "A" else b) for r in ended.series.runs)
    found = compare_series(replace(ended.series, runs=runs)).compared[0]
    assert found.work is not None
    assert [(w.counter, w.a, w.b) for w in found.work] == [("updates", 100.0, 88.0)]
    from hotloop.report.series_text import work_sentences

    assert work_sentences(found.work, "B") == ["B did 12 % fewer updates (88 against 100)."]
    assert found.components[0].name == "model"
    change = found.components[0].verdict.change
    assert change is not None and abs(change.value - 1.25) < 1e-9


def test_the_best_combination_takes_no_two_that_change_the_same_setting(tmp_path: Path) -> None:
    def times(job: Job, number: int) -> float:
        known = {"1": 1.0, "2": 0.5, "--quick": 1.0}
        return known.get(job.command[-1], 2.0) + 0.001 * (number % 5)

    variants = (
        Variant("base", ("x",)),
        Variant("lr 1", ("x", "--lr", "1"), ("lr=1",)),
        Variant("lr 2", ("x", "--lr", "2"), ("lr=2",)),
        Variant("quick", ("x", "--quick"), ("quick",), (("THREADS", "4"),)),
    )
    made = Plan(variants, "blocks", budget_s=None)
    ended = run(made, FakeLab(times), tmp_path)
    together = best_combination(compare_series(ended.series))
    assert together is not None
    assert together.command == ("x", "--lr", "2", "--quick")
    assert together.environment == (("THREADS", "4"),)
    assert together.name == "lr 2 + quick"


def test_the_capture_of_a_run_that_cannot_be_read_is_noted_and_the_run_counts(tmp_path: Path) -> None:
    fake = FakeLab(twice, Figures(env_steps=1))

    def broken(capture: Path) -> Figures:
        raise CaptureError("cut short")

    callbacks = replace(fake.callbacks(), read_figures=broken)
    here = {name: Workplace(Path.cwd(), {}) for name in "AB"}
    ended = run_plan(create(tmp_path / "series", plan(), {}), here, callbacks)
    assert ended.ended == "decided"
    assert all(r.ok and "cut short" in r.note for r in ended.series.runs)
    data = json.loads((tmp_path / "series" / "runs" / "0000" / "run.json").read_text())
    assert data["has_capture"] and data["figures"]["env_steps"] is None


@pytest.mark.parametrize("make", ["link", "second name", "folder"])
def test_the_lock_is_a_file_of_ours_and_follows_no_link(tmp_path: Path, make: str) -> None:
    precious, lock = tmp_path / "precious", tmp_path / "lock"
    precious.write_text("x")
    {"link": lock.symlink_to, "second name": lock.hardlink_to, "folder": lambda _: lock.mkdir()}[make](
        precious
    )
    with (
        pytest.raises(HotloopError, match="cannot be used as a lock"),
        machine_lock(lambda sentence: None, lock),
    ):
        pytest.fail("a lock that belongs to another file")
    assert precious.read_text() == "x"
