"""`hotloop tune` from the command line: on a script whose speed is known, and on a workload."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hotloop.capture.folder import CAPTURE_VARIABLE
from hotloop.capture.reader import load
from hotloop.lab.process import Job
from hotloop.rl.workloads.petri import Petri
from hotloop.workflows.probes import ProbeLength, ended_early, probe_figures
from hotloop.workflows.tune_workload import WorkloadTarget

SCRIPT = str(Path(__file__).with_name("tunable.py"))


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = os.environ | {
        "XDG_CACHE_HOME": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder),  # its lock is not that of others who measure here
    }
    return subprocess.Popen(
        [sys.executable, "-m", "hotloop", *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_hears_ctrl_c,
    )


def _hears_ctrl_c() -> None:
    """Also when the tests themselves run in the background, where Ctrl-C is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def hotloop(folder: Path, *words: str) -> tuple[int, str, str]:
    process = start(folder, *words)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """One tuning of the script, looked at by several tests."""
    folder = tmp_path_factory.mktemp("tuned")
    code, out, err = hotloop(
        folder,
        *("tune", "--budget", "90s", "--json", "--no-threads", "--probes", "probes"),
        *("--values", "n_envs=4,16", "--values", "mode=fast,slow", "--safe", "mode"),
        *("--", sys.executable, SCRIPT, "--n-envs", "{n_envs=4}", "--n-steps", "{n_steps=8}"),
        *("--mode", "{mode=slow}"),
    )
    assert code == 0, err
    return folder, json.loads(out), err


@pytest.mark.long
def test_the_fastest_settings_are_found_and_proven(tuned: tuple[Path, dict[str, Any], str]) -> None:
    _, found, err = tuned
    assert found["search"]["best"] == {"n_envs": 16, "mode": "fast"}
    assert found["search"]["best_safe"] == {"n_envs": 4, "mode": "fast"}
    assert found["tuned"]["safe"] == {"mode": "fast"} and "faster by" in found["tuned"]["safe_gain"]
    assert found["tuned"]["semantic"] == {"n_envs": 16, "n_steps": 2, "mode": "fast"}
    assert found["decision"] == {"safe": "faster", "all": "faster"}
    assert any("n_envs * n_steps stays" in sentence for sentence in found["tuned"]["invariants"])
    assert "probe 1:" in err and "env steps/s" in err


@pytest.mark.long
def test_predictions_stand_beside_what_was_measured(tuned: tuple[Path, dict[str, Any], str]) -> None:
    _, found, _ = tuned
    rows = found["search"]["finalists"]
    assert rows and all(row["measured_s_per_unit"] for row in rows)
    probes = found["search"]["probes"]
    assert all(probe["peak_bytes"] for probe in probes)
    assert all(probe["phases_s"]["env"] > 0 for probe in probes)


@pytest.mark.long
def test_probes_and_comparison_stay_on_disk_and_the_result_is_remembered(
    tuned: tuple[Path, dict[str, Any], str],
) -> None:
    folder, found, _ = tuned
    kept = json.loads((folder / "probes/tuning.json").read_text())
    assert kept["best"] == found["search"]["best"] and (folder / "probes/compare-safe/series.json").is_file()
    words = (sys.executable, SCRIPT, "--n-envs", "{n_envs=4}", "--n-steps", "{n_steps=8}", "--mode")
    code, out, _ = hotloop(
        folder, "tune", "--show", "--values", "mode=fast,slow", "--", *words, "{mode=slow}"
    )
    assert code == 0 and "mode=fast" in out and "may change learning" in out


def test_a_script_that_fails_is_code_5(tmp_path: Path) -> None:
    code, _, err = hotloop(
        tmp_path,
        *("tune", "--budget", "5s", "--no-threads", "--", sys.executable, SCRIPT, "--n-envs", "{n_envs=4}"),
        *("--fail-above", "2"),
    )
    assert code == 5 and "too many envs" in err


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        *("tune", "--budget", "5m", "--no-threads", "--probes", "kept", "--json"),
        *("--values", "n_envs=1,2,4", "--", sys.executable, SCRIPT, "--n-envs", "{n_envs=4}"),
    )
    give_up_s = time.monotonic() + 120
    while not (tmp_path / "kept/probes/000/probe.json").is_file() and time.monotonic() < give_up_s:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    found = json.loads(out)
    assert found["interrupted"] and found["search"]["probes"][0]["s_per_unit"] > 0
    left = subprocess.run(["pgrep", "-f", f"{SCRIPT} --n-envs"], capture_output=True, text=True).stdout
    mine = [pid for pid in left.split() if _cwd(pid) == tmp_path]
    assert not mine


def _cwd(pid: str) -> Path | None:
    try:
        return Path(os.readlink(f"/proc/{pid}/cwd"))
    except OSError:
        return None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("tune", "nothing"), "is not a workload"),
        (("tune", "petri", "--also", "lr"), "--also lr is unknown"),
        (("tune", "petri", "--show"), "was not tuned on this machine"),
        (("tune", "petri", "--budget", "1s"), "--budget 1s is too short"),
        (("tune", "imitate"), "add --stage demos, --stage bc or --stage rl"),
        (("tune", "imitate", "--stage", "bc", "--folder", "nowhere"), "no demonstrations in nowhere"),
        (("tune", "mario", "--size", "38"), "size=38 must be a multiple of 4"),
        (("tune", "--budget", "1m", "--", "python", "x.py", "{n_envs=a}"), "whole number"),
        (("tune", "--"), "no command"),
        (("train", "petri", "--tuned"), "hotloop tune petri"),
        (("train", "petri", "--tuned", "--preset", "quick"), "one of the two"),
    ],
)
def test_bad_words_are_one_sentence_and_code_2(
    tmp_path: Path, words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from hotloop.cli.main import main

    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path)
    try:
        assert main(list(words)) == 2
        assert says in capsys.readouterr().err
    finally:
        os.environ.pop("XDG_CACHE_HOME") if before is None else os.environ.update(XDG_CACHE_HOME=before)


@pytest.mark.long
def test_a_workload_is_probed_by_a_fork_that_ends_with_its_host(tmp_path: Path) -> None:
    target = WorkloadTarget("petri", Petri(learner="torch"))
    environment = dict(target.variables(target.space.current))

    def job(name: str) -> Job:
        (tmp_path / name).mkdir()
        here = {CAPTURE_VARIABLE: str(tmp_path / name / "capture"), "HOTLOOP_SEED": "3"}
        return Job(("hotloop", "train", "petri"), environment | here, tmp_path, timeout_s=300.0)

    with target.starter() as host:
        outcome = ended_early(host.start, ProbeLength(0.2, 5.0, cycles=0))(job("one"))
        assert not outcome.failure, outcome.stderr_tail
        found = probe_figures(tmp_path / "one/capture")
        said = json.loads((tmp_path / "one/outcome.json").read_text())
        assert found.s_per_env_step == said["seconds"] / said["env_steps"] > 0
        assert said["stopped_by"] == "SIGTERM" and said["env_steps"] % 2048 == 0  # whole batches
        assert load(tmp_path / "one/capture").facts["seeds"] == {"seed": 3}
        running = host.start(job("two"))
        pid = running._pid  # type: ignore[attr-defined]
        assert not running.wait(0.2)
    give_up_s = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < give_up_s:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.long
def test_a_workload_is_tuned_and_trained_so(tmp_path: Path) -> None:
    code, out, err = hotloop(
        tmp_path, "tune", "petri", "--budget", "40s", "--json", "--learner", "fused", "--n-envs", "4"
    )
    assert code == 0, err
    found = json.loads(out)
    assert found["search"]["probes"] and not found["failed"]
    good = [probe for probe in found["search"]["probes"] if not probe["failure"]]
    assert good and all(probe["s_per_unit"] > 0 for probe in good)
    assert found["tuned"]["base"]["batch_size"] == 512
    code, out, err = hotloop(
        tmp_path, "train", "petri", "--tuned", "--total-timesteps", "4096", "--no-profiling", "--json"
    )
    assert code == 0 and "tuned:" in err, err
    rows = json.loads(out)["predictions"]
    assert any(row["unit"] == "/s" and row["measured"] for row in rows) and rows[0]["predicted"] > 0
