"""`hotloop attach`: what is read from outside, what follows, and what is said when it cannot be read."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hotloop._util.errors import HotloopError
from hotloop.analysis.attached import explain_attached
from hotloop.capture.attached import Attached, AttachedThread, Frame
from hotloop.measure import attached
from hotloop.report.attached import attached_json, attached_text
from hotloop.report.pen import Pen
from hotloop.workflows.attach import attach

SPEEDSCOPE = {
    "shared": {
        "frames": [
            {"name": 'process 7:"python -c a;\nb"', "file": "", "line": 0},
            {"name": "step", "file": "/job/envs.py", "line": 30},
            {"name": "work", "file": "/job/train.py", "line": None},
        ]
    },
    "profiles": [
        {"name": 'Process 7 Thread 7 "MainThread"', "samples": [[0, 1], [0, 1], [0, 2, 1]]},
        {"name": 'Process 8 Thread 9 ""', "samples": [[2]]},
        {"name": "something else", "samples": [[2]]},
    ],
}


def thread(
    pid: int, name: str, frames: tuple[Frame, ...], on_core: float, queued: float = 0.0, gil: int = 0
) -> AttachedThread:
    return AttachedThread(pid, pid + len(name), name, ((frames, 100),), gil, on_core, queued)


def seen(*threads: AttachedThread) -> Attached:
    return Attached(7, ("python", "train.py"), 2.0, 50, 2.0, {}, threads)


USER = Frame("step", "/job/envs.py", 30)
WAITING = (Frame("<module>", "/job/train.py", 9), Frame("Queue.get", "/usr/lib/python3.11/queue.py", 171))


def test_stacks_of_py_spy_are_read_by_process_and_thread() -> None:
    found = attached.parse_speedscope(SPEEDSCOPE)
    step, work = Frame("step", "/job/envs.py", 30), Frame("work", "/job/train.py", 0)
    assert found == {(7, 7, "MainThread"): {(step,): 2, (work, step): 1}, (8, 9, ""): {(work,): 1}}


def test_a_main_thread_that_waits_points_at_the_busy_worker() -> None:
    found = explain_attached(
        seen(thread(7, "MainThread", WAITING, 0.1), thread(8, "MainThread", (USER,), 1.9))
    )
    assert found.limit == "MainThread waits for a queue 100 % of the time."
    assert "/job/envs.py:30" in found.advice[0]
    assert found.threads[0].waits_for == "a queue"


def test_states_add_up_and_a_missing_core_comes_first() -> None:
    found = explain_attached(seen(thread(7, "MainThread", (USER,), 1.0, queued=0.8)))
    one = found.threads[0]
    assert one.running + one.ready + one.off_core == pytest.approx(1)
    assert "had no core 40 % of the time" in found.limit
    assert "hotloop try --only threads" in found.advice[0]


def test_a_job_of_one_thread_without_a_core_blames_other_programs() -> None:
    found = explain_attached(
        replace(seen(thread(7, "MainThread", (USER,), 1.0, queued=0.8)), settings={"OMP_NUM_THREADS": "1"})
    )
    assert "had no core 40 % of the time" in found.limit
    assert found.advice[0].startswith("Other programs use the cores: this job wanted 0.9 of 2.")


def test_threads_that_share_the_gil_are_named() -> None:
    threads = thread(7, "MainThread", (USER,), 1.0, gil=50), thread(7, "collector", (USER,), 1.0, gil=48)
    found = explain_attached(seen(*threads))
    assert found.limit.startswith("the GIL: 2 threads")


def test_text_and_json_show_lines_and_states() -> None:
    found = explain_attached(seen(thread(7, "MainThread", (USER,), 1.8)))
    text = attached_text(found, Pen(80, unicode=False))
    assert "/job/envs.py:30 step  100.0 %" in text
    assert "90.0 %" in text
    assert attached_json(found)["threads"][0]["lines"][0]["share"] == 1.0


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        ("Error: Permission denied (os error 13)", "SYS_PTRACE"),
        ("Error: Failed to find python version from target process", "not a Python process"),
        ("Error: No python processes found in process 5", "not a Python process"),
        ("Error: Failed to get process executable name. Check that the process is running.", "no process 5"),
        ("Error: out of luck", "out of luck"),
    ],
)
def test_what_py_spy_says_becomes_one_sentence(problem: str, sentence: str) -> None:
    assert sentence in attached._explained(5, problem)


def test_mistakes_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(HotloopError, match="must be the number"):
        attach(0, 5)
    with pytest.raises(HotloopError, match="between 1 and"):
        attach(1, 0.1)
    with pytest.raises(HotloopError, match="There is no process"):
        attached._command(2**22 + 5)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(HotloopError, match=r"hotloop\[attach\]"):
        attached._tool()


needs_py_spy = pytest.mark.skipif(
    not Path(sys.executable).with_name("py-spy").exists() and shutil.which("py-spy") is None,
    reason="py-spy is not installed",
)


@needs_py_spy
def test_a_real_process_is_read_from_outside() -> None:
    """Uses the real clock and a process of its own for two seconds."""
    program = "import time\nprint('on', flush=True)\nwhile True:\n    sum(range(20_000))\n"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as job:
        try:
            assert job.stdout is not None and job.stdout.readline() == "on\n"
            try:
                found = attach(job.pid, 1)
            except HotloopError as error:
                if "may not be read" in str(error):
                    pytest.skip("this system does not let a process read another one (ptrace)")
                raise
        finally:
            job.kill()
    assert found.samples > 5
    assert found.threads[0].pid == job.pid
    assert any(":4" in line.site or ":3" in line.site for line in found.threads[0].lines)


@needs_py_spy
def test_a_process_without_python_is_refused_before_its_children_are_read() -> None:
    with subprocess.Popen(["sleep", "30"]) as job:
        try:
            with pytest.raises(
                HotloopError, match=f"Process {job.pid} (is not a Python process|may not be read)"
            ):
                attach(job.pid, 1)
        finally:
            job.kill()


def test_nothing_is_announced_that_cannot_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(HotloopError, match="needs py-spy"):
        attach(1, 1, lambda: said.append("watching"))
    assert not said
