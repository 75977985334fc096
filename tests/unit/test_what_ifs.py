"""What-ifs from a capture: how changes are written, what a recorded run answers, and what it cannot tell."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hotloop._util.errors import HotloopError
from hotloop.analysis.replay import Lane, Operation, ReplayChannel, Trace
from hotloop.analysis.what_ifs import WhatIfs, parse_change
from hotloop.capture import message_format as messages
from hotloop.capture.message_format import RECEIVE, RECORD, SEND
from hotloop.capture.messages import read_messages
from hotloop.capture.open_capture import open_capture
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
