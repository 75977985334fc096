"""The driver of a Ray job without a cluster: nodes that answer, answer late, vanish, or have no hotloop.

`tests/processes/test_run_ray.py` has the same on a real cluster.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotloop import Profiler
from hotloop.capture.nodes import NodeFacts, describe_missing, read_nodes
from hotloop.capture.reader import load
from hotloop.capture.summary import fold, load_summary, to_json
from hotloop.instrument import ray as ray_patches
from hotloop.instrument import ray_driver, ray_node, ray_times
from hotloop.instrument.ray_driver import Cluster, NodeLink, courier_class
from hotloop.instrument.ray_hook import Settings
from hotloop.testing.clusters import make_node_processes
from hotloop.workflows.merge import fold_captures


class FakeActor:
    """An actor that runs in this process; `ask.remote` returns what would be a reference."""

    def __init__(self, courier: Any):
        self.courier = courier
        self.answers = True

    @property
    def ask(self) -> FakeActor:
        return self

    def remote(self, question: str, *args: Any) -> Ref:
        return Ref(self, question, args)


class Ref:
    def __init__(self, actor: FakeActor, question: str, args: tuple[Any, ...]):
        self.actor, self.question, self.args = actor, question, args


class FakeRay:
    """As much of Ray as the driver's thread uses."""

    def __init__(self) -> None:
        self.present = {"home": True}
        self.listed = 0

    def nodes(self) -> list[dict[str, Any]]:
        self.listed += 1
        return [
            {"NodeID": name, "Alive": alive, "NodeManagerAddress": "10.0.0.1", "NodeManagerHostname": name}
            for name, alive in self.present.items()
        ]

    def get_runtime_context(self) -> FakeRay:
        return self

    def get_node_id(self) -> str:
        return "home"

    def wait(self, refs: list[Ref], num_returns: int, timeout: float) -> tuple[list[Ref], list[Ref]]:
        ready = [ref for ref in refs if ref.actor.answers]
        return ready, [ref for ref in refs if ref not in ready]

    def get(self, ref: Ref) -> Any:
        if not self.present[ref.actor.courier.name]:
            raise ConnectionError("the actor died")
        return ref.actor.courier.ask(ref.question, *ref.args)


class FakeCluster(Cluster):
    """Its actors are objects, each with a folder of its own."""

    def _new_actor(self, node_id: str) -> Any:
        courier = courier_class()("/no/capture", "run", "/nowhere")
        courier.name = node_id
        if courier.node is not None:
            courier.node.folder = self.folder.parent / node_id
        return FakeActor(courier)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    made = FakeRay()
    monkeypatch.setitem(ray_driver.sys.modules, "ray", made)  # type: ignore[attr-defined]
    monkeypatch.setattr(ray_driver, "LIST_S", 0.0)
    return made


@pytest.fixture
def cluster(ray: FakeRay, tmp_path: Path) -> FakeCluster:
    (tmp_path / "capture" / "nodes").mkdir(parents=True)
    settings = Settings(
        capture=str(tmp_path / "capture"), run_id="run", options={}, entry="", home="/nowhere", version=""
    )
    return FakeCluster(settings)


FAR = 2.0**60


def saved(cluster: FakeCluster) -> NodeFacts:
    warnings: list[str] = []
    (found,) = (node for node in read_nodes(cluster.folder, warnings) if not node.driver)
    assert not warnings
    return found


def record(tmp_path: Path, node: str, content: bytes) -> None:
    (tmp_path / node / "parts").mkdir(parents=True, exist_ok=True)
    (tmp_path / node / "parts" / f"{node}-1-2.part").write_bytes(content)


def test_news_of_a_node_arrive_and_the_end_is_noted(
    ray: FakeRay, cluster: FakeCluster, tmp_path: Path
) -> None:
    ray.present["far"] = True
    record(tmp_path, "far", b"one")
    cluster.round(FAR)
    assert (cluster.folder / "parts" / "far-1-2.part").read_bytes() == b"one"
    facts = saved(cluster)
    assert facts.seen_ns is not None and not facts.complete and facts.clock[0][1:] == (0, 0)
    record(tmp_path, "far", b"two")
    cluster.round(FAR, last=True)
    assert (cluster.folder / "parts" / "far-1-2.part").read_bytes() == b"two"
    assert saved(cluster).complete and not (tmp_path / "far").exists()


def test_a_lost_node_keeps_what_it_sent(ray: FakeRay, cluster: FakeCluster, tmp_path: Path) -> None:
    ray.present["far"] = True
    record(tmp_path, "far", b"one")
    cluster.round(FAR)
    ray.present["far"] = False
    cluster.round(FAR, last=True)
    facts = saved(cluster)
    assert facts.lost and not facts.complete and facts.seen_ns is not None
    assert (cluster.folder / "parts" / "far-1-2.part").read_bytes() == b"one"


def test_a_node_that_dies_while_it_is_asked_is_lost_and_no_error(
    ray: FakeRay, cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ray.present["far"] = True
    record(tmp_path, "far", b"one")
    cluster.round(FAR)
    before = ray.nodes()
    ray.present["far"] = False  # but Ray has not noticed yet
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ray, "nodes", lambda: before)
        cluster.round(FAR)
    assert not saved(cluster).lost and not saved(cluster).problem
    cluster.round(FAR)
    assert saved(cluster).lost and "hotloop" not in capsys.readouterr().err


def test_an_answer_that_was_late_is_sent_again(ray: FakeRay, cluster: FakeCluster, tmp_path: Path) -> None:
    ray.present["far"] = True
    record(tmp_path, "far", b"one")
    cluster.round(FAR)
    link = cluster.nodes["far"]
    record(tmp_path, "far", b"two")
    link.actor.courier.node.news()  # asked, but the answer never came
    link.again = True
    cluster.round(FAR)
    assert (cluster.folder / "parts" / "far-1-2.part").read_bytes() == b"two"


def test_a_node_that_does_not_answer_holds_nobody_up(
    ray: FakeRay, cluster: FakeCluster, tmp_path: Path
) -> None:
    ray.present |= {"far": True, "slow": True}
    record(tmp_path, "far", b"one")
    cluster.round(FAR)
    cluster.nodes["slow"].actor.answers = False
    record(tmp_path, "far", b"two")
    cluster.round(FAR)
    assert (cluster.folder / "parts" / "far-1-2.part").read_bytes() == b"two"


def test_a_node_without_hotloop_or_with_another_version_is_named_once(
    ray: FakeRay, cluster: FakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.present["far"] = True
    cluster.round(FAR)
    courier = cluster.nodes["far"].actor.courier
    courier.node, courier.problem = None, "hotloop cannot be imported there: No module named 'hotloop'"
    cluster.round(FAR)
    cluster.round(FAR)
    assert capsys.readouterr().err == (
        "hotloop: node far is not recorded: hotloop cannot be imported there: No module named 'hotloop'\n"
    )
    assert "cannot be imported" in saved(cluster).problem
    ray.present |= {"far": False, "old": True}
    monkeypatch.setattr(ray_driver, "HOTLOOP_VERSION", "9.9")
    cluster.round(FAR)
    assert "node old is not recorded: it has hotloop 0" in capsys.readouterr().err


def test_the_fastest_round_trip_tells_the_offset(
    ray: FakeRay, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that is an hour ahead, asked over a network whose delays vary."""
    ahead, now, delays = 3_600_000_000_000, 10**12, iter([900, 40, 700, 30, 10, 600] * 10)

    def monotonic_ns() -> int:
        return now

    def answer(links: list[NodeLink], deadline: float, question: str, *args: Any) -> list[Any]:
        nonlocal now
        delay = next(delays) * 1000
        now += delay
        there = now + ahead
        now += delay // 2  # the way back is faster
        return [(links[0], (there, 0))]

    monkeypatch.setattr(ray_driver.time, "monotonic_ns", monotonic_ns)  # type: ignore[attr-defined]
    monkeypatch.setattr(cluster, "_ask", answer)
    link = NodeLink({"NodeID": "far"}, None)
    link.hello = {"clock_id": "another"}
    cluster._measure_clock(link, FAR)
    ((_, offset, uncertainty),) = link.clock
    assert abs(offset - ahead) <= uncertainty < 10_000


def test_clocks_are_compared_now_and_then_and_at_the_end(
    ray: FakeRay, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster._clock_id = "another computer's"
    ray.present["far"] = True
    for _ in range(5):
        cluster.round(FAR)
    (link,) = cluster.nodes.values()
    assert len(link.clock) == 1
    monkeypatch.setattr(ray_driver, "CLOCK_S", 0.0)
    link.clock_due_s = 0.0
    cluster.round(FAR)
    cluster.round(FAR)
    assert len(link.clock) == 3
    link.clock_due_s = FAR
    cluster.round(FAR)
    cluster.round(FAR, last=True)
    assert len(link.clock) == 4


def test_the_users_runtime_environment_is_kept() -> None:
    class Job:
        runtime_env: dict[str, Any] | None = None

        def set_runtime_env(self, given: dict[str, Any]) -> None:
            self.runtime_env = given

    def mine() -> None: ...

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HOTLOOP_RUN_ID", "run")
        job = Job()
        ray_driver._add_hook(job, Path("/capture"))
        assert list(job.runtime_env or {}) == ["worker_process_setup_hook"]
        job.runtime_env = {"pip": ["x"], "env_vars": {"A": "1"}, "worker_process_setup_hook": mine}
        settings = ray_driver._add_hook(job, Path("/capture"))
        hook = job.runtime_env["worker_process_setup_hook"]
        assert job.runtime_env == {"pip": ["x"], "env_vars": {"A": "1"}, "worker_process_setup_hook": hook}
        assert mine in [cell.cell_contents for cell in hook.__closure__]
        assert (settings["capture"], settings["run_id"]) == ("/capture", "run")


# -- nodes with many processes ---------------------------------------------------------------------


def record_process(folder: Path, number: int, steps: int) -> None:
    """A real recording, as if of one more process."""
    recorder = Profiler(core_name="python").start(folder / "made" / str(number), memory=False)
    for _ in range(steps):
        with recorder.profile("env_step"), recorder.profile("inside", "wait"):
            pass
        recorder.progress(env_steps=1, updates=2)
    recorder.stop()
    (folder / "parts").mkdir(exist_ok=True)
    (made,) = (folder / "made" / str(number) / "parts").iterdir()
    shutil.copy(made, folder / "parts" / f"far-{number}-2.part")


def test_a_node_with_many_processes_sends_one_summary(
    ray: FakeRay, cluster: FakeCluster, tmp_path: Path
) -> None:
    cluster._most_parts = 2
    ray.present["far"] = True
    for number, steps in ((1, 3), (2, 5)):
        record_process(tmp_path / "far", number, steps)
    cluster.round(FAR)
    assert len(list((cluster.folder / "parts").iterdir())) == 2 and not saved(cluster).folded
    record_process(tmp_path / "far", 3, 40)
    cluster.round(FAR)
    assert saved(cluster).folded == 3
    assert not list((cluster.folder / "parts").iterdir())  # what came before is in the summary
    record_process(tmp_path / "far", 4, 7)
    cluster.round(FAR)
    assert saved(cluster).folded == 3  # it is made again after some seconds, and at the end
    shutil.copytree(tmp_path / "far" / "parts", tmp_path / "all" / "parts")
    cluster.round(FAR, last=True)
    facts = saved(cluster)
    assert facts.folded == 4 and facts.complete and not list((tmp_path / "far").glob("parts/*"))
    assert "sent one summary of its 4 processes" in describe_missing((facts,), 1)[0]
    check_same_sums(cluster.folder, tmp_path / "all", tmp_path)
    capture = load(cluster.folder)
    assert not capture.processes and sum(role.members for role in capture.folded) == 4
    assert (capture.progress.env_steps, capture.progress.updates) == (55, 110)


def check_same_sums(with_summary: Path, with_parts: Path, tmp_path: Path) -> None:
    """Folding the summaries that came gives what folding all recordings gives; moments are interpolated."""
    now = time.time_ns()
    facts = {"format_version": 1, "started_at_ns": now - 10**11, "ended_at_ns": now + 10**9}
    found = []
    for folder in (with_summary, with_parts):
        (folder / "capture.json").write_text(json.dumps(facts))
        file, summary, left_out = fold_captures([str(folder)], tmp_path / f"folded-{folder.name}")
        assert not left_out and summary.processes == 4 and load_summary(file).processes == 4
        found.append(to_json(summary)["roles"])
    came, whole = found
    assert came.keys() == whole.keys()
    for name, role in whole.items():
        moments = {key: (came[name].pop(key), role.pop(key)) for key in ("env_steps", "updates")}
        assert came[name] == role  # sums, trees, histograms, shares
        for one, other in moments.values():
            assert one[-1] == other[-1] and one == sorted(one)
    assert sum(role["progress"]["env_steps"] for role in whole.values()) == 55


def test_a_summary_over_another_time_keeps_its_sums() -> None:
    begin, end = 10**18, 10**18 + 64 * 10**9
    made = fold(make_node_processes(0, 8), begin, end)
    longer = made.over(begin, begin + 128 * 10**9)
    for name, role in made.roles.items():
        other = longer.roles[name]
        assert other.env_steps[:33] == role.env_steps[::2]
        assert set(other.env_steps[33:]) <= {role.env_steps[-1]}
        assert (other.members, other.progress, other.tree) == (role.members, role.progress, role.tree)
    assert made.over(begin, end) is made


def test_a_job_that_ends_before_the_first_round_brings_everything_home(
    ray: FakeRay, cluster: FakeCluster, tmp_path: Path
) -> None:
    ray.present["far"] = True
    record(tmp_path, "far", b"one")
    cluster.round(FAR, last=True)
    assert (cluster.folder / "parts" / "far-1-2.part").read_bytes() == b"one"
    assert saved(cluster).complete and not (tmp_path / "far").exists()


def test_nodes_are_listed_now_and_then_and_when_one_does_not_answer(
    ray: FakeRay, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_driver, "LIST_S", FAR)
    ray.present["far"] = True
    for _ in range(3):
        cluster.round(FAR)
    assert ray.listed == 1
    ray.present["far"] = False
    cluster.round(FAR)
    assert ray.listed == 1 and not saved(cluster).lost
    cluster.round(FAR)
    assert ray.listed == 2 and saved(cluster).lost


def test_users_are_told_what_the_end_of_the_job_waits_for(
    ray: FakeRay, cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ray.present["far"] = True
    cluster.round(FAR)
    cluster.nodes["far"].actor.answers = False
    cluster.round(FAR)
    assert not capsys.readouterr().err
    cluster.finish()
    assert capsys.readouterr().err.count("hotloop: waiting for what other nodes recorded (at most ") == 1
    assert not saved(cluster).complete


def test_rounds_over_many_nodes_are_further_apart() -> None:
    pause = ray_driver.pause_after
    assert pause(0.0, 0.5) == pause(0.001, 0.5) == pause(0.5, 0.001) == 4.0  # new actors, or clocks compared
    assert pause(0.05, 0.04) == pytest.approx(8.0)
    assert pause(9.0, 9.0) == 30.0


def test_a_task_is_submitted_when_the_call_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle worker may begin a task before `remote()` returns on the driver: seen on a busy machine."""
    sample = ray_times.Sample()
    monkeypatch.setattr(ray_times, "_submitted", sample)
    monkeypatch.setattr(ray_times, "_changed", lambda: None)
    monkeypatch.setattr(ray_patches, "_task_of", lambda result: result)
    monkeypatch.setattr(ray_patches, "default", SimpleNamespace(recorder=SimpleNamespace(epoch=1)))
    began_ns = []

    def remote(_self: object) -> bytes:
        began_ns.append(time.monotonic_ns())
        return b"task"

    assert ray_patches._submitting(lambda _self: "Runner.sample", remote)(object()) == b"task"
    name, submitted_ns = sample.kept[b"task".hex()]
    assert name == "Runner.sample" and submitted_ns <= began_ns[0]


def test_the_environment_says_how_long_the_end_waits_for_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOTLOOP_WAIT_FOR_NODES", "300")
    assert ray_driver._whole_number(ray_driver.END_VARIABLE, ray_driver.END_S) == 300
    monkeypatch.setenv("HOTLOOP_WAIT_FOR_NODES", "soon")
    assert ray_driver._whole_number(ray_driver.END_VARIABLE, ray_driver.END_S) == 60


def test_the_busiest_network_interface_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    counts = {"eth0": (100, 10), "eth1": (0, 0)}
    monkeypatch.setattr(ray_node, "_by_interface", lambda: dict(counts))
    meter = ray_node.NetworkMeter()
    counts["eth0"], counts["eth1"], counts["new"] = (150, 10), (2000, 70), (10**9, 0)
    read = meter.read()
    assert read is not None and read[0] > 0 and read[1:] == (2000, 70)
    counts.clear()
    assert meter.read() is None


def test_a_time_namespace_is_a_clock_of_its_own() -> None:
    assert ray_node.clock_id() == ray_node.clock_id() != ""
    if Path("/proc/self/ns/time").exists():
        assert "time:" in ray_node.clock_id()


def test_a_node_keeps_its_figures_when_the_driver_connects_again(
    ray: FakeRay, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.present["far"] = True
    record(tmp_path, "far", b"first")
    monkeypatch.setattr(ray_node.NetworkMeter, "read", lambda meter: (10, 2, 3))
    cluster.round(FAR, last=True)
    first = saved(cluster)
    again = FakeCluster(cluster.settings, cluster)
    again.round(FAR, last=True)
    second = saved(again)
    assert second.received_bytes == first.received_bytes > 0
    assert (first.network, second.network) == ((10, 2, 3), (20, 4, 6))
