"""`hotloop tune` on every workload: probes in separate processes, Ctrl-C, and whole tunings."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from hotloop.capture.folder import CAPTURE_VARIABLE
from hotloop.lab.process import Job
from hotloop.rl.buffers.demonstrations import DemonstrationStore
from hotloop.rl.collect.experts import Driver, track_schema
from hotloop.rl.workloads.imitate import Imitate
from hotloop.rl.workloads.mario import Mario
from hotloop.workflows.probes import ProbeLength, ended_early, probe_figures
from hotloop.workflows.tune_workload import WorkloadTarget
from tests.processes.test_tune import hotloop, start

SMALL_MARIO = {
    "channels": (8, 8, 8), "features_dim": 32, "size": 36, "batch_size": 32, "n_collectors": 2,
    "envs_per_collector": 2,
}  # fmt: skip
MARIO_WORDS = (
    *("mario", "--channels", "8", "8", "8", "--features-dim", "32", "--size", "36", "--batch-size", "32"),
    *("--n-collectors", "2", "--envs-per-collector", "2"),
)


def demonstrations(folder: Path, episodes: int = 2) -> None:
    """A few, driven here."""
    store = DemonstrationStore(folder / "demonstrations")
    store.begin(track_schema(0, {}), resume=False)
    driver = Driver(store, 0, {})
    for number in range(episodes):
        driver.drive(number)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "settings", "unit"),
    [
        ("mario", SMALL_MARIO, "env step"),
        ("imitate", {"stage": "demos", "workers": 2}, "env step"),
        ("imitate", {"stage": "bc"}, "update"),
        ("imitate", {"stage": "rl", "net_arch": (16, 16)}, "env step"),
    ],
)
def test_a_probe_is_timed_and_leaves_nothing_behind(
    tmp_path: Path, name: str, settings: dict[str, Any], unit: str
) -> None:
    if settings.get("stage") == "bc":
        demonstrations(tmp_path / "imitate")
    kinds: dict[str, Any] = {"mario": Mario, "imitate": Imitate}
    here = {} if name == "mario" else {"folder": tmp_path / "imitate"}
    target = WorkloadTarget(name, kinds[name](**settings, **here), cores=2.0)
    environment = dict(target.variables(target.space.current)) | {
        CAPTURE_VARIABLE: str(tmp_path / "probe/capture"),
        "HOTLOOP_SEED": "0",
    }
    (tmp_path / "probe").mkdir()
    before = set(descendants(os.getpid()))
    with target.starter() as host:
        length = ProbeLength(0.3, 60.0, target.cycles, warm_up_updates=target.warm_up_updates)
        outcome = ended_early(host.start, length)(Job(("x",), environment, tmp_path, timeout_s=300.0))
        assert not outcome.failure, outcome.stderr_tail
        (mine,) = set(descendants(os.getpid())) - before  # the host; the probe and its workers have ended
    found = probe_figures(tmp_path / "probe/capture", target.warm_up_updates)
    assert (found.s_per_env_step or 0.0) > 0 if unit == "env step" else found.s_per_env_step is None
    assert (found.s_per_update or 0.0) > 0 or settings.get("stage") == "demos"
    assert (tmp_path / "probe/outcome.json").is_file() == (not target.cycles)
    assert not (tmp_path / "probe/work").exists()  # what it wrote is gone, what it read is there
    if settings.get("stage") == "bc":
        assert len(DemonstrationStore(tmp_path / "imitate/demonstrations").numbers()) == 2
    assert mine not in set(descendants(os.getpid()))


@pytest.mark.long
def test_settings_that_a_workload_refuses_are_one_sentence_and_code_2(tmp_path: Path) -> None:
    code, out, err = hotloop(tmp_path, "tune", "snake", "--batch-size", "0", "--budget", "10s")
    assert code == 2 and out == "", err
    last = err.splitlines()[-1]  # said by the trainer, in a probe
    assert last == "hotloop: size=0 is too small for a batch; use at least 1."


@pytest.mark.long
def test_ctrl_c_keeps_what_was_measured_and_ends_every_collector(tmp_path: Path) -> None:
    process = start(tmp_path, "tune", *MARIO_WORDS, "--budget", "5m", "--probes", "kept", "--json")
    give_up_s = time.monotonic() + 120
    while not (tmp_path / "kept/probes/000/probe.json").is_file() and time.monotonic() < give_up_s:
        time.sleep(0.1)
    while len(mine := descendants(process.pid)) < 3 and time.monotonic() < give_up_s:
        time.sleep(0.02)  # the host, a probe and its collectors
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    found = json.loads(out)
    assert found["interrupted"] and found["search"]["probes"][0]["s_per_unit"] > 0
    give_up_s = time.monotonic() + 20
    while (left := [pid for pid in mine if _runs(pid)]) and time.monotonic() < give_up_s:
        time.sleep(0.05)
    assert not left


def descendants(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def _runs(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "then", "kept"),
    [
        (("ricochet", "--channels", "4"), ("--total-timesteps", "512"), "n_envs * n_steps stays 512"),
        (("ricochet", "--obs-mode", "symbolic"), ("--total-timesteps", "512", "--obs-mode", "symbolic"), ""),
        (("snake",), ("--stop-at-episodes", "64"), "gradient steps per env step"),
        (
            ("snake", "--variant", "original", "--n-envs", "16"),
            ("--stop-at-episodes", "64", "--n-envs", "16"),
            "",
        ),
        (MARIO_WORDS, (*MARIO_WORDS[1:], "--total-timesteps", "4096"), "replay_ratio stays"),
        (("imitate", "--stage", "demos"), ("--stage", "demos", "--n-episodes", "2"), ""),
        (("imitate", "--stage", "bc"), ("--stage", "bc", "--n-epochs", "2"), ""),
        (
            ("imitate", "--stage", "rl"),
            ("--stage", "rl", "--total-timesteps", "300", "--start", "scratch"),
            "",
        ),
    ],
    ids=lambda words: "-".join(words[:3]) if isinstance(words, tuple) else "",
)
def test_every_workload_is_tuned_to_a_verdict_and_trained_so(
    tmp_path: Path, words: tuple[str, ...], then: tuple[str, ...], kept: str
) -> None:
    if "bc" in words:
        demonstrations(tmp_path / "imitate", 4)
    code, out, err = hotloop(tmp_path, "tune", *words, "--budget", "45s", "--json", "--probes", "t")
    assert code == 0 and "Traceback" not in err, err
    found = json.loads(out)
    failed = [probe for probe in found["search"]["probes"] if probe["failure"]]
    assert found["search"]["probes"] and not failed, failed
    assert found["decision"] in ("keep_yours", "undecided") or set(found["decision"].values()) <= {
        *("faster", "keep_yours", "undecided"),
    }
    if found["tuned"]["semantic"] and kept:
        assert any(kept in sentence for sentence in found["tuned"]["invariants"])
    name = " ".join(words[:3]) if "--stage" in words else words[0]
    assert found["target"] == name
    code, out, err = hotloop(tmp_path, "train", words[0], *then, "--tuned", "--no-profiling", "--json")
    if code == 2:  # nothing certain was found, so nothing is remembered
        assert f"run: hotloop tune {name}" in err and "undecided" in str(found["decision"]), err
    else:
        assert code == 0 and "tuned:" in err, err
        assert json.loads(out)["outcome"]["updates"] or "demos" in words
