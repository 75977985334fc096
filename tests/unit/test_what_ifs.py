"""What-ifs from a capture: how changes are written, what a recorded run answers, and what it cannot tell."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotloop._util.errors import HotloopError
from hotloop.analysis.replay import Lane, Operation, ReplayChannel, Trace
from hotloop.analysis.what_ifs import WhatIfs, parse_change
from hotloop.capture import layout
from hotloop.capture import message_format as messages
from hotloop.capture.message_format import RECEIVE, RECORD, SEND
from hotloop.capture.messages import read_messages
from hotloop.capture.model import Capture
from hotloop.capture.open_capture import open_capture
from hotloop.capture.samples import RUNNING, SAMPLE_DTYPE, SLEEPING
from hotloop.cli.main import main
from hotloop.instrument.channels.message_log import MessageLog
from hotloop.measure.profiler import default
from hotloop.testing.captures import Spec, make_capture
from tests.cli import hotloop

SCRIPT = """
import queue, threading, time
import hotloop
experience = queue.Queue(4)
def produce():
    while True:
        with hotloop.profile("fetch"):
            time.sleep(0.012)
        experience.put(1)
threading.Thread(target=produce, daemon=True).start()
begin = time.monotonic()
while time.monotonic() - begin < 2.0:
    experience.get()
    with hotloop.profile("learn"):
        time.sleep(0.001)
    hotloop.progress(updates=1)
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A learner that waits for a slow thread, really recorded."""
    folder = tmp_path_factory.mktemp("whatif")
    (folder / "train.py").write_text(SCRIPT)
    done = hotloop("run", "--capture", "capture", "train.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    yield folder / "capture"


def test_changes_are_read() -> None:
    assert parse_change("env_step=2x").factor == 0.5
    assert parse_change("env_step=50%").factor == 0.5
    assert parse_change(" a b = 4 x ").name == "a b"
    assert parse_change("workers=8").count == 8
    assert parse_change("batch=2x").times == 2


@pytest.mark.parametrize(
    "text",
    [
        "env_step",
        "env_step=",
        "=2x",
        "env_step=2",
        "env_step=0x",
        "env_step=1.2.3x",
        "workers=1.5",
        "workers=5%",
    ],
)
def test_a_change_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(HotloopError):
        parse_change(text)


def test_messages_are_read_as_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default, "folder", tmp_path)
    monkeypatch.setattr(type(default), "is_recording", property(lambda self: True))
    monkeypatch.setattr("hotloop.instrument.channels.message_log.RECORDS", 8)
    log = MessageLog()
    channel = log.channel("queue 1", "queue", capacity=4)
    assert log.channel("queue 1", "queue") == channel
    before = default.recorder.flags
    for number in range(11):
        log.write(channel, SEND if number % 2 else RECEIVE, 10 * number + 1, 10 * number + 5)
    default.recorder.flags = before
    (found,), unreadable = read_messages(tmp_path)
    assert not unreadable
    assert found.total == 11 and found.channels[0].capacity == 4
    assert found.records["begin_ns"].tolist() == [10 * n + 1 for n in range(3, 11)]  # the ring holds the last
    assert found.records["count"].tolist() == [2, 3, 3, 4, 4, 5, 5, 6]


def test_damaged_logs_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / messages.FOLDER
    folder.mkdir()
    (folder / "a-1-1.log").write_bytes(b"nonsense")
    (folder / "a-2-1.log").write_bytes(messages.MAGIC + bytes(200))
    (folder / "a-2-1.json").write_text("{}")
    row = np.array([(5, 3, 1, 0, 0, 1)], list(RECORD)).tobytes()  # it ends before it begins
    header = messages.MAGIC + (1).to_bytes(8, "little") + (8).to_bytes(8, "little")
    (folder / "a-3-1.log").write_bytes(header.ljust(messages.HEADER_BYTES, b"\0") + row)
    (folder / "a-3-1.json").write_text(json.dumps({"pid": 3, "edges": [{"key": "k", "kind": "pipe"}]}))
    no_room = messages.MAGIC + (1).to_bytes(8, "little") + bytes(8)  # a ring for no records, with one
    (folder / "a-4-1.log").write_bytes(no_room.ljust(messages.HEADER_BYTES, b"\0") + row)
    (folder / "a-4-1.json").write_text(json.dumps({"pid": 4, "edges": []}))
    found, unreadable = read_messages(tmp_path)
    assert [sentence.split()[0] for sentence in unreadable] == ["messages/a-1-1.log", "messages/a-2-1.log"]
    assert [log.pid for log in found] == [3, 4]
    assert not any(len(log.records) for log in found)


def test_one_thread_follows_amdahl() -> None:
    capture = make_capture(
        {"env_step": Spec(1000, 6e6), "learn": Spec(1000, 2e6)}, env_steps=1000, updates=1000
    )
    model = WhatIfs(capture)
    answer = model.predict([parse_change("env_step=2x")])
    assert answer.how == "amdahl"
    assert answer.speed_up.value == pytest.approx(1.6, rel=0.03)
    assert model.limit.region == "env_step"
    both = model.predict([parse_change("env_step=2x"), parse_change("learn=2x")])
    assert both.speed_up.value == pytest.approx(2.0, rel=0.06)  # a little time is in no region


def test_a_recorded_pipeline_answers(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(recorded), "fetch=2x", "learn=2x", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    fetch, learn = (one["speed_up"] for one in found["predictions"])
    assert found["limit"]["region"] == "fetch"
    assert fetch["value"] > max(1.2, learn["value"])  # near 2, but the machine may be busy
    assert learn["low"] < 1.2  # the learner waits anyway
    assert fetch["low"] <= fetch["value"] <= fetch["high"]
    assert main(["whatif", str(recorded)]) == 0
    assert "fetch=2x" in capsys.readouterr().out


def test_what_one_capture_cannot_tell_names_the_run_that_would(recorded: Path) -> None:
    answer = WhatIfs(open_capture(str(recorded))).predict([parse_change("batch=2x")])
    assert answer.speed_up is None
    assert "hotloop compare" in answer.decide


def test_unknown_regions_are_refused(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(recorded), "nothing=2x"]) == 2
    said = capsys.readouterr().err
    assert "'nothing' is neither a region" in said and "fetch" in said


def test_recorded_processes_do_not_import_numpy_for_it() -> None:
    """A script may want to set the number of its threads before it imports numpy itself."""
    program = "import sys, hotloop.instrument.bootstrap; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_threads_that_log_at_once_get_channels_of_their_own() -> None:
    log = MessageLog()
    found: dict[str, int] = {}

    def ask(name: str) -> None:
        found[name] = log.channel(name, "queue")

    threads = [threading.Thread(target=ask, args=(f"queue {n}",)) for n in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {log.channels[number]["key"]: number for number in found.values()} == found


def test_a_slow_member_that_holds_training_up_is_a_straggler() -> None:
    def system(slow: float, shared: bool = False) -> WhatIfs:
        channels = [ReplayChannel("a", "pipe", None, 0, 0.0) for _ in range(4)]

        def lane(name: str, process: int, kinds: list[tuple[int, int]], work: list[float]) -> Lane:
            done = tuple(
                Operation(kind, channel, 0.0, 0.0, 0.0) for _ in range(100) for kind, channel in kinds
            )
            stretches = np.array(work * 100 + [0.0])
            return Lane(name, process, done, stretches, {name: stretches.copy()}, 0.0, 0.0, name.split()[0])

        first, second = (0, 0) if shared else (0, 2)
        asks = [(SEND, first), (SEND, second), (RECEIVE, 1), (RECEIVE, 3)]
        lanes = (
            lane("learn", 0, asks, [1.0, 0.0, 0.0, 0.0]),
            lane("step 1", 1, [(RECEIVE, first), (SEND, 1)], [0.0, 2.0]),
            lane("step 2", 2, [(RECEIVE, second), (SEND, 3)], [0.0, slow]),
        )
        model = WhatIfs(make_capture({"learn": Spec(10, 1e6)}))
        model.__dict__["trace"] = Trace(lanes, tuple(channels), 0, 4.0, 300.0)
        return model

    assert system(2.0).straggler == ""
    assert system(2.5).straggler == "step 2"
    assert system(2.5, shared=True).straggler == ""  # both take what comes: nobody has a share of its own


def test_a_thread_that_waits_for_what_was_not_recorded_has_no_answer() -> None:
    """An event loop whose tasks sleep: neither Amdahl's law nor a replay says what they would give."""
    model = WhatIfs(make_capture({"learn": Spec(100, 1e6), "ipc_wait": Spec(100, 9e6)}))
    answer = model.predict([parse_change("learn=2x")])
    assert answer.speed_up is None and "waits 85 % of the time, and not for a recorded" in answer.why
    assert answer.amdahl == pytest.approx(1 / 0.95, rel=0.01)
    assert model.limit.regime == "unknown" and "waits 85 %" in model.limit.sentence
    busy = WhatIfs(make_capture({"learn": Spec(100, 9e6), "ipc_wait": Spec(100, 0.5e6)}))
    assert busy.predict([parse_change("learn=2x")]).speed_up is not None
    assert busy.limit.region == "learn"


def _asleep(capture: Capture, reason: int, share: float) -> Capture:
    """The capture with samples that show its thread waiting for that reason for a share of the time."""
    process = capture.processes[0]
    thread = process.threads[0]
    rows = np.zeros(1000, SAMPLE_DTYPE)
    rows["time_ns"] = np.linspace(thread.start_ns, thread.end_ns, 1002)[1:-1]
    rows["weight_ns"], rows["native_id"] = 1_000_000, thread.native_id
    rows["state"], rows["reason"] = RUNNING, layout.REASON_UNKNOWN
    rows[: round(1000 * share)]["state"] = SLEEPING
    rows[: round(1000 * share)]["reason"] = reason
    return replace(capture, processes=(replace(process, samples=rows),))


def test_a_thread_that_takes_turns_with_unknown_others_has_no_answer() -> None:
    """Half of what it seems to do is waiting for the GIL: twice as fast, it would wait longer."""
    capture = make_capture({"learn": Spec(100, 9e6)})
    answer = WhatIfs(_asleep(capture, layout.REASON_GIL, 0.5)).predict([parse_change("learn=2x")])
    assert answer.speed_up is None and "waits 50 % of the time for other threads" in answer.why
    assert answer.decide
    napping = WhatIfs(_asleep(capture, layout.REASON_SLEEP, 0.5)).predict([parse_change("learn=2x")])
    assert napping.speed_up is not None


def _actors_with_a_lock(capture: Capture) -> WhatIfs:
    """Six actors simulate for 3 s each and write for 1 s under a lock; the learner takes what they send."""
    channels = (ReplayChannel("lock", "lock", None, 1, 0.0), ReplayChannel("queue", "queue", None, 0, 0.0))
    process = capture.processes[0]

    def actor(number: int) -> Lane:
        kinds = [(RECEIVE, 0), (SEND, 0), (SEND, 1)] * 50
        done = tuple(Operation(kind, channel, 0.0, 0.0, 0.0) for kind, channel in kinds)
        simulate, write = np.array([3.0, 0, 0] * 50 + [0.0]), np.array([0, 1.0, 0] * 50 + [0.0])
        regions = {"simulate": simulate, "write": write}
        key = process.pid, process.threads[0].native_id
        return Lane("actor", number, done, simulate + write, regions, 0.0, 0.0, "simulate", thread=key)

    takes = tuple(Operation(RECEIVE, 1, 0.0, 0.0, 0.0) for _ in range(300))
    learn = np.full(301, 0.1)
    learner = Lane("learner", 0, takes, learn, {"learn": learn}, 0.0, 0.0, "learn")
    model = WhatIfs(capture)
    begin = process.threads[0].start_ns
    trace = Trace((learner, *map(actor, range(1, 7))), channels, 0, 8.0, 300.0, begin_ns=begin)
    model.__dict__["trace"] = trace
    return model


def test_a_limit_under_a_lock_is_named_by_what_is_done_there() -> None:
    assert _actors_with_a_lock(make_capture({"learn": Spec(100, 9e6)})).limit.region == "write"


def test_a_change_in_a_thread_that_waits_for_something_unknown_has_no_answer() -> None:
    capture = make_capture({"learn": Spec(100, 9e6)})
    model = _actors_with_a_lock(_asleep(capture, layout.REASON_EVENT, 0.4))
    answer = model.predict([parse_change("write=2x")])
    assert answer.speed_up is None and "actor waits 40 % of the time" in answer.why
    assert "hotloop compare" in answer.decide
    assert model.predict([parse_change("learn=2x")]).speed_up is not None
    known = _actors_with_a_lock(_asleep(capture, layout.REASON_SLEEP, 0.4))
    assert known.predict([parse_change("write=2x")]).speed_up is not None
