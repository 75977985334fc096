"""The lab on a cluster, without Ray: lanes on nodes, lost nodes, what a node makes of a job, error rates."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hotloop._util.errors import HotloopError
from hotloop._util.ray_cluster import address_of
from hotloop.analysis.comparison import compare_series, pairs_of
from hotloop.analysis.scaling import scale_runs
from hotloop.analysis.stopping_rule import RUNS
from hotloop.analysis.verdict import Verdict, decide, judge
from hotloop.capture.plan import Plan, Variant
from hotloop.capture.plan_file import plan_from_data, plan_from_table, plan_to_data
from hotloop.capture.series import create, read
from hotloop.cli.tune_text import tuning_text
from hotloop.lab import process, ray_node
from hotloop.lab.lanes import Node, NodeLost
from hotloop.lab.process import Job, Outcome
from hotloop.lab.ray_node import LabNode, own_environment, pack, project_files, unpack
from hotloop.lab.ray_nodes import connect, node_names
from hotloop.report.pen import Pen
from hotloop.report.series_text import comparison_text
from hotloop.testing.noise import NOISY, QUIET, Noise, on_nodes, paired_times
from hotloop.tuning.space import Settings
from hotloop.tuning.time_model import Probe
from hotloop.workflows.experiments import Progress, Runners
from hotloop.workflows.tune import Prober, TuneTerms, tune, tuned_before
from hotloop.workflows.tune_script import ScriptTarget, TriedValues
from tests.unit.test_lab import FakeLab, plan

FAST, SLOW = Node("fast"), Node("slow")


def seconds(job: Job) -> float:
    """B takes twice the time of A, and the slow node 1.3 times that of the fast one."""
    seed = int(job.command[1])
    return (2.0 if job.command[0] == "B" else 1.0) * (1.3 if job.node == "slow" else 1.0) * (1 + seed / 1e3)


# -- lanes ---------------------------------------------------------------------------------------


def test_each_pair_stays_on_one_node_and_the_node_is_recorded(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=10)
    first = {"fast": True, "slow": True}

    def start(job: Job, number: int) -> float:
        if first[job.node]:
            first[job.node] = False
            both.wait()  # so that both nodes get a pair
        return seconds(job)

    done = FakeLab(start).run(create(tmp_path / "series", plan(), {}), (FAST, SLOW))
    assert done.ended == "decided"
    series = read(tmp_path / "series")
    assert {run.node for run in series.runs} == {"fast", "slow"} and {run.at_once for run in series.runs} == {
        2
    }
    assert all(a.node == b.node and a.block == b.block for a, b in pairs_of(series, "B"))
    found = compare_series(series)
    assert [row.node for row in found.nodes] == ["fast", "slow"]
    assert sum(row.blocks for row in found.nodes) == len(pairs_of(series, "B"))
    assert found.nodes[1].baseline_s / found.nodes[0].baseline_s == pytest.approx(1.3, rel=0.02)
    text = comparison_text(series, found, Pen(width=200, unicode=False))
    assert re.search(r"Runs on 2 nodes, .* slow took 1\.\d+ times as long as fast\.", text)
    assert re.search(
        r"B against A by node: fast \+100\.0 % \(pairs: \d\), slow \+100\.0 % \(pairs: \d\)\.", text
    )


def test_a_pair_of_a_lost_node_is_made_again_as_a_whole_elsewhere(tmp_path: Path) -> None:
    """The second run of the slow node's first pair never ends; its variant does not count as failing."""
    count = {"slow": 0}
    begun, gone = threading.Event(), threading.Event()

    def start(job: Job, number: int) -> float:
        if job.node == "slow":
            count["slow"] += 1
            begun.set()
            if count["slow"] == 2:
                gone.set()
                raise NodeLost("node slow was lost: socket closed")
        else:
            assert begun.wait(60)  # so that the slow node gets a pair at all
            if job.command[1] == "4":
                assert gone.wait(60)
        return seconds(job)

    fake = FakeLab(start)
    done = fake.run(create(tmp_path / "series", plan(), {}), (FAST, SLOW))
    assert done.ended == "decided" and not fake.notes
    series = read(tmp_path / "series")
    (lost,) = series.failures
    assert lost.failure == "node slow was lost: socket closed" and lost.node == "slow"
    pairs = pairs_of(series, "B")
    assert len(pairs) == 5 and {a.node for a, _ in pairs} == {"fast"}
    assert lost.block not in {a.block for a, _ in pairs}  # it is made again as a block of its own
    assert len([run for run in series.runs if run.node == "slow"]) == 2


def test_without_any_node_left_the_plan_fails_and_can_be_resumed(tmp_path: Path) -> None:
    def start(job: Job, number: int) -> float:
        if number == 4:
            raise NodeLost("node fast was lost: gone")
        return seconds(job)

    done = FakeLab(start).run(create(tmp_path / "series", plan(), {}), (FAST,))
    assert (done.ended, done.summary) == ("failed", "All nodes were lost.")
    again = FakeLab(lambda job, number: seconds(job)).run(read(tmp_path / "series"), (SLOW,))
    assert again.ended == "decided"
    assert [a.node for a, _ in pairs_of(again.series, "B")] == ["fast"] * 2 + ["slow"] * 6


def test_a_round_of_sizes_of_a_lost_node_is_made_again_and_only_whole_rounds_count(tmp_path: Path) -> None:
    made = Plan((Variant("x", ("x", "{n}")),), kind="scale", sizes=(10, 20, 40), repeats=3, budget_s=None)

    def start(job: Job, number: int) -> float:
        if number == 4:
            raise NodeLost("node fast was lost: gone")
        return float(job.command[1])

    done = FakeLab(start).run(create(tmp_path / "series", made, {}), (FAST,))
    assert done.ended == "failed"
    again = FakeLab(lambda job, number: 2 * float(job.command[1])).run(read(tmp_path / "series"), (SLOW,))
    assert again.ended == "scaled"
    assert [run.node for run in again.series.runs if run.ok].count(
        "slow"
    ) == 6  # the first round is not repeated
    runs = scale_runs(again.series)
    assert len(runs) == 9 and sorted(run.wall_s for run in runs) == [10, 20, 20, 20, 40, 40, 40, 80, 80]


# -- verdicts with nodes that differ by 30 % -----------------------------------------------------


def over_nodes(noise: Noise, change: float, nodes: int, repeats: int, seed: int = 3) -> list[Verdict]:
    """Comparisons over nodes that differ by 30 %; faster ones make more pairs, in random order."""
    rng = np.random.default_rng(seed)
    times = paired_times(rng, repeats, RUNS.most, noise, change)
    verdicts = []
    for one in times:
        there, names = on_nodes(rng, one, nodes)
        pairs = there.tolist()
        for look in RUNS.looks:
            found = decide(pairs[:look], nodes=names[:look])
            if not found.go_on:
                break
        verdicts.append(found.verdict)
    return verdicts


def share(verdicts: list[Verdict], *words: str) -> float:
    return sum(v.word in words for v in verdicts) / len(verdicts)


@pytest.mark.parametrize(("noise", "nodes"), [(QUIET, 2), (NOISY, 5)], ids=["quiet", "noisy"])
def test_error_rates_hold_on_nodes_that_differ_by_30_percent(noise: Noise, nodes: int) -> None:
    same = over_nodes(noise, 0.0, nodes, 300)
    assert share(same, "faster", "slower") <= 0.06
    covered = [v.change is not None and v.change.low <= 0.0 <= v.change.high for v in same]
    assert np.mean(covered) >= 0.94
    assert share(over_nodes(noise, 0.05, nodes, 100), "slower") >= 0.95


def test_few_pairs_of_several_nodes_are_separated_node_by_node() -> None:
    """Twelve percent is far less than the nodes differ, and clear on each of them."""
    pairs = [(1.0, 1.12), (1.3, 1.45), (1.01, 1.13), (1.31, 1.46), (1.0, 1.12), (1.3, 1.46)]
    nodes = ["a", "b"] * 3
    found = judge(pairs, nodes=nodes)
    assert (found.word, found.method) == ("slower", "complete_separation")
    assert found.change is not None and 0.1 < found.change.low < 0.12 < found.change.high < 0.15
    assert judge(pairs).word == "undecided"  # as if they came from one machine
    assert judge(pairs[:5], nodes=nodes[:5]).method == "none"  # 2 / (6 * 20) is too likely by chance


# -- a node, without Ray -------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LabNode]:
    (tmp_path / "disk").mkdir()
    monkeypatch.setenv("HOTLOOP_NODE_FOLDER", str(tmp_path / "disk"))
    monkeypatch.setenv("HOTLOOP_LAB_RUN", "1")  # do not wait for a lab on this machine
    made = LabNode()
    yield made
    assert made._guard.stdin is not None
    made._guard.stdin.close()


def test_a_node_that_shares_no_folder_gets_a_copy_and_sends_the_capture(
    node: LabNode, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "data.txt").write_text("from the lab")
    identity = ray_node.identity(work)
    assert identity is not None and not node.sees(str(work), identity)
    node.unpack(str(work), pack(work, project_files(work)))
    program = (
        "import os, pathlib; here = pathlib.Path(os.environ['HOTLOOP_CAPTURE']); here.mkdir();"
        "(here / 'capture.json').write_text(pathlib.Path('data.txt').read_text() + os.environ['MINE'])"
    )
    variables = {"HOTLOOP_CAPTURE": "/lab/runs/0/capture", "MINE": "!", "PATH": "/lab/bin", "HOME": "/lab"}
    job = Job(("/lab/bin/python", "-c", program), variables, work, timeout_s=60)
    made = node.run(job, "/lab/src", "/lab/bin/python", False, process.run)
    assert made.outcome.exit_code == 0, made.outcome.stderr_tail
    assert made.outcome.before and made.outcome.after and made.files is not None
    unpack(made.files, tmp_path / "home")
    assert (tmp_path / "home" / "capture" / "capture.json").read_text() == "from the lab!"
    node.forget()
    assert not any((tmp_path / "disk").iterdir())


def test_variables_of_the_lab_fit_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/root-of-node")
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    given = {
        "HOME": "/home/me",
        "PATH": "/home/me/venv/bin",
        "VIRTUAL_ENV": "/home/me/venv",
        "OMP_NUM_THREADS": "2",
        "PYTHONPATH": "/home/me/src/hotloop/startup:/home/me/project/src:/elsewhere",
        "HOTLOOP_HOME": "/home/me/src",
    }
    found = own_environment(given, {"/home/me/project": "/tmp/copy", "/home/me/src": "/opt/ours"})
    assert found["HOME"] == "/root-of-node" and "VIRTUAL_ENV" not in found
    assert found["PATH"] == f"{Path(sys.executable).parent}:/usr/bin"
    assert found["PYTHONPATH"] == "/opt/ours/hotloop/startup:/tmp/copy/src:/elsewhere"
    assert (found["HOTLOOP_HOME"], found["OMP_NUM_THREADS"]) == ("/opt/ours", "2")


def test_a_large_folder_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hotloop-runs").mkdir()
    (tmp_path / "hotloop-runs" / "large").write_bytes(bytes(3000))
    (tmp_path / "train.py").write_text("")
    monkeypatch.setattr(ray_node, "MOST_BYTES", 2000)
    assert project_files(tmp_path) == [Path("train.py")]
    (tmp_path / "weights").write_bytes(bytes(3000))
    with pytest.raises(ValueError, match="more than"):
        project_files(tmp_path)


def test_a_run_does_not_outlive_the_actor_of_its_node(node: LabNode) -> None:
    """The guard kills the group it was told of when its input ends, as it does when the actor is killed."""
    run = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        node._tell_guard(run.pid)
        assert node._guard.stdin is not None
        node._guard.stdin.close()
        assert run.wait(timeout=60) == -9
    finally:
        run.kill()
        run.wait()


# -- what users type -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("kubernetes", "write ray for the cluster of this computer, or ray://HOST:PORT"),
        ("ray://", "write ray for the cluster of this computer"),
        ("ray://host", "write the address with its port, as in ray://10.0.0.1:6379"),
        ("ray://host:10001", "the port of Ray Client; run this on a node of the cluster"),
    ],
)
def test_a_wrong_address_is_one_sentence(typed: str, says: str) -> None:
    with pytest.raises(HotloopError, match=re.escape(says)):
        address_of(typed)
    assert (address_of("ray"), address_of("ray://10.0.0.1:6379")) == ("auto", "10.0.0.1:6379")


def test_without_ray_installed_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(HotloopError, match=r"pip install 'hotloop\[ray\]'"), connect("ray", {}, print):
        raise AssertionError


def test_nodes_are_named_after_their_hosts() -> None:
    nodes = [
        {"NodeID": "aaaaaaaa1", "NodeManagerHostname": "one", "NodeManagerAddress": "10.0.0.1"},
        {"NodeID": "bbbbbbbb1", "NodeManagerHostname": "two", "NodeManagerAddress": "10.0.0.2"},
        {"NodeID": "cccccccc1", "NodeManagerHostname": "two", "NodeManagerAddress": "10.0.0.2"},
    ]
    names = {"aaaaaaaa1": "one", "bbbbbbbb1": "two/bbbbbb", "cccccccc1": "two/cccccc"}
    assert node_names(nodes) == names


def test_resources_are_part_of_a_plan() -> None:
    table = {"command": "x {n}", "scale": {"sizes": [1, 2]}, "resources": {"CPU": 4, "bench": 0.5}}
    made = plan_from_table(table)
    assert made.resources == (("CPU", 4.0), ("bench", 0.5)) and plan_from_data(plan_to_data(made)) == made
    with pytest.raises(HotloopError, match=re.escape("write it as { CPU = 4, GPU = 1 }")):
        plan_from_table(table | {"resources": "CPU=4"})
    with pytest.raises(HotloopError, match="above 0"):
        plan_from_table(table | {"resources": {"CPU": 0}})


def test_the_outcome_of_a_run_elsewhere_has_the_load_of_that_place(tmp_path: Path) -> None:
    there = Outcome(1.0, 1.0, 0, before={"at_s": 1.0}, after={"at_s": 2.0})
    done = FakeLab(lambda job, number: there).run(create(tmp_path / "s", plan(looks=(5,)), {}), (FAST,))
    assert all((run.before, run.after) == ({"at_s": 1.0}, {"at_s": 2.0}) for run in done.series.runs)


# -- tuning --------------------------------------------------------------------------------------


def test_a_search_begins_again_when_its_node_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of two nodes are not compared: nothing of the lost node's probes is kept."""
    lanes = [FAST, SLOW]
    made: list[tuple[str, str]] = []

    def probe(self: Prober, settings: Settings, name: str) -> Probe:
        made.append((self.node, name))
        if self.node == "fast" and name == "001":
            lanes.remove(FAST)
            raise NodeLost("node fast was lost: gone")
        return Probe(settings, 0.001 * int(dict(settings)["n_envs"]), spent_s=1.0)

    monkeypatch.setattr(Prober, "_made", probe)
    facts = {"cores_granted": 2.0, "cpus_held": 1.0, "memory_available_bytes": 8 << 30}
    runners = Runners(
        lambda: tuple(lanes), lambda job, make: Outcome(0.0), None, {"fast": facts, "slow": facts}
    )
    assert runners.room == (1.0, 8 << 30)
    target = ScriptTarget(("x", "{n_envs=1}"), TriedValues(("n_envs=1,2,4",)), *runners.room)
    said = io.StringIO()
    tuning = tune(target, TuneTerms(60.0), tmp_path / "tuned", Progress(said), runners)
    assert tuning.node == "slow" and not tuning.failed and not tuning.compared
    assert [name for node, name in made if node == "fast"] == ["warm-up", "000", "001"]
    assert [name for node, name in made if node == "slow"][:3] == ["warm-up", "000", "001"]
    assert len(tuning.searched.probes) == len([1 for node, _ in made if node == "slow"]) - 1
    assert "node fast was lost: gone; the search begins again on another node" in said.getvalue()
    assert "All probes were made on node slow." in tuning_text(tuning, Pen(width=100, unicode=False))
    with pytest.raises(HotloopError, match="was not tuned on this machine"):
        tuned_before(target.name)  # for this machine
