"""Sections of a part: unknown ones are skipped with a note, damaged ones never crash a reader."""

from __future__ import annotations

import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

import hotloop
from hotloop.capture import export, layout
from hotloop.capture.open_capture import open_capture
from hotloop.capture.sections import find_sections
from hotloop.cli.main import main
from hotloop.measure.core_choice import CoreName
from hotloop.measure.part import Part
from tests.edited import resealed
from tests.unit.test_import import run

WRITTEN_BY_0_1 = Path(__file__).parent.parent / "golden" / "written_by_0_1.tar.gz"
AT = layout.offsets("SECTION")


@pytest.fixture
def capture(tmp_path: Path, core: CoreName) -> Path:
    profiler = hotloop.Profiler(core_name=core).start(tmp_path / "capture", timeline=True)
    for i in range(40):
        with profiler.profile("outer"), profiler.profile(f"inner {i}"):
            profiler.progress(env_steps=1)
    profiler.stop()
    return tmp_path / "capture"


def part_of(capture: Path) -> Path:
    (part,) = (capture / "parts").iterdir()
    return part


def offsets_of(data: bytes | bytearray) -> list[tuple[str, int]]:
    """Name and place of every section."""
    found, at = [], layout.PAGE
    while at < len(data):
        name = data[at : at + layout.SECTION_NAME_BYTES].rstrip(b"\0").decode()
        found.append((name, at))
        at += struct.unpack_from("<Q", data, at + AT["bytes"])[0]
    return found


def place_of(name: str, data: bytes | bytearray, number: int = 0) -> int:
    return [at for found, at in offsets_of(data) if found == name][number]


def append_section(part: Path, name: str, version: int, payload: bytes) -> None:
    """What a newer hotloop might have written at the end."""
    data = bytearray(part.read_bytes())
    total = layout.section_bytes(len(payload))
    section = bytearray(total)
    struct.pack_into(
        f"<{layout.SECTION_NAME_BYTES}sIIQQ", section, 0, name.encode(), version, 0, total, len(payload)
    )
    section[layout.item_bytes("SECTION") :][: len(payload)] = payload
    struct.pack_into("<Q", data, layout.offsets("HEADER")["used_bytes"], len(data) + total)
    part.write_bytes(resealed(data + section))


def warnings_of(loaded: hotloop.Capture) -> list[str]:
    return [*loaded.warnings, *(w for p in loaded.processes for w in p.warnings)]


def test_a_part_is_a_chain_of_named_sections(capture: Path) -> None:
    names = [name for name, _ in offsets_of(part_of(capture).read_bytes())]
    figures = {"scheduling", "process_scheduling", "thread_settings", "origin"}
    assert set(names) == {"regions", "thread", "nodes", "events", "calls", "filler"} | figures
    assert names.count("nodes") == 3 and names.count("regions") == 2  # 42 paths and names


def test_an_unknown_section_is_skipped_and_noted(capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = hotloop.load(capture)
    for _ in range(2):
        append_section(part_of(capture), "gpu_clock", 3, b"x" * 5000)
    after = hotloop.load(capture)
    assert export.to_json(after)["processes"] == export.to_json(before)["processes"]
    (note,) = after.warnings
    assert note == (
        "skipped 2 sections 'gpu_clock' of version 3: this hotloop does not know it; update hotloop to see it"
    )
    for verb in ("show", "report"):
        main([verb, str(capture)])
        said = capsys.readouterr()
        assert "gpu_clock" in said.out + said.err


def test_what_follows_an_unknown_section_is_still_read(capture: Path) -> None:
    part = part_of(capture)
    data = bytearray(part.read_bytes())
    at = place_of("filler", data)
    data[at : at + layout.SECTION_NAME_BYTES] = b"checksum".ljust(layout.SECTION_NAME_BYTES, b"\0")
    part.write_bytes(data)
    loaded = hotloop.load(capture)
    assert loaded.tree.children[0].calls == 40 and len(loaded.tree.children[0].children) == 40
    assert any("'checksum' of version 1" in note for note in loaded.warnings)


def test_a_newer_version_of_a_known_section_is_skipped_and_noted(capture: Path) -> None:
    part = part_of(capture)
    data = bytearray(part.read_bytes())
    struct.pack_into("<I", data, place_of("events", data) + AT["version"], 2)
    part.write_bytes(data)
    loaded = hotloop.load(capture)
    assert loaded.warnings == (
        "skipped 1 section 'events' of version 2: this hotloop reads version 1; update hotloop to see it",
    )
    assert loaded.threads[0].events == () and loaded.tree.children[0].calls == 40


@pytest.mark.parametrize("name", ["regions", "thread", "nodes"])
def test_even_the_sections_everything_depends_on_may_be_of_a_newer_version(capture: Path, name: str) -> None:
    part = part_of(capture)
    data = bytearray(part.read_bytes())
    for found, at in offsets_of(bytes(data)):
        if found == name:
            struct.pack_into("<I", data, at + AT["version"], 7)
    part.write_bytes(data)
    loaded = hotloop.load(capture)
    assert any(f"{name!r} of version 7" in note for note in loaded.warnings)


def test_notes_of_all_processes_are_added_up(capture: Path) -> None:
    part = part_of(capture)
    append_section(part, "roles", 1, b"{}")
    (capture / "parts" / f"x{part.name}").write_bytes(part.read_bytes())
    (note,) = hotloop.load(capture).warnings
    assert note.startswith("skipped 2 sections 'roles'")


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("bytes", 0, "damaged at byte"),
        ("bytes", 4095, "damaged at byte"),
        ("bytes", 2**63, "cut short"),
        ("payload_bytes", 2**40, "damaged at byte"),
        ("payload_bytes", 8, "left out the section 'nodes'"),
        ("name", 0xFF, "damaged at byte"),
        ("name", 0x41, "damaged at byte"),
        ("first", 3, "nodes of thread 'MainThread' are missing"),
        ("owner", 99, "nodes of thread 'MainThread' are missing"),
    ],
)
def test_a_damaged_section_loses_only_what_depends_on_it(
    capture: Path, field: str, value: int, says: str
) -> None:
    part = part_of(capture)
    data = bytearray(part.read_bytes())
    at = place_of("nodes", data, 1) + AT[field]
    size = {"name": 1, "owner": 4}.get(field, 8)
    data[at : at + size] = value.to_bytes(size, "little")
    part.write_bytes(data)
    loaded = hotloop.load(capture)
    assert any(says in warning for warning in warnings_of(loaded)), warnings_of(loaded)
    (thread,) = loaded.threads
    assert thread.root.children[0].calls == 40 and 0 < len(thread.root.children[0].children) < 40


def test_garbage_after_the_header_never_crashes(capture: Path) -> None:
    part = part_of(capture)
    good = part.read_bytes()
    chance = np.random.default_rng(3)
    places = [at for _, at in offsets_of(good)]
    for _ in range(80):
        data = bytearray(good)
        at = int(chance.choice(places))
        data[at : at + 64] = chance.bytes(64)
        part.write_bytes(data)
        loaded = hotloop.load(capture)
        assert loaded.processes and all("\n" not in warning for warning in warnings_of(loaded))


def test_a_section_of_bytes_is_complete_when_it_becomes_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(layout.SECTIONS, "roles", (None,))
    part = Part(None, layout.CORE_PYTHON, 0)
    published: list[bytes] = []
    plain = part._publish_used

    def publish() -> None:
        memory = bytes(part.segments[0].memory)
        at = part.get("used_bytes")
        assert memory[at : at + 5] == b"roles"  # in place, but not yet reachable
        published.append(memory[at + layout.item_bytes("SECTION") :][:13])
        plain()

    monkeypatch.setattr(part, "_publish_used", publish)
    part.add_section("roles", owner=4, data=b'{"role": "a"}')
    assert published == [b'{"role": "a"}']
    pieces = [np.frombuffer(segment.memory, dtype=np.uint8) for segment in part.segments]
    (section,) = find_sections(pieces, part.total_bytes, layout.VERSION)
    assert (section.name, section.version, section.owner) == ("roles", 1, 4)
    assert section.payload.tobytes() == b'{"role": "a"}'


def test_a_core_built_from_other_sources_is_not_used() -> None:
    out = run(
        """
        import importlib
        from hotloop.capture import layout
        from hotloop.measure import core_choice
        layout.layout_crc = lambda: 1
        importlib.reload(core_choice)
        print(core_choice.compiled, core_choice.why_not_compiled)
        """
    )
    assert out.startswith(("None it was built from other sources", "None No module"))


# ---- written by hotloop 0.1


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("0.1")
    with tarfile.open(WRITTEN_BY_0_1) as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_a_capture_of_0_1_loads_with_the_same_numbers(old: Path) -> None:
    loaded = hotloop.load(old / "capture")
    assert loaded.warnings == () and loaded.processes[0].warnings == ()
    assert loaded.wall_ns == 559_724_068
    progress = loaded.progress
    assert (progress.env_steps, progress.updates, progress.episodes) == (1920, 60, 60)
    assert progress.mean_return == 29.5 and progress.mean_length == 32.0
    found = {node.name: (node.calls, node.total_ns) for node in loaded.tree.children}
    assert found["policy_forward"] == (240, 143_227_952)
    assert found["env_step"] == (240, 183_304_237)
    assert found["learner_forward"] == (60, 82_327_959)
    assert loaded.facts["lines"]["samples"] > 0


def test_an_export_of_0_1_loads_with_the_same_numbers(old: Path) -> None:
    exported, recorded = open_capture(str(old / "capture.export.json")), hotloop.load(old / "capture")
    assert exported.warnings == ()
    assert export.to_json(exported)["processes"] == export.to_json(recorded)["processes"]
    assert exported.facts == recorded.facts and exported.progress == recorded.progress


def test_an_export_with_fields_of_a_newer_hotloop_is_read_and_noted(old: Path, tmp_path: Path) -> None:
    data = export.to_json(hotloop.load(old / "capture"))
    data["hosts"] = {}
    data["processes"][0]["role"] = "learner"
    data["processes"][0]["threads"][0]["nodes"][0]["states"] = [1]
    read = export.from_json(data)
    assert read.warnings == (
        "skipped fields of this export that this hotloop does not know: hosts, node.states, process.role; "
        "update hotloop to see them",
    )
    assert read.progress.env_steps == 1920
