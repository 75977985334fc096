"""Nothing in a part can be reached before what it refers to is in place, however threads take turns."""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import hotloop
from hotloop import Profiler
from hotloop.capture import layout
from hotloop.measure.core_choice import CoreName
from hotloop.measure.part import Part


def names_of(folder: Path) -> set[str]:
    """What a reader sees now; every warning fails the test."""
    capture = hotloop.load(folder)
    assert [w for process in capture.processes for w in process.warnings] == []
    return {name for thread in capture.threads for path in thread.paths for name in path}


def test_a_name_is_published_before_the_first_node_that_bears_it(
    core: CoreName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread is held up while it makes room for names; another one needs a new name meanwhile."""
    held_up, go_on, began, reached = (threading.Event() for _ in range(4))
    add_section = Part.add_section

    def slow_add_section(part: Part, name: str, owner: int = 0, first: int = 0, data: bytes = b"") -> Any:
        if name == "regions" and threading.current_thread().name == "slow":
            held_up.set()
            go_on.wait()
        return add_section(part, name, owner, first, data)

    profiler = Profiler(core_name=core).start(tmp_path)
    names = [f"name {number}" for number in range(layout.REGIONS_PER_SECTION - 1)]
    for name in names:
        with profiler.profile(name):
            pass
    monkeypatch.setattr(Part, "add_section", slow_add_section)

    def be_slow() -> None:
        with profiler.profile("last of its section"), profiler.profile("slow"):
            pass

    def be_quick() -> None:
        with profiler.profile("name 0"):  # has its place in the part when the other one is held up
            began.set()
            held_up.wait()
        with profiler.profile("quick"):
            reached.set()

    slow = threading.Thread(target=be_slow, name="slow", daemon=True)
    quick = threading.Thread(target=be_quick, name="quick", daemon=True)
    quick.start()
    began.wait()
    slow.start()
    held_up.wait()
    reached.wait(0.3)  # the reader comes when the second thread is done, or waits
    seen = names_of(tmp_path)
    go_on.set()
    slow.join()
    quick.join()
    assert "(unreadable)" not in seen
    assert names_of(tmp_path) == {*names, "last of its section", "slow", "quick"}
    profiler.stop()


def test_names_of_many_threads_are_readable_at_any_time(
    core: CoreName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = random.Random(11)
    allocate = hotloop.measure.part._allocate

    def slow_allocate(file: int, offset: int, size: int) -> None:
        time.sleep(moments.uniform(0, 0.01))
        allocate(file, offset, size)

    monkeypatch.setattr(hotloop.measure.part, "_allocate", slow_allocate)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    profiler = Profiler(core_name=core).start(tmp_path)
    over = threading.Event()

    def work(number: int) -> None:
        for i in range(60):
            with profiler.profile(f"{number} outer {i}"), profiler.profile(f"inner {i}", "model"):
                pass

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert "(unreadable)" not in names_of(tmp_path)
    finally:
        over.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    profiler.stop()
    assert names_of(tmp_path) == {f"{n} outer {i}" for n in range(4) for i in range(60)} | {
        f"inner {i}" for i in range(60)
    }


def test_a_line_is_published_before_the_node_that_names_it(core: CoreName, tmp_path: Path) -> None:
    profiler = Profiler(core_name=core).start(tmp_path)
    profiler.recorder.locate = True
    with profiler.profile("here"):
        (thread,) = hotloop.load(tmp_path).threads
    assert thread.root.children[0].site.startswith(__file__)
    profiler.stop()


def test_an_interrupted_section_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part(tmp_path, 1, 1)
    used = part.get("used_bytes")

    def fail(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(hotloop.measure.part, "_write_section_header", fail)
        with pytest.raises(KeyboardInterrupt):
            part.add_section("sources", data=b"x" * 10_000)
    assert part.get("used_bytes") == used
    thread = part.add_section("thread", 3)
    assert not any(thread), "it must be zeroed"
    assert part.add_section("thread", 3) is thread
    assert part.get("used_bytes") == part.total_bytes
    part.close(2)


def test_a_file_number_that_now_belongs_to_the_program_is_left_alone(tmp_path: Path) -> None:
    """A program that becomes a daemon closes all files; the next one that it opens may get our number."""
    import os

    part = Part(tmp_path / "parts", 1, 1)
    assert part._file is not None
    number = part._file
    os.close(number)
    mine = os.open(tmp_path / "mine", os.O_RDWR | os.O_CREAT)
    assert mine == number
    os.write(mine, b"precious")
    for first in range(0, 400, 16):
        part.add_section("nodes", 0, first)
    part.close(2)
    assert os.fstat(mine).st_size == len(b"precious")
    os.close(mine)
    (process,) = [hotloop.capture.reader.read_part(file) for file in (tmp_path / "parts").iterdir()]
    assert process.closed and process.warnings == ()
