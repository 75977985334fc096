"""Runs on several computers: recordings come home in pieces, clocks are aligned, what is missing is named."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hotloop
from hotloop.capture.clock_alignment import Alignment, align_processes
from hotloop.capture.model import Process
from hotloop.capture.nodes import NodeFacts, describe_missing, read_nodes
from hotloop.capture.origin import Origin
from hotloop.capture.reader import _of_nodes
from hotloop.instrument.ray_driver import thinned
from hotloop.instrument.ray_hook import Settings, worker_hook
from hotloop.instrument.ray_node import (
    BLOCK_BYTES,
    Asked,
    FileNews,
    NodeRecordings,
    recording_folder,
    store,
)
from hotloop.testing.captures import Spec, make_capture

S = 1_000_000_000
ENTRY = "hotloop.instrument.bootstrap:join_from_elsewhere"


# -- where a node records, and what it sends -------------------------------------------------------


def test_a_node_shares_the_capture_only_if_it_is_of_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOTLOOP_NODE_FOLDER", raising=False)
    (tmp_path / "capture.json").write_text('{"run_id": "abc"}')
    assert recording_folder(str(tmp_path), "abc") == (tmp_path, True)
    other, shared = recording_folder(str(tmp_path), "def")
    assert (other.name, shared) == ("hotloop-def", False)
    assert not recording_folder(str(tmp_path / "nowhere"), "abc")[1]
    monkeypatch.setenv("HOTLOOP_NODE_FOLDER", str(tmp_path / "disk"))
    assert recording_folder(str(tmp_path), "abc") == (tmp_path / "disk" / "hotloop-abc", False)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeRecordings:
    monkeypatch.setenv("HOTLOOP_NODE_FOLDER", str(tmp_path / "there"))
    found = NodeRecordings("/no/such/capture", "run")
    (found.folder / "parts").mkdir(parents=True)
    return found


def test_a_node_sends_only_the_blocks_that_changed(node: NodeRecordings, tmp_path: Path) -> None:
    part = node.folder / "parts" / f"vm-{os.getpid()}-2.part"
    content = bytearray(os.urandom(3 * BLOCK_BYTES + 5))
    part.write_bytes(content)
    home = tmp_path / "home"
    home.mkdir()
    news, running, more, folded, _ = node.news()
    assert (len(news), len(news[0].blocks), running) == (1, 4, [os.getpid()]) and not more and not folded
    store(home, news)
    assert (home / "parts" / part.name).read_bytes() == content
    assert node.news()[0] == []

    content[BLOCK_BYTES + 7] ^= 1
    content += b"more"
    part.write_bytes(content)
    news = node.news()[0]
    assert [at for at, _ in news[0].blocks] == [BLOCK_BYTES, 3 * BLOCK_BYTES]
    store(home, news)
    assert (home / "parts" / part.name).read_bytes() == content

    assert len(node.news(Asked(again=True))[0][0].blocks) == 4  # the last answer was lost


def test_files_that_shrink_and_small_files_arrive(node: NodeRecordings, tmp_path: Path) -> None:
    file = node.folder / "parts" / "a-1-1.part"
    file.write_bytes(b"x" * 3 * BLOCK_BYTES)
    store(tmp_path, node.news()[0])
    file.write_bytes(b"y" * 10)
    store(tmp_path, node.news()[0])
    assert (tmp_path / "parts" / file.name).read_bytes() == b"y" * 10


def test_files_that_are_being_written_stay(node: NodeRecordings) -> None:
    (node.folder / "parts" / ".a.part.unfinished").write_bytes(b"x")
    (node.folder / "capture.json").write_text("{}")
    assert node.news()[0] == []


def test_a_node_forgets_what_has_arrived(node: NodeRecordings) -> None:
    (node.folder / "parts" / "a-1-1.part").write_bytes(b"x")
    (node.folder / "capture.json").write_text("{}")
    node.forget()
    assert not node.folder.exists()


@pytest.mark.parametrize("name", ["../x", "parts/../x", "parts/.x", "capture.json", "/etc/x", "parts/"])
def test_only_files_of_a_capture_are_stored(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="is no file of a capture"):
        store(tmp_path, [FileNews(name, 1, [])])


def test_the_hook_of_workers_runs_where_hotloop_is_missing(tmp_path: Path) -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    settings = Settings(capture="/c", run_id="r", options={}, entry=ENTRY, home="/nowhere", version="0")
    hook = cloudpickle.dumps(worker_hook(settings, lambda: print("the user's own hook")))
    (tmp_path / "hook").write_bytes(hook)
    program = (
        "import pickle, sys; sys.modules['hotloop'] = None\n"
        "pickle.load(open('hook', 'rb'))()\nassert not [m for m in sys.modules if 'hotloop.' in m]"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("the user's own hook\n", "")


def test_the_users_hook_still_fails_as_it_would() -> None:
    def fail() -> None:
        raise KeyError("users")

    settings = Settings(capture="/c", run_id="r", options={}, entry=ENTRY, home="/nowhere", version="another")
    with pytest.raises(KeyError, match="users"):
        worker_hook(settings, fail)()


# -- clocks ----------------------------------------------------------------------------------------


def test_times_of_a_node_are_moved_by_its_offset() -> None:
    ahead = Alignment(NodeFacts("n", clock=((10 * S, 5 * S, 100),)))
    assert ahead.is_needed
    assert ahead.time(20 * S) == 15 * S
    moved = ahead.times(np.array([20 * S, 3 * S], dtype=np.uint64))
    assert moved.dtype == np.uint64 and moved.tolist() == [15 * S, 0]  # before the driver's clock began
    assert not Alignment(NodeFacts("n", clock=((10 * S, 0, 0),))).is_needed


def test_a_clock_that_drifts_is_interpolated_to_the_nanosecond() -> None:
    begin = 10**18  # too large for a float
    drifting = Alignment(NodeFacts("n", clock=((begin, S, 5), (begin + 100 * S, S + 1000, 5))))
    assert drifting.time(begin + S) == begin
    assert drifting.time(begin + 101 * S + 1000) == begin + 100 * S
    assert abs(drifting.time(begin + 51 * S) - (begin + 50 * S - 500)) <= 1
    assert drifting.time(begin + 1001 * S) == begin + 1000 * S - 1000  # after the last measurement


def _on(node: str, process: Process, ray: str = "worker") -> Process:
    return replace(process, origin=Origin(ray=ray, node=node))


def test_a_process_with_a_wrong_clock_is_read_as_if_it_were_right() -> None:
    """Offset injected into every time of a process; reading it back gives the process itself."""
    (process,) = make_capture({"env_step": Spec(50, 1e8), "learn": Spec(10, 3e8)}).processes
    driver = _on("home", process, "driver")
    right = _on("far", process)
    offset = 1234 * S
    ahead = align_processes([right], (NodeFacts("far", clock=((1, -offset, 0),)),), driver)[0]
    assert (
        ahead.start_ns == right.start_ns + offset and ahead.threads[0].start_ns != right.threads[0].start_ns
    )
    wrong = replace(ahead, start_real_ns=42)  # its real time is wrong by years
    (read,) = align_processes([wrong], (NodeFacts("far", clock=((1, offset, 20_000),)),), driver)
    assert (read.start_ns, read.end_ns, read.start_real_ns) == (
        right.start_ns,
        right.end_ns,
        right.start_real_ns,
    )
    mine, theirs = read.threads[0], right.threads[0]
    assert (mine.start_ns, mine.end_ns, mine.wall_ns) == (theirs.start_ns, theirs.end_ns, theirs.wall_ns)
    assert (mine.windows.time_ns == theirs.windows.time_ns).all()
    assert mine.root == theirs.root


def test_of_many_measurements_the_certain_ones_stay() -> None:
    measured = [[at, 7, 10 + at % 2] for at in range(300)]
    kept = thinned(measured)
    assert len(kept) == 150 and {m[2] for m in kept} == {10}
    assert thinned(measured[:10]) == measured[:10]


# -- what is missing -------------------------------------------------------------------------------


def test_what_is_missing_is_named() -> None:
    seen = 1_700_000_000 * S
    whole = NodeFacts("a", "one", shared=True, complete=True, driver=True)
    cases = {
        "node two was lost: what it recorded after": NodeFacts("b", "two", lost=True, seen_ns=seen),
        "node two sent nothing at the end: what it recorded after": NodeFacts("b", "two", seen_ns=seen),
        "node two (10.0.0.2): nothing of what it recorded has arrived": NodeFacts("b", "two", "10.0.0.2"),
        "node two is not recorded: no hotloop": NodeFacts("b", "two", problem="no hotloop"),
        "node two was lost: its recordings end there": NodeFacts("b", "two", shared=True, lost=True),
    }
    for sentence, facts in cases.items():
        (found,) = describe_missing((whole, facts), seen + S)
        assert found.startswith(sentence)
    assert not describe_missing((whole, NodeFacts("b", "two", seen_ns=seen)), None)  # it still runs
    left = NodeFacts("b", "two", seen_ns=seen, folder="/tmp/hotloop-1")
    assert describe_missing((whole, left), seen)[0].endswith(" is missing; it is in /tmp/hotloop-1 there")
    assert not describe_missing((whole, NodeFacts("b", "two", seen_ns=seen, complete=True)), seen)


def test_damaged_facts_about_a_node_are_a_warning(tmp_path: Path) -> None:
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "a.json").write_text('{"node": "a", "driver": true}')
    (tmp_path / "nodes" / "b.json").write_text('{"node": 7}')
    warnings: list[str] = []
    assert [node.node for node in read_nodes(tmp_path, warnings)] == ["a"]
    assert len(warnings) == 1 and warnings[0].startswith("left out b.json")


def test_missing_nodes_show_in_a_capture(tmp_path: Path) -> None:
    profiler = hotloop.Profiler()
    profiler.start(tmp_path / "c")
    with profiler.profile("work"):
        pass
    profiler.stop()
    (tmp_path / "c" / "nodes").mkdir()
    (tmp_path / "c" / "nodes" / "b.json").write_text('{"node": "b", "host": "two", "lost": true}')
    assert "node two: nothing of what it recorded has arrived" in hotloop.load(tmp_path / "c").warnings


def test_no_process_of_a_run_that_has_ended_is_alive() -> None:
    """After a kill of the driver, the last news of a node may be a moment old."""
    (process,) = make_capture({"env_step": Spec(50, 1e8)}).processes
    there = replace(_on("far", process), alive=False)
    nodes = (NodeFacts("far", seen_ns=time.time_ns(), running=(process.pid,)),)
    assert [_of_nodes([there], nodes, has_ended)[0].alive for has_ended in (False, True)] == [True, False]
