"""Files are written whole, with the permissions the user asked for; what is read is bounded and checked."""

from __future__ import annotations

import fcntl
import json
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotloop import Profiler
from hotloop._util.errors import FileError
from hotloop._util.files import (
    UNFINISHED,
    create_exclusively,
    remove_all_unfinished,
    replacing,
    write_atomically,
)
from hotloop._util.read_files import MOST_LEVELS, Reader, json_text
from hotloop.capture.export import save_json
from hotloop.capture.plan import Plan, Variant
from hotloop.capture.series import create
from hotloop.rl.buffers.demonstrations import DemonstrationStore, Episode
from hotloop.rl.train.runs import save_checkpoint
from hotloop.testing import Spec, make_capture

READER = Reader(1000, remedy="make it again")


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


@pytest.fixture(params=[0o077, 0o002, 0o027])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


# -- writing -------------------------------------------------------------------------------------


def test_everything_that_is_written_respects_the_umask(umask: int, tmp_path: Path) -> None:
    profiler = Profiler().start(tmp_path / "run")
    with profiler.profile("a"):
        pass
    profiler.stop()
    capture = make_capture({"a": Spec(1, 10.0)})
    save_json(capture, tmp_path / "export.json")
    create(tmp_path / "series", Plan((Variant("A", ("a",)), Variant("B", ("b",)))), {})
    save_checkpoint(tmp_path / "agent", {"a": np.arange(3)}, {}, {})
    store = DemonstrationStore(tmp_path / "demonstrations")
    store.begin({"format": "x"}, resume=False)
    store.write(0, Episode(np.ones((2, 1)), np.ones((1, 1)), np.ones(1), np.ones(1, bool), np.ones(1, bool)))
    write_atomically(tmp_path / "replaced", "x")
    assert create_exclusively(tmp_path / "created", "x")
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) == 9
    assert {file: oct(mode(file)) for file in files} == dict.fromkeys(files, oct(0o666 & ~umask))


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    file = tmp_path / "agent"
    save_checkpoint(file, {"a": np.arange(3)}, {}, {})
    file.chmod(0o640)
    save_checkpoint(file, {"a": np.arange(4)}, {}, {})
    assert mode(file) == 0o640


def test_what_a_killed_writer_left_is_removed_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    file = tmp_path / "agent"
    left = [tmp_path / f".agent.{name}{UNFINISHED}" for name in ("aa", "bb")]
    other = tmp_path / f".other.aa{UNFINISHED}"
    for one in (*left, other):
        one.write_text("half")
    with open(left[1], "rb") as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        save_checkpoint(file, {"a": np.arange(3)}, {}, {})
        assert sorted(tmp_path.iterdir()) == sorted([file, left[1], other])
    write_atomically(file, "x")
    assert sorted(tmp_path.iterdir()) == sorted([file, other])
    remove_all_unfinished(tmp_path)
    assert list(tmp_path.iterdir()) == [file]


def test_two_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    with replacing(tmp_path / "file") as slow:
        slow.write(b"slow")
        write_atomically(tmp_path / "file", "fast")
    assert (tmp_path / "file").read_text() == "slow"
    assert len(list(tmp_path.iterdir())) == 1


def test_the_longest_name_can_be_written(tmp_path: Path) -> None:
    for name in ("n" * 255, "ü" * 127):
        write_atomically(tmp_path / name, "x")
        assert (tmp_path / name).read_text() == "x"


# -- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda f: None, "No such file"),
        (lambda f: f.mkdir(), "is a folder and not a regular file"),
        (lambda f: os.mkfifo(f), "is a FIFO and not a regular file"),
        (lambda f: f.symlink_to(f.name), "Too many levels of symbolic links"),
        (lambda f: f.symlink_to("/dev/zero"), "is a device and not a regular file"),
        (lambda f: (f.touch(), os.truncate(f, 1 << 40)), "has 1.00 TiB; at most 1000 B are read"),
        (lambda f: f.write_bytes(b'{"a": "\xff"}'), "is not JSON"),
        (lambda f: f.write_text("{"), "is not valid JSON"),
        (lambda f: f.write_text("[" * 400 + "]" * 400), f"nested more than {MOST_LEVELS} levels"),
        (lambda f: f.write_text("[1]"), "does not hold a JSON object"),
        (lambda f: f.write_text('{"a": 1, "checksum": "crc32:00000000"}'), "does not match its checksum"),
        (lambda f: f.write_text('{"a": 1, "checksum": 7}'), "does not match its checksum"),
        (lambda f: f.write_text('{"a": 1, "chec{sum": "crc32:2b1ba180"}'), "does not match its checksum"),
    ],
)
def test_whatever_cannot_be_read_is_one_sentence(tmp_path: Path, make: Any, says: str) -> None:
    make(tmp_path / "file")
    with pytest.raises(FileError, match=says) as raised:
        READER.read_object(tmp_path / "file")
    assert str(raised.value).endswith("; make it again.") and "\n" not in str(raised.value)


def test_links_are_followed_only_where_a_user_named_them(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    assert READER.read_text(tmp_path / "link") == "x"
    with pytest.raises(FileError, match="is a symbolic link"):
        Reader(1000, follow=False).read_text(tmp_path / "link")


def test_what_was_written_comes_back_and_one_changed_character_is_noticed(tmp_path: Path) -> None:
    data = {"a": [1, 2.5, None, True, "ü\ud800"], "b": {"nan": math.nan, "inf": -math.inf}, "c": 2**70}
    text = json_text(data)
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    file = tmp_path / "file"
    file.write_text(text)
    found = READER.read_object(file)
    assert found.pop("b") == {"nan": pytest.approx(math.nan, nan_ok=True), "inf": -math.inf}
    assert found == {"a": data["a"], "c": data["c"]}
    file.write_text(json.dumps(json.loads(text), indent=7, sort_keys=True))  # laid out by another program
    assert READER.read_object(file)["c"] == 2**70
    file.write_text(text.replace("2.5", "3.5"))
    with pytest.raises(FileError, match="does not match its checksum"):
        READER.read_object(file)
    file.write_text(json.dumps({"a": 1}))  # written by hotloop 0.1
    assert READER.read_object(file) == {"a": 1}


def test_data_that_could_not_be_read_again_is_not_written() -> None:
    deep: list[Any] = []
    for _ in range(MOST_LEVELS + 1):
        deep = [deep]
    with pytest.raises(ValueError, match="nested"):
        json_text({"a": deep})


def test_a_file_that_was_taken_for_a_leftover_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock
    swept: list[Path] = []

    def flock(descriptor: int, operation: int) -> None:
        if not swept:  # another process comes between creation and lock
            swept.extend(tmp_path.glob(f".file.*{UNFINISHED}"))
            swept[0].unlink()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    write_atomically(tmp_path / "file", "x")
    assert len(swept) == 1 and (tmp_path / "file").read_text() == "x"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
