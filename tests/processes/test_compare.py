"""The lab with real processes: small ones, a handful of each."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hotloop.capture.plan import Plan, Variant
from hotloop.capture.series import read
from hotloop.lab import process
from hotloop.workflows.experiments import Progress, Runners, create_series, run_experiment
from tests.cli import hotloop as run_verb

ROOT = Path(__file__).parent.parent.parent

# Sleeps, so that a busy machine does not drown the difference; B's steps take several times as long as A's.
SCRIPT = """
import argparse, os, sys, time
import hotloop
parser = argparse.ArgumentParser()
parser.add_argument("--step-ms", type=float, default=1.0)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--updates-every", type=int, default=10)
parser.add_argument("--fail", action="store_true")
parser.add_argument("--log")
args = parser.parse_args()
if args.log:
    with open(args.log, "a") as log:
        print("begin", os.environ["HOTLOOP_SEED"], os.environ.get("MARK", ""), file=log, flush=True)
if args.fail:
    sys.exit("the planted failure")
for step in range(args.steps):
    with hotloop.profile("env_step"):
        time.sleep(args.step_ms / 1000)
    hotloop.progress(env_steps=1)
    if step % args.updates_every == 0:
        with hotloop.profile("backward"):
            time.sleep(0.001)
        hotloop.progress(updates=1)
if args.log:
    with open(args.log, "a") as log:
        print("end", file=log, flush=True)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def environment() -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HOTLOOP")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return clean | {"PATH": path, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100"}


def hotloop(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a verb in the current folder; its exit code must be `code`."""
    done = run_verb(*words, env=environment())
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def train(*words: str) -> str:
    return " ".join([sys.executable, "train.py", *words])


def test_a_planted_difference_is_found_and_named(project: Path) -> None:
    log = project / "log"
    done = hotloop(
        "compare",
        "--a", train("--log log"),
        "--b", train("--step-ms 5 --updates-every 20 --log log"),
        "--env-b", "MARK=b",
        "--budget", "60s",
        "--series", "s",
        "--fail-if", "slower:5%",
        "--markdown", "out.md",
        code=3,
    )  # fmt: skip
    assert "B is slower by" in done.stdout
    assert "B did 50 % fewer updates (3 against 6)." in done.stdout
    assert "Noise floor" in done.stdout and "machine: load" in done.stdout
    assert "environment" in done.stdout
    assert "5 pairs: time" in done.stderr  # the interval on its way
    assert (project / "out.md").read_text().startswith("**B is slower by")

    series = read(project / "s")
    assert [r.ok for r in series.runs] == [True] * 10
    assert all(r.figures.env_steps == 60 and r.has_capture for r in series.runs)
    assert all("load_1min" in r.before and r.cpu_s for r in series.runs)
    # One at a time, both of a pair with one seed, the variable only where it belongs.
    lines = log.read_text().split("\n")[:-1]
    assert [line.split()[0] for line in lines] == ["begin", "end"] * 10
    seeds = [line.split()[1] for line in lines if line.startswith("begin")]
    assert seeds == [str(n // 2) for n in range(10)]
    marked = [line.endswith(" b") for line in lines if line.startswith("begin")]
    assert marked == [r.variant == "B" for r in series.runs]

    exists = hotloop("compare", "s/runs/0000/capture", "s/runs/0001/capture", "--json")
    assert json.loads(exists.stdout)["metric"] == "env_step"
    assert "not run in turn" in exists.stderr


def test_a_against_itself_gives_no_verdict_and_everything_after_the_dashes_is_the_command(
    project: Path,
) -> None:
    done = hotloop(
        "compare", "--selftest", "--tolerance", "90%", "--budget", "4s", "--json", "--series", "s",
        "--", sys.executable, "train.py", "--steps", "20", "--step-ms", "1",
    )  # fmt: skip
    data = json.loads(done.stdout)
    verdict = data["compared"][0]["verdict"]
    assert verdict["word"] in ("no_difference", "undecided")
    assert data["compared"][0]["work"] == []
    assert {r["variant"] for r in data["runs"]} == {"A", "B"}
    assert read(project / "s").plan.baseline.command[-4:] == ("--steps", "20", "--step-ms", "1")


def test_the_same_command_twice_is_refused_with_what_to_do(project: Path) -> None:
    done = hotloop("compare", "--a", "true", "--b", "true", code=2)
    assert "--selftest" in done.stderr
    assert not (project / "hotloop-runs").exists()


def test_an_interrupt_in_the_middle_leaves_a_readable_series_that_resumes(project: Path) -> None:
    words = ["--a", train("--steps 20"), "--b", train("--steps 20 --step-ms 10"), "--series", "s"]
    process = subprocess.Popen(
        [sys.executable, "-m", "hotloop", "compare", *words],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 60
    while not (project / "s/runs/0003/run.json").exists():
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "B against A: undecided" in out
    assert "hotloop compare --series s --resume" in err
    kept = len(read(project / "s").runs)
    assert 4 <= kept < 10
    assert "env step" in hotloop("compare", "s", "s").stdout

    done = hotloop("compare", "--series", "s", "--resume")
    assert "B is slower by" in done.stdout
    runs = read(project / "s").runs
    assert [r.number for r in runs] == list(range(len(runs))) and len(runs) >= 10


def test_a_variant_that_fails_is_kept_with_its_last_words(project: Path) -> None:
    plan = f"""
    command = "{train("--steps 30 --step-ms 2")}"
    [[suspects]]
    name = "quick"
    set = {{ step-ms = 0.2 }}
    [[suspects]]
    name = "broken"
    set = ["fail"]
    [[suspects]]
    name = "missing"
    command = "/no/such/program"
    """
    (project / "plan.toml").write_text("\n".join(line.strip() for line in plan.splitlines()))
    done = hotloop("lab", "run", "plan.toml", "--series", "s")
    assert "the planted failure" in done.stdout
    assert "quick" in done.stdout and "faster" in done.stdout
    series = read(project / "s")
    by_name = {name: [r for r in series.failures if r.variant == name] for name in ("broken", "missing")}
    assert [r.exit_code for r in by_name["broken"]] == [1, 1]
    assert all("the planted failure" in r.stderr_tail for r in by_name["broken"])
    assert ["could not be started" in r.failure for r in by_name["missing"]] == [True, True]
    assert len(series.of("quick")) >= 5

    done = hotloop("compare", "--no-record", "--a", "true", "--b", "false", code=5)
    assert "B: 2 runs failed (exit code 1)" in done.stdout


def test_a_run_that_hangs_is_ended_with_all_it_started(project: Path) -> None:
    (project / "hang.py").write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "open('pid', 'w').write(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    hang = f"{sys.executable} hang.py"
    words = ("--no-record", "--timeout", "1s", "--budget", "30s", "--series", "s")
    hotloop("compare", "--a", "true", "--b", hang, *words, code=5)
    failed = read(project / "s").failures
    assert len(failed) == 2 and all("timeout" in r.failure and r.exit_code is None for r in failed)
    stat = Path(f"/proc/{(project / 'pid').read_text()}/stat")
    end_s = time.monotonic() + 60  # it was killed, but a busy machine may not have run it since
    while lives(stat):
        assert time.monotonic() < end_s
        time.sleep(0.05)


def lives(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_disk_that_fills_up_loses_nothing_already_measured(project: Path) -> None:
    disk = project / "small"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k,nr_inodes=200", "none", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("LOUD: no right to mount a small disk here")
    try:
        words = ["--a", train("--steps 10"), "--b", train("--steps 10 --updates-every 3")]
        done = hotloop("compare", *words, "--series", str(disk / "s"), code=1)
        assert "all earlier runs are kept" in done.stderr
        kept = read(disk / "s")
        assert len(kept.runs) >= 2 and all(r.ok for r in kept.runs) and not kept.warnings
    finally:
        # Lazily: this process ran the verb, and garbage not collected yet may still map a file of the disk.
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_revisions_run_in_worktrees_that_are_gone_afterwards(project: Path) -> None:
    def git(*words: str) -> str:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        return subprocess.run(["git", *who, *words], check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    (project / "speed.py").write_text("STEP_MS = 1\n")
    (project / "go.py").write_text(
        "import time, speed\nfor _ in range(60):\n    time.sleep(speed.STEP_MS / 1000)\n"
    )
    git("add", ".")
    git("commit", "-qm", "slow")
    (project / "speed.py").write_text("STEP_MS = 6\n")
    git("commit", "-qam", "slower")
    words = ("--rev-a", "HEAD~1", "--rev-b", "HEAD", "--no-record", "--series", "s")
    done = hotloop("compare", *words, "--", sys.executable, "go.py")
    assert "B is slower by" in done.stdout
    assert git("worktree", "list").count("\n") == 1
    assert git("status", "--short").split() == ["??", "s/"]
    done = hotloop("compare", "--rev-a", "nowhere", "--rev-b", "HEAD", "--", "true", code=2)
    assert "Revision 'nowhere' does not exist" in done.stderr
    assert git("worktree", "list").count("\n") == 1


def test_work_counters_against_a_baseline_differ_by_exactly_nothing(project: Path) -> None:
    def record(folder: str, *words: str) -> None:
        env = environment() | {"HOTLOOP_CAPTURE": folder}
        subprocess.run([sys.executable, "train.py", *words], env=env, check=True, timeout=60)

    record("one", "--steps", "20")
    record("two", "--steps", "20", "--step-ms", "4")
    record("three", "--steps", "21")
    hotloop("compare", "one", "--baseline", "base.json", "--update")
    same = hotloop("compare", "two", "--baseline", "base.json", "--fail-if", "work:0%")
    assert "all 4 counters are exactly as in the baseline" in same.stdout
    words = ("compare", "three", "--baseline", "base.json", "--markdown", "out.md")
    other = hotloop(*words, "--fail-if", "work:0%", code=3)
    assert "env steps" in other.stdout and "+5.00 %" in other.stdout
    assert "| env steps | 20 | 21 | +5.00 % |" in (project / "out.md").read_text()
    hotloop(*words, "--fail-if", "work:90%")
    assert "timed earlier" in hotloop(*words, "--fail-if", "slower:5%", code=4).stdout


def test_functions_are_compared_on_request_and_a_reason_is_given_where_they_cannot_be(project: Path) -> None:
    words = ("--no-record", "--budget", "2s", "--detailed", "--series")
    done = hotloop(
        "compare", "--set-b", "step-ms=80", *words, "s", "--", sys.executable, "train.py", "--steps", "10"
    )
    assert "B against A: functions" in done.stdout
    tops = {file.name: file.read_text() for file in (project / "s/detailed").iterdir()}
    assert set(tops) == {"A.txt", "B.txt", "A-B-difference.txt"}
    assert "train.py:<module>" in tops["A.txt"]
    assert "built-in method time.sleep" in tops["A-B-difference.txt"]
    done = hotloop("compare", "--a", "sleep 0.02", "--b", "sleep 0.2", *words, "t")
    assert "'sleep' is not a Python interpreter" in done.stdout


ONLY = """
import os, sys, time
with open(sys.argv[2], "a") as log:
    print(sys.argv[1], os.environ["HOTLOOP_SEED"], sorted(os.sched_getaffinity(0)), time.time(), file=log)
    time.sleep(0.3 if sys.argv[1] == "A" else 0.9)
    print(sys.argv[1], os.environ["HOTLOOP_SEED"], "end", time.time(), file=log)
"""


def test_runs_at_once_have_cores_of_their_own(project: Path) -> None:
    """Real processes in two lanes; the cores are taken as free, whatever else this machine does."""
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        pytest.skip("needs two cores")
    (project / "only.py").write_text(ONLY)
    variants = tuple(Variant(x, (sys.executable, "only.py", x, "log")) for x in ("A", "B"))
    made = Plan(variants, budget_s=60.0, record=False, looks=(5,))
    series = create_series(made, project / "series", "")
    lanes = ((mine[0],), (mine[1],))
    done = run_experiment(series, Progress(quiet=True), runners=Runners(lambda: lanes))
    assert done.comparison.compared[0].verdict.word == "slower"
    assert sorted(os.sched_getaffinity(0)) == mine  # ours are as before
    runs = read(project / "series").runs
    assert len(runs) == 10 and {run.cores for run in runs} == set(lanes)
    assert all(run.at_once == 2 and run.cpu_s is not None and 0 < run.cpu_s < 5 for run in runs)
    log = (project / "log").read_text()
    for run in runs:
        assert f"{run.variant} {run.seed} [{run.cores[0]}] " in log  # what the process itself saw
    spans = sorted((run.started_s, run.started_s + run.wall_s, run.cores) for run in runs)
    assert any(second[0] < first[1] for first, second in itertools.pairwise(spans))  # they did overlap
    for lane in lanes:
        own = [span for span in spans if span[2] == lane]
        assert all(second[0] >= first[1] - 0.05 for first, second in itertools.pairwise(own))


def test_ctrl_c_ends_runs_at_once(project: Path) -> None:
    (project / "wait.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    mine = sorted(os.sched_getaffinity(0))
    lanes = ((mine[0],), (mine[-1],))
    variants = tuple(Variant(x, (sys.executable, "wait.py", x)) for x in ("A", "B"))
    series = create_series(Plan(variants, record=False), project / "series", "")
    timer = threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    done = run_experiment(series, Progress(quiet=True), runners=Runners(lambda: lanes))
    timer.join()
    assert done.interrupted and not done.series.runs
    end = time.monotonic() + 20  # a thread may still be at its last line
    while process._running and time.monotonic() < end:
        time.sleep(0.05)
    assert not process._running


def test_more_jobs_than_free_cores_is_one_sentence(project: Path) -> None:
    words = ("--jobs", "999", "--a", train(), "--b", train("--step-ms", "3"), "--series", "s")
    done = hotloop("compare", *words, code=2)
    assert "--jobs 999 needs 999 free cores; this process may use" in done.stderr
    assert done.stderr.count("\n") == 1 and not (project / "s").exists()
    assert hotloop("scale", "--jobs", "0", "--", *train("--steps", "{n}").split(), code=2).stderr.startswith(
        "hotloop: --jobs is 0"
    )
