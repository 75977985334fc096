"""A series on disk: whole after every run, readable at any time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from hotloop._util.errors import CaptureError
from hotloop.capture.plan import Plan, Variant
from hotloop.capture.series import Figures, Run, Series, append, begin_run, create, is_series, read
from tests.edited import edit_json

PLAN = Plan((Variant("A", ("a",)), Variant("B", ("b",))))


def add(series: Series, variant: str, **more: object) -> Series:
    number, _ = begin_run(series)
    run = Run(number, variant, number // 2, number % 2, 0, ("x", "y"), **more)  # type: ignore[arg-type]
    return append(series, run)


def test_every_run_comes_back_as_it_was_and_in_order(tmp_path: Path) -> None:
    series = create(tmp_path / "s", PLAN, {"machine": {"cpu": "x"}})
    figures = Figures(env_steps=3, s_per_env_step=0.5, components_s={"model": 0.1}, region_calls={"a": 2})
    for i in range(12):
        series = add(series, "AB"[i % 2], wall_s=i + 0.5, figures=figures, before={"load_1min": 0.5})
    again = read(tmp_path / "s")
    assert again == series
    assert [run.number for run in again.runs] == list(range(12))
    assert again.spent_s == sum(i + 0.5 for i in range(12))
    assert is_series(tmp_path / "s") and not is_series(tmp_path)


def test_a_run_that_was_cut_off_is_not_there_and_its_place_is_used_again(tmp_path: Path) -> None:
    series = add(create(tmp_path / "s", PLAN, {}), "A")
    number, folder = begin_run(series)
    (folder / "capture").mkdir()
    (folder / "capture" / "half").write_text("x")
    assert [run.number for run in read(tmp_path / "s").runs] == [0]
    assert begin_run(read(tmp_path / "s")) == (number, folder)
    assert list(folder.iterdir()) == []


def test_a_broken_run_is_left_out_with_a_warning_and_never_written_over(tmp_path: Path) -> None:
    series = add(add(create(tmp_path / "s", PLAN, {}), "A"), "B")
    broken = tmp_path / "s" / "runs" / "0001" / "run.json"
    broken.write_text('{"number": 1')
    again = read(tmp_path / "s")
    assert [run.number for run in again.runs] == [0]
    assert "0001" in again.warnings[0]
    assert begin_run(again)[0] == 2
    assert broken.read_text() == '{"number": 1'
    assert len(series.runs) == 2


def test_an_unknown_version_is_one_sentence_that_says_what_reads_it(tmp_path: Path) -> None:
    create(tmp_path / "s", PLAN, {"hotloop_version": "9.9"})
    file = tmp_path / "s" / "series.json"
    edit_json(file, {"format_version": 7})
    with pytest.raises(
        CaptureError, match=r"series format 7 and this hotloop reads 1; .*hotloop 9\.9"
    ) as problem:
        read(tmp_path / "s")
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("content", ["", "[]", '{"format": "other"}', "{"])
def test_a_folder_without_a_series_is_one_sentence(content: str, tmp_path: Path) -> None:
    (tmp_path / "series.json").write_text(content)
    with pytest.raises(CaptureError):
        read(tmp_path)
    with pytest.raises(CaptureError, match="is not a series"):
        read(tmp_path / "nowhere")


def test_a_folder_that_is_in_use_is_refused(tmp_path: Path) -> None:
    create(tmp_path / "s", PLAN, {})
    with pytest.raises(CaptureError, match="--resume"):
        create(tmp_path / "s", PLAN, {})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(CaptureError, match="choose another folder"):
        create(tmp_path / "mine", PLAN, {})


def test_fields_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    add(create(tmp_path / "s", PLAN, {}), "A")
    file = tmp_path / "s" / "runs" / "0000" / "run.json"
    edit_json(file, lambda data: data.update(new=1, figures=data["figures"] | {"newer": 2}))
    assert read(tmp_path / "s").runs[0].variant == "A"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"cpu_s": math.nan}, "its cpu_s is nan"),
        ({"wall_s": 1e-320}, "its wall_s is 1e-320"),
        ({"wall_s": "1"}, "the run.wall_s is '1', not a number"),
        ({"at_once": 0}, "its at_once is 0"),
        ({"number": 7}, "it is run 7, in the place of another one"),
        ({"variant": "C"}, "the plan has no variant 'C'"),
        ({"before": {"cpu_s": -1}}, "its cpu_s is -1"),
        ({"figures": {"regions_s": {"a": math.inf}}}, "its a is inf"),
    ],
)
def test_a_run_that_cannot_be_is_left_out_and_named(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    add(create(tmp_path / "s", PLAN, {}), "A", cpu_s=1.0)
    edit_json(tmp_path / "s" / "runs" / "0000" / "run.json", change)
    again = read(tmp_path / "s")
    assert again.runs == () and says in again.warnings[0]


def test_one_changed_digit_is_noticed(tmp_path: Path) -> None:
    add(create(tmp_path / "s", PLAN, {}), "A", wall_s=1.5)
    for file in (tmp_path / "s" / "runs" / "0000" / "run.json", tmp_path / "s" / "series.json"):
        file.write_text(file.read_text().replace("1.5", "1.6").replace("0.03", "0.04"))
    with pytest.raises(CaptureError, match="does not match its checksum"):
        read(tmp_path / "s")
    edit_json(tmp_path / "s" / "series.json", {})
    assert "does not match its checksum" in read(tmp_path / "s").warnings[0]
