"""A whole capture as one JSON file: to send, to keep, to read with other tools, and to read back exactly.

docs/exports.md describes the file. A tree is a flat list of nodes, root first, each with the index of its
parent; fields at their default are left out. Columns that never decrease (window times, calls, nanoseconds)
are written as differences from one window to the next. A float that JSON cannot hold is written as
{"$float": "nan"}. Fields that a newer hotloop has added are skipped with a warning. A checksum of the content
finds damage, and numbers that another program has rounded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypedDict, get_type_hints

import numpy as np
from numpy.typing import NDArray

from hotloop._util.conform import Check, Misfit, check_of, conform
from hotloop._util.errors import CaptureError
from hotloop._util.files import write_atomically
from hotloop._util.read_files import CHECKSUM, checksum_of
from hotloop.capture import layout
from hotloop.capture.channels import Channel, ChannelUse
from hotloop.capture.facts import Facts
from hotloop.capture.model import (
    ROUND_DTYPE,
    Capture,
    Event,
    Node,
    OpenRegion,
    Process,
    Progress,
    Rounds,
    Thread,
    Windows,
    no_rounds,
)
from hotloop.capture.origin import Origin
from hotloop.capture.samples import (
    SAMPLE_DTYPE,
    Expression,
    FunctionSource,
    SampledFrame,
    SampledPath,
    Sampling,
)
from hotloop.capture.scheduling import ProcessScheduling, Scheduling, ThreadSettings

KIND = "hotloop-capture"
# Version history (bump on any change that an old reader would misread):
#   1  "format": "hotloop capture" (hotloop 0.1; still read)
#   2  "kind": "hotloop-capture"
SCHEMA_VERSION = 2
_FORMAT_1 = "hotloop capture"

_SAMPLED = (
    *("scheduling", "thread_settings", "sampling", "samples", "paths", "sources"),
    *("origin", "channels"),
)
_NESTED = {
    Node: {"children", "buckets"},
    Thread: {
        *("progress", "open", "paths", "root", "windows", "events", "scheduling", "rounds", "calls"),
        "channels",
    },
    Process: {"threads", *_SAMPLED},
}
_ROW_KEYS = {
    Node: {"parent", "buckets"},
    Thread: {
        *("progress", "open", "paths", "nodes", "windows", "events", "scheduling", "rounds", "calls"),
        "channels",
    },
    Process: {
        "threads",
        "scheduling",
        "thread_settings",
        "sampling",
        "samples",
        "frames",
        "expressions",
        "paths",
        "sources",
        "origin",
        "channels",
    },
    Progress: set[str](),
}
_TOP_KEYS = {"kind", "format", "schema_version", "path", "facts", "warnings", "processes", CHECKSUM}
_USES = ("time_ns", "calls", "total_ns")
_MATRICES = ("calls", "total_ns", "own_ns")
_COLUMNS = ("time_ns", "real_ns", "cpu_ns", "rss_bytes")
_FLOATS = {name for name, kind, *_ in layout.PROGRESS if kind == "f8"}


def save_json(capture: Capture, path: Path) -> None:
    """Write the export to `path` in one step, one node per line."""
    write_atomically(path, text(capture))


def text(capture: Capture) -> str:
    """The export as text: strict JSON, one node or column per line, with a checksum."""
    data = to_json(capture)
    return "".join(_laid_out(data | {CHECKSUM: checksum_of(data)}, 6, "\n")) + "\n"


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


def check_kind(data: Any) -> None:
    """Raise CaptureError for JSON that is no export, or one of a newer version."""
    if not isinstance(data, dict) or (data.get("kind") != KIND and data.get("format") != _FORMAT_1):
        raise CaptureError(_not_an_export(data))
    version = data.get("schema_version")
    if type(version) is not int or not 1 <= version <= SCHEMA_VERSION:
        raise CaptureError(
            f"This export has schema version {version!r}; this hotloop reads up to version {SCHEMA_VERSION}: "
            "use the hotloop that wrote it, or update."
        )


def from_json(data: Any) -> Capture:
    """The capture that `to_json` wrote; raises CaptureError for anything else."""
    check_kind(data)
    try:
        document: dict[str, Any] = conform(data, _Export, "the export")
        processes = tuple(_process_in(row, f"process {at}") for at, row in enumerate(document["processes"]))
        return Capture(
            path=document["path"],
            facts=conform(_from_plain(document["facts"]), Facts, "facts"),
            processes=processes,
            warnings=(*document["warnings"], *_describe_unknown(data)),
        )
    except Misfit as misfit:
        raise CaptureError(f"This export is damaged ({misfit}); export the capture again.") from None


class _Export(TypedDict):
    path: Path | None
    facts: dict[str, Any]
    warnings: list[str]
    processes: list[dict[str, Any]]


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
        **({"rounds": _rounds_out(thread.rounds)} if len(thread.rounds) else {}),
        **({"calls": _rounds_out(thread.calls)} if len(thread.calls) else {}),
        **({"channels": [_use_out(use) for use in thread.channels]} if thread.channels else {}),
    }


def _rounds_out(rounds: Rounds) -> dict[str, Any]:
    return {name: _steps(rounds[name]) for name in ROUND_DTYPE.names or ()}


def _use_out(use: ChannelUse) -> list[Any]:
    return [use.name, use.way, *(_steps(getattr(use, name)) for name in _USES), _plain(use.message_bytes)]


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
        found["expressions"] = [p.expression and list(p.expression) for p in process.paths]
        found["frames"] = [[f.file, f.function, f.first_line, f.line] for f in numbers]
        found["samples"] = {name: _steps(process.samples[name]) for name in SAMPLE_DTYPE.names or ()}
    if process.origin is not None:
        found["origin"] = {name: getattr(process.origin, name) for name in Origin.__slots__}
    if process.channels:
        found["channels"] = [
            {name: getattr(channel, name) for name in Channel.__slots__} for channel in process.channels
        ]
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
            if value["$float"] not in ("nan", "inf", "-inf"):
                raise Misfit(f"$float is {value['$float']!r}, not nan, inf or -inf")
            return float(value["$float"])
        return {key: _from_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_from_plain(item) for item in value]
    return value


def _fields_in(kind: Any, row: dict[str, Any], where: str) -> dict[str, Any]:
    """The plain fields of a dataclass that are in `row`."""
    checks, required = _field_checks(kind)
    for name in required:
        if name not in row:
            raise Misfit(f"{where} has no {name!r}")
    return {
        name: check(_from_plain(row[name]), f"{where}.{name}")
        for name, check in checks.items()
        if name in row
    }


@cache
def _field_checks(kind: Any) -> tuple[dict[str, Check], tuple[str, ...]]:
    """How each plain field is checked, and which fields must be there."""
    hints = get_type_hints(kind)
    plain = dict(_plain_fields(kind))
    return (
        {name: check_of(hints[name]) for name in plain},
        tuple(name for name, default in plain.items() if default is MISSING and name != "warnings"),
    )


def _take(row: dict[str, Any], name: str, kind: Any, where: str) -> Any:
    if name not in row:
        raise Misfit(f"{where} has no {name!r}")
    return conform(row[name], kind, f"{where}.{name}")


def _process_in(row: dict[str, Any], where: str) -> Process:
    rows = _take(row, "threads", list[dict[str, Any]], where)
    threads = tuple(_thread_in(item, f"{where}, thread {at}") for at, item in enumerate(rows))
    return Process(threads=threads, **_sampled_in(row, where), **_fields_in(Process, row, where))


def _sampled_in(row: dict[str, Any], where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "scheduling" in row:
        found["scheduling"] = _scheduling_in(ProcessScheduling, row, where)
    if "thread_settings" in row:
        settings = _take(row, "thread_settings", list[tuple[int, dict[str, Any]]], where)
        found["thread_settings"] = tuple(
            ThreadSettings(time_ns, _from_plain(values)) for time_ns, values in settings
        )
    if "sampling" in row:
        found["sampling"] = _take(row, "sampling", Sampling, where)
        frames = [
            SampledFrame(*frame) for frame in _take(row, "frames", list[tuple[str, str, int, int]], where)
        ]
        paths = _take(row, "paths", list[tuple[list[int], str, str, int | None, bool]], where)
        found["paths"] = _paths_in(paths, frames, row, where)
        columns = _take(row, "samples", dict[str, list[int]], where)
        samples = np.zeros(len(columns.get("time_ns", ())), dtype=SAMPLE_DTYPE)
        for name in SAMPLE_DTYPE.names or ():
            if name in ("reason", "gil") and name not in columns:
                continue  # an export of an earlier version
            column = _sums(columns.get(name, []), f"{where}.samples.{name}")
            if column.shape != samples.shape:
                raise Misfit(f"{where}.samples.{name} has {len(column)} values, not {len(samples)}")
            samples[name] = column.astype(samples.dtype[name])
        found["samples"] = samples
    if "origin" in row:
        found["origin"] = _take(row, "origin", Origin, where)
    if "channels" in row:
        found["channels"] = tuple(_take(row, "channels", list[Channel], where))
    if "sources" in row:
        sources = _take(row, "sources", list[tuple[str, str, int, str, bool]], where)
        found["sources"] = tuple(FunctionSource(*source) for source in sources)
    return found


def _paths_in(
    paths: list[tuple[list[int], str, str, int | None, bool]],
    frames: list[SampledFrame],
    row: dict[str, Any],
    where: str,
) -> tuple[SampledPath, ...]:
    """Paths and, since they are recorded, the expressions that ran in their innermost lines."""
    expressions: list[list[int] | None] = [None] * len(paths)
    if "expressions" in row:
        expressions = _take(row, "expressions", list[list[int] | None], where)
        if len(expressions) != len(paths) or any(len(one) != 4 for one in expressions if one is not None):
            raise Misfit(f"{where}.expressions does not have four numbers or null for each of its paths")
    found = []
    for (numbers, called, innermost, left_out, other), place in zip(paths, expressions, strict=True):
        if not all(0 <= number < len(frames) for number in numbers):
            raise Misfit(f"{where}.paths refers to frames that are not there")
        expression = Expression(*place) if place is not None else None
        stack = tuple(frames[number] for number in numbers)
        found.append(SampledPath(stack, called, innermost, left_out, other, expression))
    return tuple(found)


def _scheduling_in(kind: Any, row: dict[str, Any], where: str) -> Any:
    columns = _take(row, "scheduling", dict[str, list[int] | None], where)
    if columns.keys() != set(kind.__slots__) or columns["time_ns"] is None:
        raise Misfit(f"{where}.scheduling has {', '.join(columns)}, not {', '.join(kind.__slots__)}")
    return kind(
        **{
            name: None if steps is None else _sums(steps, f"{where}.scheduling.{name}")
            for name, steps in columns.items()
        }
    )


def _thread_in(row: dict[str, Any], where: str) -> Thread:
    fields = _fields_in(Thread, row, where)
    paths = tuple(map(tuple, _take(row, "paths", list[list[str]], where)))
    events = _take(row, "events", list[tuple[int, int, int]], where)
    return Thread(
        progress=Progress(
            **_fields_in(Progress, _take(row, "progress", dict[str, Any], where), f"{where}.progress")
        ),
        open=tuple(OpenRegion(*region) for region in _take(row, "open", list[tuple[str, int]], where)),
        paths=paths,
        root=_tree_in(_take(row, "nodes", list[dict[str, Any]], where), where),
        windows=_windows_in(_take(row, "windows", dict[str, Any], where), f"{where}.windows"),
        events=tuple(Event(path, after_ns + fields["start_ns"], ns) for path, after_ns, ns in events),
        scheduling=_scheduling_in(Scheduling, row, where) if "scheduling" in row else None,
        rounds=_rounds_in(row, "rounds", len(paths), where),
        calls=_rounds_in(row, "calls", len(paths), where),
        channels=_uses_in(row, where) if "channels" in row else (),
        **fields,
    )


def _rounds_in(row: dict[str, Any], field: str, paths: int, where: str) -> Rounds:
    if field not in row:
        return no_rounds()
    where = f"{where}.{field}"
    columns = conform(row[field], dict[str, list[int]], where)
    read = {name: _sums(columns.get(name, []), f"{where}.{name}") for name in ROUND_DTYPE.names or ()}
    if len({len(column) for column in read.values()}) > 1 or np.any(read["path"] >= paths):
        raise Misfit(f"{where} makes no sense")
    found = np.zeros(len(read["path"]), dtype=ROUND_DTYPE)
    for name, column in read.items():
        found[name] = column.astype(found.dtype[name])
    return found


def _uses_in(row: dict[str, Any], where: str) -> tuple[ChannelUse, ...]:
    kind = list[tuple[str, Literal["send", "receive"], list[int], list[int], list[int], float | None]]
    found = []
    for name, way, *steps, size in _take(row, "channels", kind, where):
        columns = [_sums(column, f"{where}.channels") for column in steps]
        if len({len(column) for column in columns}) > 1:
            raise Misfit(f"{where}.channels has columns of different length")
        time_ns, calls, total_ns = columns
        found.append(ChannelUse(name, way, time_ns, calls, total_ns, size))
    return tuple(found)


def _tree_in(rows: list[dict[str, Any]], where: str) -> Node:
    nodes: list[Node] = []
    for row in rows:
        here = f"{where}, node {len(nodes)}"
        node = Node(**_fields_in(Node, row, here))
        if "buckets" in row:
            node.buckets = np.zeros(layout.BUCKETS, dtype=np.uint64)
            for bucket, count in _take(row, "buckets", dict[int, int], here).items():
                if not (bucket < layout.BUCKETS and count >= 0):
                    raise Misfit(f"{here}.buckets.{bucket} is {count}")
                node.buckets[bucket] = count
        if nodes:
            parent = _take(row, "parent", int, here)
            if not 0 <= parent < len(nodes):
                raise Misfit(f"{here} precedes its parent {parent}")
            nodes[parent].children.append(node)
        nodes.append(node)
    if not nodes:
        raise Misfit(f"{where} has no nodes")
    return nodes[0]


def _windows_in(row: dict[str, Any], where: str) -> Windows:
    columns = {name: _sums(_take(row, name, list[int], where), f"{where}.{name}") for name in _COLUMNS}
    count = len(columns["time_ns"])
    matrices = {}
    for name in _MATRICES:
        given = _take(row, name, list[list[int]], where)
        matrices[name] = np.zeros((count, len(given)), dtype=np.uint64)
        for node, steps in enumerate(given):
            if steps and len(steps) != count:
                raise Misfit(f"{where}.{name}[{node}] has {len(steps)} values, not {count}")
            if steps:
                matrices[name][:, node] = _sums(steps, f"{where}.{name}[{node}]")
    progress: dict[str, NDArray[Any]] = {}
    for name, column in _take(row, "progress", dict[str, list[Any]], where).items():
        here = f"{where}.progress.{name}"
        progress[name] = (
            np.array(conform(_from_plain(column), list[float], here), dtype=np.float64)
            if name in _FLOATS
            else _sums(conform(column, list[int], here), here)
        )
    if progress.keys() != {field[0] for field in layout.PROGRESS}:
        raise Misfit(f"{where}.progress has {', '.join(progress)}")
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


def _sums(steps: list[int], where: str) -> NDArray[np.uint64]:
    try:
        return np.cumsum(np.array(steps, dtype=np.int64)).view(np.uint64)
    except OverflowError:
        raise Misfit(f"{where} has a number of more than 64 bits") from None
