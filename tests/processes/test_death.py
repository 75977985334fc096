"""Captures survive any death, and are readable while they are written."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

import hotloop
from hotloop.capture.model import Capture, Node
from hotloop.measure.core_choice import CoreName
from hotloop.measure.part import Part
from tests.processes.scripts import begin, run

BUSY = """
import sys, time, hotloop
hotloop.start(sys.argv[1])
print("ready", flush=True)
with hotloop.profile("train"):
    while True:
        with hotloop.profile("collect"):
            for _ in range(20):
                with hotloop.profile("env_step"):
                    pass
                hotloop.progress(env_steps=1)
        with hotloop.profile("learn"):
            with hotloop.profile("backward"):
                pass
"""


def own_sum(node: Node) -> int:
    return node.own_ns + sum(own_sum(child) for child in node.children)


def check(capture: Capture) -> None:
    """What holds for any capture, whenever it was read."""
    for thread in capture.threads:
        slack = 100_000_000 if thread.uncertain else 0  # a reader may lose its core in every try
        assert abs(own_sum(thread.root) - thread.wall_ns) <= slack
        stack = [thread.root]
        while stack:
            node = stack.pop()
            stack += node.children
            assert node.calls >= 0 and node.own_ns >= 0
            if node.min_ns is not None and node.max_ns is not None:
                assert node.min_ns <= node.max_ns
        assert (thread.windows.time_ns[1:] >= thread.windows.time_ns[:-1]).all()


def test_killed_at_random_moments_the_capture_reads_each_time(core: CoreName, tmp_path: Path) -> None:
    moments = random.Random(7)
    for attempt in range(12):
        folder = tmp_path / str(attempt)
        process = begin(BUSY, core, folder)
        time.sleep(moments.uniform(0, 0.15))
        process.kill()
        process.wait()
        capture = hotloop.load(folder)
        (recorded,) = capture.processes
        assert not recorded.closed and not recorded.alive
        check(capture)
        (thread,) = recorded.threads
        if thread.open:
            assert thread.open[0].name == "train"
            (train,) = thread.root.children
            assert train.open_calls == 1
            assert train.total_ns > 0.9 * (thread.end_ns - thread.open[0].since_ns)
        assert capture.facts["exit_status"] is None


def test_a_part_has_its_name_only_when_its_header_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed before leaves nothing that readers complain about."""
    seen: list[list[str]] = []
    write_header = Part._write_header

    def look(self: Part, core: int, start_ns: int) -> None:
        write_header(self, core, start_ns)
        seen.append(sorted(file.name for file in tmp_path.glob("*.part")))

    monkeypatch.setattr(Part, "_write_header", look)
    first = Part(tmp_path, 1, 1)
    assert seen == [[]]
    assert first.path is not None and [file.name for file in tmp_path.iterdir()] == [first.path.name]
    warned: list[str] = []
    second = Part(tmp_path, 1, 1, warned.append)  # the same name: it must not replace the first
    assert second.path is None and "File exists" in warned[0]
    assert [file.name for file in tmp_path.iterdir()] == [first.path.name]
    for part in (first, second):
        part.close(2)


def test_an_outer_region_open_when_killed_is_complete_up_to_that_moment(
    core: CoreName, tmp_path: Path
) -> None:
    process = begin(
        """
        import sys, time, hotloop
        hotloop.start(sys.argv[1])
        with hotloop.profile("outer"):
            print("ready", flush=True)
            time.sleep(60)
        """,
        core,
        tmp_path / "capture",
    )
    time.sleep(0.5)
    process.kill()
    process.wait()
    (outer,) = hotloop.load(tmp_path / "capture").tree.children
    assert outer.name == "outer" and outer.open_calls == 1
    assert 0.3e9 < outer.total_ns < 20e9  # the heartbeat saw it alive, though no region ended


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), signal.SIGSEGV)", "os.abort()"])
def test_other_sudden_ends(core: CoreName, tmp_path: Path, end: str) -> None:
    run(
        f"""
        import os, signal, sys, hotloop
        hotloop.start(sys.argv[1])
        for _ in range(1000):
            with hotloop.profile("step"):
                pass
        with hotloop.profile("last"):
            {end}
        """,
        core,
        tmp_path / "capture",
        fails=True,
    )
    capture = hotloop.load(tmp_path / "capture")
    by_name = {c.name: c for c in capture.tree.children}
    assert by_name["step"].calls == 1000
    assert by_name["last"].open_calls == 1
    check(capture)


def test_readers_hammer_a_live_capture(core: CoreName, tmp_path: Path) -> None:
    process = begin(BUSY, core, tmp_path / "capture")
    try:
        last_calls, last_steps = -1, -1
        for _ in range(60):
            capture = hotloop.load(tmp_path / "capture")
            check(capture)
            assert capture.processes[0].alive
            names = hotloop_calls(capture)
            assert names.get("env_step", 0) >= last_calls
            assert capture.progress.env_steps >= last_steps
            last_calls, last_steps = names.get("env_step", 0), capture.progress.env_steps
        assert last_calls > 0
    finally:
        process.kill()
        process.wait()


def hotloop_calls(capture: Capture) -> dict[str, int]:
    from hotloop.capture.stats import by_name

    return {name: stats.calls for name, stats in by_name(capture.tree).items()}


def test_size_does_not_grow_with_events(core: CoreName, tmp_path: Path) -> None:
    sizes = []
    for number, events in enumerate((10_000, 1_000_000 if core == "compiled" else 100_000)):
        profiler = hotloop.Profiler(core_name=core).start(tmp_path / str(number))
        region = profiler.profile("step")
        for _ in range(events):
            with region:
                pass
        profiler.stop()
        (part,) = (tmp_path / str(number) / "parts").iterdir()
        sizes.append(part.stat().st_size)
        assert profiler.stats("step").calls == events
    assert sizes[0] == sizes[1] < 200_000


@pytest.fixture
def small_disk(tmp_path: Path):  # type: ignore[no-untyped-def]
    """A file system of 320 KiB, which fills up soon."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o size=320k tmpfs {folder} 2>/dev/null") != 0:
        pytest.skip("LOUD: cannot mount a small tmpfs here (needs root), full disks are not tested")
    yield folder
    os.system(f"umount -l {folder}")


def test_a_full_disk_never_kills_the_run(core: CoreName, small_disk: Path) -> None:
    out = run(
        """
        import sys, hotloop
        from hotloop.measure.profiler import default
        hotloop.start(sys.argv[1])
        for i in range(400):
            with hotloop.profile(f"name {i}"):
                pass
        print(sum(s.calls for s in default.stats().values()))
        hotloop.stop()
        print("trained to the end")
        """,
        core,
        small_disk / "capture",
    )
    assert "400\n" in out
    assert "trained to the end" in out
    assert "recording continues in memory" in out
    capture = hotloop.load(small_disk / "capture")
    saved = sum(c.calls for c in capture.tree.children)
    assert 0 < saved < 400
    assert any("not saved" in w or "missing" in w for p in capture.processes for w in p.warnings)


def test_a_disk_that_has_room_again_at_the_end_loses_nothing(core: CoreName, small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(140 * 1024))
    with pytest.warns(UserWarning, match="recording continues in memory"):
        profiler = hotloop.Profiler(core_name=core).start(small_disk / "capture")
        for i in range(40):
            with profiler.profile(f"name {i}"):
                pass
    ballast.unlink()
    profiler.stop()
    capture = hotloop.load(small_disk / "capture")
    assert sum(c.calls for c in capture.tree.children) == 40
    assert capture.processes[0].warnings == ()


def test_an_unwritable_folder_is_a_warning(core: CoreName, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="in memory only"):
        profiler = hotloop.Profiler(core_name=core).start(tmp_path / "file" / "capture")
    with profiler.profile("a"):
        pass
    assert profiler.stats("a").calls == 1
    profiler.stop()
    assert (tmp_path / "file").read_text() == "in the way"


def test_an_existing_capture_is_never_overwritten(core: CoreName, tmp_path: Path) -> None:
    profiler = hotloop.Profiler(core_name=core)
    profiler.start(tmp_path / "capture")
    with profiler.profile("a"):
        pass
    profiler.stop()
    (tmp_path / "capture-2").mkdir()
    (tmp_path / "capture-2" / "notes.txt").write_text("mine")
    with pytest.warns(
        UserWarning, match=r"capture already holds .* of another run; this one is in .*capture-3"
    ):
        profiler.start(tmp_path / "capture")
    with profiler.profile("b"):
        pass
    assert profiler.stop() == tmp_path / "capture-3"
    assert [child.name for child in hotloop.load(tmp_path / "capture").tree.children] == ["a"]
    assert [child.name for child in hotloop.load(tmp_path / "capture-3").tree.children] == ["b"]
    assert [file.name for file in (tmp_path / "capture-2").iterdir()] == ["notes.txt"]


def test_on_a_network_file_system_the_live_part_is_local(core: CoreName, tmp_path: Path) -> None:
    live = tmp_path / "live"
    live.mkdir()
    profiler = hotloop.Profiler(core_name=core).start(tmp_path / "capture", live_folder=live)
    with profiler.profile("a"):
        pass
    assert not list((tmp_path / "capture/parts").glob("*.part"))
    capture = hotloop.load(tmp_path / "capture")  # found through its pointer
    assert capture.tree.children[0].calls == 1
    profiler.stop()
    assert list(live.iterdir()) == []
    assert len(list((tmp_path / "capture/parts").iterdir())) == 1
    assert hotloop.load(tmp_path / "capture").tree.children[0].calls == 1


def test_sigterm_and_ctrl_c_leave_a_capture(core: CoreName, tmp_path: Path) -> None:
    for number, how in enumerate((signal.SIGTERM, signal.SIGINT)):
        process = begin(BUSY, core, tmp_path / str(number))
        time.sleep(0.1)
        process.send_signal(how)
        process.wait()
        capture = hotloop.load(tmp_path / str(number))
        check(capture)
        assert capture.processes[0].closed == (how == signal.SIGINT)
        assert capture.facts["exit_status"] == ("raised KeyboardInterrupt" if how == signal.SIGINT else None)


def interrupted(process: subprocess.Popen[str]) -> int:
    """Send Ctrl-C; again only after long silence: Python drops one that arrives in a weakref's callback."""
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=60)
    process.kill()
    process.wait()
    raise AssertionError("Ctrl-C was lost twice")


def test_ctrl_c_is_never_lost_inside_hotloop(core: CoreName, tmp_path: Path) -> None:
    """New names all the time keep the recorder in its slow paths, where signals arrive, too."""
    for number in range(4):
        process = begin(
            """
            import itertools, sys, hotloop
            hotloop.start(sys.argv[1])
            print("ready", flush=True)
            for i in itertools.count():
                with hotloop.profile(f"name {i % 3000}"), hotloop.profile(f"inner {i % 7}"):
                    pass
            """,
            core,
            tmp_path / str(number),
        )
        time.sleep(0.05 + 0.03 * number)
        assert interrupted(process) != 0
