"""Reads what the sampler wrote: scheduling figures, samples of lines, and what belongs to them."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotloop._util.conform import conform
from hotloop.capture import layout
from hotloop.capture.channels import Channel
from hotloop.capture.model import Thread
from hotloop.capture.origin import Origin
from hotloop.capture.plausible import plausible_samples
from hotloop.capture.samples import (
    SAMPLE_DTYPE,
    Expression,
    FunctionSource,
    SampledFrame,
    SampledPath,
    Samples,
    Sampling,
)
from hotloop.capture.scheduling import ProcessScheduling, Scheduling, ThreadSettings
from hotloop.capture.sections import Section, Struct

RETRIES = 20
NO_SCHEDSTAT = "this system does not report how long threads waited for a core (/proc/self/task/*/schedstat)"


def _copy(shared: Struct) -> Struct:
    """A copy that no update fell into, if one of several attempts succeeds; else the last one."""
    for _ in range(RETRIES):
        seq = int(shared["seq"])
        copy = shared.copy()
        if seq % 2 == 0 and int(shared["seq"]) == seq:
            break
    return copy


def _counts(rows: NDArray[np.void], name: str) -> NDArray[np.uint64]:
    return rows[name].astype(np.uint64)


# -- scheduling ----------------------------------------------------------------------------------


def read_scheduling(sections: list[Section], number: int, native_id: int) -> Scheduling | None:
    """The scheduling figures of one thread; None when there are none."""
    for section in sections:
        if section.name != "scheduling" or section.owner != number:
            continue
        data = _copy(section.struct())
        known = int(data["known"])
        if not known or data["native_id"] != native_id:
            return None
        rows = data["rows"][: min(int(data["count"]), layout.MAX_SCHEDULING)]
        timed, switched = known & layout.KNOWN_SCHEDSTAT, known & layout.KNOWN_SWITCHES
        return Scheduling(
            time_ns=_counts(rows, "time_ns"),
            on_core_ns=_counts(rows, "on_core_ns") if timed else None,
            run_queue_ns=_counts(rows, "run_queue_ns") if timed else None,
            voluntary_switches=_counts(rows, "voluntary_switches") if switched else None,
            involuntary_switches=_counts(rows, "involuntary_switches") if switched else None,
        )
    return None


def read_process_scheduling(sections: list[Section], warnings: list[str]) -> ProcessScheduling | None:
    """The scheduling figures of the process; `warnings` gets a sentence when the system has none."""
    for section in sections:
        if section.name != "process_scheduling":
            continue
        data = _copy(section.struct())
        known = int(data["known"])
        rows = data["rows"][: min(int(data["count"]), layout.MAX_SCHEDULING)]
        if not len(rows):
            return None
        timed, python = known & layout.KNOWN_SCHEDSTAT, known & layout.KNOWN_PYTHON_THREADS
        if not timed:
            warnings.append(NO_SCHEDSTAT)
            return None
        return ProcessScheduling(
            time_ns=_counts(rows, "time_ns"),
            os_threads=_counts(rows, "os_threads"),
            python_threads=_counts(rows, "python_threads") if python else None,
            cpu_ns=_counts(rows, "cpu_ns"),
            native_on_core_ns=_counts(rows, "native_on_core_ns") if python else None,
            native_run_queue_ns=_counts(rows, "native_run_queue_ns") if python else None,
            hotloop_ns=_counts(rows, "hotloop_ns"),
        )
    return None


def read_settings(sections: list[Section]) -> tuple[ThreadSettings, ...]:
    """How many threads libraries were allowed to use, over time."""
    return tuple(_json_sections(sections, "thread_settings", ThreadSettings))


def read_origin(sections: list[Section]) -> Origin | None:
    """How the process came to be; None when that was not written."""
    found: list[Origin] = _json_sections(sections, "origin", Origin)
    return found[-1] if found else None


def read_channels(sections: list[Section]) -> tuple[Channel, ...]:
    """Ends of pipes and queues, each as it was written last."""
    found: dict[str, Channel] = {}
    for written in _json_sections(sections, "channels", list[Channel]):
        found |= {channel.name: channel for channel in written}
    return tuple(found.values())


def _json_sections(sections: list[Section], name: str, kind: Any) -> list[Any]:
    """The content of all JSON sections of a name, as `kind`; damaged ones are left out."""
    found = []
    for section in sections:
        if section.name == name:
            with contextlib.suppress(ValueError, RecursionError):
                found.append(conform(json.loads(section.payload.tobytes()), kind, name))
    return found


# -- samples -------------------------------------------------------------------------------------


def read_samples(
    sections: list[Section],
    place_of_thread: dict[int, int],
    nodes_of_thread: dict[int, NDArray[np.int64]],
    threads: list[Thread],
) -> dict[str, Any]:
    """`sampling`, `samples`, `paths` and `sources` of a process.

    `place_of_thread` maps numbers of threads in the part to their index in `threads`, `nodes_of_thread` has
    the node that stands for each node of the recording.
    """
    section = next((s for s in sections if s.name == "samples"), None)
    if section is None:
        return {}
    data = _copy(section.struct())
    if not data["method"]:
        return {}
    paths = _paths(data)
    names: dict[int, str] = {}
    for written in _json_sections(sections, "sampled_threads", dict[int, str]):
        names |= written
    return {
        "sampling": Sampling(
            method="native" if data["method"] == layout.SAMPLED_NATIVELY else "python-thread",
            interval_ns=int(data["interval_ns"]),
            moments=int(data["moments"]),
            cost_ns=int(data["cost_ns"]),
            unread=int(data["unread"]),
            thread_names=names,
        ),
        "samples": _with_nodes(
            plausible_samples(_rows(data, place_of_thread), len(paths), threads), nodes_of_thread
        ),
        "paths": paths,
        "sources": tuple(
            row for rows in _json_sections(sections, "sources", list[FunctionSource]) for row in rows
        ),
    }


def _with_nodes(samples: Samples, nodes_of_thread: dict[int, NDArray[np.int64]]) -> Samples:
    """The samples with the nodes that stand for those of the recording."""
    for place, stands_for in nodes_of_thread.items():
        if len(stands_for) and np.any(stands_for != np.arange(len(stands_for))):
            mine = samples["thread"] == place
            samples["node"][mine] = stands_for[samples["node"][mine]]
    return samples


def _rows(data: Struct, place_of_thread: dict[int, int]) -> NDArray[np.void]:
    rows = data["rows"][: min(int(data["count"]), layout.MAX_SAMPLES)]
    places = np.full(layout.NO_THREAD + 1, -1, dtype=np.int32)
    for number, place in place_of_thread.items():
        places[min(number, layout.NO_THREAD)] = place
    places[layout.NO_THREAD] = -1
    found = np.zeros(len(rows), dtype=SAMPLE_DTYPE)
    for name in ("time_ns", "native_id", "node", "state"):
        found[name] = rows[name]
    found["reason"] = rows["reason"] & ((1 << layout.GIL_SHIFT) - 1)
    found["gil"] = rows["reason"] >> layout.GIL_SHIFT
    found["weight_ns"] = rows["weight_us"].astype(np.uint64) * 1000
    found["thread"] = places[rows["thread"]]
    found["path"] = rows["path"]
    return found


def _paths(data: Struct) -> tuple[SampledPath, ...]:
    files = [
        (_text(row["name"], row["name_bytes"]), int(row["library_bytes"]))
        for row in data["files"][: min(int(data["file_count"]), layout.MAX_SAMPLED_FILES)]
    ]
    functions = []
    for row in data["functions"][: min(int(data["function_count"]), layout.MAX_SAMPLED_FUNCTIONS)]:
        file = files[row["file"]] if row["file"] < len(files) else ("", 0)
        functions.append((*file, _text(row["name"], row["name_bytes"]), int(row["first_line"])))
    found = [SampledPath((), other=True)]
    steps = data["paths"][: min(int(data["path_count"]), layout.MAX_SAMPLED_PATHS)].tolist()
    for parent, function, line, kind in steps[1:]:
        base = found[parent - 1] if 0 < parent <= len(found) else SampledPath(())
        if kind == layout.STEP_LEFT_OUT:
            found.append(SampledPath(base.frames, left_out=len(base.frames)))
            continue
        if kind == layout.STEP_EXPRESSION:
            found.append(_with_expression(base, function & 0xFFFF, line, function >> 16))
            continue
        if function >= len(functions):
            found.append(found[0])
            continue
        name, library_bytes, qualname, first_line = functions[function]
        if kind == layout.STEP_LINE:
            frames = (*base.frames, SampledFrame(name, qualname, first_line, line))
            found.append(SampledPath(frames, left_out=base.left_out))
        else:
            words = f"{module_name(name, library_bytes)}.{qualname}".removesuffix(".<module>")
            called = words if kind == layout.STEP_CALLED else base.called
            found.append(SampledPath(base.frames, called, words, base.left_out))
    return tuple(found)


def _with_expression(path: SampledPath, column: int, end_line: int, end_column: int) -> SampledPath:
    """The path with the expression that ran in its innermost line, if it makes sense there."""
    line = path.line.line if path.line else 0
    if not line or (end_line, end_column) < (line, column):
        return path
    return replace(path, expression=Expression(line, column, end_line, end_column))


def _text(field: NDArray[np.uint8], length: int) -> str:
    return field[:length].tobytes().decode("utf-8", "replace")


def module_name(file: str, library_bytes: int) -> str:
    """The module in a file of a library: `json.decoder` for <stdlib>/json/decoder.py."""
    if file.startswith("<"):
        return file.strip("<>").removeprefix("frozen ")
    inside = file.encode("utf-8")[library_bytes:].decode("utf-8", "replace").lstrip("/\\")
    for folder in ("site-packages/", "dist-packages/", "lib-dynload/"):
        inside = inside.rpartition(folder)[2]
    return inside.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
