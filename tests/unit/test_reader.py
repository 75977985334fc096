"""Bad input: one sentence, or a warning that names the part left out."""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path

import pytest

import hotloop
from hotloop._util.errors import CaptureError
from hotloop.capture import layout
from hotloop.capture.reader import DAMAGED
from hotloop.cli.main import main
from hotloop.measure.core_choice import CoreName
from tests.edited import edit_json, resealed


@pytest.fixture
def capture(tmp_path: Path, core: CoreName) -> Path:
    profiler = hotloop.Profiler(core_name=core).start(tmp_path / "capture")
    for i in range(40):
        with profiler.profile("outer"), profiler.profile(f"inner {i}"):
            profiler.progress(env_steps=1)
    profiler.stop()
    return tmp_path / "capture"


def part_of(capture: Path) -> Path:
    (part,) = (capture / "parts").iterdir()
    return part


def test_a_good_capture_reads_without_warnings(capture: Path) -> None:
    loaded = hotloop.load(capture)
    assert loaded.warnings == () and loaded.processes[0].warnings == ()
    (outer,) = loaded.tree.children
    assert outer.calls == 40 and len(outer.children) == 40
    assert loaded.command and loaded.machine["cores_granted"] > 0
    assert loaded.region_cost_ns and loaded.region_cost_ns > 0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda f: None, "no such file or folder"),
        (lambda f: f.mkdir(), "no capture.json"),
        (lambda f: f.write_text("hello"), "a capture is a folder"),
        (lambda f: (f.mkdir(), (f / "capture.json").write_text("{")), "not valid JSON"),
        (lambda f: (f.mkdir(), (f / "capture.json").write_text("[1]")), "cannot be read"),
        (lambda f: (f.mkdir(), (f / "capture.json").write_text("{}")), "cannot be read"),
        (
            lambda f: (
                f.mkdir(),
                (f / "capture.json").write_text('{"format_version": 99, "hotloop_version": "9.1"}'),
            ),
            r"written by hotloop 9.1 in capture format 99; this hotloop reads up to 2. Update",
        ),
    ],
)
def test_other_files_than_captures_get_one_sentence(tmp_path: Path, make, says: str) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path / "thing")
    with pytest.raises(CaptureError, match=says) as raised:
        hotloop.load(tmp_path / "thing")
    assert "\n" not in str(raised.value)


def test_a_capture_with_no_parts_yet(capture: Path) -> None:
    part_of(capture).unlink()
    loaded = hotloop.load(capture)
    assert loaded.processes == ()
    assert loaded.warnings == ("no process has recorded anything yet",)
    assert loaded.tree.children == [] and loaded.wall_ns == 0


def test_a_part_of_a_newer_version_is_left_out_and_named(capture: Path) -> None:
    part = part_of(capture)
    data = bytearray(part.read_bytes())
    struct.pack_into("<I", data, layout.offsets("HEADER")["version"], 7)
    part.write_bytes(data)
    (warning,) = [w for w in hotloop.load(capture).warnings if "left out" in w]
    assert part.name in warning and "part version 7" in warning and "update" in warning


@pytest.mark.parametrize("size", [0, 3, 100, 4095, 4096, 30_000, 60_000, 100_000])
def test_a_part_cut_anywhere_reads_up_to_the_cut_and_says_so(capture: Path, size: int) -> None:
    part = part_of(capture)
    part.write_bytes(part.read_bytes()[:size])
    loaded = hotloop.load(capture)
    said = " ".join([*loaded.warnings, *(w for p in loaded.processes for w in p.warnings)])
    assert "cut short" in said


def test_scribbles_never_crash_the_reader(capture: Path) -> None:
    part = part_of(capture)
    good = part.read_bytes()
    chance = random.Random(3)
    for _ in range(60):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 200)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        part.write_bytes(data)
        loaded = hotloop.load(capture)
        assert loaded.processes or loaded.warnings


def test_a_strange_file_among_the_parts_is_named(capture: Path) -> None:
    (capture / "parts" / "notes.part").write_text("x" * 5000)
    loaded = hotloop.load(capture)
    assert loaded.tree.children[0].calls == 40
    assert any("notes.part" in w and "not a hotloop part" in w for w in loaded.warnings)


def test_an_update_that_never_ended_is_flagged(capture: Path) -> None:
    part = part_of(capture)
    data = bytearray(part.read_bytes())
    at = layout.PAGE
    while not data[at:].startswith(b"thread\0"):
        at += struct.unpack_from("<Q", data, at + layout.offsets("SECTION")["bytes"])[0]
    seq_at = at + layout.item_bytes("SECTION")
    (seq,) = struct.unpack_from("<Q", data, seq_at)
    struct.pack_into("<Q", data, seq_at, seq + 1)
    part.write_bytes(data)
    (thread,) = hotloop.load(capture).threads
    assert thread.uncertain
    assert thread.root.children[0].calls == 40


def test_merging_keeps_counts_extremes_and_spread() -> None:
    import statistics

    from hotloop.testing.fakes import FakeClock

    chance = random.Random(1)
    roots, everything = [], []
    for _ in range(4):
        clock = FakeClock()
        profiler = hotloop.Profiler(clock=clock).start()
        for _ in range(chance.randrange(2, 50)):
            ns = chance.randrange(10**6)
            everything.append(ns)
            with profiler.profile("op"):
                clock.advance(ns)
        roots.append(profiler.capture().threads[0])
        profiler.stop()
    from hotloop.capture.model import merged

    (op,) = merged(roots).children
    assert op.calls == len(everything)
    assert (op.min_ns, op.max_ns) == (min(everything), max(everything))
    assert op.mean_ns == pytest.approx(statistics.mean(everything))
    assert op.sd_ns == pytest.approx(statistics.stdev(everything))
    assert op.buckets is not None and op.buckets.sum() == len(everything)


def test_facts_describe_the_run(tmp_path: Path) -> None:
    profiler = hotloop.Profiler().start(tmp_path / "c", config={"lr": 0.1}, seeds={"all": 3})
    profiler.stop()
    facts = json.loads((tmp_path / "c" / "capture.json").read_text())
    assert facts["config"] == {"lr": 0.1} and facts["seeds"] == {"all": 3}
    assert facts["ended_at_ns"] > facts["started_at_ns"]
    assert facts["versions"]["python"]
    assert facts["clock"] == "monotonic"


# -- what is no file, or says what cannot be -------------------------------------------------------


def special(make: str, file: Path) -> None:
    file.unlink()
    {
        "fifo": os.mkfifo,
        "loop": lambda f: f.symlink_to(f.name),
        "device": lambda f: f.symlink_to("/dev/zero"),
    }[make](file)


@pytest.mark.parametrize("make", ["fifo", "loop", "device"])
def test_what_is_no_regular_file_is_left_out_and_named(
    capture: Path, make: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, name in (("problems", "a.txt"), ("libraries", "a.json"), ("lines", "a.json")):
        (capture / folder).mkdir()
        (capture / folder / name).touch()
        special(make, capture / folder / name)
    part = part_of(capture)
    (capture / "parts" / "second.part").write_bytes(part.read_bytes())
    special(make, capture / "parts" / "second.part")
    (capture / "parts" / "third.part.live").write_text("/dev/zero")  # what it points to is not ours
    loaded = hotloop.load(capture)
    assert len(loaded.processes) == 1
    assert sum("left out" in warning for warning in loaded.warnings) == 4, loaded.warnings
    special(make, part)
    assert main(["show", str(capture)]) == 2
    assert "no process that can be read" in capsys.readouterr().err
    special(make, capture / "capture.json")
    assert main(["show", str(capture)]) == 2
    assert "not a regular file" in capsys.readouterr().err


def test_names_and_sentences_from_a_capture_cannot_control_the_terminal(
    capture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (capture / "problems").mkdir()
    (capture / "problems" / "a.txt").write_text("\x1b]0;owned\x07 is \u202edenrut\n")
    (capture / "parts" / "\x1b[2J.part").write_bytes(b"x" * 5000)
    loaded = hotloop.load(capture)
    assert r"\x1b]0;owned\x07 is \u202edenrut" in loaded.warnings
    for words in (["show", str(capture)], ["report", str(capture)]):
        assert main(words) == 0
        out, err = capsys.readouterr()
        assert r"\x1b[2J" in out + err and "\x1b" not in out + err


def test_a_flipped_bit_in_a_closed_part_is_noticed(capture: Path) -> None:
    part, random_ = part_of(capture), random.Random(0)
    whole = part.read_bytes()
    for _ in range(100):
        data = bytearray(whole)
        at = random_.randrange(layout.PAGE, len(data))
        data[at] ^= 1 << random_.randrange(8)
        part.write_bytes(data)
        loaded = hotloop.load(capture)
        assert DAMAGED in loaded.processes[0].warnings, at
    part.write_bytes(whole)
    assert hotloop.load(capture).processes[0].warnings == ()


def test_a_part_that_was_not_closed_needs_no_checksum(tmp_path: Path, core: CoreName) -> None:
    profiler = hotloop.Profiler(core_name=core).start(tmp_path / "capture")
    with profiler.profile("a"):
        pass
    assert hotloop.load(tmp_path / "capture").processes[0].warnings == ()
    profiler.stop()


def test_figures_that_cannot_be_true_are_left_out(capture: Path) -> None:
    part = part_of(capture)
    data = bytearray(part.read_bytes())
    at = data.index(b"thread".ljust(layout.SECTION_NAME_BYTES, b"\0")) + layout.item_bytes("SECTION")
    struct.pack_into("<Q", data, at + layout.offsets("ARENA")["start_ns"], 2**63)
    part.write_bytes(resealed(data))
    loaded = hotloop.load(capture)
    assert loaded.threads == () and "its times make no sense" in loaded.processes[0].warnings[0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"command": "python train.py"}, "capture.json.command is 'python train.py', not a list"),
        ({"machine": {"cores_granted": "two"}}, "capture.json.machine.cores_granted is 'two', not a number"),
        ({"versions": []}, "capture.json.versions is [], not an object"),
    ],
)
def test_facts_of_a_wrong_type_are_one_sentence(capture: Path, change: dict[str, object], says: str) -> None:
    edit_json(capture / "capture.json", change)
    with pytest.raises(CaptureError) as raised:
        hotloop.load(capture)
    assert says in str(raised.value)
