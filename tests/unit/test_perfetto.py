"""The trace keeps the trace-event rules, whether it was recorded or rebuilt."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hotloop import Profiler
from hotloop.capture.model import Capture, Event, OpenRegion
from hotloop.capture.scheduling import ProcessScheduling
from hotloop.measure.core_choice import CoreName
from hotloop.report.perfetto import describe_trace, perfetto_trace
from hotloop.testing import ProcessSpec, Spec, ThreadSpec, make_capture
from hotloop.testing.fakes import FakeClock

TOLERANCE_US = 1e-3  # one nanosecond


def faults(data: dict[str, Any]) -> list[str]:
    """Every broken rule of the trace-event format, in words."""
    found = []
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    named: dict[str, set[Any]] = {"process_name": set(), "thread_name": set(), "thread_sort_index": set()}
    counters: dict[tuple[int, str], list[float]] = defaultdict(list)
    for number, event in enumerate(data["traceEvents"]):
        missing = [key for key in ("name", "ph", "pid", "tid") if key not in event]
        if missing or not isinstance(event["name"], str):
            found.append(f"{number}: no {missing or 'name'}")
            continue
        if not all(isinstance(event[key], int) for key in ("pid", "tid")):
            found.append(f"{number}: pid or tid is not a whole number")
        if event["ph"] == "M":
            kind, key = (int, "sort_index") if event["name"] == "thread_sort_index" else (str, "name")
            if not isinstance(event.get("args", {}).get(key), kind):
                found.append(f"{number}: a name without a name")
            named[event["name"]].add((event["pid"], event["tid"]))
        elif event["ph"] == "C":
            values = [event.get("ts"), *event.get("args", {}).values()]
            if len(values) != 2 or not all(isinstance(v, float) and 0 <= v < math.inf for v in values):
                found.append(f"{number}: counter {event['name']} is {values}")
            counters[event["pid"], event["name"]].append(event["ts"])
        elif event["ph"] == "X":
            ts, dur = event.get("ts"), event.get("dur")
            if not isinstance(event.get("cat"), str):
                found.append(f"{number}: no category")
            if not all(isinstance(v, (int, float)) and math.isfinite(v) and v >= 0 for v in (ts, dur)):
                found.append(f"{number}: ts {ts}, dur {dur}")
                continue
            tracks[event["pid"], event["tid"]].append((ts, ts + dur))
        else:
            found.append(f"{number}: phase {event['ph']!r}")
    found += [f"counter {key}: not in order of time" for key, at in counters.items() if at != sorted(at)]
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
    call = {"ph": "X", "pid": 1, "tid": 1, "name": "a", "cat": "other", "ts": 0.0, "dur": 10.0}
    counter = {"ph": "C", "pid": 1, "tid": 0, "name": "memory", "ts": 0.0, "args": {"MiB": 1.0}}
    assert faults({"traceEvents": [name, thread, call, counter]}) == []
    for bad in (
        [name, thread, call, call | {"ts": 5.0}],
        [name, thread, call | {"ts": -1.0}],
        [name, thread, call | {"ph": "?"}],
        [name, call],
        [name, counter | {"args": {}}],
        [name, counter | {"args": {"MiB": -1.0}}],
        [name, counter | {"ts": 2.0}, counter],
        [name, thread, call | {"ts": 20.0}, call],
        [name, thread, {"ph": "X", "pid": 1, "tid": 1}],
    ):
        assert faults({"traceEvents": bad}), bad


def test_a_recorded_trace_shows_the_calls_as_they_were(core: CoreName) -> None:
    capture = recorded(core)
    data = perfetto_trace(capture)
    assert faults(data) == []
    assert data["otherData"]["rebuilt"] is False
    events = slices(capture)
    assert sum(e["name"] == "env_step" for e in events) == 20
    last = next(e for e in reversed(events) if e["name"] == "env_step")
    thread = capture.threads[0]
    event = [e for e in thread.events if thread.paths[e.path][-1] == "env_step"][-1]
    assert last["dur"] == event.duration_ns / 1000
    assert last["ts"] == (event.start_ns - capture.processes[0].start_ns) / 1000
    assert last["args"]["path"] == "train > collect > env_step"
    assert last["cat"] == "environment"


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
    events = slices(replace(made_up, processes=(process,)))
    assert max(e["dur"] for e in events) == 0.9
    assert events[0]["args"]["open_s"] == 7200


def slices(capture: Capture, tid: int = 1) -> list[dict[str, Any]]:
    """Slices of one track of the first process."""
    rows = perfetto_trace(capture)["traceEvents"]
    return [e for e in rows if e["ph"] == "X" and (e["pid"], e["tid"]) == (capture.processes[0].pid, tid)]


def test_without_recorded_calls_each_window_is_rebuilt_and_the_trace_says_so() -> None:
    capture = made()
    data = perfetto_trace(capture)
    assert data["otherData"]["rebuilt"] is True
    assert "rebuilt from the totals of" in describe_trace(capture)
    names = [e["args"]["name"] for e in data["traceEvents"] if e["name"] == "thread_name"]
    assert names[0] == "MainThread: each window (rebuilt)"
    events = slices(capture)
    thread = capture.threads[0]
    for name, calls, total_ns in (("collect", 10, 10 * 1e5 + 100 * 3e4), ("env_step", 100, 100 * 2e4)):
        mine = [e for e in events if e["name"] == name]
        assert sum(e["args"]["calls"] for e in mine) == calls
        assert sum(e["dur"] for e in mine) == pytest.approx(total_ns / 1000, rel=0.02)
        assert all(e["args"]["rebuilt"] for e in mine)
    assert {e["cat"] for e in events if e["name"] == "env_step"} == {"environment"}
    assert max(e["ts"] + e["dur"] for e in events) <= (thread.end_ns - thread.start_ns) / 1000 + 1


def test_recorded_calls_and_rebuilt_windows_are_tracks_of_their_own() -> None:
    capture = recorded()
    data = perfetto_trace(capture)
    names = [e["args"]["name"] for e in data["traceEvents"] if e["name"] == "thread_name"]
    assert names == ["MainThread", "MainThread: each window (rebuilt)"]
    assert not any("rebuilt" in e["args"] for e in slices(capture))
    assert all(e["args"]["rebuilt"] for e in slices(capture, 2))
    # 20 times collect, env_step and first (second is closed out of order), and train
    assert re.search(r"shows \d+ calls as they happened", describe_trace(capture))


def test_processes_have_counters_over_the_whole_run() -> None:
    clock = FakeClock()
    profiler = Profiler(clock=clock, core_name="python").start()
    for _ in range(100):
        with profiler.profile("env_step"):
            clock.advance(75_000_000)
        profiler.progress(env_steps=3)
        clock.advance(25_000_000)
    capture = profiler.capture()
    profiler.stop()
    (process,) = capture.processes
    seconds = np.arange(1, 11, dtype=np.uint64) * np.uint64(10**9) + np.uint64(process.start_ns)
    used = (seconds - seconds[0]) // np.uint64(2) * np.uint64(3)
    none = np.zeros(10, np.uint64)
    scheduling = ProcessScheduling(seconds, none, none, used, None, None, none)
    capture = replace(capture, processes=(replace(process, scheduling=scheduling),))
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for event in perfetto_trace(capture)["traceEvents"]:
        if event["ph"] == "C":
            ((unit, value),) = event["args"].items()
            found[f"{event['name']} {unit}"].append((event["ts"], value))
    rates = [value for _, value in found["env steps per second"]]
    assert rates[-1] == 0 and np.median(rates) == pytest.approx(30, rel=0.05)
    assert found["env steps per second"][-1][0] == pytest.approx(10e6)
    assert np.median([value for _, value in found["time in environment %"]]) == pytest.approx(75, rel=0.05)
    assert [value for _, value in found["cores busy"]] == [0.0, *[1.5] * 9, 0.0]


def test_processes_with_the_same_number_on_two_hosts_stay_apart() -> None:
    capture = make_capture({"a": Spec(3, 10.0)})
    twin = replace(capture.processes[0], host="other")
    data = perfetto_trace(replace(capture, processes=(capture.processes[0], twin)))
    names = {e["pid"]: e["args"]["name"] for e in data["traceEvents"] if e["name"] == "process_name"}
    assert len(names) == 2 and any("other" in name for name in names.values())
