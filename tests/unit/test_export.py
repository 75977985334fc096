"""The one-file JSON export comes back unchanged, or names what is wrong."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop import Profiler
from hotloop._util.errors import CaptureError
from hotloop.capture import export, layout
from hotloop.capture.facts import Facts
from hotloop.capture.folder import RUNS
from hotloop.capture.model import (
    Capture,
    Event,
    Node,
    OpenRegion,
    Process,
    Progress,
    Thread,
    Windows,
)
from hotloop.capture.open_capture import open_capture
from hotloop.measure.core_choice import CoreName
from hotloop.testing import ProcessSpec, Spec, ThreadSpec, make_capture
from tests.edited import edit_json

whole = st.integers(0, 2**63 - 1)
words = st.text(max_size=12)
floats = st.floats(allow_nan=True, allow_infinity=True)
maybe = st.none() | st.integers(-(2**62), 2**62)
SCALARS = {int: whole, float: floats, str: words, bool: st.booleans()}
PROGRESS_NAMES = [field[0] for field in layout.PROGRESS]


@st.composite
def nodes(draw: st.DrawFn, depth: int = 3) -> Node:
    node = Node(
        draw(words),
        draw(words),
        draw(words),
        calls=draw(whole),
        total_ns=draw(whole),
        own_ns=draw(whole),
        open_calls=draw(whole),
        open_ns=draw(whole),
        min_ns=draw(maybe),
        max_ns=draw(maybe),
        squares=draw(floats),
        bytes_moved=draw(floats),
        flops=draw(floats),
        device_ns=draw(maybe),
        device_growth_bytes=draw(maybe),
        device_peak_bytes=draw(maybe),
        rss_growth_bytes=draw(maybe),
        rss_peak_bytes=draw(maybe),
        out_of_order=draw(st.booleans()),
    )
    if draw(st.booleans()):
        node.buckets = np.zeros(layout.BUCKETS, dtype=np.uint64)
        for bucket in draw(st.lists(st.integers(0, layout.BUCKETS - 1), max_size=4)):
            node.buckets[bucket] = draw(whole)
    if depth:
        node.children = draw(st.lists(nodes(depth - 1), max_size=2))
    return node


@st.composite
def windows(draw: st.DrawFn) -> Windows:
    count, width = draw(st.integers(0, 3)), draw(st.integers(0, 3))

    def column(*shape: int) -> Any:
        size = math.prod(shape)
        values = draw(st.lists(st.integers(0, 2**64 - 1), min_size=size, max_size=size))
        return np.array(values, dtype=np.uint64).reshape(shape)

    progress = {name: column(count) for name in PROGRESS_NAMES}
    for name in ("length_sum", "return_sum", "loss_sum"):
        progress[name] = np.array(draw(st.lists(floats, min_size=count, max_size=count)), dtype=np.float64)
    columns = [column(count) for _ in range(4)]
    tables = [column(count, width) for _ in range(3)]
    return Windows(*columns, progress, *tables)  # type: ignore[call-arg]


@st.composite
def threads(draw: st.DrawFn) -> Thread:
    progress: Any = [draw(SCALARS[type(f.default)]) for f in dataclasses.fields(Progress)]
    return Thread(
        name=draw(words),
        native_id=draw(whole),
        start_ns=draw(whole),
        end_ns=draw(whole),
        wall_ns=draw(whole),
        cpu_ns=draw(maybe),
        folded_threads=draw(whole),
        ended=draw(st.booleans()),
        progress=Progress(*progress),
        open=tuple(OpenRegion(draw(words), draw(whole)) for _ in range(draw(st.integers(0, 2)))),
        paths=tuple(tuple(path) for path in draw(st.lists(st.lists(words, max_size=3), max_size=3))),
        root=draw(nodes()),
        windows=draw(windows()),
        events=tuple(Event(1, draw(whole), draw(whole)) for _ in range(draw(st.integers(0, 2)))),
        uncertain=draw(st.booleans()),
    )


@st.composite
def captures(draw: st.DrawFn) -> Capture:
    processes = tuple(
        Process(
            host=draw(words),
            pid=draw(whole),
            parent_pid=draw(whole),
            label=draw(words),
            core=draw(words),
            start_ns=draw(whole),
            start_real_ns=draw(whole),
            end_ns=draw(whole),
            closed=draw(st.booleans()),
            alive=draw(st.booleans()),
            rss_bytes=draw(maybe),
            rss_peak_bytes=draw(maybe),
            threads=tuple(draw(st.lists(threads(), max_size=2))),
            warnings=tuple(draw(st.lists(words, max_size=2))),
        )
        for _ in range(draw(st.integers(0, 2)))
    )
    names = words.filter(lambda name: name not in Facts.__annotations__)  # those have types of their own
    values = st.none() | floats | words | st.lists(floats | words, max_size=2)
    facts = draw(st.dictionaries(names, values, max_size=3))
    return Capture(draw(st.none() | st.just(Path("runs/a"))), facts, processes, tuple(draw(st.lists(words))))


def same(a: Any, b: Any) -> bool:
    """Equal in every field and type, NaN equal to NaN, arrays with their dtype."""
    a, b = (v.item() if isinstance(v, np.generic) else v for v in (a, b))
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        nan = a.dtype.kind == "f"
        return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=nan)
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b) or (a != a and b != b)


@settings(max_examples=60, deadline=None)
@given(captures())
def test_an_exported_capture_comes_back_unchanged(capture: Capture) -> None:
    text = export.text(capture)
    assert same(export.from_json(json.loads(text, parse_constant=pytest.fail)), capture)


def recorded(core: CoreName) -> Capture:
    profiler = Profiler(core_name=core).start(timeline=True)
    with profiler.profile("train"):
        for step in range(40):
            with profiler.profile("env_step", "environment"):
                pass
            profiler.progress(env_steps=4, episodes=1, episode_return=float(step))
        capture = profiler.capture()
    profiler.stop()
    return capture


def test_a_real_recording_comes_back(core: CoreName) -> None:
    capture = recorded(core)
    back = export.from_json(json.loads(export.text(capture)))
    assert same(back, capture)
    assert back.threads[0].events and back.threads[0].open[0].name == "train"
    assert back.progress.env_steps == 160


def test_the_comparison_of_this_test_sees_a_difference() -> None:
    a, b = (make_capture({"env_step": Spec(10, 1000.0)}, env_steps=10) for _ in range(2))
    assert same(a, b)
    b.threads[0].root.children[0].calls += 1
    assert not same(a, b)


def test_one_node_to_a_line_and_small() -> None:
    names = {f"region {n}": Spec(500, 2000.0) for n in range(30)}
    capture = make_capture(names, env_steps=500, processes=[ProcessSpec([ThreadSpec(names)])])
    text = export.text(capture)
    assert sum('"name":"region 7"' in line for line in text.splitlines()) == 2
    assert len(text) < 250_000


def test_a_deep_tree_is_written_and_read() -> None:
    root = node = Node("")
    for depth in range(2000):
        node.children.append(Node(f"level {depth}"))
        node = node.children[0]
    made = make_capture({"a": Spec(1, 10.0)})
    thread = dataclasses.replace(made.threads[0], root=root)
    process = dataclasses.replace(made.processes[0], threads=(thread,))
    back = export.from_json(json.loads(export.text(dataclasses.replace(made, processes=(process,)))))
    node, depth = back.threads[0].root, 0
    while node.children:
        node, depth = node.children[0], depth + 1
    assert (node.name, depth) == ("level 1999", 2000)


# -- open_capture --------------------------------------------------------------------------------


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    file = tmp_path / "run.json"
    export.save_json(make_capture({"env_step": Spec(10, 1000.0)}, env_steps=10), file)
    return file


def test_an_export_opens_like_a_folder(exported: Path, tmp_path: Path) -> None:
    assert open_capture(str(exported)).progress.env_steps == 10
    assert open_capture(str(exported)).path == exported
    folder = tmp_path / "capture"
    profiler = Profiler(core_name="python").start(folder)
    with profiler.profile("env_step"):
        pass
    profiler.stop()
    for place in (folder, folder / "capture.json"):
        assert open_capture(str(place)).tree.children[0].name == "env_step"


def test_without_a_path_the_latest_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CaptureError, match="no capture in hotloop-runs"):
        open_capture(None)
    Profiler(core_name="python").start(RUNS / "one").stop()
    assert open_capture(None).path == RUNS / "one"


def changed(file: Path, **changes: Any) -> None:
    edit_json(file, changes)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda f: f.unlink(), "no such file or folder"),
        (lambda f: f.write_text(f.read_text()[: f.stat().st_size // 2]), "cut short"),
        (lambda f: f.write_text(""), "neither a folder nor a JSON export"),
        (lambda f: f.write_text("wall time 3 s"), "neither a folder nor a JSON export"),
        (lambda f: f.write_bytes(b"\xff\xfe\x00binary"), "neither a folder nor a JSON export"),
        (lambda f: f.write_bytes(layout.MAGIC + bytes(100)), "part of one process"),
        (lambda f: f.write_text("[1, 2]"), "not a hotloop capture"),
        (lambda f: f.write_text('{"a": 1,, "b": 2}'), "not valid JSON"),
        (lambda f: f.write_text('{"kind": "hotloop findings", "headline": "x"}'), "holds findings"),
        (lambda f: f.write_text('{"traceEvents": []}'), "trace for a viewer"),
        (lambda f: changed(f, schema_version=99), "schema version 99; this hotloop reads up to version 2"),
        (lambda f: changed(f, schema_version=None), "schema version None"),
        (lambda f: changed(f, processes=[{"pid": 1}]), "damaged"),
        (lambda f: changed(f, processes=7), "damaged"),
    ],
)
def test_unreadable_captures_name_the_reason(exported: Path, damage: Any, sentence: str) -> None:
    damage(exported)
    with pytest.raises(CaptureError, match=sentence) as problem:
        open_capture(str(exported))
    assert str(exported) in str(problem.value) and "\n" not in str(problem.value)


def test_a_folder_without_a_capture_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="is not a capture"):
        open_capture(str(tmp_path))


def test_a_node_before_its_parent_is_damage(exported: Path) -> None:
    data = json.loads(exported.read_text())
    data["processes"][0]["threads"][0]["nodes"][1]["parent"] = 5
    with pytest.raises(CaptureError, match="precedes its parent"):
        export.from_json(data)
