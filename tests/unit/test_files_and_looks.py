"""Messages that nobody waits for in the usual way: files in a folder, and looks for what is there."""

from __future__ import annotations

import os
import queue
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotloop.analysis.what_ifs import WhatIfs, parse_change
from hotloop.capture.message_format import EMPTY, FOUND, LOOK, RECEIVE, SEND
from hotloop.capture.open_capture import open_capture
from hotloop.instrument.channels import folders, logged_calls, threads
from hotloop.instrument.patch import Patches
from tests.cli import hotloop

KINDS = {SEND: "send", RECEIVE: "receive", FOUND: "found", EMPTY: "empty", LOOK: "look"}


class Log:
    """Takes the place of the log of this process."""

    def __init__(self) -> None:
        self.channels: list[dict[str, Any]] = []
        self.seen: list[tuple[str, str]] = []

    def channel(self, key: str, kind: str, **facts: Any) -> int:
        if key not in [channel["key"] for channel in self.channels]:
            self.channels.append({"key": key, "kind": kind, **facts})
        return [channel["key"] for channel in self.channels].index(key)

    def write(self, channel: int, kind: int, begin: int, end: int, amount: int = 1) -> None:
        if channel >= 0:
            self.seen.append((self.channels[channel]["kind"], KINDS[kind]))

    def write_look(self, channel: int, kind: int, begin: int, end: int) -> None:
        self.write(channel, kind, begin, end)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    made = Log()
    for module in (folders, logged_calls, threads):
        monkeypatch.setattr(module, "log", made)
    monkeypatch.setattr(folders, "_known", {})
    yield made


def test_files_that_come_and_go_are_messages(log: Log, tmp_path: Path) -> None:
    able = {name: os.unlink in getattr(os, name) for name in ("supports_dir_fd", "supports_fd")}
    patches = Patches()
    folders.patch_folders(os, patches)
    try:
        here, there = tmp_path / "here", tmp_path / "there"
        here.mkdir()
        there.mkdir()
        os.listdir(here)  # nobody has sent anything: no message folder so far
        (tmp_path / "a.part").write_text("a")
        os.rename(tmp_path / "a.part", here / "a")
        os.listdir(here)
        os.replace(here / "a", there / "a")
        (there / "a").unlink()
        assert {name: os.unlink in getattr(os, name) for name in able} == able  # `shutil` asks
        shutil.rmtree(here)
        with pytest.raises(FileNotFoundError):
            os.unlink(there / "a")
    finally:
        patches.undo()
    said = [kind for _, kind in log.seen]
    assert said[:6] == ["receive", "send", "look", "receive", "send", "receive"]
    assert len(said) == 6


def test_looks_say_what_they_found(log: Log) -> None:
    patches = Patches()
    module = SimpleNamespace(Queue=type("Q", (queue.Queue,), {}), SimpleQueue=type("S", (queue.Queue,), {}))
    threads.patch_queue(module, patches)  # type: ignore[arg-type]
    try:
        one = module.Queue()
        assert one.empty() and one.qsize() == 0
        with pytest.raises(queue.Empty):
            one.get_nowait()
        with pytest.raises(queue.Empty):
            one.get(timeout=0.001)
        one.put(1)
        assert one.qsize() == 1 and one.get_nowait() == 1
        one.put(2)
        assert one.get() == 2
    finally:
        patches.undo()
    assert [kind for _, kind in log.seen] == [
        "empty", "empty", "empty", "send", "found", "found", "receive", "send", "receive",
    ]  # fmt: skip


SCRIPT = """
import multiprocessing, os, tempfile, time
import hotloop
def act(folder):
    count = 0
    while True:
        with hotloop.profile("play"):
            time.sleep(0.004)
        while len(os.listdir(folder)) >= 4:
            time.sleep(0.001)
        count += 1
        name = os.path.join(folder, f"{count:06d}")
        open(name + ".part", "w").close()
        os.rename(name + ".part", name)
with tempfile.TemporaryDirectory() as folder:
    actor = multiprocessing.get_context("fork").Process(target=act, args=(folder,), daemon=True)
    actor.start()
    begin = time.monotonic()
    while time.monotonic() - begin < 2.0:
        names = sorted(name for name in os.listdir(folder) if not name.endswith("part"))
        while not names:
            time.sleep(0.001)
            names = sorted(name for name in os.listdir(folder) if not name.endswith("part"))
        os.unlink(os.path.join(folder, names[0]))
        with hotloop.profile("learn"):
            time.sleep(0.012)
        hotloop.progress(updates=1)
    actor.terminate()
    actor.join()
"""


def test_rollouts_in_a_folder_are_replayed(tmp_path: Path) -> None:
    """Learning takes three times as long as playing: four times as fast, playing is the limit."""
    (tmp_path / "train.py").write_text(SCRIPT)
    done = hotloop("run", "--capture", "capture", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    capture = open_capture(str(tmp_path / "capture"))
    kinds = Counter(KINDS[int(kind)] for log in capture.messages for kind in log.records["kind"])
    assert {"send", "receive", "look"} <= set(kinds)
    model = WhatIfs(capture)
    assert model.trace is not None, model.why_no_replay
    assert model.limit.region == "learn"
    gains = {text: model.predict([parse_change(text)]).speed_up for text in ("play=2x", "learn=6x")}
    assert gains["play=2x"] is not None and gains["play=2x"].value == pytest.approx(1, rel=0.1)
    assert gains["learn=6x"] is not None and 1.5 < gains["learn=6x"].value < 4.5
