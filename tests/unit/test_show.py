"""`hotloop show`: the whole text at 80 columns, the data, and errors."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from hotloop import Profiler
from hotloop.analysis.region_tree import region_trees
from hotloop.capture.folder import update_facts
from hotloop.capture.model import Progress
from hotloop.capture.stats import ProfilerStats
from hotloop.cli.main import main
from hotloop.report.region_tree import region_tree_text, summary_table
from hotloop.testing.fakes import FakeClock


def test_the_summary_is_80_columns_wide_and_shows_the_gpu_only_if_there_was_one() -> None:
    def of(name: str, calls: int, ns: int, gpu: int | None = None) -> ProfilerStats:
        figures: dict[str, Any] = {field.name: None for field in fields(ProfilerStats)}
        figures |= {"name": name, "category": "other", "calls": calls, "total_ns": calls * ns, "own_ns": 0}
        figures |= {"mean_ns": float(ns), "min_ns": ns, "max_ns": ns, "device_peak_bytes": gpu}
        return ProfilerStats(**figures)

    long = "an_operation_with_a_name_that_is_by_far_too_long_for_any_table"
    rows = [of(long, 1200, 1000), of("env_step", 1, 6_000_000)]
    text = summary_table(rows, Progress())
    assert max(map(len, text.splitlines())) <= 80 and "GPU peak" not in text
    assert text.splitlines()[1].endswith("max  memory peak")
    with_gpu = summary_table([*rows, of("loss", 1, 1, gpu=1 << 30)], Progress())
    assert "GPU peak" in with_gpu and max(map(len, with_gpu.splitlines())) <= 80


EXPECTED = """\
region                      calls   total     own  share    mean     p50     p99
train                           1  120 ms 20.0 ms  15.4%  120 ms  120 ms  120 ms
  env_step                     10  100 ms 60.0 ms  46.2% 10.0 ms 10.0 ms 10.0 ms
    a very lo…t of space       10 40.0 ms 40.0 ms  30.8% 4.00 ms 4.00 ms 4.00 ms
(unattributed)                            10.0 ms   7.7%
(hotloop itself)                          2.10 us"""


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    clock = FakeClock()
    profiler = Profiler(clock=clock).start(tmp_path / "capture")
    clock.advance(10_000_000)
    with profiler.profile("train"):
        for _ in range(10):
            with profiler.profile("env_step", category="environment"):
                clock.advance(6_000_000)
                with profiler.profile("a very long name that runs out of space"):
                    clock.advance(4_000_000)
            profiler.progress(env_steps=8)
        clock.advance(20_000_000)
    profiler.stop()
    update_facts(tmp_path / "capture", {"region_cost_ns": 100.0})
    return tmp_path / "capture"


def test_the_tree_at_80_columns(capture: Path) -> None:
    import hotloop

    (outline,) = region_trees(hotloop.load(capture))
    text = region_tree_text(outline, 80)
    assert text == EXPECTED
    assert max(map(len, text.splitlines())) <= 80


def test_show_prints_the_tree_and_the_next_command(capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(capture)]) == 0
    out, err = capsys.readouterr()
    assert "130 ms wall time, 1 process, 1 thread, 80 env steps" in out
    assert EXPECTED.splitlines()[1] in out
    assert out.splitlines()[-1].startswith("next: hotloop ")
    assert err == ""


def test_show_json_has_the_tree(capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(capture), "--json", "--by", "thread"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema_version"] == 2
    (train,) = data["tree"]["children"]
    assert (train["name"], train["calls"], train["total_ns"]) == ("train", 1, 120_000_000)
    (step,) = train["children"]
    assert (step["category"], step["own_ns"]) == ("environment", 60_000_000)
    (group,) = data["groups"]
    assert group["unattributed_ns"] == 10_000_000
    assert data["progress"]["env_steps"] == 80


@pytest.mark.parametrize("by", ["process", "thread"])
def test_show_by_process_and_thread(capture: Path, capsys: pytest.CaptureFixture[str], by: str) -> None:
    assert main(["show", str(capture), "--by", by, "--depth", "1"]) == 0
    out = capsys.readouterr().out
    assert "process " in out and ("thread MainThread" in out) == (by == "thread")
    assert "env_step" not in out


def test_show_takes_the_latest_capture(
    capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["show"]) == 2
    assert "There is no capture in hotloop-runs" in capsys.readouterr().err
    Path("hotloop-runs").mkdir()
    capture.rename("hotloop-runs/mine")
    assert main(["show"]) == 0
    assert "hotloop-runs/mine" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["show", "/nowhere"], "There is no capture at /nowhere"),
        (["shwo"], "'shwo' is not a verb"),
        (["show", __file__], "is not a capture"),
    ],
)
def test_mistakes_get_one_sentence_and_exit_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and says in err and len(err.splitlines()) == 1


def test_a_damaged_part_is_a_warning_and_the_rest_is_shown(
    capture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (capture / "parts" / "bad.part").write_bytes(b"junk")
    assert main(["show", str(capture)]) == 0
    out, err = capsys.readouterr()
    assert "train" in out
    assert "left out bad.part" in err


def test_the_command_is_installed_and_survives_a_closed_pipe(capture: Path) -> None:
    hotloop = Path(sys.executable).parent / "hotloop"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{hotloop} show {capture} | head -1"],
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith(str(capture))
    assert "Traceback" not in done.stderr
    version = subprocess.run([hotloop, "--version"], capture_output=True, text=True)
    assert version.stdout.startswith("hotloop ")
    assert subprocess.run([sys.executable, "-m", "hotloop"], capture_output=True).returncode == 2


def test_names_of_threads_cannot_control_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profiler = Profiler().start(tmp_path / "capture")

    def work() -> None:
        profiler.profile("\x1b[2J").__enter__()  # stays open

    thread = threading.Thread(target=work, name="\x1b]0;owned\x07")
    thread.start()
    thread.join()
    profiler.stop()
    assert main(["show", str(tmp_path / "capture"), "--by", "thread", "--whole-run"]) == 0
    out = capsys.readouterr().out
    assert r"thread \x1b]0;owned\x07" in out and "\x1b" not in out


def test_parts_behind_a_link_are_named_as_such(
    capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (capture / "parts").rename(tmp_path / "elsewhere")
    (capture / "parts").symlink_to(tmp_path / "elsewhere")
    main(["show", str(capture)])
    told = capsys.readouterr().err
    assert "parts is a link" in told and "recorded anything yet" not in told
