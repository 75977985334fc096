"""The speedscope export keeps the rules of the file format, and its widths are the own times."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotloop import Profiler
from hotloop.capture.model import Capture
from hotloop.measure.core_choice import CoreName
from hotloop.report.speedscope import speedscope_profile
from hotloop.testing import ProcessSpec, Spec, ThreadSpec, make_capture

RULES = json.loads((Path(__file__).parent.parent / "golden" / "speedscope_rules.json").read_text())


def faults(value: Any, rule: Any, where: str = "file") -> list[str]:
    """Every place where `value` breaks the rule, in words."""
    if isinstance(rule, str) and rule.startswith("list of "):
        if not isinstance(value, list):
            return [f"{where}: not a list"]
        return [f for i, item in enumerate(value) for f in faults(item, rule[8:], f"{where}[{i}]")]
    if rule == "number":
        fine = isinstance(value, (int, float)) and not isinstance(value, bool)
        return [] if fine else [f"{where}: not a number"]
    if rule == "text":
        return [] if isinstance(value, str) else [f"{where}: not text"]
    if isinstance(rule, str):
        return faults(value, RULES[rule], where)
    if not isinstance(value, dict):
        return [f"{where}: not an object"]
    for field, kinds in rule.get("one of", {}).items():
        if value.get(field) not in kinds:
            return [f"{where}.{field}: {value.get(field)!r}"]
        return faults(value, kinds[value[field]], where)
    found = [f"{where}: no {name}" for name in rule["needs"] if name not in value]
    kinds = rule["needs"] | rule.get("may", {})
    for name, kind in kinds.items():
        if name in value:
            found += faults(value[name], kind, f"{where}.{name}")
    for name, allowed in rule.get("values", {}).items():
        if value.get(name) not in allowed:
            found.append(f"{where}.{name}: {value.get(name)!r}")
    return found + meaning_faults(value, where)


def meaning_faults(value: dict[str, Any], where: str) -> list[str]:
    """What the schema cannot say: numbers in range, as many weights as samples, events that pair up."""
    found = []
    if "profiles" in value and "shared" in value:
        frames = len(value["shared"]["frames"])
        for p in value["profiles"]:
            used = [f for stack in p.get("samples", ()) for f in stack]
            used += [e["frame"] for e in p.get("events", ())]
            if any(f not in range(frames) for f in used):
                found.append(f"{where}: a frame that does not exist")
    if value.get("type") == "sampled":
        if len(value["samples"]) != len(value["weights"]):
            found.append(f"{where}: {len(value['samples'])} samples, {len(value['weights'])} weights")
        if value["endValue"] - value["startValue"] != sum(value["weights"]):
            found.append(f"{where}: weights do not add up")
    if value.get("type") == "evented":
        stack, last = [], value["startValue"]
        for event in value["events"]:
            if event["at"] < last:
                found.append(f"{where}: time runs backwards")
            last = event["at"]
            if event["type"] == "O":
                stack.append(event["frame"])
            elif not stack or stack.pop() != event["frame"]:
                found.append(f"{where}: a frame closed that was not on top")
        if stack or last > value["endValue"]:
            found.append(f"{where}: still open at the end")
    return found


def made() -> Capture:
    return make_capture(
        {
            "collect": Spec(10, 1e5, {"env_step": Spec(100, 2e4, site="/a/b.py:12"), "act": Spec(100, 1e4)}),
            "learn": Spec(10, 1e6, site="no line"),
        },
        env_steps=100,
        processes=[ProcessSpec([ThreadSpec({"env_step": Spec(50, 1e4)}), ThreadSpec({})], label="w\ud800")],
    )


def recorded(core: CoreName = "python") -> Capture:
    profiler = Profiler(core_name=core).start(timeline=True)
    for _ in range(20):
        with profiler.profile("outer"), profiler.profile("inner"), profiler.profile("leaf"):
            pass
        a, b = profiler.profile("first"), profiler.profile("second")
        a.__enter__()
        b.__enter__()
        a.__exit__(None, None, None)  # out of order
        b.__exit__(None, None, None)
    profiler.stop()
    return profiler.capture()


@pytest.mark.parametrize(
    "make", [made, recorded, lambda: Capture(None, {}, ())], ids=["made", "recorded", "empty"]
)
def test_the_file_keeps_the_rules(make: Callable[[], Capture]) -> None:
    file = json.loads(json.dumps(speedscope_profile(make()), allow_nan=False))
    assert faults(file, "file") == []


def test_the_checker_finds_faults() -> None:
    good = speedscope_profile(recorded())
    for damage in (
        lambda f: f.pop("shared"),
        lambda f: f.update({"$schema": "other"}),
        lambda f: f["profiles"][0].update(type="flame"),
        lambda f: f["profiles"][0]["weights"].append(5),
        lambda f: f["profiles"][0]["samples"][0].append(999),
        lambda f: f["profiles"][1]["events"].pop(),
        lambda f: f["profiles"][1]["events"].reverse(),
        lambda f: f["shared"]["frames"][0].pop("name"),
    ):
        bad = copy.deepcopy(good)
        damage(bad)
        assert faults(bad, "file"), damage


def test_widths_are_own_times_and_add_up_to_the_threads_time() -> None:
    capture = made()
    file = speedscope_profile(capture)
    names = [frame["name"] for frame in file["shared"]["frames"]]
    everything = file["profiles"][0]
    assert everything["endValue"] == sum(t.wall_ns for t in capture.threads)
    widths = {
        tuple(names[f] for f in stack): weight
        for stack, weight in zip(everything["samples"], everything["weights"], strict=True)
    }
    assert widths["collect", "env_step"] == 100 * 2e4
    assert widths["env_step",] == 50 * 1e4
    assert ("(unattributed)",) in widths


def test_places_become_file_and_line() -> None:
    frames = {
        (f["name"], f.get("file"), f.get("line")) for f in speedscope_profile(made())["shared"]["frames"]
    }
    assert ("env_step", "/a/b.py", 12) in frames
    assert ("learn", None, None) in frames


def test_a_timeline_gives_a_profile_in_order_of_time(core: CoreName) -> None:
    file = speedscope_profile(recorded(core))
    assert faults(file, "file") == []
    timed = file["profiles"][1]
    assert timed["type"] == "evented" and timed["name"].endswith("(timeline)")
    names = [file["shared"]["frames"][e["frame"]]["name"] for e in timed["events"] if e["type"] == "O"]
    assert names[:3] == ["outer", "inner", "leaf"]
    assert names.count("leaf") == 20
