"""Odd figures (inf, nan, next to nothing) spoil no report; all JSON is strict; reading only reads."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotloop
from hotloop import Profiler
from hotloop._util import strict_json
from hotloop.capture import layout
from hotloop.capture.sections import find_sections
from hotloop.cli import main
from hotloop.machine.limits import NAMES
from hotloop.measure.core_choice import CoreName
from hotloop.testing.fakes import FakeClock
from hotloop.workflows.report import FORMATS

INF, NAN, TINY = math.inf, math.nan, 1e-320


@pytest.fixture(autouse=True)
def known_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Limits as a machine has them, not measured in each test."""
    monkeypatch.chdir(tmp_path)
    figures = {name: 1e9 if name.endswith("_per_s") else 1e3 for name in NAMES}
    monkeypatch.setattr("hotloop.workflows.report.limits", lambda: figures)


def recorded(core: CoreName, folder: Path) -> Path:
    """A capture of two seconds with every kind of odd figure."""
    clock = FakeClock()
    profiler = Profiler(clock=clock, core_name=core).start(folder, config={"lr": INF})
    for number in range(40):
        for name, more in (
            ("infinite", {"flops": INF, "bytes": 8.0}),
            ("undefined", {"bytes": NAN}),
            ("tiny", {"flops": TINY, "bytes": TINY}),
            ("huge", {"flops": 1e307}),
        ):
            with profiler.profile(name, "environment" if number % 2 else "wait") as region:
                region.add(**more)
                clock.advance(10_000_000)
        odd = (NAN, INF, -INF, 1e308)[number % 4]
        profiler.progress(
            env_steps=5, updates=1, episodes=1, episode_length=odd, episode_return=odd, loss=odd
        )
    profiler.stop()
    return folder


def no_constant(text: str) -> Any:
    raise AssertionError(f"{text} is no JSON")


def parse(text: str) -> Any:
    return json.loads(text, parse_constant=no_constant)


def test_odd_figures_are_left_out_and_told(core: CoreName, tmp_path: Path) -> None:
    capture = hotloop.load(recorded(core, tmp_path / "capture"))
    stats = {node.name: node for node in capture.tree.children if node.category == "wait"}
    assert (stats["infinite"].flops, stats["infinite"].bytes_moved) == (0.0, 20 * 8.0)
    assert stats["undefined"].bytes_moved == 0.0
    assert stats["tiny"].flops == pytest.approx(20 * TINY)
    assert math.isfinite(stats["huge"].flops) and stats["huge"].flops > 1e307
    (process,) = capture.processes
    assert process.warnings == (
        "bytes or flops of 'infinite', 'undefined', 'huge' were not finite (inf or nan) in some calls; "
        "these are left out",
    )


@pytest.mark.parametrize("name", ["report" + ending for ending in FORMATS])
def test_every_report_can_be_written(name: str, tmp_path: Path, capsys: Any) -> None:
    recorded("python", tmp_path / "capture")
    assert main.main(["report", "capture", "-o", name]) == 0
    if name.endswith("json"):
        parse(Path(name).read_text())


VERBS = [
    ["report", "capture", "--json"],
    ["show", "capture", "--json"],
    ["show", "capture", "--whole-run"],
    ["top", "capture", "--json"],
    ["diff", "capture", "capture", "--json"],
    ["report", "capture"],
]


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_every_verb_prints_strict_json_and_changes_nothing(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded("compiled", tmp_path / "capture")
    before = fingerprint(tmp_path / "capture")
    capsys.readouterr()
    code = main.main(words)
    printed = capsys.readouterr()
    assert code == 0, printed.err
    if "--json" in words:
        parse(printed.out)
    assert fingerprint(tmp_path / "capture") == before


def fingerprint(folder: Path) -> dict[str, tuple[str, int]]:
    """What is in a folder, and when it was changed last."""
    return {
        str(file.relative_to(folder)): (
            hashlib.sha256(file.read_bytes() if file.is_file() else b"").hexdigest(),
            file.stat().st_mtime_ns,
        )
        for file in [folder, *folder.rglob("*")]
    }


def test_a_part_with_inf_in_it_is_read(tmp_path: Path) -> None:
    """Written by an earlier version, or damaged."""
    profiler = Profiler().start(tmp_path / "capture")
    with profiler.profile("a") as region:
        region.add(flops=1.0, bytes=1.0)
    profiler.stop()
    (file,) = (tmp_path / "capture/parts").iterdir()
    data = np.memmap(file, mode="r+", dtype=np.uint8)
    (nodes,) = [s.struct() for s in find_sections([data], len(data), layout.VERSION) if s.name == "nodes"]
    nodes["nodes"]["flops"][1], nodes["nodes"]["bytes"][1] = INF, NAN
    data.flush()
    capture = hotloop.load(tmp_path / "capture")
    assert (capture.tree.children[0].flops, capture.tree.children[0].bytes_moved) == (0.0, 0.0)
    assert any("were not finite" in warning for warning in capture.processes[0].warnings)


def test_strict_json_has_null_for_what_is_not_finite() -> None:
    data = {"a": [1.5, INF, {"b": NAN}], "c": (-INF, None, True, "Infinity"), NAN: 1}
    assert parse(strict_json.dumps(data)) == {
        "a": [1.5, None, {"b": None}],
        "c": [None, None, True, "Infinity"],
        "null": 1,
    }
    assert strict_json.dumps({"a": 1}, indent=1) == json.dumps({"a": 1}, indent=1)


def test_counts_that_do_not_fit_are_refused_with_a_sentence(profiler: Profiler) -> None:
    with pytest.raises(ValueError, match=r"progress\(env_steps=\d+\) is too large\."):
        profiler.progress(env_steps=2**63)
    profiler.progress(env_steps=2**40)
    assert profiler.capture().progress.env_steps == 2**40


# Not read by others: values that go to our own processes, text, and figures made plain before.
OWN_JSON = {
    "_util/read_files.py",
    "_util/strict_json.py",
    "analysis/advice/idioms/copies.py",
    "boost/background.py",
    "capture/export.py",
    "instrument/trial_workers.py",
    "measure/capture_facts.py",
    "workflows/lab.py",
    "workflows/probes.py",
    "workflows/run.py",
    "workflows/train.py",
    "workflows/trial.py",
    "workflows/tune_workload.py",
}


def test_what_others_read_is_written_by_strict_json() -> None:
    package = Path(hotloop.__file__).parent
    found = {
        str(file.relative_to(package))
        for file in package.rglob("*.py")
        if re.search(r"(?<!strict_)json\.dumps?\(", file.read_text(encoding="utf-8"))
    }
    assert {name for name in found if not name.startswith("rl/")} <= OWN_JSON
