"""What long verbs say while they work: done of how much, the budget, the estimate so far."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from hotloop import Profiler
from hotloop.analysis.live import LiveRegion, LiveStatus
from hotloop.analysis.verdict import judge
from hotloop.capture.plan import Plan, Variant
from hotloop.capture.series import Run, create
from hotloop.report.trial import Patch, TrialReport, trial_progress
from hotloop.tuning.time_model import Probe
from hotloop.workflows.experiments import Progress
from hotloop.workflows.probes import ProbeLength
from hotloop.workflows.run_progress import following, goal_of, progress_line
from hotloop.workflows.series_report import series_report
from hotloop.workflows.tune import Prober, TuneTerms
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


def live(**more: object) -> LiveStatus:
    figures: dict[str, object] = {
        "run_ns": 80 * 10**9,
        "span_ns": 5 * 10**9,
        "since_start": False,
        "env_steps": 12_000,
        "env_steps_per_s": 150.0,
        "updates": 0,
        "updates_per_s": None,
        "episodes": 0,
        "episodes_per_s": None,
        "mean_return": None,
        "mean_loss": None,
        "regions": (LiveRegion("env_step", 3 * 10**9, 0.61, 150.0),),
        "processes": (),
        "stuck": (),
        "all_ended": False,
        "exit_status": None,
    }
    return LiveStatus(**figures | more)  # type: ignore[arg-type]


def test_a_run_says_what_is_done_of_how_much_and_the_time_left() -> None:
    assert progress_line(live(), 50_000) == (
        "80.0 s  12,000 of 50,000 env steps  4 min 13 s left  150 env steps/s  env_step 61.0 %"
    )
    assert progress_line(live()).startswith("80.0 s  12,000 env steps  150 env steps/s")
    assert "left" not in progress_line(live(env_steps=60_000), 50_000)
    assert progress_line(live(env_steps=0, env_steps_per_s=None), 9) == "80.0 s  env_step 61.0 %"


@pytest.mark.parametrize(
    ("words", "goal"),
    [
        ("train.py --total-timesteps 50_000", 50_000),
        ("train.py --total_timesteps=1e6", 1_000_000),
        ("train.py --timesteps 20000 --seed 1", 20_000),
        ("train.py --steps many", None),
        ("train.py --n-steps 128", None),
        ("train.py", None),
    ],
)
def test_the_goal_is_read_from_the_command(words: str, goal: int | None) -> None:
    assert goal_of(words.split()) == goal


def test_lines_come_now_and_then_and_end_with_the_run(tmp_path: Path) -> None:
    told: list[str] = []
    recorder = Profiler(core_name="python").start(tmp_path / "run", memory=False)
    with following(tmp_path / "run", ("train.py", "--steps", "500"), True, every_s=0.01, tell=told.append):
        while len(told) < 2:
            with recorder.profile("env_step"):
                recorder.progress(env_steps=1)
    recorder.stop()
    assert all(re.match(r"hotloop: .* of 500 env steps", line) for line in told[-1:])
    count = len(told)
    with following(tmp_path / "run", (), False, tell=told.append):
        pass  # no terminal here: nothing is said
    assert len(told) == count


def test_a_search_says_what_is_spent_and_what_is_best_so_far(tmp_path: Path) -> None:
    stream, clock = Terminal(), Clock()
    target = SimpleNamespace(start=None, warm_up_updates=0)
    terms = TuneTerms(60.0, 0.03, 0)
    length = ProbeLength(1.0, 10.0, 1)
    prober = Prober(target, tmp_path, length, Progress(stream), terms, clock)
    outcomes = iter([0.001, 0.0005])
    prober._made = lambda settings, name: Probe(settings, next(outcomes))  # type: ignore[method-assign]
    for n in (8, 16):
        clock.now_s += 10
        prober.tell(prober.probe((("n_envs", n),)))
    assert stream.getvalue().replace("\r\033[K", "\n").split("\n")[1:] == [
        "trying n_envs=8, 10.0 s of 60.0 s",
        "  probe 1: n_envs=8: 1,000 env steps/s, 10.0 s of 60.0 s",
        "",
        "trying n_envs=16, 20.0 s of 60.0 s; best so far n_envs=8: 1,000 env steps/s",
        "  probe 2: n_envs=16: 2,000 env steps/s, 20.0 s of 60.0 s",
        "",
    ]
