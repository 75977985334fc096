"""What long verbs say while they work: done of how much, the budget, the estimate so far."""

from __future__ import annotations

import io
from pathlib import Path

from hotloop.analysis.verdict import judge
from hotloop.capture.plan import Plan, Variant
from hotloop.capture.series import Run, create
from hotloop.report.trial import Patch, TrialReport, trial_progress
from hotloop.workflows.experiments import Progress
from hotloop.workflows.series_report import series_report
from tests.unit.test_series_report import made


class Clock:
    """Made-up time."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(number: int, **more: object) -> Run:
    return Run(number, "A", 0, 0, 0, ("run",), wall_s=2.0, exit_code=0, **more)  # type: ignore[arg-type]


def test_sizes_are_counted_and_the_budget_is_named(tmp_path: Path) -> None:
    plan = Plan((Variant("A", ("run", "{n}")),), "scale", sizes=(10, 20, 40), repeats=2, budget_s=600.0)
    told, clock = io.StringIO(), Clock()
    progress = Progress(told, clock=clock)
    progress.begin(create(tmp_path / "s", plan, {}))
    clock.now_s += 42
    progress.run_ended(run(0, scale=True, size=10))
    progress.run_ended(run(1, scale=True, size=20))
    assert told.getvalue().splitlines() == [
        "size run 1 of 6: A, n = 10: 2.00 s, 42.0 s of 10 min 00 s",
        "size run 2 of 6: A, n = 20: 2.00 s, 42.0 s of 10 min 00 s",
    ]


def test_a_pipe_gets_a_line_now_and_then_and_a_terminal_all(tmp_path: Path) -> None:
    plan = Plan((Variant("A", ("run",)), Variant("B", ("run",))), budget_s=None)
    for stream, lines in ((io.StringIO(), 2), (Terminal(), 4)):
        clock = Clock()
        progress = Progress(stream, clock=clock)
        progress.begin(create(tmp_path / f"s{lines}", plan, {}))
        for number in range(4):
            clock.now_s += 6
            progress.run_ended(run(number))
        assert stream.getvalue().count("run ") == lines
        assert " of " not in stream.getvalue()  # no budget


def test_the_interval_so_far_and_the_budget_fit_the_line(tmp_path: Path) -> None:
    report = series_report(str(made(tmp_path / "s", ("A", "B"), 8)))
    told, clock = io.StringIO(), Clock()
    progress = Progress(told, clock=clock)
    progress.begin(report.series)
    progress.show_verdict(report.found)
    line = told.getvalue().rstrip("\n")
    assert line.startswith("8 pairs: time ") and line.endswith(" of 10 min 00 s")
    assert len(line) <= 99


def trial(*ratios: float, began: bool = True) -> TrialReport:
    patches = tuple(
        Patch(f"p{n}", "why", "x()", None, "add", judge([(1.0, ratio * (1 + 0.001 * k)) for k in range(12)]))
        for n, ratio in enumerate(ratios)
    )
    return TrialReport(patches, None, (), 12, "env_step", "cycles", None, 30.0, began)


def test_a_trial_names_its_best_patch() -> None:
    line = trial_progress(trial(0.9, 0.5), 20.4, 60.0)
    assert line.startswith("20 of 60 s, 12 rounds, 2 of 2 patches decided; best so far: p1, time -49")
    assert trial_progress(trial(), 1.0, 60.0) == "1 of 60 s, 12 rounds, 0 of 0 patches decided"
    assert trial_progress(trial(began=False), 0.0, 60.0) == "waiting for training to begin"
