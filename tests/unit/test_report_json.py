"""report.json: every field of the findings, null for what is unknown, a version to read it by."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np

from hotloop import Profiler
from hotloop.analysis.findings import Findings
from hotloop.capture import layout
from hotloop.cli import show
from hotloop.report.to_json import SCHEMA_VERSION, findings_json, plain
from tests.campaign.corpus import printed
from tests.golden import findings as golden


def test_every_field_is_there_and_survives_json() -> None:
    data = findings_json(golden.rich())
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert set(data) == {"kind", "schema_version", *(f.name for f in dataclasses.fields(Findings))}
    assert data["schema_version"] == SCHEMA_VERSION == 2


def test_numbers_are_the_findings_numbers() -> None:
    data = findings_json(golden.rich())
    assert data["breakdown"]["categories"][0] == {
        "category": "replay", "own_ns": 71_200_000_000, "share": 71.2 / 200, "calls": 1_223_040,
    }  # fmt: skip
    assert data["recommendations"][0]["gain"] == {"value": 1.38, "low": 1.34, "high": 1.42}
    assert data["regions"][2]["path"] == ["train_loop", "replay_push"]


def test_unknown_is_null_and_never_zero() -> None:
    data = findings_json(golden.bare())
    assert data["env_steps_per_s"] is None
    assert data["growth"] is None
    assert findings_json(golden.rich())["regions"][0]["device_ns"] is None


def test_values_that_json_cannot_hold_become_plain() -> None:
    assert plain((float("nan"), float("inf"), 1.5)) == [None, None, 1.5]
    assert plain({"n": np.float64(2.5), 3: np.int64(4)}) == {"n": 2.5, "3": 4}


def test_the_deepest_regions_there_can_be_are_shown(tmp_path: Path) -> None:
    profiler = Profiler().start(tmp_path / "deep")

    def call(left: int) -> None:
        with profiler.profile("deeper"):
            if left:
                call(left - 1)

    call(layout.MAX_DEPTH + 20)
    profiler.stop()
    seen = printed(lambda: show.run(show.Arguments(str(tmp_path / "deep"), json=True)), is_json=True)
    assert seen.code == 0 and "nested deeper than 256 regions" in seen.err
    region, depth = json.loads(seen.out)["tree"], 0
    while region["children"]:
        (region,) = region["children"]
        depth += 1
    assert depth == layout.MAX_DEPTH
