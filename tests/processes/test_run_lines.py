"""`hotloop run` samples the lines of a script in all its threads and processes, also of a killed one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hotloop
from hotloop.capture.model import Process
from tests import cli
from tests.processes.scripts import environment

HOTLOOP = Path(sys.executable).parent / "hotloop"
BUSY = """
import sys, time

def busy(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(1000))  # line 7
"""
SCRIPTS = {
    "one process": BUSY + "busy(0.3)\n",
    "fork": BUSY
    + """
import multiprocessing
if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=busy, args=(0.3,), name="child")
    child.start()
    child.join()
""",
    "spawn": BUSY
    + """
import multiprocessing
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=busy, args=(0.3,), name="child")
    child.start()
    child.join()
""",
    "os.fork": BUSY
    + """
import os
if os.fork() == 0:
    busy(0.3)
    os._exit(0)
os.wait()
""",
    "thread": BUSY
    + """
import threading
thread = threading.Thread(target=busy, args=(0.3,), name="worker")
thread.start()
thread.join()
""",
}


def record(
    tmp_path: Path, script: str, *options: str, core: str = "auto", code: int = 0
) -> tuple[Process, ...]:
    file = tmp_path / "script.py"
    file.write_text(script)
    words = ["run", "--capture", "capture", *options, str(file)]
    done = cli.hotloop(*words, cwd=tmp_path, env=environment(core))
    assert done.returncode == code, done.stderr
    return hotloop.load(tmp_path / "capture").processes


def lines_of(process: Process) -> set[tuple[str, int]]:
    paths = [process.paths[number] for number in set(process.samples["path"].tolist())]
    return {(frame.function, frame.line) for path in paths for frame in path.frames[-1:]}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_lines_are_sampled_in_every_process_and_thread(tmp_path: Path, kind: str) -> None:
    processes = record(tmp_path, SCRIPTS[kind])
    busy = [process for process in processes if ("busy", 7) in lines_of(process)]
    assert len(busy) == 1
    (process,) = busy
    assert process.sampling is not None and process.sampling.method == "native"
    alone = kind in ("one process", "thread")
    assert (process.parent_pid in {other.pid for other in processes}) == (not alone)
    if kind in ("fork", "spawn"):
        assert process.label == "child"
    if kind == "thread":
        rows = [row for row in process.samples if process.paths[row["path"]].line.function == "busy"]
        assert {process.sampling.thread_names[int(row["native_id"])] for row in rows} == {"worker"}


def test_the_source_is_kept_unless_it_is_not_wanted(tmp_path: Path) -> None:
    (process,) = record(tmp_path, SCRIPTS["one process"])
    texts = {source.function: source.text for source in process.sources}
    assert texts["busy"].startswith("def busy(") and "# line 7" in texts["busy"]
    (tmp_path / "again").mkdir()
    (process,) = record(tmp_path / "again", SCRIPTS["one process"], "--no-source")
    assert process.sources == () and len(process.samples)


def test_samples_survive_sigkill(tmp_path: Path) -> None:
    script = BUSY + "import os, signal\nbusy(0.3)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    (process,) = record(tmp_path, script, code=5)
    assert not process.closed
    assert ("busy", 7) in lines_of(process)
    assert process.scheduling is not None and len(process.scheduling)


def test_without_the_compiled_core_a_python_thread_samples(tmp_path: Path) -> None:
    (process,) = record(tmp_path, SCRIPTS["one process"], core="python")
    assert process.sampling is not None and process.sampling.biased
    assert "busy" in {function for function, _ in lines_of(process)}


def test_a_system_call_is_not_interrupted(tmp_path: Path) -> None:
    """Sampling sends no signals: a read that would fail with EINTR in C sees none."""
    script = """
import ctypes, os, threading, time
reading, writing = os.pipe()
threading.Timer(0.5, os.write, (writing, b"x")).start()
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(1)
assert libc.read(reading, buffer, 1) == 1, ctypes.get_errno()
"""
    (process,) = record(tmp_path, script)
    assert len(process.samples)


def test_a_process_that_runs_no_code_of_the_user_is_not_recorded(tmp_path: Path) -> None:
    script = "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'json.tool', '--help'])\n"
    assert len(record(tmp_path, script)) == 1


def test_a_running_capture_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(BUSY + "busy(600)\n")
    child = subprocess.Popen(
        [str(HOTLOOP), "run", "--capture", "capture", str(file)],
        cwd=tmp_path,
        env=environment("auto"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        found = False
        while not found and time.monotonic() < deadline:
            time.sleep(0.2)
            if (tmp_path / "capture" / "parts").is_dir():
                processes = hotloop.load(tmp_path / "capture").processes
                found = any(("busy", 7) in lines_of(process) for process in processes)
        assert found
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
