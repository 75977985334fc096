"""`hotloop merge`: captures that several computers made of one run become one, on one clock."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import hotloop
from hotloop._util.errors import CaptureError, HotloopError
from hotloop.analysis.collective_clocks import offset_between
from hotloop.capture.clock_alignment import align_messages
from hotloop.capture.message_format import MEET, RECORD
from hotloop.capture.messages import LoggedChannel, MessageLog
from hotloop.capture.summary import load_summary
from hotloop.cli.main import main
from hotloop.workflows.merge import align_computers, merge_captures
from hotloop.workflows.run import begin_capture, launch_key

MS = 1_000_000


def ranks(offset_ns: int, rounds: int = 200, seed: int = 1) -> tuple[MessageLog, MessageLog]:
    """Two ranks that meet again and again; the clock of the second is ahead."""
    rng = np.random.default_rng(seed)
    logs: list[list[tuple[int, ...]]] = [[], []]
    now = 10**15
    for count in range(1, rounds + 1):
        arrive = now + rng.integers(0, 5 * MS, 2)
        together = int(arrive.max())
        leave = together + rng.integers(20_000, 200_000, 2)
        for rank in range(2):
            ahead = offset_ns * rank
            logs[rank].append((int(arrive[rank]) + ahead, int(leave[rank]) + ahead, 7, 0, MEET, count))
        now = int(leave.max())
    channels = (LoggedChannel("ranks", "collective"),)
    first, second = (
        MessageLog(1 + rank, channels, np.array(rows, dtype=list(RECORD)), rounds)
        for rank, rows in enumerate(logs)
    )
    return first, second


@pytest.mark.parametrize("offset_ns", [0, 3_600 * 10**9, -5_000_000])
def test_collectives_tell_the_offset_of_a_clock(offset_ns: int) -> None:
    first, second = ranks(offset_ns)
    found = offset_between([first], [second])
    assert found is not None and found.meetings == 200
    assert abs(found.offset_ns - offset_ns) <= found.uncertainty_ns < MS


def test_without_enough_or_with_contradicting_collectives_nothing_is_claimed() -> None:
    first, second = ranks(0, rounds=2)
    assert offset_between([first], [second]) is None
    first, second = ranks(0)
    second.records["begin_ns"][::2] += 10**9  # somebody left long before the other came
    second.records["end_ns"][::2] += 10**9
    assert offset_between([first], [second]) is None


def record(folder: Path, name: str, host: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    with monkeypatch.context() as patched:
        patched.setattr("hotloop.measure.part.host_name", lambda: host)
        profiler = hotloop.Profiler()
        profiler.start(folder / name)
        for _ in range(10):
            with profiler.profile("work"):
                pass
        profiler.stop()
    return folder / name


def test_captures_of_two_computers_become_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [record(tmp_path, name, name, monkeypatch) for name in ("one", "two")]
    assert main(["merge", *map(str, sources), "--capture", str(tmp_path / "all")]) == 0
    whole = hotloop.load(tmp_path / "all")
    assert sorted(p.host for p in whole.processes) == ["one", "two"]
    assert whole.tree.children[0].calls == 20
    assert [node.host for node in whole.nodes] == ["one", "two"]
    assert whole.nodes[1].clock_uncertainty_ns is None  # by their real-time clocks, and that is said
    assert whole.facts["exit_status"] == "stopped" and len(whole.facts["machines"]) == 2
    assert not whole.warnings


def test_how_clocks_were_aligned_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [record(tmp_path, name, name, monkeypatch) for name in ("one", "two")]
    assert main(["merge", *map(str, sources), "--capture", str(tmp_path / "all"), "--json"]) == 0
    printed = capsys.readouterr()
    assert "by their real-time clocks alone" in printed.err
    data = json.loads(printed.out)
    assert (data["schema_version"], data["processes"], data["hosts"]) == (1, 2, ["one", "two"])


def test_computers_that_record_into_one_folder_are_put_on_one_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each computer of a launch does so at its end; process ids may be the same, as in containers."""
    one, two = (record(tmp_path, name, name, monkeypatch) for name in ("one", "two"))
    (part,) = (two / "parts").glob("*.part")
    shutil.copy(part, one / "parts")
    before = {p.host: p.start_ns for p in hotloop.load(one).processes}
    ahead = -5_000 * 10**9
    logs = [
        replace(log, pid=os.getpid(), host=host)
        for log, host in zip(ranks(ahead), ("one", "two"), strict=True)
    ]
    monkeypatch.setattr("hotloop.workflows.merge.read_messages", lambda folder: (tuple(logs), ()))
    (sentence,) = align_computers(one)
    assert sentence.startswith("the clocks of one and two are aligned to") and "200 collectives" in sentence
    whole = hotloop.load(one)
    (uncertainty,) = [node.clock_uncertainty_ns for node in whole.nodes if not node.driver]
    after = {p.host: p.start_ns for p in whole.processes}
    assert uncertainty is not None and after["one"] == before["one"]
    assert after["two"] == pytest.approx(before["two"] - ahead, abs=uncertainty)
    moved = align_messages(logs, whole.processes, whole.nodes)
    entered = [int(log.records["begin_ns"][0]) for log in moved]
    assert abs(entered[1] - entered[0]) < 10 * MS
    assert align_computers(two) == [] and not (two / "nodes").exists()


def test_mistakes_get_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = str(record(tmp_path, "one", "one", monkeypatch))
    two = str(record(tmp_path, "two", "two", monkeypatch))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    export = tmp_path / "export.json"
    export.write_text("{}")
    cases = {
        "at least two captures": [one],
        "is named twice": [one, f"{one}/../one"],
        "There is no capture at": [one, str(tmp_path / "none")],
        "is a one-file export": [one, str(export)],
        "already exists": [one, two, "--capture", str(tmp_path / "full")],
    }
    for sentence, words in cases.items():
        assert main(["merge", *words]) == 2, sentence
        err = capsys.readouterr().err
        assert sentence in err and "Traceback" not in err and len(err.strip().splitlines()) == 1
    assert os.listdir(tmp_path / "full") == ["mine"]


def test_captures_are_folded_into_one_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [str(record(tmp_path, name, name, monkeypatch)) for name in ("one", "two")]
    into = tmp_path / "all"
    assert main(["merge", *sources, "--summary", "--capture", str(into)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("2 nodes, 2 processes") and "20 calls" in printed
    (role,) = load_summary(into / "summary.json").roles.values()
    assert (role.members, role.tree.children[0].calls) == (2, 20)
    assert main(["merge", *sources, "--summary", "--json", "--capture", str(tmp_path / "b")]) == 0
    assert json.loads(capsys.readouterr().out)["schema_version"] == 1
    assert main(["merge", *sources, "--summary", "--capture", str(into)]) == 2
    assert "already exists" in capsys.readouterr().err


# -- torchrun on several nodes ---------------------------------------------------------------------


def test_the_same_launch_on_several_nodes_has_the_same_key() -> None:
    common = ["--nnodes=2", "--rdzv_endpoint", "a:29400", "--rdzv-id=job7"]
    keys = {
        launch_key(["torchrun", *common, "train.py"]),
        launch_key(
            ["/usr/bin/torchrun", "--nnodes", "2", "--rdzv-endpoint=a:29400", "--rdzv_id", "job7", "t.py"]
        ),
        launch_key(["python", "-m", "torch.distributed.run", *common, "--node-rank", "1", "train.py"]),
    }
    assert keys == {"rdzv-endpoint=a:29400 rdzv-id=job7"}
    assert launch_key(["torchrun", "--nproc-per-node", "2", "train.py"]) is None
    assert launch_key(["python", "train.py", *common]) is None


def test_nodes_of_one_launch_share_a_capture_and_others_do_not(tmp_path: Path) -> None:
    command = ["torchrun", "--nnodes=2", "--master-addr=a", "train.py"]
    first = begin_capture(tmp_path / "c", command)
    assert begin_capture(tmp_path / "c", command) == first
    with pytest.raises(CaptureError, match="already has a capture"):
        begin_capture(tmp_path / "c", ["torchrun", "--nnodes=2", "--master-addr=b", "train.py"])
    with pytest.raises(HotloopError, match="already has a capture"):
        begin_capture(tmp_path / "c", ["python", "train.py"])


def test_merging_nothing_is_refused() -> None:
    with pytest.raises(HotloopError, match="at least two"):
        merge_captures([], SimpleNamespace())  # type: ignore[arg-type]
