"""Fork, spawn and exec: every process writes its own part into the same capture."""

from __future__ import annotations

from pathlib import Path

import pytest

import hotloop
from hotloop.capture.model import Capture, Node
from tests.processes.scripts import run


def calls(capture: Capture, name: str) -> int:
    def count(node: Node) -> int:
        return (node.calls if node.name == name else 0) + sum(count(c) for c in node.children)

    return count(capture.tree)


def test_a_forked_child_writes_its_own_part(core: str, tmp_path: Path) -> None:
    run(
        """
        import os, sys, hotloop
        hotloop.start(sys.argv[1])
        with hotloop.profile("before"):
            with hotloop.profile("inside"):
                pass
            pids = []
            for i in range(4):
                pid = os.fork()
                if pid == 0:
                    with hotloop.profile("child"):
                        pass
                    break
                pids.append(pid)
        # the children leave `before` here, too: a frame they inherited, not theirs to count
        if pid == 0:
            with hotloop.profile("child after"):
                pass
            os._exit(0)
        for pid in pids:
            os.waitpid(pid, 0)
        with hotloop.profile("parent"):
            pass
        hotloop.stop()
        """,
        core,
        tmp_path / "capture",
    )
    capture = hotloop.load(tmp_path / "capture")
    assert len(capture.processes) == 5
    assert len({p.pid for p in capture.processes}) == 5
    assert {n: calls(capture, n) for n in ("before", "inside", "child", "child after", "parent")} == {
        "before": 1,
        "inside": 1,
        "child": 4,
        "child after": 4,
        "parent": 1,
    }
    assert not any(c.out_of_order for c in capture.tree.children)
    assert capture.warnings == ()


def test_a_child_that_records_nothing_leaves_no_part(core: str, tmp_path: Path) -> None:
    run(
        """
        import os, sys, hotloop
        hotloop.start(sys.argv[1])
        with hotloop.profile("a"):
            pid = os.fork()
            if pid == 0:
                sys.exit(0)
            os.waitpid(pid, 0)
        """,
        core,
        tmp_path / "capture",
    )
    capture = hotloop.load(tmp_path / "capture")
    (process,) = capture.processes
    assert process.closed
    assert calls(capture, "a") == 1
    assert capture.facts["exit_status"] == "finished"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_workers_join_and_close_in_good_order(core: str, tmp_path: Path, method: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        """
import sys, multiprocessing, hotloop

def work(n):
    for _ in range(n):
        with hotloop.profile("env_step"):
            hotloop.progress(env_steps=1)

if __name__ == "__main__":
    hotloop.start(sys.argv[1])
    context = multiprocessing.get_context(sys.argv[2])
    workers = [context.Process(target=work, args=(100,), name=f"worker-{i}") for i in range(3)]
    for w in workers: w.start()
    for w in workers: w.join()
"""
    )
    run(
        "import subprocess, sys; sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)",
        core,
        script,
        tmp_path / "capture",
        method,
    )
    capture = hotloop.load(tmp_path / "capture")
    assert calls(capture, "env_step") == 300
    assert capture.progress.env_steps == 300
    workers = [p for p in capture.processes if p.label.startswith("worker-")]
    assert len(workers) == 3
    assert all(p.closed for p in capture.processes if p.threads and p.threads[0].root.children)


def test_an_executed_child_joins_through_the_environment(core: str, tmp_path: Path) -> None:
    run(
        """
        import subprocess, sys, hotloop
        hotloop.start(sys.argv[1])
        child = "import hotloop\\nwith hotloop.profile('child'): pass"
        subprocess.run([sys.executable, "-c", child], check=True)
        with hotloop.profile("parent"):
            pass
        """,
        core,
        tmp_path / "capture",
    )
    capture = hotloop.load(tmp_path / "capture")
    assert calls(capture, "child") == calls(capture, "parent") == 1
    assert all(p.closed for p in capture.processes)


def test_the_variable_alone_starts_a_recording(core: str, tmp_path: Path) -> None:
    run(
        "import hotloop\nwith hotloop.profile('a'): pass",
        core,
        HOTLOOP_CAPTURE=str(tmp_path / "capture"),
    )
    capture = hotloop.load(tmp_path / "capture")
    assert calls(capture, "a") == 1
    assert capture.facts["exit_status"] == "finished"


def test_many_processes_write_at_once(core: str, tmp_path: Path) -> None:
    run(
        """
        import os, sys, hotloop
        hotloop.start(sys.argv[1])
        for i in range(24):
            if os.fork() == 0:
                for k in range(500):
                    with hotloop.profile("work"), hotloop.profile(f"name {k % 7}"):
                        pass
                os._exit(0)
        for _ in range(24):
            os.wait()
        """,
        core,
        tmp_path / "capture",
    )
    capture = hotloop.load(tmp_path / "capture")
    assert calls(capture, "work") == 24 * 500
    assert len(capture.processes) == 25
    assert capture.warnings == ()


def test_parts_share_one_time_base(core: str, tmp_path: Path) -> None:
    run(
        """
        import os, sys, hotloop
        hotloop.start(sys.argv[1])
        with hotloop.profile("waits for child"):
            pid = os.fork()
            if pid == 0:
                with hotloop.profile("child"):
                    pass
                os._exit(0)
            os.waitpid(pid, 0)
        """,
        core,
        tmp_path / "capture",
    )
    parent, child = hotloop.load(tmp_path / "capture").processes
    assert parent.start_ns < child.start_ns < child.end_ns < parent.end_ns


def test_a_forked_child_with_threads_loses_nothing(core: str, tmp_path: Path) -> None:
    run(
        """
        import os, sys, threading, hotloop
        hotloop.start(sys.argv[1])
        pid = os.fork()
        if pid == 0:
            def work():
                for _ in range(200):
                    with hotloop.profile("work"):
                        pass
            threads = [threading.Thread(target=work) for _ in range(8)]
            for t in threads: t.start()
            for t in threads: t.join()
            hotloop.stop()
            os._exit(0)
        os.waitpid(pid, 0)
        """,
        core,
        tmp_path / "capture",
    )
    assert calls(hotloop.load(tmp_path / "capture"), "work") == 1600


def test_an_exception_is_noted_in_the_capture(core: str, tmp_path: Path) -> None:
    said = run(
        """
        import sys, hotloop
        hotloop.start(sys.argv[1])
        with hotloop.profile("a"):
            raise ValueError("x")
        """,
        core,
        tmp_path / "capture",
        fails=True,
    )
    assert "ValueError: x" in said
    capture = hotloop.load(tmp_path / "capture")
    assert capture.facts["exit_status"] == "raised ValueError"
    assert calls(capture, "a") == 1


def test_start_in_a_run_that_is_recorded_already_changes_nothing(core: str, tmp_path: Path) -> None:
    said = run(
        """
        import hotloop
        print(hotloop.start("elsewhere"))
        with hotloop.profile("a"):
            pass
        hotloop.stop()
        """,
        core,
        HOTLOOP_CAPTURE=str(tmp_path / "capture"),
    )
    assert "is ignored: this run is already recorded into" in said
    assert str(tmp_path / "capture") in said.splitlines()[0]
    assert calls(hotloop.load(tmp_path / "capture"), "a") == 1
    assert not Path("elsewhere").exists()
