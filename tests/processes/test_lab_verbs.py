"""`hotloop scale`, `lab new` and `prove` with real processes, from the command line to the files written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotloop.analysis.findings import Estimate
from hotloop.capture.plan import Plan, Variant
from hotloop.capture.plan_file import read_plan
from hotloop.capture.series import Run, Series, read
from hotloop.workflows.prove import conclude, cut_by_budget
from tests.processes.test_compare import environment, hotloop

# Every step sleeps longer than the one before: the time grows as the square of the steps. The sleeps are
# long, so that what a busy machine adds to each of them does not hide it.
GROWS = """
import sys, time
import hotloop
for step in range(int(sys.argv[1])):
    with hotloop.profile("store"):
        time.sleep(0.001 * step)
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


@pytest.mark.long
def test_growth_with_size_is_fitted_and_the_region_that_grows_is_named(project: Path) -> None:
    done = hotloop(
        "scale", "--sizes", "48,12,24", "--repeats", "4", "--series", "s", "--json",
        "--", sys.executable, "grows.py", "{n}",
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["sizes"] == [12.0, 24.0, 48.0] and found["runs"] == 12
    assert found["exponent"]["value"] > 1.2
    assert found["bender"] == "store"
    steps = {r.size: r.figures.env_steps for r in read(project / "s").runs}
    assert steps == {12: 12, 24: 24, 48: 48}
    again = hotloop("scale", "--series", "s", "--resume")
    assert "the region store bends the curve" in again.stdout
    assert len(read(project / "s").runs) == 12
    assert "no {n}" in hotloop("scale", "--", "true", code=2).stderr
    assert "whole numbers" in hotloop("scale", "--sizes", "few", "--", "true", "{n}", code=2).stderr


def test_a_recommendation_is_proven_and_the_proof_is_saved_in_the_capture(project: Path) -> None:
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


# Stores transitions one by one until the user edits it: `ONE_BY_ONE = False`.
STORES = """
import time
import hotloop
ONE_BY_ONE = True
for step in range(50):
    with hotloop.profile("policy_forward"):
        time.sleep(0.0003)
    with hotloop.profile("env_step"):
        time.sleep(0.0005)
    for _ in range(16 if ONE_BY_ONE else 1):
        with hotloop.profile("replay_push"):
            time.sleep(0.0005)
    hotloop.progress(env_steps=16)
"""


def git(*words: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    return subprocess.run(["git", *who, *words], check=True, capture_output=True, text=True).stdout


def record(folder: Path, *words: str) -> None:
    env = environment() | {"HOTLOOP_CAPTURE": "one"}
    subprocess.run([sys.executable, *words], env=env, check=True, timeout=60, cwd=folder)


@pytest.mark.long
def test_a_flag_of_the_recorded_command_is_offered_and_proven(project: Path) -> None:
    record(project, "train.py", "--log-every", "1")
    shown = json.loads(hotloop("report", "one", "--json").stdout)["recommendations"][0]
    assert shown["name"] == "logging_too_often" and shown["prove_command"] == "hotloop prove one 1"
    done = hotloop("prove", "one", "1", "--budget", "30s", "--json")
    assert json.loads(done.stdout)["measured"]["low"] > 1
    changed = read(next(Path("hotloop-runs").glob("*prove-1"))).plan.variants[1]
    assert changed.overrides == ("--log-every=100",)


@pytest.mark.long
def test_an_edit_is_proven_against_the_commit_before_it(project: Path) -> None:
    (project / "stores.py").write_text(STORES)
    git("init")
    git("add", "stores.py")
    git("commit", "-m", "before")
    record(project, str(project / "stores.py"))
    shown = json.loads(hotloop("report", "one", "--json").stdout)["recommendations"][0]
    assert shown["name"] == "replay_item_by_item"
    assert shown["prove_command"] == "make the change, then run: hotloop prove one 1 --rev"
    assert "make it, then run: hotloop prove one 1 --rev" in hotloop("prove", "one", "1", code=2).stderr
    assert "has changed since HEAD" in hotloop("prove", "one", "1", "--rev", code=2).stderr

    (project / "stores.py").write_text(STORES.replace("ONE_BY_ONE = True", "ONE_BY_ONE = False"))
    before = json.loads(hotloop("prove", "one", "1", "--rev", "--budget", "30s", "--json").stdout)
    assert before["measured"]["low"] > 1
    git("commit", "-am", "after")
    committed = json.loads(hotloop("prove", "one", "1", "--rev", "--budget", "30s", "--json").stdout)
    assert committed["measured"]["low"] > 1
    assert len(git("worktree", "list").splitlines()) == 1


@pytest.mark.parametrize(
    ("measured", "says"),
    [
        (
            Estimate(1.3, 1.15, 1.4),
            "As predicted, within the intervals: predicted 1.20x ",
        ),
        (Estimate(1.6, 1.5, 1.7), "More than predicted: "),
        (Estimate(1.02, 0.99, 1.05), "Less than predicted: "),
        (Estimate(1.4, 0.9, 2.6), "Undecided: predicted 1.20x [1.10, 1.30], measured 1.40x [0.90, 2.60]; "),
        (None, "Not measured: "),
    ],
)
def test_the_conclusion_compares_prediction_and_measurement(measured: Estimate | None, says: str) -> None:
    assert conclude(Estimate(1.2, 1.1, 1.3), measured).startswith(says)


def test_a_side_that_the_budget_ended_is_a_verdict() -> None:
    before, after = Variant("as recorded", ("x",)), Variant("fix", ("x",))
    late = "ended after 60 s, the timeout of a run"

    def series(*runs: Run) -> Series:
        return Series(None, Plan(variants=(before, after)), {}, runs)

    def run(variant: str, wall_s: float, failure: str = "") -> Run:
        return Run(0, variant, 0, 0, 0, ("x",), wall_s=wall_s, failure=failure)

    faster = series(run("as recorded", 60.0, late), run("fix", 4.0))
    assert cut_by_budget(faster) == (
        15.0,
        "At least 15x faster: 'as recorded' was ended after 60.0 s, 'fix' finished in 4.00 s.",
    )
    factor, said = cut_by_budget(series(run("as recorded", 4.0), run("fix", 60.0, late)))
    assert factor == pytest.approx(1 / 15) and said.startswith("At least 15x slower")
    assert cut_by_budget(series(run("as recorded", 60.0, "exit code 1"), run("fix", 4.0))) == (None, "")
    assert cut_by_budget(series(run("as recorded", 5.0), run("fix", 4.0))) == (None, "")


def test_runs_ended_by_the_budget_are_proven_in_real_processes(project: Path) -> None:
    slow = "import sys, time\ntime.sleep(0.05 if '--log-every' in sys.argv else 60)\n"
    record(project, "train.py")
    (project / "train.py").write_text(slow)  # as recorded it now takes a minute
    done = hotloop("prove", "one", "1", "--set", "log-every=9", "--budget", "2s", "--json")
    found = json.loads(done.stdout)
    assert found["at_least"] > 1 and found["measured"] is None
    assert found["conclusion"].startswith("At least ")
