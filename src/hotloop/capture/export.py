"""A whole capture as one JSON file: to send, to keep, to read with other tools, and to read back exactly.

docs/exports.md describes the file. A tree is a flat list of nodes, root first, each with the index of its
parent; fields at their default are left out. Columns that never decrease (window times, calls, nanoseconds)
are written as differences from one window to the next. A float that JSON cannot hold is written as
{"$float": "nan"}. Fields that a newer hotloop has added are skipped with a warning.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop._util.errors import CaptureError
from hotloop._util.files import write_atomically
from hotloop.capture import layout
from hotloop.capture.model import Capture, Event, Node, OpenRegion, Process, Progress, Thread, Windows
from hotloop.capture.samples import SAMPLE_DTYPE, FunctionSource, SampledFrame, SampledPath, Sampling
from hotloop.capture.scheduling import ProcessScheduling, Scheduling, ThreadSettings

KIND = "hotloop-capture"
# Version history (bump on any change that an old reader would misread):
#   1  "format": "hotloop capture" (hotloop 0.1; still read)
#   2  "kind": "hotloop-capture"
SCHEMA_VERSION = 2
_FORMAT_1 = "hotloop capture"

_SAMPLED = ("scheduling", "thread_settings", "sampling", "samples", "paths", "sources")
_NESTED = {
    Node: {"children", "buckets"},
    Thread: {"progress", "open", "paths", "root", "windows", "events", "scheduling"},
    Process: {"threads", *_SAMPLED},
}
_ROW_KEYS = {
    Node: {"parent", "buckets"},
    Thread: {"progress", "open", "paths", "nodes", "windows", "events", "scheduling"},
    Process: {
        "threads",
        "scheduling",
        "thread_settings",
        "sampling",
        "samples",
        "frames",
        "paths",
        "sources",
    },
    Progress: set[str](),
}
_TOP_KEYS = {"kind", "format", "schema_version", "path", "facts", "warnings", "processes"}
_MATRICES = ("calls", "total_ns", "own_ns")
_COLUMNS = ("time_ns", "real_ns", "cpu_ns", "rss_bytes")
_FLOATS = {name for name, kind, *_ in layout.PROGRESS if kind == "f8"}


def save_json(capture: Capture, path: Path) -> None:
    """Write the export to `path` in one step, one node per line."""
    write_atomically(path, text(capture))


def text(capture: Capture) -> str:
    """The export as text: strict JSON, one node or column per line."""
    return "".join(_laid_out(to_json(capture), 6, "\n")) + "\n"


def to_json(capture: Capture) -> dict[str, Any]:
    """Everything in `capture` as plain values."""
    return {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "path": None if capture.path is None else str(capture.path),
        "facts": _plain(capture.facts),
        "warnings": list(capture.warnings),
        "processes": [
            _scalars(process)
            | {"threads": [_thread_out(thread) for thread in process.threads]}
            | _sampled_out(process)
            for process in capture.processes
        ],
    }


def from_json(data: Any) -> Capture:
    """The capture that `to_json` wrote; raises CaptureError for anything else."""
    if not isinstance(data, dict) or (data.get("kind") != KIND and data.get("format") != _FORMAT_1):
        raise CaptureError(_not_an_export(data))
    version = data.get("schema_version")
    if version not in range(1, SCHEMA_VERSION + 1):
        raise CaptureError(
            f"This export has schema version {version}; this hotloop reads up to version {SCHEMA_VERSION}: "
            "use the hotloop that wrote it, or update."
        )
    try:
        return Capture(
            path=None if data["path"] is None else Path(data["path"]),
            facts=_from_plain(data["facts"]),
            processes=tuple(_process_in(item) for item in data["processes"]),
            warnings=(*data["warnings"], *_describe_unknown(data)),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise CaptureError(
            f"This export is damaged ({type(error).__name__}: {error}); export the capture again."
        ) from error


def _not_an_export(data: Any) -> str:
    remedy = "name a capture folder or the one-file JSON export of one."
    if isinstance(data, dict):
        if "headline" in data or "findings" in data:
            return f"This file holds findings (the result of an analysis), not a capture; {remedy}"
        if "traceEvents" in data or "$schema" in data:
            return f"This file holds a trace for a viewer, not a capture; {remedy}"
    return f"This JSON file is not a hotloop capture; {remedy}"


# -- writing -------------------------------------------------------------------------------------


def _scalars(item: Any) -> dict[str, Any]:
    """The plain fields of a dataclass that differ from their default."""
    found = {}
    kind: Any = type(item)
    for name, default in _plain_fields(kind):
        value = getattr(item, name)
        if not _same(value, default):
            found[name] = value if type(value) in (int, str, bool) else _plain(value)
    return found


@cache
def _plain_fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Name and default (MISSING if there is none) of the fields that hold plain values."""
    nested = _NESTED.get(kind, set())
    return tuple((field.name, field.default) for field in fields(kind) if field.name not in nested)


def _same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))


def _plain(value: Any) -> Any:
    """The value in types that strict JSON can hold."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)


def _thread_out(thread: Thread) -> dict[str, Any]:
    return _scalars(thread) | {
        "progress": _scalars(thread.progress),
        "open": [[region.name, region.since_ns] for region in thread.open],
        "nodes": list(_nodes_out(thread.root)),
        "paths": [list(path) for path in thread.paths],
        "windows": _windows_out(thread.windows),
        "events": [[e.path, e.start_ns - thread.start_ns, e.duration_ns] for e in thread.events],
        **({} if thread.scheduling is None else {"scheduling": _scheduling_out(thread.scheduling)}),
    }


def _scheduling_out(found: Scheduling | ProcessScheduling) -> dict[str, Any]:
    columns = {name: getattr(found, name) for name in found.__slots__}
    return {name: None if column is None else _steps(column) for name, column in columns.items()}


def _sampled_out(process: Process) -> dict[str, Any]:
    """What the sampler found; frames are listed once, and paths refer to them."""
    found: dict[str, Any] = {}
    if process.scheduling is not None:
        found["scheduling"] = _scheduling_out(process.scheduling)
    if process.thread_settings:
        found["thread_settings"] = [[s.time_ns, _plain(s.values)] for s in process.thread_settings]
    if process.sampling is not None:
        found["sampling"] = {name: _plain(getattr(process.sampling, name)) for name in Sampling.__slots__}
        numbers: dict[SampledFrame, int] = {}
        found["paths"] = [
            [
                [numbers.setdefault(f, len(numbers)) for f in p.frames],
                p.called,
                p.innermost,
                p.left_out,
                p.other,
            ]
            for p in process.paths
        ]
        found["frames"] = [[f.file, f.function, f.first_line, f.line] for f in numbers]
        found["samples"] = {name: _steps(process.samples[name]) for name in SAMPLE_DTYPE.names or ()}
    if process.sources:
        found["sources"] = [[s.file, s.function, s.first_line, s.text, s.changed] for s in process.sources]
    return found


def _nodes_out(root: Node) -> Iterator[dict[str, Any]]:
    todo: list[tuple[Node, int | None]] = [(root, None)]
    number = 0
    while todo:
        node, parent = todo.pop()
        row = {"parent": parent} | _scalars(node)
        if node.buckets is not None:
            used = np.flatnonzero(node.buckets)
            row["buckets"] = {str(bucket): int(node.buckets[bucket]) for bucket in used}
        yield row
        todo += [(child, number) for child in reversed(node.children)]
        number += 1


def _windows_out(windows: Windows) -> dict[str, Any]:
    found: dict[str, Any] = {name: _steps(getattr(windows, name)) for name in _COLUMNS}
    found["progress"] = {
        name: _plain(column.tolist()) if name in _FLOATS else _steps(column)
        for name, column in windows.progress.items()
    }
    for name in _MATRICES:
        steps = _steps(getattr(windows, name))
        by_node = zip(*steps, strict=True) if steps else ([] for _ in range(getattr(windows, name).shape[1]))
        found[name] = [list(column) if any(column) else [] for column in by_node]
    return found


def _steps(values: NDArray[Any]) -> list[Any]:
    """First value, then differences modulo 2^64, so that every column can be restored exactly."""
    signed = np.asarray(values).astype(np.uint64).view(np.int64)
    first = np.zeros((1, *signed.shape[1:]), dtype=np.int64)
    steps: list[Any] = np.diff(signed, axis=0, prepend=first).tolist()
    return steps


def _laid_out(value: Any, depth: int, newline: str) -> Iterator[str]:
    """JSON text with one item per line in the outer `depth` levels."""
    if depth == 0 or not value or not isinstance(value, (dict, list)):
        yield json.dumps(value, allow_nan=False, separators=(",", ":"))
        return
    deeper = newline + " "
    is_dict = isinstance(value, dict)
    items = value.items() if isinstance(value, dict) else ((None, item) for item in value)
    yield "{" if is_dict else "["
    for number, (key, item) in enumerate(items):
        yield ("," if number else "") + deeper + (json.dumps(key) + ": " if is_dict else "")
        yield from _laid_out(item, depth - 1, deeper)
    yield newline + ("}" if is_dict else "]")


# -- reading -------------------------------------------------------------------------------------


def _from_plain(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"$float"}:
            return float(value["$float"])
        return {key: _from_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_from_plain(item) for item in value]
    return value


def _fields_in(kind: Any, row: dict[str, Any]) -> dict[str, Any]:
    """The plain fields of a dataclass that are in `row`."""
    found = {name: _from_plain(row[name]) for name, _ in _plain_fields(kind) if name in row}
    if "warnings" in found:
        found["warnings"] = tuple(found["warnings"])
    return found


def _process_in(row: dict[str, Any]) -> Process:
    return Process(
        threads=tuple(_thread_in(item) for item in row["threads"]),
        **_sampled_in(row),
        **_fields_in(Process, row),
    )


def _sampled_in(row: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "scheduling" in row:
        found["scheduling"] = ProcessScheduling(**_scheduling_in(row["scheduling"]))
    if "thread_settings" in row:
        found["thread_settings"] = tuple(
            ThreadSettings(time_ns, _from_plain(values)) for time_ns, values in row["thread_settings"]
        )
    if "sampling" in row:
        names = {int(number): name for number, name in row["sampling"]["thread_names"].items()}
        found["sampling"] = Sampling(**row["sampling"] | {"thread_names": names})
        frames = [SampledFrame(*frame) for frame in row["frames"]]
        found["paths"] = tuple(
            SampledPath(tuple(frames[number] for number in numbers), *rest) for numbers, *rest in row["paths"]
        )
        samples = np.zeros(len(row["samples"]["time_ns"]), dtype=SAMPLE_DTYPE)
        for name in SAMPLE_DTYPE.names or ():
            samples[name] = _sums(row["samples"][name]).astype(samples.dtype[name])
        found["samples"] = samples
    if "sources" in row:
        found["sources"] = tuple(FunctionSource(*source) for source in row["sources"])
    return found


def _scheduling_in(row: dict[str, Any]) -> dict[str, Any]:
    return {name: None if steps is None else _sums(steps) for name, steps in row.items()}


def _thread_in(row: dict[str, Any]) -> Thread:
    start_ns = row["start_ns"]
    return Thread(
        progress=Progress(**_fields_in(Progress, row["progress"])),
        open=tuple(OpenRegion(name, since_ns) for name, since_ns in row["open"]),
        paths=tuple(tuple(path) for path in row["paths"]),
        root=_tree_in(row["nodes"]),
        windows=_windows_in(row["windows"]),
        events=tuple(Event(path, after_ns + start_ns, ns) for path, after_ns, ns in row["events"]),
        scheduling=Scheduling(**_scheduling_in(row["scheduling"])) if "scheduling" in row else None,
        **_fields_in(Thread, row),
    )


def _tree_in(rows: list[dict[str, Any]]) -> Node:
    nodes: list[Node] = []
    for row in rows:
        node = Node(**_fields_in(Node, row))
        if "buckets" in row:
            node.buckets = np.zeros(layout.BUCKETS, dtype=np.uint64)
            for bucket, count in row["buckets"].items():
                node.buckets[int(bucket)] = count
        if nodes:
            if not 0 <= row["parent"] < len(nodes):
                raise ValueError(f"node {len(nodes)} precedes its parent {row['parent']}")
            nodes[row["parent"]].children.append(node)
        nodes.append(node)
    return nodes[0]


def _windows_in(row: dict[str, Any]) -> Windows:
    columns = {name: _sums(row[name]) for name in _COLUMNS}
    count = len(columns["time_ns"])
    matrices = {}
    for name in _MATRICES:
        matrices[name] = np.zeros((count, len(row[name])), dtype=np.uint64)
        for node, steps in enumerate(row[name]):
            if steps:
                matrices[name][:, node] = _sums(steps)
    progress: dict[str, NDArray[Any]] = {
        name: np.array(_from_plain(column), dtype=np.float64) if name in _FLOATS else _sums(column)
        for name, column in row["progress"].items()
    }
    return Windows(**columns, progress=progress, **matrices)


def _describe_unknown(data: dict[str, Any]) -> list[str]:
    """A warning that names the fields a newer hotloop has added, if there are any."""
    found = {str(key) for key in data.keys() - _TOP_KEYS}
    for process in data["processes"]:
        found |= _unknown(Process, process, "process")
        for thread in process["threads"]:
            found |= _unknown(Thread, thread, "thread")
            found |= _unknown(Progress, thread["progress"], "progress")
            for node in thread["nodes"]:
                found |= _unknown(Node, node, "node")
    if not found:
        return []
    names = ", ".join(sorted(found))
    return [
        f"skipped fields of this export that this hotloop does not know: {names}; update hotloop to see them"
    ]


def _unknown(kind: Any, row: dict[str, Any], what: str) -> set[str]:
    return {f"{what}.{key}" for key in row.keys() - _known_keys(kind)}


@cache
def _known_keys(kind: Any) -> frozenset[str]:
    return frozenset(name for name, _ in _plain_fields(kind)) | _ROW_KEYS[kind]


def _sums(steps: list[int]) -> NDArray[np.uint64]:
    return np.cumsum(np.array(steps, dtype=np.int64)).view(np.uint64)
