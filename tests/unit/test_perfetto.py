"""The trace keeps the trace-event rules, whether it was recorded or rebuilt."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hotloop import Profiler
from hotloop.capture.model import Capture, Event, OpenRegion
from hotloop.measure.core_choice import CoreName
from hotloop.report.perfetto import perfetto_trace
from hotloop.testing import ProcessSpec, Spec, ThreadSpec, make_capture

TOLERANCE_US = 1e-3  # one nanosecond


def faults(data: dict[str, Any]) -> list[str]:
    """Every broken rule of the trace-event format, in words."""
    found = []
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    named: dict[str, set[Any]] = {"process_name": set(), "thread_name": set()}
    for number, event in enumerate(data["traceEvents"]):
        missing = [key for key in ("name", "ph", "pid", "tid") if key not in event]
        if missing or not isinstance(event["name"], str):
            found.append(f"{number}: no {missing or 'name'}")
            continue
        if not all(isinstance(event[key], int) for key in ("pid", "tid")):
            found.append(f"{number}: pid or tid is not a whole number")
        if event["ph"] == "M":
            if not isinstance(event.get("args", {}).get("name"), str):
                found.append(f"{number}: a name without a name")
            named[event["name"]].add((event["pid"], event["tid"]))
        elif event["ph"] == "X":
            ts, dur = event.get("ts"), event.get("dur")
            if not all(isinstance(v, (int, float)) and math.isfinite(v) and v >= 0 for v in (ts, dur)):
                found.append(f"{number}: ts {ts}, dur {dur}")
                continue
            tracks[event["pid"], event["tid"]].append((ts, ts + dur))
        else:
            found.append(f"{number}: phase {event['ph']!r}")
    for track, spans in tracks.items():
        if track not in named["thread_name"] or (track[0], 0) not in named["process_name"]:
            found.append(f"track {track} has no name")
        open_ends: list[float] = []
        for start, end in spans:  # in the order of the file: that is how viewers break ties
            while open_ends and open_ends[-1] <= start + TOLERANCE_US:
                open_ends.pop()
            if open_ends and end > open_ends[-1] + TOLERANCE_US:
                found.append(
                    f"track {track}: [{start}, {end}] sticks out of a call that ends {open_ends[-1]}"
                )
            open_ends.append(end)
        if spans != sorted(spans, key=lambda span: span[0]):
            found.append(f"track {track}: not in order of time")
    return found


def made() -> Capture:
    return make_capture(
        {
            "collect": Spec(10, 1e5, {"env_step": Spec(100, 2e4), "act": Spec(100, 1e4)}),
            "learn": Spec(25, 1e6, {"\ud800<b>": Spec(25, 7.0)}),
        },
        env_steps=100,
        updates=25,
        processes=[ProcessSpec([ThreadSpec({"env_step": Spec(50, 1e4)}), ThreadSpec({})])],
    )


def recorded(core: CoreName = "python", still_open: bool = False) -> Capture:
    profiler = Profiler(core_name=core).start(timeline=True)
    outer = profiler.profile("train")
    outer.__enter__()
    for _ in range(20):
        with profiler.profile("collect"), profiler.profile("env_step"):
            pass
        first, second = profiler.profile("first"), profiler.profile("second")
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        second.__exit__(None, None, None)
    capture = profiler.capture()
    if not still_open:
        outer.__exit__(None, None, None)
    profiler.stop()
    return capture if still_open else profiler.capture()


@pytest.mark.parametrize(
    "make",
    [made, recorded, lambda: recorded(still_open=True), lambda: Capture(None, {}, ())],
    ids=["rebuilt", "recorded", "open", "empty"],
)
def test_the_trace_keeps_the_rules(make: Callable[[], Capture]) -> None:
    assert faults(json.loads(json.dumps(perfetto_trace(make()), allow_nan=False))) == []


def test_the_checker_finds_faults() -> None:
    name = {"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": "p"}}
    thread = name | {"tid": 1, "name": "thread_name"}
    call = {"ph": "X", "pid": 1, "tid": 1, "name": "a", "ts": 0.0, "dur": 10.0}
    assert faults({"traceEvents": [name, thread, call]}) == []
    for bad in (
        [name, thread, call, call | {"ts": 5.0}],
        [name, thread, call | {"ts": -1.0}],
        [name, thread, call | {"ph": "?"}],
        [name, call],
        [name, thread, call | {"ts": 20.0}, call],
        [name, thread, {"ph": "X", "pid": 1, "tid": 1}],
    ):
        assert faults({"traceEvents": bad}), bad


def test_a_recorded_trace_shows_the_calls_as_they_were(core: CoreName) -> None:
    capture = recorded(core)
    data = perfetto_trace(capture)
    assert faults(data) == []
    assert data["otherData"]["rebuilt"] is False
    events = [e for e in data["traceEvents"] if e["ph"] == "X"]
    assert sum(e["name"] == "env_step" for e in events) == 20
    last = next(e for e in reversed(events) if e["name"] == "env_step")
    thread = capture.threads[0]
    event = [e for e in thread.events if thread.paths[e.path][-1] == "env_step"][-1]
    assert last["dur"] == event.duration_ns / 1000
    assert last["ts"] == (event.start_ns - capture.processes[0].start_ns) / 1000
    assert last["args"]["path"] == "train > collect > env_step"


def test_an_open_region_is_drawn_up_to_the_moment_of_reading() -> None:
    events = [e for e in perfetto_trace(recorded(still_open=True))["traceEvents"] if e["ph"] == "X"]
    assert events[0]["name"] == "train" and events[0]["args"]["still open"] is True


def test_a_region_open_for_hours_does_not_stretch_the_trace() -> None:
    made_up = make_capture({"train": Spec(0, 0.0, open_for_ns=7200 * 10**9)})
    thread = made_up.threads[0]
    end = thread.end_ns
    thread = replace(
        thread, events=(Event(1, end - 900, 500),), open=(OpenRegion("train", end - 7200 * 10**9),)
    )
    process = replace(made_up.processes[0], threads=(thread,))
    events = [
        e for e in perfetto_trace(replace(made_up, processes=(process,)))["traceEvents"] if e["ph"] == "X"
    ]
    assert max(e["dur"] for e in events) == 0.9
    assert events[0]["args"]["open_s"] == 7200


def test_a_rebuilt_trace_says_so_and_is_one_mean_iteration() -> None:
    data = perfetto_trace(made())
    assert data["otherData"]["rebuilt"] is True and data["otherData"]["iteration"] == "update"
    events = {e["name"]: e for e in data["traceEvents"] if e["ph"] == "X" and e["pid"] == 4000}
    assert "one typical update (rebuilt)" in events
    step = events["env_step 4x"]  # 100 calls, 25 updates
    assert step["dur"] == pytest.approx(4 * 20.0)
    assert step["args"] == {"rebuilt": True, "calls_per_iteration": 4.0, "mean_ns": 20_000.0}
    assert events["learn 1x"]["ts"] == pytest.approx(events["collect 0.4x"]["dur"])


@pytest.mark.parametrize(
    ("progress", "regions", "unit"),
    [
        ({"env_steps": 7}, {"a": Spec(3, 10.0)}, "env step"),
        ({}, {"main": Spec(1, 10.0, {"loop": Spec(30, 100.0)})}, "call of loop"),
        ({}, {"main": Spec(1, 10.0)}, "run"),
    ],
)
def test_without_updates_an_iteration_is_the_next_best_thing(
    progress: dict[str, Any], regions: dict[str, Spec], unit: str
) -> None:
    assert perfetto_trace(make_capture(regions, **progress))["otherData"]["iteration"] == unit


def test_processes_with_the_same_number_on_two_hosts_stay_apart() -> None:
    capture = make_capture({"a": Spec(3, 10.0)})
    twin = replace(capture.processes[0], host="other")
    data = perfetto_trace(replace(capture, processes=(capture.processes[0], twin)))
    names = {e["pid"]: e["args"]["name"] for e in data["traceEvents"] if e["name"] == "process_name"}
    assert len(names) == 2 and any("other" in name for name in names.values())
