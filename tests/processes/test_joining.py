"""Which processes share a capture: those of one run, told by an id that they inherit or are given."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import hotloop
from hotloop import Profiler
from hotloop._util.errors import CaptureError
from hotloop._util.files import create_exclusively
from hotloop.capture import folder as capture_folder
from hotloop.workflows.run import begin_capture
from tests.processes.scripts import environment, run

RECORD = """
    import os, sys, hotloop
    start = hotloop.start  # imported once, not in every child
    wait, go = os.pipe()
    for _ in range(int(sys.argv[2])):
        if os.fork() == 0:
            os.close(go)
            os.read(wait, 1)  # returns when the parent has closed its end
            print(start("capture", run_id=sys.argv[1] or None), flush=True)
            with hotloop.profile("work"):
                pass
            hotloop.stop()
            os._exit(0)
    os.close(go)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
"""
IMPORT = """
    import os, time, hotloop
    from hotloop.measure.profiler import default
    with hotloop.profile("work"):
        pass
    print(default.folder, flush=True)
    while not os.path.exists("go"):
        time.sleep(0.001)
"""


def begin(program: str, folder: Path, *args: str, **variables: str) -> subprocess.Popen[str]:
    """Start, and return once the first line was printed: `line` of the process."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *args],
        env=environment("auto", **variables),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.line = process.stdout.readline().strip()  # type: ignore[attr-defined]
    return process


def finish(processes: list[subprocess.Popen[str]], folder: Path) -> list[tuple[str, str]]:
    """Let them all go on at once; returns what each printed on stdout and stderr."""
    (folder / "go").touch()
    return [process.communicate() for process in processes]


def test_runs_that_start_at_once_get_a_folder_each(tmp_path: Path) -> None:
    said = run(RECORD, "auto", "", "6", cwd=tmp_path)
    folders = [tmp_path / name for name in ("capture", *(f"capture-{n}" for n in range(2, 7)))]
    for folder in folders:
        assert f"{folder}\n" in said
        capture = hotloop.load(folder)
        assert len(capture.processes) == 1
        assert capture.tree.children[0].calls == 1
        assert capture.facts["exit_status"] == "stopped"
    for folder in folders[1:]:
        assert f"{folders[0]} already holds the capture of another run; this one is in {folder}\n" in said


def test_processes_with_the_same_id_share_a_capture(tmp_path: Path) -> None:
    Profiler().start(tmp_path / "capture").stop()  # of another run
    said = run(RECORD, "auto", "job 17", "3", cwd=tmp_path)
    assert said.count(f"{tmp_path}/capture-2\n") >= 3
    capture = hotloop.load(tmp_path / "capture-2")
    assert len(capture.processes) == 3 and capture.facts["run_id"] == "job 17"
    assert len(hotloop.load(tmp_path / "capture").processes) == 1


def test_the_variable_alone_shares_a_capture_while_it_is_recorded(tmp_path: Path) -> None:
    place = {"HOTLOOP_CAPTURE": str(tmp_path / "capture")}
    said = finish([begin(IMPORT, tmp_path, **place) for _ in range(2)], tmp_path)
    assert len(hotloop.load(tmp_path / "capture").processes) == 2
    assert all("another run" not in err for _, err in said)
    later = begin(IMPORT, tmp_path, **place)  # begins when that run is over
    ((_, err),) = finish([later], tmp_path)
    assert later.line == str(tmp_path / "capture-2")  # type: ignore[attr-defined]
    assert "already holds the capture of another run" in err
    assert len(hotloop.load(tmp_path / "capture").processes) == 2
    assert len(hotloop.load(tmp_path / "capture-2").processes) == 1


def test_a_run_that_was_killed_is_over(tmp_path: Path) -> None:
    place = {"HOTLOOP_CAPTURE": str(tmp_path / "capture")}
    killed = begin(IMPORT, tmp_path, **place)
    killed.kill()
    killed.communicate()
    finish([begin(IMPORT, tmp_path, **place)], tmp_path)
    assert len(hotloop.load(tmp_path / "capture").processes) == 1
    assert len(hotloop.load(tmp_path / "capture-2").processes) == 1


def test_another_process_may_begin_between_looking_and_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race, in slow motion."""
    create = create_exclusively
    Profiler().start(tmp_path / "other").stop()

    def too_late(path: Path, content: str) -> bool:
        monkeypatch.setattr(capture_folder, "create_exclusively", create)
        shutil.copytree(tmp_path / "other", path.parent, dirs_exist_ok=True)
        return create(path, content)

    monkeypatch.setattr(capture_folder, "create_exclusively", too_late)
    with pytest.warns(UserWarning, match="already holds the capture of another run"):
        assert Profiler().start(tmp_path / "capture").stop() == tmp_path / "capture-2"


def test_hotloop_run_refuses_a_folder_that_is_taken_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotloop.workflows.run.create_exclusively", lambda path, text: False)
    with pytest.raises(CaptureError, match="already has a capture; choose another folder"):
        begin_capture(tmp_path / "capture", ["python", "train.py"])
