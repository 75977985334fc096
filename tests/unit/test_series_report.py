"""A series as text, page and data; plans written for a capture; predicted and measured gains."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotloop._util.errors import HotloopError
from hotloop.analysis.findings import Estimate, Recommendation
from hotloop.capture.plan import Plan, Variant
from hotloop.capture.plan_file import read_plan
from hotloop.capture.series import Figures, Run, append, begin_run, create, read
from hotloop.report.pen import Pen
from hotloop.report.series_charts import ticks
from hotloop.workflows.lab import plan_text, with_seed
from hotloop.workflows.prove import conclude
from hotloop.workflows.series_report import is_series, series_report, text, write_series_report


def made(folder: Path, names: tuple[str, ...], blocks: int, slow: float = 2.0) -> Path:
    """A series in which each variant takes `slow` times as long as the one before; the last run failed."""
    variants = tuple(Variant(name, ("run", name), expected="<b>bold</b>") for name in names)
    series = create(folder, Plan(variants, "pairs" if len(names) == 2 else "blocks"), {})
    for block in range(blocks):
        for position, name in enumerate(names):
            number, _ = begin_run(series)
            value = slow**position * (1 + 0.01 * (number % 7))
            at = float(number)
            run = Run(
                number, name, block, position, block, ("run", name), wall_s=value, cpu_s=value, exit_code=0,
                figures=Figures(env_steps=10, s_per_env_step=value / 10, components_s={"model": value / 10}),
                before={"at_s": at, "load_1min": 0.5, "cpu_stall_s": 0.1 * number},
                after={"at_s": at + 1, "load_1min": 0.5, "cpu_stall_s": 0.1 * number + 0.25},
            )  # fmt: skip
            series = append(series, run)
    number, _ = begin_run(series)
    append(series, Run(number, names[-1], blocks, 0, 0, ("run",), failure="exit code 1", stderr_tail="why"))
    return folder


def test_the_text_has_verdict_intervals_runs_parts_and_badge(tmp_path: Path) -> None:
    folder = made(tmp_path / "s", ("A", "B"), 8)
    assert is_series(str(folder)) and not is_series(None)
    said = text(series_report(str(folder)), Pen(width=80, unicode=False))
    assert said.startswith("Series")
    assert "B is slower by" in said and "[" in said
    assert "CPU pressure 25.0 % (max 25.0 %)" in said
    assert "model" in said and "100.0 %" in said
    assert "B: 1 run failed (exit code 1): why" in said
    assert "  16 B" in said and "failed  exit code 1" in said
    assert said.count(" A ") >= 8
    assert max(len(line) for line in said.splitlines()) <= 80


def test_the_reason_of_a_failure_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    folder = made(tmp_path / "s", ("A", "B"), 8)
    series = read(folder)
    number, _ = begin_run(series)
    append(series, Run(number, "B", 9, 0, 0, ("run",), failure="\x1b[2J\r\nowned", stderr_tail="why"))
    said = text(series_report(str(folder)), Pen(width=80, unicode=False))
    assert "\x1b" not in said and "\r" not in said and "owned" in said


def test_several_variants_are_ranked(tmp_path: Path) -> None:
    folder = made(tmp_path / "s", ("base", "slow", "slower"), 8, slow=1.5)
    report = series_report(str(folder))
    assert report.table is not None
    assert [row.name for row in report.table.rows] == ["slow", "slower"]
    assert "Variants" in text(report)


@pytest.mark.parametrize("names", [("A", "B"), ("<script>", "b&c", "d")])
def test_the_page_needs_nothing_from_outside_and_foreign_names_do_no_harm(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    folder = made(tmp_path / "s", names, 6)
    file = tmp_path / "page.html"
    size = write_series_report(series_report(str(folder)), file)
    page = file.read_text()
    assert size == len(page.encode()) < 300_000
    assert "<b>bold" not in page and "&lt;b&gt;bold" in page
    assert page.count("<script") == 3  # data, charts, ours
    assert "http://" not in page and "https://" not in page and "src=" not in page
    for title in ("Verdicts", "Components", "Runs in order", "Machine load during the runs", "Reproduce"):
        assert title in page
    assert page.count("<circle") >= 6
    with pytest.raises(HotloopError, match="exists"):
        write_series_report(series_report(str(folder)), file)
    write_series_report(series_report(str(folder)), file, force=True)
    with pytest.raises(HotloopError, match=r"\.html"):
        write_series_report(series_report(str(folder)), tmp_path / "x.pdf")


def test_the_data_has_every_run(tmp_path: Path) -> None:
    folder = made(tmp_path / "s", ("A", "B"), 5)
    write_series_report(series_report(str(folder)), tmp_path / "s.json")
    data = json.loads((tmp_path / "s.json").read_text())
    assert data["schema_version"] == 2 and len(data["runs"]) == 11
    assert data["runs"][-1]["value_s"] is None
    assert data["compared"][0]["verdict"]["word"] == "slower"


def recommendation(**more: Any) -> Recommendation:
    known = Recommendation(
        name="one-thread",
        title='Use "one" thread',
        evidence=(),
        advice="",
        gain=Estimate(1.3, 1.1, 1.5),
        tier="high",
        effort="minutes",
        safety="safe",
        provable_by="environment",
        how_to_change="a\nb",
        site="",
        region="",
        plan={"variants": [{}, {"environment": {"OMP_NUM_THREADS": "1"}}]},
        prove_command="",
    )
    return replace(known, **more)


def test_a_plan_for_a_capture_can_be_read_and_has_its_suspects(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    given = (
        recommendation(),
        recommendation(name="flag", provable_by="flag", plan={}, gain=None),
        recommendation(name="hand", provable_by="hand", plan={}),
    )
    command = with_seed(["python", "a b.py", "--seed", "3", "seed=4", "--lr", "5"])
    written, suspects = plan_text(command, file, given)
    file.write_text(written)
    plan = read_plan(file)
    assert suspects == 1
    assert plan.baseline.command == ("python", "a b.py", "--seed", "{seed}", "seed={seed}", "--lr", "5")
    assert plan.variant("one-thread").environment == (("OMP_NUM_THREADS", "1"),)
    assert plan.variant("one-thread").expected == "1.30x [1.10, 1.50]"
    assert '# name = "flag"' in written and "compare two revisions" in written


def test_a_plan_without_recommendations_still_has_something_to_try() -> None:
    written, suspects = plan_text(["x"], Path("p.toml"), ())
    assert suspects == 1 and len(tomllib.loads(written)["suspects"]) == 1


@pytest.mark.parametrize(
    ("predicted", "measured", "word"),
    [
        ((1.3, 1.1, 1.5), (1.4, 1.2, 1.6), "As predicted"),
        ((1.3, 1.1, 1.5), (1.0, 0.9, 1.05), "Less than predicted"),
        ((1.3, 1.1, 1.5), (2.0, 1.9, 2.1), "More than predicted"),
        (None, (2.0, 1.9, 2.1), "No prediction"),
        ((1.3, 1.1, 1.5), None, "Not measured"),
    ],
)
def test_the_conclusion_compares_predicted_and_measured(
    predicted: tuple[float, ...] | None, measured: tuple[float, ...] | None, word: str
) -> None:
    found = [Estimate(*e) if e else None for e in (predicted, measured)]
    assert conclude(*found).startswith(word)


def test_ticks_are_round_and_inside() -> None:
    assert ticks(-0.35, 0.35) == pytest.approx([-0.2, 0.0, 0.2])
    assert ticks(0.0, 1.0) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(1.0, 1.0) == [1.0]
