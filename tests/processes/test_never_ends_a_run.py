"""Recording never ends a run: whatever is wrong with the machine or the folder, the program goes on."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import hotloop
from hotloop import Profiler
from hotloop.measure import core_choice
from hotloop.measure import part as part_file
from hotloop.measure.core_choice import CoreName
from hotloop.workflows import record
from tests.processes.scripts import environment, run
from tests.unit.test_regions import own_sum


def test_a_deleted_working_folder(core: CoreName, tmp_path: Path) -> None:
    said = run(
        """
        import os, sys, hotloop
        os.makedirs("gone"); os.chdir("gone"); os.rmdir(os.getcwd())
        print(hotloop.start(sys.argv[1]))
        with hotloop.profile("a"):
            pass
        hotloop.stop()
        print(hotloop.start("relative"), hotloop.stop())
        print(hotloop.start(), hotloop.stop())
        print("trained")
        """,
        core,
        tmp_path / "capture",
        cwd=tmp_path,
    )
    assert said.startswith(f"{tmp_path}/capture\nNone None\nNone None\ntrained\n")
    assert said.count("the working folder was deleted") == 2
    capture = hotloop.load(tmp_path / "capture")
    assert capture.facts["working_folder"] is None and capture.tree.children[0].calls == 1


def hotloop_run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`hotloop run WORDS` in a folder that is deleted first."""
    code = "import os, sys; os.rmdir(os.getcwd()); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    return subprocess.run(
        [sys.executable, "-c", code, "-m", "hotloop", "run", *words],
        env=environment("auto"),
        cwd=folder,
        capture_output=True,
        text=True,
    )


def test_hotloop_run_in_a_deleted_working_folder(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trained')")
    for number, (words, code, says) in enumerate(
        (
            (("--capture", str(tmp_path / "capture")), 0, "trained"),
            ((), 2, "cannot be created: the working folder was deleted; change to another folder"),
        )
    ):
        (tmp_path / f"gone {number}").mkdir()
        done = hotloop_run(tmp_path / f"gone {number}", *words, str(tmp_path / "train.py"))
        assert done.returncode == code and says in done.stdout + done.stderr, done.stderr
        assert "Traceback" not in done.stderr


def test_nobody_to_tell(core: CoreName, tmp_path: Path) -> None:
    """stderr is closed, warnings are errors, and every start has something to complain about."""
    said = run(
        """
        import sys, warnings, hotloop
        warnings.simplefilter("error")
        hotloop.start(sys.argv[1] + "/file/capture")
        hotloop.start("again")
        hotloop.stop()
        sys.stderr.close()
        for stderr in (sys.stderr, None, object()):
            sys.stderr = stderr
            hotloop.start(sys.argv[1] + "/file/capture")
            hotloop.start("again")
            with hotloop.profile("a"):
                pass
            hotloop.stop()
        sys.stderr = None
        print("trained")
        """,
        core,
        tmp_path,
        HOTLOOP_NOTE=str((tmp_path / "file").write_text("in the way")),
    )
    assert "trained\n" in said and "Traceback" not in said


class Odd:
    def __str__(self) -> str:
        raise RuntimeError("no text")


LOOP: list[Any] = []
LOOP.append(LOOP)
CONFIGS: list[Any] = [
    {"lr": float("inf"), "gamma": float("nan"), "env": object(), ("a", "b"): 1, 3: "three"},
    {"odd": Odd()},
    {"loop": LOOP},
    {"text": "\udcff \x00"},
]


@pytest.mark.parametrize("config", CONFIGS, ids=range(len(CONFIGS)))
def test_any_config_is_kept_as_far_as_it_goes(config: Any, tmp_path: Path) -> None:
    profiler = Profiler().start(tmp_path / "capture", config=config)
    with profiler.profile("a"):
        pass
    profiler.stop()
    capture = hotloop.load(tmp_path / "capture")
    assert capture.tree.children[0].calls == 1
    if "lr" in config:
        kept = capture.facts["config"]
        assert (kept["lr"], kept["gamma"], kept["3"]) == ("Infinity", "NaN", "three")


@pytest.mark.parametrize("folder", ["x" * 300, "a\0b", "file/capture"])
def test_a_folder_that_cannot_be(folder: str, core: CoreName, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="recording in memory only"):
        profiler = Profiler(core_name=core).start(f"{tmp_path}/{folder}")
    with profiler.profile("a"):
        pass
    assert profiler.stats("a").calls == 1
    assert profiler.stop() is None


def raise_(error: BaseException) -> Any:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise type(error)(*error.args)  # a fresh one: its traceback would keep the profiler alive

    return fail


NO_MEMORY = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
FAILURES: list[tuple[Any, str, Any]] = [
    (core_choice, "region_cost_ns", raise_(RuntimeError("There are already 16 profilers"))),
    (os, "getloadavg", raise_(OSError("no load"))),
    (hotloop.machine.facts, "library_versions", raise_(KeyError("Version"))),
    (threading.Thread, "start", raise_(RuntimeError("can't start new thread"))),
    (hotloop.measure.profiler, "LateFacts", raise_(MemoryError())),
    (mmap, "mmap", raise_(NO_MEMORY)),
    (part_file, "process_label", raise_(UnicodeError("odd"))),
    (os, "posix_fallocate", raise_(OSError(errno.EIO, os.strerror(errno.EIO)))),
    (os, "link", raise_(OSError(errno.EPERM, os.strerror(errno.EPERM)))),
]


@pytest.mark.filterwarnings("ignore:hotloop")
@pytest.mark.parametrize(("where", "name", "fail"), FAILURES, ids=[name for _, name, _ in FAILURES])
def test_what_fails_at_the_start_is_said_and_the_program_goes_on(
    where: Any, name: str, fail: Any, core: CoreName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, fail)
    profiler = Profiler(core_name=core).start(tmp_path / "capture")
    with profiler.profile("a"):
        profiler.progress(env_steps=1)
    if profiler.is_recording:
        assert profiler.stats("a").calls == 1
    profiler.stop()
    monkeypatch.undo()
    assert "HOTLOOP_RUN_ID" not in os.environ
    profiler.start(tmp_path / "again")
    with profiler.profile("a"):
        pass
    profiler.stop()
    assert hotloop.load(tmp_path / "again").tree.children[0].calls == 1


@pytest.mark.filterwarnings("ignore:hotloop")
@pytest.mark.parametrize("name", ["add_section", "publish_region", "window_taken", "close", "warn"])
def test_what_fails_later_is_said_and_the_program_goes_on(
    name: str, core: CoreName, clock: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    profiler = Profiler(clock=clock, core_name=core).start()
    with profiler.profile("before"):
        clock.advance(1)
    with monkeypatch.context() as patched:
        patched.setattr(part_file.Part, name, raise_(MemoryError("full")), raising=False)
        for number in range(40):
            with profiler.profile(f"name {number}"):
                clock.advance(10_000_000)
                with profiler.profile("inner"):
                    clock.advance(10_000_000)
        if name == "close":
            profiler.stop()
            return
    with profiler.profile("after"):
        clock.advance(1)
    (thread,) = profiler.capture().threads
    assert own_sum(thread.root) == thread.wall_ns
    assert profiler.stats("after").calls == 1 and not profiler.profile("after").is_open()
    profiler.stop()


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(record, "TorchDevice", raise_(RuntimeError("no such device")))
    assert record._accelerator("npu") is None
    assert capsys.readouterr().err == "hotloop: the time of 'npu' is not measured: no such device\n"
