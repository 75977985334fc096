"""Exact work counters, functions side by side, the machine load, and the commands of variants."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hotloop._util.errors import HotloopError
from hotloop.analysis.load_snapshot import run_load
from hotloop.analysis.profiled_functions import function_changes, function_times
from hotloop.analysis.work_counters import counter_changes, counters_of, steady_counters
from hotloop.capture.series import Run
from hotloop.machine.load_snapshot import load_snapshot
from hotloop.testing.captures import Spec, make_capture
from hotloop.workflows.compare import (
    ComparisonSettings,
    Limit,
    Side,
    compare_plan,
    parse_limit,
    under_cprofile,
)


def test_the_same_work_differs_by_exactly_nothing_however_long_it_took() -> None:
    quick, slow = (
        counters_of(make_capture({"env_step": Spec(calls=100, own_ns=ns, bytes_moved=3)}, env_steps=100))
        for ns in (1e4, 9e6)
    )
    assert quick == {"env steps": 100.0, "calls of env_step": 100.0, "bytes moved by env_step": 300.0}
    assert counter_changes(steady_counters([quick]), steady_counters([slow])) == ()


def test_counters_that_change_or_come_or_go_are_found_and_unsteady_ones_are_left_out() -> None:
    before = steady_counters([{"a": 1.0, "b": 2.0, "shaky": 1.0}, {"a": 1.0, "b": 2.0, "shaky": 2.0}])
    after = steady_counters([{"a": 3.0, "c": 1.0, "shaky": 9.0}])
    assert before.unsteady == ("shaky",)
    found = {c.name: (c.before, c.after, c.change) for c in counter_changes(before, after)}
    assert found == {"a": (1.0, 3.0, 2.0), "b": (2.0, None, None), "c": (None, 1.0, None)}


def test_functions_are_matched_by_file_and_name_not_by_line() -> None:
    a = function_times(
        {("/old/t.py", 10, "step"): (5, 5, 1.0, 2.0, {}), ("~", 0, "<sleep>"): (1, 1, 1, 1, {})}
    )
    b = function_times({("/new/t.py", 99, "step"): (5, 6, 1.0, 5.0, {})})
    assert [f.name for f in a] == ["t.py:step", "<sleep>"]
    rows = function_changes(a, b)
    assert [(r.name, r.calls_a, r.calls_b, r.change_s) for r in rows] == [
        ("t.py:step", 5, 6, 3.0),
        ("<sleep>", 1, 0, -1.0),
    ]


def test_cprofile_goes_around_the_script_and_nothing_else() -> None:
    out = Path("o")
    made = ["-m", "cProfile", "-o", "o"]
    assert under_cprofile(["python3.11", "-u", "-X", "dev", "t.py", "-m"], out) == [
        "python3.11", "-u", "-X", "dev", *made, "t.py", "-m",
    ]  # fmt: skip
    assert under_cprofile(["/usr/bin/python", "-m", "pkg", "x"], out) == [
        "/usr/bin/python", *made, "-m", "pkg", "x",
    ]  # fmt: skip
    for command in (["sh", "t.sh"], ["python", "-c", "1"], ["python"], ["pythonic", "t.py"]):
        assert isinstance(under_cprofile(command, out), str)


def test_a_load_snapshot_has_totals_and_leaves_out_what_the_system_does_not_report(tmp_path: Path) -> None:
    (tmp_path / "cpu").write_text(
        "some avg10=1.00 avg60=0.10 avg300=0.00 total=2500000\nfull avg10=0.00 total=7\n"
    )
    (tmp_path / "cpu.stat").write_text("usage_usec 5\nthrottled_usec 1500000\n")
    found = load_snapshot(tmp_path, tmp_path)
    assert found["cpu_stall_s"] == 2.5 and found["throttled_s"] == 1.5
    assert 0 <= found["steal_s"] < found["cpu_s"]
    assert "io_stall_s" not in found and "memory_stall_s" not in found
    run = Run(
        0, "A", 0, 0, 0, (), before=found | {"at_s": 0.0}, after=found | {"at_s": 4.0, "cpu_stall_s": 3.5}
    )
    assert (
        run_load(run).cpu_stall == 0.25 and run_load(run).throttled == 0.0 and run_load(run).io_stall is None
    )
    assert run_load(replace(run, after={})).cpu_stall is None


def test_sides_of_a_comparison_become_variants() -> None:
    common = ("python", "t.py", "--lr", "1")
    made = compare_plan(Side(), Side(overrides=("lr=2",), variables=("X=a=b",)), common, ComparisonSettings())
    assert [v.command for v in made.variants] == [common, ("python", "t.py", "--lr", "2")]
    assert made.variants[1].environment == (("X", "a=b"),)
    made = compare_plan(Side("a 'b c'"), Side(revision="HEAD"), (), ComparisonSettings())
    assert [v.command for v in made.variants] == [("a", "b c")] * 2
    same = compare_plan(Side("a"), Side(), (), ComparisonSettings(), selftest=True)
    assert same.variants[0].command == same.variants[1].command


@pytest.mark.parametrize(
    ("a", "b", "selftest", "why"),
    [
        (Side(), Side(), False, "A has no command"),
        (Side("x"), Side("x"), False, "the same command"),
        (Side("x"), Side("y"), True, "remove the options that describe B"),
        (Side("x '"), Side("y"), False, "No closing quotation"),
        (Side("x"), Side(variables=("X",)), False, "NAME=value"),
    ],
)
def test_sides_that_cannot_be_compared_are_one_sentence(a: Side, b: Side, selftest: bool, why: str) -> None:
    with pytest.raises(HotloopError, match=why):
        compare_plan(a, b, (), ComparisonSettings(), selftest)


def test_limits_as_people_type_them() -> None:
    assert parse_limit("slower:3%") == Limit("slower", 0.03)
    assert parse_limit("work:0%") == Limit("work", 0.0)
    assert parse_limit(None) is None
    for wrong in ("slower", "faster:3%", "slower:", "slower:0%", "slower:a"):
        with pytest.raises(HotloopError):
            parse_limit(wrong)
