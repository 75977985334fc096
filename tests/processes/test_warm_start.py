"""Runs of our own workloads are forked from a loaded process, and do and record what a fresh one does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hotloop._util.errors import HotloopError
from hotloop.capture.plan import Plan, Variant
from hotloop.capture.reader import load
from hotloop.capture.series import read
from hotloop.capture.stats import by_name
from hotloop.lab.process import Job
from hotloop.lab.process import run as run_fresh
from hotloop.workflows.experiments import forkable_workload, plain_environment, run_forked
from hotloop.workflows.probes import Host
from hotloop.workflows.run import recording_environment

TRAIN = (sys.executable, "-m", "hotloop", "train", "snake", "--no-profiling", "--variant", "original",
         "--flood-fill", "off", "--n-envs", "64", "--stop-at-episodes", "16")  # fmt: skip
FAST = Variant("fast", (*TRAIN, "--learner", "fused"))
PLAN = Plan((Variant("as it is", TRAIN), FAST))


def job(folder: Path, *more: str, timeout_s: float | None = None) -> Job:
    folder.mkdir(parents=True)
    environment = recording_environment(folder / "capture", plain_environment())
    return Job((*TRAIN, *more), environment, folder, timeout_s)


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with Host("snake", plain_environment()) as made:
        yield made


NAMES = ("env_step", "policy_forward", "replay_push", "replay_sample", "backward", "optimizer_step", "loss")


def work(folder: Path) -> dict[str, object]:
    """What a run did; how many gaps there were between regions depends on the time they took."""
    capture = load(folder / "capture")
    calls = by_name(capture.tree)
    return {name: calls[name].calls for name in NAMES} | {"progress": capture.progress}


@pytest.mark.long
def test_a_forked_run_does_and_records_the_same_as_a_fresh_process(host: Host, tmp_path: Path) -> None:
    outcomes = {
        "fresh": run_fresh(job(tmp_path / "fresh")),
        "first": run_forked(host, job(tmp_path / "first")),
        "second": run_forked(host, job(tmp_path / "second")),
    }
    assert all(outcome.exit_code == 0 and not outcome.failure for outcome in outcomes.values()), outcomes
    assert work(tmp_path / "fresh") == work(tmp_path / "first") == work(tmp_path / "second")
    said = {name: outcome.stderr_tail.splitlines()[0] for name, outcome in outcomes.items()}
    assert len(set(said.values())) == 1, said
    assert not (tmp_path / "first" / "stderr.txt").exists()


@pytest.mark.long
def test_refused_arguments_fail_the_run_and_the_next_one_continues(host: Host, tmp_path: Path) -> None:
    refused = run_forked(host, job(tmp_path / "refused", "--n-envs", "0"))
    assert refused.exit_code == 2 and refused.failure == "exit code 2"
    assert "must be at least 1" in refused.stderr_tail
    assert run_forked(host, job(tmp_path / "next")).exit_code == 0


@pytest.mark.long
def test_a_run_beyond_its_time_is_ended(host: Host, tmp_path: Path) -> None:
    late = run_forked(host, job(tmp_path / "late", "--stop-at-episodes", "1000000", timeout_s=1.0))
    assert late.exit_code is None and "timeout" in late.failure
    assert run_forked(host, job(tmp_path / "next")).exit_code == 0


def test_a_host_that_died_is_named(tmp_path: Path) -> None:
    with Host("snake", plain_environment()) as mine:
        assert mine._process is not None
        mine._process.kill()
        mine._process.wait()
        with pytest.raises(HotloopError, match="hotloop train snake"):
            run_forked(mine, job(tmp_path / "none"))


@pytest.mark.parametrize(
    "plan",
    [
        replace(PLAN, record=False),
        replace(PLAN, variants=(PLAN.baseline, replace(FAST, environment=(("OMP_NUM_THREADS", "1"),)))),
        replace(PLAN, variants=(PLAN.baseline, replace(FAST, revision="HEAD~1"))),
        replace(PLAN, variants=(PLAN.baseline, Variant("another", (*TRAIN[:4], "petri")))),
        replace(PLAN, variants=tuple(Variant(n, (*TRAIN[:4], "mario")) for n in ("a", "b"))),
        replace(PLAN, variants=(PLAN.baseline, Variant("a script", (sys.executable, "train.py")))),
        replace(PLAN, variants=(PLAN.baseline, Variant("another Python", ("/usr/bin/python3", *TRAIN[1:])))),
    ],
)
def test_runs_that_a_fork_would_change_are_not_forked(plan: Plan) -> None:
    assert forkable_workload(PLAN) == "snake"
    typed = Variant("typed", (str(Path(sys.executable).with_name("hotloop")), *TRAIN[3:]))
    assert forkable_workload(replace(PLAN, variants=(typed, FAST))) == "snake"
    assert forkable_workload(plan) is None


@pytest.mark.long
def test_ctrl_c_ends_compare_its_host_and_the_run(tmp_path: Path) -> None:
    words = ["compare", "--series", "pairs", "--set-b", "learner=fused", "--", *TRAIN]
    started = subprocess.Popen(
        [sys.executable, "-m", "hotloop", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"HOTLOOP_TEST_MARK": str(tmp_path)},
    )
    end = time.monotonic() + 120
    while not list(tmp_path.glob("pairs/runs/*/run.json")):
        assert time.monotonic() < end and started.poll() is None
        time.sleep(0.1)
    assert any("probe_host" in line for line in marked(str(tmp_path)))
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=60)
    assert started.returncode == 130
    assert not marked(str(tmp_path))
    assert read(tmp_path / "pairs").runs


def marked(mark: str) -> list[str]:
    """Command lines of the processes that inherited the mark."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"HOTLOOP_TEST_MARK={mark}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text().replace("\0", " "))
    return found
