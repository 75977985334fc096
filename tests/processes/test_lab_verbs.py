"""`hotloop scale`, `lab new` and `prove` with real processes, each from the words typed to the files left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotloop.capture.plan_file import read_plan
from hotloop.capture.series import read
from tests.processes.test_compare import environment, hotloop

# Every step sleeps longer than the one before: the time grows as the square of the steps.
GROWS = """
import sys, time
import hotloop
for step in range(int(sys.argv[1])):
    with hotloop.profile("store"):
        time.sleep(0.0002 * step)
    with hotloop.profile("env_step"):
        time.sleep(0.0005)
    hotloop.progress(env_steps=1)
"""

CHATTY = """
import argparse, time
import hotloop
parser = argparse.ArgumentParser()
parser.add_argument("--log-every", type=int, default=1)
args = parser.parse_args()
for step in range(60):
    with hotloop.profile("env_step"):
        time.sleep(0.001)
    if step % args.log_every == 0:
        with hotloop.profile("log"):
            time.sleep(0.006)
    hotloop.progress(env_steps=1)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(CHATTY)
    (tmp_path / "grows.py").write_text(GROWS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_growth_with_size_is_fitted_and_the_region_that_grows_is_named(project: Path) -> None:
    done = hotloop(
        "scale", "--sizes", "120,30,60", "--repeats", "2", "--series", "s", "--json",
        "--", sys.executable, "grows.py", "{n}",
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["sizes"] == [30.0, 60.0, 120.0] and found["runs"] == 6
    assert found["exponent"]["value"] > 1.2
    assert found["bender"] == "store"
    steps = {r.size: r.figures.env_steps for r in read(project / "s").runs}
    assert steps == {30: 30, 60: 60, 120: 120}
    again = hotloop("scale", "--series", "s", "--resume")
    assert "the region store bends the curve" in again.stdout
    assert len(read(project / "s").runs) == 6
    assert "no {n}" in hotloop("scale", "--", "true", code=2).stderr
    assert "whole numbers" in hotloop("scale", "--sizes", "few", "--", "true", "{n}", code=2).stderr


def test_a_recommendation_is_proven_and_the_proof_lies_in_the_capture(project: Path) -> None:
    env = environment() | {"HOTLOOP_CAPTURE": "one"}
    words = [sys.executable, "train.py"]
    subprocess.run(words, env=env, check=True, timeout=60, cwd=project)

    hotloop("lab", "new", "one", "-o", "plan.toml")
    assert read_plan(project / "plan.toml").baseline.command == tuple(words)
    assert "exists" in hotloop("lab", "new", "one", "-o", "plan.toml", code=2).stderr

    os.mkdir("elsewhere")
    os.chdir("elsewhere")  # the capture says where its command was run
    refused = hotloop("prove", "../one", "1", code=2)
    assert "needs a flag of your script" in refused.stderr
    done = hotloop("prove", "../one", "1", "--set", "log-every=100", "--budget", "30s", "--json")
    proof = json.loads((project / "one/proof-1.json").read_text())
    assert json.loads(done.stdout)["conclusion"] == proof["conclusion"]
    assert "measured " in proof["conclusion"]
    assert proof["verdict"]["word"] == "faster" and proof["work"] == []
    assert "has no recommendation 99" in hotloop("prove", "../one", "99", code=2).stderr
