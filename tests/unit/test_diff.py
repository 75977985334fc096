"""Two captures side by side: different work is reported first, nothing is called faster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hotloop.analysis.diff import diff
from hotloop.capture.export import save_json
from hotloop.capture.model import Capture
from hotloop.cli import diff as verb
from hotloop.report.safe_text import columns
from hotloop.report.side_by_side import diff_json, diff_text
from hotloop.testing import ProcessSpec, Spec, ThreadSpec, make_capture


def run(step_ns: float = 20_000, updates: int = 100, env_steps: int = 1000, **more: Any) -> Capture:
    regions = {
        "collect": Spec(100, 5000.0, {"env_step": Spec(env_steps, step_ns)}),
        "learn": Spec(updates, 400_000.0),
    }
    return make_capture(regions, env_steps=env_steps, updates=updates, episodes=10, **more)


def test_rows_are_own_time_per_env_step() -> None:
    found = diff(run(), run(step_ns=30_000))
    assert found.per == "env_step"
    row = found.rows[0]
    assert row.path == ("collect", "env_step")
    assert (row.a_per, row.b_per) == (20_000.0, 30_000.0)
    assert row.change == 10_000.0 and row.ratio == 1.5


def test_all_time_is_in_the_rows() -> None:
    a = run(processes=[ProcessSpec([ThreadSpec({"env_step": Spec(5, 1e6)})])])
    found = diff(a, run())
    assert sum(row.a_own_ns or 0 for row in found.rows) == found.a.thread_ns
    assert sum(row.b_own_ns or 0 for row in found.rows) == found.b.thread_ns
    assert found.a.thread_ns > found.a.wall_ns


def test_twice_the_steps_at_the_same_cost_does_not_change_env_step() -> None:
    found = diff(run(), run(env_steps=2000))
    row = next(row for row in found.rows if row.name == "env_step")
    assert row.ratio == 1.0 and row.change == 0.0


def test_without_env_steps_on_both_sides_shares_of_the_wall_are_shown() -> None:
    found = diff(run(), make_capture({"x": Spec(3, 1e6)}, unattributed=0.5))
    assert found.per == "wall"
    x = next(row for row in found.rows if row.name == "x")
    assert x.a_per is None and x.b_per == pytest.approx(0.5)
    assert x.ratio is None and x.a_calls is None
    (steps,) = [line.split() for line in diff_text(found).splitlines() if line.startswith("env steps  ")]
    assert steps[-1] == "-"  # none reported is not 0


def test_different_work_is_reported_before_times() -> None:
    found = diff(run(), run(updates=80))
    assert [w.counter for w in found.work] == ["updates", "updates_per_env_step"]
    assert [w.ratio for w in found.work] == pytest.approx([0.8, 0.8])
    text = diff_text(found)
    assert text.index("did different work") < text.index("own time per env step")
    assert "B did 20.0 % fewer updates (100, 80)" in " ".join(text.split())


def test_equal_work_is_reported_too() -> None:
    found = diff(run(), run(step_ns=30_000))
    assert found.work == ()
    assert "Both runs report the same work." in diff_text(found)


def test_no_counters_at_all_means_the_work_is_unknown() -> None:
    x = make_capture({"x": Spec(3, 1e6)})
    assert "no telling whether they did the same work" in " ".join(diff_text(diff(x, x)).split())


def test_it_names_the_deciding_test_and_gives_no_verdict() -> None:
    text = " ".join(diff_text(diff(run(), run(step_ns=90_000))).split())
    assert "One run each proves nothing" in text
    assert "several times in alternation" in text
    assert "faster" not in text and "slower" not in text


def test_other_machines_and_versions_are_named() -> None:
    other = run(facts={"machine": {"cpu": "fast CPU"}, "versions": {"numpy": "2.1.0"}}, alive=True)
    assert diff(run(), other).setup == (
        "The CPU differs: made-up CPU in A, fast CPU in B.",
        "The version of numpy differs: 2.0.0 in A, 2.1.0 in B.",
        "B is still running; its figures cover the run so far.",
    )


def test_whole_text_at_80_columns() -> None:
    a, b = run(), run(step_ns=30_000)
    assert diff_text(diff(a, b, ("runs/a", "b.json"))) == GOLDEN


def test_hostile_and_wide_names_keep_the_columns() -> None:
    names = {"\x1b[31mred\n": Spec(1, 1e6), "x" * 300: Spec(1, 1e6), "観測" * 40: Spec(1, 1e6)}
    text = diff_text(diff(make_capture(names, env_steps=1), make_capture(names, env_steps=1)))
    assert "\x1b" not in text and "\\x1b[31mred\\n" in text
    assert all(columns(line) <= 80 for line in text.splitlines())


def test_more_rows_than_fit_are_counted() -> None:
    many = make_capture({f"r{n}": Spec(1, 1000.0 * n) for n in range(30)}, env_steps=1)
    assert "... and 26 more with a smaller change" in diff_text(diff(many, many), rows=5)


def test_the_verb_reads_exports_and_prints_both_forms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = files = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for file, capture in zip(files, (run(), run(updates=50)), strict=True):
        save_json(capture, Path(file))
    assert verb.run(verb.Arguments(one, other)) == 0
    assert "did different work" in capsys.readouterr().out
    assert verb.run(verb.Arguments(one, other, json=True)) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema_version"] == 2 and data["kind"] == "hotloop-diff"
    assert data == json.loads(json.dumps(diff_json(diff(run(), run(updates=50), (files[0], files[1])))))


GOLDEN = """\
A  runs/a
B  b.json

Both runs report the same work.
One run each proves nothing: two runs of the same program differ as well, and a
single run does not show by how much.

run                                              A           B
wall time                                  63.7 ms     74.2 ms
env steps                                    1,000       1,000
updates                                        100         100
env steps/s                                 15,702      13,475
wall time per env step                     63.7 us     74.2 us

own time per env step                            A           B       B - A B / A
collect > env_step                         20.0 us     30.0 us    +10.0 us 1.50x
(unattributed)                             3.18 us     3.71 us     +526 ns 1.17x
collect                                     500 ns      500 ns        0 ns 1.00x
learn                                      40.0 us     40.0 us        0 ns 1.00x

For a verdict use hotloop compare: it runs both several times in alternation (A
B, B A, ...), each run in a fresh process and both runs of a pair with the same
seed."""
