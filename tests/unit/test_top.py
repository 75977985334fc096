"""`hotloop top`: rates over the last seconds, stuck threads, how it ends."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hotloop._util.errors import HotloopError
from hotloop.analysis.live import LiveStatus, live_status, take_reading
from hotloop.capture.export import save_json
from hotloop.capture.model import Capture
from hotloop.capture.nodes import NodeFacts
from hotloop.capture.origin import Origin
from hotloop.cli import top as verb
from hotloop.report.top import ending, top_lines, top_view
from hotloop.testing import ProcessSpec, Spec, ThreadSpec, make_capture
from hotloop.workflows import read_captures as workflow

S = 10**9


def running(env_steps: int, step_ns: float = 1e6, learn: int = 0, **more: Any) -> Capture:
    regions = {"env_step": Spec(env_steps, step_ns), "learn": Spec(learn, 1e6)}
    return make_capture(regions, env_steps=env_steps, updates=learn, alive=True, **more)


def now_real_ns(capture: Capture) -> int:
    """Real time at the last sign of life of a capture's first process."""
    process = capture.processes[0]
    return process.start_real_ns + process.end_ns - process.start_ns


def between(before: Capture, after: Capture, span_s: float = 1.0) -> LiveStatus:
    first = take_reading(before, 0, now_real_ns(before))
    return live_status(take_reading(after, round(span_s * S), now_real_ns(after), first), first)


def look(capture: Capture, silent_s: float = 0.0) -> LiveStatus:
    return live_status(take_reading(capture, 0, now_real_ns(capture) + round(silent_s * S)))


# -- rates and shares ----------------------------------------------------------------------------


def test_rates_and_shares_are_of_the_span_not_of_the_run() -> None:
    found = between(running(1000, learn=10), running(1000 + 300, learn=10 + 700, unattributed=0.0), 2.0)
    assert found.env_steps_per_s == 150.0 and found.updates_per_s == 350.0
    assert (found.env_steps, found.updates) == (1300, 710)
    shares = {r.name: r.share for r in found.regions}
    assert shares["learn"] == pytest.approx(0.7) and shares["env_step"] == pytest.approx(0.3)
    assert {r.name: r.calls_per_s for r in found.regions}["learn"] == 350.0
    assert not found.since_start


def test_the_first_look_covers_the_run_so_far() -> None:
    capture = running(1000)
    found = look(capture)
    assert found.since_start and found.span_ns == capture.wall_ns
    assert found.env_steps_per_s == pytest.approx(1000 / capture.wall_ns * 1e9)
    assert sum(r.share for r in found.regions) == pytest.approx(1.0)


def test_counters_that_were_never_reported_have_no_rate() -> None:
    found = look(make_capture({"a": Spec(5, 1e6)}, alive=True))
    assert found.env_steps_per_s is None and found.mean_return is None


def test_a_process_that_joined_late_counts_from_its_start() -> None:
    worker = ProcessSpec([ThreadSpec({"env_step": Spec(50, 1e6)}, env_steps=50)], alive=True)
    found = between(running(100), running(100, processes=[worker]))
    assert found.env_steps_per_s == 50.0
    assert [p.env_steps_per_s for p in found.processes] == [0.0, 50.0]


# -- stuck ---------------------------------------------------------------------------------------


def worker(open_s: float, longest_ns: float = 1e6) -> ProcessSpec:
    regions = {"env_step": Spec(50, longest_ns, spread=0.0, open_for_ns=round(open_s * S))}
    return ProcessSpec([ThreadSpec(regions)], label="worker 3", alive=True)


def test_a_thread_long_inside_one_call_is_stuck() -> None:
    found = look(running(5000, step_ns=2e7, processes=[worker(41)]))
    assert [(s.process, s.region, round(s.for_ns / S)) for s in found.stuck] == [("worker 3", "env_step", 41)]
    assert "stuck in env_step for 41.0 s, worker 3 (pid 4001)" in top_lines(found)


def test_threads_that_serve_others_and_idle_workers_of_ray_are_not_stuck() -> None:
    waits = Spec(1, 1e6, open_for_ns=300 * S)
    service = ThreadSpec({"condition_wait": waits}, name="PythonGCThread")
    idle = ThreadSpec({"ray_idle": waits})
    found = look(running(5000, processes=[ProcessSpec([idle, service], label="Runner", alive=True)]))
    assert found.stuck == () and "condition_wait" not in {region.name for region in found.regions}


def test_a_call_that_is_always_that_long_is_not_stuck() -> None:
    assert look(running(5000, step_ns=2e7, processes=[worker(41, longest_ns=20e9)])).stuck == ()
    assert look(running(5000, step_ns=2e7, processes=[worker(5)])).stuck == ()


def test_an_outer_region_with_busy_children_is_not_stuck() -> None:
    outer = {"train": Spec(0, 0.0, {"env_step": Spec(100, 1e6)}, open_for_ns=3600 * S)}
    before = make_capture(outer, env_steps=100, alive=True)
    outer = {"train": Spec(0, 0.0, {"env_step": Spec(150, 1e6)}, open_for_ns=3630 * S)}
    after = make_capture(outer, env_steps=150, alive=True)
    assert look(before).stuck == () and between(before, after, 30.0).stuck == ()


def test_an_outer_region_where_nothing_moves_any_more_is_stuck_as_long_as_was_seen() -> None:
    outer = {"train": Spec(0, 0.0, {"env_step": Spec(100, 1e6)}, open_for_ns=3600 * S)}
    capture = make_capture(outer, env_steps=100, alive=True)
    found = between(capture, capture, 30.0)
    assert [(s.region, s.for_ns) for s in found.stuck] == [("train", 30 * S)]


def test_nodes_are_named_with_the_age_of_their_news() -> None:
    capture = make_capture(
        {"env_step": Spec(100, 1e6)},
        env_steps=100,
        alive=True,
        processes=[ProcessSpec([ThreadSpec({"env_step": Spec(50, 1e6)})], "runner", alive=True)],
    )
    now = now_real_ns(capture)
    home, far, gone, other = (
        NodeFacts("a", host="here", driver=True, shared=True, complete=True),
        NodeFacts("b", host="there", seen_ns=now + 6 * S),
        NodeFacts("c", host="gone", seen_ns=now, lost=True),
        NodeFacts("d", host="other", problem="hotloop is not installed"),
    )
    processes = [
        replace(p, origin=Origin(node=node)) for p, node in zip(capture.processes, "ab", strict=True)
    ]
    capture = replace(capture, processes=tuple(processes), nodes=(home, far, gone, other))
    found = look(capture, 8.0)
    assert [(n.name, n.state, n.age_ns) for n in found.nodes] == [
        ("here", "recorded", 0),
        ("there", "recorded", 2 * S),
        ("gone", "lost", 8 * S),
        ("other", "not recorded", None),
    ]
    assert [p.node for p in found.processes] == ["here", "there"]
    line = top_lines(found).splitlines()[1]
    assert line.startswith("  4 nodes: here ") and "2.0 s ago; gone lost; other not recorded" in line
    assert "there" in shown_at(120, capture)


def test_a_stopped_process_is_silent_and_a_killed_one_died() -> None:
    capture = running(100)
    assert look(capture).processes[0].state == "running"
    assert look(capture, silent_s=60).processes[0].state == "silent"
    assert "no heartbeat" in top_lines(look(capture, silent_s=60))
    killed = replace(capture, processes=(replace(capture.processes[0], alive=False),))
    found = look(killed, silent_s=60)
    assert found.processes[0].state == "died" and found.all_ended
    assert "1 of 1 died before closing their recording: train.py (pid 4000)" in ending(found)


# -- the loop over looks -------------------------------------------------------------------------


def frames(
    monkeypatch: pytest.MonkeyPatch, captures: list[Capture], looks: int | None = None
) -> list[LiveStatus]:
    left = iter(captures)
    clock = iter(range(0, 1000 * S, S))
    monkeypatch.setattr(workflow, "open_capture", lambda path: next(left))
    return list(
        workflow.watch_capture(
            "somewhere", 1.0, looks, sleep=lambda s: None, clock=lambda: next(clock), real_clock=lambda: 0
        )
    )


def test_it_ends_by_itself_when_all_processes_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    done = make_capture({"env_step": Spec(300, 1e6)}, env_steps=300)
    found = frames(monkeypatch, [running(100), running(200), done, running(400)])
    assert [f.all_ended for f in found] == [False, False, True]
    assert ending(found[-1]).startswith("All processes of the capture have ended (finished): ")
    assert "300 env steps" in ending(found[-1])


def test_rates_cover_about_the_last_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    found = frames(monkeypatch, [running(n * n) for n in range(1, 13)], looks=12)
    assert [f.span_ns // S for f in found[1:]] == [1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 5]
    assert found[-1].env_steps_per_s == (12**2 - 7**2) / 5


def test_an_empty_capture_waits_for_its_first_process(monkeypatch: pytest.MonkeyPatch) -> None:
    found = frames(monkeypatch, [Capture(None, {}, ()), running(10)], looks=2)
    assert not found[0].all_ended
    assert "no process has recorded anything yet" in top_lines(found[0])


# -- what is printed -----------------------------------------------------------------------------


def shown_at(width: int, capture: Capture, height: int = 30) -> str:
    written = io.StringIO()
    Console(width=width, height=height, file=written).print(top_view(look(capture), "runs/a", height))
    return written.getvalue()


def test_the_view_names_regions_processes_and_stuck_threads() -> None:
    text = shown_at(100, running(5000, step_ns=2e7, processes=[worker(41)]))
    for words in (
        "runs/a",
        "env steps/s",
        "env_step",
        "worker 3",
        "stuck in env_step for 41.0 s",
        "(unattributed)",
    ):
        assert words in text


def test_of_many_warnings_those_about_damage_are_shown() -> None:
    capture = replace(running(10), warnings=("one", "two", "three", "damaged: another checksum"))
    lines = top_lines(look(capture))
    assert "damaged: another checksum" in lines and "one" in lines and "three" not in lines


def test_the_view_fits_the_screen_however_many_processes_there_are() -> None:
    many = [worker(0.0) for _ in range(60)]
    regions = {f"region {n}": Spec(10, 1e6) for n in range(50)}
    text = shown_at(80, make_capture(regions, alive=True, processes=many), height=30)
    assert len(text.splitlines()) <= 30 and "more" in text


def test_hostile_names_are_shown_not_obeyed() -> None:
    text = shown_at(100, make_capture({"[red]\x1b[31m\n": Spec(10, 1e6)}, alive=True))
    assert "[red]\\x1b[31m\\n" in text


# -- the verb ------------------------------------------------------------------------------------


def test_json_is_one_object_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.json"
    save_json(running(100), file)
    assert verb.run(verb.Arguments(str(file), json=True)) == 0
    (line,) = capsys.readouterr().out.splitlines()
    data = json.loads(line)
    assert data["schema_version"] == 2 and data["env_steps"] == 100 and data["processes"][0]["pid"] == 4000


@pytest.mark.parametrize(
    "wrong", [{"interval": 0.0}, {"interval": float("nan")}, {"iterations": 0}], ids=["zero", "nan", "looks"]
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(HotloopError, match="it must be"):
        verb.run(verb.Arguments("x", **wrong))


JOB = """
import sys, time, hotloop
hotloop.start(sys.argv[1])
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    with hotloop.profile("env_step"):
        time.sleep(0.002)
    hotloop.progress(env_steps=1)
"""
TOP = "import sys; from hotloop.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    folder = tmp_path / "capture"
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", JOB, str(folder), "3"], stderr=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 20
        while not list(folder.glob("parts/*.part")) and time.monotonic() < deadline:
            time.sleep(0.02)
        yield folder, process
        process.kill()


def test_a_real_job_is_watched_to_its_end(job: tuple[Path, subprocess.Popen[bytes]]) -> None:
    folder, _ = job
    done = subprocess.run(
        [sys.executable, "-c", TOP, "top", str(folder), "--interval", "0.3"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) > 3 and "env steps/s" in lines[1] and "env_step" in lines[1]
    assert lines[-1].startswith("All processes of the capture have ended")


def test_ctrl_c_on_a_terminal_ends_cleanly_with_130(job: tuple[Path, subprocess.Popen[bytes]]) -> None:
    folder, _ = job
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", TOP, "top", str(folder), "--interval", "0.2"], stdout=theirs, stderr=theirs
    ) as top:
        os.close(theirs)
        output = b""
        while b"env_step" not in output:
            output += os.read(ours, 65536)
        top.send_signal(signal.SIGINT)
        try:
            while chunk := os.read(ours, 65536):
                output += chunk
        except OSError:  # the terminal is gone with its last user
            pass
        assert top.wait(20) == 130
    os.close(ours)
    assert b"Traceback" not in output and b"hotloop top" in output
    assert output.rstrip().endswith(b"\x1b[?25h")  # the cursor is back
